"""Operations on the record that go on behind an answer, because a request may wait for the record only so long.

The event loop of an operation may stop before it ends, as that of `run_sync` does once the answer is there. A thread
then sees to it that the record takes what is left, and the process does not end before that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")

WATCH_S = 0.05
"""Seconds between two looks at whether an event loop has stopped."""

_LEFT: ContextVar[list[float] | None] = ContextVar("record_timeout", default=None)
"""Seconds that the record may still take of the current request; None outside of requests, and without a limit."""


@contextmanager
def limited(seconds: float | None) -> Generator[None]:
    """Limit the time that all operations within may take together; what comes later goes on behind the answer."""
    token = _LEFT.set(None if seconds is None else [seconds])
    try:
        yield
    finally:
        _LEFT.reset(token)


class Behind:
    """Operations of one compiler that no request waits for any more."""

    def __init__(self) -> None:
        self._running = set[asyncio.Task[Any]]()
        self._watch: Thread | None = None

    @property
    def is_busy(self) -> bool:
        """True while an operation runs that a request did not wait for: others do not wait either."""
        return any(not task.done() and task.get_loop().is_running() for task in tuple(self._running))

    @property
    def is_watching(self) -> bool:
        """True while the thread waits for operations, or does what they left."""
        return self._watch is not None and self._watch.is_alive()

    async def await_in_time(
        self,
        work: Callable[[], Coroutine[Any, Any, T | None]],
        on_late: Callable[[], Awaitable[None]],
        on_end: Callable[[], None],
    ) -> T | None:
        """Result of work in the seconds left of the current request.

        None if it takes longer and goes on behind the answer, after `on_late`, or if anything else still does.
        `on_end` is called when work that took longer ends without an error.
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

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Start work that nobody waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def watch(self, catch_up: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """See to it, from a thread, that `catch_up` runs once nothing runs any more, even if this event loop stops."""
        if not self.is_watching:
            self._watch = Thread(target=copy_context().run, args=(self._wait, catch_up), name="context-compiler-late")
            self._watch.start()

    def _wait(self, catch_up: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while self.is_busy:
            time.sleep(WATCH_S)
        self._running.difference_update([task for task in tuple(self._running) if task.get_loop().is_closed()])
        asyncio.run(catch_up())

    async def finish(self) -> None:
        """Wait for the operations of this event loop."""
        loop = asyncio.get_running_loop()
        while running := [task for task in self._running if task.get_loop() is loop]:
            await asyncio.wait(running)
