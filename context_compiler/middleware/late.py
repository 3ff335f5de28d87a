"""Writes that a record could not take: made before the next one of the same compiler, or reported."""

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
"""Most writes that wait, and seconds after which one is given up."""

PASSING = frozenset(
    (
        *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL),
        *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN),
    )
)
"""Errors of SQLite that end by themselves, or when somebody makes room."""

PASSING_STATES = ("08", "40", "53", "55P03", "57")
"""The same of PostgreSQL, as beginnings of SQLSTATEs: connection, conflict, resources, a lock, a server that stops."""

REMOVED = "something was deleted from the record since, and they may have been a part of it"
TOO_MANY, TOO_LATE = f"more than {LATE} wait", f"they waited for more than {LATE_S / 60:.0f} minutes"

Write = Callable[[Moment | None], Awaitable[Any]]
"""A write of an owner, which may be done again; it is given the time when it was first tried, if that is past."""


def is_passing(error: Exception) -> bool:
    """True if a lock, a full disk or a database that is away has stopped something, which may succeed later."""
    cause = error.__cause__ if isinstance(error, StoreError) else None
    code, state = getattr(cause, "sqlite_errorcode", None), getattr(cause, "sqlstate", None)
    if code is not None:
        return code & 0xFF in PASSING
    return isinstance(cause, OSError) or str(state or "").startswith(PASSING_STATES)


@dataclass(frozen=True, slots=True)
class _Waiting:
    conversation: Hashable
    tried: Moment
    work: Write


class LateWrites:
    """Writes that wait, oldest first; one task at a time makes them, in order."""

    def __init__(self, report: Report) -> None:
        """Nothing waits yet."""
        self._report = report
        self.is_away = False
        """True while the last failure of the record was one that passes."""
        self.forget()
        _ALL.add(self)

    def forget(self) -> None:
        """Keep nothing: after a fork, what waits is the parent's."""
        self.waiting: deque[_Waiting] = deque()
        """Empty in most cases; one that is being made is still in it."""
        self._making, self._changing = Lock(), Lock()

    def __len__(self) -> int:
        return len(self.waiting)

    async def put_off(self, conversation: Hashable, tried: Moment, work: Write) -> None:
        """Let a write of a conversation wait; the oldest is given up where too many do."""
        with self._changing:
            self.waiting.append(_Waiting(conversation, tried, work))
            lost = len(self.waiting) - LATE
            for _ in range(lost):
                del self.waiting[1 if self._making.locked() else 0]  # the first is being made
        await self._give_up({TOO_MANY: max(0, lost)})

    async def catch_up(self, conversation: Hashable = None) -> bool:
        """Make what waits; False if another task is about to, and something of this conversation is among it.

        Raises:
            StoreError: One could not be made, and waits on.
        """
        if not self._making.acquire(blocking=False):
            return all(one.conversation != conversation for one in tuple(self.waiting))
        lost = Counter[str]()
        try:
            while self.waiting:
                await self._make(self.waiting[0], lost)
                with self._changing:
                    self.waiting.popleft()
        finally:
            self._making.release()
            await self._give_up(lost)
        return True

    async def _make(self, one: _Waiting, lost: Counter[str]) -> None:
        if one.tried.age > LATE_S:
            lost[TOO_LATE] += 1
            return
        error = (await try_await(one.work(one.tried))).error
        if error is not None and is_passing(error):
            raise error
        if error is not None:
            lost[REMOVED if isinstance(error, Removed) else str(error)] += 1

    async def _give_up(self, lost: Counter[str] | dict[str, int]) -> None:
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
