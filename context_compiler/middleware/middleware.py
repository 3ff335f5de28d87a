"""`Middleware`, the layer between host and compiler: turns one request into the messages to send, and never fails it.

The order of steps is fixed: the messages before a window, the layers, the view or its fallback, the record, the
callbacks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

from pydantic_ai import RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model

from context_compiler.cache import Memo
from context_compiler.compiler.summary import SummaryRequest, SummaryResponse
from context_compiler.compiler.view import View
from context_compiler.errors import SettingsError
from context_compiler.middleware.archive import Archive
from context_compiler.middleware.arguments import Arguments
from context_compiler.middleware.compile_tool import hand_on
from context_compiler.middleware.earlier import before_window
from context_compiler.middleware.fallback import fallback, unreadable_parts
from context_compiler.middleware.layer_blocks import LayerBlocks
from context_compiler.middleware.manual import Manual
from context_compiler.middleware.next_request import Profile
from context_compiler.middleware.off_loop import off_loop
from context_compiler.middleware.provider_counts import ProviderCounts
from context_compiler.middleware.recording import Recording
from context_compiler.middleware.reports import Reports, operation
from context_compiler.middleware.request import (
    Conversation,
    Host,
    Request,
    is_durable,
    is_long,
    is_size_of,
    session_of,
)
from context_compiler.middleware.respond import advance_again, respond
from context_compiler.middleware.rule_check import declared_rules
from context_compiler.middleware.single_flight import Summaries, unless_by_hand
from context_compiler.middleware.spending import SummaryCall
from context_compiler.middleware.state import CompilerState, Result, Run, read_history
from context_compiler.middleware.store_access import limited
from context_compiler.record.values import check_owner
from context_compiler.resilience import TimeLimit, attempt, try_await
from context_compiler.settings import Settings
from context_compiler.tokens import PROVIDER, Ratios

T = TypeVar("T")

PROFILES = 64
"""Maximum number of conversations whose last request is kept in memory."""


class Middleware:
    """State and services that all runs of one `ContextCompiler` share."""

    def __init__(self, arguments: Arguments) -> None:
        """Check the arguments; open nothing.

        Raises:
            SettingsError: A value is wrong.
        """
        arguments.check()
        self.arguments = arguments
        self.state = CompilerState.of(arguments)
        self._reports = Reports(arguments)
        self.report, self.report_once = self._reports.report, self._reports.report_once
        self.archive = Archive(arguments, self.report)
        """Archive of the owner that is known without a run; `scoped` gives those of other owners."""
        self.recording = Recording(self.state, self.archive, self._reports)
        self._layer_blocks: LayerBlocks | None = None
        if arguments.layers is not None or arguments.recall_across:
            self._layer_blocks = LayerBlocks(self.state, self.archive, self.report)
        self._summaries = Summaries(arguments, self.state.counter, self.report)
        self.ratios = Ratios()
        self._counts: ProviderCounts | None = None
        if arguments.counter == PROVIDER:
            self._counts = ProviderCounts(arguments, self.state, self.ratios, self.report, self._off_loop)
        self._profiles: Memo[Conversation, Profile] = Memo(PROFILES)
        self._ready = False

    async def _prepare(self) -> None:
        """Read the environment and create the system folder; done once, at the first request."""
        if self._ready:
            return
        self._ready = True
        settings = attempt(Settings.from_environment)
        self.state.settings = settings.value or self.state.settings
        for outcome in (settings, attempt(self.arguments.templates(None).seed)):
            if outcome.error is not None:
                await self.report(outcome.error)

    async def load_counter(self) -> None:
        """Load the encoding of the token counter in a thread; done once, at the first request."""
        if not self.state.counter.is_ready:
            await try_await(asyncio.to_thread(self.state.counter.load))

    def remember(self, request: Request, model: Model) -> None:
        """Remember how a conversation is sent, for compiles and pins by hand."""
        self._profiles.keep(request.conversation, Profile(request=replace(request, messages=[], own=()), model=model))

    async def steer(self, work: Callable[[Manual], Awaitable[T]], owner: str | None) -> T:
        """Run a manual operation on a conversation of an owner."""
        await self._prepare()
        archive = await self.archive_of(owner)
        with operation():
            manual = Manual(self.state, archive, self.ratios, self._profiles.get, self._summaries, self.report)
            return await work(manual)

    async def view(self, run: Run, request: Request, host: Host) -> View:
        """Make and record the view of a request. Raises nothing but cancellation."""
        with operation(), limited(self.arguments.record_timeout):
            started = time.perf_counter()
            run.failed = None
            run.limit = TimeLimit(self.arguments.timeout)
            await self._prepare()
            await self._reports.report_unpriced(request)
            request = await self.archive.scoped(request.owner).earlier.prepend(run, request, self.state.reader)
            if self._layer_blocks is not None:
                request = await self._layer_blocks.attach(run, request)
            run.request, result = await self._view_or_fallback(run, request, host)
            request = run.request
            await self._reports.report_shortfalls(request, result)
            return await self.recording.deliver(run, request, result, started)

    async def declared_rules(self, run: Run, ctx: RunContext[Any]) -> tuple[str, ...]:
        """Rules that the application declares for a request; the error of a function that fails is reported."""
        texts, errors = await declared_rules(self.arguments.rules, run, ctx, self.arguments.timeout)
        for error in errors:
            await self.report_once(str(error), error)
        return texts

    async def record_unchanged(self, run: Run, request: Request, *, after: asyncio.Task[None] | None) -> None:
        """Record a request that is sent unchanged, once the task `after` is done; an error is reported."""
        if after is not None:
            await asyncio.wait({after})
        with operation(), limited(self.arguments.record_timeout):
            outcome = await try_await(self._record_unchanged(run, request))
            if outcome.error is not None:
                await self.report(outcome.error)

    async def _record_unchanged(self, run: Run, request: Request) -> None:
        started = time.perf_counter()
        run.request = request
        history = await read_history(self.state.reader, run, request.messages)
        result = Result.unchanged(request, history, self.ratios.of(request.family), self.state.counter)
        self._settle(run, request, result)
        await self.recording.deliver(run, request, result, started)

    async def _view_or_fallback(self, run: Run, request: Request, host: Host) -> tuple[Request, Result]:
        """Make the view of a request or its fallback; return it with the request that it answers.

        The layers are dropped from that request if the prompt or the smallest possible request needs their room.
        """
        counts = None if host.is_durable else self._counts
        counted = await counts.calibrate(run, request, host) if counts else None
        outcome = await try_await(self._respond(run, request, host))
        result = outcome.value
        if result is not None:
            if counts:
                result = await counts.verify(run, request, host, result, counted)
            self._settle(run, request, result)
            if result.fault is not None:
                await self.report(result.fault)
            bare = self._layer_blocks.drop(run, request, result) if self._layer_blocks else None
            if bare is not None:
                request = bare
                less = partial(advance_again, self.state, run, request, result=result)
                again = (await try_await(self._off_loop(run, request, host, less))).value
                if again is not None:
                    result = await counts.verify(run, request, host, again, None) if counts else again
                    self._settle(run, request, result)
        else:
            await self.report(error := outcome.error or RuntimeError("no view"))
            result = await self._off_loop(run, request, host, partial(fallback, self.state, run, request, error=error))
            if (lost := unreadable_parts(request, result)) is not None:
                await self.report(lost)
            self._settle(run, request, result)
        return request, result

    async def _respond(self, run: Run, request: Request, host: Host) -> Result:
        result = await self._off_loop(run, request, host, partial(respond, self.state, run, request))
        return result if run.limit.error is None else replace(result, fault=run.limit.error)

    async def _off_loop(
        self, run: Run, request: Request, host: Host, work: Callable[..., Coroutine[Any, Any, Result]]
    ) -> Result:
        """Run `work` with the host; off the event loop if the request is long, or cannot be measured."""
        if attempt(lambda: is_long(request.messages, run.raw)).value is False:
            return await work(host=host)
        return await off_loop(lambda there: work(host=there), host, run.limit)

    def _settle(self, run: Run, request: Request, result: Result) -> None:
        changed = result.next_cycle is not None and result.next_cycle is not run.cycle
        run.settle(result)
        if result.pairing is not None and not result.pairing.waiting:
            self.state.pairing = result.pairing
        if result.next_cycle is not None and (changed or result.began):
            self.archive.scoped(request.owner).remember_cycle(result.next_cycle, request.session_id)
        if result.blocks is not None and result.blocks is not run.recorded_blocks:
            self.archive.remember_blocks(result.blocks)
        if result.notes or self.state.notes.get(request.conversation):
            self.state.notes.keep(request.conversation, result.notes)

    async def owner_of(self, ctx: RunContext[Any]) -> str | None:
        """The owner of a run; None if the function that names it fails, in which case nothing is saved or found."""
        name = self.arguments.owner
        if not callable(name):
            return self.archive.owner
        outcome = attempt(lambda: check_owner(name(ctx)))
        if outcome.value is None:
            await self.report(outcome.error or SettingsError("owner= returned None: give a name"))
        return outcome.value

    async def compile(self, call: SummaryCall) -> SummaryResponse:
        """Make one summary; a failure is returned as data. It is refused while the conversation is compiled by hand."""
        return await unless_by_hand(self._with_own_model(call), self._summaries.answer)

    async def launch(self, ctx: RunContext[Any], request: SummaryRequest) -> asyncio.Task[SummaryResponse] | None:
        """Start a summary as a task of this loop; None in a durable workflow, where a replay could not find it."""
        if is_durable(ctx):
            return None
        call = await self.summary_call(ctx, request.key, request.prompts, request.cap)
        return await self._summaries.launch(self._with_own_model(call))

    def _with_own_model(self, call: SummaryCall) -> SummaryCall:
        """The call with the compiler's own model, if it has one, instead of the run's."""
        return call if self.arguments.model is None else replace(call, writer=self.arguments.model)

    async def summary_call(self, ctx: RunContext[Any], key: str, prompts: Sequence[str], cap: int = 0) -> SummaryCall:
        """A summary that a run needs, for its conversation and by its model."""
        archive = self.archive.scoped(await self.owner_of(ctx))
        writer, session = cast(Model, ctx.model), session_of(ctx)
        return SummaryCall(key=key, prompts=prompts, cap=cap, writer=writer, archive=archive, session=session)

    async def close(self) -> None:
        """Cancel the background work of this event loop, and close the store."""
        await self.state.pending.end()
        await self._summaries.wait_until_withdrawn()
        await self.recording.record_unused()
        await self.archive.settle()
        await self.archive.access.close()

    async def begin(self, owner: str | None, session: str, ids: list[str], config: str) -> dict[str, Any]:
        """Starting state of a run, as plain data: where it starts from, and the learned ratios."""
        with limited(self.arguments.record_timeout):
            start = await self.archive.scoped(owner).start(session, ids, config)
        return {**start, "ratios": self.ratios.state()}

    def learn(self, run: Run, request: Request | None, response: ModelResponse) -> None:
        """Count a reported usage, and learn from it if it is the size of one of our requests."""
        self.recording.count_usage(request, response)
        if request is None:
            return
        run.retried = False
        if run.sent and not self.arguments.dry_run and is_size_of(request, response):
            for ratios in (run.ratios, self.ratios):
                ratios.learn(request.family, exact=run.sent, reported=response.usage.input_tokens)

    async def finish_run(self, run: Run, ctx: RunContext[Any], messages: list[ModelMessage]) -> None:
        """Archive the raw history of a run including its last answer."""
        whole = [*before_window(run, messages, self.state.reader), *messages]
        history = (await try_await(read_history(self.state.reader, run, whole))).value
        await self.recording.record_unused()
        if history is not None and messages:
            since = (archive := self.archive.scoped(await self.owner_of(ctx))).access.moment()
            with operation(), limited(self.arguments.record_timeout):
                await archive.save_raw(session_of(ctx), history)
            archive.earlier.remember(session_of(ctx), history, since)

    async def hand_on(self, run: Run, ctx: RunContext[Any]) -> None:
        """Keep the compile that an agent ordered for the next run, if no request of its own has used it."""
        if run.prepared is None:
            return
        with operation(), limited(self.arguments.record_timeout):
            archive = self.archive.scoped(await self.owner_of(ctx))
            outcome = await try_await(hand_on(run, run.prepared, archive, session_of(ctx)))
            if outcome.error is not None:
                await self.report(outcome.error)

    async def transcript(self, session: str, owner: str | None) -> list[ModelMessage]:
        """The raw history of a conversation; StoreError if it cannot be read."""
        return await (await self.archive_of(owner)).transcript(session)

    async def archive_of(self, owner: str | None) -> Archive:
        """The archive of an owner, after its delayed writes; None means the only owner.

        Raises:
            SettingsError: `owner` is None, but a function names the owner of each run.
        """
        if owner is None and callable(self.arguments.owner):
            raise SettingsError("owner= is a function of the run: name the owner whose record this is about")
        archive = self.archive if owner is None else self.archive.scoped(check_owner(owner))
        await archive.settle()
        return archive
