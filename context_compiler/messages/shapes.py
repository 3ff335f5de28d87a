"""Smaller forms of a message: truncated texts, tool-call stubs, exchanges rendered as text.

A shape never mutates a message; it builds new parts, and only those that change. Pairs stay valid: a call keeps its
id and name, an answer its id. Exchanges of a provider's own tools cannot be shortened in place, so that one which
is too long becomes text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic_ai.messages import ModelMessage, TextPart, ToolReturnPart, UserPromptPart

from context_compiler.messages.history import Reading
from context_compiler.messages.items import (
    CALL_OVERHEAD,
    MESSAGE_OVERHEAD,
    Item,
    Kind,
    is_media,
    media_cost,
    parse_arguments,
    placeholder,
    plain_text,
    read_items,
    read_part,
    user_content,
)
from context_compiler.messages.tool_lines import call_line, outcome_line
from context_compiler.tokens import TokenCounter

STUB_LIMITS = {Kind.CALL: 64, Kind.RETURN: 48, Kind.TEXT: 60}
"""Parts with more tokens than this are shortened in a tool-call stub."""

STUB_ARGUMENTS = 96
"""Tokens of a call's arguments in a stub."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Form of a message in a view; the default is unchanged."""

    skip: frozenset[int] = frozenset()
    """Positions of parts left out: broken ones, and repetitions."""
    without: frozenset[str] = frozenset()
    """Kinds of part left out that nothing can shorten; what stays for others is never among them."""
    limit: int | None = None
    """The most tokens one part may have; longer ones keep head and tail."""
    prompt: int | None = None
    """The same for a user's own parts, where they may be longer than what they came with."""
    system: int | None = None
    """The same for system text of others, which no other limit touches."""
    skeleton: bool = False
    """Tool exchanges become stubs: name, key arguments and an outcome line."""
    bare: bool = False
    """Only what the host would forget remains: foreign system parts, control parts, loads."""
    ref: str = ""
    """Reference under which an agent can read the full message; empty if it cannot."""
    tools: str = "paired"
    """paired: tool exchanges are kept; drop: they are dropped; render: they become text."""


WHOLE = Shape()


def apply_shape(message: ModelMessage, reading: Reading, shape: Shape, counter: TokenCounter) -> ModelMessage | None:
    """Apply a shape to a message; None if nothing is left of it."""
    if shape == WHOLE:
        return message
    oversized = _oversized_native_ids(reading.items, shape)
    truncator = Truncator(counter, shape.ref)
    parts: list[Any] = []
    for position, (part, item) in enumerate(zip(message.parts, reading.items, strict=True)):
        kept = None if position in shape.skip else _part(part, item, shape, oversized, truncator)
        if kept is not None:
            parts.append(kept)
    return replace(message, parts=parts) if parts else None


def price(message: ModelMessage, reading: Reading, shape: Shape, counter: TokenCounter) -> int:
    """Exact tokens of a message in a shape."""
    if shape == WHOLE:
        return reading.tokens
    left = apply_shape(message, reading, shape, counter)
    return 0 if left is None else sum(item.tokens for item in read_items(left, counter))


def _oversized_native_ids(items: Sequence[Item], shape: Shape) -> frozenset[str | None]:
    """Call ids of the provider's own exchanges in this message that exceed the limit of the shape."""
    limit = shape.limit if shape.limit is not None else STUB_LIMITS[Kind.RETURN] if shape.skeleton else None
    own = [item.call_id for item in items if item.native]
    if limit is None or not own:
        return frozenset()
    return frozenset(item.call_id for item in items if item.tokens > limit and own.count(item.call_id) > 1)


def _part(part: Any, item: Item, shape: Shape, oversized: frozenset[str | None], truncator: Truncator) -> Any | None:
    if item.stays:
        long = item.kind is Kind.SYSTEM and shape.system is not None and item.tokens > shape.system
        return _truncate_part(part, item, shape.system or 0, truncator) if long else part
    if shape.bare or item.kind in shape.without or (item.call_id is not None and shape.tools == "drop"):
        return None
    if item.call_id is not None and (shape.tools == "render" or (item.native and item.call_id in oversized)):
        return _as_text(part, item, shape.limit, truncator)
    if item.native:
        return part
    if shape.skeleton:
        part, item = _tool_call_stub(part, item, truncator)
    limit = shape.prompt if shape.prompt is not None and item.kind is Kind.USER else shape.limit
    return _truncate_part(part, item, limit, truncator) if limit is not None and item.tokens > limit else part


def _truncate_part(part: Any, item: Item, limit: int, truncator: Truncator) -> Any:
    write = _WRITERS.get(item.kind)
    return write(part, item, max(1, limit - MESSAGE_OVERHEAD), truncator) if write else part


def _with_text(part: Any, text: str) -> Any:
    """The same part with another text; speech and retry parts become plain ones."""
    if part.part_kind == "speech":
        return UserPromptPart(content=text) if part.speaker == "user" else TextPart(content=text)
    if part.part_kind != "retry-prompt":
        return replace(part, content=text)
    if part.tool_name is None:
        return UserPromptPart(content=text, timestamp=part.timestamp)
    return ToolReturnPart(part.tool_name, text, part.tool_call_id, timestamp=part.timestamp, outcome="retried")


def _write_text(part: Any, item: Item, limit: int, truncator: Truncator) -> Any:
    return _with_text(part, truncator.truncate(item.text, limit))


def _write_user(part: Any, item: Item, limit: int, truncator: Truncator) -> Any:
    if part.part_kind == "speech" or isinstance(part.content, str):
        return _write_text(part, item, limit, truncator)
    pieces: list[Any] = []
    left = limit
    for piece in user_content(part.content):
        short, cost = _piece(piece, left, truncator)
        pieces.append(short)
        left -= cost
        if left <= 0:
            break
    return replace(part, content=pieces)


def _piece(piece: Any, left: int, truncator: Truncator) -> tuple[Any, int]:
    """A piece of a prompt truncated to the tokens left, and its cost."""
    if is_media(piece):
        cost = media_cost(piece)
        if cost <= left:
            return piece, cost
        piece = placeholder(piece)
    if getattr(piece, "kind", None) == "cache-point":
        return piece, 0
    content = getattr(piece, "content", None)
    if isinstance(content, str):
        text = truncator.truncate(content, left)
        return replace(piece, content=text), truncator.text(text)
    text = truncator.truncate(plain_text(piece), left)
    return text, truncator.text(text)


def _write_answer(part: Any, item: Item, limit: int, truncator: Truncator) -> Any:
    return _with_text(part, truncator.truncate(item.text, max(1, limit - truncator.text(item.tool or ""))))


def _write_call(part: Any, item: Item, limit: int, truncator: Truncator) -> Any:
    room = limit - (CALL_OVERHEAD - MESSAGE_OVERHEAD) - truncator.text(item.tool or "")
    return replace(part, args=_short_arguments(item.text, room, truncator))


def _short_arguments(text: str, limit: int, truncator: Truncator) -> dict[str, object]:
    """Arguments with long values cut, all of them where that fits, else as many as fit, in their order."""
    given = parse_arguments(text)
    if given is None:
        given = {"arguments": text}
    width = limit
    while width >= 4:
        short = {key: _short_value(value, width, truncator) for key, value in given.items()}
        if truncator.text(plain_text(short)) <= limit:
            return short
        width //= 2
    short = dict[str, object]()
    for key, value in given.items():
        longer = {**short, key: _short_value(value, 4, truncator)}
        if truncator.text(plain_text(longer)) > limit:
            break
        short = longer
    return short


def _short_value(value: object, width: int, truncator: Truncator) -> object:
    text = plain_text(value)
    return value if truncator.text(text) <= width else truncator.truncate(text, width)


def _write_file(part: Any, item: Item, limit: int, truncator: Truncator) -> Any:
    return TextPart(content=truncator.truncate(item.text, limit))


def _write_summary(part: Any, item: Item, limit: int, truncator: Truncator) -> Any:
    """An application's own summary is text; a provider's is only good whole."""
    return part if part.provider_name else _write_text(part, item, limit, truncator)


_WRITERS: dict[Kind, Callable[[Any, Item, int, Truncator], Any]] = {
    Kind.SYSTEM: _write_text,
    Kind.TEXT: _write_text,
    Kind.USER: _write_user,
    Kind.RETURN: _write_answer,
    Kind.FEEDBACK: _write_text,
    Kind.CALL: _write_call,
    Kind.MEDIA: _write_file,
    Kind.COMPACTION: _write_summary,
}
"""Truncation by kind; other kinds (thinking, unknown parts) are kept unchanged or dropped."""


def _as_text(part: Any, item: Item, limit: int | None, truncator: Truncator) -> Any:
    """A call or an answer as a line of text, each on its own side of the conversation."""
    name = item.tool or "tool"
    line = call_line(name, item.text) if item.kind is Kind.CALL else outcome_line(item.text, failed=item.failed)
    text = f"[tool] {line}" if item.kind is Kind.CALL else f"[tool] {name}: {line}"
    if limit is not None:
        text = truncator.truncate(text, max(1, limit - MESSAGE_OVERHEAD))
    if item.kind is Kind.CALL or item.native:
        return TextPart(content=text)
    return UserPromptPart(content=text, timestamp=part.timestamp)


def _tool_call_stub(part: Any, item: Item, truncator: Truncator) -> tuple[Any, Item]:
    """The part as a stub, read again."""
    if item.kind is Kind.USER and item.media:
        shown = [placeholder(piece) if is_media(piece) else piece for piece in user_content(part.content)]
        part = replace(part, content=shown) if part.part_kind == "user-prompt" else _with_text(part, item.text)
    elif item.tokens <= STUB_LIMITS.get(item.kind, item.tokens):
        return part, item
    elif item.kind is Kind.CALL:
        part = replace(part, args=_short_arguments(item.text, STUB_ARGUMENTS, truncator))
    elif item.kind is Kind.RETURN:
        line = outcome_line(item.text, failed=item.failed)
        part = _with_text(part, f"{line}\n[outcome only; {item.tokens:,} tokens in full{truncator.reading}]")
    else:
        part = _with_text(part, truncator.truncate(item.text, STUB_LIMITS[Kind.TEXT]))
    return part, read_part(part, truncator.counter)


def largest(items: Sequence[Item]) -> int:
    """The price of the largest part."""
    return max((item.tokens for item in items), default=0)


@dataclass(frozen=True, slots=True)
class Truncator:
    """Truncates texts to a number of tokens, keeping head and tail."""

    counter: TokenCounter
    ref: str = ""
    """Reference under which an agent can read the full text; empty if it cannot."""

    @property
    def reading(self) -> str:
        """Hint for the marker on how to read the full text."""
        return f'; recall_read("{self.ref}") shows it' if self.ref else ""

    def text(self, text: str) -> int:
        """The tokens of a text."""
        return self.counter.text(text)

    def truncate(self, text: str, limit: int) -> str:
        """Keep head and tail of a text around a marker, in at most `limit` tokens."""
        counter = self.counter
        size = counter.text(text)
        if size <= limit:
            return text
        marker = f"\n[… {size:,} tokens in full, the middle is left out here{self.reading} …]\n"
        room = limit - counter.text(marker) - 4
        if room < 8:
            return counter.head(counter.head(text, limit - 2) + "…", limit)
        return counter.head(text, room * 2 // 3) + marker + counter.tail(text, room - room * 2 // 3)


def truncate(text: str, limit: int, counter: TokenCounter) -> str:
    """Keep head and tail of a text that cannot be recalled, in at most `limit` tokens."""
    return Truncator(counter).truncate(text, limit)
