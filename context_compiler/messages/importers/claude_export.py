"""Exports of Claude's apps: conversations whose messages have a sender; an answer contains its tool results."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from pydantic_ai.messages import ModelRequestPart

from context_compiler.messages.importers.content import blocks, prompt, response_parts, result_content
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
    for results, group in groupby(
        content or [""], key=lambda block: (mapping(block) or {}).get("type") == "tool_result"
    ):
        if results:
            draft.request([_result(draft, mapping(block) or {}, entry) for block in group], time=when)
        else:
            draft.respond(response_parts(draft, list(group), provider="anthropic"), time=when)


def _result(draft: Draft, block: Json, entry: Json) -> ModelRequestPart:
    return draft.result(
        result_content(draft, block.get("content")),
        call_id=text(block.get("tool_use_id")),
        name=text(block.get("name")),
        failed=block.get("is_error") is True,
        time=time_of(entry),
    )
