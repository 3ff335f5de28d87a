"""Layer 2: the conversation at the depth that a node needs, and the stored form of a session.

Stored data may be old or incomplete: missing keys count as empty, and a wrong value raises an error that names the key.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypedDict, cast, get_args

from context_compiler.errors import LayersError
from context_compiler.layers.models import (
    ConversationHistory,
    ConversationTurn,
    PendingState,
    PendingType,
    as_mapping,
    list_field,
    parse_layer,
    text_field,
)
from context_compiler.layers.refs import encode_json, indent_lines, single_line

Depth = Literal[2, 5, "full"]
DEPTHS = (2, 5, "full")
EMPTY = "New conversation."
SHORT_ANSWER = 200
"""Characters of an answer that are used if it has no summary."""
PENDING: tuple[str, ...] = get_args(PendingType)


def get_conversation_history(conversation: Mapping[str, Any] | None) -> ConversationHistory:
    """Parse the conversation from stored data; missing keys count as empty.

    Raises:
        LayersError: A value has the wrong type; the message names it.
    """
    fields = as_mapping(conversation, "conversation")
    return ConversationHistory(
        recent_turns=[
            _parse_turn(turn, f"recent_turns[{index}]") for index, turn in enumerate(list_field(fields, "recent_turns"))
        ],
        history_summary=text_field(fields, "history_summary"),
        engagement_summary=text_field(fields, "engagement_summary"),
        pending=parse_pending(fields.get("pending_clarification") or fields.get("pending")),
    )


def get_recent_conversation(conversation: Mapping[str, Any] | None, depth: int = 2) -> ConversationHistory:
    """Return only the last turns, for Act: without summary, theme or pending state.

    Raises:
        LayersError: A value has the wrong type.
    """
    turns = get_conversation_history(conversation).recent_turns
    return ConversationHistory(recent_turns=turns[-depth:] if depth > 0 else [])


def get_conversation_with_engagement(conversation: Mapping[str, Any] | None) -> ConversationHistory:
    """Return the last two turns, the theme and the pending state, for Reply.

    Raises:
        LayersError: A value has the wrong type.
    """
    history = get_conversation_history(conversation)
    return history.model_copy(update={"recent_turns": history.recent_turns[-2:], "history_summary": ""})


def _parse_turn(stored: object, where: str) -> ConversationTurn:
    turn = as_mapping(stored, where)
    routing = turn.get("routing")
    return ConversationTurn(
        user=text_field(turn, "user"),
        assistant_summary=text_field(turn, "assistant_summary") or text_field(turn, "assistant")[:SHORT_ANSWER],
        routing=None
        if routing is None
        else {str(key): value for key, value in as_mapping(routing, f"{where}.routing").items()},
        timestamp=text_field(turn, "timestamp"),
    )


def parse_pending(stored: object) -> PendingState | None:
    """Parse the pending state from stored data; None if nothing is pending.

    A proposal or question takes precedence over the goal, which is less specific. An unknown type becomes `ask_user`.

    Raises:
        LayersError: The data is not a mapping.
    """
    if not stored:
        return None
    fields = dict(stored) if isinstance(stored, PendingState) else as_mapping(stored, "pending_clarification")
    kind = str(fields.get("type") or "ask_user")
    kind = "clarify" if kind == "understand" else kind  # a question that the node Understand asks
    questions: Any = fields.get("questions") or fields.get("clarification_questions") or []
    asked = cast("Sequence[object]", questions if isinstance(questions, list | tuple) else [questions])
    texts = [_question_text(question) for question in asked]
    context = text_field(fields, "context") or text_field(fields, "proposal_message") or text_field(fields, "question")
    return PendingState(
        type=cast(PendingType, kind if kind in PENDING else "ask_user"),
        context=context or " ".join(texts) or text_field(fields, "goal"),
        questions=texts,
    )


def _question_text(question: object) -> str:
    if isinstance(question, Mapping):
        fields = cast("Mapping[str, Any]", question)
        return str(fields.get("question") or fields.get("text") or "")
    return str(question)


def format_conversation_for_prompt(
    history: ConversationHistory,
    depth: int | str,
    *,
    include_pending: bool = True,
    include_engagement: bool | None = None,
    answered: bool = False,
) -> str:
    """Format the conversation for a prompt.

    Args:
        history: The conversation.
        depth: 2 for the last two turns, 5 for the last five and the summary, "full" for everything.
        include_pending: Include the pending state.
        include_engagement: Include the theme; None includes it only at "full".
        answered: True if the pending question is answered in this turn.

    Raises:
        LayersError: The depth is unknown, or `history` is not a conversation.
    """
    if not isinstance(depth, int | str) or isinstance(depth, bool) or depth not in DEPTHS:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise LayersError(f"depth {depth!r} is unknown; use one of 2, 5, 'full'")
    history = parse_layer(ConversationHistory, history, "history")
    turns = history.recent_turns if isinstance(depth, str) else history.recent_turns[-depth:]
    engagement = depth == "full" if include_engagement is None else include_engagement
    blocks: list[str] = []
    if engagement and history.engagement_summary.strip():
        blocks.append(f"Session: {indent_lines(history.engagement_summary)}")
    if depth != 2 and history.history_summary.strip():
        blocks.append(f"Earlier: {indent_lines(history.history_summary)}")
    blocks += [block for turn in turns if (block := _turn_text(turn))]
    if include_pending and history.pending is not None:
        blocks.append("\n".join(_pending_lines(history.pending, answered)))
    return "\n\n".join(blocks) or EMPTY


format_conversation = format_conversation_for_prompt


def _turn_text(turn: ConversationTurn) -> str:
    texts = (("User", turn.user), ("Assistant", turn.assistant_summary))
    return "\n".join(f"{who}: {indent_lines(text)}" for who, text in texts if text.strip())


def _pending_lines(pending: PendingState, answered: bool) -> Iterator[str]:
    title = "Asked before, answered in this turn" if answered else "Awaiting the user's answer"
    yield f"{title} ({pending.type}): {indent_lines(pending.context)}".rstrip(" :")
    for question in pending.questions:
        if question.strip() and question.strip() != pending.context.strip():
            yield f"- {single_line(question)}"


class ConversationContext(TypedDict):
    """Stored state of a session; it survives a JSON round trip unchanged."""

    recent_turns: list[dict[str, Any]]
    """Last five turns."""
    history_summary: str
    engagement_summary: str
    pending_clarification: dict[str, Any] | None
    id_registry: Mapping[str, Any]
    turn_summaries: list[dict[str, Any]]
    """Summaries of the last two turns."""
    reasoning_summary: str
    content_archive: dict[str, Any]
    understand_decision_log: list[dict[str, Any]]
    """Last twenty decisions about entities."""
    step_summaries: list[Any]
    """Kept unchanged."""


def conversation_of(data: Mapping[str, Any] | None) -> ConversationContext:
    """Return stored state with every key present; unknown keys are kept.

    Raises:
        LayersError: The state is not a mapping.
    """
    present = {key: value for key, value in as_mapping(data, "conversation").items() if value is not None}
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
    return cast(ConversationContext, {**empty, **present})


def to_json(conversation: Mapping[str, Any]) -> str:
    """Serialize a state to JSON; values that JSON cannot represent become text.

    Raises:
        LayersError: The state contains itself.
    """
    try:
        return encode_json(conversation)
    except (ValueError, RecursionError) as error:
        raise LayersError(f"the conversation cannot be stored as JSON: {error}") from None


def from_json(text: str) -> ConversationContext:
    """Parse a state from JSON.

    Raises:
        LayersError: The text is not a JSON object.
    """
    try:
        document: object = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise LayersError(f"the stored conversation is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise LayersError(f"the stored conversation is a JSON {type(document).__name__}; it should be an object")
    return conversation_of(cast("dict[str, Any]", document))
