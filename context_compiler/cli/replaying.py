"""`views replay`: what would have been sent with another template, budget or fidelity, from the recorded history."""

from __future__ import annotations

import asyncio
import json as json_
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import typer

from context_compiler.cli import compile_options as given
from context_compiler.cli.compiling import Wish, compile_in
from context_compiler.cli.diff import Comparison, as_json, compare, differing, show_diff
from context_compiler.cli.messages import reading
from context_compiler.cli.models import askable
from context_compiler.cli.options import (
    DB,
    SYSTEM,
    Db,
    Json,
    System,
    Vault,
    ViewId,
    amount,
    kept_chain,
    known_view,
    opened,
)
from context_compiler.cli.screen import Screen
from context_compiler.cli.text import first_word, json_text, number, plural, share
from context_compiler.cli.view_inputs import chosen_fidelity, chosen_template, recorded_fidelity, recorded_template
from context_compiler.compiler.view import View
from context_compiler.errors import SettingsError
from context_compiler.messages.history import load_messages, message_body
from context_compiler.record.values import Record

BUDGET = 2_000
"""Tokens, where neither the record nor the caller knows a budget."""


def replay(
    view: ViewId,
    template: Annotated[
        str | None, typer.Option("--template", "-t", help="The template to write it with; without it that of the view.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option("--budget", "-b", help="Tokens or a share; without it that of the view.")
    ] = None,
    fidelity: given.FidelityName = None,
    model: given.ModelName = "none",
    vault: Vault = None,
    system: System = SYSTEM,
    record: Annotated[bool, typer.Option("--record", help="Keep the new view on the record too.")] = False,
    db: Db = DB,
    json: Json = False,
) -> None:
    """Compile a recorded history in another way; nothing is kept."""
    if template is None and budget is None and fidelity is None and model == "none":
        raise SettingsError("nothing would differ: give --template, --budget, --fidelity or --model")

    def wished(old: Record) -> Wish:
        """How it is wanted now: as it was, but for what is said."""
        if template is None:
            written = recorded_template(old.compile, model=model, vault=vault, system=system)
            if model != "none" and written.compiler != "agent":
                asks = f"template {written.name} of that view asks no model"
                raise SettingsError(f"--model {model!r}: {asks}; name one that does with --template")
        else:
            written = chosen_template(template, model=model, vault=vault, system=system)
        same = template is None and fidelity is None
        return Wish(
            template=written,
            budget=old.budget or BUDGET if budget is None else amount(budget),
            fidelity=recorded_fidelity(old.compile, written) if same else chosen_fidelity(fidelity),
            model=askable(model),
            session=old.session_id,
        )

    old, wish, made, compared = asyncio.run(_replayed(db, view, wished, record=record))
    before = (old.compile.summary if old.compile else None) or ""
    names = (f"view {view}", f"template {wish.template.name}")
    summaries = differing(before.splitlines(), made.summary.splitlines(), names=names)
    screen = Screen()
    if json:
        screen.raw(json_text(_document(old, made, compared, summaries)))
        return
    _print(screen, old, made, compared)
    screen.heading("Summary")
    show_diff(screen, summaries)
    if made.record is not None and made.record.id is not None:
        screen.line()
        screen.line(f"recorded as view {made.record.id}")


async def _replayed(
    db: Path, number: int, wished: Callable[[Record], Wish], *, record: bool
) -> tuple[Record, Wish, View, Comparison]:
    async with AsyncExitStack() as stack:
        looked = await stack.enter_async_context(opened(db))
        old = await known_view(looked, number)
        raw = load_messages(await kept_chain(looked, old, raw=True))
        sent = load_messages(await kept_chain(looked, old, raw=False))
        wish = wished(old)
        store = await stack.enter_async_context(opened(looked.path, writing=True)) if record else None
        made = await compile_in(store, raw, wish)
    names = (f"view {number}", f"template {wish.template.name}")
    return old, wish, made, compare(reading(sent), reading(made.messages), names=names)


def _document(old: Record, made: View, compared: Comparison, summaries: tuple[str, ...]) -> dict[str, object]:
    return {
        "view": old.id,
        "before": {"tokens": compared.tokens[0], "budget": old.budget, "status": old.status},
        "after": {"tokens": made.tokens, "budget": made.budget, "status": made.status},
        "comparison": as_json(compared),
        "summary_diff": summaries,
        "messages": [json_.loads(message_body(message)) for message in made.messages],
        "ledger": made.ledger,
        "record": made.record,
    }


def _print(screen: Screen, old: Record, made: View, compared: Comparison) -> None:
    was, now = compared.tokens
    before = old.compile.template_name if old.compile else "none"
    after = made.record.compile.template_name if made.record and made.record.compile else "none"
    kept = f"{plural(compared.common_messages, 'message')}, {number(compared.common_tokens)} tokens"
    screen.facts(
        [
            ("template", f"{before} → {after}"),
            ("status", f"{first_word(old.status)} → {made.status}"),
            ("tokens", f"{number(was)} → {number(now)} ({now - was:+,}), raw {number(old.tokens_raw)}"),
            ("budget", f"{'none' if old.budget is None else number(old.budget)} → {number(made.budget)}"),
            ("the same", f"{kept} from the beginning ({share(compared.common_tokens, now) or '0%'})"),
        ]
    )
