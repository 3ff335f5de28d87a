"""Delayed writes: writes that the record could not take are repeated before the compiler's next write, or reported."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from threading import Lock
from typing import Any
from weakref import WeakSet

from context_compiler.errors import StoreError
from context_compiler.record.database import Moment
from context_compiler.record.rows import Removed
from context_compiler.resilience import Report, try_await

LATE, LATE_S = 100, 300.0
"""Maximum number of delayed writes, and seconds after which one is abandoned."""

PASSING = frozenset(
    (
        *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL),
        *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN),
    )
)
"""SQLite errors that are temporary: a lock, a full disk, a file that cannot be opened."""

PASSING_STATES = ("08", "40", "53", "55P03", "57")
"""Prefixes of temporary PostgreSQL SQLSTATEs: connection, conflict, resources, lock, server shutdown."""

REMOVED = "something was deleted from the record since, which may include their content"
TOO_MANY, TOO_LATE = f"more than {LATE} are waiting", f"they waited for more than {LATE_S / 60:.0f} minutes"

Write = Callable[[Moment | None], Awaitable[Any]]
"""A repeatable write of an owner; its argument is the time of the first attempt, or None at the first attempt."""


def is_passing(error: Exception) -> bool:
    """True if a store error is temporary, such as a lock, a full disk or an unreachable database."""
    cause = error.__cause__ if isinstance(error, StoreError) else None
    code, state = getattr(cause, "sqlite_errorcode", None), getattr(cause, "sqlstate", None)
    if code is not None:
        return code & 0xFF in PASSING
    return isinstance(cause, OSError) or str(state or "").startswith(PASSING_STATES)


@dataclass(frozen=True, slots=True)
class _DelayedWrite:
    conversation: Hashable
    tried: Moment
    work: Write


class LateWrites:
    """Queue of delayed writes, oldest first; only one task at a time executes them, in order."""

    def __init__(self, report: Report) -> None:
        """Start with an empty queue."""
        self._report = report
        self.is_unavailable = False
        """True while the last failure of the record was temporary."""
        self.forget()
        _ALL.add(self)

    def forget(self) -> None:
        """Empty the queue, because after a fork its writes belong to the parent process."""
        self.waiting: deque[_DelayedWrite] = deque()
        """Usually empty; a write stays in the queue while it is executed."""
        self._executing, self._editing = Lock(), Lock()

    def __len__(self) -> int:
        return len(self.waiting)

    async def delay(self, conversation: Hashable, tried: Moment, work: Write) -> None:
        """Add a write of a conversation to the queue; abandon the oldest if the queue is full."""
        with self._editing:
            self.waiting.append(_DelayedWrite(conversation, tried, work))
            lost = len(self.waiting) - LATE
            for _ in range(lost):
                del self.waiting[1 if self._executing.locked() else 0]  # the first write is being executed
        await self._abandon({TOO_MANY: max(0, lost)})

    async def catch_up(self, conversation: Hashable = None) -> bool:
        """Execute all delayed writes.

        Returns:
            False if another task is already doing so and a write of this conversation is in the queue.

        Raises:
            StoreError: A write failed again for a temporary reason, and stays in the queue.
        """
        if not self._executing.acquire(blocking=False):
            return all(one.conversation != conversation for one in tuple(self.waiting))
        lost = Counter[str]()
        try:
            while self.waiting:
                await self._execute(self.waiting[0], lost)
                with self._editing:
                    self.waiting.popleft()
        finally:
            self._executing.release()
            await self._abandon(lost)
        return True

    async def _execute(self, one: _DelayedWrite, lost: Counter[str]) -> None:
        if one.tried.age > LATE_S:
            lost[TOO_LATE] += 1
            return
        error = (await try_await(one.work(one.tried))).error
        if error is not None and is_passing(error):
            raise error
        if error is not None:
            lost[REMOVED if isinstance(error, Removed) else str(error)] += 1

    async def _abandon(self, lost: Counter[str] | dict[str, int]) -> None:
        for why, count in lost.items():
            if count:
                writes = "1 write that waited" if count == 1 else f"{count} writes that waited"
                await self._report(StoreError(f"{writes} for the record will not be made: {why}"))


_ALL: WeakSet[LateWrites] = WeakSet()


def _forget_all() -> None:
    for one in list(_ALL):
        one.forget()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget_all)
