"""Anthropic messages: a system text, and user and assistant messages whose blocks include tool calls and results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from pydantic_ai.messages import ModelRequestPart

from context_compiler.messages.importers.content import blocks, prompt, response_parts, result_content, system
from context_compiler.messages.importers.draft import Draft, Json, mapping, sequence, text, time_of
from context_compiler.messages.importers.openai_chat import read_role

_TOOLS = ("tool_use", "tool_result")
_BLOCKS = ("thinking", "redacted_thinking", "image", "document")


def matches(entry: Json) -> bool:
    """True for a message with a tool call or a tool result."""
    return "role" in entry and has_block(entry, _TOOLS)


def may_match(entry: Json) -> bool:
    """True for a message with a thinking or media block, which other formats may contain too."""
    return has_block(entry, _BLOCKS)


def has_block(entry: Json, types: tuple[str, ...]) -> bool:
    """True for a message with a block of one of these types."""
    return any((mapping(block) or {}).get("type") in types for block in sequence(entry.get("content")) or [])


def read(draft: Draft, entries: Sequence[object], head: Json) -> None:
    """Read the system text of the object that contains the messages, then the messages, oldest first."""
    if head.get("system"):
        system(draft, {"content": head["system"]})
    for entry in draft.each(entries):
        read_role(draft, entry, ROLES)


def user(draft: Draft, entry: Json) -> None:
    """Add a user message: its tool results and texts become parts of one request, in order."""
    content = blocks(draft, entry.get("content"))
    parts: list[ModelRequestPart] = []
    for results, group in groupby(content or [""], key=is_result):
        if results:
            parts += [result(draft, mapping(block) or {}, entry) for block in group]
        else:
            parts.append(prompt(draft, list(group) if content else None, entry))
    draft.request(parts, time=time_of(entry))


def is_result(block: object) -> bool:
    """True for a block with the result of a tool."""
    return (mapping(block) or {}).get("type") == "tool_result"


def result(draft: Draft, block: Json, entry: Json, *, name: str | None = None) -> ModelRequestPart:
    """Build the result of a tool from its block."""
    return draft.result(
        result_content(draft, block.get("content")),
        call_id=text(block.get("tool_use_id")),
        name=name,
        failed=block.get("is_error") is True,
        time=time_of(entry),
    )


def assistant(draft: Draft, entry: Json) -> None:
    """Add an assistant message as a response."""
    draft.respond(response_parts(draft, entry.get("content"), provider="anthropic"), time=time_of(entry))


ROLES: dict[str, Callable[[Draft, Json], None]] = {"user": user, "assistant": assistant, "system": system}
