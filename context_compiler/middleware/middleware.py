"""Between the host and the compiler: one request in, the messages to send out, whatever happens.

The order is always the same: the view (or what stands in for it), the record, callbacks, the messages.
"""

from __future__ import annotations

import inspect
import logging
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model

from context_compiler.compiler.agent import Answer
from context_compiler.compiler.cycle import Frozen
from context_compiler.compiler.rows import now
from context_compiler.compiler.view import View
from context_compiler.errors import BudgetError, CompileError, ContextCompilerError
from context_compiler.middleware.archive import Archive
from context_compiler.middleware.arguments import Wanted
from context_compiler.middleware.compiling import Compiling
from context_compiler.middleware.fallback import fallback
from context_compiler.middleware.layering import crowded, layered
from context_compiler.middleware.request import Request
from context_compiler.middleware.respond import respond
from context_compiler.middleware.state import Live, Result, Run
from context_compiler.record.values import Record, with_null_reasons
from context_compiler.resilience import attempt, attempted
from context_compiler.settings import Settings
from context_compiler.template.library import TemplateLibrary
from context_compiler.tokens import as_counter
from context_compiler.tokens.calibration import Ratios

LOG = logging.getLogger("context_compiler")


class Middleware:
    """What all runs of one `ContextCompiler` share."""

    def __init__(self, wanted: Wanted) -> None:
        """Check what was asked for; open nothing.

        Raises:
            SettingsError: A value is wrong.
        """
        wanted.check()
        self.wanted = wanted
        self.runs = 0
        self.last_view: View | None = None
        self.live = Live(
            wishes=wanted.wishes(),
            asked=wanted.asked(),
            templates=TemplateLibrary(vault=wanted.vault, system=wanted.system),
            counter=as_counter(wanted.counter),
            vault_name=wanted.vault_name,
            model=wanted.compiler_name(),
        )
        self.archive = Archive(wanted, self.live.cycles, self.report)
        self._compiling = Compiling(wanted, self.archive)
        self._ratios = Ratios()
        self._settled = False

    async def _settle(self) -> None:
        """At the first request the environment and the system folder are looked at, and not before."""
        if self._settled:
            return
        self._settled = True
        found = attempt(Settings.from_environment)
        self.live.settings = found.value or self.live.settings
        for outcome in (found, attempt(self.live.templates.seed)):
            if outcome.error is not None:
                await self.report(outcome.error)

    async def view(self, run: Run, request: Request) -> View:
        """What to send for a request, on the record. Never raises but for cancellation."""
        started = time.perf_counter()
        run.failed = None
        await self._settle()
        request = await layered(self.live, run, request, self.wanted, self.report)
        outcome = await attempted(respond(self.live, run, request))
        result = outcome.value
        if result is not None and (alone := crowded(run, request, result.view)) is not None:
            request, result = alone, (await attempted(respond(self.live, run, alone))).value or result
        if result is None:
            error = outcome.error or RuntimeError("no view")
            await self.report(error)
            result = await fallback(self.live, run, request, error)
        if result.view.status == "floor_over_budget":
            await self.report(BudgetError(f"even the least is over the budget of {result.view.budget} tokens"))
        run.sent, run.budget = result.cost if result.limit else 0, result.limit
        view = await self._kept(run, request, result, (time.perf_counter() - started) * 1000)
        run.requests += 1
        self.last_view = view
        await self._tell(self.wanted.on_view, view)
        return view

    async def _kept(self, run: Run, request: Request, result: Result, latency: float) -> View:
        """The view with its record, which is on disk before the request goes out."""
        record = self._record(run, request, result, latency)
        fresh = result.frozen is not None and result.frozen is not run.kept
        record = await self.archive.keep(record, result, result.frozen if fresh else None)
        if result.frozen is not None:
            self._linked(run, result.frozen, record)
        if result.began or result.row is not None:
            _log(record, result)
        return replace(result.view, record=record)

    def _linked(self, run: Run, frozen: Frozen, record: Record) -> None:
        """Let a cycle that was kept know the row of its compile; its next request keeps that too."""
        if record.id is None:
            return
        run.kept = frozen
        failed = record.compile is not None and record.compile.status.startswith("failed")
        if run.frozen is frozen and not failed and frozen.summary_id != record.summary_id:
            known = replace(frozen, summary_id=record.summary_id)
            run.reword(known)
            self.live.cycles.keep(known)

    def _record(self, run: Run, request: Request, result: Result, latency: float) -> Record:
        view, ratio = result.view, result.ratio
        status = "dry_run" if self.wanted.dry_run else view.status
        sent = request.overhead + result.raw.tokens if self.wanted.dry_run else result.cost
        record = Record(
            session_id=request.session_id,
            vault_name=self.wanted.vault_name,
            turn_index=result.turn,
            run_id=request.run_id,
            request_index=run.requests,
            raw_tip=result.raw.tip,
            view_tip=result.sent.tip,
            status=status,
            error=view.error,
            budget=view.budget,
            tokens_raw=round((request.overhead + result.raw.tokens) * ratio),
            tokens_sent=round(sent * ratio),
            tokens_exact=sent,
            ratio=ratio,
            ledger=view.ledger,
            request_hash=request.hash,
            latency_ms=latency,
            created_at=now(),
            summary_id=result.frozen.summary_id if result.frozen and result.row is None else None,
            compile=result.row,
        )
        return with_null_reasons(record)

    async def compile(self, key: str, prompts: Sequence[str], model: Model) -> Answer:
        """One compile; its failure is an answer too."""
        return await self._compiling.answer(key, prompts, model)

    async def begin(self, ids: list[str], config: str) -> dict[str, Any]:
        """What a run starts from: the newest cycle of the last of these ids that has one, and what was learnt."""
        found = await self.archive.cycle(ids, config)
        return {"cycle": found.to_json() if found else None, "ratios": self._ratios.state()}

    def learn(self, run: Run, request: Request | None, reported: int) -> None:
        """Take a reported count in, if it is about a request of ours."""
        if request is not None and run.sent and not self.wanted.dry_run:
            for ratios in (run.ratios, self._ratios):
                ratios.learn(request.family, exact=run.sent, reported=reported)

    async def finished(self, run: Run, session_id: str, messages: list[ModelMessage]) -> None:
        """Keep the raw history with the last answer of a run."""
        history = attempt(lambda: self.live.reader.read(messages, last=run.raw)).value
        if history is not None and messages:
            await self.archive.raw(session_id, history)

    async def views(self, session: str | None) -> list[Record]:
        """What is on the record; StoreError if it cannot be read."""
        try:
            return await self.archive.store.views(session)
        finally:
            await self.rest()

    async def transcript(self, session: str) -> list[ModelMessage]:
        """The raw history of a conversation; StoreError if it cannot be read."""
        try:
            return await self.archive.transcript(session)
        finally:
            await self.rest()

    async def rest(self) -> None:
        """Let go of the store when no run is left."""
        if self.runs == 0:
            await self.archive.rest()

    async def report(self, error: Exception) -> None:
        """Say what failed: in the log, and to `on_error`."""
        LOG.warning("context_compiler: %s", loggable(error))
        await self._tell(self.wanted.on_error, error)

    async def _tell(self, callback: Callable[[Any], Any] | None, what: Any) -> None:
        if callback is None:
            return
        outcome = await attempted(_called(callback, what))
        if outcome.error is not None:
            LOG.warning("context_compiler: a callback raised %s", loggable(outcome.error))


async def _called(callback: Callable[[Any], Any], what: Any) -> None:
    """Call a callback, plain or async."""
    given = callback(what)
    if inspect.isawaitable(given):
        await given


def loggable(error: Exception) -> str:
    """What the log may say of an error: what others wrote into theirs may repeat what somebody said."""
    kind = type(error).__name__
    if isinstance(error, CompileError):
        return f"{kind}: {error.phase} ({error.model})"
    if isinstance(error, ContextCompilerError):
        return f"{kind}: {error}"
    place = traceback.extract_tb(error.__traceback__)
    return f"{kind} in {place[-1].name}, line {place[-1].lineno}" if place else kind


def _log(record: Record, result: Result) -> None:
    """One line a compile: before, after, what stayed, whether a model was asked, how long it took."""
    kept = sum(reading.prompts for reading in result.sent.readings)
    LOG.info(
        "%s → %s tokens, %d %s kept, %s, %.1f s",
        f"{record.tokens_raw:,}",
        f"{round(result.cost * result.ratio):,}",
        kept,
        "turn" if kept == 1 else "turns",
        "1 compile" if result.row is not None and result.row.compiled_prompt else "no model asked",
        record.latency_ms / 1000,
    )
