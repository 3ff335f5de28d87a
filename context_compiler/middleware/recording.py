"""The record of a request: written before the request is sent, then passed to the metrics, the log and the callback."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from pydantic_ai.messages import ModelResponse

from context_compiler.compiler.view import View
from context_compiler.middleware.archive import Archive
from context_compiler.middleware.arguments import Arguments
from context_compiler.middleware.background import unused_row
from context_compiler.middleware.metrics import count_response, count_view
from context_compiler.middleware.prompt_cache import LastRequests
from context_compiler.middleware.reports import Reports, has_metrics, log_compile, warn_of_fewer_turns
from context_compiler.middleware.request import Request
from context_compiler.middleware.state import CompilerState, Result, Run
from context_compiler.record.values import PRICE, SETTINGS, Entry, Record, now, with_null_reasons
from context_compiler.resilience import try_await


class Recording:
    """Records the requests of one compiler, and passes them on."""

    def __init__(self, state: CompilerState, archive: Archive, reports: Reports) -> None:
        self.last_view: View | None = None
        self.last_requests = LastRequests(archive, state.reader)
        self._state, self._archive, self._reports = state, archive, reports
        self._warned_of_turns = False
        """True after a warning that fewer turns are kept than the caller wants."""

    async def deliver(self, run: Run, request: Request, result: Result, started: float) -> View:
        """Record the view of a request that began at `started`, and pass it to the callbacks."""
        view = await self._record(run, request, result, (time.perf_counter() - started) * 1000)
        run.requests += 1
        if view.record is not None and has_metrics():
            count_view(view.record)
        self.last_view = view
        await self._reports.call_back("on_view", view)
        return view

    async def _record(self, run: Run, request: Request, result: Result, latency: float) -> View:
        cycle, archive = result.cycle, self._archive.scoped(request.owner)
        price = (await try_await(self.last_requests.price_facts(request, result))).value
        record = record_of(self._state.arguments, request, result, latency, request_index=run.requests, price=price)
        fresh = result.blocks if result.blocks is not run.recorded_blocks else None
        raw, view = result.raw.chain, result.sent.view_chain
        entry = Entry(record=record, raw=raw, view=view, compile=result.row, tools=request.tools)
        record = await archive.keep(entry, cycle if cycle is not run.recorded else None, fresh)
        if record.id is not None:
            run.recorded_blocks = result.blocks or run.recorded_blocks
        if cycle is not None and record.id is not None:
            idle = record.compile is not None and record.compile.status.startswith(("failed", "skipped"))
            recorded = run.record(cycle, record.summary_id, linked=not idle)
            if recorded is not None:
                archive.remember_cycle(recorded, request.session_id)
        if result.began or result.row is not None:
            log_compile(record, result)
        if result.began and not self._warned_of_turns:
            self._warned_of_turns = warn_of_fewer_turns(self._state.arguments, result)
        return replace(result.view, record=record)

    def count_usage(self, request: Request | None, response: ModelResponse) -> None:
        """Count the usage that a provider reported, and remember whether its cache was used for one of our requests."""
        usage = response.usage
        if has_metrics():
            count_response(response.model_name or "", response.provider_name, usage)
        if request is not None:
            self.last_requests.report(request, usage.cache_read_tokens + usage.cache_write_tokens)

    async def record_unused(self) -> None:
        """Record background compiles that no request will use, because they had a cost."""
        for job in self._state.pending.take_unused():
            row = unused_row(job)
            if row is not None:
                await self._archive.scoped(job.context.request.owner).keep_unsent(row, job.began)


def record_of(
    arguments: Arguments,
    request: Request,
    result: Result,
    latency: float,
    *,
    request_index: int = 0,
    price: Mapping[str, object] | None = None,
) -> Record:
    """The record of one request; `price` contains the facts that determine its price."""
    view, ratio = result.view, result.ratio
    sent = request.overhead + result.raw.tokens if arguments.dry_run else result.cost
    if price is not None and arguments.dry_run:
        price = {**price, "cached": price["cached_raw"]}
    ledger = {**view.ledger, SETTINGS: {"recall": arguments.recall, "trigger": arguments.trigger}}
    note = f"; a window, joined with {request.joined} earlier messages of the record" if request.joined else ""
    record = Record(
        session_id=request.session_id,
        vault_name=arguments.place,
        turn_index=result.turn,
        run_id=request.run_id,
        request_index=request_index,
        raw_tip=result.raw.chain.tip,
        view_tip=result.sent.view_chain.tip,
        status=("dry_run" if arguments.dry_run else view.status) + note,
        error=view.error,
        budget=view.budget or None,
        tokens_raw=round((request.overhead + result.raw.tokens) * ratio),
        tokens_sent=round(sent * ratio),
        tokens_exact=sent,
        ratio=ratio,
        ledger=ledger if price is None else {**ledger, PRICE: dict(price)},
        request_hash=request.hash,
        latency_ms=latency,
        created_at=now(),
        summary_id=result.cycle.summary_id if result.cycle and result.row is None else None,
        compile=result.row,
    )
    unread = "it cannot be read" if request.messages else ""
    return with_null_reasons(record, {"budget": "everything is sent", "raw_tip": unread, "view_tip": unread})
