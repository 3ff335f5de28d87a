"""Build the rows of compiles for the record; each says why each of its empty columns is empty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from context_compiler.compiler.cut_order import Selection
from context_compiler.compiler.cycle import Cycle
from context_compiler.compiler.policy import Policy
from context_compiler.compiler.specifics import Specific, lost_specifics, survival
from context_compiler.compiler.summary import SummaryRequest, SummaryResponse
from context_compiler.compiler.view import summary_of
from context_compiler.errors import CompileError
from context_compiler.messages.history import History
from context_compiler.messages.items import parse_arguments
from context_compiler.messages.spans import spans
from context_compiler.record.values import Compile, now, with_null_reasons
from context_compiler.resilience import in_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Identity of a request."""

    session_id: str
    vault_name: str
    run_id: str | None
    turn_index: int
    request_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Answer of the model, or the reason why it was not asked."""

    status: str
    error: str | None
    request: SummaryRequest | None = None
    answer: SummaryResponse | None = None

    @property
    def compiled(self) -> int | None:
        """Number of messages of the span that the answer covers; None if there is no answer."""
        if self.request is None or self.answer is None:
            return None
        done = len(self.request.covers) if self.answer.done is None else self.answer.done
        return self.request.covers[done - 1] if done else 0


def compile_row(where: Where, selection: Selection, reply: Reply, cycle: Cycle) -> Compile:
    """Build the row of one compile."""
    request, answer, compiled = reply.request, reply.answer, reply.compiled
    summary, quotes = summary_of(cycle), cycle.quotes
    whole = compiled is None or compiled == len(selection.span)
    used = request is not None and reply.status == "ok"
    history, outline, span = selection.history, selection.draft.outline, selection.span
    lost = in_time(lambda: lost_specifics(history, outline, span), None) if used else None
    row = _compile_row(
        where,
        selection.policy,
        covered_tip=selection.history.exact[selection.out[-1]] if selection.out else "",
        cache_key=request.key if request and used and whole else None,
        compiled_prompt=_prompts(request) if request else None,
        raw_output=answer.text if answer else None,
        summary=summary or quotes or None,
        summary_json=json_object(answer.text) if answer else None,
        input_payload=_payload(selection, request, compiled) | _specifics(lost, summary, quotes),
        sections_included=request.included if request else (("quotes",) if quotes else ()),
        sections_dropped=request.dropped if request else (),
        budget_used=selection.counter.text(cycle.note) + selection.counter.text(quotes),
        survival=None if lost is None else survival(lost, summary).share,
        latency_ms=answer.latency_ms if answer else 0.0,
        usage=answer.usage if answer else {},
        status=reply.status,
        error=reply.error,
    )
    why = {"summary_json": "the answer is not a JSON object", "cache_key": "not to be used again"}
    why["survival"] = "there was no time to read it" if used else "the answer is not used"
    if request is None:
        why = dict.fromkeys([*why, "compiled_prompt", "raw_output"], "no model was asked")
    return with_null_reasons(row, why)


def failed_row(where: Where, history: History, policy: Policy, request: SummaryRequest, error: CompileError) -> Compile:
    """Build the row of a failed compile, with the prompts and the error."""
    empty = ("raw_output", "summary", "summary_json", "cache_key", "survival")
    row = _compile_row(
        where,
        policy,
        covered_tip=history.chain.tip or "",
        compiled_prompt=_prompts(request),
        input_payload={"raw_tip": history.chain.tip, "missing": list(request.missing), "prompts": len(request.prompts)},
        sections_included=request.included,
        sections_dropped=request.dropped,
        budget_used=0,
        latency_ms=0.0,
        status="failed",
        error=str(error),
        usage=error.usage,
        **dict.fromkeys(empty),
    )
    return with_null_reasons(row, dict.fromkeys(empty, "no answer came"))


def _compile_row(where: Where, policy: Policy, **values: Any) -> Compile:
    template = policy.template
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
        **values,
    )


def _prompts(request: SummaryRequest) -> str:
    return "\n\n".join(request.prompts).replace("\x00", "")


def _payload(selection: Selection, request: SummaryRequest | None, compiled: int | None) -> dict[str, object]:
    """Input of a compile by reference: positions of messages, and the tip of the chain to which they refer."""
    payload: dict[str, object] = {
        "raw_tip": selection.history.chain.tip,
        "left_out": [list(span) for span in spans(selection.out)],
        "compiled": [list(span) for span in spans(selection.span[:compiled])],
    }
    if later := spans(selection.span[compiled:] if compiled is not None else ()):
        payload["left_to_the_next"] = [list(span) for span in later]
    return payload | ({"missing": list(request.missing), "prompts": len(request.prompts)} if request else {})


def _specifics(lost: Sequence[Specific] | None, summary: str, quotes: str) -> dict[str, object]:
    """Number of identifiers in the span, in the summary, and in summary and quotes together."""
    if lost is None:
        return {}
    alone, both = survival(lost, summary), survival(lost, summary, quotes)
    return {"specifics": {"found": alone.found, "in_summary": alone.kept, "in_view": both.kept}}


def json_object(text: str) -> dict[str, object] | None:
    """Parse an answer that is a JSON object, bare or in a code fence; None if it is not."""
    body = text.strip()
    if body.startswith("```"):
        body = body.strip("`").removeprefix("json").strip()
    return parse_arguments(body)
