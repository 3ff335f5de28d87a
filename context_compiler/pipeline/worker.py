"""A worker: takes submitted runs from a store, runs several at a time, and gives back those that wait for people.

Any number of workers share a store. A run whose worker dies is taken over by another one at its last saved state; a
run that no worker gets any further ends in failure.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from inspect import isawaitable
from typing import Any

from context_compiler.errors import PipelineError, RunOwnedError
from context_compiler.middleware.log_lines import log_text
from context_compiler.pipeline.config import RunConfig
from context_compiler.pipeline.interviewers import Question
from context_compiler.pipeline.queue import RemoteInterviewer, RunQueue, Submission
from context_compiler.pipeline.run import continue_run
from context_compiler.pipeline.state import RunState
from context_compiler.pipeline.stores import Event
from context_compiler.pipeline.stores.sql import SQLRuns

log = logging.getLogger("context_compiler.pipeline")

CONTAINERS = ("parallel", "stack.manager_loop")
"""Handlers that only wait for other stages."""

Configure = Callable[[Submission], RunConfig]
"""The configuration of a submitted run: agents, model, handlers, record."""
_Place = tuple[str, str, str]
"""Run, branch and stage."""
OnChange = Callable[[str, str, str], Any]
"""Called with the id of a run, its change (`taken`, `waiting`, `put back`, `success` or `fail`), and the reason."""


def worker_name() -> str:
    """The name of this process."""
    return f"{socket.gethostname()}:{os.getpid()}"


@dataclass(slots=True, kw_only=True)
class Worker:
    """Runs submitted runs until it is stopped."""

    runs: SQLRuns
    configure: Configure
    name: str = field(default_factory=worker_name)
    concurrency: int = 4
    """Runs at a time."""
    poll: float = 1.0
    """Seconds between polls of the store."""
    patience: float = 1.0
    """Seconds that a run keeps its place while all it does is wait for people."""
    max_takes: int = 10
    """Times a run is taken without completing a stage before it is given up."""
    on_change: OnChange | None = None
    _tasks: dict[str, asyncio.Task[None]] = field(init=False, default_factory=dict[str, "asyncio.Task[None]"])
    cancelled: dict[str, str] = field(init=False, default_factory=dict[str, str])
    """Runs of this worker that somebody has cancelled, with the reasons."""
    _looked: float = field(init=False, default=-math.inf)
    """When it last looked for more than the next run."""
    _stop: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    @property
    def queue(self) -> RunQueue:
        """The queue of its store."""
        return RunQueue(self.runs)

    def stop(self) -> None:
        """Stop taking runs, and give back those that it runs, at their last saved states."""
        self._stop.set()

    async def run(self, *, until_empty: bool = False) -> None:
        """Take runs until `stop`; with `until_empty` until those that are left wait for people, or were put back."""
        stopping = asyncio.create_task(self._stop.wait())
        try:
            while not self._stop.is_set():
                empty = await self._look()
                if until_empty and empty:
                    return
                await asyncio.wait(
                    {stopping, *self._tasks.values()}, timeout=self.poll, return_when=asyncio.FIRST_COMPLETED
                )
        finally:
            stopping.cancel()
            tasks = [*self._tasks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(stopping, *tasks, return_exceptions=True)

    async def _look(self) -> bool:
        """Take what there is room for; True if nothing is left to take or to end.

        A place that becomes free is given to the next run at once. Whether a run was cancelled, or its worker has died,
        is looked up once a `poll`, and when no run is ready.
        """
        try:
            room, most = self.concurrency - len(self._tasks), 4 * self.concurrency
            soon = time.monotonic() - self._looked < self.poll
            found = await self.queue.ready(most) if soon and room else []
            if not found and (room or not soon):
                self._looked = time.monotonic()
                self.cancelled = await self.queue.cancelled([*self._tasks])
                found = await self.queue.candidates(most) if room else []
            taken = [one for one in found if one not in self._tasks]
            chosen = random.sample(taken, min(room, len(taken)))  # workers that look at once should not collide
            for run_id in sorted(chosen, key=taken.index):
                self._tasks[run_id] = task = asyncio.create_task(self._work(run_id))
                task.add_done_callback(lambda _, run_id=run_id: self._tasks.pop(run_id, None))
            left = self._tasks or await self._unfinished()
        except PipelineError as error:  # the store is away: the next look may find it
            log.warning("%s: %s", self.name, error)
            return False
        return not left

    async def _unfinished(self) -> bool:
        return any(one.state != "waiting" and one.due is None for one in await self.queue.open())

    async def _work(self, run_id: str) -> None:
        """Take one run, and carry it as far as it goes now."""
        try:
            async with self.runs.own(run_id) as lost:
                taken = await self.queue.take_up(run_id, self.name, most=self.max_takes)
                if taken is None:
                    return
                await self.tell(run_id, taken.change, taken.reason)
                if taken.state is not None:
                    await _Execution(self, taken.submission, taken.state, lost).carry()
        except RunOwnedError as error:
            log.info("%s: %s", self.name, error)
        except PipelineError as error:
            log.warning("%s, run %s: %s", self.name, run_id, error)
            await asyncio.sleep(self.poll)  # the next try may fail in the same way

    async def tell(self, run_id: str, change: str, reason: str = "") -> None:
        """Notify the listener."""
        if self.on_change is not None:
            done = self.on_change(run_id, change, reason)
            if isawaitable(done):
                await done


class _Execution:
    """A run that a worker owns, until it ends, waits for people, is cancelled, or is lost."""

    def __init__(self, worker: Worker, taken: Submission, state: RunState, lost: asyncio.Future[str] | None) -> None:
        self._worker, self._taken, self._state, self._lost = worker, taken, state, lost
        self._active: dict[_Place, str] = {}
        self._asking: dict[_Place, str] = {}
        self._listener: Callable[[Event], Any] | None = None

    async def carry(self) -> None:
        """Run it, and record in the queue what came of it."""
        worker, run_id, queue = self._worker, self._taken.run_id, self._worker.queue
        task = asyncio.create_task(self._run())
        try:
            reason = await self._watch(task)
            waiting = [*self._asking.values()]
        finally:
            await _stop(task)
        if reason == "waiting":
            await queue.park(run_id, waiting)
            await worker.tell(run_id, reason)
        elif reason == "cancelled":
            cancelled = worker.cancelled[run_id]
            await worker.tell(run_id, await queue.give_up(run_id, cancelled), cancelled)
        elif task.cancelled() or (error := task.exception()) is None:
            ended = task.result()
            await queue.end(run_id)
            await worker.tell(run_id, ended.status, ended.failure_reason)
        elif isinstance(error, RunOwnedError) or not isinstance(error, Exception):
            raise error
        else:
            await queue.put_back_for_now(self._taken, log_text(error))
            await worker.tell(run_id, "put back", log_text(error))

    async def _run(self) -> RunState:
        worker, run_id = self._worker, self._taken.run_id
        config = worker.configure(self._taken)
        self._listener = config.on_event
        asks = RemoteInterviewer(queue=worker.queue, run_id=run_id, poll=worker.poll, on_wait=self._on_wait)
        interviewer = config.interviewer if self._taken.options.get("auto_approve") else asks
        config = replace(config, runs=worker.runs, run_id=run_id, interviewer=interviewer, on_event=self._on_event)
        return await continue_run(worker.runs, run_id, config, state=self._state)

    async def _watch(self, task: asyncio.Task[RunState]) -> str | None:
        """The reason to stop the run: `waiting`, `cancelled`, or `lost`; None if it has ended."""
        loop = asyncio.get_running_loop()
        since: float | None = None
        until = {task} if self._lost is None else {task, self._lost}
        while True:
            await asyncio.wait(until, timeout=self._worker.poll, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return None
            if self._lost is not None and self._lost.done():
                raise RunOwnedError(self._lost.result())
            if self._taken.run_id in self._worker.cancelled:
                return "cancelled"
            working = {place for place, handler in self._active.items() if handler not in CONTAINERS}
            idle = bool(self._asking) and working <= self._asking.keys()
            since = (since or loop.time()) if idle else None
            if since is not None and loop.time() - since >= self._worker.patience:
                return "waiting"

    def _on_wait(self, question: Question, waits: bool) -> None:
        facts = question.metadata
        place = (str(facts["run_id"]), str(facts["branch"]), question.stage)
        if waits:
            self._asking[place] = str(facts["key"])
        else:
            self._asking.pop(place, None)

    def _on_event(self, event: Event) -> Any:
        place = (event.run_id, event.branch, event.node or "")
        if event.kind == "stage_started":
            self._active[place] = str(event.data.get("handler"))
        elif event.kind in ("stage_completed", "stage_failed"):
            self._leave(place)
        return self._listener(event) if self._listener is not None else None

    def _leave(self, place: _Place) -> None:
        """A stage has ended, and with it whatever it did not wait for."""
        if self._active.pop(place, "") in CONTAINERS:
            for one in [one for one in self._active if _is_inside(one, place)]:
                self._leave(one)


def _is_inside(one: _Place, container: _Place) -> bool:
    """True for a stage in a branch or in the child of a container."""
    (run_id, branch, _), (outer, around, node) = one, container
    if run_id == outer:
        return branch.startswith(f"{around}." if around else "") and branch != around
    return run_id.startswith(".".join(filter(None, (outer, around, node))) + ".")


async def _stop(task: asyncio.Task[Any]) -> None:
    """Cancel a task, and wait for its end."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.gather(task, return_exceptions=True)
