"""From what happened to rows for the record, whose status explains every column that is empty."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from context_compiler.compiler.cycle import spans
from context_compiler.compiler.plan import Selection
from context_compiler.compiler.policy import Policy
from context_compiler.compiler.specifics import Specific, lost_specifics, survival
from context_compiler.compiler.summary import SummaryRequest, SummaryResponse
from context_compiler.errors import CompileError
from context_compiler.messages.history import History
from context_compiler.record.values import Compile, now, with_null_reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Which request of which conversation this is."""

    session_id: str
    vault_name: str = ""
    run_id: str | None = None
    turn_index: int = 0
    request_index: int = 0


def compile_row(
    where: Where,
    selection: Selection,
    *,
    order: SummaryRequest | None,
    answer: SummaryResponse | None,
    status: str,
    error: str | None,
    summary: str,
    quotes: str,
    budget_used: int,
) -> Compile:
    """One compile as it goes on the record; `order` is None where no model was asked."""
    parsed = json_object(answer.text) if answer else None
    gone = (
        lost_specifics(selection.history, selection.draft.outline, selection.span) if order and status == "ok" else None
    )
    row = _row(
        where,
        selection.policy,
        covered_tip=selection.history.ids[selection.out[-1]] if selection.out else "",
        cache_key=order.key if order and status == "ok" else None,
        compiled_prompt=_prompts(order) if order else None,
        raw_output=answer.text if answer else None,
        summary=summary or quotes or None,
        summary_json=parsed,
        input_payload=_payload(selection, order) | _specifics(gone, summary, quotes),
        sections_included=order.included if order else (("quotes",) if quotes else ()),
        sections_dropped=order.dropped if order else (),
        budget_used=budget_used,
        survival=None if gone is None else survival(gone, summary).share,
        latency_ms=answer.latency_ms if answer else 0.0,
        usage=answer.usage if answer else {},
        status=status,
        error=error,
    )
    why = {"summary_json": "the answer is not a JSON object", "cache_key": "not to be used again"}
    why["survival"] = "the answer is not used"
    if order is None:
        why = dict.fromkeys([*why, "compiled_prompt", "raw_output"], "no model was asked")
    return with_null_reasons(row, why)


def failed_row(where: Where, history: History, policy: Policy, order: SummaryRequest, error: CompileError) -> Compile:
    """A compile that came to nothing: what was asked is kept, and why nothing came."""
    row = _row(
        where,
        policy,
        covered_tip=history.tip or "",
        compiled_prompt=_prompts(order),
        input_payload={"raw_tip": history.tip, "missing": list(order.missing), "prompts": len(order.prompts)},
        sections_included=order.included,
        sections_dropped=order.dropped,
        status="failed",
        error=str(error),
        usage=error.usage,
    )
    return with_null_reasons(
        row, dict.fromkeys(("raw_output", "summary", "summary_json", "cache_key", "survival"), "no answer came")
    )


def _row(where: Where, policy: Policy, **given: Any) -> Compile:
    template = policy.template
    empty: dict[str, Any] = {
        "cache_key": None,
        "raw_output": None,
        "summary": None,
        "summary_json": None,
        "budget_used": 0,
        "survival": None,
        "latency_ms": 0.0,
        "usage": {},
    }
    return Compile(
        session_id=where.session_id,
        vault_name=where.vault_name,
        turn_index=where.turn_index,
        run_id=where.run_id,
        template_name=template.name,
        template_source=template.source,
        template_path=template.path,
        template_hash=template.sha256,
        fidelity=str(policy.fidelity),
        model_alias=policy.model,
        created_at=now(),
        **{**empty, **given},
    )


def _prompts(order: SummaryRequest) -> str:
    return "\n\n".join(order.prompts).replace("\x00", "")


def _payload(selection: Selection, order: SummaryRequest | None) -> dict[str, object]:
    """Input by reference: positions, and the chain that they are positions of."""
    payload: dict[str, object] = {
        "raw_tip": selection.history.tip,
        "left_out": [list(span) for span in spans(selection.out)],
        "compiled": [list(span) for span in spans(selection.span)],
    }
    return payload | ({"missing": list(order.missing), "prompts": len(order.prompts)} if order else {})


def _specifics(gone: Sequence[Specific] | None, summary: str, quotes: str) -> dict[str, object]:
    """Counts of identifiers: in the span, in the summary, and in summary and quotes together."""
    if gone is None:
        return {}
    alone, both = survival(gone, summary), survival(gone, summary, quotes)
    return {"specifics": {"found": alone.found, "in_summary": alone.kept, "in_view": both.kept}}


def json_object(text: str) -> dict[str, object] | None:
    """The answer as a JSON object, when it happens to be one, bare or in a fence."""
    body = text.strip()
    if body.startswith("```"):
        body = body.strip("`").removeprefix("json").strip()
    try:
        value: object = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return cast(dict[str, object], value) if isinstance(value, dict) else None
