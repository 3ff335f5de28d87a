"""`demo`: compile a bundled conversation within three budgets, and record it as an agent lives it; no model, no key.

The session on the record has one request for each answer of the conversation, and one for its last prompt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from shlex import quote
from typing import Annotated

import typer
from pydantic_ai.messages import ModelMessage, ModelResponse

from context_compiler.chat import local_model
from context_compiler.cli.compile import view_document
from context_compiler.cli.explanation import DROP_COLUMNS, dropped_rows
from context_compiler.cli.options import DB, Db, Json, Place, example, group
from context_compiler.cli.records import list_command, open_record
from context_compiler.cli.screen import Column, Piece, Screen
from context_compiler.cli.serve import missing_for_serve
from context_compiler.cli.show import print_messages, read_history
from context_compiler.cli.text import json_text, number, one_line, plural, share
from context_compiler.compiler.view import View, message_origins
from context_compiler.messages.bodies import message_body
from context_compiler.messages.history import History, reader_of
from context_compiler.messages.importers import Transcript, parse_transcripts
from context_compiler.messages.items import Kind
from context_compiler.messages.turns import outline, pair
from context_compiler.middleware.capability import ContextCompiler
from context_compiler.middleware.one_shot import compile_view
from context_compiler.middleware.replay import LiveSession, newest, replay
from context_compiler.paths import install_command
from context_compiler.resilience import attempt
from context_compiler.settings import Count
from context_compiler.template import TemplateLibrary
from context_compiler.tokens import as_counter

app = group("See it work.")

VIEWS: tuple[tuple[int, Count | None], ...] = ((1_000, None), (2_000, 1), (4_000, 2))
"""Budgets of the three views, and the number of whole turns they keep; None lets the budget decide."""

LIVED = 2_000
"""Budget of the recorded session."""

ASKED = "7 days"
"""Fact that leaves the requests of that session and comes back, more than once."""

WINDOW = 4_000
"""Budget of the window of newest messages that the views are compared with."""

COLORS = ("cyan", "blue", "magenta")

SHOWN = 1
"""Position of the view that is printed message by message."""

LINES = 4
"""Maximum lines printed per message; notes are printed in full."""

BIGGEST = 6
"""Maximum rows in the list of what was left out."""

NEEDED = (
    ("table", "webhook_receipts"),
    ("kept for", "7 days"),
    ("queue", "documents"),
    ("retries", "8 retries"),
    ("deploy", "26 May"),
    ("not without", "my explicit yes"),
)
"""Facts that the last prompt asks for, and the words that state them in the conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A promise about the views, and if it holds."""

    what: str
    holds: bool


@app.command("demo", epilog=example("demo --db /tmp/demo.db"))
def demo(
    full: Annotated[bool, typer.Option("--full", help="Also show one complete view, and what it leaves out.")] = False,
    db: Db = DB,
    json: Json = False,
) -> None:
    """Compile a bundled conversation within three budgets, and show what a model would see. Needs no model or key."""
    (conversation,) = parse_transcripts(
        files("context_compiler").joinpath("data/demo.json").read_bytes(), file="demo.json"
    )
    before = [message_body(message) for message in conversation.messages]
    requests = asyncio.run(_record_session(conversation, db))
    views, newest_messages = asyncio.run(_compile_views(conversation))
    raw, window = read_history(conversation.messages), read_history(newest_messages)
    untouched = before == [message_body(message) for message in conversation.messages]
    checks = check_views(raw, views, untouched=untouched)
    screen = Screen()
    if json:
        document = {
            "db": str(db),
            "raw_tokens": raw.tokens,
            "requests": requests,
            "views": [view_document(view) for view in views],
            "answers": _answers_document(window, views),
            "checks": checks,
        }
        screen.raw(json_text(document))
        return
    _print_introduction(screen, raw, window, views[0])
    _print_answers(screen, window, views)
    if full:
        _print_sizes(screen, raw, views)
        _print_view(screen, raw, views[SHOWN])
        _print_checks(screen, checks)
        _print_next_steps(screen, requests, db)
        return
    failed = [check.what for check in checks if not check.holds]
    if failed:
        screen.line(("NOT ", "bold red"), "; ".join(failed))
    screen.line(
        ("No model was asked. ", "dim"), ("context-compiler demo --full", "bold cyan"), (" shows a view and why", "dim")
    )
    screen.line(("A real model without a key: ", "dim"), (_chat_command(), "bold cyan"))
    screen.line(("Browse it: ", "dim"), (serve_command(db), "bold cyan"))


def serve_command(db: Place) -> str:
    """Command that opens the history of a fact of the recorded session in a browser, after installing what it needs."""
    install = f"{install_command('web')} && " if missing_for_serve() else ""
    return f"{install}{list_command('serve', db)} --open --find {quote(ASKED)}"


def _chat_command() -> str:
    install = f"{local_model.INSTALL} && " if attempt(local_model.default_weights).error else ""
    return f"{install}context-compiler chat --model local --endless"


async def _compile_views(conversation: Transcript) -> tuple[list[View], Sequence[ModelMessage]]:
    """Compile the views; return them, and the newest messages that fit the window."""
    template = TemplateLibrary(system=None).find("extractive")
    views = [await compile_view(conversation.messages, template, budget, recent_turns=turns) for budget, turns in VIEWS]
    return views, await newest(reader_of(as_counter(None)))(list(conversation.messages), WINDOW)


async def _record_session(conversation: Transcript, db: Place) -> int:
    """Record every request of the conversation, unless that was done before; return the number of the last one."""
    async with open_record(db, "", writing=True) as store:
        if not await store.views(conversation.name):
            compiler = ContextCompiler(model="none", store=store, system=None, budget=LIVED)
            answers = (message for message in conversation.messages if isinstance(message, ModelResponse))
            model = next((answer.model_name for answer in answers), None)
            session = LiveSession([compiler], name=conversation.name, model=model)
            await replay([*conversation.messages, ModelResponse(parts=[])], session, reader_of(as_counter(None)))
        return max(view.id or 0 for view in await store.views(conversation.name))


def check_views(raw: History, views: Sequence[View], *, untouched: bool) -> list[Check]:
    """Check the promises that hold for every view."""
    sent = [read_history(view.messages) for view in views]
    pairings = [pair(history) for history in sent]
    pairs = sum(len(pairing.pairs) for pairing in pairings)
    calls = sum(len(reading.calls) for history in sent for reading in history.readings)
    return [
        Check(
            what=f"every tool call is sent with its result: {plural(pairs, 'pair')}, none broken",
            holds=not any(pairing.broken for pairing in pairings) and pairs == calls,
        ),
        Check(what="every view is within its budget", holds=all(view.tokens <= view.budget for view in views)),
        Check(
            what="every view ends with the question as it was asked",
            holds=all(history.messages[-1] == raw.messages[-1] for history in sent),
        ),
        Check(what=f"the raw conversation is unchanged: {len(raw)} messages, byte for byte", holds=untouched),
    ]


def _print_introduction(screen: Screen, raw: History, window: History, view: View) -> None:
    """Print one fact that the last prompt asks for, when it was stated, and which request contains it."""
    turns = outline(raw, pair(raw)).turns
    screen.line(("context_compiler", "bold"), " decides what a language model sees of a long conversation.")
    size = (f"{number(raw.tokens)} tokens", "bold")
    screen.line(f"This one has {len(turns)} turns, {len(raw)} messages and ", size, ". Its last prompt asks:")
    prompt = next(item.text for item in raw.readings[-1].items if item.kind is Kind.USER)
    screen.indented(f"… and {one_line(prompt).rpartition(', and ')[2]}", "italic green")
    words = NEEDED[-1][1]
    mentioned = next(turn.index for turn in turns if words in _text(raw, turn.start, turn.stop))
    first = raw.messages.index(window.messages[0])
    begins = next(turn.index for turn in turns if turn.start <= first < turn.stop)
    screen.line(
        "The newest ",
        (f"{number(window.tokens)} tokens", "bold red"),
        f" begin in turn {begins + 1}: they have no answer.",
    )
    screen.line(
        "A view of ",
        (f"{number(view.tokens)} tokens", "bold green"),
        f" has it, word for word from turn {mentioned + 1}:",
    )
    sent = read_history(view.messages)
    quote = next(line for line in _text(sent, 0, len(sent) - 1).splitlines() if words in line)
    screen.indented(one_line(quote), "bold green")


def _text(history: History, start: int, stop: int) -> str:
    return "\n".join(item.text for reading in history.readings[start:stop] for item in reading.items)


def contained_words(sent: History) -> list[bool]:
    """For each needed fact, True if the messages before the last prompt contain it."""
    text = _text(sent, 0, len(sent) - 1)
    return [words in text for _, words in NEEDED]


def _answers_document(window: History, views: Sequence[View]) -> list[dict[str, object]]:
    """Convert for JSON which needed facts the window and every view contain."""
    contained = zip(*map(contained_words, [window, *(read_history(view.messages) for view in views)]), strict=True)
    return [
        {"asks_for": name, "words": words, "window": newer, "views": list(ours)}
        for (name, words), (newer, *ours) in zip(NEEDED, contained, strict=True)
    ]


def _print_answers(screen: Screen, window: History, views: Sequence[View]) -> None:
    screen.heading("All that it asks for, and which request has it:")
    columns = [
        Column("it asks for"),
        Column("in the words", style="dim", wraps=True),
        Column(f"newest {number(WINDOW)}", style="red"),
        *(Column(f"view {number(view.budget)}", style="bold green", spare=index) for index, view in enumerate(views)),
    ]
    sent = [window, *(read_history(view.messages) for view in views)]
    contained = list(map(contained_words, sent))
    answers = zip(NEEDED, zip(*contained, strict=True), strict=True)
    rows = [[*need, *("yes" if mark else "-" for mark in marks)] for need, marks in answers]
    rows.append(["", "answered", *(f"{sum(marks)} of {len(marks)}" for marks in contained)])
    rows.append(["", "tokens", *(number(history.tokens) for history in sent)])
    screen.table(columns, rows)


def _print_sizes(screen: Screen, raw: History, views: Sequence[View]) -> None:
    screen.heading("What the model would be sent; no model was asked to write it")
    screen.line()
    rows: list[tuple[str, float, str, Sequence[Piece]]] = []
    rows.append(("raw", raw.tokens, "white", [f"{number(raw.tokens):>7} tokens"]))
    for view, color in zip(views, COLORS, strict=True):
        sent, rest = f"{number(view.tokens):>7} tokens", f"  {share(view.tokens, raw.tokens):>4}"
        rows.append((f"budget {number(view.budget)}", view.tokens, color, [(sent, "bold"), (rest, "dim")]))
    screen.bars(raw.tokens, rows)


def _print_view(screen: Screen, raw: History, view: View) -> None:
    sent = read_history(view.messages)
    kept = message_origins(view, raw, sent)
    size = f"{plural(len(sent), 'message')}, {number(view.tokens)} tokens"
    screen.heading(f"Inside the view of {number(view.budget)}: {size}")
    screen.line()
    print_messages(screen, sent, kept, lines=LINES)
    screen.heading("Left out of it, and why")
    screen.line()
    ranked = sorted(view.drops, key=lambda drop: -drop.tokens)
    screen.table(DROP_COLUMNS, dropped_rows(ranked[:BIGGEST], raw))
    rest = ranked[BIGGEST:]
    if rest:
        cost = sum(drop.tokens for drop in rest)
        screen.line(
            (f"and {len(rest)} more with {number(cost)} tokens; `compile FILE --explain` lists them all", "dim")
        )


def _print_checks(screen: Screen, checks: Sequence[Check]) -> None:
    screen.heading("Checked")
    for check in checks:
        sign = ("ok  ", "bold green") if check.holds else ("NOT ", "bold red")
        screen.line("  ", sign, check.what)


def _print_next_steps(screen: Screen, newest_request: int, db: Place) -> None:
    where = "" if db == DB else f" --db {quote(str(db))}"
    screen.heading("On the record")
    screen.line(f"  {db}: session demo, each request with its exact messages; the last one is {newest_request}")
    screen.heading("Next")
    for command, effect in (
        (f"context-compiler views show {newest_request}{where}", "the last request in full"),
        (
            f"context-compiler views why {newest_request} {quote(NEEDED[-1][1])}{where}",
            "what became of these words in it",
        ),
        (serve_command(db), f"when {ASKED!r} left the requests, why, and when it came back"),
        ("context-compiler compile YOUR_CHAT.json --budget 4000 --explain", "a conversation of your own"),
    ):
        screen.line("  ", ("# " + effect, "dim"))
        screen.line("  ", (command, "bold cyan"))
