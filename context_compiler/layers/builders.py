"""Each node's context is built from the state of a turn by what `needs` says, without reading or changing anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from context_compiler.errors import LayersError
from context_compiler.layers.conversation import (
    format_conversation_for_prompt,
    get_conversation_history,
    get_conversation_with_engagement,
    get_recent_conversation,
    record_of,
    text_of,
)
from context_compiler.layers.entities import format_entity_context, get_entity_context
from context_compiler.layers.models import ConversationHistory
from context_compiler.layers.reasoning import (
    format_curation,
    format_decision_history,
    format_reasoning_for_prompt,
    get_current_curation,
    get_current_turn_steps,
    get_execution_outcomes,
    get_outcomes,
    get_own_decision_history,
    get_reasoning_trace,
)
from context_compiler.layers.refs import shown_data
from context_compiler.layers.registry import registry_of
from context_compiler.layers.results import format_archive, format_results
from context_compiler.layers.turn import asked_now, results_of, turn_of
from context_compiler.layers.visibility import Need, need_of

Context = dict[str, Any]


def build_understand_context(state: Mapping[str, Any]) -> Context:
    """What Understand decides by: all entities, the whole conversation, and its own decisions so far."""
    return build_context("understand", state)


def build_think_context(state: Mapping[str, Any]) -> Context:
    """What Think plans by: refs and labels, the conversation, the last turn, and what was just curated."""
    return build_context("think", state)


def build_act_context(state: Mapping[str, Any]) -> Context:
    """What Act works with: entities with content, the last two turns, and this turn's steps and results."""
    return build_context("act", state)


build_act_entity_context = build_act_context


def build_reply_context(state: Mapping[str, Any]) -> Context:
    """What Reply answers by: labels, the last two turns with theme and open question, and what came of the turn."""
    return build_context("reply", state)


def build_context(node: str, state: Mapping[str, Any]) -> Context:
    """What one node is told, as values.

    Args:
        node: understand, think, act or reply.
        state: The state of the turn; every key of `TurnState` may be missing.

    Returns:
        `entity`, `conversation` and `reasoning`; for Think `curation` too, for Act `step_results`,
        `prev_step_note` and `content_archive`, for Reply `outcomes`.

    Raises:
        LayersError: the node is unknown, or something in the state is wrong; the message says what.
    """
    need = need_of(node)
    given = record_of(state, "state")
    given = {**given, "id_registry": registry_of(given.get("id_registry"))}
    told: Context = {
        "entity": get_entity_context(given.get("id_registry"), turn_of(given), mode=need.entity),
        "conversation": _conversation(need, given),
        "reasoning": _REASONING[need.reasoning](given),
    }
    if need.curation:
        told["curation"] = get_current_curation(given)
    if need.results:
        told |= _results(given)
    if need.reasoning == "outcomes":
        told["outcomes"] = get_execution_outcomes(given)
    return told


def _conversation(need: Need, state: Mapping[str, Any]) -> ConversationHistory:
    """What was said as far as the node needs it; what this turn asks takes the place of what was asked before."""
    stored = state.get("conversation")
    if need.depth == 2:
        found = get_conversation_with_engagement(stored) if need.engagement else get_recent_conversation(stored)
    else:
        found = get_conversation_history(stored)
    asked = asked_now(state) if need.pending else None
    return found if asked is None else found.model_copy(update={"pending": asked})


def _answered(state: Mapping[str, Any]) -> bool:
    """Whether what was pending is being answered: a plan was made."""
    return text_of(record_of(state.get("think_output"), "think_output"), "decision") == "plan_direct"


_REASONING: Mapping[str, Callable[[Mapping[str, Any]], Any]] = MappingProxyType(
    {
        "own decisions": lambda state: get_own_decision_history(state.get("conversation")),
        "last turn": lambda state: get_reasoning_trace(state.get("conversation"), state),
        "current steps": lambda state: get_current_turn_steps(state),
        "outcomes": lambda state: get_outcomes(state.get("conversation"), state),
    }
)


def _results(state: Mapping[str, Any]) -> Context:
    refs = registry_of(state.get("id_registry")).refs
    steps = get_current_turn_steps(state)
    note = state.get("prev_step_note") or next((step.note for step in reversed(steps) if step.note), None)
    stored = record_of(state.get("conversation"), "conversation")
    archive = {
        **record_of(stored.get("content_archive"), "content_archive"),
        **record_of(state.get("content_archive"), "content_archive"),
    }
    return {
        "step_results": results_of(state),
        "prev_step_note": None if note is None else str(note),
        "content_archive": {name: shown_data(content, refs) for name, content in archive.items()},
    }


def layer_texts(node: str, state: Mapping[str, Any]) -> dict[str, str]:
    """What one node is told, as the texts that its template asks for.

    Raises:
        LayersError: the node is unknown, or something in the state is wrong.
    """
    need, state = need_of(node), record_of(state, "state")
    told = build_context(node, state)
    texts = {
        "entity": format_entity_context(told["entity"], need.entity),
        "conversation": format_conversation_for_prompt(
            told["conversation"],
            need.depth,
            include_pending=need.pending,
            include_engagement=need.engagement,
            answered=_answered(state),
        ),
        "reasoning": format_decision_history(told["reasoning"])
        if need.reasoning == "own decisions"
        else format_reasoning_for_prompt(told["reasoning"], node),
    }
    if need.do_not_read:
        texts["do_not_read"] = format_entity_context(told["entity"], "do_not_read")
    if need.curation:
        texts["curation"] = format_curation(told["curation"])
    if need.results:
        texts["results"] = format_results(told["step_results"], told["prev_step_note"])
        texts["archive"] = format_archive(told["content_archive"])
    return texts


def known_role(role: object) -> str:
    """A role as a text.

    Raises:
        LayersError: it is none of the four.
    """
    if not isinstance(role, str):
        raise LayersError(f"role {role!r} is unknown; use understand, think, act or reply")
    need_of(role)
    return role
