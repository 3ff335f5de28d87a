"""Reference recall: the fraction of references needed by tool calls that the view of the request still contains.

A reference is an id or path in the arguments of a real tool call that occurred before the call. It counts only if the
view contains it together with words of its original context, so a bare list of identifiers scores nothing. A reference
is long-range if its last mention is further back than the budget.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from pydantic_ai.messages import ModelMessage

from context_compiler.compiler.patterns import Sort
from context_compiler.compiler.specifics import comparable_text, specifics
from context_compiler.messages.history import History, Reader, Reading
from context_compiler.messages.items import Item, Kind
from context_compiler.messages.tool_lines import call_line

_ACTION = re.compile(r"```\w*\n(.{1,4000}?)\n?```\s*$|<command>\n?(.{1,4000}?)\n?</command>\s*$", re.S)
"""Shell command at the end of an answer, as models without tool calls write it."""
_KEY = re.compile(r"(\w+) ?[:=] ?[\[{(]{0,3}$")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """An id or path that a call needs and that occurred before."""

    text: str
    """Text normalized for comparison."""
    distance: int
    """Tokens between its last mention and the call."""


def sources(item: Item) -> list[str]:
    """Texts of a part in the forms in which a view may contain it; a call also as its line."""
    if item.kind is Kind.CALL:
        return [f"{item.tool} {item.text}", call_line(item.tool or "tool", item.text, width=4_000)]
    return [item.text]


def needed(item: Item) -> set[str]:
    """Ids and paths in the arguments of a call; empty for any other part."""
    if item.kind is Kind.CALL:
        asked = item.text.replace("\\n", "\n ").replace("\\t", " ").replace('\\"', '"')
    elif item.kind is Kind.TEXT and (action := _ACTION.search(item.text)):
        asked = action[1] or action[2]
    else:
        return set()
    return {specific.text for specific in specifics(asked) if specific.sort in (Sort.ID, Sort.PATH)}


def places(text: str, wanted: str) -> Iterator[tuple[int, int]]:
    """Spans at which a comparable text contains `wanted` as a whole, not within a longer word."""
    start = text.find(wanted)
    while start >= 0:
        end = start + len(wanted)
        if not (text[start - 1 : start].isalnum() and wanted[0].isalnum()) and not (
            text[end : end + 1].isalnum() and wanted[-1].isalnum()
        ):
            yield start, end
        start = text.find(wanted, start + 1)


def contexts(text: str, wanted: str) -> set[tuple[str, str, str]]:
    """Contexts of a reference in a text: the word on each side, two words before, two after, or its field."""
    around: set[tuple[str, str, str]] = set()
    for start, end in places(text, wanted):
        if key := _KEY.search(text, max(0, start - 60), start):
            around.add(("key", key[1], "="))
        before = ["", "", *_WORD.findall(text[max(0, start - 80) : start])][-2:]
        after = [*_WORD.findall(text[end : end + 80]), "", ""][:2]
        around |= {("between", before[1], after[0]), ("after", before[0], before[1]), ("before", after[0], after[1])}
    return {context for context in around if context[1] or context[2]} or ({("alone", "", "")} if around else around)


def message_text(reading: Reading) -> str:
    """Comparable text of a message."""
    text = "\n".join(text for item in reading.items if item.kind is not Kind.THINKING for text in sources(item))
    return comparable_text(text.replace("\\n", "\n ").replace("\\t", " "))


def references(history: History, spoken: Sequence[str]) -> dict[int, list[Reference]]:
    """References of the real tool calls of a session, by the position of the response that makes the calls.

    The view that such a response answers is of all messages before it. `spoken` contains the texts of the messages.
    """
    by_position: dict[int, list[Reference]] = {}
    for position, reading in enumerate(history.readings):
        if reading.request or position == 0:
            continue
        for text in sorted({text for item in reading.items for text in needed(item)}):
            last = next(
                (earlier for earlier in range(position - 1, -1, -1) if any(places(spoken[earlier], text))), None
            )
            if last is not None:
                distance = history.sums[position] - history.sums[last + 1]
                by_position.setdefault(position, []).append(Reference(text=text, distance=distance))
    return by_position


def held(reference: str, before: Sequence[str], view: str) -> bool:
    """True if a view contains a reference in one of its original contexts."""
    shown = contexts(view, reference)
    return bool(shown) and any(shown & contexts(text, reference) for text in before)


class ReferenceRecall:
    """Fraction of references that the views of one session contain; each call has the same weight."""

    def __init__(self, history: History, budget: int, reader: Reader) -> None:
        """Find the references of each call in `history`; `reader` reads the views."""
        self._texts = [*map(message_text, history.readings)]
        self._needed = references(history, self._texts)
        self._budget, self._reader = budget, reader
        self._known = {reading.name: text for reading, text in zip(history.readings, self._texts, strict=True)}
        self._all: list[float] = []
        self._long: list[float] = []
        self._lost: dict[str, None] = {}

    def see(self, position: int, view: Sequence[ModelMessage]) -> None:
        """Score the view of the request that the response at `position` answers."""
        needed = self._needed.get(position, ())
        if not needed:
            return
        shown = "\n".join(map(self._text, map(self._reader.one, view)))
        hits = [(held(reference.text, self._texts[:position], shown), reference.distance) for reference in needed]
        self._lost |= {reference.text: None for reference, (hit, _) in zip(needed, hits, strict=True) if not hit}
        self._all.append(fmean(hit for hit, _ in hits))
        if far := [hit for hit, distance in hits if distance > self._budget]:
            self._long.append(fmean(far))

    def _text(self, reading: Reading) -> str:
        """Comparable text of a message, cached because most views of a session share it."""
        text = self._known.get(reading.name)
        if text is None:
            text = self._known[reading.name] = message_text(reading)
        return text

    @property
    def all(self) -> float | None:
        """Mean over all calls, from 0 to 1; None if no call has references."""
        return fmean(self._all) if self._all else None

    @property
    def lost(self) -> list[str]:
        """References that a view did not contain, each once, in the order of the calls."""
        return [*self._lost]

    @property
    def long(self) -> float | None:
        """Mean for long-range references, from 0 to 1; None if there are none."""
        return fmean(self._long) if self._long else None
