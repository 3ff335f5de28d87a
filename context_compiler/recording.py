"""From what happened to what is remembered: rows for the record, redaction, and a breaker for the store.

The conversation matters more than its record: whatever goes wrong here is reported and the request goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, cast

from context_compiler.agent import Answer
from context_compiler.cutting import Cut, Options
from context_compiler.frozen import spans
from context_compiler.history import History
from context_compiler.ids import chained, identity
from context_compiler.prompt import Order
from context_compiler.record import Compile, Drop, Entry, Record

Redact = Callable[[str], str]
"""Given a text, what of it may be kept."""

NO_SURVIVAL = "survival: not measured"
NO_IDENTIFIERS = "identifier ledger: none"


def now() -> datetime:
    """The time, in UTC."""
    return datetime.now(UTC)


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
    cut: Cut,
    options: Options,
    *,
    order: Order | None,
    answer: Answer | None,
    status: str,
    error: str | None,
    summary: str,
    quotes: str,
    budget_used: int,
) -> Compile:
    """One compile as it goes on the record; `order` is None where no model was asked."""
    notes = [NO_SURVIVAL] + ([] if order else ["prompt, raw_output, cache_key: no model was asked"])
    parsed = json_object(answer.text) if answer else None
    if answer and parsed is None:
        notes.append("summary_json: the answer is not a JSON object")
    template = options.template
    return Compile(
        session_id=where.session_id,
        vault_name=where.vault_name,
        turn_index=where.turn_index,
        run_id=where.run_id,
        covered_tip=cut.history.ids[cut.out[-1]] if cut.out else "",
        cache_key=order.key if order and status == "ok" else None,
        template_name=template.name,
        template_source=template.source,
        template_path=template.path,
        template_hash=template.sha256,
        fidelity=str(options.fidelity),
        model_alias=options.model,
        compiled_prompt="\n\n".join(order.prompts).replace("\x00", "") if order else None,
        raw_output=answer.text if answer else None,
        summary=summary or quotes or None,
        summary_json=parsed,
        input_payload=_payload(cut, order),
        sections_included=order.included if order else (("quotes",) if quotes else ()),
        sections_dropped=order.dropped if order else (),
        budget_used=budget_used,
        survival=None,
        latency_ms=answer.latency_ms if answer else 0.0,
        usage=answer.usage if answer else {},
        status="; ".join([status, *notes]),
        error=error,
        created_at=now(),
    )


def _payload(cut: Cut, order: Order | None) -> dict[str, object]:
    """What went in, by reference: positions and the chain that they are positions of."""
    payload: dict[str, object] = {
        "raw_tip": cut.history.tip,
        "left_out": [list(span) for span in spans(cut.out)],
        "compiled": [list(span) for span in spans(cut.span)],
    }
    return payload | ({"missing": list(order.missing), "prompts": len(order.prompts)} if order else {})


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


def by_reason(drops: Sequence[Drop]) -> list[dict[str, object]]:
    """Drops as the ledger shows them: one line a reason, with how many and how much."""
    lines: dict[str, dict[str, object]] = {}
    for drop in drops:
        line = lines.setdefault(drop.reason, {"reason": drop.reason, "count": 0, "tokens": 0, "what": []})
        line["count"] = cast(int, line["count"]) + 1
        line["tokens"] = cast(int, line["tokens"]) + drop.tokens
        named = cast(list[str], line["what"])
        if len(named) < 20:
            named.append(drop.what)
    return list(lines.values())


@dataclass(frozen=True, slots=True)
class Redacted:
    """A chain as it may be kept: every text of every message through `redact`."""

    ids: tuple[str, ...]
    bodies: tuple[bytes, ...]
    texts: tuple[str, ...]

    def body(self, index: int) -> bytes:
        """The canonical JSON of message `index`, redacted."""
        return self.bodies[index]

    def text(self, index: int) -> str:
        """The searchable text of message `index`, redacted."""
        return self.texts[index]


class Redactor:
    """Redacts chains, each message once; names them by what is left."""

    def __init__(self, redact: Redact) -> None:
        """Keep what `redact` returns."""
        self.redact = redact
        self._done: dict[str, tuple[bytes, str]] = {}

    def chain(self, history: History) -> Redacted:
        """The chain of a history as it may be kept."""
        ids: list[str] = []
        bodies: list[bytes] = []
        texts: list[str] = []
        parent: str | None = None
        for index, name in enumerate(history.ids):
            if name not in self._done:
                body = self._clean(json.loads(history.body(index)))
                self._done[name] = json.dumps(body, ensure_ascii=False).encode(), self.redact(history.text(index))
            body, text = self._done[name]
            parent = chained(parent, identity(body))
            ids.append(parent)
            bodies.append(body)
            texts.append(text)
        return Redacted(ids=tuple(ids), bodies=tuple(bodies), texts=tuple(texts))

    _STRUCTURE = frozenset(
        {"kind", "part_kind", "tool_call_id", "timestamp", "media_type", "run_id", "conversation_id"}
    )

    def _clean(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.redact(value)
        if isinstance(value, list):
            return [self._clean(one) for one in cast(list[Any], value)]
        if isinstance(value, dict):
            given = cast(dict[str, Any], value)
            return {key: one if key in self._STRUCTURE else self._clean(one) for key, one in given.items()}
        return value

    def compile(self, row: Compile) -> Compile:
        """A compile as it may be kept; it is never used again, since it no longer says what it said."""
        return replace(
            row,
            cache_key=None,
            compiled_prompt=self.redact(row.compiled_prompt) if row.compiled_prompt else row.compiled_prompt,
            raw_output=self.redact(row.raw_output) if row.raw_output else row.raw_output,
            summary=self.redact(row.summary) if row.summary else row.summary,
            summary_json=None,
            status=f"{row.status}; summary_json, cache_key: redacted",
        )


def bare(row: Compile) -> Compile:
    """A compile without any content: what `record="metadata"` keeps."""
    return replace(
        row,
        covered_tip="",
        cache_key=None,
        compiled_prompt=None,
        raw_output=None,
        summary=None,
        summary_json=None,
        status=f"{row.status}; content: record is metadata",
    )


def entry(
    record: Record,
    raw: History,
    view: History,
    *,
    row: Compile | None,
    cycle: Any,
    keep: str,
    redactor: Redactor | None,
) -> Entry:
    """All that a request adds to the record, as far as it may be kept."""
    if keep == "metadata":
        kept = replace(record, raw_tip=None, view_tip=None, status=f"{record.status}; content: record is metadata")
        return Entry(record=kept, raw=None, view=None, compile=bare(row) if row else None)
    if redactor is None:
        return Entry(record=record, raw=raw, view=view, compile=row, cycle=cycle)
    was, sent = redactor.chain(raw), redactor.chain(view)
    kept = replace(record, raw_tip=was.ids[-1] if was.ids else None, view_tip=sent.ids[-1] if sent.ids else None)
    if row is not None:
        row = replace(
            redactor.compile(row), covered_tip=dict(zip(raw.ids, was.ids, strict=True)).get(row.covered_tip, "")
        )
    return Entry(record=kept, raw=was, view=sent, compile=row)


def ledger(sections: Mapping[str, int], drops: Sequence[Drop], kept: Sequence[tuple[int, str]]) -> dict[str, Any]:
    """Where the tokens went, why messages are there, and what was dropped for which reason."""
    reasons: dict[str, int] = {}
    for _, reason in kept:
        reasons[reason] = reasons.get(reason, 0) + 1
    return {"tokens": dict(sections), "kept": reasons, "dropped": by_reason(drops)}
