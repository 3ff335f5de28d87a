"""At the end of a turn what it was becomes what is stored: nothing is lost at once, and nothing grows without end.

It happens for every turn, also for one that was blocked or never answered. No model is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

from context_compiler.layers.conversation import SHORT_ANSWER, ConversationContext, conversation_of
from context_compiler.layers.entities import get_entity_context
from context_compiler.layers.models import TurnExecutionSummary, as_mapping, list_field, text_field
from context_compiler.layers.reasoning import FULL_TURNS
from context_compiler.layers.refs import ELLIPSIS, single_line
from context_compiler.layers.registry import SessionIdRegistry, registry_of
from context_compiler.layers.turn import execution_summary, get_current_curation, pending_question, turn_number
from context_compiler.messages.fences import fence
from context_compiler.resilience import try_await
from context_compiler.template import Template
from context_compiler.template.prompts import shipped_templates

Ask = Callable[[str], Awaitable[str]]
"""A model, seen from here: one prompt in, one answer out."""

RECENT_TURNS = 5
"""Turns that are kept whole."""
MAX_HISTORY = 2_000
"""Characters of what older turns come to where no model says it, the newest kept."""
MAX_REASONING = 800
"""Characters of what older turns decided, the newest kept."""
MAX_DECISIONS = 20
"""Decisions about entities that are kept."""
VERBATIM_LIMIT, PROPOSAL_LIMIT, CUT_LIMIT = 400, 500, 300
"""Characters of an answer below which it stands for itself, of one that proposes or asks, and of a longer one."""


async def summarise_turn(
    state: Mapping[str, Any], *, ask: Ask | None = None, timeout: float = 60.0
) -> ConversationContext:
    """What is stored of the session after this turn; the state itself is not changed.

    Args:
        state: The state of the turn; every key of `TurnState` may be missing.
        ask: Writes what turns come to that grow too old; without one, or when it fails, their beginnings are kept.
        timeout: Seconds that it may take; a session waits for it.

    Raises:
        LayersError: something in the state is wrong; the message says what.
    """
    state = as_mapping(state, "state")
    old = conversation_of(state.get("conversation"))
    registry, done = registry_of(state.get("id_registry")), execution_summary(state)
    turns = [*list_field(old, "recent_turns"), *_stored_turn(state, done, registry)]
    older, recent = turns[:-RECENT_TURNS], turns[-RECENT_TURNS:]
    summaries = [*list_field(old, "turn_summaries"), done.model_dump()]
    return conversation_of(
        {
            **old,
            "recent_turns": recent,
            "history_summary": await _update_history(text_field(old, "history_summary"), older, ask, timeout),
            "engagement_summary": text_field(state, "engagement_summary")
            or old["engagement_summary"]
            or done.think_goal,
            "pending_clarification": _pending(state, done, old),
            "id_registry": _stored_registry(registry, turn_number(state)),
            "turn_summaries": summaries[-FULL_TURNS:],
            "reasoning_summary": _update_reasoning(text_field(old, "reasoning_summary"), summaries[:-FULL_TURNS]),
            "content_archive": {
                **as_mapping(old["content_archive"], "content_archive"),
                **as_mapping(state.get("content_archive"), "content_archive"),
            },
            "understand_decision_log": _decision_log(old, state),
        }
    )


def _stored_turn(
    state: Mapping[str, Any], done: TurnExecutionSummary, registry: SessionIdRegistry
) -> list[dict[str, Any]]:
    """This turn as it is kept; none where nobody said anything."""
    user, answer = (registry.translated(text_field(state, key)) for key in ("user_message", "final_response"))
    if not user.strip() and not answer.strip():
        return []
    decision = done.think_decision
    most = (
        PROPOSAL_LIMIT
        if decision in ("propose", "clarify")
        else CUT_LIMIT
        if len(answer) >= VERBATIM_LIMIT
        else VERBATIM_LIMIT
    )
    said = answer.strip() if len(answer.strip()) <= most else f"{answer.strip()[:most].rstrip()}{ELLIPSIS}"
    return [
        {
            "user": user,
            "assistant_summary": said or "(no answer)",
            "routing": {"decision": decision} if decision else None,
            "timestamp": text_field(state, "timestamp") or datetime.now(UTC).isoformat(timespec="seconds"),
        }
    ]


async def _update_history(summary: str, older: Sequence[Any], ask: Ask | None, timeout: float) -> str:
    """The summary with the turns that grew too old; what a model says of them, or how each began."""
    if not older:
        return summary
    lines = [_turn_brief(as_mapping(one, "recent_turns")) for one in older]
    if ask is not None:
        prompt = _template().render(
            {
                "summary": fence("NOTES SO FAR", summary) if summary else "",
                "turns": fence("TURNS", "\n".join(lines)),
            }
        )
        answer = (await try_await(_ask_within(ask, prompt, timeout))).value
        if isinstance(answer, str) and answer.strip():
            return _keep_newest([answer.strip()], MAX_HISTORY)
    return _keep_newest([*([summary] if summary else []), *lines], MAX_HISTORY)


async def _ask_within(ask: Ask, prompt: str, seconds: float) -> str:
    """What a model says in time; a function that fails before there is anything to wait for fails here."""
    async with asyncio.timeout(seconds):
        return await ask(prompt)


def _turn_brief(turn: Mapping[str, Any]) -> str:
    """How a turn began and what it came to; what was only proposed is called so."""
    decision = text_field(as_mapping(turn.get("routing"), "routing"), "decision")
    how = {"propose": "proposed, not done", "clarify": "asked back"}.get(decision, "answered")
    said = text_field(turn, "assistant_summary") or text_field(turn, "assistant")
    return f"User: {single_line(text_field(turn, 'user'), 120)} | {how}: {single_line(said, SHORT_ANSWER)}"


def _keep_newest(parts: Sequence[str], most: int) -> str:
    """Parts below each other, cut at the beginning where they are too long."""
    text = "\n".join(parts)
    return text if len(text) <= most else f"{ELLIPSIS}{text[-most + 1 :]}"


def _update_reasoning(summary: str, older: Sequence[Any]) -> str:
    """What turns before the last two were about."""
    said = [summary] if summary else []
    for given in older:
        one = as_mapping(given, "turn_summaries")
        about = single_line(text_field(one, "think_goal"), 160) or text_field(one, "conversation_phase") or "no goal"
        blocked = f" (blocked: {single_line(one['blocked_reason'], 120)})" if one.get("blocked_reason") else ""
        said.append(f"Turn {text_field(one, 'turn_num')}: {about}{blocked}")
    text = "; ".join(said)
    return text if len(text) <= MAX_REASONING else f"{ELLIPSIS}{text[-MAX_REASONING + 1 :]}"


def _pending(state: Mapping[str, Any], done: TurnExecutionSummary, old: ConversationContext) -> dict[str, Any] | None:
    """What the user has yet to answer: asked in this turn, else still open unless a plan was made."""
    found = pending_question(state)
    if found is not None:
        return found.model_dump()
    return old["pending_clarification"] if done.think_decision is None else None


def _stored_registry(registry: SessionIdRegistry, turn: int) -> dict[str, Any]:
    """The registry, without the content of what is neither active nor unsaved."""
    ctx = get_entity_context(registry, turn)
    near = {one.ref for one in (*ctx.active, *ctx.generated)}
    kept = registry.to_dict()
    return {**kept, "current_turn": turn, "data": {ref: data for ref, data in kept["data"].items() if ref in near}}


def _decision_log(old: ConversationContext, state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The log of decisions about entities with those of this turn."""
    curation, turn = get_current_curation(state), turn_number(state)
    log = [dict(as_mapping(one, "understand_decision_log")) for one in list_field(old, "understand_decision_log")]
    for action, refs in (("retain", curation.retained), ("demote", curation.demoted)):
        log += [{"turn": turn, "ref": ref, "action": action, "reason": curation.reasons.get(ref, "")} for ref in refs]
    return log[-MAX_DECISIONS:]


@cache
def _template() -> Template:
    name = "layers/history"
    path = shipped_templates() / f"{name}.md"
    return Template.parse(path.read_text(encoding="utf-8"), name=name, source="builtin", path=str(path))
