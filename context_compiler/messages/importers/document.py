"""Files as JSON or JSONL, and the conversations in them with the format of each, detected by content.

Errors give line and column.
"""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Sequence
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


def load(data: bytes, *, file: str) -> object:
    """The value of a JSON file, or the list of the values of a JSONL file.

    Raises:
        TranscriptError: `data` is empty, not UTF-8, or not JSON.
    """
    text = _decoded(data, file)
    if not text.strip():
        raise TranscriptError("is empty; name a file that holds a transcript", file=file)
    try:
        return strict(text)
    except (ValueError, RecursionError) as error:
        lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        if len(lines) > 1 and _is_value(lines[0][1]):
            return [_line(line, number, index, file) for index, (number, line) in enumerate(lines)]
        raise TranscriptError(_why(error, text), file=file) from None


def _decoded(data: bytes, file: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        wide = data.startswith((BOM_UTF16_LE, BOM_UTF16_BE))
        found = "it looks like UTF-16" if wide else f"byte {error.start} is not UTF-8"
        raise TranscriptError(f"is not UTF-8 text ({found}); save it as UTF-8", file=file) from None


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
        return f"is not JSON: {error.literal[:40]} at {place} is no finite number; write null or a string instead"
    if isinstance(error, json.JSONDecodeError):
        nul = "; the file holds NUL bytes, is it UTF-16 or binary?" if "\0" in text else ""
        return f"is not JSON: {error.msg.removesuffix(' at')} at {_place(text, error.pos, line)}{nul}"
    return f"is not JSON that can be kept (from line {line}): a number has too many digits; write it as a string"


def _place(text: str, position: int, line: int) -> str:
    column = position - text.rfind("\n", 0, position)
    return f"line {line + text.count(chr(10), 0, position)}, column {column}"


def _position(text: str, literal: str) -> int:
    """Position of a literal outside of strings."""
    for match in re.finditer(rf'"(?:[^"\\]|\\.)*"|({re.escape(literal)})', text, re.DOTALL):
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
    "data",
)
"""Keys under which an object holds its messages, or objects that hold theirs; the first that fits counts."""

NAMES = ("id", "conversation_id", "session_id", "instance_id", "task_id")
"""Keys that name one of several conversations, where each has its own."""

_LEVELS = 4

_OPENAI_ROLES = ("system", "developer", "tool", "function")
_OPENAI_KEYS = ("tool_calls", "function_call", "tool_call_id", "refusal")
_ANTHROPIC_TOOLS = ("tool_use", "tool_result")
_ANTHROPIC_BLOCKS = ("thinking", "redacted_thinking", "image", "document")
_SWE_KEYS = ("agent", "thought", "action", "message_type", "tool_call_ids", "is_demo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Raw messages of one conversation, and the object that holds them."""

    entries: Sequence[object]
    head: Json = field(default_factory=dict[str, object])
    skipped: tuple[int, ...] = ()
    """Elements of the file beside it in which no conversation was found."""


def conversations(value: object, *, trusted: bool = False) -> list[Conversation]:
    """Every conversation in a file's value; none if its shape is unknown.

    `trusted` takes a list for a conversation even when nothing in it looks like a message.
    """
    found = _find(value, {}, _LEVELS)
    if found or not trusted:
        return found
    head = mapping(value) or {}
    lists = [value, *(head.get(key) for key in HOLDERS)]
    return [Conversation(entries=entries, head=head) for entries in map(sequence, lists) if entries][:1]


def _find(value: object, head: Json, levels: int) -> list[Conversation]:
    listed, held = sequence(value), mapping(value) or {}
    if listed is not None:
        if not listed or any(map(_is_message, listed)):
            return [Conversation(entries=listed, head=head)]
        return _each(listed, levels - 1) if levels else []
    if _is_message(held):
        return [Conversation(entries=[held])]
    found = [some for key in HOLDERS if levels and key in held for some in [_find(held[key], held, levels - 1)] if some]
    return next((some for some in found if any(one.entries for one in some)), found[0] if found else [])


def _each(listed: Sequence[object], levels: int) -> list[Conversation]:
    """The conversations in the elements of a list; the first one knows which elements hold none."""
    found = [_find(inner, {}, levels) for inner in listed]
    skipped = tuple(index for index, some in enumerate(found) if not some)
    whole = list(chain.from_iterable(found))
    return [replace(whole[0], skipped=skipped), *whole[1:]] if whole else []


def _is_message(value: object) -> bool:
    entry = mapping(value)
    if entry is None:
        return False
    if "role" in entry or "content" in entry:
        return not any(isinstance(entry.get(key), list) for key in HOLDERS)
    return _is_host(entry) or _is_entry(entry)


def _is_host(entry: Json) -> bool:
    return entry.get("kind") in ("request", "response") and "parts" in entry


def _is_entry(entry: Json) -> bool:
    """True for an entry of a coding-agent session."""
    header = entry.get("type") == "session" and "cwd" in entry
    return header or (entry.get("type") == "message" and isinstance(entry.get("message"), dict))


def detect(conversation: Conversation) -> str:
    """The format of a conversation; plain roles and texts, which two formats share, are `openai`."""
    entries = [entry for entry in map(mapping, conversation.entries) if entry is not None]
    if any(map(_is_host, entries)):
        return "pydantic-ai"
    if any(map(_is_entry, entries)):
        return "pi"
    if any(_has_block(entry, _ANTHROPIC_TOOLS) for entry in entries):
        return "anthropic"
    if any(key in entry for entry in entries for key in _SWE_KEYS):
        return "swe-agent"
    if any(entry.get("role") in _OPENAI_ROLES or any(key in entry for key in _OPENAI_KEYS) for entry in entries):
        return "openai"
    if "system" in conversation.head or any(_has_block(entry, _ANTHROPIC_BLOCKS) for entry in entries):
        return "anthropic"
    return "openai"


def _has_block(entry: Json, types: tuple[str, ...]) -> bool:
    return any((mapping(block) or {}).get("type") in types for block in sequence(entry.get("content")) or [])


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
    said = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    return said if len(said) <= 80 and said.isprintable() else ""
