"""Readable output of the messages of a history or view.

Media are printed as placeholders; only JSON output is exact.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from rich.text import Text

from context_compiler.cli.screen import Column, Piece, Screen, styled_text
from context_compiler.cli.text import number, one_line, plural, safe, share
from context_compiler.messages.display import SECTIONS, added_texts, role
from context_compiler.messages.history import History, Reader, Reading
from context_compiler.messages.items import Item, Kind
from context_compiler.messages.recorded import read_bodies
from context_compiler.tokens import as_counter

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

    from context_compiler.compiler.view import Place

TOKEN_COLUMNS = (Column("section"), Column("tokens", right=True, style="bold"), Column("share", right=True))

MESSAGES = (Column("#", right=True), Column("role"), Column("tokens", right=True), Column("begins", elastic=True))

Rows = list[Sequence[object]]

ABOUT = "~"
"""Printed before sizes of messages that were estimated from a recorded total."""


def token_rows(ledger: Mapping[str, Any], total: int) -> Rows:
    """Format a token breakdown as table rows."""
    sections = cast("Mapping[str, int]", ledger.get("tokens", {}))
    return [(SECTIONS.get(name, name), number(cost), share(cost, total)) for name, cost in sections.items()]


STYLES = {"system": "magenta", "user": "green", "assistant": "cyan", "tool": "yellow", "notes": "bright_blue"}
"""Colors of the roles."""


def read_history(messages: Sequence[ModelMessage]) -> History:
    """Read messages, with their token counts and ids."""
    return Reader(as_counter(None)).read(messages)


def read_recorded(bodies: Sequence[bytes]) -> History:
    """Read recorded messages, with their token counts and ids."""
    return Reader(as_counter(None)).read_recorded(read_bodies(bodies))


_PIECES = re.compile(r"[^\W\d_]{1,7}|\d{1,3}|[^\w\s]+|_|\n")
"""Pieces of a text that are about a token each: in nine of ten messages their share is within 15 % of the exact one."""


def size_recorded(bodies: Sequence[bytes], total: int) -> History:
    """Read recorded messages; each gets the share of `total` tokens that it has of all pieces.

    Loading the tokenizer for exact counts would take longer than everything else that a command does.
    """
    messages = read_bodies(bodies)
    scale = total / max(1, Reader(as_counter(_pieces)).read_recorded(messages).tokens)
    return Reader(as_counter(lambda text: round(_pieces(text) * scale))).read_recorded(messages)


def _pieces(text: str) -> int:
    return len(_PIECES.findall(text))


def excerpt(reading: Reading, width: int = 0) -> str:
    """Return the beginning of a message on one line, without its recall block and system parts if it has others."""
    unmarked = [item for item in reading.items if item.mark is None] or reading.items
    shown = [item for item in unmarked if item.kind is not Kind.SYSTEM] or unmarked
    return one_line(" · ".join(_item_text(item).plain for item in shown), width)


def body(reading: Reading) -> Text:
    """Format the full text of a message."""
    return Text("\n").join(_item_text(item, alone=len(reading.items) == 1) for item in reading.items)


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


def print_messages(
    screen: Screen, history: History, places: Sequence[Place] = (), *, lines: int = 0, about: str = ""
) -> None:
    """Print every message in a panel, or in plain text indented under its title.

    Args:
        screen: Output.
        history: The messages.
        places: Origins of the messages, in the same order; may be empty.
        lines: Maximum lines per message, except notes and recall blocks; 0 means no limit.
        about: Printed before the tokens of a message: `ABOUT` if they are an estimate.
    """
    for index, reading in enumerate(history.readings):
        who = role(reading)
        source = places[index] if index < len(places) else None
        title: list[Piece] = [
            (f"{index} {who}", f"bold {STYLES[who]}"),
            (f" · {about}{number(reading.tokens)} tokens", "dim"),
        ]
        if source is not None:
            origin = f"message {source.raw}, " if source.raw is not None else ""
            title.append((f" · {origin}{source.why}", "dim"))
        added = added_texts(reading)
        if source is None and added:
            title.append((f" · with {added}", "dim"))
        whole = who == "notes" or bool(added)
        screen.block(title, body(reading), style=STYLES[who], lines=0 if whole else lines)


def print_history(screen: Screen, bodies: Sequence[bytes], *, raw: bool) -> None:
    """Print the messages of a raw history: a line of each, or all of it (`raw`)."""
    history = read_recorded(bodies)
    screen.heading(f"Raw history: {plural(len(history), 'message')}, {number(history.tokens)} tokens")
    if raw:
        print_messages(screen, history)
        return
    rows = [
        (index, role(reading), number(reading.tokens), excerpt(reading, 90))
        for index, reading in enumerate(history.readings)
    ]
    screen.table(MESSAGES, rows)


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
