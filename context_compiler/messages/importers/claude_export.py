"""Exports of Claude's apps: conversations whose messages have a sender; an answer contains its tool results.

A prompt that was edited and an answer that was made again stay in the file, so newer exports name the message before
each one; only the branch that leads to the current message is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from context_compiler.messages.importers.anthropic_messages import is_result, result
from context_compiler.messages.importers.content import blocks, prompt, response_parts
from context_compiler.messages.importers.draft import Draft, Json, kind, mapping, sequence, text, time_of

_SENDERS = ("human", "assistant")

_PARENT = "parent_message_uuid"
"""Key of the message before; the first message has a parent that is not in the file, or null."""

_INTERNAL = ("token_budget", "flag")
"""Types of blocks that neither the user nor the model sees."""


def matches(entry: Json) -> bool:
    """True for a message of a conversation."""
    return entry.get("sender") in _SENDERS


def read(draft: Draft, entries: Sequence[object], head: Json) -> None:
    """Read the messages of the current branch, oldest first.

    Raises:
        TranscriptError: A message is not an object, or its sender is unknown.
    """
    for value in draft.each(entries, _branch(draft, entries, head)):
        entry = mapping(value)
        if entry is None or entry.get("sender") not in _SENDERS:
            raise draft.error(f"a message is {kind(value)} without a sender; it must be from human or assistant")
        content = _content(draft, entry)
        if entry["sender"] == "human":
            draft.request([prompt(draft, content + _attachments(draft, entry), entry)], time=time_of(entry))
        else:
            _answer(draft, content, entry)


def _branch(draft: Draft, entries: Sequence[object], head: Json) -> list[int]:
    """Positions of the messages to read: those up to the current one, or all if they name no message before them."""
    nodes = [mapping(entry) or {} for entry in entries]
    ids = {id: position for position, node in enumerate(nodes) if (id := text(node.get("uuid"))) is not None}
    tree = [position for position, node in enumerate(nodes) if _PARENT in node and "uuid" in node]
    path: set[int] = set()
    position = ids.get(text(head.get("current_leaf_message_uuid")) or "", tree[-1] if tree else None)
    while position is not None and position not in path:
        path.add(position)
        position = ids.get(text(nodes[position].get(_PARENT)) or "")
    left_out = set(tree) - path
    for position in sorted(left_out):
        draft.note("left out a message of another branch", position)
    return [position for position in range(len(entries)) if position not in left_out]


def _content(draft: Draft, entry: Json) -> list[object]:
    """Blocks of a message; its plain text if it has none, as in older exports."""
    content = [
        block for block in blocks(draft, entry.get("content")) if (mapping(block) or {}).get("type") not in _INTERNAL
    ]
    plain = text(entry.get("text"))
    return content or ([plain] if plain else [])


def _attachments(draft: Draft, entry: Json) -> list[object]:
    labels: list[object] = []
    for attachment in [*(sequence(entry.get("attachments")) or []), *(sequence(entry.get("files")) or [])]:
        fields = mapping(attachment) or {}
        name = text(fields.get("file_name")) or "unnamed"
        extracted = text(fields.get("extracted_content"))
        draft.note("text of an attachment kept in the prompt" if extracted else "file without content kept as its name")
        labels.append(f"[file: {name}]\n{extracted}" if extracted else f"[file: {name}]")
    return labels


def _answer(draft: Draft, content: Sequence[object], entry: Json) -> None:
    when = time_of(entry)
    spoken = [_with_id(draft, block, position) for position, block in enumerate(content)]
    for results, group in groupby(spoken or [""], key=is_result):
        if results:
            returned = [mapping(block) or {} for block in group]
            draft.request([result(draft, block, entry, name=text(block.get("name"))) for block in returned], time=when)
        else:
            draft.respond(response_parts(draft, list(group), provider="anthropic"), time=when)


def _with_id(draft: Draft, block: object, position: int) -> object:
    """Block of an answer; a call without an id gets one that no other call of the answer has."""
    fields = mapping(block)
    if fields is None or fields.get("type") != "tool_use" or text(fields.get("id")):
        return block
    return {**fields, "id": f"call-{draft.at}-{position}"}
