"""Ends workers with SIGKILL in the middle of submitted runs, and compares the end of every run with an undisturbed one.

    python -m tests.pipeline.killing_workers PLACE [--runs 20] [--kills 100] [--workers 4] [--seed 1]

PLACE is a `.db` file or the address of a PostgreSQL database, both without runs. Prints one JSON line.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections.abc import Coroutine
from typing import Any

from benchmarks.command import arguments
from context_compiler import pipeline
from context_compiler.pipeline import (
    Event,
    Outcome,
    RunConfig,
    RunQueue,
    RunState,
    SQLiteRuns,
    SQLRuns,
    Stage,
    StageStatus,
    Submission,
    Worker,
    checkpoint_document,
    run_pipeline,
)

LEASE_S = 0.5
WINDING = """digraph g {
    start [shape=Mdiamond]; done [shape=Msquare]; a; b [fidelity=full thread_id=t]; g [goal_gate=true retry_target=b];
    p [shape=component]; x; y; j [shape=tripleoctagon]; h [shape=hexagon]; z;
    start -> a -> b -> g -> p; p -> x -> j; p -> y -> j; j -> h; h -> z [label="[Y] go"]; h -> a [label="[N] back"];
    z -> a [condition="outcome=fail" loop_restart=true]; z -> done [condition="outcome!=fail"]
}"""


def open_place(place: str, lease: float = LEASE_S) -> SQLRuns:
    """Open the store at a place."""
    if place.endswith(".db"):
        return SQLiteRuns(place, busy_timeout=60.0)
    return pipeline.PostgresRuns(place, lease=lease)


def name_of(number: int) -> str:
    """Return the id of a run."""
    return f"run-{number:04d}"


async def submit(location: str, text: str, count: int) -> None:
    """Submit runs of a graph."""
    store = open_place(location)
    queue = RunQueue(store)
    for number in range(count):
        await queue.submit(text, run_id=name_of(number), options={"auto_approve": True})
    await store.close()


async def no_wait(seconds: float) -> None:
    """Return at once instead of pausing."""
    await asyncio.sleep(0)


async def wind(stage: Stage) -> Outcome:
    """Run a stage whose outcome depends only on the state of the run; some fail at first."""
    attempt = stage.context.get("internal.lineage.attempt")
    stage.keep("out", f"{stage.node.name} {stage.visit} {attempt}")
    if (stage.node.name == "g" and stage.visit == 1) or (stage.node.name == "z" and attempt == 1):
        return Outcome(status=StageStatus.FAIL, failure_reason="not yet")
    return Outcome(context_updates={f"seen.{stage.node.name}": stage.visit}, notes=f"visit {stage.visit}")


async def work(
    location: str, handler: Any, *, concurrency: int, lease: float, poll: float = 0.02, kill_at: int = 0
) -> None:
    """Run a worker until no run is left, or until its event number `kill_at`, at which it kills itself."""
    left = kill_at

    def listen(event: Event) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def configure(taken: Submission) -> RunConfig:
        return RunConfig(handlers={"codergen": handler}, sleep=no_wait, on_event=listen)

    store = open_place(location, lease)
    worker = Worker(runs=store, configure=configure, concurrency=concurrency, poll=poll, max_takes=1_000)
    await worker.run(until_empty=True)
    await store.close()


def fork(task: Coroutine[Any, Any, None]) -> int:
    """Run a task in a child process and return its pid, so that this process has neither threads nor connections."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            asyncio.run(task)
            status = 0
        finally:
            os._exit(status)
    task.close()
    return child


def join(*children: int) -> list[int]:
    """Return the exit codes of children, negative for signals."""
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


async def load(location: str, count: int) -> list[RunState | None]:
    """Load the states of all runs."""
    store = open_place(location)
    states = [await store.load(name_of(number)) for number in range(count)]
    await store.close()
    return states


def comparable(state: RunState | None) -> Any:
    """Return a state without times."""
    if state is None:
        return None
    document = json.loads(json.dumps(checkpoint_document(state)))
    document["timestamp"] = document["metadata"]["timestamp"] = ""
    document["logs"] = [{**entry, "duration": 0} for entry in document["logs"]]
    document["artifacts"] = {id: entry["data"] for id, entry in document["artifacts"].items()}
    return document


def kill_workers(location: str, runs: int, kills: int, workers: int, seed: int) -> dict[str, Any]:
    """Kill workers the given number of times, let one finish the rest, and compare."""
    draw, codes = random.Random(seed), list[int]()
    join(fork(submit(location, WINDING, runs)))
    most = max(10, 120 * runs // (2 * kills))  # spreads the kills over all runs
    while codes.count(-signal.SIGKILL) < kills and 0 not in codes:
        crew = min(workers, kills - codes.count(-signal.SIGKILL))
        children = [
            fork(work(location, wind, concurrency=2, lease=LEASE_S, kill_at=draw.randint(1, most))) for _ in range(crew)
        ]
        codes += join(*children)
    last = join(fork(work(location, wind, concurrency=2, lease=LEASE_S)))[0]
    states = asyncio.run(load(location, runs))
    wrong: list[str] = []
    for number, state in enumerate(states):
        whole = asyncio.run(run_pipeline(WINDING, run_id=name_of(number), handlers={"codergen": wind}, sleep=no_wait))
        wrong += [] if comparable(state) == comparable(whole) else [name_of(number)]
    return {
        "runs": runs,
        "kills": codes.count(-signal.SIGKILL),
        "seed": seed,
        "wrong": wrong,
        "ok": not wrong and last == 0,
    }


if __name__ == "__main__":
    options = arguments(__doc__, "place", runs=20, kills=100, workers=4, seed=1)
    print(json.dumps(kill_workers(options.place, options.runs, options.kills, options.workers, options.seed)))
