"""Delayed writes: writes that the record could not take are repeated before the compiler's next write, or reported."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Generator, Hashable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any

from context_compiler.errors import StoreError, text_of
from context_compiler.record.database import Moment
from context_compiler.record.redaction import RedactionError
from context_compiler.record.rows import BrokenReference, Removed
from context_compiler.resilience import Report, forget_in_child, try_await

LATE, LATE_S = 10_000, 900.0
"""Maximum number of delayed writes, and seconds after which one is abandoned."""

ATTEMPTS = 5
"""Failures of one write that is abandoned if another write, tried directly after it, succeeds."""

BUSY = frozenset(
    (
        *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL),
        *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN),
    )
)
"""SQLite errors of the whole record: a lock, a full disk, a file that cannot be opened."""

OWN = frozenset((sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG))
"""SQLite errors of a single write."""

BUSY_STATES, OWN_STATES = ("08", "25006", "40", "53", "55P03", "57"), ("22", "23", "54")
"""Prefixes of SQLSTATEs: of the whole database (connection, standby, conflict, resources, lock, shutdown), and of a
single write (data, integrity, size)."""

REMOVED = "something was deleted from the record since, which may include their content"
TOO_MANY, TOO_LATE = f"more than {LATE:,} are waiting", f"they waited for more than {LATE_S / 60:.0f} minutes"

Write = Callable[[Moment | None], Awaitable[Any]]
"""A repeatable write of an owner; its argument is the time of the first attempt, or None at the first attempt."""


def is_permanent(error: Exception) -> bool:
    """True if a write failed because of its own content, so that a repetition would fail too."""
    cause = (error.__cause__ or error) if isinstance(error, StoreError) else error
    code, state = getattr(cause, "sqlite_errorcode", None), getattr(cause, "sqlstate", None)
    if code is not None:
        return code & 0xFF in OWN
    if state is not None:
        return str(state).startswith(OWN_STATES)
    own = ValueError | TypeError | ArithmeticError | LookupError
    return isinstance(error, Removed | BrokenReference | RedactionError) or isinstance(cause, own)


def is_of_all(error: Exception) -> bool:
    """True if an error certainly concerns the whole record, such as a lock, a full disk or an unreachable database."""
    cause = error.__cause__ if isinstance(error, StoreError) else error
    code, state = getattr(cause, "sqlite_errorcode", None), getattr(cause, "sqlstate", None)
    if code is not None:
        return code & 0xFF in BUSY
    return isinstance(cause, OSError) or str(state or "").startswith(BUSY_STATES)


@dataclass(slots=True, eq=False)
class _DelayedWrite:
    conversation: Hashable
    tried: Moment
    work: Write
    failures: int = 1
    is_abandoned: bool = False


class LateWrites:
    """Queue of delayed writes, oldest first; only one task at a time executes them, in order.

    An event loop may stop in the middle of a write, as that of `run_sync` does once the answer is there. What it leaves
    is taken over: a write that is made twice changes nothing.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self.lost = 0
        """Number of abandoned writes that are not yet counted on the record."""
        self.forget()
        forget_in_child(self)

    def forget(self) -> None:
        """Empty the queue, because after a fork its writes belong to the parent process."""
        self.waiting: deque[_DelayedWrite] = deque()
        """Usually empty; a write stays in the queue while it is executed."""
        self._tried: dict[_DelayedWrite, asyncio.AbstractEventLoop] = {}
        """First attempts in progress, each with its event loop."""
        self._executing: asyncio.AbstractEventLoop | None = None
        """Event loop of the task that executes the queue; None if there is none."""
        self._editing = Lock()

    def __len__(self) -> int:
        return len(self.waiting)

    @property
    def is_executing(self) -> bool:
        """True while a task executes the queue."""
        return self._executing is not None and self._executing.is_running()

    @property
    def is_half_full(self) -> bool:
        """True if more than half of the queue is used: requests wait before they add more."""
        return len(self) > LATE // 2

    @contextmanager
    def first_attempt(self, conversation: Hashable, tried: Moment, work: Write) -> Generator[None]:
        """Note that a write is attempted within, so that it is made even if the event loop stops meanwhile."""
        write = _DelayedWrite(conversation, tried, work)
        self._tried[write] = asyncio.get_running_loop()
        try:
            yield
        except GeneratorExit:  # the event loop is gone
            self.waiting.appendleft(write)
            raise
        finally:
            self._tried.pop(write, None)

    def take_over(self) -> bool:
        """Queue the first attempts of event loops that have stopped; True if any write waits."""
        with self._editing:
            for write, loop in tuple(self._tried.items()):  # other threads add and remove their own meanwhile
                if not loop.is_running() and self._tried.pop(write, None) is not None:
                    self.waiting.appendleft(write)
        return bool(self.waiting)

    async def delay(self, conversation: Hashable, tried: Moment, work: Write) -> None:
        """Add a write of a conversation to the queue; abandon the oldest if the queue is full."""
        with self._editing:
            self.waiting.append(_DelayedWrite(conversation, tried, work))
            lost = len(self.waiting) - LATE
            for _ in range(lost):
                self.waiting.popleft().is_abandoned = True
        await self._abandon({TOO_MANY: max(0, lost)})

    async def catch_up(self, conversation: Hashable = None) -> bool:
        """Execute the writes in the queue, in order.

        Returns:
            False if another task is already doing so and a write of this conversation is in the queue.

        Raises:
            StoreError: The record failed again; the writes stay in the queue.
        """
        loop = asyncio.get_running_loop()
        with self._editing:
            if self.is_executing:
                return all(write.conversation != conversation for write in tuple(self.waiting))
            self._executing = loop
        lost = Counter[str]()
        try:
            while (waiting := tuple(self.waiting)) and await self._execute(waiting, lost):
                pass
        finally:
            if self._executing is loop:
                self._executing = None
            await self._abandon(lost)
        return True

    async def _execute(self, waiting: Sequence[_DelayedWrite], lost: Counter[str]) -> bool:
        """Execute writes in order, and return True if all of them are done with.

        Raises:
            Exception: The record failed, or two writes in a row did for an unknown reason, or the last one did.
        """
        failing = 0
        failed: tuple[_DelayedWrite, Exception] | None = None
        for write in waiting:
            error = None
            if write.is_abandoned:
                continue
            if write.tried.age > LATE_S:
                lost[TOO_LATE] += 1
            elif (error := (await try_await(write.work(write.tried))).error) is None:
                if failed is not None and failed[0].failures >= ATTEMPTS:
                    self._remove(failed[0])
                    lost[text_of(failed[1])] += 1
                    failing -= 1
                failed = None
            elif is_permanent(error):
                lost[REMOVED if isinstance(error, Removed) else text_of(error)] += 1
            else:
                write.failures += 1
                if failed is not None or is_of_all(error):
                    raise error
                failed = write, error
                failing += 1
                continue
            self._remove(write)
        if failed is not None:
            raise failed[1]
        return not failing

    def _remove(self, write: _DelayedWrite) -> None:
        with self._editing, suppress(ValueError):  # it may have been abandoned, because the queue was full
            self.waiting.remove(write)

    async def _abandon(self, lost: Counter[str] | dict[str, int]) -> None:
        for why, count in lost.items():
            if count:
                self.lost += count
                writes = "1 write that waited" if count == 1 else f"{count} writes that waited"
                await self._report(StoreError(f"{writes} for the record will not be made: {why}"))
