"""`demo`: compile a bundled conversation at three fidelities, without a model or key."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from shlex import quote

from context_compiler.cli.compile import ViewRequest, compile_messages, view_document
from context_compiler.cli.options import DB, Db, Json, example, group, open_record
from context_compiler.cli.screen import Column, Piece, Screen
from context_compiler.cli.show import DROP_COLUMNS, dropped_rows, print_messages, read_history
from context_compiler.cli.text import json_text, number, one_line, plural, share
from context_compiler.compiler.view import View, places
from context_compiler.fidelity import Fidelity
from context_compiler.messages.history import History, message_body
from context_compiler.messages.importers import Transcript, parse_transcripts
from context_compiler.messages.items import Kind
from context_compiler.messages.turns import outline, pair
from context_compiler.template import TemplateLibrary

app = group("See it work.")

VIEWS = ((Fidelity.COMPACT, 1_500), (Fidelity.SUMMARY_MEDIUM, 3_000), (Fidelity.SUMMARY_HIGH, 6_000))
"""Fidelities and budgets of the three views."""

COLOURS = ("cyan", "blue", "magenta")

SHOWN = 1
"""Position of the view that is printed message by message."""

LINES = 4
"""Lines printed of each message; notes are printed in full."""

BIGGEST = 6
"""Rows in the list of what was left out."""

NEEDED = (
    ("the table", "webhook_receipts"),
    ("kept for", "7 days"),
    ("the queue", "documents"),
    ("retries", "8 retries"),
    ("the deploy", "26 May"),
    ("never without a yes", "without my explicit yes"),
)
"""Facts that the last question needs, and their words in the conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A promise, and whether it holds."""

    what: str
    holds: bool


@app.command("demo", epilog=example("demo --db /tmp/demo.db"))
def demo(db: Db = DB, json: Json = False) -> None:
    """Compile a bundled conversation at three fidelities and show what a model would see. Needs no model and no key."""
    (found,) = parse_transcripts(files("context_compiler").joinpath("data/demo.json").read_bytes(), file="demo.json")
    before = [message_body(message) for message in found.messages]
    views = asyncio.run(_views(found, db))
    raw = read_history(found.messages)
    untouched = before == [message_body(message) for message in found.messages]
    checks = check_views(raw, views, untouched=untouched)
    screen = Screen()
    if json:
        document = {
            "db": str(db),
            "raw_tokens": raw.tokens,
            "views": [view_document(view) for view in views],
            "checks": checks,
        }
        screen.raw(json_text(document))
        return
    _introduce(screen, raw)
    _compare(screen, raw, views)
    _answer(screen, views)
    _look_inside(screen, raw, views[SHOWN])
    _prove(screen, checks)
    _go_on(screen, views, db)


async def _views(found: Transcript, db: Path) -> list[View]:
    template = TemplateLibrary(system=None).find("extractive")
    async with open_record(db, writing=True) as store:
        return [
            await compile_messages(
                store,
                found.messages,
                ViewRequest(template=template, budget=budget, fidelity=fidelity, session=found.name),
            )
            for fidelity, budget in VIEWS
        ]


def check_views(raw: History, views: Sequence[View], *, untouched: bool) -> list[Check]:
    """Check the promises of every view."""
    sent = [read_history(view.messages) for view in views]
    pairings = [pair(one) for one in sent]
    pairs = sum(len(one.pairs) for one in pairings)
    calls = sum(len(one.calls) for history in sent for one in history.readings)
    return [
        Check(
            what=f"every tool call stands with its result: {plural(pairs, 'pair')}, none broken",
            holds=not any(one.broken for one in pairings) and pairs == calls,
        ),
        Check(what="every view is within its budget", holds=all(view.tokens <= view.budget for view in views)),
        Check(
            what="every view ends with the question as it was asked",
            holds=all(one.messages[-1] == raw.messages[-1] for one in sent),
        ),
        Check(what=f"the raw conversation is untouched: {len(raw)} messages, byte for byte", holds=untouched),
    ]


def _introduce(screen: Screen, raw: History) -> None:
    turns = len(outline(raw, pair(raw)).turns)
    giant = max(one.tokens for one in raw.readings)
    screen.line(("context_compiler", "bold"), " decides what a language model sees of a long conversation.")
    screen.line()
    screen.line(
        f"This one has {turns} turns, {len(raw)} messages and ",
        (f"{number(raw.tokens)} tokens", "bold"),
        f" (one log alone has {number(giant)}). It ends with:",
    )
    question = next(item.text for item in raw.readings[-1].items if item.kind is Kind.USER)
    screen.line()
    screen.indented(one_line(question), "italic green")


def _compare(screen: Screen, raw: History, views: Sequence[View]) -> None:
    screen.heading("What the model would be sent, without any model being asked for it")
    screen.line()
    rows: list[tuple[str, float, str, Sequence[Piece]]] = []
    rows.append(("raw", raw.tokens, "white", [f"{number(raw.tokens):>7} tokens"]))
    for (name, _), view, colour in zip(VIEWS, views, COLOURS, strict=True):
        saved = f"{number(view.tokens):>7} tokens"
        rest = f"  {share(view.tokens, raw.tokens):>4}, budget {number(view.budget)}"
        rows.append((name, view.tokens, colour, [(saved, "bold"), (rest, "dim")]))
    screen.bars(raw.tokens, rows)


def held_words(view: View) -> list[bool]:
    """For each needed fact, True if the view has it outside the question."""
    text = "\n".join(item.text for one in read_history(view.messages[:-1]).readings for item in one.items)
    return [words in text for _, words in NEEDED]


def _answer(screen: Screen, views: Sequence[View]) -> None:
    screen.heading("Can it still be answered? What that needs was said up to 24 turns earlier")
    columns = [
        Column("it asks for"),
        Column("in the words", style="dim", elastic=True),
        *(Column(name) for name, _ in VIEWS),
    ]
    kept = zip(*map(held_words, views), strict=True)
    rows = [(*need, *("yes" if one else "-" for one in held)) for need, held in zip(NEEDED, kept, strict=True)]
    screen.line()
    screen.table(columns, rows)
    if any("-" in row for row in rows):
        screen.line(("- left out here: a higher fidelity keeps more, and so does a summary by a model", "dim"))


def _look_inside(screen: Screen, raw: History, view: View) -> None:
    sent = read_history(view.messages)
    kept = places(view, raw, sent)
    screen.heading(f"Inside {VIEWS[SHOWN][0]}: {plural(len(sent), 'message')}, {number(view.tokens)} tokens")
    screen.line()
    print_messages(screen, sent, kept, lines=LINES)
    screen.heading("Left out of it, and why")
    screen.line()
    ranked = sorted(view.drops, key=lambda drop: -drop.tokens)
    screen.table(DROP_COLUMNS, dropped_rows(ranked[:BIGGEST], raw))
    rest = ranked[BIGGEST:]
    if rest:
        cost = sum(drop.tokens for drop in rest)
        screen.line((f"and {len(rest)} more with {number(cost)} tokens; --explain tells of each", "dim"))


def _prove(screen: Screen, checks: Sequence[Check]) -> None:
    screen.heading("Checked")
    for check in checks:
        sign = ("ok  ", "bold green") if check.holds else ("NOT ", "bold red")
        screen.line("  ", sign, check.what)


def _go_on(screen: Screen, views: Sequence[View], db: Path) -> None:
    numbers = [view.record.id for view in views if view.record]
    where = "" if db == DB else f" --db {quote(str(db))}"
    screen.heading("On the record")
    screen.line(f"  {db}: views {', '.join(map(str, numbers))} of session demo, each with its exact messages")
    screen.heading("Next")
    for command, does in (
        (f"context-compiler views show {numbers[-1]}{where}", "the largest of them in full"),
        ("context-compiler compile YOUR_CHAT.json --budget 4000 --explain", "a conversation of yours"),
    ):
        screen.line("  ", ("# " + does, "dim"))
        screen.line("  ", (command, "bold cyan"))
