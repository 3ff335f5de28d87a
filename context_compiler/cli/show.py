"""Readable output of the messages of a history or view, and the tables of `--explain`.

Media are printed as placeholders; only JSON output is exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from pydantic_ai.messages import ModelMessage
from rich.text import Text

from context_compiler.cli.screen import Column, Piece, Screen, styled_text
from context_compiler.cli.text import number, one_line, safe, share
from context_compiler.compiler.view import Place, View, message_origins
from context_compiler.messages.display import SECTIONS, added_texts, role
from context_compiler.messages.history import History, Reader, Reading
from context_compiler.messages.items import Item, Kind
from context_compiler.record.values import Drop
from context_compiler.tokens import as_counter

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
TOKEN_COLUMNS = (Column("section"), Column("tokens", right=True, style="bold"), Column("share", right=True))

PROMPT_DROPS = "Left out of the summary's prompt"
"""Heading of the table of sections that were dropped from a summary's prompt."""

EXCERPT = 60
"""Maximum columns of a message's excerpt."""

Rows = list[Sequence[object]]


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
    before = "" if origin.raw is None else number(raw.readings[origin.raw].tokens)
    position = "" if origin.raw is None else origin.raw
    return position, role(here), before, number(here.tokens), origin.why, excerpt(here, EXCERPT)


def dropped_rows(drops: Sequence[Drop], raw: History) -> Rows:
    """Format what was left out or shortened as table rows."""
    return [(drop.what, number(drop.tokens), drop.reason, _first_words(drop.what, raw)) for drop in drops]


def _first_words(what: str, raw: History) -> str:
    """Excerpt of the first message that a drop names; empty if it names none."""
    found = re.match(r"messages? (\d+)", what)
    position = int(found[1]) if found else len(raw)
    return excerpt(raw.readings[position], EXCERPT) if position < len(raw) else ""


def token_rows(ledger: Mapping[str, Any], total: int) -> Rows:
    """Format a token breakdown as table rows."""
    sections = cast("Mapping[str, int]", ledger.get("tokens", {}))
    return [(SECTIONS.get(name, name), number(cost), share(cost, total)) for name, cost in sections.items()]


STYLES = {"system": "magenta", "user": "green", "assistant": "cyan", "tool": "yellow", "notes": "bright_blue"}
"""Colors of the roles."""


def read_history(messages: Sequence[ModelMessage]) -> History:
    """Read messages, with their token counts and ids."""
    return Reader(as_counter(None)).read(messages)


def excerpt(one: Reading, width: int = 0) -> str:
    """Return the beginning of a message on one line, without its recall block and system parts if it has others."""
    unmarked = [item for item in one.items if item.mark is None] or one.items
    shown = [item for item in unmarked if item.kind is not Kind.SYSTEM] or unmarked
    return one_line(" · ".join(_item_text(item).plain for item in shown), width)


def body(one: Reading) -> Text:
    """Format the full text of a message."""
    return Text("\n").join(_item_text(item, alone=len(one.items) == 1) for item in one.items)


def _item_text(item: Item, *, alone: bool = False) -> Text:
    if item.kind is Kind.CALL:
        return styled_text(("→ ", "dim"), (item.tool or "tool", "bold"), f" {item.text}")
    if item.kind is Kind.RETURN:
        arrow = "✗ " if item.failed else "← "
        between = "\n" if "\n" in item.text else " "
        return styled_text((arrow, "red" if item.failed else "dim"), (item.tool or "tool", "bold"), between, item.text)
    if item.kind is Kind.SYSTEM and not alone:
        return styled_text(("[system] ", "magenta"), item.text)
    if item.kind is Kind.THINKING:
        return styled_text(("[thinking] ", "dim"), (item.text or "(kept by the provider)", "dim"))
    if item.kind is Kind.CONTROL:
        return styled_text((f"[kept for the host] {item.text}", "dim"))
    return styled_text(item.text)


def print_messages(screen: Screen, history: History, places: Sequence[Place] = (), *, lines: int = 0) -> None:
    """Print every message in a panel, or in plain text indented under its title.

    Args:
        screen: Output.
        history: The messages.
        places: Origins of the messages, in the same order; may be empty.
        lines: Maximum lines per message, except notes and recall blocks; 0 means no limit.
    """
    for index, reading in enumerate(history.readings):
        who = role(reading)
        source = places[index] if index < len(places) else None
        title: list[Piece] = [(f"{index} {who}", f"bold {STYLES[who]}"), (f" · {number(reading.tokens)} tokens", "dim")]
        if source is not None:
            origin = f"message {source.raw}, " if source.raw is not None else ""
            title.append((f" · {origin}{source.why}", "dim"))
        added = added_texts(reading)
        if source is None and added:
            title.append((f" · with {added}", "dim"))
        whole = who == "notes" or bool(added)
        screen.block(title, body(reading), style=STYLES[who], lines=0 if whole else lines)


def messages_markdown(history: History, title: str, facts: str) -> str:
    """Format messages as a markdown document."""
    parts = [f"# {one_line(title)}", facts]
    for index, reading in enumerate(history.readings):
        parts.append(f"## {index}. {role(reading)} ({number(reading.tokens)} tokens)")
        parts.extend(_item_markdown(item) for item in reading.items)
    return "\n\n".join(part for part in parts if part.strip())


def _item_markdown(item: Item) -> str:
    text = safe(item.text)
    if item.kind is Kind.CALL:
        return f"**calls `{one_line(item.tool or 'tool')}`**\n\n{_fenced(text, 'json')}"
    if item.kind is Kind.RETURN:
        return f"**`{one_line(item.tool or 'tool')}` {'failed' if item.failed else 'returned'}**\n\n{_fenced(text, '')}"
    if item.kind is Kind.SYSTEM:
        return f"**system**\n\n{text}"
    return text


def _fenced(text: str, language: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"
