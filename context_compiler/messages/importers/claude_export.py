"""Exports of Claude's apps: conversations whose messages have a sender; an answer contains its tool results."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from context_compiler.messages.importers.anthropic_messages import is_result, result
from context_compiler.messages.importers.content import blocks, prompt, response_parts
from context_compiler.messages.importers.draft import Draft, Json, kind, mapping, sequence, text, time_of

_SENDERS = ("human", "assistant")

_INTERNAL = ("token_budget", "flag")
"""Types of blocks that neither the user nor the model sees."""


def matches(entry: Json) -> bool:
    """True for a message of a conversation."""
    return entry.get("sender") in _SENDERS


def read(draft: Draft, entries: Sequence[object], head: Json) -> None:
    """Read messages, oldest first.

    Raises:
        TranscriptError: A message is not an object, or its sender is unknown.
    """
    for value in draft.each(entries):
        entry = mapping(value)
        if entry is None or entry.get("sender") not in _SENDERS:
            raise draft.error(f"a message is {kind(value)} without a sender; it must be from human or assistant")
        content = _content(draft, entry)
        if entry["sender"] == "human":
            draft.request([prompt(draft, content + _attachments(draft, entry), entry)], time=time_of(entry))
        else:
            _answer(draft, content, entry)


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
    for results, group in groupby(content or [""], key=is_result):
        if results:
            returned = [mapping(block) or {} for block in group]
            draft.request([result(draft, block, entry, name=text(block.get("name"))) for block in returned], time=when)
        else:
            draft.respond(response_parts(draft, list(group), provider="anthropic"), time=when)
