"""Tables of `--explain`: what a view kept, quoted and left out, and why."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from context_compiler.cli.screen import Column, Screen
from context_compiler.cli.show import TOKEN_COLUMNS, Rows, excerpt, token_rows
from context_compiler.cli.text import number, one_line
from context_compiler.compiler.view import Place, View, message_origins
from context_compiler.messages.display import role
from context_compiler.messages.history import History
from context_compiler.record.values import Drop

KEPT_COLUMNS = (
    Column("message", right=True),
    Column("role"),
    Column("raw", right=True),
    Column("sent", right=True, style="bold"),
    Column("why it is here", style="green", elastic=True),
    Column("begins", style="dim", elastic=True),
)
QUOTED_COLUMNS = (
    Column("from"),
    Column("why it is quoted", style="green"),
    Column("begins", style="dim", elastic=True),
)
QUOTE_REASONS = {"ledger": "preserved identifier"}
"""Reasons of quotes that a table shows in other words."""

DROP_COLUMNS = (
    Column("what"),
    Column("tokens", right=True),
    Column("why it is not here", style="yellow", elastic=True),
    Column("begins", style="dim", elastic=True),
)

PROMPT_DROPS = "Left out of the summary's prompt"
"""Heading of the table of sections that were dropped from a summary's prompt."""

EXCERPT = 60
"""Maximum columns of a message's excerpt."""


def print_explanation(screen: Screen, view: View, raw: History, sent: History) -> None:
    """Print tables of what the view and the summary's prompt kept and left out, and the token breakdown."""
    for title, columns, rows in _tables(view, raw, sent):
        screen.heading(title)
        if rows:
            screen.table(columns, rows)
        else:
            screen.line("  nothing")


def explanation_markdown(view: View, raw: History, sent: History, headline: str) -> str:
    """Format the tables of `print_explanation` as a markdown document."""
    parts = [f"# {one_line(headline)}"]
    for title, columns, rows in _tables(view, raw, sent):
        parts.append(f"## {title}\n\n{_markdown_table(columns, rows) if rows else 'nothing'}")
    return "\n\n".join(parts)


def _markdown_table(columns: Sequence[Column], rows: Rows) -> str:
    rules = ["---:" if column.right else "---" for column in columns]
    cells = [[one_line(str(cell)).replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in [[column.name for column in columns], rules, *cells])


def _tables(view: View, raw: History, sent: History) -> Iterator[tuple[str, Sequence[Column], Rows]]:
    kept = message_origins(view, raw, sent)
    rows = [_kept_row(origin, raw, sent) for origin in kept]
    yield f"Kept: {len(view.kept)} of {len(raw)} messages", KEPT_COLUMNS, rows
    if view.quoted:
        quoted: Rows = [
            (quote.what, QUOTE_REASONS.get(quote.why, quote.why), one_line(quote.text)[:EXCERPT])
            for quote in view.quoted
        ]
        yield "Quoted from what is left out", QUOTED_COLUMNS, quoted
    yield "Left out", DROP_COLUMNS, dropped_rows(view.drops, raw)
    compiled = view.record.compile if view.record is not None else None
    if compiled is not None and compiled.sections_dropped:
        yield PROMPT_DROPS, DROP_COLUMNS, dropped_rows(compiled.sections_dropped, raw)
    yield "Tokens", TOKEN_COLUMNS, token_rows(view.ledger, view.tokens)


def _kept_row(origin: Place, raw: History, sent: History) -> Sequence[object]:
    here = sent.readings[origin.index]
    position, before = ("", "") if origin.raw is None else (origin.raw, number(raw.readings[origin.raw].tokens))
    return position, role(here), before, number(here.tokens), origin.why, excerpt(here, EXCERPT)


def dropped_rows(drops: Sequence[Drop], raw: History) -> Rows:
    """Format what was left out or shortened as table rows."""
    return [(drop.what, number(drop.tokens), drop.reason, _first_words(drop.what, raw)) for drop in drops]


def _first_words(what: str, raw: History) -> str:
    """Excerpt of the first message that a drop names; empty if it names none."""
    match = re.match(r"messages? (\d+)", what)
    position = int(match[1]) if match else len(raw)
    return excerpt(raw.readings[position], EXCERPT) if position < len(raw) else ""
