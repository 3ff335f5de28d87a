"""Past text is quoted in passages: a sentence or a few, verbatim, with the turn, the day and who said it.

`passages` reads them, `choose` picks what covers most without knowing what will be asked, `quoted` writes
them down. What a line costs depends on the line before it: chunks of one part share a label, and a day is
named where it changes.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from context_compiler.cues import sentence_ends
from context_compiler.history import History
from context_compiler.items import Item, Kind
from context_compiler.pieces import whole
from context_compiler.skeleton import call_line, one_line, outcome_line
from context_compiler.tokens import TokenCounter
from context_compiler.turns import Outline

WIDTH = 480
"""Characters of a passage, at most; a longer text is split where a sentence or line ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A piece of what was said, small enough to quote."""

    position: int
    """Of its message."""
    order: int
    """Within its message. Consecutive numbers are one text, cut in two; between two parts a number is left out."""
    turn: int
    """0-based; -1 before the first prompt."""
    speaker: str
    """user, assistant or tool."""
    text: str
    """Verbatim; a tool exchange is one line that stands for it."""
    date: str
    """The day it was said, as YYYY-MM-DD; empty when unknown."""
    tokens: int
    """What it costs when it stands alone: label, text and line end."""
    label: int
    """What of that the label costs, the day included; saved where the line before is the same text."""
    day: int
    """What of that the day costs; saved where the line before is of the same day."""
    first: bool
    """It begins its part."""


def passages(
    history: History, outline: Outline, positions: Iterable[int], counter: TokenCounter
) -> tuple[Passage, ...]:
    """What can be quoted from these messages, in order.

    User and assistant text in pieces of at most 480 characters, media as their placeholders, and a tool call
    with its answer as one line; no thinking, no system text, nothing of the host's or of this package's own.
    """
    wanted = sorted(set(positions))
    starts = [turn.start for turn in outline.turns]
    exchanges = _exchanges(history, set(wanted))
    price = _Price(counter)
    found: list[Passage] = []
    for position in wanted:
        message = history.messages[position]
        turn = outline.turns[bisect_right(starts, position) - 1].index
        order = 0
        for at, (part, item) in enumerate(zip(message.parts, history.readings[position].items, strict=True)):
            speaker, texts = _said(item, exchanges.get((position, at), ""))
            date = _day(part, message)
            for text in texts:
                label, day, tokens = price.of(turn, date, speaker, text)
                found.append(
                    Passage(
                        position=position,
                        order=order,
                        turn=turn,
                        speaker=speaker,
                        text=text,
                        date=date,
                        tokens=tokens,
                        label=label,
                        day=day,
                        first=text is texts[0],
                    )
                )
                order += 1
            order += 1
    return tuple(found)


_SPEAKERS = {Kind.USER: "user", Kind.TEXT: "assistant", Kind.MEDIA: "assistant", Kind.COMPACTION: "assistant"}


def _said(item: Item, exchange: str) -> tuple[str, list[str]]:
    """Who speaks in a part, and what can be quoted of it, in pieces."""
    if exchange:
        return "tool", [exchange]
    if item.mark is not None or item.kind not in _SPEAKERS:
        return "", []
    text = item.text.strip()
    if "[turn" in text.lower():
        text = _LABELLED.sub(r"\1> ", text)
    return _SPEAKERS[item.kind], [piece for piece in _pieces(text) if not piece.isspace()] if text else []


_LABELLED = re.compile(r"(?i)((?:^|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029])[^\S\n]{0,80})(?=\[turn\b)")
"""A line that looks as if this package had labelled it: it is marked as quoted, so that nobody's words pass for another's."""


def _pieces(text: str) -> Iterator[str]:
    """The text in pieces that end where a sentence or line does, else between words, else where they must."""
    start = 0
    while len(text) - start > WIDTH:
        window = text[start : start + WIDTH]
        end = max(sentence_ends(window), default=0) or window.rfind(" ") + 1
        end = start + end if end else whole(text, start + WIDTH, -1)
        yield text[start:end]
        start = end
    yield text[start:]


def _exchanges(history: History, wanted: set[int]) -> dict[tuple[int, int], str]:
    """The line that stands for each tool call, with its outcome, or for an answer alone; by message and part."""
    waiting: defaultdict[tuple[str, bool], deque[tuple[int, int]]] = defaultdict(deque)
    lines: dict[tuple[int, int], str] = {}
    for position, reading in enumerate(history.readings):
        if not reading.exchanges:
            continue
        for at, item in enumerate(reading.items):
            if item.call_id is None:
                continue
            calls = waiting[item.call_id, item.native]
            if item.kind is Kind.CALL:
                calls.append((position, at))
                if position in wanted:
                    lines[position, at] = call_line(item.tool or "tool", item.text)
                continue
            call = calls.popleft() if calls else None
            if position in wanted:
                outcome = outcome_line(item.text, failed=item.failed)
                if call in lines:
                    lines[call] += f" → {outcome}"
                else:
                    lines[position, at] = f"{one_line(item.tool or 'tool', 64)} → {outcome}"
    return lines


def _day(part: Any, message: Any) -> str:
    when = getattr(part, "timestamp", None) or getattr(message, "timestamp", None)
    return when.date().isoformat() if isinstance(when, datetime) else ""


def _label(turn: int, date: str, speaker: str) -> str:
    return f"[turn {turn + 1} · {date} · {speaker}]" if date else f"[turn {turn + 1} · {speaker}]"


class _Price:
    """What a quoted line costs, from what its pieces cost; labels are counted once."""

    def __init__(self, counter: TokenCounter) -> None:
        self.count = cache(counter.text)
        self.text = counter.text
        self.spare = 0 if self.count("a") else 1
        """A counter that rounds down makes a sum too small."""

    def of(self, turn: int, date: str, speaker: str, text: str) -> tuple[int, int, int]:
        """Tokens of the label, of the day in it, and of the whole line."""
        day = self.count(f" · {date or UNDATED}") + self.spare
        label = self.count(_label(turn, "", speaker)) + day + self.spare
        return label, day, label + self.text(f" {text}\n") + self.spare


UNDATED = "undated"


def quoted(chosen: Sequence[Passage]) -> str:
    """Passages as `[turn 12 · 2024-05-15 · user] text` lines, in the order given.

    Chunks that follow each other in one text share a label; the day is named where it changes. The text is
    data: whoever puts it into a prompt fences it.
    """
    lines: list[str] = []
    before: Passage | None = None
    for passage in chosen:
        if _continues(before, passage):
            lines[-1] += passage.text
        else:
            day = "" if before is None else before.date
            named = "" if day == passage.date else passage.date or UNDATED
            lines.append(f"{_label(passage.turn, named, passage.speaker)} {passage.text}")
        before = passage
    return "\n".join(line.rstrip() for line in lines)


def _continues(before: Passage | None, passage: Passage) -> bool:
    return before is not None and before.position == passage.position and before.order + 1 == passage.order
