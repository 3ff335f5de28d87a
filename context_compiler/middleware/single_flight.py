"""Answers to summary requests: an earlier answer, one of a call in progress, or a new call of the model.

Compilers in one event loop that need the same summary at the same time share one call. Processes that share a record do
so too: the first claims the call there, and the others poll for its answer. No lock is held. A process that cannot
claim the call, or has waited long enough, calls the model itself. A model that keeps failing is not called for a while,
whoever asks for it; one that keeps writing bad summaries of a conversation is not called for that conversation.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Hashable
from contextlib import asynccontextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import uuid4
from weakref import WeakSet

from context_compiler.cache import Memo
from context_compiler.compiler.summary import SummaryResponse, model_alias
from context_compiler.errors import CompileError
from context_compiler.middleware.arguments import Arguments
from context_compiler.middleware.request import Conversation
from context_compiler.middleware.spending import Spending, SummaryCall
from context_compiler.middleware.store_access import StoreAccess
from context_compiler.middleware.summary_calls import ask
from context_compiler.middleware.windows import Served
from context_compiler.record.sessions import claim_compile, renew_claim
from context_compiler.resilience import Breaker, Report, try_await
from context_compiler.tokens import TokenCounter

ANSWERS = 200
"""Maximum answers in memory, for records that may not store them."""

PATIENCE_S = 1.0
"""Seconds that a cancelled call may take to end."""

GRACE_S = 2.0
"""Seconds for which a finished response is shared; after that it is on the record, where others look first."""


STEP_S, RECORDING_S = 0.2, 10.0
"""Seconds between two polls for another process's answer, and seconds until that answer must be on the record."""

CLAIM_S = 6.0
"""Seconds until the claim of a dead process expires; a live process renews it three times in that period."""

BAD = 2
"""Bad summaries of one conversation in a row after which its model is not asked for a while."""

SESSIONS_KEPT = 1_000
"""Maximum number of conversations whose bad summaries are counted."""

MODELS_KEPT = 256
"""Maximum number of models whose failures are counted."""

WAIT = 0.5
"""Fraction of the time limit spent waiting for another process; the rest is for our own call."""

DEADLINE = "pydantic_ai.run_deadline"
"""Name of the host's context variable with the deadline of a run; private, may be missing."""


@dataclass(slots=True, kw_only=True)
class _Flight:
    task: asyncio.Task[SummaryResponse]
    waiting: int = 0
    paid: bool = False
    finished_at: float | None = None
    """Monotonic time of a usable response."""

    @property
    def is_over(self) -> bool:
        """True if the response should be on the record by now, or is lost."""
        late = self.finished_at is not None and time.monotonic() - self.finished_at > GRACE_S
        return late or self.task.cancelled() or self.task.get_loop() is not asyncio.get_running_loop()


class SingleFlight(threading.local):
    """Calls in progress by key; each thread has its own."""

    def __init__(self) -> None:
        self._under_way: dict[Hashable, _Flight] = {}
        self._name = uuid4().hex

    @property
    def name(self) -> str:
        """A name of this thread that is unique among all processes, including forked ones."""
        return f"{os.getpid()}-{self._name}"

    async def join(
        self, key: Hashable, start: Callable[[], Coroutine[Any, Any, SummaryResponse]]
    ) -> tuple[SummaryResponse, bool]:
        """The response for `key`, and True for the one caller that has to pay for its tokens.

        If a caller is cancelled, the others keep waiting; the call is cancelled when nobody waits for it any more.

        Raises:
            TimeoutError: The call itself was cancelled, not a caller.
        """
        for late in [name for name, flight in self._under_way.items() if flight.is_over]:
            del self._under_way[late]
        flight = self._under_way.get(key)
        if flight is None:
            flight = _Flight(task=asyncio.create_task(start(), context=_without_deadline()))
            self._under_way[key] = flight
        flight.waiting += 1
        try:
            await asyncio.wait({flight.task})
        finally:
            flight.waiting -= 1
            if not flight.waiting:
                flight.finished_at = time.monotonic() if _is_shareable(flight.task) else None
                if flight.finished_at is None and self._under_way.get(key) is flight:
                    del self._under_way[key]
                await _end(flight.task)
        if flight.task.cancelled():
            raise TimeoutError("the call was cancelled")
        pays, flight.paid = not flight.paid, True
        return flight.task.result(), pays


@dataclass(slots=True, kw_only=True)
class _Hold:
    shared: bool
    holders: int = 0
    free: asyncio.Event = field(default_factory=asyncio.Event)


class SessionLocks(threading.local):
    """Locks that allow one compile per conversation and event loop; runs that share a summary share the lock."""

    def __init__(self) -> None:
        self._held: dict[Hashable, _Hold] = {}

    @asynccontextmanager
    async def hold(self, key: Hashable, *, wait: float = 0.0, shared: bool = False) -> AsyncGenerator[bool]:
        """Lock a conversation, or join its holders if all share it; False if it is not free within `wait` seconds."""
        slot, end = (id(asyncio.get_running_loop()), key), time.monotonic() + wait
        while (held := self._held.get(slot)) is not None and not (shared and held.shared):
            try:
                async with asyncio.timeout(end - time.monotonic()):
                    await held.free.wait()
            except TimeoutError:
                yield False
                return
        held = held or _Hold(shared=shared)
        self._held[slot] = held
        held.holders += 1
        try:
            yield True
        finally:
            held.holders -= 1
            if not held.holders:
                del self._held[slot]
                held.free.set()


SESSIONS = SessionLocks()
"""Locks of all compilers: compilers on one record compile a conversation one after another."""

UNDER_WAY = SingleFlight()
"""Calls of all compilers: compilers on one record share their calls."""


def _without_deadline() -> Context:
    """A copy of this context for a call that may outlive the run, or serve others: without the run's deadline.

    The host gives that deadline to every run that begins in the context. If it has no such variable, nothing changes.
    """
    context = copy_context()
    for variable in context:
        if variable.name == DEADLINE:
            context.run(variable.set, None)
    return context


def _is_shareable(task: asyncio.Task[SummaryResponse]) -> bool:
    """True if the task has a response that others may share."""
    if not task.done() or task.cancelled() or task.exception() is not None:
        return False
    return task.result().failure is None and task.result().fault is None and bool(task.result().text)


async def _end(task: asyncio.Task[Any]) -> None:
    """Cancel a call if it is running, and retrieve its error so that it is not logged as unhandled."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=PATIENCE_S)
    if task.done() and not task.cancelled():
        task.exception()


async def _claim(access: StoreAccess, key: str, holder: str) -> bool | None:
    """Claim a model call; False while another process holds the claim, None if the record cannot tell."""
    if not access.keeps_content or not access.is_shared or access.is_doubtful:
        return None
    work = partial(claim_compile, cache_key=key, holder=holder, seconds=CLAIM_S)
    return await access.try_on_sql(lambda store: store.perform(work))


async def _keep_claim(access: StoreAccess, key: str, holder: str) -> None:
    """Renew a claim until this task is cancelled."""
    while True:
        await asyncio.sleep(CLAIM_S / 3)
        await _renew(access, key, holder, CLAIM_S)


async def _renew(access: StoreAccess, key: str, holder: str, seconds: float) -> None:
    """Renew a claim for `seconds`; after that, other processes may make the same call."""
    work = partial(renew_claim, cache_key=key, holder=holder, seconds=seconds)
    await access.try_on_sql(lambda store: store.perform(work))


class Summaries:
    """Summaries of one compiler.

    Announcements and claims are optional: they are skipped if the store has failed, and their own failure does not
    count.
    """

    def __init__(self, arguments: Arguments, counter: TokenCounter, report: Report) -> None:
        """Call no model yet.

        Args:
            arguments: Arguments of the compiler.
            counter: Counts prompts, if there is a spend limit.
            report: Called with any error.
        """
        self._arguments, limit = arguments, arguments.spend_limit()
        self._spending = None if limit is None else Spending(limit.amount, counter, report)
        self._counter, self._report = counter, report
        self._failures: Memo[Served | str, Breaker] = Memo(MODELS_KEPT)
        """Failed calls in a row, by model."""
        self._faults: Memo[tuple[Conversation, Served | str], Breaker] = Memo(SESSIONS_KEPT)
        """Bad summaries in a row, by conversation and model."""
        self._remembered: Memo[str, SummaryResponse] = Memo(ANSWERS)
        """Answers until they are recorded, or for good if the record may not store them."""
        self._announcements: dict[asyncio.Task[None], asyncio.Future[Any]] = {}

    async def answer(self, call: SummaryCall) -> SummaryResponse:
        """Return one summary: remembered, shared with another run, or new; a failure is returned as data."""
        earlier = await self._find(call)
        if earlier is not None:
            return earlier
        if self._spending is None:
            return await self._ask_and_announce(call)
        held, refused = await self._spending.reserve(call)
        if refused is not None:
            return SummaryResponse(text="", refused=refused)
        response: SummaryResponse | None = None
        try:
            response = await self._ask_and_announce(call)
            return response
        finally:
            self._spending.settle(call, held, response)

    async def launch(self, call: SummaryCall) -> asyncio.Task[SummaryResponse] | None:
        """Start one summary as a task; None if the spend limit does not allow it.

        The task does not use the store, because it may outlive the run and with it the open file.
        """
        earlier = await self._find(call)
        if earlier is not None:
            task = asyncio.create_task(_return(earlier))
            end_at_exit(task)
            return task
        held = Decimal(0)
        if self._spending is not None:
            held, refused = await self._spending.reserve(call)
            if refused is not None:
                return None
        task = asyncio.create_task(unless_by_hand(call, self._ask), context=_without_deadline())
        if self._spending is not None:
            task.add_done_callback(partial(_settle, self._spending, call, held))
        end_at_exit(task)
        self._announce(task, call)
        return task

    async def _find(self, call: SummaryCall) -> SummaryResponse | None:
        """An earlier answer to the same summary request, from memory or the record; None if there is none."""
        made, access = self._remembered.get(call.key), call.archive.access
        if made is not None or not access.keeps_content:
            return made
        stored = await access.read(lambda store: store.find_compile(call.key))
        return SummaryResponse(text=stored[1].raw_output, row=stored[0]) if stored and stored[1].raw_output else None

    async def _ask_and_announce(self, call: SummaryCall) -> SummaryResponse:
        """Ask a model while the record shows a compile in progress; the call does not wait for the record."""
        ended = asyncio.get_running_loop().create_future()
        announcement = self._announce(ended, call)
        try:
            return await self._ask(call, claims=True)
        finally:
            ended.cancel()
            await asyncio.wait({announcement})

    def _announce(self, ended: asyncio.Future[Any], call: SummaryCall) -> asyncio.Task[None]:
        """Show on the record that a model is writing a summary, until `ended` is done, but not beyond the timeout."""
        access = call.archive.access

        async def announce() -> None:
            shown = call.session, access.arguments.place, model_alias(call.writer), self._arguments.timeout
            if access.arguments.record == "off" or access.is_blank or access.owner is None or access.is_doubtful:
                return
            announced = await access.try_on_sql(lambda store: store.announce_compile(*shown))
            if announced is None:
                return
            try:
                await asyncio.wait({ended})
            finally:
                await access.try_on_sql(lambda store: store.withdraw_compile(*announced))

        announcement = asyncio.create_task(announce())
        self._announcements[announcement] = ended
        announcement.add_done_callback(self._announcements.pop)
        end_at_exit(announcement)
        return announcement

    def forget(self, text: str) -> None:
        """Remove a summary from memory, so that it is not shared after a user has undone its compile."""
        self._remembered.discard(lambda answer: answer.text == text)

    async def wait_until_withdrawn(self) -> None:
        """Wait until the announcements of all compiles that have ended in this event loop are withdrawn."""
        loop = asyncio.get_running_loop()
        mine = {task for task, ended in tuple(self._announcements.items()) if ended.done() and task.get_loop() is loop}
        if mine:
            await asyncio.wait(mine)

    async def refusal(self, call: SummaryCall) -> str | None:
        """Reason why the spend limit forbids such a summary; None if it does not."""
        return None if self._spending is None else (await self._spending.estimate(call))[1]

    async def _ask(self, call: SummaryCall, *, claims: bool = False) -> SummaryResponse:
        """Make one summary that is not remembered, or share the call of another run.

        With `claims`, calls are also shared with other processes.
        """
        key, make = call.archive.access.shared_key(call.key), self._claim_and_call if claims else self._call_model
        outcome = await try_await(UNDER_WAY.join(key, lambda: make(call, self._arguments.timeout)))
        if outcome.value is None:
            return _failure(outcome.error, model_alias(call.writer))
        response, pays = outcome.value
        return response if pays else replace(response, usage={}, cost=None)

    async def _claim_and_call(self, call: SummaryCall, timeout: float) -> SummaryResponse:
        """Wait for the answer of another process with the same request, or make the call."""
        began, claim = time.monotonic(), (call.archive.access, call.key, UNDER_WAY.name)
        while (mine := await _claim(*claim)) is False:
            await asyncio.sleep(min(STEP_S, WAIT * timeout))
            answer = await self._find(call)
            if answer is not None:
                return answer
            if time.monotonic() - began >= WAIT * timeout:
                break
        response, renewing = None, asyncio.create_task(_keep_claim(*claim)) if mine else None
        try:
            left = max(timeout - (time.monotonic() - began), (1 - WAIT) * timeout)  # waiting for a lock counts
            response = await self._call_model(call, left)
            return response
        finally:
            if renewing is not None:
                renewing.cancel()
                await asyncio.wait({renewing})
                useful = response is not None and response.failure is None
                await _renew(*claim, RECORDING_S if useful else 0.0)

    async def _call_model(self, call: SummaryCall, timeout: float) -> SummaryResponse:
        alias, writer = model_alias(call.writer), call.writer
        model = writer if isinstance(writer, str) else Served.by(writer)
        failures = self._failures.get_or_make(model, Breaker)
        faults = self._faults.get_or_make((call.place, model), lambda: Breaker(limit=BAD))
        if failures.open or faults.open:
            why = "it failed too often" if failures.open else "its summaries of this conversation are unusable"
            return SummaryResponse(text="", refused=f"{alias} is not asked for a while: {why}")
        asking = ask(call.prompts, writer, timeout=timeout, cap=call.cap, counter=self._counter)
        outcome = await try_await(asking)
        if outcome.value is None:
            failures.failed()
            return await self._with_quotes_if_late(_failure(outcome.error, alias))
        answer = outcome.value
        if answer.fault is not None and not answer.done:
            await self._count_fault(faults, alias, answer.fault)
            return answer
        failures.succeeded()
        faults.succeeded()
        if answer.text and answer.fault is None:
            self._remembered.keep(call.key, replace(answer, usage={}, cost=None))
        return answer

    async def _with_quotes_if_late(self, failed: SummaryResponse) -> SummaryResponse:
        """The response for a failed call. If it took too long, quotes take the summary's place, and no view fails."""
        failure = failed.failure or {}
        if failure.get("phase") != "timeout":
            return failed
        await self._report(CompileError(**failure, usage=failed.usage, cost=failed.cost))
        return replace(failed, fault=failure["message"], done=0)

    async def _count_fault(self, faults: Breaker, alias: str, fault: str) -> None:
        """Count a bad answer; report once that the model is not asked for a while."""
        faults.failed()
        if faults.failures == BAD:
            advice = f'summaries of {alias} are unusable ({fault}): passages are quoted; model="none" asks no model'
            await self._report(CompileError(advice, model=alias, phase="answer"))


async def unless_by_hand(
    call: SummaryCall, make: Callable[[SummaryCall], Awaitable[SummaryResponse]]
) -> SummaryResponse:
    """Make one summary, unless the conversation is being compiled by hand."""
    async with SESSIONS.hold(call.archive.conversation(call.session), shared=True) as mine:
        if not mine:
            return SummaryResponse(text="", refused="a compile of this conversation by hand is under way")
        return await make(call)


def _settle(spending: Spending, call: SummaryCall, held: Decimal, task: asyncio.Task[SummaryResponse]) -> None:
    failed = task.cancelled() or task.exception() is not None
    spending.settle(call, held, None if failed else task.result())


async def _return(response: SummaryResponse) -> SummaryResponse:
    return response


_TASKS: WeakSet[asyncio.Task[Any]] = WeakSet()
"""Tasks that a program may leave in an unfinished event loop, as after `run_sync`."""


def end_at_exit(task: asyncio.Task[Any]) -> None:
    """Cancel a task at the end of the process, unless its loop has done so."""
    if not _TASKS:
        atexit.unregister(_end_tasks)
        atexit.register(_end_tasks)
    _TASKS.add(task)


def _end_tasks() -> None:
    for task in list(_TASKS):
        loop = task.get_loop()
        if not (task.done() or loop.is_closed() or loop.is_running()):
            loop.run_until_complete(_end(task))


def _failure(error: Exception | None, model: str) -> SummaryResponse:
    """Convert an error into a response: the arguments of its `CompileError`, and the usage until then."""
    if not isinstance(error, CompileError):
        message = f"{type(error).__name__}: {error}"
        return SummaryResponse(text="", failure={"message": message, "model": model, "phase": "call"})
    message = str(error).removeprefix(f"{error.phase} ({error.model}): ")
    failure = {"message": message, "model": error.model, "phase": error.phase}
    return SummaryResponse(text="", failure=failure, usage=error.usage, cost=error.cost)
