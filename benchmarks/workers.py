"""Submitted runs and their workers: throughput relative to the ideal, and results under kills.

    python -m benchmarks.workers throughput PLACE [--runs 1000] [--workers 4] [--concurrency 8]
    python -m benchmarks.workers kills PLACE [--runs 20] [--kills 100] [--workers 4] [--seed 1]

PLACE is a `.db` file or the address of a PostgreSQL database, both without runs, or `postgres` for a new cluster. A
stage waits for 250 ms, as for a very quick model; the ideal is the time of the waiting alone. `kills` repeatedly ends
workers with SIGKILL in the middle of runs, and compares the end of every run with an undisturbed one. Each command
prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import signal
import time
from collections.abc import Coroutine
from contextlib import nullcontext
from typing import Any

from benchmarks.postgres import own_cluster
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

STAGE_S, LEASE_S = 0.25, 0.5
CHAIN = "digraph g { start [shape=Mdiamond]; done [shape=Msquare]; a; b; c; start -> a -> b -> c -> done }"
WINDING = """digraph g {
    start [shape=Mdiamond]; done [shape=Msquare]; a; b [fidelity=full thread_id=t]; g [goal_gate=true retry_target=b];
    p [shape=component]; x; y; j [shape=tripleoctagon]; h [shape=hexagon]; z;
    start -> a -> b -> g -> p; p -> x -> j; p -> y -> j; j -> h; h -> z [label="[Y] go"]; h -> a [label="[N] back"];
    z -> a [condition="outcome=fail" loop_restart=true]; z -> done [condition="outcome!=fail"]
}"""


def open_place(place: str, lease: float) -> SQLRuns:
    """Open the store at a place."""
    if place.endswith(".db"):
        return SQLiteRuns(place, busy_timeout=60.0)
    return pipeline.PostgresRuns(place, lease=lease)


def name_of(number: int) -> str:
    """Return the id of a run."""
    return f"run-{number:04d}"


async def submit(place: str, text: str, count: int) -> None:
    """Submit runs of a graph."""
    store = open_place(place, LEASE_S)
    queue = RunQueue(store)
    for number in range(count):
        await queue.submit(text, run_id=name_of(number), options={"auto_approve": True})
    await store.close()


async def no_wait(seconds: float) -> None:
    """Return at once instead of pausing."""
    await asyncio.sleep(0)


async def wait(stage: Stage) -> Outcome:
    """Run a stage that only waits."""
    await asyncio.sleep(STAGE_S)
    return Outcome(notes="done")


wait.reads_past = False  # pyright: ignore[reportFunctionMemberAccess]  # so that it loads no tokenizer


async def wind(stage: Stage) -> Outcome:
    """Run a stage whose outcome depends only on the state of the run; some fail at first."""
    attempt = stage.context.get("internal.lineage.attempt")
    stage.keep("out", f"{stage.node.name} {stage.visit} {attempt}")
    if (stage.node.name == "g" and stage.visit == 1) or (stage.node.name == "z" and attempt == 1):
        return Outcome(status=StageStatus.FAIL, failure_reason="not yet")
    return Outcome(context_updates={f"seen.{stage.node.name}": stage.visit}, notes=f"visit {stage.visit}")


async def work(
    place: str, handler: Any, *, concurrency: int, lease: float, poll: float = 0.02, kill_at: int = 0
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

    store = open_place(place, lease)
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


async def load(place: str, count: int) -> list[RunState | None]:
    """Load the states of all runs."""
    store = open_place(place, LEASE_S)
    states = [await store.load(name_of(number)) for number in range(count)]
    await store.close()
    return states


def throughput(place: str, runs: int, workers: int, concurrency: int) -> dict[str, Any]:
    """Measure the time of all runs by several workers, and its ratio to the ideal."""
    started = time.perf_counter()
    join(fork(submit(place, CHAIN, runs)))
    submitted = time.perf_counter() - started
    started = time.perf_counter()
    crew = [fork(work(place, wait, concurrency=concurrency, lease=30.0, poll=0.5)) for _ in range(workers)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    codes = join(*crew)
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    states = asyncio.run(load(place, runs))
    waits = 3 * STAGE_S
    ideal = waits * runs / (workers * concurrency)
    ended = sum(state is not None and state.ok for state in states)
    return {
        "runs": runs,
        "workers": workers,
        "concurrency": concurrency,
        "submit_ms": round(1_000 * submitted / runs, 2),
        "seconds": round(seconds, 2),
        "ideal": round(ideal, 2),
        "ratio": round(seconds / ideal, 2),
        "cpu_ms": round(1_000 * used / runs, 2),  # CPU time of the workers per run
        "succeeded": ended,
        "ok": ended == runs and not any(codes),
    }


def comparable(state: RunState | None) -> Any:
    """Return a state without times."""
    if state is None:
        return None
    document = json.loads(json.dumps(checkpoint_document(state)))
    document["timestamp"] = document["metadata"]["timestamp"] = ""
    document["logs"] = [{**entry, "duration": 0} for entry in document["logs"]]
    document["artifacts"] = {id: entry["data"] for id, entry in document["artifacts"].items()}
    return document


def kills(place: str, runs: int, kills: int, workers: int, seed: int) -> dict[str, Any]:
    """Kill workers the given number of times, let one finish the rest, and compare."""
    draw, codes = random.Random(seed), list[int]()
    join(fork(submit(place, WINDING, runs)))
    most = max(10, 120 * runs // (2 * kills))  # spreads the kills over all runs
    while codes.count(-signal.SIGKILL) < kills and 0 not in codes:
        crew = min(workers, kills - codes.count(-signal.SIGKILL))
        children = [
            fork(work(place, wind, concurrency=2, lease=LEASE_S, kill_at=draw.randint(1, most))) for _ in range(crew)
        ]
        codes += join(*children)
    last = join(fork(work(place, wind, concurrency=2, lease=LEASE_S)))[0]
    found = asyncio.run(load(place, runs))
    wrong: list[str] = []
    for number, state in enumerate(found):
        whole = asyncio.run(run_pipeline(WINDING, run_id=name_of(number), handlers={"codergen": wind}, sleep=no_wait))
        wrong += [] if comparable(state) == comparable(whole) else [name_of(number)]
    return {
        "runs": runs,
        "kills": codes.count(-signal.SIGKILL),
        "seed": seed,
        "wrong": wrong,
        "ok": not wrong and last == 0,
    }


def main() -> None:
    """Measure, and print one line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("throughput", "kills"))
    parser.add_argument("place")
    parser.add_argument("--runs", type=int)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with own_cluster() if given.place == "postgres" else nullcontext() as cluster:
        place = given.place if cluster is None else cluster.url()
        if given.what == "throughput":
            done = throughput(place, given.runs or 1_000, given.workers, given.concurrency)
        else:
            done = kills(place, given.runs or 20, given.kills, given.workers, given.seed)
    print(json.dumps(done))
    raise SystemExit(0 if done["ok"] else 1)


if __name__ == "__main__":
    main()
