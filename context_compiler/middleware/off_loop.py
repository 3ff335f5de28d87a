"""Long work off the event loop: in a thread with a loop of its own, while the host is called in its own loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from pydantic_ai.messages import ModelMessage

from context_compiler.compiler.summary import SummaryRequest, SummaryResponse
from context_compiler.middleware.request import Host

T = TypeVar("T")


async def off_loop(work: Callable[[Host], Coroutine[Any, Any, T]], host: Host) -> T:
    """Run a coroutine to its end in a thread; what it awaits of the host runs in this loop.

    A loop that has no threads (some durable engines), or cannot start one, runs it itself. When the caller is
    cancelled, the work is too, at the next point where it waits.
    """
    here = asyncio.get_running_loop()
    tasks: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = []

    async def main() -> T:
        task = asyncio.ensure_future(work(_DistantHost(host, here)))
        tasks.append((asyncio.get_running_loop(), task))
        return await task

    def run() -> T:
        return asyncio.run(main())

    try:
        done = here.run_in_executor(None, partial(copy_context().run, run))
    except (NotImplementedError, RuntimeError):
        return await work(host)
    try:
        return await done
    except asyncio.CancelledError:
        for there, task in tasks:
            with suppress(RuntimeError):  # it has ended
                there.call_soon_threadsafe(task.cancel)
        raise


class _DistantHost(Host):
    """A host as it is called from the loop of another thread."""

    def __init__(self, host: Host, loop: asyncio.AbstractEventLoop) -> None:
        self._host, self._loop = host, loop

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def begin(self, ids: list[str], config: str) -> dict[str, Any]:
        return await self._call(self._host.begin(ids, config))

    async def ask(self, request: SummaryRequest) -> SummaryResponse:
        return await self._call(self._host.ask(request))

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    async def launch(self, request: SummaryRequest) -> asyncio.Task[SummaryResponse] | None:
        return await self._call(self._host.launch(request))

    async def land(self, task: asyncio.Task[SummaryResponse]) -> SummaryResponse:
        return await self._call(self._host.land(task))

    def charge(self, response: SummaryResponse) -> SummaryResponse:
        return self._host.charge(response)

    def affords(self, given: int, answered: int) -> bool:
        return self._host.affords(given, answered)

    def framing(self, messages: list[ModelMessage]) -> list[ModelMessage]:
        return self._host.framing(messages)

    async def count(self, messages: list[ModelMessage]) -> int | None:
        return await self._call(self._host.count(messages))
