"""Claude Code sessions as JSONL: a tree of entries whose last branch is the conversation.

A response with several blocks is written as several entries with the same message id. Results of parallel calls are
children of the entry with their call; they, and other entries of their response, may lie beside the last branch but
belong to it. Compaction summaries and entries of subagents are left out, because they are not part of the original
conversation.
"""

from __future__ import annotations

from collections.abc import Sequence

from context_compiler.messages.importers.anthropic_messages import has_block, user
from context_compiler.messages.importers.content import response_parts
from context_compiler.messages.importers.draft import Draft, Json, mapping, text, time_of
from context_compiler.messages.importers.openai_chat import read_role

_SPEAKERS = ("user", "assistant")


def matches(entry: Json) -> bool:
    """True for an entry of a session."""
    speaks = entry.get("type") in _SPEAKERS and isinstance(entry.get("message"), dict)
    return speaks or ("sessionId" in entry and isinstance(entry.get("type"), str) and "role" not in entry)


def read(draft: Draft, entries: Sequence[object], head: Json) -> None:
    """Read the entries of the last branch, oldest first."""
    last_id: str | None = None

    def assistant(draft: Draft, message: Json) -> None:
        nonlocal last_id
        id = text(message.get("id"))
        parts = response_parts(draft, message.get("content"), provider="anthropic")
        response = draft.respond(parts, time=time_of(message), joins=id is not None and id == last_id)
        last_id = id
        response.model_name = text(message.get("model"))
        response.provider_name = "anthropic"

    roles = {"user": user, "assistant": assistant}
    for entry in draft.objects(entries, "an entry", "a type", _branch(draft, entries)):
        message = mapping(entry.get("message"))
        if entry.get("type") in _SPEAKERS and message is not None:
            read_role(draft, {"timestamp": entry.get("timestamp"), **message}, roles)


def _branch(draft: Draft, entries: Sequence[object]) -> list[int]:
    """Positions of the entries to read.

    These are the entries from the root to the last one, the others of their responses, and results that are children of
    these.
    """
    nodes = [mapping(entry) for entry in entries]
    ids = {id: index for index, entry in enumerate(nodes) if entry and (id := text(entry.get("uuid"))) is not None}
    parents = [
        ids.get(text((entry or {}).get("parentUuid")) or text((entry or {}).get("logicalParentUuid")) or "")
        for entry in nodes
    ]
    speaking: list[int] = []
    for position, entry in enumerate(nodes):
        if entry is None or entry.get("type") not in _SPEAKERS:
            continue
        if entry.get("isSidechain") is True:
            draft.note("left out an entry of a subagent", position)
        elif entry.get("isCompactSummary") is True:
            draft.note("left out the summary of a compaction", position)
        else:
            speaking.append(position)
    path: set[int] = set()
    position = speaking[-1] if speaking else None
    while position is not None and position not in path:
        path.add(position)
        position = parents[position]
    path |= _same_responses(nodes, speaking, path)
    taken = {position for position, entry in enumerate(nodes) if entry is None}
    for position in speaking:
        entry = nodes[position] or {}
        message = mapping(entry.get("message")) or {}
        on_path = position in path or "uuid" not in entry
        if on_path or (parents[position] in path and has_block(message, ("tool_result",))):
            taken.add(position)
        else:
            draft.note("left out an entry of another branch", position)
    return sorted(taken)


def _same_responses(nodes: Sequence[Json | None], speaking: Sequence[int], path: set[int]) -> set[int]:
    """Positions of all entries of the responses of which one entry is on the path."""

    def response(position: int) -> str | None:
        entry = nodes[position] or {}
        return text((mapping(entry.get("message")) or {}).get("id")) if entry.get("type") == "assistant" else None

    ids = {response(position) for position in speaking if position in path} - {None}
    return {position for position in speaking if response(position) in ids}
