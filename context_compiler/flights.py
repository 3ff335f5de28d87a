"""One compile of one span at a time: concurrent runs that want the same share one call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from context_compiler.agent import Answer


@dataclass(slots=True)
class _Flight:
    task: asyncio.Task[Answer]
    waiting: int = 0


class Flights:
    """Compiles under way, by event loop and cache key."""

    def __init__(self) -> None:
        """Start with none."""
        self._under_way: dict[tuple[int, str], _Flight] = {}

    async def join(self, key: str, start: Callable[[], Awaitable[Answer]]) -> tuple[Answer, bool]:
        """The answer for `key`, and whether this call started the work.

        Who is cancelled leaves the others waiting; the work itself is cancelled when nobody waits any more.
        """
        place = (id(asyncio.get_running_loop()), key)
        flight = self._under_way.get(place)
        first = flight is None
        if flight is None:
            flight = self._under_way[place] = _Flight(asyncio.ensure_future(_run(start)))
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task), first
        finally:
            flight.waiting -= 1
            if flight.waiting == 0:
                self._under_way.pop(place, None)
                flight.task.cancel()


async def _run(start: Callable[[], Awaitable[Answer]]) -> Answer:
    return await start()
