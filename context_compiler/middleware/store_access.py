"""Access to the store of one compiler, which is opened on first use and never stops a request.

A failure is reported, and after three failures the store is not used for a while. A write that failed because of a
locked file or a full disk is repeated before the next write (`late`).
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from context_compiler.errors import StoreError
from context_compiler.middleware.arguments import Arguments
from context_compiler.middleware.late import LateWrites, Write, is_passing
from context_compiler.record.database import Moment
from context_compiler.record.files import BUSY_TIMEOUT_MS
from context_compiler.record.rows import Removed
from context_compiler.record.store import SQLStore, Store, Tenants, open_store
from context_compiler.resilience import Breaker, Report, await_within, try_await

T = TypeVar("T")

PACKAGE = f"{__name__.partition('.')[0]}."


class StoreAccess:
    """The store of one compiler, for one owner."""

    def __init__(self, arguments: Arguments, report: Report) -> None:
        """Open nothing yet."""
        self.arguments = arguments
        self.owner: str | None = arguments.static_owner
        """Owner of the record; None if the owner is unknown, in which case nothing is saved or found."""
        self._report = report
        self._opened: list[Store] = []
        """The store once it is open, else empty; shared with the access of other owners."""
        self._breaker = Breaker()
        self._reported = set[str]()
        """Errors that reads have met, and that their request reports once: until the next write or success."""
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
        given = self.arguments.store
        if not self.keeps_content or given is None:
            return id(self._opened), key
        path = given if isinstance(given, str | Path) else getattr(given, "path", None)
        return os.path.abspath(path) if isinstance(path, str | Path) else id(given), key

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
        return None if self.is_blank else await self._attempt(work)

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

        return (await try_await(self._within_limit(done))).value

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
        if not self._breaker.open:
            write = partial(work, None) if late is None else partial(self._write_in_order, late, session_id, work)
            return await self.attempt_write(write)
        if late is not None and late.is_unavailable:
            await try_await(self._delay(late, session_id, Moment(), work))
        return None

    async def attempt_write(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """Execute a write that is never delayed, and return its result; None if it failed."""
        return await self._attempt(work, writes=True)

    async def _write_in_order(self, late: LateWrites, session_id: str, work: Write) -> Any:
        tried = Moment()
        try:
            if not late.waiting or await late.catch_up((self.owner, session_id)):
                return await work(None)
        except StoreError as error:
            if is_passing(error):
                await self._delay(late, session_id, tried, work)
            raise
        await self._delay(late, session_id, tried, work)
        return None

    async def _delay(self, late: LateWrites, session_id: str, tried: Moment, work: Write) -> None:
        """Delay a write, if its store can later tell whether content was deleted in the meantime."""
        if self.owner is not None and self._opened and isinstance(self._opened[0], SQLStore):
            await late.delay((self.owner, session_id), tried, work)

    async def catch_up(self) -> None:
        """Execute the delayed writes, or report why they must wait."""
        late = self._late
        if late is None or not late.waiting:
            return
        error = (await try_await(self._within_limit(late.catch_up))).error
        if error is not None:
            waiting = f"{len(late)} {'write waits' if len(late) == 1 else 'writes wait'} for the record"
            await self._report(StoreError(f"{waiting} and may yet be lost: {error}"))

    async def _attempt(self, work: Callable[[], Awaitable[T]], *, writes: bool = False) -> T | None:
        """Result of a store operation; None if it failed, if the breaker is open, or if the owner is unknown."""
        if self._breaker.open or self.owner is None:
            return None
        outcome = await try_await(self._within_limit(work))
        if outcome.error is None:
            self._reported.clear()
            if writes:  # a full disk or a locked file can still be read, so only writes count
                self._breaker.succeeded()
            return outcome.value
        if not isinstance(outcome.error, Removed):
            if self._late is not None:
                self._late.is_unavailable = is_passing(outcome.error)
            self._breaker.failed()
        await self._report_once(outcome.error, writes)
        return None

    async def _report_once(self, error: Exception, writes: bool) -> None:
        """Report an error, unless reads of the same request have met it: every request ends with a write."""
        cause = f"{type(error).__name__}: {error}"
        is_new = cause not in self._reported
        self._reported.add(cause)
        if writes or self._breaker.open:
            self._reported.clear()
        if is_new:
            await self._report(error)

    @property
    def _is_own(self) -> bool:
        """True for a store of this package."""
        given = self.arguments.store
        return given is None or isinstance(given, str | Path) or type(given).__module__.startswith(PACKAGE)

    async def _within_limit(self, work: Callable[[], Awaitable[T]]) -> T:
        """Await a store operation within the time limit; the stores of this package have their own limits.

        Raises:
            StoreError: The operation took too long.
        """
        if self._is_own:
            return await work()
        limit = self.arguments.timeout
        late = StoreError(f"{type(self.arguments.store).__name__} did not answer within {limit:g} s (timeout)")
        return await await_within(limit, work(), late)

    async def close(self) -> None:
        """Close the store if it was opened here; the next use opens it again."""
        for store in self._opened:
            if store is not self.arguments.store:
                await try_await(self._within_limit(store.close))


def _scoped(store: Store, owner: str | None) -> Store:
    """The store of an owner.

    Raises:
        StoreError: The store does not support owners.
    """
    tenants = cast(Tenants, store)  # checked by name, because this runs often and protocol checks are slow
    if hasattr(store, "scoped") and isinstance(getattr(store, "owner", 0), str | None):
        return store if owner == tenants.owner else tenants.scoped(owner)
    if owner:
        raise StoreError(f"{store!r} knows no owners: give a path, or a store that has `scoped`")
    return store
