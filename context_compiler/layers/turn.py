"""What one turn decided and did, read from its state as far as it has come.

A state is a mapping with the keys of `TurnState`, all of which may be missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypedDict, cast, get_args

from context_compiler.errors import LayersError
from context_compiler.layers.conversation import listed, pending_of, record_of, text_of
from context_compiler.layers.formatting import one_line
from context_compiler.layers.models import (
    CurationSummary,
    Decision,
    PendingState,
    Phase,
    StepSummary,
    StepType,
    TurnExecutionSummary,
)
from context_compiler.layers.outcomes import RefOf, blocked_reason, count_of, entities_involved, generic_outcome
from context_compiler.layers.refs import shown_data
from context_compiler.layers.registry import SessionIdRegistry, registry_of

DECISIONS: tuple[str, ...] = get_args(Decision)
PHASES: tuple[str, ...] = get_args(Phase)
STEP_TYPES: tuple[str, ...] = get_args(StepType)

EXPRESSED = (
    (re.compile(r"\b(?:no|not|without|except|exclude|avoid|don't|do not)\b", re.I), "excluded"),
    (re.compile(r"\b(?:want|prefer|like|love|need|rather)\b", re.I), "wants"),
    (re.compile(r"\b(?:quick|fast|easy|simple)\b", re.I), "wants quick options"),
    (re.compile(r"^\s*(?:yes|yep|ok|okay|sure|please do|go ahead|sounds good)\b", re.I), "confirmed"),
    (re.compile(r"\?"), "asked"),
)
"""What words say about a wish, and how it is put where nobody put it better; the first that fits."""


class TurnState(TypedDict, total=False):
    """The state of a turn, as its nodes fill it in."""

    id_registry: SessionIdRegistry | Mapping[str, Any] | None
    current_turn: int
    """Counted from 1; when missing, the registry's."""
    conversation: Mapping[str, Any] | None
    """What is stored of the session: a `ConversationContext`."""
    user_message: str
    understand_output: Mapping[str, Any]
    """`entity_curation` with `retained`, `demoted` and `reasons`; `clarification_questions` where it has to ask."""
    think_output: Mapping[str, Any]
    """`decision`, `goal`, planned `steps`, `proposal_message`, `clarification_questions`, `user_expressed`."""
    steps: list[Any]
    """What was done: `type`, `subdomain`, `description`, `result`, `result_summary`, `note`, each optional."""
    step_results: Mapping[Any, Any]
    """The same by number, for the planned steps."""
    step_metadata: Mapping[Any, Any]
    """By number: `result_summary` and `note_for_next_step`."""
    prev_step_note: str | None
    content_archive: Mapping[str, Any]
    blocked_action: Any
    """A text, or `details` and `attempted_context` with `tool`, `table` and `items`."""
    final_response: str
    engagement_summary: str
    timestamp: str


def turn_of(state: Mapping[str, Any]) -> int:
    """The number of the turn; 0 counts as said."""
    turn = state.get("current_turn")
    if turn is None:
        return registry_of(state.get("id_registry")).current_turn
    if isinstance(turn, bool) or not isinstance(turn, int) or turn < 0:
        raise LayersError(f"current_turn is {turn!r}; give a number, counted from 1")
    return turn


def current_curation(state: Mapping[str, Any]) -> CurationSummary:
    """What Understand kept and let go of in this turn."""
    output = record_of(state.get("understand_output"), "understand_output")
    given = record_of(output.get("entity_curation", output), "entity_curation")
    reasons = record_of(given.get("reasons"), "entity_curation.reasons")
    return CurationSummary(
        retained=[str(ref) for ref in listed(given, "retained")],
        demoted=[str(ref) for ref in listed(given, "demoted")],
        reasons={str(ref): str(reason) for ref, reason in reasons.items()},
    )


def done_steps(state: Mapping[str, Any]) -> list[StepSummary]:
    """What this turn did so far, each step with its outcome and the entities it touched."""
    found = list(_done(state))
    if not found:
        return []
    ref_of = _finder(registry_of(state.get("id_registry")))
    return [_summary(one, ref_of) for one in found]


def results_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """What each step of this turn gave back, by number, with refs in place of ids."""
    refs = registry_of(state.get("id_registry")).refs
    return {
        str(one["step_num"]): shown_data(one["result"], refs, text_of(one, "subdomain"))
        for one in _done(state)
        if one.get("result") is not None
    }


def _done(state: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every step that was done: the plain list, or else the planned ones that have a result."""
    for at, given in enumerate(listed(state, "steps"), start=1):
        one = record_of(given, f"steps[{at - 1}]")
        yield {**one, "step_num": _step_number(one.get("step_num"), at)}
    if state.get("steps"):
        return
    plan = listed(record_of(state.get("think_output"), "think_output"), "steps")
    results = _numbered(state, "step_results")
    metadata = _numbered(state, "step_metadata")
    first = 0 if 0 in results or 0 in metadata else 1
    for number in sorted({*results, *metadata}):
        at = number - first
        planned = record_of(plan[at] if 0 <= at < len(plan) else None, f"think_output.steps[{at}]")
        said = record_of(metadata.get(number), f"step_metadata[{number}]")
        yield {**planned, **said, "step_num": at + 1, "result": results.get(number)}


def _step_number(given: object, at: int) -> int:
    if given is None:
        return at
    if not isinstance(given, bool) and isinstance(given, int | str) and str(given).isdecimal():
        return int(given)
    raise LayersError(f"steps[{at - 1}].step_num is {given!r}; give a number, counted from 1")


def _numbered(state: Mapping[str, Any], key: str) -> dict[int, Any]:
    given = record_of(state.get(key), key)
    wrong = next((name for name in given if not str(name).isdecimal()), None)
    if wrong is not None:
        raise LayersError(f"{key}[{wrong!r}] is no step; give numbers")
    return {int(name): value for name, value in given.items()}


def _summary(one: Mapping[str, Any], ref_of: RefOf) -> StepSummary:
    kind = text_of(one, "type") or text_of(one, "step_type")
    subdomain, result = text_of(one, "subdomain"), one.get("result")
    refs = [str(ref) for ref in listed(one, "entities_involved")] or entities_involved(result, subdomain, ref_of)
    return StepSummary(
        step_num=one["step_num"],
        type=cast(StepType, kind if kind in STEP_TYPES else "read"),
        subdomain=subdomain,
        description=text_of(one, "description"),
        outcome=text_of(one, "result_summary") or text_of(one, "outcome") or generic_outcome(result),
        entities_involved=refs,
        note=text_of(one, "note") or text_of(one, "note_for_next_step") or None,
    )


def _finder(registry: SessionIdRegistry) -> RefOf:
    """Finds refs; by id alone only what a UUID names, as small numbers name something in every table."""

    def ref_of(type: str, id: object) -> str | None:
        name = str(id)
        return registry.ref_of(type, id) if type else name if name in registry else registry.refs.named(name)

    return ref_of


def execution_summary(state: Mapping[str, Any]) -> TurnExecutionSummary:
    """What this turn decided and did so far."""
    think = record_of(state.get("think_output"), "think_output")
    decision = text_of(think, "decision")
    steps = done_steps(state)
    return TurnExecutionSummary(
        turn_num=turn_of(state),
        think_decision=cast(Decision, decision) if decision in DECISIONS else None,
        think_goal=text_of(think, "goal"),
        steps=steps,
        entity_curation=current_curation(state),
        conversation_phase=_phase(think, decision, steps),
        user_expressed=text_of(think, "user_expressed") or expressed(text_of(state, "user_message")),
        blocked_reason=blocked_reason(state.get("blocked_action") or state.get("blocked_reason")),
    )


def _phase(think: Mapping[str, Any], decision: str, steps: list[StepSummary]) -> Phase:
    """How far the conversation has come: as Think says, else from what was decided and done."""
    said = text_of(think, "conversation_phase")
    if said in PHASES:
        return cast(Phase, said)
    if decision in ("propose", "clarify"):
        return "confirming" if decision == "propose" else "exploring"
    done = {step.type for step in steps}
    if "write" in done:
        return "executing"
    return "confirming" if "generate" in done else "narrowing" if "analyze" in done else "exploring"


def expressed(message: str) -> str:
    """What the user wished, in their own words, where words say that they did; else empty."""
    said = next((how for pattern, how in EXPRESSED if pattern.search(message)), "")
    if not said or said == "wants quick options" or said == "confirmed":
        return said
    return f"{said}: {one_line(message, 120)}"


def asked_now(state: Mapping[str, Any]) -> PendingState | None:
    """What this turn asks the user: a proposal, a question of Think or Understand, or what a block leaves open."""
    understand = record_of(state.get("understand_output"), "understand_output")
    think = record_of(state.get("think_output"), "think_output")
    blocked: object = state.get("blocked_action")
    if text_of(think, "decision") in ("propose", "clarify"):
        return pending_of({**think, "type": think["decision"], "context": None})
    if understand.get("clarification_questions"):
        return pending_of({**understand, "type": "understand", "context": None})
    if isinstance(blocked, Mapping):
        action = record_of(cast(object, blocked), "blocked_action")
        if action.get("suggested_next") == "ask_user":
            return pending_of({"type": "ask_user", "context": blocked_reason(action)})
    return None


def execution_outcomes(state: Mapping[str, Any]) -> str:
    """What this turn did, on one line: each step with how many items it gave, or that it is completed or done."""
    said: list[str] = []
    for one in _done(state):
        count = count_of(one.get("result"))
        how = f"{count} items" if count is not None else "completed" if one.get("result") is not None else "done"
        said.append(f"{one_line(text_of(one, 'description') or 'step', 120)}: {how}")
    return "; ".join(said)
