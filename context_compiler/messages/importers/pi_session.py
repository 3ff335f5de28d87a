"""Sessions of the coding agent pi as JSONL: a header, then entries; those of type `message` are the conversation.

Newer sessions are trees; only the branch that leads to the last entry is read. Compaction entries are skipped, because
they are not part of the original conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from pydantic_ai.usage import RequestUsage

from context_compiler.messages.importers.content import answer, response_parts
from context_compiler.messages.importers.draft import Draft, Json, kind, mapping, text, time_of
from context_compiler.messages.importers.openai_chat import read_role, user

_FINISH: dict[object, Literal["stop", "length", "tool_call", "error"]] = {
    "stop": "stop",
    "length": "length",
    "toolUse": "tool_call",
    "error": "error",
}

_CUT_OFF = ("aborted", "error")


def matches(entry: Json) -> bool:
    """True for an entry of a session."""
    header = entry.get("type") == "session" and "cwd" in entry
    return header or (entry.get("type") == "message" and isinstance(entry.get("message"), dict))


def read(draft: Draft, entries: Sequence[object], head: Json) -> None:
    """Read the entries of the last branch, oldest first."""
    for entry in draft.objects(entries, "an entry", "a type", _branch(draft, entries)):
        if entry.get("type") == "message":
            message = mapping(entry.get("message"))
            if message is None:
                raise draft.error(f"the message of an entry is {kind(entry.get('message'))}; it must be an object")
            read_role(draft, {"timestamp": entry.get("timestamp"), **message}, _ROLES)
        elif entry.get("type") in _INSERTS:
            _add_inserted(draft, entry)
        elif entry.get("type") != "session":
            draft.note(f"skipped entry of type {str(entry.get('type'))[:40]!r}")


def _branch(draft: Draft, entries: Sequence[object]) -> list[int]:
    """Positions of the entries to read: in a tree, from its root to its last entry; in a plain session, all of them."""
    nodes = [mapping(entry) or {} for entry in entries]
    ids = {str(id): index for index, node in enumerate(nodes) if (id := node.get("id")) is not None}
    tree = [index for index, node in enumerate(nodes) if "parentId" in node]
    if not tree:
        return list(range(len(entries)))
    path: set[int] = set()
    position: int | None = tree[-1]
    while position is not None and position not in path:
        path.add(position)
        parent = nodes[position].get("parentId")
        position = None if parent is None else ids.get(str(parent), position - 1 if position else None)
    left_out = set(tree) - path
    for position in sorted(left_out):
        draft.note("left out an entry of another branch", position)
    return [position for position in range(len(entries)) if position not in left_out]


def _assistant(draft: Draft, message: Json) -> None:
    """Add a response with its usage, model and finish reason; one that was cut off is kept as far as it got."""
    provider, stop = text(message.get("provider")), message.get("stopReason")
    response = draft.respond(response_parts(draft, message.get("content"), provider=provider), time=time_of(message))
    response.usage = _usage(mapping(message.get("usage")) or {})
    response.provider_name = provider
    response.model_name = text(message.get("model"))
    response.finish_reason = _FINISH.get(stop) if isinstance(stop, str) else None
    if stop in _CUT_OFF:
        response.state = "interrupted"
        reason = text(message.get("errorMessage")) or "no reason given"
        draft.note(f"response {stop}, {reason[:80]!r}")


def _usage(usage: Json) -> RequestUsage:
    """Usage as the host counts it: tokens read from or written to a cache are part of the input."""
    read, written = _count(usage, "cacheRead"), _count(usage, "cacheWrite")
    return RequestUsage(
        input_tokens=_count(usage, "input") + read + written,
        output_tokens=_count(usage, "output"),
        cache_read_tokens=read,
        cache_write_tokens=written,
    )


def _count(usage: Json, key: str) -> int:
    value = usage.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**48 else 0


def _tool_result(draft: Draft, message: Json) -> None:
    failed = message.get("isError") is True
    answer(draft, message, message.get("toolCallId"), message.get("toolName"), failed=failed)


def _command(draft: Draft, message: Json) -> None:
    """Add a command that the user ran; the model saw it as a user message."""
    if message.get("excludeFromContext") is True:
        draft.note("skipped a command kept from the model")
        return
    draft.note("command run by the user, kept as a user message")
    code = message.get("exitCode")
    content = f"Ran `{text(message.get('command')) or ''}`\n```\n{text(message.get('output')) or ''}\n```"
    ended = f"\nexit code {code}" if isinstance(code, int) and code else ""
    user(draft, {**message, "content": content + ended})


def _add_inserted(draft: Draft, message: Json) -> None:
    """Add a message inserted by an extension, or the summary of another branch."""
    draft.note("inserted message kept as a user message")
    user(draft, {**message, "content": message.get("content", message.get("summary"))})


_ROLES: dict[str, Callable[[Draft, Json], None]] = {
    "user": user,
    "assistant": _assistant,
    "toolResult": _tool_result,
    "bashExecution": _command,
    "custom": _add_inserted,
    "hookMessage": _add_inserted,
    "branchSummary": _add_inserted,
    "compactionSummary": lambda draft, message: draft.note("skipped entry of type 'compactionSummary'"),
}

_INSERTS = ("custom_message", "branch_summary")
"""Types of other entries that the model saw."""
