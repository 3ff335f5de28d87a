"""The last fallback: only the last exchange, built without the rest of this package."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart

GONE = "[left out]"
"""Placeholder for content without text in the last fallback."""


def last_exchange(messages: Sequence[ModelMessage], limit: int | None) -> dict[int, ModelMessage]:
    """Last fallback: only the last exchange, with texts cut to fit, built without the rest of this package.

    Args:
        messages: The raw history, not empty.
        limit: Maximum tokens of the result; None leaves texts unchanged.

    Returns:
        Messages to send, in order, by their positions in the history; messages that were cut are copies.
    """
    kept = _last_exchange(messages)
    first = min(kept)
    if not _has_prompt(messages[first]):
        kept.add(next((index for index in range(first - 1, -1, -1) if _has_prompt(messages[index])), first))
    chosen = {index: messages[index] for index in sorted(kept)}
    if limit is None:
        return chosen
    texts = sum(len(message.parts) for message in chosen.values()) or 1
    each = max(1, limit // (2 * texts))
    return {index: _cut(message, each) for index, message in chosen.items()}


def _last_exchange(messages: Sequence[ModelMessage]) -> set[int]:
    """Positions of the last message, the responses whose calls it answers, and all other answers to those responses.

    The answers to one response may be in several requests and far from it, because some calls are answered late.
    """
    kept: set[int] = set()
    last = len(messages) - 1
    bare = last and not _has_prompt(messages[last]) and not _call_ids(messages[last])
    waiting = [last, last - 1] if bare else [last]  # feedback without a tool needs the answer before it
    while waiting:
        current = waiting.pop()
        kept.add(current)
        ids, request = _call_ids(messages[current]), isinstance(messages[current], ModelRequest)
        for index in range(current - 1, -1, -1) if request else range(current + 1, last + 1):
            if not ids:
                break
            if isinstance(messages[index], ModelRequest) != request and (shared := ids & _call_ids(messages[index])):
                ids -= shared
                waiting += [index] if index not in kept else []
    return kept


def _call_ids(message: ModelMessage) -> set[str]:
    """Ids of the function calls that a message makes or answers."""
    parts: list[Any] = [
        part for part in message.parts if part.part_kind in ("tool-call", "tool-return", "retry-prompt")
    ]
    return {part.tool_call_id for part in parts if part.tool_name}


def _has_prompt(message: ModelMessage) -> bool:
    return any(part.part_kind == "user-prompt" for part in message.parts)


def _cut(message: ModelMessage, limit: int) -> ModelMessage:
    """Cut every part of a message to `limit` characters.

    What is cut loses its id, under which a provider would find the whole, and with it the thinking that led to it.
    """
    parts: list[Any] = [_shorten(part, limit) for part in message.parts]
    if isinstance(message, ModelResponse) and any(map(operator.is_not, parts, message.parts)):
        rest = [part for part in parts if part.part_kind != "thinking"] or [TextPart(content=GONE[:limit])]
        parts = [replace(part, id=None) if getattr(part, "id", None) else part for part in rest]
    return replace(message, parts=parts)


def _shorten(part: Any, limit: int) -> Any:
    """Cut the text of a part to `limit` characters; non-text content becomes a short label."""
    if part.part_kind == "file":
        return TextPart(content=GONE[:limit])
    if part.part_kind in ("tool-call", "builtin-tool-call"):
        return part if len(str(part.args)) <= limit else replace(part, args={})
    content = getattr(part, "content", "")
    if isinstance(content, str):
        return part if len(content) <= limit else replace(part, content=content[:limit])
    if content is None or len(repr(content)) <= limit:
        return part
    pieces = cast(list[object], content) if isinstance(content, list) else []
    text = " ".join(piece for piece in pieces if isinstance(piece, str))
    return replace(part, content=(text or GONE)[:limit])
