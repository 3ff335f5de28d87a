"""A run in a DBOS workflow that dies in a stage, and is recovered by the next process.

python -m tests.pipeline.dbos_run FOLDER plain|steps    # first it dies with status 42, then it prints what came of it
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from dbos import DBOS

from context_compiler.pipeline import DBOSRuns, Outcome, RunConfig, SQLiteRuns, Stage
from tests.pipeline.playing import graph

FOLDER = Path(sys.argv[1])
GATE = graph('a; h [shape=hexagon]; b; c; start->a->h; h->b [label="[Y] go"]; h->a [label="[N] back"]; b->c->done')


def work(stage: Stage) -> Outcome:
    """Note the key; die in `b` once."""
    seen = FOLDER / "seen"
    with seen.open("a") as file:
        file.write(f"{stage.key}\n")
    if stage.node.name == "b" and seen.read_text().count("/b/") == 1:
        os._exit(42)
    return Outcome(context_updates={f"seen.{stage.node.name}": stage.visit})


async def main(steps: bool) -> None:
    store = SQLiteRuns(FOLDER / "runs.db")
    runs = DBOSRuns(store, lambda taken: RunConfig(handlers={"codergen": work}), poll=0.02, steps=steps)
    DBOS.launch()
    await DBOS.register_queue_async("context-compiler", polling_interval_sec=0.05, worker_concurrency=2)
    if not (FOLDER / "seen").exists():
        await runs.submit(GATE, run_id="r")
    await runs.enqueue("r")  # which nothing comes of
    state = await runs.result("r")
    names = [step["function_name"] for step in await DBOS.list_workflow_steps_async("r")]
    count = len(await DBOS.list_workflows_async())
    print(json.dumps({"completed": state.completed, "status": state.status, "steps": len(names), "workflows": count}))


if __name__ == "__main__":
    address = f"sqlite:///{FOLDER}/dbos.sqlite"
    DBOS(config={"name": "pipelines", "system_database_url": address, "run_admin_server": False})
    asyncio.run(main(sys.argv[2] == "steps"))
    DBOS.destroy()
