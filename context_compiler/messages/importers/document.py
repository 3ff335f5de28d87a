"""Parse JSON and JSONL files, and find the lists of messages in them. Errors give line and column."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import isinf

from context_compiler.errors import TranscriptError
from context_compiler.messages.importers.draft import Json, mapping, sequence
from context_compiler.paths import decode_text


class _NotFinite(ValueError):
    """A number literal, its message, that standard JSON cannot represent: NaN, an infinity, or one that overflows."""


def _refuse(literal: str) -> object:
    raise _NotFinite(literal)


def _finite(literal: str) -> float:
    value = float(literal)
    if isinf(value):
        raise _NotFinite(literal)
    return value


_STRICT = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)


def parse_json(text: str) -> object:
    """Parse one JSON value; refuse NaN, infinities and numbers that overflow.

    Raises:
        ValueError: The text is not such a value.
        RecursionError: The value is nested too deeply.
    """
    return _STRICT.decode(text)


def load(text: str, *, file: str) -> object:
    """Parse a JSON file into its value, or a JSONL file into the list of its values.

    Raises:
        TranscriptError: The text is neither JSON nor JSONL.
    """
    try:
        return parse_json(text)
    except (ValueError, RecursionError) as error:
        lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        if len(lines) > 1 and _is_value(lines[0][1]):
            return [_parse_line(line, number, index, file) for index, (number, line) in enumerate(lines)]
        raise TranscriptError(_explain(error, text), file=file) from None


def decode(data: bytes, *, file: str) -> str:
    """Decode the content of a file.

    Raises:
        TranscriptError: The file is empty or not text.
    """
    try:
        text = decode_text(data)
    except UnicodeDecodeError as error:
        bad_byte = f"byte {error.start} is not {error.encoding.upper()}"
        raise TranscriptError(f"is not UTF-8 text ({bad_byte}); save it as UTF-8", file=file) from None
    if not text.strip():
        raise TranscriptError("is empty; name a file that contains a transcript", file=file)
    return text


def _is_value(line: str) -> bool:
    try:
        parse_json(line)
    except (ValueError, RecursionError):
        return False
    return True


def _parse_line(line: str, number: int, index: int, file: str) -> object:
    try:
        return parse_json(line)
    except (ValueError, RecursionError) as error:
        raise TranscriptError(_explain(error, line, number), file=file, index=index) from None


def _explain(error: Exception, text: str, line: int = 1) -> str:
    """Explain, with line and column, why a text that starts at `line` is not JSON."""
    if isinstance(error, RecursionError):
        return f"is nested too deeply to be read (line {line}); no transcript needs that"
    if isinstance(error, _NotFinite):
        literal = str(error)
        position = _place(text, _position(text, literal), line)
        return f"is not JSON: {literal[:40]} at {position} is not a finite number; write null or a string instead"
    if isinstance(error, json.JSONDecodeError):
        nul = "; the file contains NUL bytes, is it UTF-16 or binary?" if "\0" in text else ""
        if not nul and line == 1 and text.lstrip()[:1] not in ("{", "["):
            return "is neither JSON nor a text in which lines such as `User:` and `Assistant:` name the speakers"
        return f"is not JSON: {error.msg.removesuffix(' at')} at {_place(text, error.pos, line)}{nul}"
    return f"is not JSON that can be stored (from line {line}): a number has too many digits; write it as a string"


def _place(text: str, position: int, line: int) -> str:
    column = position - text.rfind("\n", 0, position)
    return f"line {line + text.count(chr(10), 0, position)}, column {column}"


def _position(text: str, literal: str) -> int:
    """Position of the first occurrence of a literal outside strings; 0 if there is none."""
    for match in re.finditer(rf'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|({re.escape(literal)})', text, re.DOTALL):
        if match.group(1) is not None:
            return match.start(1)
    return 0


HOLDERS = tuple(
    "messages all_messages history traj trajectory conversation conversations transcript transcripts dialogue"
    " chat_messages events items input output data".split()
)
"""Keys under which an object contains messages, or objects with messages; the first key that fits is used."""

NAMES = ("id", "conversation_id", "session_id", "instance_id", "task_id", "uuid")
"""Keys that may name a conversation; a key is used if its values differ for all conversations of a file."""

_LEVELS = 4
"""Maximum levels of nesting to search for messages."""

NODES = "mapping"
"""Key under which an object contains its messages as nodes of a tree, by id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Raw messages of one conversation, and the object that contains them."""

    entries: Sequence[object]
    head: Json = field(default_factory=dict[str, object])
    skipped: tuple[int, ...] = ()
    """Indexes of other elements of the file in which no conversation was found."""


def conversations(value: object, is_message: Callable[[Json], bool], *, trusted: bool = False) -> list[Conversation]:
    """Find every conversation in the value of a file; none if its structure is unknown.

    Args:
        value: The value of the file.
        is_message: Predicate that is true for a message in any known format.
        trusted: Accept a list as a conversation even if nothing in it looks like a message.
    """
    matches = _find(value, {}, is_message, _LEVELS)
    if matches or not trusted:
        return matches
    head = mapping(value) or {}
    lists = [value, *(head.get(key) for key in HOLDERS)]
    return [Conversation(entries=entries, head=head) for entries in map(sequence, lists) if entries][:1]


def _find(value: object, head: Json, is_message: Callable[[Json], bool], levels: int) -> list[Conversation]:
    listed, fields = sequence(value), mapping(value) or {}
    if listed is not None:
        if not listed or any(is_message(entry) for entry in map(mapping, listed) if entry is not None):
            return [Conversation(entries=listed, head=head)]
        return _find_in_elements(listed, is_message, levels - 1) if levels else []
    nodes = mapping(fields.get(NODES))
    if nodes is not None:
        return [Conversation(entries=list(nodes.values()), head=fields)]
    if is_message(fields):
        return [Conversation(entries=[fields])]
    results = (_find(fields[key], fields, is_message, levels - 1) for key in HOLDERS if levels and key in fields)
    candidates = [some for some in results if some]
    return next(
        (some for some in candidates if any(conversation.entries for conversation in some)),
        candidates[0] if candidates else [],
    )


def _find_in_elements(listed: Sequence[object], is_message: Callable[[Json], bool], levels: int) -> list[Conversation]:
    """Find the conversations in the elements of a list; the first one has the elements without any as `skipped`."""
    by_element = [_find(inner, {}, is_message, levels) for inner in listed]
    skipped = tuple(index for index, some in enumerate(by_element) if not some)
    whole = list(chain.from_iterable(by_element))
    return [replace(whole[0], skipped=skipped), *whole[1:]] if whole else []


def conversation_names(found_conversations: Sequence[Conversation], stem: str) -> list[str]:
    """Name each conversation: by its title if it is a tree of nodes, else the stem of the file.

    An id or index follows the title if several conversations share it, and the stem if there are several conversations.
    """
    titles = [
        _name_from(conversation.head.get("title") if NODES in conversation.head else None)
        for conversation in found_conversations
    ]
    return [
        title
        if titles.count(title) == 1 and title
        else f"{title or stem}#{id}"
        if len(found_conversations) > 1
        else stem
        for title, id in zip(titles, _ids(found_conversations), strict=True)
    ]


def _ids(found_conversations: Sequence[Conversation]) -> list[str]:
    """Different ids of all conversations: from the first key of `NAMES` that gives them, else their indexes."""
    for key in NAMES:
        ids = [_name_from(conversation.head.get(key)) for conversation in found_conversations]
        if all(ids) and len(set(ids)) == len(ids):
            return ids
    return [str(index) for index in range(len(found_conversations))]


def _name_from(value: object) -> str:
    """Text of an id that can be part of a name; empty if it cannot."""
    name = " ".join(str(value).split()) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    return name if len(name) <= 80 and name.isprintable() else ""
