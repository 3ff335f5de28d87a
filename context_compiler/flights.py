"""One compile of one span at a time: concurrent runs that want the same share one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from context_compiler.agent import Answer

PATIENCE_S = 1.0
"""How long a call that nobody waits for any more is given to end."""


@dataclass(slots=True)
class _Flight:
    task: asyncio.Task[Answer]
    waiting: int = 0
    paid: bool = False


class Flights:
    """Compiles under way, by event loop and cache key."""

    def __init__(self) -> None:
        """Start with none."""
        self._under_way: dict[tuple[int, str], _Flight] = {}

    async def join(self, key: str, start: Callable[[], Coroutine[Any, Any, Answer]]) -> tuple[Answer, bool]:
        """The answer for `key`, and whether its tokens are this caller's to pay: exactly one pays.

        Who is cancelled leaves the others waiting; the work itself is cancelled when nobody waits any more.

        Raises:
            TimeoutError: the work was cancelled by itself, not by who waits for it.
        """
        place = (id(asyncio.get_running_loop()), key)
        flight = self._under_way.get(place)
        if flight is None:
            flight = self._under_way[place] = _Flight(asyncio.create_task(start()))
        flight.waiting += 1
        try:
            await asyncio.wait({flight.task})
        finally:
            flight.waiting -= 1
            if not flight.waiting:
                self._under_way.pop(place, None)
                await _ended(flight.task)
        if flight.task.cancelled():
            raise TimeoutError("the call was cancelled")
        answer, pays = flight.task.result(), not flight.paid
        flight.paid = True
        return answer, pays


async def _ended(task: asyncio.Task[Answer]) -> None:
    """Nothing of a call is left behind: neither a task nor an error that nobody looked at."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=PATIENCE_S)
    if task.done() and not task.cancelled():
        task.exception()
