"""LangChain messages as written by `dumps`, `messages_to_dict` or `model_dump`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from context_compiler.messages.importers import openai_chat
from context_compiler.messages.importers.content import answer, call, response_parts, system
from context_compiler.messages.importers.draft import Draft, Json, kind, mapping, sequence, text, time_of

_TYPES = {
    **dict.fromkeys(("human", "HumanMessage", "HumanMessageChunk"), "user"),
    **dict.fromkeys(("ai", "AIMessage", "AIMessageChunk"), "assistant"),
    **dict.fromkeys(("system", "SystemMessage"), "system"),
    **dict.fromkeys(("tool", "function", "ToolMessage", "FunctionMessage"), "tool"),
}
"""Message types by type name and by class name, with their roles."""

_CALLS = ("tool_calls", "invalid_tool_calls")
"""Keys of the calls that LangChain parsed."""


def matches(entry: Json) -> bool:
    """True for a dumped LangChain message."""
    return _body(entry) is not None


def _body(entry: Json) -> tuple[str, Json] | None:
    """Type and fields of a message; None if the entry is not a message."""
    if entry.get("lc") == 1 and entry.get("type") == "constructor":
        path, fields = sequence(entry.get("id")) or [""], mapping(entry.get("kwargs"))
        name = str(path[-1]) if fields is not None else ""
        return (name, fields) if fields is not None and name.endswith(("Message", "Chunk")) else None
    name, fields = entry.get("type"), mapping(entry.get("data"))
    if not isinstance(name, str) or "role" in entry or (name not in _TYPES and name != "chat"):
        return None
    if fields is not None and "content" in fields:
        return name, fields
    return (name, entry) if "content" in entry else None


def read(draft: Draft, entries: Sequence[object], head: Json) -> None:
    """Read messages, oldest first."""
    for value in draft.each(entries):
        body = _body(mapping(value) or {})
        if body is None:
            raise draft.error(f"a message is {kind(value)}; it must be an object with a type and its fields")
        name, fields = body
        role = _TYPES.get(name) or text(fields.get("role")) or name
        openai_chat.read_role(draft, {**fields, "role": _TYPES.get(role, role)}, _ROLES)


def _assistant(draft: Draft, message: Json) -> None:
    """Add text and the calls that LangChain parsed; the provider's blocks that repeat the calls are left out."""
    listed = [mapping(value) or {} for key in _CALLS for value in sequence(message.get(key)) or []]
    if not listed:
        rest = {key: value for key, value in message.items() if key not in _CALLS}
        openai_chat.assistant(draft, {**(mapping(message.get("additional_kwargs")) or {}), **rest})
        return
    content = message.get("content")
    blocks = sequence(content)
    if blocks is not None:
        content = [block for block in blocks if (mapping(block) or {}).get("type") not in ("tool_use", "function_call")]
    parts = response_parts(draft, content)
    for fields in listed:
        parts.append(call(draft, fields.get("name"), fields.get("args"), call_id=fields.get("id"), position=len(parts)))
    draft.respond(parts, time=time_of(message))


def _tool(draft: Draft, message: Json) -> None:
    failed = message.get("status") == "error"
    answer(draft, message, message.get("tool_call_id"), message.get("name"), failed=failed)


_ROLES: dict[str, Callable[[Draft, Json], None]] = {
    "system": system,
    "developer": system,
    "user": openai_chat.user,
    "assistant": _assistant,
    "tool": _tool,
}
