"""`views replay` and `views verdict`: recorded requests with other settings."""

from __future__ import annotations

import asyncio
import json as json_
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from context_compiler.cli.diff import Comparison, compare, print_diff, unified
from context_compiler.cli.inputs import check_model
from context_compiler.cli.options import DB, SYSTEM, Db, Json, Owner, Place, System, Vault, ViewId, example, group
from context_compiler.cli.records import find_session, find_view, open_record, print_look, recorded_messages
from context_compiler.cli.screen import Screen, print_result
from context_compiler.cli.show import read_history
from context_compiler.cli.templates import choose_template, parse_fidelity, recorded_fidelity, recorded_template
from context_compiler.cli.text import first_word, json_text, number, plural, share
from context_compiler.cli.view_options import RECALL, TRIGGER, FidelityName, ModelName, agent_arguments, parse_amount
from context_compiler.compiler.policy import DEFAULT_BUDGET
from context_compiler.compiler.view import View
from context_compiler.errors import SettingsError, StoreError
from context_compiler.fidelity import Fidelity
from context_compiler.messages.bodies import load_messages, message_body
from context_compiler.messages.history import Reader
from context_compiler.middleware.again import BUDGET, compile_again, differs, sent_view, whole_tokens
from context_compiler.middleware.verdict import PRICE_ONLY, Verdict, recorded_verdict
from context_compiler.paths import vault_of
from context_compiler.record.values import Record, replay_session
from context_compiler.settings import Amount, amount_tokens
from context_compiler.template import Template
from context_compiler.tokens import TokenCounter

app = group("Replay recorded requests.")


@app.command("verdict", epilog=example("views verdict demo"))
def verdict(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="Name of a session, from `sessions list`.")],
    db: Db = DB,
    owner: Owner = None,
    json: Json = False,
) -> None:
    """Tell which budget and `recall` cost a recorded session least, or that sending everything does. Asks no model."""
    verdict = asyncio.run(_load_verdict(db, owner, session))
    document = {"session": session, "verdict": verdict, "said": str(verdict)}
    print_result(document, (str(verdict), "bold"), json=json)
    if not json:
        Screen().line((PRICE_ONLY, "dim"))


async def _load_verdict(db: Place, owner: str | None, session: str) -> Verdict:
    async with open_record(db, owner) as store:
        name = (await find_session(store, session))[0].session_id
        record = next((record for record in await store.views(name, limit=NEWEST) if record.raw_tip is not None), None)
        if record is None:
            raise StoreError(f"{db}: no newest request of session {name!r} has its raw history, which is replayed")
        raw = load_messages(await recorded_messages(store, record, raw=True))
    verdict = await recorded_verdict(raw, record, Reader(TokenCounter()))
    if verdict is None:
        raise StoreError(f"{db}: session {name!r} has no answer, so no request can be replayed")
    return verdict


NEWEST = 50
"""Requests among which one with its raw history is searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """A recorded request, combined with the options that were given."""

    template: Template
    budget: Amount
    fidelity: Fidelity | None
    model: str
    changed: bool
    """True if an option differs from the recorded request."""


@app.command("replay", epilog=example("views replay 3 --template goal_oriented"))
def replay(
    view: ViewId,
    template: Annotated[
        str | None, typer.Option("--template", "-t", help="Template; default: that of the view.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option("--budget", "-b", help="Tokens, or a share; default: that of the view.")
    ] = None,
    fidelity: FidelityName = None,
    model: ModelName = "none",
    recall: Annotated[str | None, typer.Option("--recall", help=f"{RECALL}.")] = None,
    trigger: Annotated[str | None, typer.Option("--trigger", help=f"{TRIGGER}.")] = None,
    vault: Vault = None,
    system: System = SYSTEM,
    record: Annotated[bool, typer.Option("--record", help="Record the new view, in a session of its own.")] = False,
    db: Db = DB,
    owner: Owner = None,
    json: Json = False,
) -> None:
    """Compile a recorded history again with other options, as the agent did, and compare."""
    settings = agent_arguments(recall, trigger)
    if template is None and budget is None and fidelity is None and model == "none" and not settings:
        raise SettingsError("nothing to change: give --template, --budget, --fidelity, --model, --recall or --trigger")

    def replay_request(old: Record) -> ReplayRequest:
        own_vault = vault_of(vault, old.owner)
        if template is None:
            used = recorded_template(old, model=model, vault=own_vault, system=system)
            if model != "none" and used.compiler != "agent":
                problem = f"template {used.name} of that view asks no model"
                raise SettingsError(f"--model {model!r}: {problem}; name one that does with --template")
        else:
            used = choose_template(template, model=model, vault=own_vault, system=system)
        same = template is None and fidelity is None
        amount = old.budget or BUDGET if budget is None else parse_amount(budget)
        named = used.name if template else None
        return ReplayRequest(
            template=used,
            budget=amount,
            fidelity=recorded_fidelity(old.compile, used) if same else parse_fidelity(fidelity),
            model=check_model(model),
            changed=model != "none" or differs(old, template=named, fidelity=fidelity, budget=amount, **settings),
        )

    old, request, replayed, compared = asyncio.run(_replay(db, owner, view, replay_request, settings, record=record))
    before = (old.compile.summary if old.compile else None) or ""
    names = (f"view {view}", f"template {request.template.name}")
    summaries = unified(before.splitlines(), replayed.summary.splitlines(), names=names)
    screen, within = Screen(), amount_tokens(request.budget, of=DEFAULT_BUDGET) or 0
    if json:
        screen.raw(json_text(_document(old, within, replayed, compared, summaries)))
        return
    _print(screen, old, within, replayed, compared)
    _print_summary(screen, summaries, request)
    if replayed.record is not None and replayed.record.id is not None:
        screen.line()
        screen.line(f"recorded as view {replayed.record.id}, in session {replay_session(view, old.session_id)}")
        print_look(screen, db)


async def _replay(
    db: Place,
    owner: str | None,
    number: int,
    replay_request: Callable[[Record], ReplayRequest],
    settings: Mapping[str, Any],
    *,
    record: bool,
) -> tuple[Record, ReplayRequest, View, Comparison]:
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(open_record(db, owner))
        old = await find_view(source, number)
        raw = load_messages(await recorded_messages(source, old, raw=True))
        sent = load_messages(await recorded_messages(source, old, raw=False))
        request = replay_request(old)
        writing = open_record(db, old.owner, writing=True)
        store = await stack.enter_async_context(writing) if record else None
        if record or request.changed:
            replayed = await compile_again(
                raw,
                old,
                request.template,
                budget=request.budget,
                fidelity=request.fidelity,
                model=request.model,
                session=replay_session(number, old.session_id),
                store=store,
                **settings,
            )
        else:
            replayed = sent_view(sent, old)
    names = (f"view {number}", f"template {request.template.name}")
    return old, request, replayed, compare(read_history(sent), read_history(replayed.messages), names=names)


def _document(
    old: Record, budget: int, replayed: View, compared: Comparison, summaries: tuple[str, ...]
) -> dict[str, object]:
    return {
        "view": old.id,
        "before": {"tokens": old.tokens_sent, "budget": old.budget, "status": old.status},
        "after": {"tokens": whole_tokens(replayed, old), "budget": budget, "status": replayed.status},
        "comparison": compared,
        "summary_diff": summaries,
        "messages": [json_.loads(message_body(message)) for message in replayed.messages],
        "ledger": replayed.ledger,
        "record": replayed.record,
    }


def _print(screen: Screen, old: Record, budget: int, replayed: View, compared: Comparison) -> None:
    before, after = old.tokens_sent, whole_tokens(replayed, old)
    old_template = old.compile.template_name if old.compile else "none"
    new_template = replayed.record.compile.template_name if replayed.record and replayed.record.compile else "none"
    kept = f"{plural(compared.common_messages, 'message')}, {number(compared.common_tokens)} tokens"
    screen.facts(
        [
            ("template", f"{old_template} → {new_template}"),
            ("status", f"{first_word(old.status)} → {replayed.status}"),
            ("tokens", f"{number(before)} → {number(after)} ({after - before:+,}), raw {number(old.tokens_raw)}"),
            ("budget", f"{'none' if old.budget is None else number(old.budget)} → {number(budget)}"),
            ("shared", f"{kept} from the beginning ({share(compared.common_tokens, after) or '0%'})"),
        ]
    )


def _print_summary(screen: Screen, summaries: tuple[str, ...], request: ReplayRequest) -> None:
    """Print the diff of the two summaries, and a note if no model wrote the new one although its template asks one."""
    screen.heading("Summary")
    print_diff(screen, summaries)
    if request.model == "none" and request.template.compiler == "agent":
        name = request.template.name
        screen.line()
        screen.line((f"no model was asked, so quotes replace the summary of {name}; --model NAME asks one", "dim"))
