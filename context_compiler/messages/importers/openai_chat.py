"""OpenAI chat messages with the roles system, developer, user, assistant, tool, and the older function."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pydantic_ai.messages import ModelResponsePart, TextPart, ThinkingPart, ToolCallPart

from context_compiler.messages.importers.content import answer, call, prompt, response_parts, system
from context_compiler.messages.importers.document import HOLDERS
from context_compiler.messages.importers.draft import Draft, Json, kind, mapping, sequence, text, time_of

_OWN_ROLES = ("system", "developer", "tool", "function")
_OWN_KEYS = ("tool_calls", "function_call", "tool_call_id", "refusal")


def is_message(entry: Json) -> bool:
    """True for an object with a role or content and without a list under a key that may contain a conversation."""
    return ("role" in entry or "content" in entry) and not any(isinstance(entry.get(key), list) for key in HOLDERS)


def matches(entry: Json) -> bool:
    """True for a message with a role or key that only this format has."""
    return entry.get("role") in _OWN_ROLES or any(key in entry for key in _OWN_KEYS)


def read(draft: Draft, entries: Sequence[object], head: Json) -> None:
    """Read chat messages, oldest first."""
    for entry in draft.each(entries):
        read_role(draft, entry, ROLES)


def read_role(draft: Draft, entry: object, roles: dict[str, Callable[[Draft, Json], None]]) -> None:
    """Read one message by its role.

    Raises:
        TranscriptError: The message is not an object, or its role is missing or unknown.
    """
    message = mapping(entry)
    if message is None:
        raise draft.error(f"a message is {kind(entry)}; it must be an object with a role")
    role = message.get("role")
    if role is None:
        raise draft.error(f"a message has no role; use one of {', '.join(roles)}")
    reader = roles.get(role) if isinstance(role, str) else None
    if reader is None:
        raise draft.error(f"unknown role {str(role)[:40]!r}; use one of {', '.join(roles)}")
    reader(draft, message)


def user(draft: Draft, entry: Json) -> None:
    """Add a user message to a new request, or to the one that system messages before it began."""
    draft.request([prompt(draft, entry.get("content"), entry)], time=time_of(entry))


def assistant(draft: Draft, entry: Json) -> None:
    """Add an assistant message as a response: reasoning, text, refusal and calls."""
    thought = text(entry.get("reasoning_content"))
    parts: list[ModelResponsePart] = [ThinkingPart(content=thought)] if thought else []
    parts += response_parts(draft, entry.get("content"))
    refusal = text(entry.get("refusal"))
    if refusal:
        draft.note("refusal kept as text")
        parts.append(TextPart(content=refusal))
    parts += _calls(draft, entry, len(parts))
    draft.respond(parts, time=time_of(entry))


def _calls(draft: Draft, entry: Json, first: int) -> list[ToolCallPart]:
    value = entry.get("tool_calls")
    listed = [] if value is None else sequence(value)
    if listed is None:
        raise draft.error(f"tool_calls is {kind(value)}; it must be a list")
    calls: list[tuple[object, object, object]] = []
    for value in listed:
        wrapper = mapping(value) or {}
        function = mapping(wrapper.get("function")) or mapping(wrapper.get("custom")) or {}
        arguments = function.get("arguments") if "arguments" in function else function.get("input")
        calls.append((function.get("name"), arguments, wrapper.get("id")))
    legacy = mapping(entry.get("function_call"))
    if legacy is not None:
        calls.append((legacy.get("name"), legacy.get("arguments"), None))
    numbered = enumerate(calls, first)
    return [call(draft, name, args, call_id=id, position=position) for position, (name, args, id) in numbered]


def tool(draft: Draft, entry: Json) -> None:
    """Add a tool message as the answer to a call; consecutive ones share a request."""
    answer(draft, entry, entry.get("tool_call_id"), text(entry.get("name")) or entry.get("tool_name"))


ROLES: dict[str, Callable[[Draft, Json], None]] = {
    "system": system,
    "developer": system,
    "user": user,
    "assistant": assistant,
    "tool": tool,
    "function": tool,
}
