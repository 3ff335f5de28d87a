"""Origin of each message of a recorded view, and the fate of each raw message, from the record alone.

A message that a view holds unchanged has the same content hash as in the raw history. The others are either written
for the view, which their mark says, or smaller forms of a raw message, which share its times and call ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic_ai.messages import ModelMessage

from context_compiler.messages.display import CARRIED, SHORTENED
from context_compiler.messages.items import mark_of, user_content
from context_compiler.record.values import Drop, positions_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step of the cut order."""

    number: int
    """Place in the order, from 1; 0 for what is no step of it."""
    name: str
    effect: str
    """shortens, drops or neither."""


_CUTS = (
    (r"a prompt larger than the budget", 0, "shorten prompts larger than the budget", "shortens"),
    (r"system text that would fill", 0, "shorten system text that would fill the budget alone", "shortens"),
    (r"a part above a quarter", 1, "shorten parts above a quarter of the room", "shortens"),
    (r"an earlier turn|older than the last", 2, "drop older turns", "drops"),
    (r"tool exchange as a (stub|skeleton)", 3, "shorten tool exchanges of earlier turns", "shortens"),
    (r"recent turn, over budget", 5, "drop recent turns", "drops"),
    (r"tool exchange of this turn as a", 6, "shorten tool exchanges of this turn", "shortens"),
    (r"tool exchange of this turn, (over|by)", 7, "drop tool exchanges of this turn", "drops"),
    (r"pinned, over budget", 9, "drop pinned messages", "drops"),
    (r"clamped to fit", 10, "truncate what is left, harder each time", "shortens"),
    (r"cannot be shortened", 11, "drop what truncation cannot shorten", "shortens"),
    (r"earlier prompt of this turn", 12, "drop earlier prompts of this turn", "drops"),
    (r"a prompt below a quarter", 13, "shorten prompts to less than a quarter of the room", "shortens"),
    (r"system text, over budget", 14, "shorten the system text of others", "shortens"),
    (r"summarised from here on", 0, "summarise from a turn on, by hand", "drops"),
    (r"broken:", 0, "leave out half of a tool exchange", "drops"),
    (r"last resort", 0, "send the last exchange alone", "drops"),
    (r"after the last request", 0, "a view ends with the last request", "drops"),
)

STEPS = tuple((pattern, Step(number=number, name=name, effect=effect)) for pattern, number, name, effect in _CUTS)
"""Steps by the reasons that they give; 4 and 8 shrink and drop the summary, which is no message. Large prompts and
system text are shortened before the first."""


@cache
def step_of(reason: str) -> Step | None:
    """The step of the cut order that gives this reason; None for any other reason."""
    return next((step for pattern, step in STEPS if re.match(pattern, reason)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """Fate of one raw message in one request."""

    form: str
    """verbatim, shortened, carried or absent."""
    sent: int | None
    """Position in the view."""
    reason: str
    """Reason as recorded; empty if the record has none."""
    step: Step | None
    request: int | None
    """Number of the request that cut it back: this one, or an earlier one whose decision still holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A recorded reason for one raw position."""

    reason: str
    request: int | None


def causes(recorded: Iterable[tuple[int | None, Sequence[Drop]]]) -> dict[int, list[Cause]]:
    """Reasons by raw position, from requests and their drops, the newest request first.

    A request repeats what earlier ones of its cycle list; the first that gives a reason is its cause.
    """
    found: dict[int, list[Cause]] = {}
    for number, drops in recorded:
        for drop in drops:
            for at in positions_of(drop.what):
                cause, known = Cause(reason=drop.reason, request=number), found.setdefault(at, [])
                if known and known[-1].reason == drop.reason:
                    known.pop()
                known.append(cause)
    return found


def align(sent: Sequence[str], raw: Sequence[str]) -> list[int | None]:
    """Raw position of each message of a view that holds it unchanged, by content hashes; None for the others."""
    places: dict[str, list[int]] = {content: [] for content in sent}
    for at, content in enumerate(raw):
        if content in places:
            places[content].append(at)
    found: list[int | None] = []
    last = -1
    for content in sent:
        at = next((at for at in places[content] if at > last), None)
        found.append(at)
        last = last if at is None else at
    return found


def gaps(aligned: Sequence[int | None], length: int) -> dict[int, range]:
    """Raw positions that each message without a known origin may come from."""
    found: dict[int, range] = {}
    before = 0
    for index, at in enumerate(aligned):
        if at is not None:
            before = at + 1
            continue
        after = next((later for later in aligned[index + 1 :] if later is not None), length)
        found[index] = range(before, after)
    return found


def is_written(message: ModelMessage) -> bool:
    """True if all of a message but system text was written for a view."""
    marks = [mark_of(part) or mark_of(_first(part)) for part in message.parts if part.part_kind != "system-prompt"]
    return bool(marks) and all(mark is not None for mark in marks)


def has_block(message: ModelMessage) -> bool:
    """True if a message of somebody else has a part that we wrote."""
    marks = [mark_of(_first(part)) is not None for part in message.parts]
    return any(marks) and not all(marks)


def _first(part: Any) -> object:
    content = getattr(part, "content", None)
    return next(iter(user_content(content)), None) if content else None


def same_origin(sent: ModelMessage, raw: ModelMessage) -> bool:
    """True if one message may be a smaller form of the other: same kind, times and call ids."""
    if sent.kind != raw.kind:
        return False
    signs = {_sign(part) for part in sent.parts if mark_of(part) is None and mark_of(_first(part)) is None}
    if sent.kind == "response" and sent.timestamp != getattr(raw, "timestamp", None):
        return False
    return bool(signs) and signs <= {_sign(part) for part in raw.parts}


def _sign(part: Any) -> tuple[object, ...]:
    rendered = "text" if part.part_kind in ("text", "tool-call", "builtin-tool-call") else "prompt"
    call = getattr(part, "tool_call_id", None)
    return (call,) if call else (rendered, getattr(part, "timestamp", None))


def why_here(form: str, position: int | None, active: int, reason: str) -> str:
    """Reason why a message is in a view, in the words of a live view."""
    if position is None:
        return "written for this view"
    if form == CARRIED:
        return "carried for the host"
    turn = "current turn" if position >= active else "recent turn"
    return f"{turn}, shortened: {reason or 'a smaller form'}" if form == SHORTENED else turn
