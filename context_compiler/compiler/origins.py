"""Find the origin of each message of a recorded view, and the fate of each raw message, from the record alone.

A message that is unchanged in a view has the same content hash as in the raw history. Other messages either were
written for the view, which their mark shows, or are smaller forms of a raw message with its timestamps and call ids.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from context_compiler.compiler.reasons import CARRIED_FOR_HOST, CURRENT_TURN, KEPT_TURN, WRITTEN, StepInfo
from context_compiler.messages.display import CARRIED, SHORTENED
from context_compiler.messages.items import mark_of, separate_parts, user_content
from context_compiler.messages.recorded import RecordedMessage
from context_compiler.record.values import Drop, positions_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """Fate of one raw message in one request."""

    form: str
    """verbatim, shortened, carried or absent."""
    sent: int | None
    """Position in the view; None if it is not there."""
    reason: str
    """Reason as recorded; empty if the record has none."""
    step: StepInfo | None
    request: int | None
    """Number of the request that cut it: this one, or an earlier one whose decision still holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Recorded reason why the message at one raw position was cut."""

    reason: str
    request: int | None


def causes(recorded: Iterable[tuple[int | None, Sequence[Drop]]]) -> dict[int, list[Cause]]:
    """Causes by raw position, newest first, from requests with their drops, the newest request first.

    A request repeats the drops of earlier ones in its cycle; the earliest request with a reason is its cause.
    """
    by_position: dict[int, list[Cause]] = {}
    for number, drops in recorded:
        for drop in drops:
            for position in positions_of(drop.what):
                cause, earlier = Cause(reason=drop.reason, request=number), by_position.setdefault(position, [])
                if earlier and earlier[-1].reason == drop.reason:
                    earlier.pop()
                earlier.append(cause)
    return by_position


def align(sent: Sequence[str], raw: Sequence[str]) -> list[int | None]:
    """Raw position of each message that is unchanged in a view, by content hash; None for other messages.

    Among equal messages the newest in order is chosen, because views keep the end of a history. Messages carried for
    the host come first in a view, so they are matched out of order.
    """
    places: dict[str, list[int]] = {content: [] for content in sent}
    for position, content in enumerate(raw):
        if content in places:
            places[content].append(position)
    origins: list[int | None] = []
    following = len(raw)
    for content in reversed(sent):
        free = places[content]
        before = bisect_left(free, following) - 1
        position = free.pop(before) if before >= 0 else None
        origins.append(position)
        following = following if position is None else position
    origins.reverse()
    for index, content in enumerate(sent):
        if origins[index] is None and places[content]:
            origins[index] = places[content].pop()
    return origins


def gaps(aligned: Sequence[int | None], length: int) -> dict[int, range]:
    """Range of raw positions for each view message without a known origin, from its neighbours that are in order."""
    in_order: list[int | None] = []
    after = length
    for position in reversed(aligned):
        in_order.append(position if position is not None and position < after else None)
        after = in_order[-1] if in_order[-1] is not None else after
    in_order.reverse()
    ranges: dict[int, range] = {}
    before = 0
    for index, position in enumerate(aligned):
        before = before if in_order[index] is None else (in_order[index] or 0) + 1
        if position is None:
            after = next((later for later in in_order[index + 1 :] if later is not None), length)
            ranges[index] = range(before, after)
    return ranges


def is_written(message: RecordedMessage) -> bool:
    """True if a message was written for a view, apart from system text."""
    if message.kind == "response":
        return mark_of(message) is not None
    marks = [(_is_ours(part), part.part_kind) for part in separate_parts(message)]
    return any(ours for ours, _ in marks) and all(ours or kind == "system-prompt" for ours, kind in marks)


def has_block(message: RecordedMessage) -> bool:
    """True if we wrote some but not all parts of a message."""
    marks = [_is_ours(part) for part in separate_parts(message)]
    return any(marks) and not all(marks)


def says_as_much(sent: RecordedMessage, raw: RecordedMessage) -> bool:
    """True if the parts of a message other than ours equal those of the raw message."""
    theirs = [part for part in separate_parts(sent) if not _is_ours(part)]
    return [_content(part) for part in theirs] == [_content(part) for part in raw.parts]


def _content(part: Any) -> tuple[object, ...]:
    return part.part_kind, getattr(part, "content", None), getattr(part, "args", None)


def _is_ours(part: Any) -> bool:
    return mark_of(part) is not None or mark_of(_first(part)) is not None


def _first(part: Any) -> object:
    content = getattr(part, "content", None)
    return next(iter(user_content(content)), None) if content else None


def same_origin(sent: RecordedMessage, raw: RecordedMessage) -> bool:
    """True if `sent` may be a smaller form of `raw`, with the same kind, timestamps and call ids."""
    if sent.kind != raw.kind:
        return False
    features = {_features(part) for part in separate_parts(sent) if not _is_ours(part)}
    if sent.kind == "response" and sent.timestamp != getattr(raw, "timestamp", None):
        return False
    return bool(features) and features <= {
        sign for part in raw.parts for sign in (_features(part), _features(part, rendered=True))
    }


def _features(part: Any, *, rendered: bool = False) -> tuple[object, ...]:
    """Features that a part shares with its smaller forms; with `rendered`, those it shares with its form as text."""
    call = None if rendered else getattr(part, "tool_call_id", None)
    kind = "text" if part.part_kind in ("text", "tool-call", "builtin-tool-call", "builtin-tool-return") else "prompt"
    return (call,) if call else (kind, getattr(part, "timestamp", None) if kind == "prompt" else None)


def why_here(form: str, position: int | None, active: int, reason: str) -> str:
    """Reason why a message is in a view, worded as in a live view."""
    if position is None:
        return WRITTEN
    if form == CARRIED:
        return CARRIED_FOR_HOST
    turn = CURRENT_TURN if position >= active else KEPT_TURN
    return f"{turn}, shortened: {reason or 'a smaller form'}" if form == SHORTENED else turn
