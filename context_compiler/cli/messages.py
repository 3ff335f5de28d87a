"""Messages as a person reads them: who said what, what was called with what, and what came back.

Exactness is JSON's business; here every part is shown as text, media as placeholders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic_ai.messages import ModelMessage
from rich.text import Text

from context_compiler.cli.screen import Piece, Screen, styled
from context_compiler.cli.text import number, one_line, safe
from context_compiler.compiler.view import View
from context_compiler.messages.history import History, Reader, Reading
from context_compiler.messages.items import Item, Kind
from context_compiler.tokens import as_counter

STYLES = {"system": "magenta", "user": "green", "assistant": "cyan", "tool": "yellow", "notes": "bright_blue"}
"""Roles and their colours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One message of a view: where it comes from and why it is there."""

    index: int
    """Its position in the view."""
    raw: int | None
    """Its position in the raw history; None for what was written for the view, or cannot be told."""
    why: str


def reading(messages: Sequence[ModelMessage]) -> History:
    """Messages with their tokens and names."""
    return Reader(as_counter(None)).read(messages)


def role(one: Reading) -> str:
    """Who speaks in a message."""
    if not one.request:
        return "assistant"
    if any(item.mark is not None for item in one.items):
        return "notes"
    kinds = {item.kind for item in one.items}
    if Kind.RETURN in kinds:
        return "tool"
    return "user" if kinds & {Kind.USER, Kind.FEEDBACK} else "system"


def begins(one: Reading, width: int = 0) -> str:
    """The beginning of what a message says, on one line."""
    system = [item for item in one.items if item.kind is not Kind.SYSTEM] or one.items
    return one_line(" · ".join(_said(item).plain for item in system), width)


def body(one: Reading) -> Text:
    """All that a message says."""
    return Text("\n").join(_said(item, alone=len(one.items) == 1) for item in one.items)


def _said(item: Item, *, alone: bool = False) -> Text:
    if item.kind is Kind.CALL:
        return styled(("→ ", "dim"), (item.tool or "tool", "bold"), f" {item.text}")
    if item.kind is Kind.RETURN:
        arrow = "✗ " if item.failed else "← "
        between = "\n" if "\n" in item.text else " "
        return styled((arrow, "red" if item.failed else "dim"), (item.tool or "tool", "bold"), between, item.text)
    if item.kind is Kind.SYSTEM and not alone:
        return styled(("[system] ", "magenta"), item.text)
    if item.kind is Kind.THINKING:
        return styled(("[thinking] ", "dim"), (item.text or "(kept by the provider)", "dim"))
    if item.kind is Kind.CONTROL:
        return styled((f"[kept for the host] {item.text}", "dim"))
    return styled(item.text)


def show(screen: Screen, history: History, places: Sequence[Place] = (), *, lines: int = 0) -> None:
    """Every message in a panel of its role's colour, or in plain text indented under its title.

    Args:
        screen: Where to.
        history: What to show.
        places: Why each message is there, in the same order; none is fine.
        lines: The most lines of each but the notes; 0 is all.
    """
    for index, one in enumerate(history.readings):
        who = role(one)
        place = places[index] if index < len(places) else None
        title: list[Piece] = [(f"{index} {who}", f"bold {STYLES[who]}"), (f" · {number(one.tokens)} tokens", "dim")]
        if place is not None:
            origin = f"message {place.raw}, " if place.raw is not None else ""
            title.append((f" · {origin}{place.why}", "dim"))
        screen.block(title, body(one), style=STYLES[who], lines=0 if who == "notes" else lines)


def places(view: View, raw: History, sent: History) -> list[Place]:
    """Where each message of a view comes from.

    Messages carried for the host come first, then what was written for the view, then the others in order.
    """
    carried = [one for one in view.kept if one[1].startswith("carried")]
    others = [one for one in view.kept if not one[1].startswith("carried")]
    written = [index for index, one in enumerate(sent.readings) if role(one) == "notes"]
    if len(view.kept) + len(written) != len(sent):
        return _by_identity(view, raw, sent)
    queue = iter([*carried, *others])
    found: list[Place] = []
    for index in range(len(sent)):
        if index in written:
            found.append(Place(index=index, raw=None, why="written for this view"))
        else:
            position, why = next(queue)
            found.append(Place(index=index, raw=position, why=why))
    return found


def _by_identity(view: View, raw: History, sent: History) -> list[Place]:
    positions = {id(message): index for index, message in enumerate(raw.messages)}
    reasons = dict(view.kept)
    found: list[Place] = []
    for index, message in enumerate(sent.messages):
        position = positions.get(id(message))
        why = reasons.get(position, "kept") if position is not None else "kept in another shape"
        found.append(Place(index=index, raw=position, why=why))
    return found


def markdown(history: History, title: str, facts: str) -> str:
    """Messages as a markdown document."""
    parts = [f"# {one_line(title)}", facts]
    for index, one in enumerate(history.readings):
        parts.append(f"## {index}. {role(one)} ({number(one.tokens)} tokens)")
        parts.extend(_markdown_item(item) for item in one.items)
    return "\n\n".join(part for part in parts if part.strip())


def _markdown_item(item: Item) -> str:
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
