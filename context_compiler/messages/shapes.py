"""Smaller forms of a message: truncated texts, tool-call stubs, tool exchanges rendered as text.

Messages are never mutated; only the parts that change are rebuilt. Calls and answers stay paired, because a call keeps
its id and name, and an answer its id. Exchanges of a provider's own tools cannot be shortened in place, so they become
text if they are too long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile
from typing import Any, cast

from pydantic_ai.messages import ModelMessage, TextContent, TextPart, ToolReturnPart, UserPromptPart

from context_compiler.messages.history import Reading
from context_compiler.messages.items import (
    CALL_OVERHEAD,
    MESSAGE_OVERHEAD,
    Item,
    Kind,
    as_text,
    is_media,
    media_cost,
    parse_arguments,
    placeholder,
    plain_text,
    read_items,
    read_part,
    read_piece,
    separate_parts,
    user_content,
)
from context_compiler.messages.tool_lines import call_line, outcome_line
from context_compiler.tokens import TokenCounter

STUB_LIMITS = {Kind.CALL: 64, Kind.RETURN: 48, Kind.TEXT: 60}
"""Maximum tokens of a part in a stub, by kind; longer parts are shortened."""

INPUT_OVERHEAD, LEAST_INPUT = 8, 8
"""Tokens of the field in which a validation error repeats its input; minimum tokens that are worth keeping of it."""

STUB_ARGUMENTS = 96
"""Maximum tokens of the shortened arguments of a call in a stub."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Form of a message in a view; the default leaves it unchanged."""

    skip: frozenset[int] = frozenset()
    """Positions of parts to leave out: broken ones and repetitions."""
    without: frozenset[str] = frozenset()
    """Kinds of part to leave out because they cannot be shortened. Parts with `Item.stays` are kept regardless."""
    limit: int | None = None
    """Maximum tokens of one part; longer parts keep head and tail."""
    prompt: int | None = None
    """Maximum tokens of a user's own part, if different from `limit`."""
    system: int | None = None
    """Maximum tokens of system text of others, to which no other limit applies."""
    skeleton: bool = False
    """Reduce tool exchanges to stubs: name, key arguments and an outcome line."""
    bare: bool = False
    """Keep only parts with `Item.stays`: pins, system text of others, host bookkeeping and loads."""
    ref: str = ""
    """Reference by which an agent can read the full message; empty if it cannot."""
    tools: str = "paired"
    """`paired` keeps tool exchanges, `drop` drops them, `render` turns them into text."""

    @property
    def is_partial(self) -> bool:
        """True if it leaves parts out, or may shorten them."""
        return bool(self.skip) or self.skeleton or self.limit is not None or self.prompt is not None


WHOLE = Shape()


def shortens_prompt(reading: Reading, shape: Shape) -> bool:
    """True if a shape shortens a user's own text."""
    most = shape.limit if shape.prompt is None else shape.prompt
    return most is not None and any(item.kind is Kind.USER and item.tokens > most for item in reading.items)


def apply_shape(message: ModelMessage, reading: Reading, shape: Shape, counter: TokenCounter) -> ModelMessage | None:
    """Apply a shape to a message, without what has expired; return None if nothing is left of it."""
    if shape == WHOLE and not reading.scoped:
        return message
    oversized = _oversized_native_ids(reading.items, shape)
    truncator = Truncator(counter, shape.ref)
    before = separate_parts(message)
    shaped = [
        None if item.expired or position in shape.skip else _shape_part(part, item, shape, oversized, truncator)
        for position, (part, item) in enumerate(zip(before, reading.items, strict=True))
    ]
    shaped = _without_stale_ids(before, reading.items, shaped)
    if any(item.kind is Kind.THINKING for item in reading.items):
        shaped = _with_consistent_thinking(before, reading.items, shaped)
    parts = [part for part in shaped if part is not None]
    return replace(message, parts=parts) if parts else None


def _without_stale_ids(before: Sequence[Any], items: Sequence[Item], shaped: Sequence[Any]) -> list[Any]:
    """The shaped parts, without the id of any item that is not sent as it was.

    A provider that finds an id of its own uses its stored copy of the item and ignores what is sent.

    Args:
        before: The parts as they were; an item of the provider may consist of several.
        items: The same parts as read.
        shaped: The same parts as shaped; None for those that are left out.
    """
    changed = (
        part
        for part, item, new in zip(before, items, shaped, strict=True)
        if new is not part and item.kind is not Kind.THINKING
    )
    stale = {_id(part) for part in changed} - {None}
    return [replace(new, id=None) if _id(new) in stale else new for new in shaped]


def _with_consistent_thinking(before: Sequence[Any], items: Sequence[Item], shaped: Sequence[Any]) -> list[Any]:
    """The shaped parts of a response that providers accept which check thinking.

    They refuse thinking without the part that it led to, and a part with an id of theirs without its thinking.

    Args:
        before: The parts as they were.
        items: The same parts as read.
        shaped: The same parts as shaped; None for those that are left out.
    """
    parts: list[Any] = []
    led, kept = (None, None), True  # the part that the thinking led to, before and after shaping
    for part, item, new in zip(reversed(before), reversed(items), reversed(shaped), strict=True):
        if item.kind is not Kind.THINKING:
            led = part, new
        elif type(led[0]) is not type(led[1]) or _id(led[0]) != _id(led[1]):  # left out, rendered as text, or changed
            new = None
        parts.append(new)
    parts.reverse()
    for position, item in enumerate(items):
        part = parts[position]
        if item.kind is Kind.THINKING:
            kept = part is not None
        elif not kept and _id(part) is not None:
            parts[position] = replace(part, id=None)
    return parts


def _id(part: object) -> str | None:
    """Id by which a provider knows a part; None if it has none."""
    return getattr(part, "id", None)


def price(message: ModelMessage, reading: Reading, shape: Shape, counter: TokenCounter) -> int:
    """Exact tokens of a message in a shape."""
    if shape == WHOLE:
        return reading.tokens
    left = apply_shape(message, reading, shape, counter)
    return 0 if left is None else sum(item.tokens for item in read_items(left, counter))


def _oversized_native_ids(items: Sequence[Item], shape: Shape) -> frozenset[str | None]:
    """Call ids of exchanges with the provider's own tools in this message that exceed the limit of the shape."""
    limit = STUB_LIMITS[Kind.RETURN] if shape.limit is None and shape.skeleton else shape.limit
    own = [item.call_id for item in items if item.native]
    if limit is None or not own:
        return frozenset()
    return frozenset(item.call_id for item in items if item.tokens > limit and own.count(item.call_id) > 1)


def _shape_part(
    part: Any, item: Item, shape: Shape, oversized: frozenset[str | None], truncator: Truncator
) -> Any | None:
    if item.stays:
        long = item.kind is Kind.SYSTEM and shape.system is not None and item.tokens > shape.system
        return _truncate_part(part, item, shape.system or 0, truncator) if long else part
    if shape.bare or item.kind in shape.without or (item.call_id is not None and shape.tools == "drop"):
        return None
    if item.call_id is not None and (shape.tools == "render" or (item.native and item.call_id in oversized)):
        return _render_exchange(part, item, shape.limit, truncator)
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
    """Replace the text of a part; speech and retry parts become plain text or result parts."""
    if part.part_kind == "speech":
        return UserPromptPart(content=text) if part.speaker == "user" else TextPart(content=text)
    if part.part_kind == "text":  # its citations refer to positions in the whole text
        details = cast(dict[str, object], part.provider_details or {})
        details = {name: value for name, value in details.items() if name != "citations"}
        return replace(part, content=text, citations=None, provider_details=details or None)
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
    content = user_content(part.content)
    pieces = [as_text(piece) if is_media(piece) else piece for piece in content]
    sizes = [truncator.text(read_piece(piece)[0]) for piece in pieces]
    left = limit - sum(sizes)
    for at, piece in enumerate(content):  # a medium stays if it fits beside all texts
        more = truncator.text(placeholder(piece)) + media_cost(piece) - sizes[at] if is_media(piece) else 0
        if is_media(piece) and more <= left:
            pieces[at], sizes[at], left = piece, sizes[at] + more, left - more
    shares = _shares(sizes, limit)
    short = [
        piece if size <= share else _truncate_piece(piece, share, truncator)
        for piece, size, share in zip(pieces, sizes, shares, strict=True)
    ]
    kept = [piece for piece in short if piece != ""]  # providers refuse an empty text
    if short[:1] == [""]:  # and a cache point without anything before it
        kept = [*dropwhile(lambda piece: getattr(piece, "kind", None) == "cache-point", kept)]
    return replace(part, content=kept or short[:1])


def _shares(sizes: Sequence[int], limit: int) -> list[int]:
    """Divide a limit among sizes: the small ones whole, the larger ones equal shares of the rest."""
    shares, left = [0] * len(sizes), limit
    for done, at in enumerate(sorted(range(len(sizes)), key=sizes.__getitem__)):
        shares[at] = min(sizes[at], left // (len(sizes) - done))
        left -= shares[at]
    return shares


def _truncate_piece(piece: object, limit: int, truncator: Truncator) -> Any:
    """Truncate a text of a prompt; empty if there is no room for any of it."""
    text = truncator.truncate(read_piece(piece)[0], limit)
    return TextContent(content=text, metadata=piece.metadata) if text and isinstance(piece, TextContent) else text


def _write_answer(part: Any, item: Item, limit: int, truncator: Truncator) -> Any:
    room = limit if item.tool is None else limit - truncator.text(item.tool)
    errors = _shorten_errors(part.content, room, truncator)
    return replace(part, content=errors) if errors else _write_text(part, item, max(1, room), truncator)


def _shorten_errors(content: object, limit: int, truncator: Truncator) -> list[dict[str, object]]:
    """Shorten the inputs that validation errors repeat; every place and message stays.

    Empty if the content is no list of validation errors, or if these do not fit with the shortest inputs.
    """
    if not isinstance(content, list) or not content:
        return []
    errors = cast(list[object], content)
    if not all(isinstance(error, dict) and "loc" in error and "msg" in error for error in errors):
        return []
    details = cast(list[dict[str, object]], errors)
    bare = [{key: value for key, value in error.items() if key not in ("input", "ctx")} for error in details]
    width = (limit - truncator.text(plain_text(bare))) // len(bare) - INPUT_OVERHEAD
    while width >= LEAST_INPUT:
        inputs = [_shorten_value(error.get("input"), width, truncator) for error in details]
        if truncator.text(plain_text(shorter := _with_inputs(bare, inputs))) <= limit:
            return shorter
        width //= 2
    shortest = _with_inputs(bare, ["…"] * len(bare))
    return shortest if truncator.text(plain_text(shortest)) <= limit else []


def _with_inputs(errors: list[dict[str, object]], inputs: Sequence[object]) -> list[dict[str, object]]:
    """The errors with these inputs; the host cannot load an error without one."""
    return [{**error, "input": value} for error, value in zip(errors, inputs, strict=True)]


def _write_call(part: Any, item: Item, limit: int, truncator: Truncator) -> Any:
    room = limit - (CALL_OVERHEAD - MESSAGE_OVERHEAD) - truncator.text(item.tool or "")
    return replace(part, args=_shorten_arguments(item.text, room, truncator))


def _shorten_arguments(text: str, limit: int, truncator: Truncator) -> dict[str, object]:
    """Truncate the values of arguments to fit `limit` tokens; if that is not enough, drop the last arguments."""
    arguments = parse_arguments(text)
    if arguments is None:
        arguments = {"arguments": text}
    width = limit
    while width >= 4:
        short = {key: _shorten_value(value, width, truncator) for key, value in arguments.items()}
        if truncator.text(plain_text(short)) <= limit:
            return short
        width //= 2
    short = dict[str, object]()
    for key, value in arguments.items():
        longer = {**short, key: _shorten_value(value, 4, truncator)}
        if truncator.text(plain_text(longer)) > limit:
            break
        short = longer
    return short


def _shorten_value(value: object, width: int, truncator: Truncator) -> object:
    text = plain_text(value)
    return value if truncator.text(text) <= width else truncator.truncate(text, width)


def _write_file(part: Any, item: Item, limit: int, truncator: Truncator) -> Any:
    return TextPart(content=truncator.truncate(item.text, limit))


def _write_summary(part: Any, item: Item, limit: int, truncator: Truncator) -> Any:
    """Truncate an application's own summary; a provider's is kept, because it is only valid as a whole."""
    return part if part.provider_name else _write_text(part, item, limit, truncator)


_WRITERS: dict[Kind, Callable[[Any, Item, int, Truncator], Any]] = {
    Kind.SYSTEM: _write_text,
    Kind.TEXT: _write_text,
    Kind.USER: _write_user,
    Kind.RETURN: _write_answer,
    Kind.FEEDBACK: _write_answer,
    Kind.CALL: _write_call,
    Kind.MEDIA: _write_file,
    Kind.COMPACTION: _write_summary,
}
"""Truncation by kind of part; other kinds (such as thinking and unknown parts) are kept unchanged or dropped."""


def _render_exchange(part: Any, item: Item, limit: int | None, truncator: Truncator) -> Any:
    """Render a call or an answer as one line of text, on the side of the conversation that it is on."""
    name = item.tool or "tool"
    line = call_line(name, item.text) if item.kind is Kind.CALL else outcome_line(item.text, failed=item.failed)
    text = f"[tool] {line}" if item.kind is Kind.CALL else f"[tool] {name}: {line}"
    if limit is not None:
        text = truncator.truncate(text, max(1, limit - MESSAGE_OVERHEAD))
    if item.kind is Kind.CALL or item.native:
        return TextPart(content=text)
    return UserPromptPart(content=text, timestamp=part.timestamp)


def _tool_call_stub(part: Any, item: Item, truncator: Truncator) -> tuple[Any, Item]:
    """Reduce a part to a stub; return the stub and its item."""
    if item.kind is Kind.USER and item.media:
        shown = [placeholder(piece) if is_media(piece) else piece for piece in user_content(part.content)]
        part = replace(part, content=shown) if part.part_kind == "user-prompt" else _with_text(part, item.text)
    elif item.tokens <= STUB_LIMITS.get(item.kind, item.tokens):
        return part, item
    elif item.kind is Kind.CALL:
        part = replace(part, args=_shorten_arguments(item.text, STUB_ARGUMENTS, truncator))
    elif item.kind is Kind.RETURN:
        line = outcome_line(item.text, failed=item.failed)
        part = _with_text(part, f"{line}\n[outcome only; {item.tokens:,} tokens in full{truncator.reading}]")
    else:
        part = _with_text(part, truncator.truncate(item.text, STUB_LIMITS[Kind.TEXT]))
    return part, read_part(part, truncator.counter)


def largest(items: Sequence[Item]) -> int:
    """Tokens of the largest part; 0 if there is none."""
    return max((item.tokens for item in items), default=0)


@dataclass(frozen=True, slots=True)
class Truncator:
    """Truncates texts to a number of tokens, keeping head and tail."""

    counter: TokenCounter
    ref: str = ""
    """Reference by which an agent can read the full text; empty if it cannot."""

    @property
    def reading(self) -> str:
        """Hint, for use in a marker, on how to read the full text; empty without a reference."""
        return f'; recall_read("{self.ref}") shows it' if self.ref else ""

    def text(self, text: str) -> int:
        """Number of tokens of a text."""
        return self.counter.text(text)

    def truncate(self, text: str, limit: int) -> str:
        """Shorten a text to at most `limit` tokens: its head and tail around a marker."""
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
    """Shorten a text to at most `limit` tokens, as `Truncator.truncate` does, without a reference to the full text."""
    return Truncator(counter).truncate(text, limit)
