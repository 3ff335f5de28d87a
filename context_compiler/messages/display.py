"""Display of messages: their roles, the forms in which a view has a text, and the parts of a message to show."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from context_compiler.messages.fences import (
    LAYERS_TITLE,
    OTHERS_TITLE,
    PLACEHOLDERS,
    QUOTED_TITLE,
    RECALLED_TITLE,
    RULES_TITLE,
)
from context_compiler.messages.printable import safe, timestamp

if TYPE_CHECKING:  # importing Pydantic AI is slow, and reading the record does not need it
    from pydantic_ai.messages import ModelMessage

    from context_compiler.messages.history import Reading
    from context_compiler.messages.items import Item
    from context_compiler.messages.recorded import RecordedMessage

SUMMARY, QUOTED, RECALLED, LAYERS = "summary", "quoted", "recalled", "layers"
RULE, OUTLINE, IDENTIFIER = "rule", "outline", "identifier"
VERBATIM, SHORTENED, CARRIED, ABSENT = "verbatim", "shortened", "carried", "absent"
PARTIAL, BESIDE, TOLD, GAP = "partial", "beside", "told", "gap"

FORMS: Mapping[str, str] = {
    VERBATIM: "word for word",
    SHORTENED: "shortened",
    SUMMARY: "in the summary",
    QUOTED: "quoted",
    RECALLED: "recalled before a prompt",
    RULE: "listed as a rule",
    OUTLINE: "in the outline",
    IDENTIFIER: "among the identifiers",
    LAYERS: "in the layers",
    BESIDE: "in the instructions or tools",
    PARTIAL: "words of it",
    CARRIED: "carried for the host",
    TOLD: "perhaps in the summary",
    GAP: "in place of what is left out",
    ABSENT: "not in the request",
}
"""Forms in which a text can appear in a request, with their display names, most complete first."""

FENCES: Mapping[str, str] = {
    QUOTED_TITLE: QUOTED,
    RECALLED_TITLE: RECALLED,
    OTHERS_TITLE: RECALLED,
    LAYERS_TITLE: LAYERS,
    RULES_TITLE: RULE,
}
"""Form of the text inside each fence that a view writes, by the fence's title."""

_SECTIONS: Mapping[str, tuple[str, str]] = {
    "instructions and schemas": ("instructions and schemas", CARRIED),
    "summary": ("summary", SUMMARY),
    "rules": ("rules", RULE),
    "quotes": ("quoted from what is left out", QUOTED),
    "recall": ("recalled before prompts", RECALLED),
    "layers": ("layers before the prompt", LAYERS),
    "other conversations": ("recalled from other conversations", RECALLED),
    "messages": ("kept messages", VERBATIM),
}
"""Sections of a token breakdown, with their display names and the forms of their texts."""

SECTIONS: Mapping[str, str] = {name: shown for name, (shown, _) in _SECTIONS.items()}
"""Sections of a token breakdown, with their display names."""

_FENCE = re.compile(r"^=== BEGIN ([\w -]+) ===\n(.*?)(?:\n=== END \1 ===$|\Z)", re.MULTILINE | re.DOTALL)
_LISTED = re.compile(r"\[turn \d+ · \D")
_HEADS = {"What was worked on when:": OUTLINE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of text in one form."""

    form: str
    """One of `FORMS`."""
    text: str
    runs: tuple[tuple[str, str], ...] = ()
    """The same text as `(form, piece)` pairs, if some words of it also appear elsewhere in the request; else empty.

    A piece that appears nowhere else has an empty form.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPart:
    """One part of a message."""

    kind: str
    tokens: int
    segments: tuple[Segment, ...]
    tool: str | None = None
    failed: bool = False
    cut: int = 0
    """Number of characters that are not shown."""
    call: str = ""
    """Id of the tool call that this part is or answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownMessage:
    """One message with its origin and the reason why it is in the view."""

    index: int
    """Position in the displayed list."""
    role: str
    tokens: int
    form: str
    why: str
    parts: tuple[ShownPart, ...]
    raw: int | None = None
    """Position in the raw history; None for a message written for the view."""
    time: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One section of a budget bar."""

    name: str
    form: str
    tokens: int
    start: float
    """Left edge, in per mille of the bar."""
    width: float
    """In per mille of the bar."""


_ADDED = tuple(f"=== BEGIN {title} " for title in (RECALLED_TITLE, OTHERS_TITLE, LAYERS_TITLE))


def role(reading: Reading) -> str:
    """Role of a message: system, user, assistant or tool; `notes` if this package wrote all of it."""
    kinds = {str(item.kind) for item in reading.items if item.mark is None}
    if reading.items and not kinds:
        return "notes"
    if not reading.request:
        return "assistant"
    if "return" in kinds:
        return "tool"
    return "user" if kinds & {"user", "feedback"} else "system"


def added_texts(reading: Reading) -> str:
    """Names of the texts that this package added to a message of the conversation; empty for none."""
    ours = [item for item in reading.items if item.mark is not None] if role(reading) != "notes" else []
    noted = [is_note(item) for item in ours]
    return " and ".join([*(["the notes"] if any(noted) else ()), *(["its recall block"] if not all(noted) else ())])


def is_note(item: Item) -> bool:
    """True for a text that replaces left-out messages; False for one that was added to a prompt."""
    return item.mark is not None and not item.text.startswith(_ADDED)


def time_of(message: ModelMessage | RecordedMessage) -> str:
    """Time of a message in UTC, to the second; empty if it has none or comes from an undated transcript."""
    return timestamp(moment_of(message))


def moment_of(message: ModelMessage | RecordedMessage) -> datetime | None:
    """Time of a message; None if it has none or comes from an undated transcript."""
    stamps = (getattr(part, "timestamp", None) for part in message.parts)
    when = getattr(message, "timestamp", None) or next(filter(None, stamps), None)
    return when if when is not None and when.year > 1970 else None


def show_parts(reading: Reading, form: str, *, longest: int | None = None) -> tuple[ShownPart, ...]:
    """Parts of a message for display; texts longer than `longest` characters are cut."""
    return tuple(_show_part(item, form, longest) for item in reading.items)


def _show_part(item: Item, form: str, longest: int | None) -> ShownPart:
    text = safe(item.text)
    cut = 0 if longest is None else max(0, len(text) - longest)
    text = text[: len(text) - cut]
    return ShownPart(
        kind=str(item.kind),
        tokens=item.tokens,
        segments=tuple(segments(text)) if item.mark is not None else (Segment(form=form, text=text),),
        tool=None if item.tool is None else safe(item.tool),
        failed=item.failed,
        cut=cut,
        call=safe(item.call_id or ""),
    )


def mark_words(part: ShownPart, marks: Iterable[tuple[str, str]]) -> ShownPart:
    """Mark words in a part.

    Args:
        part: A part with a single segment.
        marks: Pairs of form and words. Words that overlap words earlier in the list are ignored.
    """
    (segment,) = part.segments
    taken: list[tuple[int, int, str]] = []
    for form, words in marks:
        start = segment.text.find(words)
        stop = start + len(words)
        if start >= 0 and words and all(stop <= other or start >= end for other, end, _ in taken):
            taken.append((start, stop, form))
    if not taken:
        return part
    runs: list[tuple[str, str]] = []
    position = 0
    for start, stop, form in sorted(taken):
        runs += [("", segment.text[position:start])] if start > position else []
        runs.append((form, segment.text[start:stop]))
        position = stop
    runs += [("", segment.text[position:])] if position < len(segment.text) else []
    return replace(part, segments=(replace(segment, runs=tuple(runs)),))


def segments(text: str) -> Iterator[Segment]:
    """Split a text that this package wrote for a view into segments by form."""
    if text in PLACEHOLDERS:
        yield Segment(form=GAP, text=text)
        return
    position = 0
    for fence in _FENCE.finditer(text):
        if before := text[position : fence.start()].strip("\n"):
            yield Segment(form=SUMMARY, text=before)
        form = FENCES.get(fence[1], QUOTED)
        yield from _split_quotes(fence[2]) if form == QUOTED else [Segment(form=form, text=fence[2])]
        position = fence.end()
    if rest := text[position:].strip("\n"):
        yield Segment(form=SUMMARY, text=rest)


def _split_quotes(text: str) -> Iterator[Segment]:
    """Split the fence of quotes into instructions, outline, identifiers and passages.

    They come in this order, and each may be missing.
    """
    rest = text
    while rest:
        block, _, after = rest.partition("\n\n")
        lines = block.split("\n")
        form = _HEADS.get(lines[0])
        if form is None and (after.startswith("[from turn ") or len(lines) > 1) and all(map(_LISTED.match, lines)):
            form = IDENTIFIER
        if form is None:
            yield Segment(form=QUOTED, text=rest)
            return
        yield Segment(form=form, text=block)
        rest = after


def bars(sections: Mapping[str, int], whole: int) -> list[Bar]:
    """Lay out a token breakdown as a bar of `whole` tokens, or longer if the sections exceed that."""
    total = max(whole, sum(sections.values()), 1)
    laid_out: list[Bar] = []
    start = 0.0
    for name, tokens in sections.items():
        if tokens > 0:
            width = 1000 * tokens / total
            shown, form = _SECTIONS.get(name, (name, CARRIED))
            laid_out.append(Bar(name=shown, form=form, tokens=tokens, start=start, width=width))
            start += width
    return laid_out
