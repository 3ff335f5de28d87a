"""Why each message is in a view, and why the others are not, with what each costs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic_ai.messages import ModelMessage
from rich.text import Text

from context_compiler.cli.screen import Column, Piece, Screen, styled
from context_compiler.cli.text import number, one_line, safe, share
from context_compiler.compiler.view import View
from context_compiler.messages.history import History, Reader, Reading
from context_compiler.messages.items import Item, Kind
from context_compiler.record.values import Drop
from context_compiler.tokens import as_counter

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
