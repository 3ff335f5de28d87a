"""Read message parts into `Item`s; the only module that knows the part types of Pydantic AI.

Parts are distinguished by `part_kind` rather than by class, so that newer kinds work with an older host. A part of an
unknown kind becomes an `OTHER` item, is counted by its text, and passes through unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import to_json

from context_compiler.messages.recorded import Fields, RecordedMessage
from context_compiler.tokens import TokenCounter, character_boundary, media_tokens, text_of_file

if TYPE_CHECKING:  # importing Pydantic AI is slow, and reading the record does not need it
    from pydantic_ai.messages import ModelMessage

MARK = "context_compiler"
"""Metadata key of parts that this package wrote. Users cannot set it through text."""

PIN = "pydantic-ai-harness.compaction.pin.v1"
"""Metadata of content that `pin` of the Pydantic AI harness created, which every compaction has to keep."""

MESSAGE_OVERHEAD = 4
"""Tokens of a provider's framing for each part that becomes a message of its own."""

RETRY_OVERHEAD = 12
"""Tokens of the host's wrapping around the text of a retry."""

CALL_OVERHEAD = 8
"""Tokens of the framing of one tool call: its id, type and name fields."""


SCANNED = 100_000
"""Characters searched at each end of a text."""

LARGEST = 500_000
"""Maximum characters of an item's text; of a larger part, only the beginning and the end are read."""


class Kind(StrEnum):
    """Purpose of a part, independent of host and provider."""

    SYSTEM = "system"
    USER = "user"
    TEXT = "text"
    THINKING = "thinking"
    CALL = "call"
    RETURN = "return"
    FEEDBACK = "feedback"
    """A retry prompt that answers no call."""
    MEDIA = "media"
    CONTROL = "control"
    """Bookkeeping of the host: instruction baselines, deltas, tool availability."""
    PIN = "pin"
    """Content that the application has pinned: every view contains it verbatim."""
    COMPACTION = "compaction"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One part of a message with its text and cost."""

    kind: Kind
    text: str
    """At most about `LARGEST` characters."""
    tokens: int
    """Exact tokens of the whole part as sent, including framing."""
    call_id: str | None = None
    tool: str | None = None
    native: bool = False
    """True if the provider runs this tool itself; call and return are then in the same response."""
    loads: bool = False
    """True for a capability load or tool search; the host forgets what was loaded if this part is dropped."""
    failed: bool = False
    media: int = 0
    """Tokens of images, audio, video and documents, included in `tokens`."""
    files: bool = False
    """True for a user part that contains no text except the labels that hosts put before files."""
    mark: dict[str, Any] | None = None
    """Our own metadata, if this package wrote the part."""
    scoped: bool = False
    """True for a system prompt that models read only in the request that it is part of."""
    expired: bool = False
    """True for a scoped prompt whose request has been answered: it is no longer sent, and costs nothing."""

    @property
    def stays(self) -> bool:
        """True if it survives when its message is dropped: pins, host bookkeeping, and system text of others."""
        if self.kind is Kind.SYSTEM:
            return self.mark is None and not self.expired
        return self.loads or self.kind in (Kind.CONTROL, Kind.PIN)


_LABEL = re.compile(r"This is file [^\n]{1,200}:")
_PLACEHOLDER = re.compile(r"\[[\w.+-]{1,80}(?:/[\w.+*-]{1,80})?(?: \d+ kB)?\]")

ERRORS = ("failed", "retried")
"""Outcomes whose text the host wraps in JSON, which adds tokens for every escaped character."""

LOADS = ("capability-load", "tool-search")

CONTROL_KINDS = {
    "instruction-baseline": "",
    "instruction-delta": "content",
    "tool-availability-delta": "tools_added",
    "model-settings-delta": "settings",
    "capability-load-delta": "loaded",
}
"""Bookkeeping parts of the host, each with the field that a model may read."""


def read_items(message: ModelMessage, counter: TokenCounter) -> tuple[Item, ...]:
    """Read every part of a message, as `separate_parts` returns them, into an item, in order."""
    items = tuple(read_part(part, counter) for part in separate_parts(message))
    mark = mark_of(message) if message.kind == "response" else None
    return items if mark is None else tuple(replace(item, mark=mark) for item in items)


def separate_parts(message: ModelMessage | RecordedMessage) -> Sequence[Any]:
    """Parts of a message, each text of ours that is joined with a prompt as a part of its own."""
    if not any(map(_is_joined, message.parts)):
        return message.parts
    return [piece for part in message.parts for piece in (_separate(part) if _is_joined(part) else (part,))]


def _is_joined(part: Any) -> bool:
    """True if a user part contains a text of ours, and anything else."""
    if part.part_kind != "user-prompt" or isinstance(part.content, str):
        return False
    pieces = user_content(part.content)
    return len(pieces) > 1 and any(mark_of(piece) is not None for piece in pieces)


def _separate(part: Any) -> Iterator[Any]:
    pieces = list(user_content(part.content))
    while pieces and mark_of(pieces[0]) is not None:
        # A cache point belongs to the text before it.
        stop = 2 if getattr(pieces[1] if len(pieces) > 1 else None, "kind", None) == "cache-point" else 1
        yield _with_content(part, pieces[:stop])
        pieces = pieces[stop:]
    if pieces:
        yield _with_content(part, pieces[0] if len(pieces) == 1 and isinstance(pieces[0], str) else pieces)


def _with_content(part: Any, content: object) -> Any:
    return Fields(part, content=content) if isinstance(part, Fields) else replace(part, content=content)


def read_part(part: Any, counter: TokenCounter) -> Item:
    """Read a single part into an item; a part of an unknown kind becomes `OTHER`."""
    kind = getattr(part, "part_kind", "")
    if kind in CONTROL_KINDS:
        text = plain_text(getattr(part, CONTROL_KINDS[kind], None))
        return Item(kind=Kind.CONTROL, text=text, tokens=counter.text(text) + MESSAGE_OVERHEAD)
    item = _READERS.get(kind, _other)(part, counter)
    return item if len(item.text) <= LARGEST else replace(item, text=_head_and_tail(item.text))


def _head_and_tail(text: str) -> str:
    """Beginning and end of a text longer than `LARGEST` characters."""
    tail = LARGEST * 2 // 5
    head = LARGEST - tail
    gap = f"\n[… {len(text) - LARGEST:,} characters are left out here …]\n"
    return text[: character_boundary(text, head, -1)] + gap + text[character_boundary(text, len(text) - tail, 1) :]


def _user(part: Any, counter: TokenCounter) -> Item:
    texts: list[str] = []
    media = 0
    files = True
    mark: dict[str, Any] | None = None
    kind = Kind.USER
    for piece in user_content(part.content):
        text, cost = read_piece(piece)
        kind = Kind.PIN if getattr(piece, "metadata", None) == PIN else kind
        media += cost
        files = files and (is_media(piece) or not text.strip() or _LABEL.fullmatch(text.strip()) is not None)
        texts.append(text)
        mark = mark or mark_of(piece)
    tokens = sum(map(counter.text, texts)) + media + MESSAGE_OVERHEAD
    text = "\n".join(text for text in texts if text)
    return Item(kind=kind, text=text, tokens=tokens, media=media, files=files, mark=mark)


def read_piece(piece: object) -> tuple[str, int]:
    """Text and media tokens of one piece of content."""
    if isinstance(piece, str):
        return piece, 0
    kind = getattr(piece, "kind", None)
    if kind == "cache-point":
        return "", 0
    if is_media(piece):
        return placeholder(piece), media_cost(piece)
    content = getattr(piece, "content", None)
    return (content, 0) if isinstance(content, str) else (plain_text(piece), 0)


def mark_of(thing: Any) -> dict[str, Any] | None:
    """Our own metadata on a part or a piece of content; None if this package did not write it."""
    metadata = getattr(thing, "metadata", None)
    mark: object = cast(dict[str, object], metadata).get(MARK) if isinstance(metadata, dict) else None
    return cast(dict[str, Any], mark) if isinstance(mark, dict) else None


def _return(part: Any, counter: TokenCounter) -> Item:
    content = part.content
    outcome = getattr(part, "outcome", "success")
    media = 0
    sent = content
    if not isinstance(content, str):
        media = sum(map(media_cost, sent_files(content)))
        sent = plain_text(_with_labels(content) if media else content)
        content = plain_text(without_media(content)) if _has_media(content) else sent
    sent = plain_text({"error": sent}) if outcome in ERRORS else sent
    return Item(
        kind=Kind.RETURN,
        text=content,
        tokens=counter.text(sent) + counter.text(part.tool_name) + media + MESSAGE_OVERHEAD,
        call_id=part.tool_call_id,
        tool=part.tool_name,
        native=part.part_kind.startswith("builtin"),
        loads=getattr(part, "tool_kind", None) in LOADS,
        failed=outcome not in ("success", None),
        media=media,
    )


def _retry(part: Any, counter: TokenCounter) -> Item:
    text = plain_text(part.content)
    tool = getattr(part, "tool_name", None)
    return Item(
        kind=Kind.RETURN if tool is not None else Kind.FEEDBACK,
        text=text,
        tokens=counter.text(text) + counter.text(tool or "") + MESSAGE_OVERHEAD + RETRY_OVERHEAD,
        call_id=part.tool_call_id if tool is not None else None,
        tool=tool,
        failed=True,
    )


def _call(part: Any, counter: TokenCounter) -> Item:
    text = part.args if isinstance(part.args, str) else plain_text(part.args if part.args is not None else {})
    return Item(
        kind=Kind.CALL,
        text=text,
        tokens=counter.text(text) + counter.text(part.tool_name) + CALL_OVERHEAD,
        call_id=part.tool_call_id,
        tool=part.tool_name,
        native=part.part_kind.startswith("builtin"),
        loads=getattr(part, "tool_kind", None) in LOADS,
    )


def _thinking(part: Any, counter: TokenCounter) -> Item:
    text = part.content or ""
    signature = part.signature if isinstance(part.signature, str) else ""
    return Item(kind=Kind.THINKING, text=text, tokens=counter.text(text) + counter.text(signature) + MESSAGE_OVERHEAD)


def _system(part: Any, counter: TokenCounter) -> Item:
    scoped = getattr(part, "scope", None) == "request"
    return replace(_text_reader(Kind.SYSTEM)(part, counter), scoped=scoped)


def _text_reader(kind: Kind) -> Callable[[Any, TokenCounter], Item]:
    """A reader of parts whose `content` is their text."""

    def read(part: Any, counter: TokenCounter) -> Item:
        text = plain_text(part.content)
        return Item(kind=kind, text=text, tokens=counter.text(text) + MESSAGE_OVERHEAD, mark=mark_of(part))

    return read


def _file(part: Any, counter: TokenCounter) -> Item:
    cost = media_cost(part.content)
    return Item(kind=Kind.MEDIA, text=placeholder(part.content), tokens=cost + MESSAGE_OVERHEAD, media=cost)


def _speech(part: Any, counter: TokenCounter) -> Item:
    """Read a speech part: its transcript, and the audio of a user if the host keeps it."""
    by_user = part.speaker == "user"
    sound = media_cost(part.audio) if by_user and part.audio is not None else 0
    text = part.transcript or (placeholder(part.audio) if sound else "")
    kind = Kind.USER if by_user else Kind.TEXT
    return Item(kind=kind, text=text, tokens=counter.text(text) + sound + MESSAGE_OVERHEAD, media=sound)


def _other(part: Any, counter: TokenCounter) -> Item:
    content = getattr(part, "content", None)
    text = content if isinstance(content, str) else plain_text(part)
    return Item(kind=Kind.OTHER, text=text, tokens=counter.text(text) + MESSAGE_OVERHEAD)


_READERS: dict[str, Callable[[Any, TokenCounter], Item]] = {
    "system-prompt": _system,
    "user-prompt": _user,
    "text": _text_reader(Kind.TEXT),
    "thinking": _thinking,
    "tool-call": _call,
    "builtin-tool-call": _call,
    "tool-return": _return,
    "builtin-tool-return": _return,
    "retry-prompt": _retry,
    "retry-feedback": _retry,
    "compaction": _text_reader(Kind.COMPACTION),
    "file": _file,
    "speech": _speech,
}


def parse_arguments(text: str) -> dict[str, object] | None:
    """Parse tool arguments from JSON text; None if they are not a JSON object."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return cast(dict[str, object], value) if isinstance(value, dict) else None


def user_content(content: object) -> Sequence[object]:
    """Pieces of a user prompt; a plain string is one piece."""
    if isinstance(content, str) or not isinstance(content, Sequence):
        return (content,)
    return cast(Sequence[object], content)


_MEDIA_KINDS = {
    "image-url": "image",
    "audio-url": "audio",
    "document-url": "application/pdf",
    "video-url": "video",
    "binary": "",
    "uploaded-file": "application/pdf",
}


def is_media(thing: object) -> bool:
    """True for an image, audio, video, document or other file, given as bytes, URL or upload."""
    return getattr(thing, "kind", None) in _MEDIA_KINDS


def media_type(thing: Any) -> str:
    """MIME type of a medium, or a guess from its kind."""
    kind = str(getattr(thing, "kind", ""))
    if kind != "binary" and not getattr(thing, "_media_type", None):
        return _MEDIA_KINDS.get(kind) or "application/octet-stream"
    return str(getattr(thing, "media_type", None) or "application/octet-stream")


def media_cost(thing: Any) -> int:
    """Cost of a medium in tokens."""
    return media_tokens(media_type(thing), _data(thing))


def placeholder(thing: Any) -> str:
    """Text label that replaces a medium."""
    data = _data(thing)
    size = "" if data is None else f" {max(1, len(data) // 1024)} kB"
    return f"[{media_type(thing)}{size}]"


def as_text(thing: Any) -> str:
    """Text that replaces a medium: that of a text file, or a label."""
    return text_of_file(media_type(thing), _data(thing)) or placeholder(thing)


def _data(thing: Any) -> bytes | None:
    data = getattr(thing, "data", None)
    return data if isinstance(data, bytes) else None


def without_files(item: Item) -> str:
    """Text of a user part without the placeholders of its files and the labels before them."""
    if not item.media:
        return item.text
    lines = item.text.split("\n")
    return "\n".join(line for line in lines if not (_PLACEHOLDER.fullmatch(line) or _LABEL.fullmatch(line.strip())))


def sent_files(content: object) -> list[object]:
    """Media in the result of a tool that the host sends as files: the result itself, or items of a list.

    All others are sent as text, with their bytes in base64.
    """
    values = cast(list[object], content) if isinstance(content, list) else [content]
    return [value for value in values if is_media(value)]


def _with_labels(content: object) -> object:
    """The result of a tool with a label for each of its `sent_files`."""
    if isinstance(content, list):
        return [placeholder(value) if is_media(value) else value for value in cast(list[object], content)]
    return placeholder(content) if is_media(content) else content


def _has_media(content: object) -> bool:
    """True if the result of a tool contains a medium, at any depth."""
    if is_media(content):
        return True
    if isinstance(content, dict):
        return any(map(_has_media, cast(dict[object, object], content).values()))
    return isinstance(content, list | tuple) and any(map(_has_media, cast(Sequence[object], content)))


def without_media(content: object) -> object:
    """Copy content with every medium replaced by its placeholder, at any depth."""
    if is_media(content):
        return placeholder(content)
    if isinstance(content, dict):
        return {key: without_media(value) for key, value in cast(dict[object, object], content).items()}
    if isinstance(content, list | tuple):
        return [without_media(value) for value in cast(Sequence[object], content)]
    return content


def plain_text(content: object) -> str:
    """Render any content as the text that a model would read; values without a text form become a type label."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    try:
        return to_json(content, fallback=type_label, bytes_mode="base64", inf_nan_mode="constants").decode()
    except (ValueError, TypeError, RecursionError):  # a lone surrogate, a reference cycle, or deep nesting
        with suppress(ValueError, TypeError, RecursionError):
            return json.dumps(content, default=type_label, ensure_ascii=False, skipkeys=True, separators=(",", ":"))
        return type_label(content)


def type_label(value: object) -> str:
    """Type label for a value without a text form."""
    return f"<{type(value).__qualname__}>"
