"""Past text is quoted in passages: a sentence or a few, verbatim, with the turn, the day and who said it.

A label names what changed since the line before it, so what a line costs depends on its neighbour: pieces of
one text share a label, the lines of a turn its number, and those of a day its date. A `Quotation` knows.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from context_compiler.cache import Memo
from context_compiler.messages.fences import one_line
from context_compiler.messages.history import History, day, day_of
from context_compiler.messages.instructions import sentence_ends
from context_compiler.messages.items import Item, Kind
from context_compiler.messages.tool_lines import call_line, outcome_line
from context_compiler.messages.turns import Outline
from context_compiler.tokens import TokenCounter, character_boundary

WIDTH = 480
"""Characters of a passage, at most; a longer text is split where a sentence or line ends."""
TAIL = 120
"""Characters at the end of so long a piece in which its last sentence is looked for first."""

UNDATED = "undated"

REMEMBERED, ENTRY = 20_000_000, 500
"""Characters of the passages that are remembered, and what each costs beside its text."""

Judge = Callable[[str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A piece of what was said, small enough to quote."""

    position: int
    """Of its message."""
    order: int
    """Within its message. Consecutive numbers are pieces of one text; between two parts a number is left out."""
    turn: int
    """0-based; -1 before the first prompt."""
    speaker: str
    """user, assistant or tool."""
    text: str
    """Verbatim, with white space up to the next piece; a tool exchange is reduced to one line."""
    date: str
    """The day it was said, as YYYY-MM-DD; empty when unknown."""
    tokens: int
    """Tokens of the passage alone: label, text and line end."""
    label: int
    """Tokens of the label; saved if the line before is the same text."""
    opening: int
    """Tokens of the label that only the first line bears."""
    day: int
    """Tokens of the date; saved if the line before is of the same day."""
    number: int
    """Tokens of the turn number; saved, with the date, if the line before is of the same turn."""
    first: bool
    """It begins its part."""

    def cost_after(self, before: Passage | None) -> int:
        """Tokens it costs directly after `before`."""
        if before is None:
            return self.tokens
        if self.continues(before):
            return self.tokens - self.label
        same = self.day + (self.number if before.turn == self.turn else 0) if before.date == self.date else 0
        return self.tokens - self.opening - same

    def continues(self, before: Passage) -> bool:
        """True if it is the next piece of the same text."""
        return before.position == self.position and before.order + 1 == self.order


def passages(
    history: History, outline: Outline, positions: Iterable[int], counter: TokenCounter, bears: Judge = bool
) -> tuple[Passage, ...]:
    """Quotable passages of these messages, in order, whose text passes `bears`.

    User and assistant text in pieces of at most 480 characters, media as their placeholders, and a tool call
    with its answer as one line; no thinking, no system text, nothing of the host's or of this package's own.
    """
    wanted = sorted(set(positions))
    starts = [turn.start for turn in outline.turns]
    exchanges = _exchanges(history, set(wanted))
    price = _Price(counter)
    found: list[Passage] = []
    for position in wanted:
        turn = outline.turns[bisect_right(starts, position) - 1].index
        if history.readings[position].exchanges:
            own = _of_message(history, position, turn, exchanges, price)
        else:
            key = (id(counter), history.ids[position], turn, day_of(history.messages[position]))
            kept = _known.get(key)
            own = kept[1] if kept is not None else _of_message(history, position, turn, exchanges, price)
            _known.keep(key, (counter, own))
        found += own if bears is bool else (one for one in own if bears(one.text))
    return tuple(found)


_known: Memo[tuple[int, str, int, str], tuple[TokenCounter, tuple[Passage, ...]]] = Memo(
    REMEMBERED, lambda kept: ENTRY + sum(len(one.text) + ENTRY for one in kept[1])
)
"""The passages of messages without tools, by counter, chain id, turn and day."""


def _of_message(
    history: History, position: int, turn: int, exchanges: Mapping[tuple[int, int], str], price: _Price
) -> tuple[Passage, ...]:
    """Quotable passages of one message."""
    message, order = history.messages[position], 0
    found: list[Passage] = []
    for at, (part, item) in enumerate(zip(message.parts, history.readings[position].items, strict=True)):
        speaker, texts = _said(item, exchanges.get((position, at), ""))
        date = _day(part, message)
        for number, text in enumerate(texts):
            found.append(price.of(position, order + number, turn, date, speaker, text, number == 0))
        order += len(texts) + 1
    return tuple(found)


_SPEAKERS = {Kind.USER: "user", Kind.TEXT: "assistant", Kind.MEDIA: "assistant", Kind.COMPACTION: "assistant"}

_LABEL = re.compile(
    r"(?im)((?:^|[\r\v\f\x1c-\x1e\x85\u2028\u2029])[^\S\n]{0,80})"
    r"(?=\[(?:turn \d|(?:\d+ )?(?:[\w-]+ )?(?:user|assistant|tool)\]))"
)
"""A line that looks labelled is marked as a quotation, so that nobody's words pass for another's."""


def _said(item: Item, exchange: str) -> tuple[str, list[str]]:
    """Speaker of a part, and its quotable text in pieces."""
    if exchange:
        return "tool", [exchange]
    if item.mark is not None or item.kind not in _SPEAKERS:
        return "", []
    text = item.text.strip()
    if "[" in text:
        text = _LABEL.sub(r"\1> ", text)
    return _SPEAKERS[item.kind], [piece for piece in _pieces(text) if not piece.isspace()] if text else []


def _pieces(text: str) -> Iterator[str]:
    """The text in pieces that end where a sentence or line does, else between words, else where they must."""
    start = 0
    while len(text) - start > WIDTH:
        window = text[start : start + WIDTH]
        ends = (max(sentence_ends(window, at), default=0) for at in (WIDTH - TAIL, 0))
        size = next(filter(None, ends), window.rfind(" ") + 1)
        end = start + size if size else character_boundary(text, start + WIDTH, -1)
        yield text[start:end]
        start = end
    yield text[start:]


def _exchanges(history: History, wanted: set[int]) -> dict[tuple[int, int], str]:
    """One line for each call with its outcome, or for a result alone, by message and part."""
    waiting: defaultdict[tuple[str, bool], deque[tuple[int, int]]] = defaultdict(deque)
    lines: dict[tuple[int, int], str] = {}
    calls = any(history.readings[position].exchanges for position in wanted)
    for position, reading in enumerate(history.readings if calls else ()):
        for at, item in enumerate(reading.items if reading.exchanges else ()):
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
    return day(getattr(part, "timestamp", None)) or day(getattr(message, "timestamp", None))


class _Price:
    """Prices lines by their pieces; what labels are made of is counted once."""

    def __init__(self, counter: TokenCounter) -> None:
        self._text = counter.text
        self._count = cache(counter.text)
        self._spare = 0 if counter.text("a") else 1
        """Correction for counters that round down, whose sums would be too small."""

    def of(self, position: int, order: int, turn: int, date: str, speaker: str, text: str, first: bool) -> Passage:
        """A passage with its price."""
        pieces = ("turn · ·.", f" {date or UNDATED}", f"[{turn + 1}", f"[{speaker}]")
        opening, day, number, named = (self._count(piece) + self._spare for piece in pieces)
        return Passage(
            position=position,
            order=order,
            turn=turn,
            speaker=speaker,
            text=text,
            date=date,
            tokens=opening + day + number + named + self._text(f" {text}\n") + self._spare,
            label=opening + day + number + named,
            opening=opening,
            day=day,
            number=number,
            first=first,
        )


def quoted(chosen: Sequence[Passage]) -> str:
    """Passages in order as `[turn 12 · 2024-05-15 · user] text` lines, then `[14 user] text`. It is data: fence it."""
    lines: list[str] = []
    before: Passage | None = None
    for passage in chosen:
        if before is not None and passage.continues(before):
            lines[-1] += passage.text
        else:
            lines.append(f"[{_label(passage, before)}] {passage.text}")
        before = passage
    return "\n".join(line.rstrip() for line in lines)


def _label(passage: Passage, before: Passage | None) -> str:
    if before is None:
        return f"turn {passage.turn + 1}{f' · {passage.date}' if passage.date else ''} · {passage.speaker}"
    if before.date != passage.date:
        return f"{passage.turn + 1} {passage.date or UNDATED} {passage.speaker}"
    return passage.speaker if before.turn == passage.turn else f"{passage.turn + 1} {passage.speaker}"


class Quotation:
    """Passages being gathered within a room; what is used is exact, whatever stands beside what."""

    def __init__(self, candidates: Sequence[Passage], room: int) -> None:
        """Gather at most `room` tokens from `candidates`, which are in order."""
        self.candidates = candidates
        self._taken: list[int] = []
        self.left = room

    def take(self, index: int) -> bool:
        """Take a candidate if there is room for it."""
        at = bisect_left(self._taken, index)
        before = self.candidates[self._taken[at - 1]] if at else None
        passage = self.candidates[index]
        cost = passage.cost_after(before)
        if at < len(self._taken):
            after = self.candidates[self._taken[at]]
            cost += after.cost_after(passage) - after.cost_after(before)
        if cost > self.left:
            return False
        self._taken.insert(at, index)
        self.left -= cost
        return True

    def has(self, index: int) -> bool:
        """True if a candidate was taken."""
        at = bisect_left(self._taken, index)
        return at < len(self._taken) and self._taken[at] == index

    @property
    def passages(self) -> tuple[Passage, ...]:
        """Passages taken, in order."""
        return tuple(self.candidates[index] for index in self._taken)
