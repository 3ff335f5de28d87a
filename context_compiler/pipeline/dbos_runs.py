"""Run pipelines as DBOS workflows, to use its queues, rate limits, schedules and recovery.

Each run is one workflow, whose id is the id of the run. Progress is saved in our run store, so a recovered workflow
continues at the stage that was running. Importing this module requires DBOS:
`pip install "pydantic-ai-context-compiler[dbos]"`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context
from dataclasses import replace
from pathlib import Path
from typing import Any

from dbos import DBOS, SetWorkflowID
from dbos import error as dbos_error

from context_compiler.errors import PipelineError, RunOwnedError
from context_compiler.middleware.reports import log_text
from context_compiler.pipeline.config import RunConfig
from context_compiler.pipeline.graph import Graph
from context_compiler.pipeline.queue import RemoteInterviewer, RunQueue, Submission
from context_compiler.pipeline.resume import continue_run
from context_compiler.pipeline.run import while_owned
from context_compiler.pipeline.state import RunState
from context_compiler.pipeline.stores import Lost
from context_compiler.pipeline.stores.sql import SQLRuns
from context_compiler.pipeline.worker import Configure, worker_name
from context_compiler.resilience import cancel_and_wait, try_await

WORKFLOW, QUEUE, STEP = "context_compiler.run", "context-compiler", "context_compiler.stage"
MIN_RETRY_S = 1.0
"""Minimum seconds between two attempts while the store cannot be reached."""

log = logging.getLogger("context_compiler.pipeline")


class DBOSRuns:
    """Submits runs to DBOS, and executes them when DBOS starts their workflows.

    Every process that executes runs must create one of these before `DBOS.launch()`, and register the queue after it.

    Args:
        runs: Store of the runs; use PostgreSQL for several machines.
        configure: Configuration of a submitted run.
        queue: Name of the DBOS queue, which limits concurrency and rate.
        poll: Seconds between polls of the store for answers and cancellations.
        max_takes: Number of times a run may be taken without completing a stage; then it fails.
        steps: Make each stage a step of its workflow, which DBOS shows and counts, at the cost of a write to its
            database.
    """

    def __init__(
        self,
        runs: SQLRuns,
        configure: Configure,
        *,
        queue: str = QUEUE,
        poll: float = 1.0,
        max_takes: int = 10,
        steps: bool = False,
    ) -> None:
        self.runs, self.queue, self._name = runs, RunQueue(runs), queue
        self._configure, self._poll, self._max_takes, self._steps = configure, poll, max_takes, steps
        self._worker = worker_name()

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
        """Create a run, enqueue its workflow, and return its id. The arguments are those of `RunQueue.submit`.

        If the process dies between the two steps, call this again with the same id to enqueue the missing workflow.

        Raises:
            GraphError: the graph cannot be read or has errors.
            PipelineError: the run already exists or could not be saved.
        """
        try:
            name = await self.queue.submit(
                pipeline, run_id=run_id, context=context, options=options, config=config, held=True
            )
        except PipelineError:
            if run_id is None or not await self._lacks_workflow(run_id):
                raise
            name = run_id
        await self.enqueue(name)
        return name

    async def _lacks_workflow(self, run_id: str) -> bool:
        """True if a process died after creating a run and before enqueuing its workflow."""
        submission = await self.queue.find(run_id)
        held = submission is not None and submission.state == "held"
        return held and await DBOS.get_workflow_status_async(run_id) is None

    async def enqueue(self, run_id: str) -> None:
        """Enqueue the workflow of an existing run. Repeated calls have no further effect."""
        with SetWorkflowID(run_id):
            await DBOS.enqueue_workflow_async(self._name, self._workflow, run_id)

    async def result(self, run_id: str) -> RunState:
        """Wait for the workflow of a run to end, and return the final state of the run.

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
        """Execute a run as a workflow: retry until the run has ended, here or in another process.

        Raises:
            PipelineError: the run was not submitted, or was deleted.
        """
        while True:
            await _check_cancelled(run_id)
            try:
                async with self.runs.own(run_id) as lost:
                    result = await self._attempt(run_id, lost)
            except RunOwnedError:  # DBOS recovered the workflow here, but its former process is still alive
                result = self._poll
            except PipelineError as error:  # the store cannot be reached
                log.warning("run %s: %s", run_id, error)
                result = max(self._poll, MIN_RETRY_S)
            if result is None:
                raise PipelineError(f"run {run_id!r} was not submitted, or was deleted")
            if isinstance(result, dict):
                return result
            await asyncio.sleep(result)

    async def _attempt(self, run_id: str, lost: Lost) -> dict[str, Any] | float | None:
        """Result of a run, or seconds until the next attempt; None if there is no such run."""
        taken = await self.queue.take_up(run_id, self._worker, most=self._max_takes, held=True)
        if taken is None:
            return await self._stored_result(run_id)
        if taken.state is None:
            return taken.delay or {"run_id": run_id, "status": taken.change, "reason": taken.reason}
        done = await try_await(self._execute(taken.submission, lost))
        if isinstance(done.error, RunOwnedError):
            raise done.error
        if done.error is not None:  # after too many attempts, the run fails with this reason
            return await self.queue.put_back_for_now(taken.submission, log_text(done.error))
        assert done.value is not None
        if not done.value.ended:  # its interviewer can ask nobody here
            return await self.queue.put_back_for_now(taken.submission, done.value.failure_reason)
        await self.queue.end(run_id)
        return {"run_id": run_id, "status": done.value.status, "reason": done.value.failure_reason}

    async def _stored_result(self, run_id: str) -> dict[str, Any] | None:
        """Result of a run that ended in another process; None if there is no such run."""
        infos = [info for info in await self.runs.runs() if info.run_id == run_id]
        return {"run_id": run_id, "status": infos[0].status, "reason": infos[0].failure_reason} if infos else None

    async def _execute(self, taken: Submission, lost: Lost) -> RunState:
        """Continue a run to its end, and stop it if it or its workflow is cancelled."""
        run_id = taken.run_id
        config = self._configure(taken)
        remote = RemoteInterviewer(queue=self.queue, run_id=run_id, poll=self._poll)
        interviewer = config.interviewer if taken.options.get("auto_approve") else remote
        config = replace(config, runs=self.runs, run_id=run_id, interviewer=interviewer)
        if self._steps:
            config = replace(config, journal=_advance_as_step)
        # Outside the workflow's context, the agents of stages add no steps of their own to the workflow. The order of
        # such steps would change when the workflow is recovered at a later stage.
        context = None if self._steps else Context()
        work = while_owned(lost, continue_run(self.runs, run_id, config))
        task = asyncio.create_task(work, context=context)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=self._poll)
                if not task.done() and (reason := (await self.queue.cancelled([run_id])).get(run_id)):
                    await cancel_and_wait(task)
                    await self.queue.give_up(run_id, reason)
                    state = await self.runs.load(run_id)
                    assert state is not None
                    return state
                if not task.done():
                    await _check_cancelled(run_id)
            return task.result()
        finally:
            await cancel_and_wait(task)


async def _check_cancelled(run_id: str) -> None:
    """Raise if DBOS has cancelled the workflow or its timeout has passed, because DBOS checks only between steps.

    Raises:
        DBOSWorkflowCancelledError: the workflow was cancelled. The run keeps its last saved state until DBOS resumes
            the workflow.
    """
    lookup: Any = DBOS.get_workflow_status_async(run_id)
    workflow = await asyncio.create_task(lookup, context=Context())  # so that it does not become a step of the workflow
    if workflow is not None and workflow.status == "CANCELLED":
        raise dbos_error.DBOSWorkflowCancelledError(f"workflow {run_id} was cancelled")


async def _advance_as_step(advance: Callable[[], Awaitable[bool]]) -> bool:
    """Advance a run by one stage, as a step of its workflow; a recovered workflow skips the steps it has recorded."""
    step: Any = DBOS.run_step_async
    return await step({"name": STEP}, advance)
