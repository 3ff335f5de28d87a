"""`Middleware`, the layer between host and compiler: turns one request into the messages to send, and never fails it.

The order of steps is fixed: the view or its fallback, the record, the callbacks, the messages.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

from pydantic_ai import RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model

from context_compiler.cache import Memo
from context_compiler.compiler.policy import LARGE
from context_compiler.compiler.summary import SummaryRequest, SummaryResponse
from context_compiler.compiler.view import Quote, View
from context_compiler.errors import BudgetError, SettingsError
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
from context_compiler.messages.shapes import shortens_prompt
from context_compiler.messages.turns import prompt_at
from context_compiler.middleware.archive import Archive, before_window
from context_compiler.middleware.arguments import Arguments
from context_compiler.middleware.background import unused_row
from context_compiler.middleware.fallback import fallback, unreadable_parts
from context_compiler.middleware.manual import Manual
from context_compiler.middleware.metrics import count_response, count_view
from context_compiler.middleware.next_request import Profile
from context_compiler.middleware.off_loop import off_loop
from context_compiler.middleware.others import quoted_mentions
from context_compiler.middleware.prompt_cache import LastRequests, mark_move
from context_compiler.middleware.provider_counts import ProviderCounts
from context_compiler.middleware.reports import Reports, has_metrics, log_compile, operation, warn_of_fewer_turns
from context_compiler.middleware.request import JOINED, Conversation, Host, Request, is_durable, is_long, session_of
from context_compiler.middleware.respond import advance_again, respond
from context_compiler.middleware.rule_check import declared_rules
from context_compiler.middleware.single_flight import Summaries, unless_by_hand
from context_compiler.middleware.spending import SummaryCall
from context_compiler.middleware.state import CompilerState, Result, Run, read_history
from context_compiler.middleware.store_access import limited
from context_compiler.recall.question import pending_question
from context_compiler.record.store import Tenants
from context_compiler.record.values import PRICE, SETTINGS, Entry, Record, check_owner, now, with_null_reasons
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
        self.last_view: View | None = None
        self.state = CompilerState.of(arguments)
        self._reports = Reports(arguments)
        self.report, self.report_once = self._reports.report, self._reports.report_once
        self.archive = Archive(arguments, self.report)
        """Archive of the owner that is known without a run; `scoped` gives those of other owners."""
        self._last_requests = LastRequests(self.archive, self.state.reader)
        self._summaries = Summaries(arguments, self.state.counter, self.report)
        self.ratios = Ratios()
        self._counts: ProviderCounts | None = None
        if arguments.counter == PROVIDER:
            self._counts = ProviderCounts(arguments, self.state, self.ratios, self.report, self._off_loop)
        self._profiles: Memo[Conversation, Profile] = Memo(PROFILES)
        self._told: Memo[tuple[str | None, str], bool] = Memo(PROFILES)
        """Conversations whose rules find no room, and shortened prompts: what was reported is not reported again."""
        self._ready = False
        self._warned_of_turns = False
        """True after a warning that fewer turns are kept than the caller wants."""

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
        self._profiles.keep(request.conversation, Profile(request=replace(request, messages=[]), model=model))

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
            if self.arguments.budget_unpriced(request.model, request.provider):
                await self._report_unpriced(request)
            request = await self._join(run, request)
            request, result = await self._view_or_fallback(run, await self._attach_layers(run, request), host)
            if result.lost:
                await self._report_lost_rules(request, len(result.lost))
            if result.view.status == "floor_over_budget":
                over = f"even the smallest view is over the budget of {result.view.budget} tokens"
                await self.report(BudgetError(over))
            else:
                await self._report_shortened(request, result)
            return await self._deliver(run, request, result, started)

    async def _report_lost_rules(self, request: Request, count: int) -> None:
        """Report, once per conversation, that rules find no room in its requests."""
        lost = "1 rule finds" if count == 1 else f"{count} rules find"
        where = f"a request of {safe_line(request.session_id)}"
        error = BudgetError(f"{lost} no room in {where}: give fewer or shorter rules, or a larger budget")
        await self._tell(request.conversation, error)

    async def _report_shortened(self, request: Request, result: Result) -> None:
        """Report, once per prompt, that the newest prompt is larger than the budget and lost its middle."""
        position = _shortened_prompt(result)
        if position is not None:
            size, budget = result.raw.readings[position].tokens, result.view.budget
            text = f"a prompt of {size:,} tokens does not fit the budget of {budget:,} and lost its middle"
            error = BudgetError(f"{text}: give a larger budget, or a shorter prompt")
            await self._tell((request.owner, result.raw.ids[position]), error)

    async def _tell(self, key: tuple[str | None, str], error: BudgetError) -> None:
        if self._told.get(key) is None:
            self._told.keep(key, True)
            await self.report(error)

    async def declared_rules(self, run: Run, ctx: RunContext[Any]) -> tuple[str, ...]:
        """Rules that the application declares for a request; the error of a function that fails is reported."""
        texts, errors = await declared_rules(self.arguments.rules, run, ctx)
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
        history = await read_history(self.state.reader, run, request.messages)
        result = Result.unchanged(request, history, self.ratios.of(request.family), self.state.counter)
        self._settle(run, request, result)
        await self._deliver(run, request, result, started)

    async def _deliver(self, run: Run, request: Request, result: Result, started: float) -> View:
        """Record the view of a request, and pass it to the callbacks."""
        view = await self._record_view(run, request, result, (time.perf_counter() - started) * 1000)
        run.requests += 1
        if view.record is not None and has_metrics():
            count_view(view.record)
        self.last_view = view
        await self._reports.call_back("on_view", view)
        return view

    async def _report_unpriced(self, request: Request) -> None:
        """Report, once per model, that a budget in money cannot be used because the model has no known price."""
        budget, _ = self.arguments.whole_budget(request)
        remedy = "give a budget in tokens, or Money(…, fallback=…)"
        unknown = f"budget={self.arguments.budget!r}: no price is known for {safe_line(request.model)}"
        await self.report_once(request.model, SettingsError(f"{unknown}, so it is {budget:,} tokens; {remedy}"))

    async def _join(self, run: Run, request: Request) -> Request:
        """Prepend the recorded messages before a window, if the application gives only a window of a conversation.

        This works for conversations that the application names, whose id the messages carry, or that are in the host's
        store. The host makes up any other id, a new one for every run.
        """
        read, archive, reader = False, self.archive.scoped(request.owner), self.state.reader
        if run.earlier is None:
            run.earlier = ()
            if len(request.messages) > 1 and not request.marked:
                window, read = (await try_await(read_history(reader, run, request.messages))).value, True
                if window is not None:
                    carried = {getattr(message, "conversation_id", None) for message in request.messages[:-1]}
                    named = bool(request.scope) or request.session_id in carried  # the host keeps an id in messages
                    run.earlier = await archive.windows.before(request.session_id, window, reader, named=named)
            elif request.scope and not request.marked:
                run.earlier = await archive.windows.whole(request.session_id, reader)
        elif run.earlier or (request.scope and not request.marked and archive.keeps_content):
            run.earlier = self._before(run, request.messages)
        if run.earlier and request.run_id:
            JOINED.keep(request.run_id, run.earlier)
        if run.earlier:
            request = replace(request, messages=[*run.earlier, *request.messages], joined=len(run.earlier))
        if run.earlier or not read:
            await try_await(read_history(reader, run, request.messages))
        return request

    def _before(self, run: Run, messages: Sequence[ModelMessage]) -> Sequence[ModelMessage]:
        """Messages before what the application gives of a run that has begun."""
        history, earlier = run.raw, run.earlier or ()
        if history is None:
            return earlier
        return attempt(lambda: before_window(history, earlier, messages, self.state.reader)).value or ()

    async def _view_or_fallback(self, run: Run, request: Request, host: Host) -> tuple[Request, Result]:
        """Make the view of a request or its fallback; return it with the request that it answers.

        The layers are dropped from that request if the prompt or the smallest possible request needs their room.
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
            if request.layers.text and _crowds_out_layers(request, result):
                run.layers = drop_block(request.layers, "the prompt or the smallest possible request needs their room")
                request = replace(request, layers=run.layers)
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

    async def _attach_layers(self, run: Run, request: Request) -> Request:
        """Attach the layers of the session to a request; if that fails, attach none and record why.

        The layers are chosen at the first request of a run and stay the same until the run ends; only the passages of
        other conversations change if a question is added to the run. Their share of the room is reserved before
        anything else is cut. If the search of other conversations fails, there are none of theirs.
        """
        layers, role = self.arguments.layers, self.arguments.role
        if run.own_layers is None:
            block = NO_LAYERS
            if layers is not None and role is not None:
                outcome = await try_await(self._layer_block(run, request, layers, role))
                block = outcome.value or NO_LAYERS
                if outcome.error is not None:
                    await self.report(outcome.error)
                    block = drop_block(NO_LAYERS, f"failed: {type(outcome.error).__name__}")
            run.own_layers = block
        asked = attempt(lambda: self._question_across(run, request))
        question = asked.value or ""
        if run.layers is None or question != run.asked_across:
            run.asked_across = question
            added = await try_await(self._add_other_conversations(run, request, run.own_layers, question))
            if (error := asked.error or added.error) is not None:
                await self.report(error)
            run.layers = added.value or run.own_layers
        return request if request.layers is run.layers else replace(request, layers=run.layers)

    def _question_across(self, run: Run, request: Request) -> str:
        """Question for the owner's other conversations; empty if there is none, or without `recall_across`."""
        counter = self.state.counter
        if not self.arguments.recall_across or request.owner is None or run.raw is None:
            return ""
        pending = pending_question(run.raw, counter)
        asked = asking_part(pending.text, counter) if pending is not None else ""
        return asked if asks(asked, counter) else ""

    async def _add_other_conversations(
        self, run: Run, request: Request, block: LayerBlock, question: str
    ) -> LayerBlock:
        """Add passages from the owner's other conversations that answer a question."""
        if not question or run.raw is None:
            return block
        share, counter = self.arguments.recall_across, self.state.counter
        last = self.state.reader.one(request.messages[-1])
        budget, _ = self.arguments.whole_budget(request)
        room = int(budget / run.ratios.of(request.family)) - request.overhead - block.tokens
        free = room - min(last.tokens, room - room // LARGE)
        most = min(int(share * room) if isinstance(share, float) else share, free)
        mentions = await self.archive.scoped(request.owner).others(request.session_id, question)
        text, taken = quoted_mentions(mentions, run.raw, most, counter)
        quotes = [
            Quote(what=f"conversation {mention.session}", why=f"recalled with score {score:.2f}", text=mention.text)
            for score, mention in taken
        ]
        return with_others(block, text, quotes, counter) if text else block

    async def _layer_block(self, run: Run, request: Request, layers: LayerSource, role: str | Need) -> LayerBlock:
        if isinstance(layers, Layers):
            if request.owner is None:
                return drop_block(NO_LAYERS, "the owner of the run is not known")
            if request.owner or (callable(self.arguments.owner) and isinstance(layers.store, Tenants)):
                layers = layers.scoped(request.owner)
        state = await load_state(layers, request.session_id, timeout=self.arguments.timeout)
        budget, _ = self.arguments.whole_budget(request)
        room = int(budget / run.ratios.of(request.family)) - request.overhead
        return layer_block(
            role,
            state,
            node_template(role, self.arguments.templates(request.owner)),
            room=layers_room(room, self.state.reader.one(request.messages[-1]).tokens),
            counter=self.state.counter,
        )

    async def _record_view(self, run: Run, request: Request, result: Result, latency: float) -> View:
        """Record the view before its request is sent, and return it with its record."""
        cycle = result.cycle
        price = (await try_await(self._last_requests.price_facts(request, result))).value
        record = record_of(self.arguments, request, result, latency, request_index=run.requests, price=price)
        fresh = result.blocks if result.blocks is not run.recorded_blocks else None
        raw, view = result.raw.chain, result.sent.view_chain
        entry = Entry(record=record, raw=raw, view=view, compile=result.row, tools=request.tools)
        new = cycle if cycle is not run.recorded else None
        record = await self.archive.scoped(request.owner).keep(entry, new, fresh)
        if record.id is not None:
            run.recorded_blocks = result.blocks or run.recorded_blocks
        if cycle is not None and record.id is not None:
            idle = record.compile is not None and record.compile.status.startswith(("failed", "skipped"))
            recorded = run.record(cycle, record.summary_id, linked=not idle)
            if recorded is not None:
                self.archive.scoped(request.owner).remember_cycle(recorded, request.session_id)
        if result.began or result.row is not None:
            log_compile(record, result)
        if result.began and self.arguments.recent_turns is not None and not self._warned_of_turns:
            self._warned_of_turns = warn_of_fewer_turns(self.arguments, result)
        return replace(result.view, record=record)

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
        await self._record_unused()
        await self.archive.settle()
        await self.archive.access.close()

    async def _record_unused(self) -> None:
        """Record background compiles that no request will use, because they had a cost."""
        for job in self.state.pending.take_unused():
            row = unused_row(job)
            if row is not None:
                await self.archive.scoped(job.context.request.owner).keep_unsent(row, job.began)

    async def begin(self, owner: str | None, session: str, ids: list[str], config: str) -> dict[str, Any]:
        """Starting state of a run, as plain data: where it starts from, and the learned ratios."""
        with limited(self.arguments.record_timeout):
            start = await self.archive.scoped(owner).start(session, ids, config)
        return {**start, "ratios": self.ratios.state()}

    def learn(self, run: Run, request: Request | None, response: ModelResponse) -> None:
        """Count a reported usage, and learn from it if it belongs to one of our requests."""
        usage = response.usage
        if has_metrics():
            count_response(response.model_name or "", response.provider_name, usage)
        if request is None:
            return
        run.retried = False
        self._last_requests.report(request, usage.cache_read_tokens + usage.cache_write_tokens)
        if run.sent and not self.arguments.dry_run:
            for ratios in (run.ratios, self.ratios):
                ratios.learn(request.family, exact=run.sent, reported=usage.input_tokens)

    def mark_move(self, request: Request, view: View) -> list[ModelMessage]:
        """The messages of a view, with a mark if their beginning has changed on purpose."""
        name = None if view.status.startswith("raw") else self._last_requests.moved(request)
        return view.messages if name is None else mark_move(view.messages, name)

    async def finish_run(self, run: Run, ctx: RunContext[Any], messages: list[ModelMessage]) -> None:
        """Archive the raw history of a run including its last answer."""
        whole = [*self._before(run, messages), *messages]
        history = (await try_await(read_history(self.state.reader, run, whole))).value
        await self._record_unused()
        if history is not None and messages:
            since = (archive := self.archive.scoped(await self.owner_of(ctx))).access.moment()
            with operation(), limited(self.arguments.record_timeout):
                await archive.save_raw(session_of(ctx), history)
            archive.windows.remember(session_of(ctx), history, since)

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


def _crowds_out_layers(request: Request, result: Result) -> bool:
    """True if a view is over its budget or shortens the newest prompt, so that its layers must be dropped.

    Files of the prompt that are larger than the whole room are left out in any case.
    """
    position = _shortened_prompt(result)
    if position is None:
        return result.view.status == "floor_over_budget"
    return sum(item.media for item in result.raw.readings[position].items) <= result.limit - request.overhead


def _shortened_prompt(result: Result) -> int | None:
    """Position of the newest prompt if the view shortens it."""
    position = prompt_at(result.raw) if result.cycle else None
    if result.cycle is None or position is None:
        return None
    shape = dict(result.cycle.kept).get(position)
    return position if shape is not None and shortens_prompt(result.raw.readings[position], shape) else None
