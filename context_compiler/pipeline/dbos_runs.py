"""Runs as DBOS workflows: its queues, rate limits, schedules and recovery around the states in our store.

One workflow a run, with the id of the run. What a run has done is in the run store, so a recovered workflow goes on at
the stage that was running. Importing this module needs DBOS: `pip install "pydantic-ai-context-compiler[dbos]"`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context
from dataclasses import replace
from pathlib import Path
from typing import Any

from dbos import DBOS, SetWorkflowID

from context_compiler.errors import PipelineError, RunOwnedError
from context_compiler.pipeline.config import RunConfig
from context_compiler.pipeline.graph import Graph
from context_compiler.pipeline.queue import RemoteInterviewer, RunQueue
from context_compiler.pipeline.run import abandon_run, continue_run, while_owned
from context_compiler.pipeline.state import RunState
from context_compiler.pipeline.stores import Lost
from context_compiler.pipeline.stores.sql import SQLRuns
from context_compiler.pipeline.worker import Configure

WORKFLOW, QUEUE, STEP = "context_compiler.run", "context-compiler", "context_compiler.stage"


class DBOSRuns:
    """Submits runs to DBOS, and runs them where DBOS starts them.

    Every process that should run some makes one of these before `DBOS.launch()`, and registers the queue after it.

    Args:
        runs: Store of the runs; PostgreSQL for several machines.
        configure: Configuration of a submitted run.
        queue: Name of the DBOS queue, which has the limits of concurrency and rate.
        poll: Seconds between two looks at the store for answers and cancellations.
        steps: Make each stage a step of its workflow, which DBOS shows and counts; it costs a write to its database.
    """

    def __init__(
        self, runs: SQLRuns, configure: Configure, *, queue: str = QUEUE, poll: float = 1.0, steps: bool = False
    ) -> None:
        self.runs, self.queue, self._name = runs, RunQueue(runs), queue
        self._configure, self._poll, self._steps = configure, poll, steps

        async def run(run_id: str) -> dict[str, Any]:
            return await self._run(run_id)

        self._workflow: Callable[[str], Any] = DBOS.workflow(name=WORKFLOW)(run)

    async def submit(
        self,
        pipeline: Graph | str | Path,
        *,
        run_id: str | None = None,
        context: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        config: RunConfig | None = None,
    ) -> str:
        """Create a run and enqueue its workflow; its id. Arguments as for `RunQueue.submit`.

        Raises:
            GraphError: the graph cannot be read, or has errors.
            PipelineError: the run exists already, or could not be saved.
        """
        name = await self.queue.submit(
            pipeline, run_id=run_id, context=context, options=options, config=config, held=True
        )
        await self.enqueue(name)
        return name

    async def enqueue(self, run_id: str) -> None:
        """Enqueue the workflow of a run that was created; once, however often this is called."""
        with SetWorkflowID(run_id):
            await DBOS.enqueue_workflow_async(self._name, self._workflow, run_id)

    async def result(self, run_id: str) -> RunState:
        """The state in which a run ended, once its workflow has.

        Raises:
            PipelineError: there is no such run.
        """
        handle: Any = await DBOS.retrieve_workflow_async(run_id)
        await handle.get_result()
        state = await self.runs.load(run_id)
        if state is None:
            raise PipelineError(f"there is no run {run_id!r}")
        return state

    async def _run(self, run_id: str) -> dict[str, Any]:
        """The workflow: own the run, and go on until it has ended, here or in another process."""
        while True:
            try:
                async with self.runs.own(run_id) as lost:
                    state = await self._carry(run_id, lost)
                    await self.queue.end(run_id)
                    return {"run_id": run_id, "status": state.status, "reason": state.failure_reason}
            except RunOwnedError:  # DBOS recovered it here while its former process lives
                await asyncio.sleep(self._poll)

    async def _carry(self, run_id: str, lost: Lost) -> RunState:
        taken = await self.queue.find(run_id)
        if taken is None:
            raise PipelineError(f"run {run_id!r} was not submitted")
        config = self._configure(taken)
        asks = RemoteInterviewer(queue=self.queue, run_id=run_id, poll=self._poll)
        interviewer = config.interviewer if taken.options.get("auto_approve") else asks
        config = replace(config, runs=self.runs, run_id=run_id, interviewer=interviewer)
        if self._steps:
            config = replace(config, journal=_as_step)
        # Without the context of the workflow, agents of stages add no steps of their own to it, whose order would
        # change when it is recovered at a later stage.
        context = None if self._steps else Context()
        work = while_owned(lost, continue_run(self.runs, run_id, config))
        task = asyncio.create_task(work, context=context)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=self._poll)
                if not task.done() and (reason := (await self.queue.cancelled([run_id])).get(run_id)):
                    return await self._cancel(task, run_id, reason)
            return task.result()
        finally:
            await _end(task)

    async def _cancel(self, task: asyncio.Task[RunState], run_id: str, reason: str) -> RunState:
        await _end(task)
        state = await self.runs.load(run_id)
        assert state is not None
        return state if state.ended else await abandon_run(self.runs, state, reason)


async def _as_step(advance: Callable[[], Awaitable[bool]]) -> bool:
    """Advance a run as a step of its workflow; one that is recovered passes over the steps that are recorded."""
    step: Any = DBOS.run_step_async
    return await step({"name": STEP}, advance)


async def _end(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
