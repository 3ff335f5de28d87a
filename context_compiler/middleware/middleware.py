"""Between the host and the compiler: one request in, the messages to send out, whatever happens.

The order is always the same: the view (or what stands in for it), the record, callbacks, the messages.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from opentelemetry.metrics import get_meter_provider
from pydantic_ai import RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model

from context_compiler.cache import Memo
from context_compiler.compiler.cycle import Cycle
from context_compiler.compiler.steering import MARK, NONE, base_config, steering_of
from context_compiler.compiler.summary import SummaryRequest, SummaryResponse
from context_compiler.compiler.view import Quote, View
from context_compiler.errors import BudgetError, ContextCompilerError, SettingsError
from context_compiler.layers.context import (
    NO_LAYERS,
    LayerBlock,
    Need,
    drop_block,
    layer_block,
    layers_room,
    node_template,
    with_others,
)
from context_compiler.layers.session import Layers, LayerSource, load_state
from context_compiler.messages.printable import safe_line
from context_compiler.messages.prompts import asking_part, asks
from context_compiler.middleware.archive import Archive
from context_compiler.middleware.arguments import Arguments
from context_compiler.middleware.background import unused_row
from context_compiler.middleware.fallback import fallback, unrecorded
from context_compiler.middleware.log_lines import log_compile, log_text, warn_of_fewer_turns
from context_compiler.middleware.manual import Manual, Profile
from context_compiler.middleware.metrics import count_error, count_response, count_view
from context_compiler.middleware.off_loop import off_loop
from context_compiler.middleware.others import quoted_mentions
from context_compiler.middleware.prompt_cache import LastRequests, mark_move
from context_compiler.middleware.provider_counts import ProviderCounts
from context_compiler.middleware.request import JOINED, Host, Request, is_durable, is_long, session_of
from context_compiler.middleware.respond import advance_again, crowded_out, respond, unchanged
from context_compiler.middleware.single_flight import SESSIONS, Summaries
from context_compiler.middleware.state import CompilerState, Result, Run, read_history
from context_compiler.recall.ranking import question_text
from context_compiler.record.costs import PRICE
from context_compiler.record.database import Moment
from context_compiler.record.store import Tenants
from context_compiler.record.values import Record, check_owner, now, with_null_reasons
from context_compiler.resilience import attempt, call_within, try_await
from context_compiler.settings import Settings
from context_compiler.tokens import PROVIDER, Ratios

T = TypeVar("T")

PROFILES = 64
"""Conversations whose last request is remembered."""

LOG = logging.getLogger("context_compiler")


class Middleware:
    """State and services shared by all runs of one `ContextCompiler`."""

    def __init__(self, arguments: Arguments) -> None:
        """Check the arguments; open nothing.

        Raises:
            SettingsError: A value is wrong.
        """
        arguments.check()
        self.arguments = arguments
        self.runs = 0
        self.last_view: View | None = None
        self.state = CompilerState.of(arguments)
        self.archive = Archive(arguments, self.report)
        """The record of the owner that is known before any run; `scoped` gives those of others."""
        self._last_requests = LastRequests(self.archive, self.state.reader)
        self._summaries = Summaries(arguments, self.state.counter, self.report, self.rest)
        self._ratios = Ratios()
        self._counts: ProviderCounts | None = None
        if arguments.counter == PROVIDER:
            self._counts = ProviderCounts(arguments, self.state, self._ratios, self.report, self._off_loop)
        self._profiles: Memo[tuple[str | None, str], Profile] = Memo(PROFILES)
        self._ready = False
        self._reported: set[str] = set()
        """Messages of errors, and names of models without a price, that have been reported: each is, once."""
        self._short = False
        """A warning has said that fewer turns are kept than the caller wants."""

    async def _prepare(self) -> None:
        """Look at the environment and the system folder, at the first request and not before."""
        if self._ready:
            return
        self._ready = True
        found = attempt(Settings.from_environment)
        self.state.settings = found.value or self.state.settings
        for outcome in (found, attempt(self.arguments.templates(None).seed)):
            if outcome.error is not None:
                await self.report(outcome.error)

    async def load_counter(self) -> None:
        """Load the encoding of the token counter in a thread, at the first request and not before."""
        if not self.state.counter.is_ready:
            await try_await(asyncio.to_thread(self.state.counter.load))

    def remember(self, request: Request, model: Model) -> None:
        """Remember how a conversation is sent, for what is done to it by hand."""
        self._profiles.keep(
            (request.owner, request.session_id), Profile(request=replace(request, messages=[]), model=model)
        )

    async def steer(self, work: Callable[[Manual], Awaitable[T]], owner: str | None) -> T:
        """Do something by hand to a conversation of an owner, and let go of the store when no run is left."""
        await self._prepare()
        archive = await self._archive_of(owner)
        try:
            return await work(
                Manual(self.state, archive, self._ratios, self._profiles.get, self._summaries, self.report)
            )
        finally:
            await self.rest()

    async def view(self, run: Run, request: Request, host: Host) -> View:
        """The view of a request, on the record. Never raises but for cancellation."""
        started = time.perf_counter()
        run.fail(None)
        await self._prepare()
        if self.arguments.budget_unpriced(request.model, request.provider):
            await self._report_unpriced(request)
        request = await self._join(run, request)
        request, result = await self._result(run, await self._attach_layers(run, request), host)
        if result.view.status == "floor_over_budget":
            await self.report(BudgetError(f"even the least is over the budget of {result.view.budget} tokens"))
        return await self._deliver(run, request, result, started)

    async def keep_raw(self, run: Run, request: Request, *, after: asyncio.Task[None] | None) -> None:
        """Record a request that goes out as it is, `after` the one before it; a failure is reported."""
        if after is not None:
            await asyncio.wait({after})
        outcome = await try_await(self._keep_raw(run, request))
        if outcome.error is not None:
            await self.report(outcome.error)

    async def _keep_raw(self, run: Run, request: Request) -> None:
        started = time.perf_counter()
        history = await read_history(self.state.reader, run, request.messages)
        result = unchanged(request, history, self._ratios.of(request.family), self.state.counter)
        self._settle(run, request, result)
        await self._deliver(run, request, result, started)

    async def _deliver(self, run: Run, request: Request, result: Result, started: float) -> View:
        """The view of a request, on the record, and handed to those who listen."""
        view = await self._record_view(run, request, result, (time.perf_counter() - started) * 1000)
        run.count()
        if view.record is not None and _measured():
            count_view(view.record)
        self.last_view = view
        await self._tell(self.arguments.on_view, view)
        return view

    async def _report_unpriced(self, request: Request) -> None:
        """Report once a model that a budget in money is of no use with."""
        if request.model in self._reported:
            return
        self._reported.add(request.model)
        budget, _ = self.arguments.whole_budget(**request.terms)
        remedy = "give a budget in tokens, or Money(…, fallback=…)"
        unknown = f"budget={self.arguments.budget!r}: no price is known for {safe_line(request.model)}"
        await self.report(SettingsError(f"{unknown}, so it is {budget:,} tokens; {remedy}"))

    async def _join(self, run: Run, request: Request) -> Request:
        """The request with what the record holds before it, where an application gives a window of a conversation.

        Only conversations that the application names, or keeps in the host's store, are known again: other ids are new
        for every run.
        """
        read = False
        if run.earlier is None:
            run.join(())
            if len(request.messages) > 1 and not request.marked:
                window, read = (await try_await(read_history(self.state.reader, run, request.messages))).value, True
                if window is not None:
                    archive = self.archive.scoped(request.owner)
                    named, reader = bool(request.scope), self.state.reader
                    run.join(await archive.before_window(request.session_id, window, reader, named=named))
                if run.earlier and request.run_id:
                    JOINED.keep(request.run_id, run.earlier)
        if run.earlier:
            request = replace(request, messages=[*run.earlier, *request.messages], joined=len(run.earlier))
        if run.earlier or not read:
            await try_await(read_history(self.state.reader, run, request.messages))
        return request

    async def _result(self, run: Run, request: Request, host: Host) -> tuple[Request, Result]:
        """A view or its fallback, and the request that it answers.

        That goes without layers where they need the room of the prompt, or of the least that can be sent.
        """
        counts = self._counts if host.counts else None
        counted = await counts.calibrate(run, request, host) if counts else None
        outcome = await try_await(self._respond(run, request, host))
        result = outcome.value
        if result is not None:
            if counts:
                result = await counts.verify(run, request, host, result, counted)
            self._settle(run, request, result)
            if result.fault is not None:
                await self.report(result.fault)
            if request.layers.text and crowded_out(result):
                run.attach(drop_block(request.layers, "the prompt, or the least that can be sent, needs their room"))
                request = replace(request, layers=run.layers or NO_LAYERS)
                less = partial(advance_again, self.state, run, request, result=result)
                again = (await try_await(self._off_loop(run, request, host, less))).value
                if again is not None:
                    result = await counts.verify(run, request, host, again, None) if counts else again
                    self._settle(run, request, result)
        else:
            await self.report(error := outcome.error or RuntimeError("no view"))
            result = await self._off_loop(run, request, host, partial(fallback, self.state, run, request, error=error))
            if (lost := unrecorded(request, result)) is not None:
                await self.report(lost)
            self._settle(run, request, result)
        return request, result

    async def _respond(self, run: Run, request: Request, host: Host) -> Result:
        return await self._off_loop(run, request, host, partial(respond, self.state, run, request))

    async def _off_loop(
        self, run: Run, request: Request, host: Host, work: Callable[..., Coroutine[Any, Any, Result]]
    ) -> Result:
        """Do `work` with the host, off the event loop where it is long."""
        if not is_long(request.messages, run.raw):
            return await work(host=host)
        return await off_loop(lambda there: work(host=there), host)

    def _settle(self, run: Run, request: Request, result: Result) -> None:
        changed = result.next_cycle is not None and result.next_cycle is not run.cycle
        self.state.settle(run, result)
        if result.next_cycle is not None and (changed or result.began):
            self.archive.scoped(request.owner).remember_cycle(result.next_cycle, request.session_id)
        if result.blocks is not None and result.blocks is not run.recorded_blocks:
            self.archive.remember_blocks(result.blocks)

    async def _attach_layers(self, run: Run, request: Request) -> Request:
        """The request with the layers of its session; without, and the reason on the record, where that fails.

        They are settled at the first request of a run, take their share of the room before anything else is cut, and
        stay as they are until the run ends.
        """
        layers, role = self.arguments.layers, self.arguments.role
        if run.layers is None:
            block = NO_LAYERS
            if layers is not None and role is not None:
                outcome = await try_await(self._layer_block(run, request, layers, role))
                block = outcome.value or NO_LAYERS
                if outcome.error is not None:
                    await self.report(outcome.error)
                    block = drop_block(NO_LAYERS, f"could not be told: {type(outcome.error).__name__}")
            run.attach(await self._with_others(run, request, block))
        return replace(request, layers=run.layers or NO_LAYERS)

    async def _with_others(self, run: Run, request: Request, block: LayerBlock) -> LayerBlock:
        """The block with what the owner's other conversations hold for the prompt, if that is asked for."""
        share, counter = self.arguments.recall_across, self.state.counter
        if not share or request.owner is None:
            return block
        last = self.state.reader.one(request.messages[-1])
        prompt = asking_part(question_text(last), counter) if last.asks else ""
        if not asks(prompt, counter):
            return block
        budget, _ = self.arguments.whole_budget(**request.terms)
        room = int(budget / run.ratios.of(request.family)) - request.overhead - block.tokens
        most = min(int(share * room) if isinstance(share, float) else share, room - last.tokens)
        found = await self.archive.scoped(request.owner).others(request.session_id, prompt)
        text, taken = quoted_mentions(found, most, counter)
        quotes = [
            Quote(what=f"conversation {one.session}", why=f"recalled with score {score:.2f}", text=one.text)
            for score, one in taken
        ]
        return with_others(block, text, quotes, counter) if text else block

    async def _layer_block(self, run: Run, request: Request, layers: LayerSource, role: str | Need) -> LayerBlock:
        if isinstance(layers, Layers):
            if request.owner is None:
                return drop_block(NO_LAYERS, "the owner of the run is not known")
            if request.owner or (callable(self.arguments.owner) and isinstance(layers.store, Tenants)):
                layers = layers.scoped(request.owner)
        state = await load_state(layers, request.session_id, timeout=self.arguments.timeout)
        budget, _ = self.arguments.whole_budget(**request.terms)
        room = int(budget / run.ratios.of(request.family)) - request.overhead
        return layer_block(
            role,
            state,
            node_template(role, self.arguments.templates(request.owner)),
            room=layers_room(room, self.state.reader.one(request.messages[-1]).tokens),
            counter=self.state.counter,
        )

    async def _record_view(self, run: Run, request: Request, result: Result, latency: float) -> View:
        """The view with its record, which is on disk before the request goes out."""
        cycle = result.cycle
        price = (await try_await(self._last_requests.price_facts(request, result))).value
        record = record_of(self.arguments, request, result, latency, request_index=run.requests, price=price)
        fresh = result.blocks if result.blocks is not run.recorded_blocks else None
        record = await self.archive.scoped(request.owner).keep(
            record, result, cycle if cycle is not run.recorded else None, fresh, request.tools
        )
        if record.id is not None:
            run.record_blocks(result.blocks)
        if cycle is not None and record.id is not None:
            idle = record.compile is not None and record.compile.status.startswith(("failed", "skipped"))
            known = run.record(cycle, record.summary_id, linked=not idle)
            if known is not None:
                self.archive.scoped(request.owner).remember_cycle(known, request.session_id)
        if (result.began or result.row is not None) and LOG.isEnabledFor(logging.INFO):
            log_compile(record, result)
        if result.began and self.arguments.recent_turns is not None and not self._short:
            self._short = warn_of_fewer_turns(self.arguments, result)
        return replace(result.view, record=record)

    async def owner_of(self, ctx: RunContext[Any]) -> str | None:
        """The owner of a run; None if the function that names it fails, which is reported: nothing is kept or found."""
        name = self.arguments.owner
        if not callable(name):
            return self.archive.owner
        found = attempt(lambda: check_owner(name(ctx)))
        if found.value is None:
            await self.report(found.error or SettingsError("owner= returned None: give a name"))
        return found.value

    async def compile(
        self, owner: str | None, session: str, model: object, key: str, prompts: Sequence[str], cap: int = 0
    ) -> SummaryResponse:
        """One compile; its failure is an answer too. While one by hand is under way, none is made beside it."""
        archive = self.archive.scoped(owner)
        async with SESSIONS.hold(archive.conversation(session), shared=True) as mine:
            if not mine:
                return SummaryResponse(text="", refused="a compile of this conversation by hand is under way")
            return await self._summaries.answer(key, prompts, model, archive, session=session, cap=cap)

    async def launch(self, ctx: RunContext[Any], request: SummaryRequest) -> asyncio.Task[SummaryResponse] | None:
        """One compile as a task of this event loop; None where a replay would have to find it again."""
        if is_durable(ctx):
            return None
        archive, session = self.archive.scoped(await self.owner_of(ctx)), session_of(ctx)
        return await self._summaries.launch(
            request.key, request.prompts, ctx.model, archive, session=session, cap=request.cap
        )

    async def close(self) -> None:
        """End what is under way in this event loop, and let go of the store if no run is left."""
        await self.state.pending.end()
        await self._summaries.withdrawn()
        await self._keep_unused()
        await self.archive.catch_up()
        await self.rest()

    async def _keep_unused(self) -> None:
        """Put compiles in the background that no request will use on the record: they have cost something."""
        for one in self.state.pending.take_unused():
            row = unused_row(one)
            if row is not None:
                await self.archive.scoped(one.context.request.owner).keep_unsent(row, one.began)

    async def begin(self, owner: str | None, session: str, ids: list[str], config: str) -> dict[str, Any]:
        """Starting state of a run: the newest cycle of the last of these ids that has one, and the learnt ratios.

        With it go the wishes of the user, and the cycle of the last compile or undo by hand until another is made.
        """
        archive = self.archive.scoped(owner)
        actions = await archive.actions(session)
        steering, chosen, base = NONE, None, config
        steered = bool(actions) or MARK in config
        if steered:
            steering, chosen = steering_of(actions)
            base, config = base_config(config), steering.config(config)
        cycle = await archive.cycle(ids, config, None if steering.generation else self.state.former.get(base))
        cycle = await archive.linked(cycle, session) if cycle is not None else None
        adopted = chosen is not None and chosen.tip in ids and (cycle is None or _earlier(cycle, chosen, ids))
        cycle = replace(chosen, config=config) if chosen is not None and adopted else cycle
        blocks = await archive.blocks(ids, config) if cycle else None
        return {
            "cycle": cycle.to_json() if cycle else None,
            "blocks": blocks.to_json() if blocks else None,
            "ratios": self._ratios.state(),
            "steering": steering.to_data() if steered else None,
            "adopted": adopted,
        }

    def learn(self, run: Run, request: Request | None, response: ModelResponse) -> None:
        """Count a reported usage, and take it in if it is about a request of ours."""
        usage = response.usage
        if _measured():
            count_response(response.model_name or "", response.provider_name, usage)
        if request is None:
            return
        self._last_requests.report(request, usage.cache_read_tokens + usage.cache_write_tokens)
        if run.sent and not self.arguments.dry_run:
            for ratios in (run.ratios, self._ratios):
                ratios.learn(request.family, exact=run.sent, reported=usage.input_tokens)

    def mark_move(self, request: Request, view: View) -> list[ModelMessage]:
        """The messages of a view as they go out, marked where their beginning has moved on purpose."""
        name = None if view.status.startswith("raw") else self._last_requests.moved(request)
        return view.messages if name is None else mark_move(view.messages, name)

    async def finished(self, run: Run, ctx: RunContext[Any], messages: list[ModelMessage]) -> None:
        """Keep the raw history with the last answer of a run."""
        history = (await try_await(read_history(self.state.reader, run, [*(run.earlier or ()), *messages]))).value
        await self._keep_unused()
        if history is not None and messages:
            archive, since = self.archive.scoped(await self.owner_of(ctx)), Moment()
            await archive.raw(session_of(ctx), history)
            archive.remember_raw(session_of(ctx), history, since)

    async def views(self, session: str | None, owner: str | None) -> list[Record]:
        """Recorded views; raises StoreError if they cannot be read."""
        try:
            return await (await self._archive_of(owner)).store.views(session)
        finally:
            await self.rest()

    async def transcript(self, session: str, owner: str | None) -> list[ModelMessage]:
        """The raw history of a conversation; StoreError if it cannot be read."""
        try:
            return await (await self._archive_of(owner)).transcript(session)
        finally:
            await self.rest()

    async def _archive_of(self, owner: str | None) -> Archive:
        """The record of an owner, with what it could not take before; None is the only owner there is.

        Raises:
            SettingsError: None is given, and there are many.
        """
        if owner is None and callable(self.arguments.owner):
            raise SettingsError("owner= is a function of the run: name the owner whose record this is about")
        archive = self.archive if owner is None else self.archive.scoped(check_owner(owner))
        await archive.catch_up()
        return archive

    async def rest(self) -> None:
        """Let go of the store when no run is left."""
        if self.runs == 0:
            await self.archive.rest()

    async def report(self, error: Exception) -> None:
        """Say what failed: in the log, and to `on_error`."""
        LOG.warning("context_compiler: %s", log_text(error))
        if _measured():
            count_error(error)
        await self._tell(self.arguments.on_error, error)

    async def report_once(self, error: Exception) -> None:
        """Say what is wrong with an agent, and not with one of its runs: once for each message."""
        if str(error) not in self._reported:
            self._reported.add(str(error))
            await self.report(error)

    async def _tell(self, callback: Callable[[Any], Any] | None, what: Any) -> None:
        if callback is None:
            return
        limit, name = self.arguments.timeout, "on_error" if callback is self.arguments.on_error else "on_view"
        late = ContextCompilerError(f"{name} took longer than {limit:g} s (timeout)")
        outcome = await try_await(call_within(limit, callback, what, late))
        if outcome.error is None:
            return
        if name == "on_view":
            await self.report(outcome.error)
        else:
            LOG.warning("context_compiler: on_error failed: %s", log_text(outcome.error))


def _earlier(cycle: Cycle, chosen: Cycle, ids: Sequence[str]) -> bool:
    """True if a cycle decides on less of a history than the one that a user chose."""
    return ids.index(cycle.tip) < ids.index(chosen.tip)


def record_of(
    arguments: Arguments,
    request: Request,
    result: Result,
    latency: float,
    *,
    request_index: int = 0,
    price: Mapping[str, object] | None = None,
) -> Record:
    """The row of one request; `price` has the facts that it is priced by."""
    view, ratio = result.view, result.ratio
    sent = request.overhead + result.raw.tokens if arguments.dry_run else result.cost
    if price is not None and arguments.dry_run:
        price = {**price, "cached": price["cached_raw"]}
    record = Record(
        session_id=request.session_id,
        vault_name=arguments.place,
        turn_index=result.turn,
        run_id=request.run_id,
        request_index=request_index,
        raw_tip=result.raw.chain.tip,
        view_tip=result.sent.view_chain.tip,
        status=("dry_run" if arguments.dry_run else view.status) + _joined(request),
        error=view.error,
        budget=view.budget or None,
        tokens_raw=round((request.overhead + result.raw.tokens) * ratio),
        tokens_sent=round(sent * ratio),
        tokens_exact=sent,
        ratio=ratio,
        ledger=view.ledger if price is None else {**view.ledger, PRICE: dict(price)},
        request_hash=request.hash,
        latency_ms=latency,
        created_at=now(),
        summary_id=result.cycle.summary_id if result.cycle and result.row is None else None,
        compile=result.row,
    )
    unread = "it cannot be read" if request.messages else ""
    return with_null_reasons(record, {"budget": "everything is sent", "raw_tip": unread, "view_tip": unread})


def _joined(request: Request) -> str:
    return f"; a window, joined with {request.joined} earlier messages of the record" if request.joined else ""


def _measured() -> bool:
    """True where an application has set a provider of metrics; those of the interface itself count nothing."""
    return not type(get_meter_provider()).__module__.startswith("opentelemetry.metrics")
