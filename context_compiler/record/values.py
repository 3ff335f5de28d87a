"""What is remembered: one value a compile, one a request, and the chains of messages they point to.

Everything here is frozen and says nothing about where it is kept; `store` keeps it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Protocol, TypeVar


class Chain(Protocol):
    """A history as names and bodies: `ids[i]` names message `i` as reached by all before it."""

    @property
    def ids(self) -> Sequence[str]:
        """One chained id a message, oldest first."""
        ...

    def body(self, index: int) -> bytes:
        """The canonical JSON of message `index`."""
        ...

    def text(self, index: int) -> str:
        """The searchable text of message `index`; empty when it has none."""
        ...


def now() -> datetime:
    """The time, in UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Something a view or a prompt left out, and why."""

    what: str
    reason: str
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Compile:
    """One compile: what went in, what came out, what it cost. One row of `context_summaries`."""

    session_id: str
    vault_name: str
    turn_index: int
    run_id: str | None
    covered_tip: str
    """Chain id of the last raw message that the summary covers."""
    cache_key: str | None
    """Names span, template, fidelity, model and cap; None unless this compile may be used again."""
    template_name: str
    template_source: str
    template_path: str | None
    template_hash: str
    fidelity: str
    model_alias: str
    compiled_prompt: str | None
    raw_output: str | None
    summary: str | None
    summary_json: Mapping[str, object] | None
    input_payload: Mapping[str, object] | None
    sections_included: tuple[str, ...]
    sections_dropped: tuple[Drop, ...]
    budget_used: int
    """Tokens of what stands in the view for what is left out: the summary, and with it what is quoted."""
    survival: float | None
    """Share of the specifics of what was compiled that the summary holds, 0 to 1; None where no answer was used."""
    latency_ms: float
    usage: Mapping[str, int]
    status: str
    """First word ok, deterministic, refused, failed or skipped; then, after `;`, why a column is NULL."""
    error: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """What stays frozen between two compiles, found again by the chain id of the last message it decides on."""

    tip: str
    config: str
    """Names how its views are written; another way of writing them has cycles of its own."""
    state: str
    """JSON text, written and read by the compiler alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One request: what was at hand, what was sent instead, and what both cost. One row of `views`."""

    session_id: str
    vault_name: str
    turn_index: int
    """0-based ordinal of the user turn."""
    run_id: str | None
    request_index: int
    """0-based ordinal of the model request within its run."""
    raw_tip: str | None
    view_tip: str | None
    status: str
    """First word raw, compiled, cycle, fallback, floor_over_budget or dry_run; after `;` why a column is NULL."""
    error: str | None
    budget: int | None
    tokens_raw: int
    """Calibrated tokens of the raw request: messages, instructions and schemas."""
    tokens_sent: int
    """Calibrated tokens of what was sent."""
    tokens_exact: int
    """`tokens_sent` before the model's learnt ratio."""
    ratio: float
    ledger: Mapping[str, object]
    request_hash: str | None
    """SHA-256 of instructions, tools and settings."""
    latency_ms: float
    created_at: datetime
    id: int | None = None
    """Row number, once stored."""
    summary_id: int | None = None
    """Row number of the compile whose summary this view carries."""
    compile: Compile | None = field(default=None, repr=False)
    """That compile, where it was loaded or has just been made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """All that one request adds to the record: saved whole or not at all."""

    record: Record
    raw: Chain | None
    view: Chain | None
    compile: Compile | None = None
    """A compile made for this request; None when a stored one was used (`record.summary_id`) or none."""
    cycle: Cycle | None = None
    blocks: Cycle | None = None
    """What was recalled for the prompt of this request, under the chain id of that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """One conversation on the record."""

    session_id: str
    vault_name: str
    created_at: datetime
    last_at: datetime | None
    requests: int
    compiles: int
    tokens_raw: int
    """Sum over its requests of what sending everything would have cost."""
    tokens_sent: int
    raw_tip: str | None


WHY_EMPTY = {
    "error": "none",
    "run_id": "no run",
    "request_hash": "no run",
    "raw_tip": "the history is empty",
    "view_tip": "the view is empty",
    "template_path": "the template is no file",
    "summary": "nothing was written",
    "summary_id": "nothing was compiled",
    "survival": "not measured",
}
"""Why a column may be empty, where nothing else is said."""

Row = TypeVar("Row", Compile, Record)


def with_null_reasons(row: Row, why: Mapping[str, str] | None = None) -> Row:
    """A row whose status also gives the reason for every empty column.

    The number of a compile that is kept with its request is not known before, and is no empty column after.
    """
    why = why or {}
    reasons: dict[str, list[str]] = {}
    known_later = getattr(row, "compile", None) is not None and "summary_id" not in why
    given = ("id", "compile", "summary_id") if known_later else ("id", "compile")
    for name in (column.name for column in fields(row)):
        if getattr(row, name) is None and name not in given and not re.search(rf"\b{name}\b", row.status):
            reasons.setdefault(why.get(name) or WHY_EMPTY.get(name, "unknown"), []).append(name)
    notes = [f"{', '.join(names)}: {said}" for said, names in reasons.items()]
    return replace(row, status="; ".join([row.status, *notes]))
