"""A message stands in a view whole, in one of a few smaller shapes, or not at all.

A shape never mutates: it builds new parts, and only the parts that change. A shape keeps pairs valid: a
call keeps its id and name, an answer its id, whatever happens to what they say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from pydantic_ai.messages import ModelMessage, TextPart, ToolReturnPart, UserPromptPart

from context_compiler.content import is_media, media_cost, placeholder, user_content, without_media
from context_compiler.history import Reading
from context_compiler.items import Item, Kind, arguments, plain, read_items
from context_compiler.skeleton import call_line, clip, outcome_line
from context_compiler.tokens import TokenCounter

SKELETON_TEXT = 60
"""Tokens that what was said around a tool call keeps in a skeleton."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How a message stands in a view; the default is whole."""

    skip: frozenset[int] = frozenset()
    """Parts left out because they are broken, by position."""
    limit: int | None = None
    """The most tokens one part may have; longer ones keep head and tail."""
    skeleton: bool = False
    """Tool exchanges keep name, key arguments and an outcome line."""
    bare: bool = False
    """Only what the host would forget remains: foreign system parts, control parts, loads."""
    tools: str = "paired"
    """paired: tool exchanges stand; drop: they go; render: they stand as text."""
    signed: bool = True
    """Thinking stays: it signs the calls beside it, and the active run needs it."""


WHOLE = Shape()


def shaped(message: ModelMessage, reading: Reading, shape: Shape, counter: TokenCounter) -> ModelMessage | None:
    """The message in that shape: itself when whole, None when nothing of it is left."""
    if shape == WHOLE:
        return message
    parts: list[Any] = []
    for position, (part, item) in enumerate(zip(message.parts, reading.items, strict=True)):
        if position in shape.skip:
            continue
        kept = _part(part, item, shape, counter)
        if kept is not None:
            parts.append(kept)
    return replace(message, parts=parts) if parts else None


def price(message: ModelMessage, reading: Reading, shape: Shape, counter: TokenCounter) -> int:
    """What the message costs in that shape, in exact tokens."""
    if shape == WHOLE:
        return reading.tokens
    left = shaped(message, reading, shape, counter)
    return 0 if left is None else sum(item.tokens for item in read_items(left, counter))


def _part(part: Any, item: Item, shape: Shape, counter: TokenCounter) -> Any | None:
    if shape.bare and not item.stays:
        return None
    if item.kind is Kind.THINKING and not shape.signed:
        return None
    if shape.tools != "paired" and item.call_id is not None and not item.loads:
        return None if shape.tools == "drop" else _as_text(part, item)
    if shape.skeleton and not item.loads:
        part = _skeleton(part, item, counter)
    if shape.limit is not None and item.tokens > shape.limit:
        return _clamped(part, item, shape.limit, counter)
    return part


def clamp(text: str, limit: int, counter: TokenCounter) -> str:
    """Head and tail of a text, with a marker between that says how much is left out; at most `limit` tokens."""
    size = counter.text(text)
    if size <= limit:
        return text
    marker = f"\n[… {size:,} tokens in full, the middle is left out here …]\n"
    room = limit - counter.text(marker) - 4
    if room < 8:
        return counter.head(f"[… {size:,} tokens left out …]", max(limit, 0))
    return counter.head(text, room * 2 // 3) + marker + counter.tail(text, room - room * 2 // 3)


def _clamped(part: Any, item: Item, limit: int, counter: TokenCounter) -> Any | None:
    write = _WRITERS.get(item.kind)
    return write(part, item, max(1, limit - 16), counter) if write else None


def _saying(part: Any, text: str) -> Any:
    """The same part with another text; the host's deprecated retry prompts become what it loads them as."""
    if part.part_kind != "retry-prompt":
        return replace(part, content=text)
    if part.tool_name is None:
        return UserPromptPart(content=text, timestamp=part.timestamp)
    return ToolReturnPart(part.tool_name, text, part.tool_call_id, timestamp=part.timestamp, outcome="retried")


def _write_text(part: Any, item: Item, limit: int, counter: TokenCounter) -> Any:
    return _saying(part, clamp(item.text, limit, counter))


def _write_user(part: Any, item: Item, limit: int, counter: TokenCounter) -> Any:
    pieces: list[Any] = []
    left = limit
    for piece in user_content(part.content):
        if is_media(piece):
            cost = media_cost(piece)
            piece = piece if cost <= left else placeholder(piece)
            left -= cost if not isinstance(piece, str) else counter.text(piece)
        else:
            text = clamp(piece if isinstance(piece, str) else str(getattr(piece, "content", "")), max(left, 1), counter)
            left -= counter.text(text)
            piece = text if isinstance(piece, str) or not hasattr(piece, "content") else replace(piece, content=text)
        pieces.append(piece)
        if left <= 0:
            break
    return replace(part, content=pieces[0] if isinstance(part.content, str) else pieces)


def _write_answer(part: Any, item: Item, limit: int, counter: TokenCounter) -> Any:
    content = part.content
    if item.media:
        content = without_media(content)
    text = clamp(plain(content), max(1, limit - counter.text(item.tool or "")), counter)
    return _saying(part, text)


def _write_call(part: Any, item: Item, limit: int, counter: TokenCounter) -> Any:
    return replace(part, args=_short_arguments(item.text, max(2, limit - 16) // 2, counter))


def _short_arguments(text: str, limit: int, counter: TokenCounter) -> dict[str, object]:
    """Arguments whose values are clipped so that all of them fit, as many as fit, in their order."""
    given = arguments(text)
    if given is None:
        given = {"arguments": text}
    short: dict[str, object] = {}
    left = limit
    for key, value in given.items():
        said = value if isinstance(value, int | float | bool) or value is None else clip(plain(value), 120)
        left -= counter.text(str(said)) + counter.text(key) + 4
        if left < 0:
            break
        short[key] = said
    return short


def _write_file(part: Any, item: Item, limit: int, counter: TokenCounter) -> Any:
    return TextPart(content=item.text)


_WRITERS: dict[Kind, Callable[[Any, Item, int, TokenCounter], Any]] = {
    Kind.SYSTEM: _write_text,
    Kind.TEXT: _write_text,
    Kind.USER: _write_user,
    Kind.RETURN: _write_answer,
    Kind.FEEDBACK: _write_text,
    Kind.CALL: _write_call,
    Kind.MEDIA: _write_file,
}
"""How each kind is clamped; the others (thinking, unknown parts) can only stay whole or go."""


def _as_text(part: Any, item: Item) -> Any:
    """A call or an answer as a line of text, each on its own side of the conversation."""
    if item.kind is Kind.CALL or item.native:
        said = (
            call_line(item.tool or "tool", item.text)
            if item.kind is Kind.CALL
            else outcome_line(item.text, failed=item.failed)
        )
        return TextPart(content=f"[tool] {said}")
    line = outcome_line(item.text, failed=item.failed)
    return UserPromptPart(content=f"[tool] {item.tool}: {line}", timestamp=part.timestamp)


def _skeleton(part: Any, item: Item, counter: TokenCounter) -> Any:
    if item.kind is Kind.CALL and item.tokens > 64:
        return replace(part, args=_short_arguments(item.text, 96, counter))
    if item.kind is Kind.RETURN and item.tokens > 48:
        line = outcome_line(item.text, failed=item.failed)
        return _saying(part, f"{line}\n[outcome only; {item.tokens:,} tokens in full]")
    if item.kind is Kind.TEXT and item.tokens > SKELETON_TEXT:
        return replace(part, content=clamp(item.text, SKELETON_TEXT, counter))
    return part


def largest(items: Sequence[Item]) -> int:
    """The price of the largest part."""
    return max((item.tokens for item in items), default=0)


def encode(shape: Shape | None) -> list[object] | None:
    """A shape as JSON; None, which is `out`, stays None."""
    if shape is None:
        return None
    return [sorted(shape.skip), shape.limit, shape.skeleton, shape.bare, shape.tools, shape.signed]


def decode(data: object) -> Shape | None:
    """The reverse of `encode`."""
    if data is None:
        return None
    skip, limit, skeleton, bare, tools, signed = cast(list[Any], data)
    return Shape(skip=frozenset(skip), limit=limit, skeleton=skeleton, bare=bare, tools=tools, signed=signed)
