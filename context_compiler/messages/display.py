"""Messages as people look at them, in HTML: on the pages, in a notebook, and in a file to send to somebody.

All markup is in `data/html/messages.html`, with every text escaped, and all colours in `data/html/messages.css`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FunctionLoader, StrictUndefined, select_autoescape

from context_compiler.messages.printable import safe

if TYPE_CHECKING:  # a look at the record does not wait for the host
    from pydantic_ai.messages import ModelMessage

    from context_compiler.messages.history import Reading
    from context_compiler.messages.items import Item

SUMMARY, QUOTED, RECALLED, LAYERS = "summary", "quoted", "recalled", "layers"
INSTRUCTION, OUTLINE, IDENTIFIER = "instruction", "outline", "identifier"
VERBATIM, SHORTENED, CARRIED, ABSENT = "verbatim", "shortened", "carried", "absent"
PARTIAL, BESIDE, TOLD = "partial", "beside", "told"

FORMS: Mapping[str, str] = {
    VERBATIM: "word for word",
    SHORTENED: "shortened",
    SUMMARY: "in the summary",
    QUOTED: "quoted",
    RECALLED: "recalled before a prompt",
    INSTRUCTION: "standing instruction",
    OUTLINE: "in the outline",
    IDENTIFIER: "among the identifiers",
    LAYERS: "in the layers",
    BESIDE: "in the instructions or tools",
    PARTIAL: "words of it",
    CARRIED: "carried for the host",
    TOLD: "perhaps in the summary",
    ABSENT: "not in the request",
}
"""Forms in which a text can be in a request, and their names, the fullest first."""

_REASONS: Mapping[str, str] = {
    "recent turn, over budget": "recent turn, no room left",
    "tool exchange of this turn, over budget": "tool exchange of this turn, no room left",
}
"""Reasons as the record has them, and as they are shown: a compile cuts to the low threshold, not to the budget."""

FENCES: Mapping[str, str] = {
    "QUOTED FROM EARLIER TURNS": QUOTED,
    "RECALLED FROM EARLIER TURNS": RECALLED,
    "CONTEXT LAYERS": LAYERS,
}
"""Fences that a view writes, by title."""

SECTIONS: Mapping[str, str] = {
    "instructions and schemas": "instructions and schemas",
    "summary": "summary",
    "quotes": "quoted from what is left out",
    "recall": "recalled before prompts",
    "layers": "layers before the prompt",
    "messages": "kept messages",
}
"""Sections of a token breakdown, and their names."""

_FENCE = re.compile(r"^=== BEGIN ([\w -]+) ===\n(.*?)(?:\n=== END \1 ===$|\Z)", re.MULTILINE | re.DOTALL)
_LISTED = re.compile(r"\[turn \d+ · \D")
_HEADS = {"Standing instructions the user gave earlier:": INSTRUCTION, "What was worked on when:": OUTLINE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of text that is in a view for one reason."""

    form: str
    """One of `FORMS`."""
    text: str
    runs: tuple[tuple[str, str], ...] = ()
    """The same text in pieces, each after its form where it is in a request elsewhere too; empty where none is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPart:
    """One part of a message."""

    kind: str
    tokens: int
    segments: tuple[Segment, ...]
    tool: str | None = None
    failed: bool = False
    cut: int = 0
    """Characters that are not shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownMessage:
    """One message with its origin and the reason why it is there."""

    index: int
    """Position in its list."""
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
    """A section of a budget bar."""

    name: str
    form: str
    tokens: int
    start: float
    """Per mille of the bar."""
    width: float


def reason_text(reason: str) -> str:
    """A recorded reason as it is shown."""
    return _REASONS.get(reason, reason)


def role(one: Reading) -> str:
    """Role of a message: system, user, assistant, tool, or notes, which are wholly ours."""
    if not one.request:
        return "assistant"
    kinds = {str(item.kind) for item in one.items if item.mark is None}
    if one.items and not kinds:
        return "notes"
    if "return" in kinds:
        return "tool"
    return "user" if kinds & {"user", "feedback"} else "system"


def has_recall(one: Reading) -> bool:
    """True for a message of the conversation that carries a text of ours too: its recall block."""
    return role(one) != "notes" and any(item.mark is not None for item in one.items)


def time_of(message: ModelMessage) -> str:
    """The time of a message to the second, in UTC; empty for none or an undated transcript's."""
    stamps = (getattr(part, "timestamp", None) for part in message.parts)
    when = getattr(message, "timestamp", None) or next(filter(None, stamps), None)
    return f"{when:%Y-%m-%d %H:%M:%S}" if when is not None and when.year > 1970 else ""


def show_parts(one: Reading, form: str, *, longest: int | None = None) -> tuple[ShownPart, ...]:
    """Parts of a message; texts longer than `longest` characters are cut."""
    return tuple(_show_part(item, form, longest) for item in one.items)


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
    )


def mark_words(part: ShownPart, found: Iterable[tuple[str, str]]) -> ShownPart:
    """A part in which these words are marked, given after their forms; of words that overlap the first count."""
    (segment,) = part.segments
    taken: list[tuple[int, int, str]] = []
    for form, words in found:
        start = segment.text.find(words)
        stop = start + len(words)
        if start >= 0 and words and all(stop <= other or start >= end for other, end, _ in taken):
            taken.append((start, stop, form))
    if not taken:
        return part
    runs: list[tuple[str, str]] = []
    at = 0
    for start, stop, form in sorted(taken):
        runs += [("", segment.text[at:start])] if start > at else []
        runs.append((form, segment.text[start:stop]))
        at = stop
    runs += [("", segment.text[at:])] if at < len(segment.text) else []
    return replace(part, segments=(replace(segment, runs=tuple(runs)),))


def segments(text: str) -> Iterator[Segment]:
    """A text that was written for a view, by what it is made of."""
    at = 0
    for fence in _FENCE.finditer(text):
        if before := text[at : fence.start()].strip("\n"):
            yield Segment(form=SUMMARY, text=before)
        form = FENCES.get(fence[1], QUOTED)
        yield from _quoted(fence[2]) if form == QUOTED else [Segment(form=form, text=fence[2])]
        at = fence.end()
    if rest := text[at:].strip("\n"):
        yield Segment(form=SUMMARY, text=rest)


def _quoted(text: str) -> Iterator[Segment]:
    """Standing instructions, outline, identifiers and passages, in this order; each may be missing."""
    rest = text
    while rest:
        block, _, after = rest.partition("\n\n")
        lines = block.split("\n")
        form = _HEADS.get(lines[0])
        if form is None and (after.startswith("[turn ") or len(lines) > 1) and all(map(_LISTED.match, lines)):
            form = IDENTIFIER
        if form is None:
            yield Segment(form=QUOTED, text=rest)
            return
        yield Segment(form=form, text=block)
        rest = after


def bars(sections: Mapping[str, int], whole: int) -> list[Bar]:
    """A token breakdown as stretches of a bar that is `whole` tokens long, or as long as they are together."""
    total = max(whole, sum(sections.values()), 1)
    found: list[Bar] = []
    start = 0.0
    for name, tokens in sections.items():
        if tokens > 0:
            width = 1000 * tokens / total
            found.append(
                Bar(name=SECTIONS.get(name, name), form=_form_of(name), tokens=tokens, start=start, width=width)
            )
            start += width
    return found


def _form_of(section: str) -> str:
    forms = {"summary": SUMMARY, "quotes": QUOTED, "recall": RECALLED, "layers": LAYERS, "messages": VERBATIM}
    return forms.get(section, CARRIED)


def asset(name: str) -> str:
    """A template or style sheet of the displays."""
    return files("context_compiler").joinpath(f"data/html/{name}").read_text(encoding="utf-8")


@cache
def environment() -> Environment:
    """Templates of the displays; every value is escaped."""
    made = Environment(
        loader=FunctionLoader(asset),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["number"] = lambda value: f"{value:,.0f}"
    return made


def fragment(title: str, facts: Sequence[tuple[str, str]], messages: Sequence[ShownMessage], bar: Sequence[Bar]) -> str:
    """Messages and their budget bar as one piece of HTML with its style."""
    return _render("fragment.html", title=title, facts=facts, messages=messages, bar=bar)


def document(title: str, facts: Sequence[tuple[str, str]], messages: Sequence[ShownMessage], bar: Sequence[Bar]) -> str:
    """The same as a document that needs no other file."""
    return _render("document.html", title=title, facts=facts, messages=messages, bar=bar)


def _render(name: str, **values: Any) -> str:
    return environment().get_template(name).render(style=asset("messages.css"), forms=FORMS, **values)
