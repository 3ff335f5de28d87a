"""Access to the store of one compiler, which is opened on first use and never stops a request.

What takes longer than a request may wait continues after the answer (`Overdue`). A failure is reported (`reports`), and
after three failures (`Breaker`) the store is not used for a while. A write that failed because of a locked file or a
full disk is repeated before the next write (`late`).
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from copy import copy
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from typing import Any, TypeVar, cast

from context_compiler.errors import StoreError, text_of
from context_compiler.middleware.arguments import Arguments
from context_compiler.middleware.late import LateWrites, Write, is_permanent
from context_compiler.record import rows
from context_compiler.record.database import Moment
from context_compiler.record.files import BUSY_TIMEOUT_MS
from context_compiler.record.rows import Removed
from context_compiler.record.store import SQLStore, Store, Tenants, open_store
from context_compiler.resilience import Breaker, Report, attempt, await_within, forget_in_child, try_await

T = TypeVar("T")

PACKAGE = f"{__name__.partition('.')[0]}."


WATCH_S = 0.05
"""Seconds between two looks at whether an event loop has stopped."""

_LEFT: ContextVar[list[float] | None] = ContextVar("record_timeout", default=None)
"""Seconds that the record may still take of the current request; None outside of requests, and without a limit."""


@contextmanager
def limited(seconds: float | None) -> Generator[None]:
    """Limit the time that all operations within may take together; what takes longer continues after the answer."""
    token = _LEFT.set(None if seconds is None else [seconds])
    try:
        yield
    finally:
        _LEFT.reset(token)


class Overdue:
    """Operations on the record that continue after the answer, because a request may wait for the record only so long.

    The event loop of an operation may stop before it ends, as that of `run_sync` does once the answer is there. A
    thread then makes the writes that are left, and the process does not end before that.
    """

    def __init__(self) -> None:
        self.forget()
        forget_in_child(self)

    def forget(self) -> None:
        """Forget all operations, because after a fork they belong to the parent process."""
        self._running = set[asyncio.Task[Any]]()
        self._watch: Thread | None = None
        self._starting = Lock()

    @property
    def is_busy(self) -> bool:
        """True while an operation runs that a request did not wait for: others do not wait either."""
        return any(not task.done() and task.get_loop().is_running() for task in tuple(self._running))

    @property
    def is_watching(self) -> bool:
        """True while the thread waits for operations, or makes the writes that they left."""
        return self._watch is not None and self._watch.is_alive()

    async def await_in_time(
        self,
        work: Callable[[], Coroutine[Any, Any, T | None]],
        on_late: Callable[[], Awaitable[None]],
        on_end: Callable[[], None],
    ) -> T | None:
        """Result of work in the seconds left of the current request.

        None if earlier work is still running, or if this takes longer: it then continues, and `on_late` is awaited.
        `on_end` is called once it ends, unless it was cancelled or raised an error. Work also continues if the request
        is cancelled.
        """
        left = _LEFT.get()
        if left is None:
            return await work()
        if self.is_busy:
            return None
        began, task = time.monotonic(), asyncio.get_running_loop().create_task(work())
        try:
            await asyncio.wait({task}, timeout=left[0])
        finally:
            left[0] = max(0.0, left[0] - (time.monotonic() - began))
            if not task.done():
                self._running.add(task)
                task.add_done_callback(lambda ended: self._end(ended, on_end))
        if task.done():
            return task.result()
        await on_late()
        return None

    def _end(self, task: asyncio.Task[Any], on_end: Callable[[], None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is None and not task.get_loop().is_closed():
            on_end()

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start work on this event loop that nobody waits for."""
        task = asyncio.get_running_loop().create_task(work())
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def watch(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have a thread do `work` once nothing runs any more, even if this event loop stops."""
        with self._starting:
            if not self.is_watching:
                run = copy_context().run
                self._watch = Thread(target=run, args=(self._wait, work), name="context-compiler-late")
                self._watch.start()

    def _wait(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while self.is_busy:
            time.sleep(WATCH_S)
        self._running.difference_update([task for task in tuple(self._running) if task.get_loop().is_closed()])
        asyncio.run(work())

    async def finish(self) -> None:
        """Wait for the operations of this event loop."""
        loop = asyncio.get_running_loop()
        while running := [task for task in tuple(self._running) if task.get_loop() is loop]:
            await asyncio.wait(running)


class StoreAccess:
    """The store of one compiler, for one owner."""

    def __init__(self, arguments: Arguments, report: Report) -> None:
        """Open nothing yet."""
        self.arguments = arguments
        self.owner: str | None = arguments.static_owner
        """Owner of the record; None if the owner is unknown, in which case nothing is saved or found."""
        self._report = report
        # All that follows is shared with the access of other owners.
        self._opened: list[Store] = []
        """The store once it is open, else empty."""
        self._breaker = Breaker()
        self._failure = [""]
        """Text of the last failure."""
        self._removals = list[int]()
        """Number of removals that the record last named."""
        self._overdue = Overdue()
        self._late = LateWrites(report) if arguments.store is not None else None
        """None for a record in memory, whose writes cannot be delayed by a lock or a full disk."""

    def scoped(self, owner: str | None) -> StoreAccess:
        """Access to the same store for another owner; for None, nothing is saved or found."""
        other = copy(self)
        other.owner = owner
        return other

    @property
    def keeps_content(self) -> bool:
        """True if the record keeps content unchanged, so that it can be reused."""
        return self.arguments.record == "full" and not self.arguments.redact and self.owner is not None

    def shared_key(self, key: str) -> Hashable:
        """Key of a compile or conversation, the same for all compilers of this process that share the record."""
        store = self.arguments.store
        if not self.keeps_content or store is None:
            return id(self._opened), key
        path = store if isinstance(store, str | Path) else getattr(store, "path", None)
        return os.path.abspath(path) if isinstance(path, str | Path) else id(store), key

    @property
    def store(self) -> Store:
        """The store, opened on first use."""
        if not self._opened:
            patience = min(BUSY_TIMEOUT_MS, int(1000 * self.arguments.timeout))
            self._opened.append(open_store(self.arguments.store, busy_timeout_ms=patience))
        return _scoped(self._opened[0], self.owner)

    def store_for(self, tried: Moment | None) -> Store:
        """The store for a write; `tried` is the time of its first attempt, if that has passed."""
        if tried is None or (store := self.as_sql(self.store)) is None:
            return self.store
        return store.late(tried)

    def as_sql(self, store: Store) -> SQLStore | None:
        """The store, or a scoped one of it, with the methods of an SQL store; None if it has not all of them.

        Those of this package are not checked, because protocol checks are slow.
        """
        return cast(SQLStore, store) if self._is_own or isinstance(store, SQLStore) else None

    async def read(self, reads: Callable[[Store], Coroutine[Any, Any, T]]) -> T | None:
        """Result of `reads` on the store; None if they failed, or if the store is left alone.

        They are one job in a store of this package, so they may await nothing else.
        """
        return await self.attempt_read(lambda: self.perform(reads))

    async def attempt_read(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """Result of work that reads by `perform`; None as in `read`."""
        return None if self.is_blank else await self.attempt(work, writes=False)

    async def perform(self, reads: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        """Result of `reads` on the store, as one job if it is a store of this package."""
        store = self.store
        if self._is_own:
            together = cast(SQLStore, store).perform_together
            return await together(cast("Callable[[SQLStore], Coroutine[Any, Any, T]]", reads))
        return await reads(store)

    async def try_on_sql(self, work: Callable[[SQLStore], Awaitable[T]]) -> T | None:
        """Result of optional work on an SQL store; None for any other store.

        Its failure is not reported and does not count.
        """

        async def done() -> T | None:
            store = self.as_sql(self.store)
            return await work(store) if store is not None else None

        async def tried() -> T | None:
            return (await try_await(self._within_limit(done))).value

        return await self._in_time(tried)

    @property
    def is_doubtful(self) -> bool:
        """True if the store has failed since the last write that succeeded: nothing optional is attempted."""
        return bool(self._breaker.failures)

    @property
    def is_shared(self) -> bool:
        """True if other processes may use the store."""
        return self.arguments.store is not None

    @property
    def is_blank(self) -> bool:
        """True if nothing can be on the record, because it is in memory and not open yet."""
        return not self.is_shared and not self._opened

    async def write(self, session_id: str, work: Write) -> Any:
        """Execute a write after the delayed ones, and return its result; None if it failed or was delayed."""
        late = self._late
        if late is None:
            return await self.attempt(partial(work, None), writes=True)
        result = None
        if not self._breaker.open and not self._overdue.is_busy:
            result = await self.attempt(partial(self._write_in_order, late, session_id, work), writes=True)
        else:
            await self._delay(late, session_id, self.moment(), work)
        await self._wait_for_room(late)
        return result

    async def _wait_for_room(self, late: LateWrites) -> None:
        """Wait in the time left of a request while many delayed writes are made, so that none has to be abandoned."""
        left, began = _LEFT.get() or [math.inf], time.monotonic()
        while late.is_half_full and (late.is_executing or self._overdue.is_busy):
            if time.monotonic() - began >= left[0]:
                break
            await asyncio.sleep(WATCH_S)
        left[0] = max(0.0, left[0] - (time.monotonic() - began))

    async def _write_in_order(self, late: LateWrites, session_id: str, work: Write) -> Any:
        """Execute a write, or if others wait, put it behind them and execute them all.

        Raises:
            Exception: The write failed, and was delayed unless its own content is at fault.
        """
        tried = self.moment()
        if not late.take_over():
            try:
                with late.first_attempt((self.owner, session_id), tried, work):
                    outcome = await try_await(work(None))
            except asyncio.CancelledError:  # it may have been made, and making it twice changes nothing
                await self._delay(late, session_id, tried, work)
                raise
            if outcome.error is None:
                return outcome.value
            if not is_permanent(outcome.error):
                await self._delay(late, session_id, tried, work)
            elif not await self._add_lost(1):
                late.lost += 1
            raise outcome.error
        results: list[Any] = []

        async def collect(moment: Moment | None) -> None:
            results.append(await work(moment))

        await self._delay(late, session_id, tried, collect)
        await late.catch_up()
        return results[0] if results else None

    async def _delay(self, late: LateWrites, session_id: str, tried: Moment, work: Write) -> None:
        """Delay a write, if its store can later tell whether content was deleted in the meantime."""
        if self.owner is None:
            return
        if isinstance(attempt(lambda: self.store).value, SQLStore):
            await late.delay((self.owner, session_id), tried, work)
        else:
            late.lost += 1

    async def report_pause(self) -> None:
        """Report that a request is not recorded, because the record is not used for a while."""
        waiting = 0 if self._late is None else len(self._late)
        writes = "1 write waits" if waiting == 1 else f"{waiting} writes wait"
        then = f"{writes} for it" if waiting else "it will not be recorded"
        await self._report(StoreError(f"{self._failure[0]}; the record is not used for a while, {then}"))

    @property
    def is_paused(self) -> bool:
        """True while the record is not used, because it has failed several times."""
        return self._breaker.open and self.owner is not None

    def moment(self) -> Moment:
        """This moment, with the newest removal that is known to come before it."""
        return Moment(removals=self._removals[0] if self._removals else None)

    async def see_removals(self, store: Store) -> None:
        """Read how many removals the record has seen, so that later ones can be told from earlier ones."""
        sql = self.as_sql(store) if self.is_shared else None
        if sql is not None:
            self._removals[:] = [await sql.perform(rows.removals)]

    async def catch_up(self) -> None:
        """Execute the delayed writes, or report why they must wait."""
        late = self._late
        if late is None:
            return
        error = (await try_await(self._within_limit(late.catch_up))).error if late.take_over() else None
        if error is None and late.lost:
            await self._count_lost(late)
        if error is not None:
            waiting = f"{len(late)} {'write waits' if len(late) == 1 else 'writes wait'} for the record"
            await self._report(StoreError(f"{waiting} and may yet be lost: {text_of(error)}"))

    async def attempt(self, work: Callable[[], Awaitable[T]], *, writes: bool) -> T | None:
        """Result of an operation that is never delayed; None if it failed, if paused, or if the owner is unknown."""
        if self._breaker.open or self.owner is None:
            return None
        return await self._in_time(partial(self._settle, work, writes))

    async def _in_time(self, work: Callable[[], Coroutine[Any, Any, T | None]]) -> T | None:
        """Result of work in the time left of a request; None if it takes longer, or if earlier work is overdue."""
        if not self.is_shared:
            return await work()
        return await self._overdue.await_in_time(work, self._on_late, self._make_delayed_writes)

    async def _on_late(self) -> None:
        """Have a thread watch what continues, and report that the record takes longer than a request may wait."""
        if self._is_own:  # other stores belong to an event loop
            self._overdue.watch(self.catch_up)
        limit = f"the record did not answer within {self.arguments.record_timeout:g} s (record_timeout)"
        await self._report(StoreError(f"{limit}; what a request could not wait for is done behind its answer"))

    def _make_delayed_writes(self) -> None:
        """Make the writes that were delayed while another operation ran, once it has ended well."""
        if self._late is not None and self._late.waiting and not self._breaker.failures:
            self._overdue.start(self.catch_up)

    async def _settle(self, work: Callable[[], Awaitable[T]], writes: bool) -> T | None:
        """Result of a store operation; None if it failed, which counts and is reported."""
        outcome = await try_await(self._within_limit(work))
        if outcome.error is None:
            if writes and self._late is not None:
                await self._count_lost(self._late)
            if writes:  # a full disk or a locked file can still be read, so only writes count
                self._breaker.succeeded()
            return outcome.value
        if isinstance(outcome.error, Removed):
            self._removals.clear()
        elif not (writes and is_permanent(outcome.error)):  # a record that refuses one request takes the next
            self._breaker.failed()
            self._failure[:] = [text_of(outcome.error)]
        await self._report(outcome.error)
        return None

    async def _count_lost(self, late: LateWrites) -> None:
        """Add the number of abandoned writes to the record, and report it, once the record works again."""
        if not self._removals:
            await try_await(self.see_removals(self.store))
        if not late.lost:
            return
        count, late.lost = late.lost, 0
        if await self._add_lost(count):
            await self._report(StoreError(f"the record works again; {count} writes were lost meanwhile"))
        else:
            late.lost += count

    async def _add_lost(self, count: int) -> bool:
        """Add to the lost writes that the record counts; False if that failed."""
        store = self.as_sql(self.store)
        if store is None:
            return True
        return (await try_await(store.perform(partial(rows.add_lost, count=count)))).error is None

    @property
    def _is_own(self) -> bool:
        """True for a store of this package."""
        store = self.arguments.store
        return store is None or isinstance(store, str | Path) or type(store).__module__.startswith(PACKAGE)

    async def _within_limit(self, work: Callable[[], Awaitable[T]]) -> T:
        """Await a store operation; StoreError after `timeout`. The stores of this package have their own limits."""
        if self._is_own:
            return await work()
        limit = self.arguments.timeout
        late = StoreError(f"{type(self.arguments.store).__name__} did not answer within {limit:g} s (timeout)")
        return await await_within(limit, work(), late)

    async def finish(self) -> None:
        """Wait for the operations that requests did not wait for, and for delayed writes that other threads make.

        If another thread gets no further for `timeout` seconds, it is not waited for.
        """
        await self._overdue.finish()
        waiting, since = len(self._late or ()), time.monotonic()
        while self._is_used_elsewhere and time.monotonic() - since < self.arguments.timeout:
            await asyncio.sleep(WATCH_S)
            if len(self._late or ()) != waiting:
                waiting, since = len(self._late or ()), time.monotonic()

    @property
    def _is_used_elsewhere(self) -> bool:
        """True while another thread makes delayed writes, or is about to."""
        executing = self._late is not None and self._late.is_executing
        return executing or self._overdue.is_watching

    async def close(self) -> None:
        """Close the store if it was opened here; the next use opens it again."""
        for store in self._opened:
            if store is not self.arguments.store:
                await try_await(self._within_limit(store.close))


def _scoped(store: Store, owner: str | None) -> Store:
    """The store of an owner; StoreError if the store does not support owners."""
    tenants = cast(Tenants, store)  # checked by name, because this runs often and protocol checks are slow
    if hasattr(store, "scoped") and isinstance(getattr(store, "owner", 0), str | None):
        return store if owner == tenants.owner else tenants.scoped(owner)
    if owner:
        raise StoreError(f"{store!r} knows no owners: give a path, or a store that has `scoped`")
    return store
