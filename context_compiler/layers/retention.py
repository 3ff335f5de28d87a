"""End of a turn: build the stored state of the session, which is bounded in size.

Every turn is stored, even one that was blocked or never answered. No model is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from context_compiler.layers.conversation import SHORT_ANSWER, ConversationContext, conversation_of
from context_compiler.layers.entities import refs_with_content
from context_compiler.layers.models import TurnExecutionSummary, as_mapping, list_field, text_field
from context_compiler.layers.reasoning import FULL_TURNS
from context_compiler.layers.refs import ELLIPSIS, single_line
from context_compiler.layers.registry import SessionIdRegistry, StoredEntities, registry_of
from context_compiler.layers.turn import execution_summary, get_current_curation, pending_question, turn_number
from context_compiler.messages.fences import fence
from context_compiler.resilience import try_await
from context_compiler.template import shipped_template

Ask = Callable[[str], Awaitable[str]]
"""Async function from a prompt to a model's answer."""

RECENT_TURNS = 5
"""Number of turns kept in full."""
MAX_HISTORY = 2_000
"""Maximum characters of the summary of older turns; the newest are kept."""
MAX_REASONING = 800
"""Maximum characters of the summary of older reasoning; the newest are kept."""
MAX_ENTITIES = 10_000
"""Maximum entities kept. Above it, the least recently mentioned are removed unless active, unsaved or retained."""
MAX_DECISIONS = 20
"""Maximum decisions about entities kept."""
VERBATIM_LIMIT, PROPOSAL_LIMIT, CUT_LIMIT = 400, 500, 300
"""Maximum characters of an answer kept whole, of a proposal or question, and of an answer that is cut."""


async def summarise_turn(
    state: Mapping[str, Any], *, ask: Ask | None = None, timeout: float = 60.0
) -> ConversationContext:
    """Return the stored state of the session after this turn; the given state is not modified.

    Args:
        state: The state of the turn; every key of `TurnState` is optional.
        ask: Summarizes turns that are no longer recent; if it is None or fails, the beginnings of turns are kept.
        timeout: Seconds allowed for `ask`; the next turn of the session waits for it.

    Raises:
        LayersError: A value in the state is wrong; the message names it.
    """
    stored, registry = await end_turn(state, ask=ask, timeout=timeout)
    stored["id_registry"] = registry.to_dict()
    return stored


async def end_turn(
    state: Mapping[str, Any], *, ask: Ask | None, timeout: float
) -> tuple[ConversationContext, SessionIdRegistry]:
    """Return the state of the session after a turn, and its registry, which the state contains as a lazy mapping."""
    state = as_mapping(state, "state")
    old = conversation_of(state.get("conversation"))
    registry = registry_of(state.get("id_registry"))
    done = execution_summary({**state, "id_registry": registry})
    turns = [*list_field(old, "recent_turns"), *_stored_turn(state, done, registry)]
    older, recent = turns[:-RECENT_TURNS], turns[-RECENT_TURNS:]
    summaries = [*list_field(old, "turn_summaries"), done.model_dump()]
    kept = stored_registry(registry, turn_number(state))
    stored = conversation_of(
        {
            **old,
            "recent_turns": recent,
            "history_summary": await _update_history(text_field(old, "history_summary"), older, ask, timeout),
            "engagement_summary": text_field(state, "engagement_summary")
            or old["engagement_summary"]
            or done.think_goal,
            "pending_clarification": _pending(state, done, old),
            "id_registry": StoredEntities(kept),
            "turn_summaries": summaries[-FULL_TURNS:],
            "reasoning_summary": _update_reasoning(text_field(old, "reasoning_summary"), summaries[:-FULL_TURNS]),
            "content_archive": {
                **as_mapping(old["content_archive"], "content_archive"),
                **as_mapping(state.get("content_archive"), "content_archive"),
            },
            "understand_decision_log": _decision_log(old, state),
        }
    )
    return stored, kept


def _stored_turn(
    state: Mapping[str, Any], done: TurnExecutionSummary, registry: SessionIdRegistry
) -> list[dict[str, Any]]:
    """Return this turn in its stored form, as a list of one; empty if neither side wrote anything."""
    user, answer = (registry.replace_uuids(text_field(state, key)) for key in ("user_message", "final_response"))
    if not user.strip() and not answer.strip():
        return []
    decision = done.think_decision
    most = CUT_LIMIT if len(answer) >= VERBATIM_LIMIT else VERBATIM_LIMIT
    most = PROPOSAL_LIMIT if decision in ("propose", "clarify") else most
    short = answer.strip() if len(answer.strip()) <= most else f"{answer.strip()[:most].rstrip()}{ELLIPSIS}"
    return [
        {
            "user": user,
            "assistant_summary": short or "(no answer)",
            "routing": {"decision": decision} if decision else None,
            "timestamp": text_field(state, "timestamp") or datetime.now(UTC).isoformat(timespec="seconds"),
        }
    ]


async def _update_history(summary: str, older: Sequence[Any], ask: Ask | None, timeout: float) -> str:
    """Add older turns to the history summary: a model summarizes them, else the beginning of each is appended."""
    if not older:
        return summary
    lines = [_turn_brief(as_mapping(turn, "recent_turns")) for turn in older]
    if ask is not None:
        prompt = shipped_template("layers/history").render(
            {"summary": fence("NOTES SO FAR", summary) if summary else "", "turns": fence("TURNS", "\n".join(lines))}
        )
        answer = (await try_await(_ask_within(ask, prompt, timeout))).value
        if isinstance(answer, str) and answer.strip():
            return _keep_newest(answer.strip(), MAX_HISTORY)
    return _keep_newest("\n".join([*([summary] if summary else []), *lines]), MAX_HISTORY)


async def _ask_within(ask: Ask, prompt: str, seconds: float) -> str:
    """Call and await `ask` within a time limit; as a coroutine, so that awaiting it surfaces every error of `ask`."""
    async with asyncio.timeout(seconds):
        return await ask(prompt)


def _turn_brief(turn: Mapping[str, Any]) -> str:
    """Return the beginnings of a turn's message and answer on one line; proposals and questions are marked."""
    decision = text_field(as_mapping(turn.get("routing"), "routing"), "decision")
    how = {"propose": "proposed, not done", "clarify": "asked back"}.get(decision, "answered")
    answer = text_field(turn, "assistant_summary") or text_field(turn, "assistant")
    return f"User: {single_line(text_field(turn, 'user'), 120)} | {how}: {single_line(answer, SHORT_ANSWER)}"


def _keep_newest(text: str, most: int) -> str:
    """Cut the beginning of a text that is too long."""
    return text if len(text) <= most else f"{ELLIPSIS}{text[-most + 1 :]}"


def _update_reasoning(summary: str, older: Sequence[Any]) -> str:
    """Add older turns to the reasoning summary, each with its goal."""
    parts = [summary] if summary else []
    for stored in older:
        turn = as_mapping(stored, "turn_summaries")
        about = single_line(text_field(turn, "think_goal"), 160) or text_field(turn, "conversation_phase") or "no goal"
        blocked = f" (blocked: {single_line(turn['blocked_reason'], 120)})" if turn.get("blocked_reason") else ""
        parts.append(f"Turn {text_field(turn, 'turn_num')}: {about}{blocked}")
    return _keep_newest("; ".join(parts), MAX_REASONING)


def _pending(state: Mapping[str, Any], done: TurnExecutionSummary, old: ConversationContext) -> dict[str, Any] | None:
    """Return the pending state after this turn: asked in it, else the old one if no decision was made."""
    pending = pending_question(state)
    if pending is not None:
        return pending.model_dump()
    return old["pending_clarification"] if done.think_decision is None else None


def stored_registry(registry: SessionIdRegistry, turn: int) -> SessionIdRegistry:
    """Return the registry to store: content only of active and unsaved entities, and at most `MAX_ENTITIES`."""
    return registry.trimmed(turn, refs_with_content(registry, turn), MAX_ENTITIES)


def _decision_log(old: ConversationContext, state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the log of decisions about entities, including those of this turn."""
    curation, turn = get_current_curation(state), turn_number(state)
    logged = list_field(old, "understand_decision_log")
    log = [dict(as_mapping(decision, "understand_decision_log")) for decision in logged]
    for action, refs in (("retain", curation.retained), ("demote", curation.demoted)):
        log += [{"turn": turn, "ref": ref, "action": action, "reason": curation.reasons.get(ref, "")} for ref in refs]
    return log[-MAX_DECISIONS:]
