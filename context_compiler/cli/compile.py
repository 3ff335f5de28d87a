"""`compile`: compile a transcript into a view."""

from __future__ import annotations

import asyncio
import json as json_
from contextlib import nullcontext
from functools import partial
from typing import Annotated, Any

import typer

from context_compiler.cli.explanation import explanation_markdown, print_explanation
from context_compiler.cli.inputs import check_model, print_notes, read_conversations, select_conversation
from context_compiler.cli.layers import parse_role
from context_compiler.cli.options import PLACE, SYSTEM, AsOwner, Json, Place, System, Vault, example, group
from context_compiler.cli.records import open_record, print_look
from context_compiler.cli.screen import Screen
from context_compiler.cli.show import messages_markdown, print_messages, read_history
from context_compiler.cli.templates import choose_template, parse_fidelity
from context_compiler.cli.text import first_word, json_text, number, sent_share
from context_compiler.cli.view_options import (
    BUDGET,
    FidelityName,
    Format,
    FormatName,
    ModelName,
    Select,
    SessionName,
    TranscriptPath,
    parse_budget,
    parse_turns,
)
from context_compiler.compiler.view import View, message_origins
from context_compiler.errors import SettingsError
from context_compiler.layers.session import Layers
from context_compiler.messages.bodies import message_body
from context_compiler.messages.history import History
from context_compiler.messages.importers import Transcript
from context_compiler.middleware.one_shot import compile_view
from context_compiler.paths import vault_of

app = group("Compile a transcript.")


@app.command("compile", epilog=example("compile chat.json --budget 4000 --explain"))
def compile_(
    transcript: TranscriptPath,
    template: Annotated[
        str | None,
        typer.Option(
            "--template",
            "-t",
            envvar="CONTEXT_COMPILER_TEMPLATE",
            help="Name or path of a template; default: extractive, or chat_compiler with a model.",
        ),
    ] = None,
    fidelity: FidelityName = None,
    budget: Annotated[
        str,
        typer.Option(
            "--budget",
            "-b",
            help="Tokens such as 4000, a share of 32,000 tokens such as 0.5, or '$0.02' at --model's price.",
            **BUDGET,
        ),
    ] = "2000",
    model: ModelName = "none",
    db: Annotated[
        Any, typer.Option("--db", help="Record the view in this file or database; default: nowhere.", **PLACE)
    ] = None,
    owner: AsOwner = None,
    vault: Vault = None,
    system: System = SYSTEM,
    session: SessionName = None,
    recent_turns: Annotated[
        str | None, typer.Option("--recent-turns", help="Turns to keep if they fit: a number, or all.")
    ] = None,
    select: Select = None,
    format_: FormatName = None,
    format: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.RICH,
    json: Json = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print why each message is kept or left out, instead of the messages.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail if the budget is exceeded, or met only by truncating the prompt.")
    ] = False,
    layers: Annotated[
        str | None,
        typer.Option("--layers", help="Put the layers of this session (stored in --db) before the last prompt."),
    ] = None,
    role: Annotated[
        str, typer.Option("--role", help="Kind of node that gets the layers: understand, think, act or reply.")
    ] = "think",
) -> None:
    """Compile a transcript into a view that fits a token budget, and print it."""
    request = partial(
        compile_view,
        template=choose_template(template, model=model, vault=vault_of(vault, owner), system=system),
        budget=parse_budget(budget),
        fidelity=parse_fidelity(fidelity),
        model=check_model(model),
        recent_turns=parse_turns(recent_turns),
        strict=strict,
    )
    if layers is not None and db is None:
        raise SettingsError(f"--layers {layers!r}: give the --db in which they are stored")
    conversation = select_conversation(read_conversations(transcript, format_), select, file=transcript)
    print_notes(conversation)
    name, messages = layers or session or conversation.name, conversation.messages

    async def work() -> View:
        async with nullcontext() if db is None else open_record(db, owner or "", writing=True) as store:
            if layers is None:
                return await request(messages, store=store, session=name)
            return await request(messages, store=store, session=name, layers=Layers(store), role=parse_role(role))

    _print(conversation, asyncio.run(work()), Format.JSON if json else format, explaining=explain, db=db)


def view_document(view: View) -> dict[str, object]:
    """Convert a view for JSON, with messages as the host serializes them."""
    return {
        "messages": [json_.loads(message_body(message)) for message in view.messages],
        "tokens": view.tokens,
        "budget": view.budget,
        "status": view.status,
        "ledger": view.ledger,
        "record": view.record,
    }


def headline(name: str, view: View, raw: History) -> str:
    """Describe a view in one line: tokens saved, status and template."""
    compiled = view.record.compile if view.record else None
    how = "parts of it are shortened, nothing is left out" if view.drops else "it fits as it is"
    if compiled:
        how = f"template {compiled.template_name}, {compiled.fidelity}, model {compiled.model_alias}"
    return (
        f"{name}: {number(raw.tokens)} → {number(view.tokens)} tokens ({sent_share(view.tokens, raw.tokens)}) "
        f"of a budget of {number(view.budget)} · {first_word(view.status)} · {how}"
    )


def _print(conversation: Transcript, view: View, format: Format, *, explaining: bool, db: Place | None) -> None:
    screen = Screen()
    if format is Format.JSON:
        screen.raw(json_text(view_document(view)))
        return
    raw, sent = read_history(conversation.messages), read_history(view.messages)
    line = headline(conversation.name, view, raw)
    if format is Format.MARKDOWN:
        screen.raw(
            explanation_markdown(view, raw, sent, line)
            if explaining
            else messages_markdown(sent, conversation.name, line)
        )
        return
    screen.line((line, "bold"))
    if explaining:
        print_explanation(screen, view, raw, sent)
    else:
        print_messages(screen, sent, message_origins(view, raw, sent))
    if view.record is not None and view.record.id is not None:
        screen.line()
        screen.line(("recorded as view ", "dim"), str(view.record.id), (" of session ", "dim"), view.record.session_id)
        if db is not None:
            print_look(screen, db)
