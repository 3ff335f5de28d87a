"""Runs in DBOS workflows, in a process of their own; what came of them is printed as JSON.

python -m tests.pipeline.dbos_run FOLDER plain|steps [ADDRESS]    # dies in a stage with status 42, then goes on
python -m tests.pipeline.dbos_run FOLDER ends|limits|paused [ADDRESS]
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from dbos import DBOS

from context_compiler.errors import PipelineError
from context_compiler.pipeline import (
    DBOSRuns,
    Outcome,
    PostgresRuns,
    RunConfig,
    RunQueue,
    SQLiteRuns,
    SQLRuns,
    Stage,
    Submission,
)
from tests.pipeline.playing import graph

FOLDER, HOW, ADDRESS = Path(sys.argv[1]), sys.argv[2], next(iter(sys.argv[3:]), None)
GATE = graph('a; h [shape=hexagon]; b; c; start->a->h; h->b [label="[Y] go"]; h->a [label="[N] back"]; b->c->done')
SHORT = graph("a; start->a->done")


def store() -> SQLRuns:
    """The runs of this process; the lease of one that dies ends soon."""
    return SQLiteRuns(FOLDER / "runs.db") if ADDRESS is None else PostgresRuns(ADDRESS, lease=2.0)


def work(stage: Stage) -> Outcome:
    """Note the key; die in `b` once."""
    seen = FOLDER / "seen"
    with seen.open("a") as file:
        file.write(f"{stage.key}\n")
    if stage.node.name == "b" and seen.read_text().count("/b/") == 1:
        os._exit(42)
    return Outcome(context_updates={f"seen.{stage.node.name}": stage.visit})


async def recovered(runs: DBOSRuns) -> Any:
    """A run whose process dies in a stage."""
    if not (FOLDER / "seen").exists():
        await runs.submit(GATE, run_id="r")
    await runs.enqueue("r")  # which nothing comes of
    state = await runs.result("r")
    names = [step["function_name"] for step in await DBOS.list_workflow_steps_async("r")]
    count = len(await DBOS.list_workflows_async())
    return {"completed": state.completed, "status": state.status, "steps": len(names), "workflows": count}


async def ends(runs: DBOSRuns) -> Any:
    """Runs that are cancelled at a gate and before they begin, that none can begin, and that were not enqueued."""
    desk = RunQueue(store())
    await runs.submit(GATE, run_id="gate")
    while not await desk.questions("gate"):
        await asyncio.sleep(0.02)
    await desk.cancel("gate", "not needed")
    await desk.submit(SHORT, run_id="early", held=True)
    await desk.cancel("early", "never")
    await runs.enqueue("early")
    await runs.submit(SHORT, run_id="bad")
    await desk.submit(SHORT, run_id="lost", held=True)
    await runs.submit(SHORT, run_id="lost")
    states = {name: await runs.result(name) for name in ("gate", "early", "bad", "lost")}
    workflows = {workflow.workflow_id: workflow.status for workflow in await DBOS.list_workflows_async()}
    left = [submission.run_id for submission in await desk.open()]
    await desk.runs.close()
    ended = {name: [state.status, state.failure_reason] for name, state in states.items()}
    return {"ended": ended, "workflows": workflows, "open": left}


async def paused(runs: DBOSRuns) -> Any:
    """A run at a gate whose workflow is cancelled in DBOS, answered, and resumed."""
    await runs.submit(GATE, run_id="r")
    while not await runs.queue.questions("r"):
        await asyncio.sleep(0.02)
    await DBOS.cancel_workflow_async("r")
    said = [await _status(runs, "running")]
    await runs.queue.answer("r", "y")
    said.append(await _status(runs, "stopped", tries=10))
    (FOLDER / "seen").write_text("r/b/1/0")  # so that nothing dies
    await DBOS.resume_workflow_async("r")
    return {"said": [*said, (await runs.result("r")).status]}


async def _status(runs: DBOSRuns, former: str, tries: int = 500) -> str:
    """The status of a run, once it is another one, or after these tries."""
    status = former
    while status == former and tries:
        await asyncio.sleep(0.02)
        status, tries = (await runs.runs.runs())[0].status, tries - 1
    return status


async def limits(runs: DBOSRuns) -> Any:
    """A run of a schedule, and of two others the second, which its queue lets begin in an hour."""
    begun, submitted = asyncio.Event(), asyncio.Event()

    @DBOS.workflow(name="tick")
    async def tick(scheduled: datetime, context: Any) -> None:
        if not begun.is_set():
            begun.set()
            await runs.submit(SHORT, run_id="tick", context={"at": scheduled.isoformat()})
            submitted.set()

    await DBOS.create_schedule_async(schedule_name="ticks", workflow_fn=tick, schedule="* * * * * *")
    await submitted.wait()
    states = [await runs.result("tick")]
    await DBOS.delete_schedule_async("ticks")
    for name in ("second", "third"):
        await runs.submit(SHORT, run_id=name)
    states.append(await runs.result("second"))
    await asyncio.sleep(0.5)
    waiting = await DBOS.list_queued_workflows_async()  # also a last run of the schedule, which has another queue
    queued = [workflow.workflow_id for workflow in waiting if workflow.queue_name == "context-compiler"]
    return {"ended": [state.status for state in states], "at": states[0].context.get("at"), "queued": queued}


def configure(taken: Submission) -> RunConfig:
    """The configuration of all runs but one."""
    if taken.run_id == "bad":
        raise PipelineError("no such template")
    return RunConfig(handlers={"codergen": work})


async def main() -> None:
    runs = DBOSRuns(store(), configure, poll=0.02, max_takes=1, steps=HOW == "steps")
    DBOS.launch()
    limiter: Any = {"limit": 2, "period": 3600} if HOW == "limits" else None
    await DBOS.register_queue_async(
        "context-compiler", polling_interval_sec=0.05, worker_concurrency=3, limiter=limiter
    )
    said = await {"ends": ends, "limits": limits, "paused": paused}.get(HOW, recovered)(runs)
    await runs.runs.close()
    print(json.dumps(said))


if __name__ == "__main__":
    system = ADDRESS or f"sqlite:///{FOLDER}/dbos.sqlite"
    DBOS(config={"name": "pipelines", "system_database_url": system, "run_admin_server": False})
    asyncio.run(main())
    DBOS.destroy()
