"""One compile of one span at a time: whoever wants the same, in whichever thread or event loop, shares one call.

The call runs in the event loop of who asked first. Others of that loop wait for its task, and other loops for
what came of it; where it was cancelled with its loop, one of them asks anew.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from context_compiler.compiler.agent import Answer

PATIENCE_S = 1.0
"""How long a call that nobody waits for any more is given to end."""

GRACE_S = 2.0
"""How long an answer is shared once it is there: until then it may not be on the record, where others look for it."""


@dataclass(slots=True, kw_only=True)
class _Flight:
    loop: asyncio.AbstractEventLoop
    task: asyncio.Task[Answer]
    outcome: Future[Answer] = field(default_factory=Future[Answer])
    """The same for other loops; cancelled with the task."""
    waiting: int = 0
    """In its own loop."""
    paid: bool = False
    landed: float | None = None
    """When an answer came that is of use, by the monotonic clock."""

    @property
    def over(self) -> bool:
        """Whether what came of it is on the record by now, or nowhere."""
        late = self.landed is not None and time.monotonic() - self.landed > GRACE_S
        return late or self.outcome.cancelled() or self.loop.is_closed()


class Flights:
    """Compiles under way in this process, by what they are for."""

    def __init__(self) -> None:
        """Start with none."""
        self._under_way: dict[Hashable, _Flight] = {}
        self._lock = Lock()

    async def join(self, key: Hashable, start: Callable[[], Coroutine[Any, Any, Answer]]) -> tuple[Answer, bool]:
        """The answer for `key`, and whether its tokens are this caller's to pay: exactly one pays.

        Who is cancelled leaves the others waiting; the work itself is cancelled when nobody waits any more.

        Raises:
            TimeoutError: the work was cancelled by itself, not by who waits for it.
        """
        while True:
            flight = self._flight(key, start)
            if flight.loop is asyncio.get_running_loop():
                await self._task(key, flight)
                if flight.task.cancelled():
                    raise TimeoutError("the call was cancelled")
                return flight.task.result(), self._pays(flight)
            await _landed(flight)
            if flight.outcome.done() and not flight.outcome.cancelled():
                return flight.outcome.result(), self._pays(flight)

    def _flight(self, key: Hashable, start: Callable[[], Coroutine[Any, Any, Answer]]) -> _Flight:
        with self._lock:
            for late in [name for name, known in self._under_way.items() if known.over]:
                del self._under_way[late]
            flight = self._under_way.get(key)
            if flight is None:
                flight = _Flight(loop=asyncio.get_running_loop(), task=asyncio.create_task(start()))
                self._under_way[key] = flight
                outcome = flight.outcome
                flight.task.add_done_callback(lambda task: _told(task, outcome))
        return flight

    async def _task(self, key: Hashable, flight: _Flight) -> None:
        flight.waiting += 1
        try:
            await asyncio.wait({flight.task})
        finally:
            flight.waiting -= 1
            if not flight.waiting:
                with self._lock:
                    flight.landed = time.monotonic() if _useful(flight.task) else None
                    if flight.landed is None and self._under_way.get(key) is flight:
                        del self._under_way[key]
                await _ended(flight.task)

    def _pays(self, flight: _Flight) -> bool:
        with self._lock:
            pays, flight.paid = not flight.paid, True
        return pays


UNDER_WAY = Flights()
"""Those of this process: several compilers on one record share their calls too."""


def _useful(task: asyncio.Task[Answer]) -> bool:
    """Whether there is an answer that others would ask for too."""
    if not task.done() or task.cancelled() or task.exception() is not None:
        return False
    return task.result().failure is None and bool(task.result().text)


async def _landed(flight: _Flight) -> None:
    """Wait for what comes of a call in another loop, or for the end of that loop."""
    waited = asyncio.wrap_future(flight.outcome)
    waited.add_done_callback(lambda future: future.cancelled() or future.exception())
    while not waited.done() and not flight.loop.is_closed():
        await asyncio.wait({waited}, timeout=PATIENCE_S)


def _told(task: asyncio.Task[Answer], outcome: Future[Answer]) -> None:
    """Hand on what came of a task."""
    if task.cancelled():
        outcome.cancel()
    elif (error := task.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())


async def _ended(task: asyncio.Task[Answer]) -> None:
    """Nothing of a call is left behind: neither a task nor an error that nobody looked at."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=PATIENCE_S)
    if task.done() and not task.cancelled():
        task.exception()
