"""Decisions, steps and outcomes of one turn, derived from its state at any point of the turn.

A state is a mapping with the keys of `TurnState`, all of them optional.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict, cast

from context_compiler.errors import LayersError
from context_compiler.layers.conversation import parse_pending
from context_compiler.layers.models import (
    CurationSummary,
    PendingState,
    StepSummary,
    TurnExecutionSummary,
    as_mapping,
    list_field,
    text_field,
)
from context_compiler.layers.refs import Ancestors, as_json_types, is_recursive, mask_data, single_line
from context_compiler.layers.registry import SessionIdRegistry, registry_of

WISH_PATTERNS = (
    (re.compile(r"\b(?:no|not|without|except|exclude|avoid|don't|do not)\b", re.I), "excluded"),
    (re.compile(r"\b(?:want|prefer|like|love|need|rather)\b", re.I), "wants"),
    (re.compile(r"\b(?:quick|fast|easy|simple)\b", re.I), "wants quick options"),
    (re.compile(r"^\s*(?:yes|yep|ok|okay|sure|please do|go ahead|sounds good)\b", re.I), "confirmed"),
    (re.compile(r"\?"), "asked"),
)
"""Patterns of a user's wish, used if Think reports none, with the word it is reported by; the first match wins."""


class TurnState(TypedDict, total=False):
    """State of a turn, which its nodes fill in."""

    id_registry: SessionIdRegistry | Mapping[str, Any] | None
    current_turn: int
    """Number of the turn, counted from 1; defaults to the registry's."""
    conversation: Mapping[str, Any] | None
    """Stored state of the session: a `ConversationContext`."""
    user_message: str
    understand_output: Mapping[str, Any]
    """`entity_curation` with `retained`, `demoted` and `reasons`; `clarification_questions` if it must ask the user."""
    think_output: Mapping[str, Any]
    """`decision`, `goal`, planned `steps`, `proposal_message`, `clarification_questions`, `user_expressed`."""
    steps: list[Any]
    """Executed steps: `type`, `subdomain`, `description`, `result`, `result_summary`, `note`, each optional."""
    step_results: Mapping[Any, Any]
    """Results of planned steps by step number."""
    step_metadata: Mapping[Any, Any]
    """`result_summary` and `note_for_next_step` by step number."""
    prev_step_note: str | None
    content_archive: Mapping[str, Any]
    blocked_action: Any
    """Reason as text, or a mapping with `details` and `attempted_context` (`tool`, `table`, `items`)."""
    final_response: str
    engagement_summary: str
    timestamp: str


def turn_number(state: Mapping[str, Any]) -> int:
    """Return the number of the turn: the state's, even if it is 0, else the registry's."""
    turn = state.get("current_turn")
    if turn is None:
        return registry_of(state.get("id_registry")).current_turn
    if isinstance(turn, bool) or not isinstance(turn, int) or turn < 0:
        raise LayersError(f"current_turn is {turn!r}; give a number, counted from 1")
    return turn


def get_current_curation(state: Mapping[str, Any]) -> CurationSummary:
    """Return the entities that were retained and demoted in this turn."""
    output = as_mapping(state.get("understand_output"), "understand_output")
    curation = as_mapping(output.get("entity_curation", output), "entity_curation")
    reasons = as_mapping(curation.get("reasons"), "entity_curation.reasons")
    return CurationSummary(
        retained=[str(ref) for ref in list_field(curation, "retained")],
        demoted=[str(ref) for ref in list_field(curation, "demoted")],
        reasons={str(ref): str(reason) for ref, reason in reasons.items()},
    )


def get_current_turn_steps(state: Mapping[str, Any]) -> list[StepSummary]:
    """Return the steps executed so far, each with its outcome and the entities involved."""
    steps = list(_executed_steps(state))
    if not steps:
        return []
    registry = registry_of(state.get("id_registry"))
    return [_step_summary(step, registry) for step in steps]


def step_results(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of each step of this turn by step number, with refs in place of ids."""
    refs = registry_of(state.get("id_registry")).refs
    return {
        str(step["step_num"]): mask_data(step["result"], refs, text_field(step, "subdomain"))
        for step in _executed_steps(state)
        if step.get("result") is not None
    }


def _executed_steps(state: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Iterate over the executed steps: `steps` of the state, else the planned steps that have a result."""
    for position, value in enumerate(list_field(state, "steps"), start=1):
        step = as_mapping(value, f"steps[{position - 1}]")
        yield {**step, "step_num": _step_number(step.get("step_num"), position)}
    if state.get("steps"):
        return
    plan = list_field(as_mapping(state.get("think_output"), "think_output"), "steps")
    results = _by_number(state, "step_results")
    metadata = _by_number(state, "step_metadata")
    first = 0 if 0 in results or 0 in metadata else 1  # some graphs count their steps from 0
    for number in sorted({*results, *metadata}):
        index = number - first
        planned = as_mapping(plan[index] if 0 <= index < len(plan) else None, f"think_output.steps[{index}]")
        facts = as_mapping(metadata.get(number), f"step_metadata[{number}]")
        yield {**planned, **facts, "step_num": index + 1, "result": results.get(number)}


def _step_number(value: object, position: int) -> int:
    if value is None:
        return position
    if not isinstance(value, bool) and isinstance(value, int | str) and str(value).isdecimal():
        return int(value)
    raise LayersError(f"steps[{position - 1}].step_num is {value!r}; give a number, counted from 1")


def _by_number(state: Mapping[str, Any], key: str) -> dict[int, Any]:
    values = as_mapping(state.get(key), key)
    wrong = next((name for name in values if not str(name).isdecimal()), None)
    if wrong is not None:
        raise LayersError(f"{key}[{wrong!r}] is not a step; give numbers")
    return {int(name): value for name, value in values.items()}


def _step_summary(step: Mapping[str, Any], registry: SessionIdRegistry) -> StepSummary:
    kind = (text_field(step, "type") or text_field(step, "step_type")).strip() or "read"
    subdomain, result = text_field(step, "subdomain"), step.get("result")
    refs = [str(ref) for ref in list_field(step, "entities_involved")]
    return StepSummary(
        step_num=step["step_num"],
        type=kind,
        subdomain=subdomain,
        description=text_field(step, "description"),
        outcome=text_field(step, "result_summary") or text_field(step, "outcome") or generic_outcome(result, kind),
        entities_involved=refs or list(dict.fromkeys(_iter_refs(result, subdomain, registry))),
        note=text_field(step, "note") or text_field(step, "note_for_next_step") or None,
    )


def _ref_of(registry: SessionIdRegistry, type: str, id: object) -> str | None:
    """Find a ref by type and id.

    Without a type, only refs and UUIDs are found, because a number may occur in every table.
    """
    if type:
        return registry.ref_of(type, id)
    name = str(id)
    return name if name in registry else registry.refs.by_uuid(name)


def execution_summary(state: Mapping[str, Any]) -> TurnExecutionSummary:
    """Summarize this turn so far."""
    think = as_mapping(state.get("think_output"), "think_output")
    decision = text_field(think, "decision").strip()
    steps = get_current_turn_steps(state)
    return TurnExecutionSummary(
        turn_num=turn_number(state),
        think_decision=decision or None,
        think_goal=text_field(think, "goal"),
        steps=steps,
        entity_curation=get_current_curation(state),
        conversation_phase=_phase(think, decision, steps),
        user_expressed=text_field(think, "user_expressed") or guess_wish(text_field(state, "user_message")),
        blocked_reason=blocked_reason(state.get("blocked_action") or state.get("blocked_reason")),
    )


def _phase(think: Mapping[str, Any], decision: str, steps: list[StepSummary]) -> str:
    """Return the phase of the conversation: as given by Think, else derived from the decision and the steps."""
    phase = text_field(think, "conversation_phase").strip()
    if phase:
        return phase
    if decision in ("propose", "clarify"):
        return "confirming" if decision == "propose" else "exploring"
    done = {step.type for step in steps}
    if "write" in done:
        return "executing"
    return "confirming" if "generate" in done else "narrowing" if "analyze" in done else "exploring"


def guess_wish(message: str) -> str:
    """Return the user's wish in their own words, if the wording shows one; else empty."""
    wish = next((how for pattern, how in WISH_PATTERNS if pattern.search(message)), "")
    if not wish or wish == "wants quick options" or wish == "confirmed":
        return wish
    return f"{wish}: {single_line(message, 120)}"


def pending_question(state: Mapping[str, Any]) -> PendingState | None:
    """Return the question that this turn asks the user: from Think, Understand or a blocked step; None if none."""
    understand = as_mapping(state.get("understand_output"), "understand_output")
    think = as_mapping(state.get("think_output"), "think_output")
    blocked: object = state.get("blocked_action")
    if text_field(think, "decision") in ("propose", "clarify"):
        return parse_pending({**think, "type": think["decision"], "context": None})
    if understand.get("clarification_questions"):
        return parse_pending({**understand, "type": "understand", "context": None})
    if isinstance(blocked, Mapping):
        action = as_mapping(cast(object, blocked), "blocked_action")
        if action.get("suggested_next") == "ask_user":
            return parse_pending({"type": "ask_user", "context": blocked_reason(action)})
    return None


def get_execution_outcomes(state: Mapping[str, Any]) -> str:
    """Format the steps of this turn on one line, each with its number of items, `completed` or `done`."""
    lines: list[str] = []
    for step in _executed_steps(state):
        count = record_count(step.get("result"))
        how = f"{count} items" if count is not None else "completed" if step.get("result") is not None else "done"
        lines.append(f"{single_line(text_field(step, 'description') or 'step', 120)}: {how}")
    return "; ".join(lines)


MAX_BLOCKED_ITEMS = 10
"""Maximum items shown of a blocked step."""


def generic_outcome(result: object, kind: str = "read") -> str:
    """Describe the outcome of a step without a summary: the number of records, or the name of the only one.

    `kind` is the type of the step: rows that it wrote or generated are not said to be found.
    """
    if isinstance(result, bool) or result is None:
        return "Completed"
    if isinstance(result, int):
        return "Processed 1 record" if result == 1 else f"Affected {result} records"
    operations = list(_operations(result))
    if len(operations) > 1:
        return f"Processed {sum(len(rows) for _, _, rows in operations)} records across {len(operations)} operations"
    if operations:
        tool, _, rows = operations[0]
        reads = "read" in tool or "find" in tool
        return _rows_outcome(rows, kind) if reads or not rows else _write_outcome(rows)
    if isinstance(result, Mapping):
        return _write_outcome([cast("Mapping[str, object]", result)])
    if isinstance(result, list | tuple):
        return _rows_outcome(cast("Sequence[object]", result), kind)
    return "Completed"


def _rows_outcome(rows: Sequence[object], kind: str) -> str:
    if kind == "write":
        return _write_outcome(rows)
    if kind == "generate":
        return "Generated 1 record" if len(rows) == 1 else f"Generated {len(rows)} records"
    if not rows:
        return "No records found"
    return "Found 1 record" if len(rows) == 1 else f"Found {len(rows)} records"


def _write_outcome(rows: Sequence[object]) -> str:
    if len(rows) != 1:
        return f"Affected {len(rows)} records"
    name = _row_name(rows[0])
    return f"Created/updated '{single_line(name, 80)}'" if name else "Processed 1 record"


def _row_name(row: object) -> str:
    if not isinstance(row, Mapping):
        return ""
    fields = cast("Mapping[str, Any]", row)
    return next((text for key in ("name", "title", "label") if (text := text_field(fields, key))), "")


def record_count(result: object) -> int | None:
    """Count the records in a result; None if the result has no list of records."""
    operations = list(_operations(result))
    if operations:
        return sum(len(rows) for _, _, rows in operations)
    return len(cast("Sequence[object]", result)) if isinstance(result, list | tuple) else None


def _operations(result: object) -> Iterator[tuple[str, str, Sequence[object]]]:
    """Iterate over tool, table and rows of each call in a result: `(tool, rows)`, `(tool, table, rows)`, or a list.

    A pair of two strings is not a call.
    """
    if isinstance(result, tuple):
        parts = cast("tuple[object, ...]", result)
        has_names = len(parts) in (2, 3) and all(isinstance(part, str) for part in parts[:-1])
        if has_names and not isinstance(parts[-1], str):
            yield str(parts[0]), str(parts[1]) if len(parts) == 3 else "", _rows(parts[-1])
    elif isinstance(result, list):
        for call in cast("list[object]", result):
            if isinstance(call, tuple):
                yield from _operations(cast(object, call))


def _rows(value: object) -> Sequence[object]:
    if isinstance(value, list | tuple):
        return cast("Sequence[object]", value)
    return [] if value is None else [value]


def _iter_refs(result: object, type: str, registry: SessionIdRegistry, ancestors: Ancestors = ()) -> Iterator[str]:
    """Iterate over the refs of all entities in a result, in order of occurrence."""
    result = as_json_types(result)
    if is_recursive(result, ancestors):
        return
    inside = (*ancestors, id(result))
    operations = list(_operations(result))
    if operations:
        for _, table, rows in operations:
            yield from _iter_refs(list(rows), table or type, registry, inside)
    elif isinstance(result, Mapping):
        yield from _row_refs(cast("Mapping[str, Any]", result), type, registry, inside)
    elif isinstance(result, list | tuple):
        for inner in cast("Sequence[object]", result):
            yield from _iter_refs(inner, type, registry, inside)
    elif isinstance(result, str) and (ref := _ref_of(registry, "", result)):
        yield ref


def _row_refs(row: Mapping[str, Any], type: str, registry: SessionIdRegistry, ancestors: Ancestors) -> Iterator[str]:
    ref = _ref_of(registry, "", row["ref"]) if row.get("ref") else None
    if ref is None and row.get("id") is not None:
        ref = _ref_of(registry, type, row["id"]) or _ref_of(registry, "", row["id"])
    if ref:
        yield ref
    for inner in map(as_json_types, row.values()):
        if isinstance(inner, list | tuple):
            yield from _iter_refs(list(cast("Sequence[object]", inner)), "", registry, ancestors)


def blocked_reason(blocked: object) -> str | None:
    """Return the reason why a turn is blocked, with the attempted call and its items; None if it is not blocked."""
    if not blocked:
        return None
    if isinstance(blocked, str):
        return blocked.strip() or None
    action = as_mapping(blocked, "blocked_action")
    details = text_field(action, "details") or text_field(action, "reason_code") or "Blocked"
    tried = as_mapping(action.get("attempted_context"), "blocked_action.attempted_context")
    tool, table = text_field(tried, "tool"), text_field(tried, "table")
    if not tool:
        return details
    rows = _rows(tried.get("items"))[:MAX_BLOCKED_ITEMS]
    items = [(row if isinstance(row, str) else _row_name(row)) or "unnamed" for row in rows]
    where = f"{tool} on {table}" if table else tool
    return f"{details} | {where}: {', '.join(items)}" if items else f"{details} | {where}"
