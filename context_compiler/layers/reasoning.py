"""Layer 3: decisions and findings, at the level of detail that each node needs. A blocked turn stays visible."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

from context_compiler.errors import LayersError
from context_compiler.layers.models import (
    CurationSummary,
    ReasoningTrace,
    StepSummary,
    TurnExecutionSummary,
    as_mapping,
    list_field,
    parse_layer,
    text_field,
)
from context_compiler.layers.refs import label, mask_ids, single_line
from context_compiler.layers.turn import execution_summary

Reader = Literal["think", "act", "reply"]
READERS: tuple[str, ...] = get_args(Reader)
EMPTY = "No prior reasoning context."
FULL_TURNS = 2
"""Number of turns whose summaries are kept in full."""
DECISIONS_SHOWN = 10
"""Maximum entries of Understand's own decision log in its prompt."""


def get_reasoning_trace(
    conversation: Mapping[str, Any] | None, current_state: Mapping[str, Any] | None = None
) -> ReasoningTrace:
    """Return the summaries of the last two turns, and of the turn in progress if it has a step or is blocked.

    Raises:
        LayersError: A stored value is wrong; the message names it.
    """
    fields = as_mapping(conversation, "conversation")
    stored = list_field(fields, "turn_summaries")  # all are parsed, so that a wrong one is reported even if it is old
    summaries = [_parse_summary(summary, index) for index, summary in enumerate(stored)][-FULL_TURNS:]
    now = None if current_state is None else execution_summary(as_mapping(current_state, "current_state"))
    in_progress = now is not None and bool(now.steps or now.blocked_reason)
    return ReasoningTrace(
        recent_summaries=[*summaries, now] if now is not None and in_progress else summaries,
        reasoning_summary=text_field(fields, "reasoning_summary"),
        in_progress=in_progress,
    )


def _parse_summary(stored: object, index: int) -> TurnExecutionSummary:
    fields = {key: value for key, value in as_mapping(stored, f"turn_summaries[{index}]").items() if value is not None}
    return parse_layer(TurnExecutionSummary, fields, f"turn_summaries[{index}]")


def get_own_decision_history(conversation: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return Understand's own decisions, oldest first, each with turn, ref, action and reason."""
    log = list_field(as_mapping(conversation, "conversation"), "understand_decision_log")
    return [dict(as_mapping(decision, f"understand_decision_log[{index}]")) for index, decision in enumerate(log)]


def get_outcomes(conversation: Mapping[str, Any] | None, state: Mapping[str, Any]) -> ReasoningTrace:
    """Return the outcomes of this turn, or of the last one if this has no steps, without plans, notes or refs.

    Raises:
        LayersError: A stored value is wrong.
    """
    trace, now = get_reasoning_trace(conversation, state), execution_summary(state)
    decided = now.think_decision is not None and not trace.in_progress
    shown = [*trace.recent_summaries[-1:], now] if decided else trace.recent_summaries[-1:]
    kept = [
        TurnExecutionSummary(
            turn_num=turn.turn_num,
            steps=[
                step.model_copy(update={"subdomain": "", "entities_involved": [], "note": None}) for step in turn.steps
            ],
            conversation_phase=turn.conversation_phase,
            user_expressed=turn.user_expressed,
            blocked_reason=turn.blocked_reason,
        )
        for turn in shown
    ]
    return ReasoningTrace(recent_summaries=kept, in_progress=decided or trace.in_progress)


def format_reasoning_for_prompt(trace: ReasoningTrace | Sequence[StepSummary], node: str) -> str:
    """Format the reasoning for a prompt.

    Args:
        trace: The reasoning, or only the steps of this turn.
        node: think (everything), act (steps and notes of this turn) or reply (outcomes, phase, the user's wish).

    Raises:
        LayersError: The node is unknown, or `trace` is not a reasoning trace.
    """
    if node not in READERS:
        raise LayersError(f"node {node!r} has no view of the reasoning; use one of {', '.join(READERS)}")
    if isinstance(trace, list | tuple):
        steps = [parse_layer(StepSummary, step, f"steps[{index}]") for index, step in enumerate(trace)]
        trace = ReasoningTrace(recent_summaries=[TurnExecutionSummary(steps=steps)], in_progress=True)
    trace = parse_layer(ReasoningTrace, trace, "reasoning")
    now = _current(trace)
    if node == "act":
        lines = list(_step_lines(now.steps)) if now else []
    elif node == "reply":
        lines = list(_reply_lines(trace, now))
    else:
        lines = list(_think_lines(trace))
    return mask_ids("\n".join(lines)) or EMPTY


format_reasoning = format_reasoning_for_prompt


def _current(trace: ReasoningTrace) -> TurnExecutionSummary | None:
    """Return the turn in progress, or the last one if the trace does not say whether a turn is in progress."""
    return trace.recent_summaries[-1] if trace.recent_summaries and trace.in_progress is not False else None


def _think_lines(trace: ReasoningTrace) -> Iterator[str]:
    if trace.reasoning_summary.strip():
        yield f"Earlier: {single_line(trace.reasoning_summary)}"
    now = _current(trace) if trace.in_progress else None
    past = [turn for turn in trace.recent_summaries if turn is not now]
    for turn in past[:-1]:
        yield f"Turn {turn.turn_num}: {_turn_line(turn)}"
        yield from _blocked_lines(turn)
    for title, turn in (("Last turn", past[-1] if past else None), ("This turn so far", now)):
        if turn is not None:
            yield f"{title}: {_turn_line(turn)}"
            yield from _step_lines(turn.steps)
            yield f"Phase: {label(turn.conversation_phase)}"
            yield from _wish_lines(turn)
            yield from curation_lines(turn.entity_curation)
            yield from _blocked_lines(turn)


def _reply_lines(trace: ReasoningTrace, now: TurnExecutionSummary | None) -> Iterator[str]:
    """Iterate over lines for Reply: outcomes of this turn, or of the last one if this has no steps."""
    past = [turn for turn in trace.recent_summaries if turn is not now]
    newest = now or (past[-1] if past else None)
    if newest is not None:
        yield f"Phase: {label(newest.conversation_phase)}"
        yield from _wish_lines(newest)
    idle = now is None or not (now.steps or now.blocked_reason)
    for when, turn in (("", now), (" last turn", past[-1] if past and idle else None)):
        if turn is not None:
            done = "; ".join(_accomplishment(step) for step in turn.steps)
            yield from [f"Accomplished{when}: {done}"] if done else []
            yield from _blocked_lines(turn, when)


def _accomplishment(step: StepSummary) -> str:
    texts = (single_line(step.description), single_line(step.outcome))
    return ": ".join(text for text in texts if text)


def _turn_line(turn: TurnExecutionSummary) -> str:
    decided = f" (decided {label(turn.think_decision)})" if turn.think_decision else ""
    goal = single_line(turn.think_goal) or "no goal"
    done = ", ".join(f"{label(step.type)}: {single_line(step.outcome)}" for step in turn.steps)
    return f"{goal}{decided}; {done}" if done else f"{goal}{decided}"


def _step_lines(steps: Sequence[StepSummary]) -> Iterator[str]:
    for step in steps:
        kind = ", ".join(part for part in (label(step.type), single_line(step.subdomain)) if part)
        refs = f" [{', '.join(map(label, step.entities_involved))}]" if step.entities_involved else ""
        yield f"- step {step.step_num} ({kind}): {_accomplishment(step)}{refs}"
        if step.note:
            yield f"  note: {single_line(step.note)}"


def _wish_lines(turn: TurnExecutionSummary) -> Iterator[str]:
    if turn.user_expressed.strip():
        yield f"User expressed: {single_line(turn.user_expressed)}"


def _blocked_lines(turn: TurnExecutionSummary, when: str = "") -> Iterator[str]:
    if turn.blocked_reason:
        yield f"Blocked{when}: {single_line(turn.blocked_reason)}"


def curation_lines(curation: CurationSummary) -> Iterator[str]:
    """Iterate over the lines of a curation: one for the retained entities, one for the demoted ones."""
    for title, refs in (("Retained", curation.retained), ("Demoted", curation.demoted)):
        reasons = [_ref_with_reason(ref, curation.reasons.get(ref, "")) for ref in refs]
        if reasons:
            yield f"{title}: {', '.join(reasons)}"


def _ref_with_reason(ref: str, reason: str) -> str:
    return f"{label(ref)} ({label(reason)})" if reason.strip() else label(ref)


def format_curation(curation: CurationSummary) -> str:
    """Format the curation of this turn for Think; empty if there is none."""
    return mask_ids("\n".join(curation_lines(curation)))


def format_decision_history(log: Sequence[Mapping[str, Any]]) -> str:
    """Format the newest entries of Understand's own decision log for its prompt, oldest first."""
    lines: list[str] = []
    for decision in log[-DECISIONS_SHOWN:]:
        action, ref = label(text_field(decision, "action")), label(text_field(decision, "ref"))
        line = f"- turn {text_field(decision, 'turn')}: {action} {ref}".rstrip()
        reason = text_field(decision, "reason")
        lines.append(f"{line} ({label(reason)})" if reason else line)
    return "\n".join(lines) or EMPTY
