"""Where the conversations of a file are, and which format each has, both read off the content."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from context_compiler.messages.importers.shape import Json, mapping, sequence

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
    """The messages of one conversation as they stand in the file, and the object that holds them."""

    entries: Sequence[object]
    head: Json = field(default_factory=dict[str, object])
    skipped: tuple[int, ...] = ()
    """Elements of the file beside it in which no conversation was found."""


def conversations(value: object, *, trusted: bool = False) -> list[Conversation]:
    """Every conversation in a file's value; none when nobody knows its shape.

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
    """Whether it is an entry of a coding-agent session."""
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
