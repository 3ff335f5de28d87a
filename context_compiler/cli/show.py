"""Why each message is in a view, and why the others are not, with what each costs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from context_compiler.cli.messages import Place, begins, places, role
from context_compiler.cli.screen import Screen
from context_compiler.cli.tables import Column
from context_compiler.cli.text import number, one_line, share
from context_compiler.compiler.view import View
from context_compiler.messages.history import History
from context_compiler.record.values import Drop

KEPT = (
    Column("message", right=True),
    Column("role"),
    Column("raw", right=True),
    Column("sent", right=True, style="bold"),
    Column("why it is here", style="green", elastic=True),
    Column("begins", style="dim", elastic=True),
)
QUOTED = (
    Column("from"),
    Column("why it is quoted", style="green"),
    Column("begins", style="dim", elastic=True),
)
LEFT_OUT = (
    Column("what"),
    Column("tokens", right=True),
    Column("why it is not here", style="yellow", elastic=True),
    Column("begins", style="dim", elastic=True),
)
SPENT = (Column("section"), Column("tokens", right=True, style="bold"), Column("share", right=True))

SECTIONS = {
    "summary": "summary",
    "quotes": "quoted from what is left out",
    "recall": "recalled before prompts",
    "layers": "layers before the prompt",
    "messages": "kept messages",
}
"""What the sections of a ledger are called."""

UNTOLD = "Not told to who wrote the summary"
"""The heading of what was left out of a compile's prompt."""

EXCERPT = 60
"""Columns of what a message begins with."""

Rows = list[Sequence[object]]


def explain(screen: Screen, view: View, raw: History, sent: History) -> None:
    """Tables: what is kept, what is left out, of the view and of a summary's prompt, and where the tokens went."""
    for title, columns, rows in _tables(view, raw, sent):
        screen.heading(title)
        if rows:
            screen.table(columns, rows)
        else:
            screen.line("  nothing")


def explained(view: View, raw: History, sent: History, headline: str) -> str:
    """The same as a markdown document."""
    parts = [f"# {one_line(headline)}"]
    for title, columns, rows in _tables(view, raw, sent):
        parts.append(f"## {title}\n\n{_markdown_table(columns, rows) if rows else 'nothing'}")
    return "\n\n".join(parts)


def _markdown_table(columns: Sequence[Column], rows: Rows) -> str:
    rules = ["---:" if column.right else "---" for column in columns]
    cells = [[one_line(str(cell)).replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in [[column.name for column in columns], rules, *cells])


def _tables(view: View, raw: History, sent: History) -> Iterator[tuple[str, Sequence[Column], Rows]]:
    kept = places(view, raw, sent)
    yield f"Kept: {len(view.kept)} of {len(raw)} messages", KEPT, [_kept(place, raw, sent) for place in kept]
    if view.quoted:
        quoted: Rows = [(one.what, one.why, one_line(one.text)[:EXCERPT]) for one in view.quoted]
        yield "Quoted from what is left out", QUOTED, quoted
    yield "Left out", LEFT_OUT, left_out(view.drops, raw)
    made = view.record.compile if view.record is not None else None
    if made is not None and made.sections_dropped:
        yield UNTOLD, LEFT_OUT, left_out(made.sections_dropped, raw)
    yield "Tokens", SPENT, spent(view.ledger, view.tokens)


def _kept(place: Place, raw: History, sent: History) -> Sequence[object]:
    here = sent.readings[place.index]
    before = "" if place.raw is None else number(raw.readings[place.raw].tokens)
    position = "" if place.raw is None else place.raw
    return position, role(here), before, number(here.tokens), place.why, begins(here, EXCERPT)


def left_out(drops: Sequence[Drop], raw: History) -> Rows:
    """What was left out or made smaller, one line each."""
    return [(drop.what, number(drop.tokens), drop.reason, _begins(drop.what, raw)) for drop in drops]


def _begins(what: str, raw: History) -> str:
    """What the first message that a drop names begins with."""
    found = re.match(r"messages? (\d+)", what)
    position = int(found[1]) if found else len(raw)
    return begins(raw.readings[position], EXCERPT) if position < len(raw) else ""


def spent(ledger: Mapping[str, Any], total: int) -> Rows:
    """Where the tokens of a ledger went."""
    sections = cast("Mapping[str, int]", ledger.get("tokens", {}))
    return [(SECTIONS.get(name, name), number(cost), share(cost, total)) for name, cost in sections.items()]
