"""Files as JSON or JSONL, and the lists of messages in them. Errors give line and column."""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import isinf

from context_compiler.errors import TranscriptError
from context_compiler.messages.importers.draft import Json, mapping, sequence


class _Unkeepable(ValueError):
    """A literal that no JSON can keep."""

    def __init__(self, literal: str) -> None:
        super().__init__(literal)
        self.literal = literal


def _refuse(literal: str) -> object:
    raise _Unkeepable(literal)


def _finite(literal: str) -> float:
    value = float(literal)
    if isinf(value):
        raise _Unkeepable(literal)
    return value


_STRICT = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)


def strict(text: str) -> object:
    """One JSON value, without NaN, infinities or numbers beyond what can be kept.

    Raises:
        ValueError: it is not such a value.
        RecursionError: it is nested too deeply.
    """
    return _STRICT.decode(text)


def load(text: str, *, file: str) -> object:
    """The value of a JSON file, or the list of the values of a JSONL file.

    Raises:
        TranscriptError: `text` is not JSON.
    """
    try:
        return strict(text)
    except (ValueError, RecursionError) as error:
        lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        if len(lines) > 1 and _is_value(lines[0][1]):
            return [_line(line, number, index, file) for index, (number, line) in enumerate(lines)]
        raise TranscriptError(_why(error, text), file=file) from None


def decode(data: bytes, *, file: str) -> str:
    """Text of a file.

    Raises:
        TranscriptError: it is empty or not UTF-8.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        wide = data.startswith((BOM_UTF16_LE, BOM_UTF16_BE))
        found = "it looks like UTF-16" if wide else f"byte {error.start} is not UTF-8"
        raise TranscriptError(f"is not UTF-8 text ({found}); save it as UTF-8", file=file) from None
    if not text.strip():
        raise TranscriptError("is empty; name a file that holds a transcript", file=file)
    return text


def _is_value(line: str) -> bool:
    try:
        strict(line)
    except (ValueError, RecursionError):
        return False
    return True


def _line(line: str, number: int, index: int, file: str) -> object:
    try:
        return strict(line)
    except (ValueError, RecursionError) as error:
        raise TranscriptError(_why(error, line, number), file=file, index=index) from None


def _why(error: Exception, text: str, line: int = 1) -> str:
    """Error message with line and column for a text that starts at `line`."""
    if isinstance(error, RecursionError):
        return f"is nested too deeply to be read (line {line}); no transcript needs that"
    if isinstance(error, _Unkeepable):
        place = _place(text, _position(text, error.literal), line)
        return f"is not JSON: {error.literal[:40]} at {place} is not a finite number; write null or a string instead"
    if isinstance(error, json.JSONDecodeError):
        nul = "; the file holds NUL bytes, is it UTF-16 or binary?" if "\0" in text else ""
        if not nul and line == 1 and text.lstrip()[:1] not in ("{", "["):
            return "is neither JSON nor a text in which lines such as `User:` and `Assistant:` name the speakers"
        return f"is not JSON: {error.msg.removesuffix(' at')} at {_place(text, error.pos, line)}{nul}"
    return f"is not JSON that can be kept (from line {line}): a number has too many digits; write it as a string"


def _place(text: str, position: int, line: int) -> str:
    column = position - text.rfind("\n", 0, position)
    return f"line {line + text.count(chr(10), 0, position)}, column {column}"


def _position(text: str, literal: str) -> int:
    """Position of a literal outside of strings."""
    for match in re.finditer(rf'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|({re.escape(literal)})', text, re.DOTALL):
        if match.group(1) is not None:
            return match.start(1)
    return 0


HOLDERS = (
    "messages",
    "all_messages",
    "history",
    "traj",
    "trajectory",
    "conversation",
    "conversations",
    "transcript",
    "transcripts",
    "dialogue",
    "chat_messages",
    "events",
    "items",
    "input",
    "output",
    "data",
)
"""Keys under which an object holds its messages, or objects that hold theirs; the first that fits counts."""

NAMES = ("id", "conversation_id", "session_id", "instance_id", "task_id", "uuid")
"""Keys that name one of several conversations, where each has its own."""

_LEVELS = 4

NODES = "mapping"
"""Key of an object whose messages are nodes of a tree, by id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Raw messages of one conversation, and the object that holds them."""

    entries: Sequence[object]
    head: Json = field(default_factory=dict[str, object])
    skipped: tuple[int, ...] = ()
    """Elements of the file beside it in which no conversation was found."""


def conversations(value: object, is_message: Callable[[Json], bool], *, trusted: bool = False) -> list[Conversation]:
    """Every conversation in a file's value; none if its shape is unknown.

    Args:
        value: The value of the file.
        is_message: True for an entry of a conversation in any known format.
        trusted: Take a list for a conversation even when nothing in it looks like a message.
    """
    found = _find(value, {}, is_message, _LEVELS)
    if found or not trusted:
        return found
    head = mapping(value) or {}
    lists = [value, *(head.get(key) for key in HOLDERS)]
    return [Conversation(entries=entries, head=head) for entries in map(sequence, lists) if entries][:1]


def _find(value: object, head: Json, is_message: Callable[[Json], bool], levels: int) -> list[Conversation]:
    listed, held = sequence(value), mapping(value) or {}
    if listed is not None:
        if not listed or any(is_message(entry) for entry in map(mapping, listed) if entry is not None):
            return [Conversation(entries=listed, head=head)]
        return _each(listed, is_message, levels - 1) if levels else []
    nodes = mapping(held.get(NODES))
    if nodes is not None:
        return [Conversation(entries=list(nodes.values()), head=held)]
    if is_message(held):
        return [Conversation(entries=[held])]
    found = [
        some
        for key in HOLDERS
        if levels and key in held
        for some in [_find(held[key], held, is_message, levels - 1)]
        if some
    ]
    return next((some for some in found if any(one.entries for one in some)), found[0] if found else [])


def _each(listed: Sequence[object], is_message: Callable[[Json], bool], levels: int) -> list[Conversation]:
    """The conversations in the elements of a list; the first one knows which elements hold none."""
    found = [_find(inner, {}, is_message, levels) for inner in listed]
    skipped = tuple(index for index, some in enumerate(found) if not some)
    whole = list(chain.from_iterable(found))
    return [replace(whole[0], skipped=skipped), *whole[1:]] if whole else []


def names(found: Sequence[Conversation], stem: str) -> list[str]:
    """A name for each conversation: the stem, or the stem and what tells them apart."""
    if len(found) == 1:
        return [stem]
    for key in NAMES:
        ids = [_id(conversation.head.get(key)) for conversation in found]
        if all(ids) and len(set(ids)) == len(ids):
            return [f"{stem}#{id}" for id in ids]
    return [f"{stem}#{index}" for index in range(len(found))]


def _id(value: object) -> str:
    name = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    return name if len(name) <= 80 and name.isprintable() else ""
