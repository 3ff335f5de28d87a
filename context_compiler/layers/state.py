"""A `ConversationContext` is all of a session that outlives a turn, and survives JSON unchanged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypedDict, cast

from context_compiler.errors import LayersError
from context_compiler.layers.conversation import record_of
from context_compiler.layers.refs import encoded


class ConversationContext(TypedDict):
    """What is stored of a session."""

    recent_turns: list[dict[str, Any]]
    """The last five turns."""
    history_summary: str
    engagement_summary: str
    pending_clarification: dict[str, Any] | None
    id_registry: dict[str, Any]
    turn_summaries: list[dict[str, Any]]
    """What the last two turns decided and did."""
    reasoning_summary: str
    content_archive: dict[str, Any]
    understand_decision_log: list[dict[str, Any]]
    """The last twenty decisions about entities."""
    step_summaries: list[Any]
    """Of older versions; kept as it is."""


def conversation_of(given: Mapping[str, Any] | None) -> ConversationContext:
    """What is stored of a session, with every key; keys that nobody knows stay.

    Raises:
        LayersError: it is no mapping.
    """
    known = {key: value for key, value in record_of(given, "conversation").items() if value is not None}
    empty: ConversationContext = {
        "recent_turns": [],
        "history_summary": "",
        "engagement_summary": "",
        "pending_clarification": None,
        "id_registry": {},
        "turn_summaries": [],
        "reasoning_summary": "",
        "content_archive": {},
        "understand_decision_log": [],
        "step_summaries": [],
    }
    return cast(ConversationContext, {**empty, **known})


def to_json(conversation: Mapping[str, Any]) -> str:
    """As JSON text; what JSON does not know is kept as its text.

    Raises:
        LayersError: it contains itself.
    """
    try:
        return encoded(conversation)
    except (ValueError, RecursionError) as error:
        raise LayersError(f"the conversation cannot be kept as JSON: {error}") from None


def from_json(text: str) -> ConversationContext:
    """Back from JSON text.

    Raises:
        LayersError: it is no JSON object.
    """
    try:
        found: object = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise LayersError(f"the stored conversation is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise LayersError(f"the stored conversation is a JSON {type(found).__name__}; it should be an object")
    return conversation_of(cast("dict[str, Any]", found))
