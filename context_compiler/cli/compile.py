"""`compile`: a transcript in, a view out."""

from __future__ import annotations

import asyncio
import json as json_
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic_ai.messages import ModelMessage

from context_compiler.cli.inputs import askable, conversations, selected, tell_notes
from context_compiler.cli.options import (
    SYSTEM,
    BudgetText,
    Explain,
    FidelityName,
    Format,
    FormatName,
    Json,
    LayersOf,
    ModelName,
    PrintAs,
    RecentTurns,
    RecordIn,
    Role,
    Select,
    SessionName,
    Strict,
    System,
    TemplateName,
    TranscriptPath,
    Vault,
    amount,
    example,
    group,
    opened,
    turns,
)
from context_compiler.cli.screen import Screen
from context_compiler.cli.show import explain, explained, markdown, places, reading, show
from context_compiler.cli.templates import chosen_fidelity, chosen_template
from context_compiler.cli.text import first_word, json_text, number, share
from context_compiler.compiler.view import View
from context_compiler.errors import SettingsError
from context_compiler.fidelity import Fidelity
from context_compiler.layers.session import Layers
from context_compiler.messages.history import History, message_body
from context_compiler.messages.importers import Transcript
from context_compiler.middleware.one_shot import compile_view
from context_compiler.record.store import Store
from context_compiler.settings import Amount, Count
from context_compiler.template import Template

app = group("Compile a transcript.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """How a view is wanted, read and checked."""

    template: Template
    budget: Amount
    fidelity: Fidelity | None = None
    model: str = "none"
    session: str | None = None
    recent_turns: Count | None = None
    strict: bool = False
    layers: str | None = None
    """The session whose layers stand before the last prompt."""
    role: str = "think"


@app.command("compile", epilog=example("compile chat.json --budget 4000 --explain"))
def compile_(
    transcript: TranscriptPath,
    template: TemplateName = None,
    fidelity: FidelityName = None,
    budget: BudgetText = "2000",
    model: ModelName = "none",
    db: RecordIn = None,
    vault: Vault = None,
    system: System = SYSTEM,
    session: SessionName = None,
    recent_turns: RecentTurns = None,
    select: Select = None,
    format_: FormatName = None,
    format: PrintAs = Format.RICH,
    json: Json = False,
    explain: Explain = False,
    strict: Strict = False,
    layers: LayersOf = None,
    role: Role = "think",
) -> None:
    """Compile a transcript into a view that fits a token budget, and print it."""
    wish = Wish(
        template=chosen_template(template, model=model, vault=vault, system=system),
        budget=amount(budget),
        fidelity=chosen_fidelity(fidelity),
        model=askable(model),
        session=session,
        recent_turns=turns(recent_turns),
        strict=strict,
        layers=layers,
        role=role,
    )
    if layers is not None and db is None:
        raise SettingsError(f"--layers {layers!r}: give the --db that holds them")
    found = selected(conversations(transcript, format_), select, file=transcript)
    tell_notes(found)
    view = asyncio.run(compiled(found, wish, db))
    _print(found, view, Format.JSON if json else format, explaining=explain)


async def compiled(found: Transcript, wish: Wish, db: Path | None) -> View:
    """One view of a conversation, recorded where `db` says."""
    named = replace(wish, session=wish.layers or wish.session or found.name)
    if db is None:
        return await compile_in(None, found.messages, named)
    async with opened(db, writing=True) as store:
        return await compile_in(store, found.messages, named)


async def compile_in(store: Store | None, messages: Sequence[ModelMessage], wish: Wish) -> View:
    """One view of a conversation, recorded in `store`."""
    return await compile_view(
        messages,
        wish.template,
        wish.budget,
        fidelity=wish.fidelity,
        model=wish.model,
        store=store,
        session=wish.session,
        recent_turns=wish.recent_turns,
        strict=wish.strict,
        layers=Layers(store) if wish.layers is not None else None,
        role=wish.role if wish.layers is not None else None,
    )


def as_json(view: View) -> dict[str, object]:
    """A view for JSON: messages as the host writes them, and where they come from."""
    return {
        "messages": [json_.loads(message_body(message)) for message in view.messages],
        "tokens": view.tokens,
        "budget": view.budget,
        "status": view.status,
        "ledger": view.ledger,
        "record": view.record,
    }


def headline(name: str, view: View, raw: History) -> str:
    """A view in one line: what it saves, and how it came about."""
    made = view.record.compile if view.record else None
    how = "parts of it are shorter, nothing is left out" if view.drops else "it fits as it is"
    if made:
        how = f"template {made.template_name}, {made.fidelity}, model {made.model_alias}"
    return (
        f"{name}: {number(raw.tokens)} → {number(view.tokens)} tokens ({share(view.tokens, raw.tokens)}) "
        f"of a budget of {number(view.budget)} · {first_word(view.status)} · {how}"
    )


def _print(found: Transcript, view: View, format: Format, *, explaining: bool) -> None:
    screen = Screen()
    if format is Format.JSON:
        screen.raw(json_text(as_json(view)))
        return
    raw, sent = reading(found.messages), reading(view.messages)
    line = headline(found.name, view, raw)
    if format is Format.MARKDOWN:
        screen.raw(explained(view, raw, sent, line) if explaining else markdown(sent, found.name, line))
        return
    screen.line((line, "bold"))
    if explaining:
        explain(screen, view, raw, sent)
    else:
        show(screen, sent, places(view, raw, sent))
    if view.record is not None and view.record.id is not None:
        screen.line()
        screen.line(("recorded as view ", "dim"), str(view.record.id), (" of session ", "dim"), view.record.session_id)
