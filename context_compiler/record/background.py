"""An event loop on a daemon thread that owns all database connections, so that they outlive the callers' loops.

The thread never keeps a process alive. Connections are closed before a fork and at exit; the next use reopens them.
"""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from threading import RLock, Thread, get_ident
from typing import Any, Generic, Protocol, TypeAlias, TypeVar
from weakref import WeakSet

from context_compiler.errors import StoreError

T = TypeVar("T")

EXIT_S, FORK_S = 2.0, 10.0
"""Seconds that exit and fork wait for work in progress. The next use rolls back an unfinished transaction."""


TICK_S = 0.05
"""Seconds between two forced wake-ups of a loop that may share its wake-up pipe with another process."""


class Guest(Protocol):
    """A file or pool that has open connections on a background loop."""

    async def leave(self, home: Background) -> None:
        """Close all connections without raising; the next use opens them again."""
        ...


Work: TypeAlias = "Callable[[Background], Coroutine[Any, Any, T]]"


class Background:
    """An event loop on a daemon thread; threads started from it, such as those of aiosqlite, are daemon threads too."""

    def __init__(self) -> None:
        self.open: set[Guest] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._run, name="context-compiler-record", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def start(self, work: Work[T], done: Callable[[asyncio.Task[T]], object]) -> None:
        """Start work from any thread; `done` is called with its task on the background thread."""
        self._loop.call_soon_threadsafe(self._begin, work, done)

    def _begin(self, work: Work[Any], done: Callable[[asyncio.Task[Any]], object]) -> None:
        task = self._loop.create_task(work(self))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(done)

    def stop(self, patience: float) -> bool:
        """Finish work in progress, close all guests and end the thread; False if that exceeds `patience` seconds."""
        self.start(Background._finish, retrieve_error)
        self._thread.join(patience)
        return not self._thread.is_alive()

    async def _finish(self) -> None:
        own = asyncio.current_task()
        while others := [task for task in self._tasks if task is not own]:
            await asyncio.wait(others)
        for guest in list(self.open):
            await guest.leave(self)
        self._loop.stop()


_gate = RLock()
"""Lock that is held while work is submitted and during a fork."""
_background: Background | None = None
_forked = False
_stranded: list[Background] = []
"""Loops that did not end in time; they are kept, because closing their connections after a fork corrupts the file."""


def retrieve_error(done: asyncio.Future[Any]) -> None:
    """Retrieve the error of a future that nobody may be waiting for, because asyncio logs errors never retrieved."""
    if not done.cancelled():
        done.exception()


def current() -> Background | None:
    """Return the current background loop; None if none is running."""
    return _background


def can_be_woken_by_threads(loop: asyncio.AbstractEventLoop) -> bool:
    """True if other threads can wake a loop; the loop of a replayed workflow does not support this."""
    return type(loop).call_soon_threadsafe is not asyncio.AbstractEventLoop.call_soon_threadsafe


async def submit(work: Work[T]) -> T:
    """Run a coroutine on the background loop; a cancelled caller still waits until it ends.

    Raises:
        StoreError: The background thread cannot wake the caller's loop.
    """
    global _background
    loop = asyncio.get_running_loop()
    if not can_be_woken_by_threads(loop):
        raise StoreError("the record cannot be used from the loop of a workflow: use it from an activity")
    outcome = Outcome[T]()
    with _gate:
        if _background is None:
            _background = Background()
        _background.start(lambda home: outcome.run(work(home)), outcome.check_failure)
    return await outcome.wait()


def result_at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, without an event loop, and return its result."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    work.close()
    raise RuntimeError("the reads of one job wait for something else than their store")


@contextmanager
def keep_awake(loop: asyncio.AbstractEventLoop) -> Generator[None]:
    """Wake a loop every `TICK_S` if this process has forked or was forked.

    A loop created before the fork shares its wake-up pipe with the other process, which may consume a wake-up first.
    """
    if not _forked:
        yield
        return
    ticks: list[asyncio.TimerHandle] = []

    def tick() -> None:
        ticks[:] = [loop.call_later(TICK_S, tick)]

    tick()
    try:
        yield
    finally:
        ticks[0].cancel()


class Outcome(Generic[T]):
    """The outcome of work on any loop, awaited by the task that created it; a cancelled task still waits for it.

    `asyncio.shield` would need two more iterations of the waiting loop, each with a system call.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._answer: asyncio.Future[T] = self._loop.create_future()
        self._is_over = False

    async def run(self, work: Awaitable[T]) -> None:
        """Do the work and deliver its result at once, without waiting for the task to end."""
        result = await work
        self._settle(lambda answer: answer.set_result(result))

    def check_failure(self, done: asyncio.Future[None] | Future[None]) -> None:
        """Deliver the failure of the task of `run`, if it failed; a callback for when the task is done."""
        if done.cancelled():  # its loop is ending
            self._settle(lambda answer: answer.cancel())
        elif (error := done.exception()) is not None:
            self._settle(lambda answer: answer.set_exception(error))

    async def wait(self) -> T:
        """Wait for the work to end; return its result or raise its error."""
        with keep_awake(self._loop):
            try:
                return await self._answer
            except asyncio.CancelledError:
                if not self._is_over:
                    self._answer = self._loop.create_future()
                    self._answer.add_done_callback(retrieve_error)
                    await asyncio.wait([self._answer])
                retrieve_error(self._answer)
                raise

    def _settle(self, settle: Callable[[asyncio.Future[T]], object]) -> None:
        if get_ident() == self._thread:
            self._end(settle)
            return
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._end, settle)

    def _end(self, settle: Callable[[asyncio.Future[T]], object]) -> None:
        self._is_over = True
        if not self._answer.done():
            settle(self._answer)


def _stop(patience: float) -> None:
    global _background
    stopping, _background = _background, None
    if stopping is not None and not stopping.stop(patience):
        _stranded.append(stopping)


@atexit.register
def _at_exit() -> None:
    with _gate:
        _stop(EXIT_S)


_locks: WeakSet[Any] = WeakSet()
_held: list[Any] = []


def hold_at_fork(lock: Any) -> None:
    """Delay forks while `lock` is held, because its holder does not exist in the child."""
    with _gate:
        _locks.add(lock)


def _before_fork() -> None:
    """Close every connection, because two processes must not share one."""
    _gate.acquire()
    _stop(FORK_S)
    _held.extend(lock for lock in list(_locks) if lock.acquire(timeout=FORK_S))


def _after_fork() -> None:
    global _forked
    _forked = True
    while _held:
        _held.pop().release()
    _gate.release()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
