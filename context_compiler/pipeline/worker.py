"""Workers take submitted runs from a store, execute several at a time, and give back runs that wait for people.

Any number of workers can share a store. If a worker dies, another one takes over its runs at their last saved states. A
run that repeatedly makes no progress ends as failed.
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
from typing import Any

from context_compiler.errors import CheckpointError, PipelineError, RunOwnedError
from context_compiler.middleware.reports import log_text
from context_compiler.pipeline.config import RunConfig
from context_compiler.pipeline.interviewers import Question
from context_compiler.pipeline.queue import RemoteInterviewer, RunQueue, Submission
from context_compiler.pipeline.resume import continue_run
from context_compiler.pipeline.state import RunState
from context_compiler.pipeline.stores import Event
from context_compiler.pipeline.stores.sql import SQLRuns
from context_compiler.resilience import call, cancel_and_wait, try_await

log = logging.getLogger("context_compiler.pipeline")

CONTAINERS = ("parallel", "stack.manager_loop")
"""Handlers whose stages only wait for other stages."""

Configure = Callable[[Submission], RunConfig]
"""Returns the configuration of a submitted run: agents, model, handlers, record."""
_Place = tuple[str, str, str]
"""Run, branch and stage."""
OnChange = Callable[[str, str, str], Any]
"""Called with the id of a run, its change (`taken`, `waiting`, `put back`, `success` or `fail`), and the reason."""


def worker_name() -> str:
    """Name of this process: host and process id."""
    return f"{socket.gethostname()}:{os.getpid()}"


@dataclass(slots=True, kw_only=True)
class Worker:
    """Executes submitted runs until it is stopped."""

    runs: SQLRuns
    configure: Configure
    name: str = field(default_factory=worker_name)
    concurrency: int = 4
    """Maximum number of runs at a time."""
    poll: float = 1.0
    """Seconds between polls of the store."""
    patience: float = 1.0
    """Seconds after which a run that only waits for people gives up its place."""
    max_takes: int = 10
    """Number of times a run may be taken without completing a stage; then it fails."""
    on_change: OnChange | None = None
    _tasks: dict[str, asyncio.Task[None]] = field(init=False, default_factory=dict[str, "asyncio.Task[None]"])
    cancelled: dict[str, str] = field(init=False, default_factory=dict[str, str])
    """Reasons for cancellation of cancelled runs of this worker, by run id."""
    _last_poll: float = field(init=False, default=-math.inf)
    """Monotonic time of the last search for cancelled runs and runs of dead workers."""
    _is_stopped: bool = field(init=False, default=False)
    _stop: asyncio.Event | None = field(init=False, default=None)
    """Set by `stop`; new in each `run`, because it belongs to one event loop."""

    @property
    def queue(self) -> RunQueue:
        """The queue of the store."""
        return RunQueue(self.runs)

    def stop(self) -> None:
        """Stop taking runs, and give back the current ones at their last saved states."""
        self._is_stopped = True
        if self._stop is not None:
            self._stop.set()

    async def run(self, *, until_empty: bool = False) -> None:
        """Take runs until `stop`, or with `until_empty` until all runs left wait for people or were put back."""
        self._stop = asyncio.Event()
        stopping = asyncio.create_task(self._stop.wait())
        try:
            while not self._is_stopped:
                empty = await self._take_runs()
                if until_empty and empty:
                    return
                await asyncio.wait(
                    {stopping, *self._tasks.values()}, timeout=self.poll, return_when=asyncio.FIRST_COMPLETED
                )
        finally:
            await cancel_and_wait(stopping, *self._tasks.values())

    async def _take_runs(self) -> bool:
        """Start runs while there are free places; True if no run is in progress or left to take.

        A free place goes to the next ready run at once. Cancelled runs and runs of dead workers are looked up only once
        every `poll` seconds, and when no run is ready.
        """
        try:
            places, limit = self.concurrency - len(self._tasks), 4 * self.concurrency
            recent = time.monotonic() - self._last_poll < self.poll
            candidates = await self.queue.ready(limit) if recent and places else []
            if not candidates and (places or not recent):
                self._last_poll = time.monotonic()
                self.cancelled = await self.queue.cancelled([*self._tasks])
                candidates = await self.queue.candidates(limit) if places else []
            free = [run for run in candidates if run not in self._tasks]
            chosen = random.sample(free, min(places, len(free)))  # so that workers rarely collide
            for run_id in sorted(chosen, key=free.index):
                self._tasks[run_id] = task = asyncio.create_task(self._work(run_id))
                task.add_done_callback(lambda _, run_id=run_id: self._tasks.pop(run_id, None))
            left = self._tasks or await self._has_runnable()
        except PipelineError as error:  # the store cannot be reached; try again at the next poll
            log.warning("%s: %s", self.name, error)
            return False
        return not left

    async def _has_runnable(self) -> bool:
        """True if the queue contains a run that neither waits for people nor was put back."""
        return any(submission.state != "waiting" and submission.due is None for submission in await self.queue.open())

    async def _work(self, run_id: str) -> None:
        """Take one run, and execute it as far as possible now."""
        try:
            async with self.runs.own(run_id) as lost:
                taken = await self.queue.take_up(run_id, self.name, most=self.max_takes)
                if taken is None:
                    return
                await self.notify(run_id, taken.change, taken.reason)
                if taken.state is not None:
                    await _Execution(self, taken.submission, taken.state, lost).execute()
        except RunOwnedError as error:
            log.info("%s: %s", self.name, error)
        except PipelineError as error:
            log.warning("%s, run %s: %s", self.name, run_id, error)
            await asyncio.sleep(self.poll)  # because the next attempt may fail in the same way

    async def notify(self, run_id: str, change: str, reason: str = "") -> None:
        """Call `on_change` with a change of a run; its errors are logged."""
        if self.on_change is not None:
            notified = await try_await(call(self.on_change, run_id, change, reason))
            if notified.error is not None:
                log.warning("on_change failed: %s", log_text(notified.error))


class _Execution:
    """Execution of a run that a worker owns, until it ends, waits for people, is cancelled, or is lost."""

    def __init__(self, worker: Worker, taken: Submission, state: RunState, lost: asyncio.Future[str] | None) -> None:
        self._worker, self._taken, self._state, self._lost = worker, taken, state, lost
        self._active: dict[_Place, str] = {}
        self._asking: dict[_Place, str] = {}
        self._listener: Callable[[Event], Any] | None = None

    async def execute(self) -> None:
        """Execute the run, and record the result in the queue."""
        worker, run_id, queue = self._worker, self._taken.run_id, self._worker.queue
        task = asyncio.create_task(self._run())
        try:
            reason = await self._watch(task)
            waiting = [*self._asking.values()]
        finally:
            with suppress(asyncio.CancelledError):
                await cancel_and_wait(task)
        if reason == "waiting":
            await queue.park(run_id, waiting)
            await worker.notify(run_id, reason)
        elif reason == "cancelled":
            cancelled = worker.cancelled[run_id]
            await worker.notify(run_id, await queue.give_up(run_id, cancelled), cancelled)
        elif task.cancelled() or (error := task.exception()) is None:
            ended = task.result()
            if not ended.ended:  # its interviewer can ask nobody here
                await queue.put_back_for_now(self._taken, ended.failure_reason)
                await worker.notify(run_id, "put back", ended.failure_reason)
                return
            await queue.end(run_id)
            await worker.notify(run_id, ended.status, ended.failure_reason)
        elif isinstance(error, RunOwnedError) or not isinstance(error, Exception):
            raise error
        elif isinstance(error, CheckpointError) and not error.newer:  # another attempt would find the same damage
            await worker.notify(run_id, await queue.give_up(run_id, str(error)), log_text(error))
        else:
            await queue.put_back_for_now(self._taken, log_text(error))
            await worker.notify(run_id, "put back", log_text(error))

    async def _run(self) -> RunState:
        worker, run_id = self._worker, self._taken.run_id
        config = worker.configure(self._taken)
        self._listener = config.on_event
        remote = RemoteInterviewer(queue=worker.queue, run_id=run_id, poll=worker.poll, on_wait=self._on_wait)
        interviewer = config.interviewer if self._taken.options.get("auto_approve") else remote
        config = replace(config, runs=worker.runs, run_id=run_id, interviewer=interviewer, on_event=self._on_event)
        return await continue_run(worker.runs, run_id, config, state=self._state)

    async def _watch(self, task: asyncio.Task[RunState]) -> str | None:
        """Wait for a reason to stop the run: `waiting` or `cancelled`, or None if the run has ended.

        Raises:
            RunOwnedError: the ownership of the run was lost.
        """
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
            working = {stage for stage, handler in self._active.items() if handler not in CONTAINERS}
            idle = bool(self._asking) and working <= self._asking.keys()
            since = (since or loop.time()) if idle else None
            if since is not None and loop.time() - since >= self._worker.patience:
                return "waiting"

    def _on_wait(self, question: Question, waits: bool) -> None:
        facts = question.metadata
        stage = (str(facts["run_id"]), str(facts["branch"]), question.stage)
        if waits:
            self._asking[stage] = str(facts["key"])
        else:
            self._asking.pop(stage, None)

    def _on_event(self, event: Event) -> Any:
        stage = (event.run_id, event.branch, event.node or "")
        if event.kind == "stage_started":
            self._active[stage] = str(event.data.get("handler"))
        elif event.kind in ("stage_completed", "stage_failed"):
            self._remove(stage)
        return self._listener(event) if self._listener is not None else None

    def _remove(self, stage: _Place) -> None:
        """Forget a stage that has ended; with a container, also the stages inside that it did not wait for."""
        if self._active.pop(stage, "") in CONTAINERS:
            for inner in [other for other in self._active if _is_inside(other, stage)]:
                self._remove(inner)


def _is_inside(stage: _Place, container: _Place) -> bool:
    """True if a stage is in a branch or in the child run of a container."""
    (run_id, branch, _), (outer_run, outer_branch, node) = stage, container
    if run_id == outer_run:
        return branch.startswith(f"{outer_branch}." if outer_branch else "") and branch != outer_branch
    return run_id.startswith(".".join(filter(None, (outer_run, outer_branch, node))) + ".")
