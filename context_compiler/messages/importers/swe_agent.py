"""SWE-agent trajectories: the `history` of a run, in which a tool result may be a user message."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from context_compiler.messages.importers import openai_chat
from context_compiler.messages.importers.draft import Draft, Json, sequence, text

_OWN_KEYS = ("agent", "thought", "action", "message_type", "tool_call_ids", "is_demo")


def matches(entry: Json) -> bool:
    """True for a message with a key of an agent's step."""
    return any(key in entry for key in _OWN_KEYS)


def read(draft: Draft, entries: Sequence[object], head: Json) -> None:
    """Read a history, oldest first; demonstrations are part of it."""
    for entry in draft.each(entries):
        openai_chat.read_role(draft, entry, _ROLES)


def _user(draft: Draft, entry: Json) -> None:
    if entry.get("is_demo"):
        draft.note("demonstration")
    openai_chat.user(draft, entry)


def _assistant(draft: Draft, entry: Json) -> None:
    """Add a response; if its content is missing, thought and action, which were parsed from it, replace it."""
    content = entry.get("content")
    if content in (None, "", []):
        content, action = text(entry.get("thought")) or "", text(entry.get("action"))
        if action and not entry.get("tool_calls"):
            content = f"{content}\n```\n{action}\n```".strip()
    thinking = sequence(entry.get("thinking_blocks")) or []
    if thinking:
        content = [*thinking, *([content] if isinstance(content, str) else sequence(content) or [])]
    openai_chat.assistant(draft, {**entry, "content": content})


def _tool(draft: Draft, entry: Json) -> None:
    ids = sequence(entry.get("tool_call_ids")) or []
    if len(ids) > 1:
        draft.note("one tool message for several calls, taken for the first")
    openai_chat.tool(draft, {"tool_call_id": ids[0] if ids else None, **entry})


_ROLES: dict[str, Callable[[Draft, Json], None]] = {
    **openai_chat.ROLES,
    "user": _user,
    "assistant": _assistant,
    "tool": _tool,
}
