"""Long work off the event loop, in a thread with a loop of its own; calls to the host run in the host's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from contextvars import copy_context
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from pydantic_ai.messages import ModelMessage

from context_compiler.compiler.summary import SummaryRequest, SummaryResponse
from context_compiler.middleware.request import Host, is_long
from context_compiler.resilience import TimeLimit, attempt

T = TypeVar("T")

INTERRUPTIBLE_S = 0.1
"""Seconds for which a blocked thread waits before it gives an engine a chance to interrupt it."""


def in_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Start work in a thread of its own: it may take long, and the loop needs its own threads to look up addresses.

    Raises:
        NotImplementedError: The loop has no threads.
        RuntimeError: No thread can be started.
    """
    thread = ThreadPoolExecutor(1, thread_name_prefix="context-compiler-long")
    try:
        return asyncio.get_running_loop().run_in_executor(thread, copy_context().run, work)
    finally:
        thread.shutdown(wait=False)  # the thread ends with this work


async def in_thread_if_long(work: Callable[[], T], messages: Sequence[ModelMessage]) -> T:
    """Call work on these messages, in a thread if it takes long; if the loop has no threads, in this one."""
    if attempt(lambda: is_long(messages)).value is False:
        return work()
    try:
        done = in_thread(work)
    except (NotImplementedError, RuntimeError):
        return work()
    return await done


async def off_loop(work: Callable[[Host], Coroutine[Any, Any, T]], host: Host, limit: TimeLimit | None = None) -> T:
    """Run a coroutine to completion in a thread of its own; its calls to the host run in this loop.

    If the loop has no threads (some durable engines) or cannot start one, the coroutine runs in this loop. When the
    caller is cancelled, the coroutine is cancelled at its next await. The limit applies only in the thread, whose time
    no other work takes.
    """
    here = asyncio.get_running_loop()
    tasks: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = []

    async def main() -> T:
        task = asyncio.ensure_future(work(_OtherLoopHost(host, here)))
        tasks.append((asyncio.get_running_loop(), task))
        return await task

    def run() -> T:
        with limit.applied() if limit is not None else nullcontext():
            return asyncio.run(main())

    try:
        done = in_thread(run)
    except (NotImplementedError, RuntimeError):  # no threads here, or no new ones: slower, but not lost
        return await work(host)
    try:
        return await done
    except asyncio.CancelledError:
        for there, task in tasks:
            with suppress(RuntimeError):  # its loop has closed
                there.call_soon_threadsafe(task.cancel)
        raise


async def run_blocking(work: Callable[[Any], Coroutine[Any, Any, T]], host: Host | None = None) -> T:
    """Run a coroutine in another thread while the calling loop is blocked; for the loop of a workflow.

    The loop of a Temporal workflow gets no events from other threads, and its thread may not open files. The workflow
    therefore blocks until the work ends or calls the host. This also keeps the order of host calls the same in a
    replay.
    """
    calls = SimpleQueue[Coroutine[Any, Any, None] | None]()
    tasks: list[asyncio.Task[T]] = []

    async def main() -> None:
        tasks.append(asyncio.ensure_future(work(None if host is None else _BlockedLoopHost(host, calls))))
        await asyncio.wait(tasks)

    def run() -> None:
        try:
            asyncio.run(main())
        finally:
            calls.put(None)

    Thread(target=copy_context().run, args=(run,), name="context-compiler-beside", daemon=True).start()
    while (call := _wait_for_next(calls)) is not None:
        await call
    return tasks[0].result()


def _wait_for_next(calls: SimpleQueue[T]) -> T:
    while True:
        with suppress(Empty):  # the timeout lets an engine interrupt this thread
            return calls.get(timeout=INTERRUPTIBLE_S)


class _OtherLoopHost(Host):
    """Host for work in the loop of another thread; calls are forwarded to the loop of the run."""

    def __init__(self, host: Host, loop: asyncio.AbstractEventLoop) -> None:
        self._host, self._loop = host, loop

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            call = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # the loop of the run has closed, and does not wait for this thread
            work.close()
            raise
        return await asyncio.wrap_future(call)

    async def begin(self, ids: list[str], config: str) -> dict[str, Any]:
        return await self._call(self._host.begin(ids, config))

    async def ask(self, request: SummaryRequest) -> SummaryResponse:
        return await self._call(self._host.ask(request))

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    @property
    def is_durable(self) -> bool:
        return self._host.is_durable

    async def launch(self, request: SummaryRequest) -> asyncio.Task[SummaryResponse] | None:
        return await self._call(self._host.launch(request))

    async def land(self, task: asyncio.Task[SummaryResponse]) -> SummaryResponse:
        return await self._call(self._host.land(task))

    def charge(self, response: SummaryResponse) -> SummaryResponse:
        return self._host.charge(response)

    def affords(self, sent: int, answered: int, model: str = "") -> bool:
        return self._host.affords(sent, answered, model)

    def framing(self, messages: list[ModelMessage]) -> list[ModelMessage]:
        return self._host.framing(messages)

    async def count(self, messages: list[ModelMessage]) -> int | None:
        return await self._call(self._host.count(messages))


class _BlockedLoopHost(_OtherLoopHost):
    """Host for work beside a blocked loop; each call is queued as a coroutine that the blocked loop awaits."""

    def __init__(self, host: Host, calls: SimpleQueue[Coroutine[Any, Any, None] | None]) -> None:
        super().__init__(host, asyncio.get_running_loop())
        self._calls = calls

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        here = asyncio.get_running_loop()
        answer: asyncio.Future[T] = here.create_future()

        def settle(task: asyncio.Task[T]) -> None:
            error = asyncio.CancelledError() if task.cancelled() or not task.done() else task.exception()
            if error is None:
                answer.set_result(task.result())
            else:
                answer.set_exception(error)

        async def call() -> None:
            task = asyncio.ensure_future(work)
            try:
                await asyncio.wait({task})
            finally:
                if not task.done():
                    task.cancel()
                here.call_soon_threadsafe(settle, task)

        self._calls.put(call())
        return await answer
