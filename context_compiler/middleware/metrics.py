"""OpenTelemetry metrics of requests and compiles: numbers with a few fixed labels, no content and no names.

Without a meter provider they cost next to nothing. A label outside its known values becomes `other`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from opentelemetry.metrics import get_meter
from pydantic_ai.usage import RequestUsage

from context_compiler import errors
from context_compiler.record.values import Compile, Record
from context_compiler.tokens.prices import cost_of

VIEW_STATUSES = ("raw", "mended", "compiled", "cycle", "fallback", "floor_over_budget", "dry_run")
COMPILE_STATUSES = ("ok", "deterministic", "refused", "failed", "skipped")

_METER = get_meter("context_compiler")
_VIEWS = _METER.create_counter("context_compiler.views", "{view}", "Requests, by status of their view")
_VIEW_TIME = _METER.create_histogram("context_compiler.view.duration", "s", "Time to make a view and its compile")
_RAW = _METER.create_counter("context_compiler.tokens.raw", "{token}", "Tokens of requests as raw history")
_SENT = _METER.create_counter("context_compiler.tokens.sent", "{token}", "Tokens that were sent")
_INPUT = _METER.create_counter("context_compiler.tokens.input", "{token}", "Input tokens reported by providers")
_CACHED = _METER.create_counter("context_compiler.tokens.cached", "{token}", "Input tokens read from a prompt cache")
_COMPILES = _METER.create_counter("context_compiler.compiles", "{compile}", "Compiles, by status")
_COMPILE_TIME = _METER.create_histogram("context_compiler.compile.duration", "s", "Time of a compile with a model")
_COMPILE_TOKENS = _METER.create_counter("context_compiler.compile.tokens", "{token}", "Tokens of compiles")
_COST = _METER.create_counter("context_compiler.cost", "USD", "Cost of requests and compiles with known prices")
_UNPRICED = _METER.create_counter("context_compiler.unpriced", "{call}", "Calls to models without a known price")
_ERRORS = _METER.create_counter("context_compiler.errors", "{error}", "Errors that did not stop a run, by type")


def count_view(record: Record) -> None:
    """Count a request and its compile, if it needed one."""
    status = {"status": label(record.status.partition(";")[0], VIEW_STATUSES)}
    _VIEWS.add(1, status)
    _VIEW_TIME.record(record.latency_ms / 1_000, status)
    _RAW.add(record.tokens_raw)
    _SENT.add(record.tokens_sent)
    if record.compile is not None:
        _count_compile(record.compile)


def _count_compile(row: Compile) -> None:
    status = {"status": label(row.status.partition(";")[0], COMPILE_STATUSES)}
    _COMPILES.add(1, status)
    if not any(row.usage.values()):
        return
    _COMPILE_TIME.record(row.latency_ms / 1_000, status)
    for kind in ("input", "output"):
        _COMPILE_TOKENS.add(row.usage.get(f"{kind}_tokens", 0), {"kind": kind})
    _count_cost("compile", row.model_alias, row.usage)


def count_response(model: str, provider: str | None, usage: RequestUsage) -> None:
    """Count the usage that a provider reported for a request."""
    _INPUT.add(usage.input_tokens)
    _CACHED.add(usage.cache_read_tokens)
    names = ("input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens")
    _count_cost("request", model, {name: getattr(usage, name) for name in names}, provider)


def _count_cost(kind: str, model: str, usage: Mapping[str, int], provider: str | None = None) -> None:
    cost = cost_of(model, usage, provider)
    if cost is None:
        _UNPRICED.add(1, {"kind": kind})
    else:
        _COST.add(float(cost), {"kind": kind})


def count_error(error: Exception) -> None:
    """Count an error that was reported and did not stop a run."""
    _ERRORS.add(1, {"type": label(type(error).__name__, vars(errors))})


def label(value: str, values: Collection[str]) -> str:
    """The value if it is known, else `other`."""
    return value if value in values else "other"
