"""Overhead of a pipeline without its models: milliseconds per stage, per preamble, and to read and check a graph.

    python benchmarks/pipeline.py [--stages 1000]

Stages do nothing, so only the engine is measured: routing, context, events and checkpoints. "Early" and "late" are the
first and the last tenth of the stages; they are equal if a run does not get slower.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from context_compiler.fidelity import Fidelity
from context_compiler.pipeline import (
    Event,
    MemoryRuns,
    Outcome,
    RunStore,
    SQLiteRuns,
    Stage,
    parse_dot,
    run_pipeline,
    validate,
)
from context_compiler.pipeline.preamble import build_fidelity_preamble


class Quick:
    """A handler that only returns a value."""

    reads_past = False

    async def execute(self, stage: Stage) -> Outcome:
        """Return a success."""
        return Outcome(context_updates={f"seen.{stage.node.name}": stage.visit}, notes="done")


class Told(Quick):
    """The same handler, but the engine builds a preamble for it."""

    reads_past = True


def chain(stages: int) -> str:
    """Build a graph of the given number of stages in a row."""
    names = [f"n{number}" for number in range(stages)]
    nodes = "\n".join(f'{name} [prompt="Do it"]' for name in names)
    ends = "start [shape=Mdiamond]\ndone [shape=Msquare]"
    return f"digraph g {{ goal=speed\n{ends}\n{nodes}\nstart->{'->'.join(names)}->done }}"


async def times(text: str, handler: Quick, runs: RunStore, root: Path | None = None) -> list[float]:
    """Return milliseconds from the start of each stage to the start of the next."""
    starts: list[float] = []

    def hear(event: Event) -> None:
        if event.kind == "stage_started":
            starts.append(time.perf_counter())

    result = await run_pipeline(text, handlers={"codergen": handler}, runs=runs, logs_root=root, on_event=hear)
    assert result.ok, result.failure_reason
    await runs.close()
    return [(after - before) * 1_000 for before, after in zip(starts, starts[1:], strict=False)]


def row(name: str, found: Sequence[float]) -> tuple[str, ...]:
    """Format a row of the table."""
    tenth = max(1, len(found) // 10)
    early, late = statistics.median(found[:tenth]), statistics.median(found[-tenth:])
    most = sorted(found)[int(len(found) * 0.99)]
    return name, *(f"{value:.2f}" for value in (statistics.median(found), most, early, late))


async def engine(stages: int) -> list[tuple[str, ...]]:
    """Measure the engine and return its rows."""
    text, rows = chain(stages), list[tuple[str, ...]]()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        rows.append(row("stage, runs in memory", await times(text, Quick(), MemoryRuns())))
        rows.append(row("stage, runs in SQLite", await times(text, Quick(), SQLiteRuns(place / "a.db"))))
        found = await times(text, Quick(), SQLiteRuns(place / "b.db"), place / "b")
        rows.append(row("the same, with its files", found))
        rows.append(row("the same, with a `compact` preamble", await times(text, Told(), SQLiteRuns(place / "c.db"))))
    return rows


def preambles() -> list[tuple[str, ...]]:
    """Measure preambles of a long run (10,000 stages, 10 MB of context) and return their rows."""
    graph = parse_dot(chain(10))
    names = [f"n{number}" for number in range(10_000)]
    logs = [{"node": name, "outcome": "success", "notes": f"{name} did what it could"} for name in names]
    context: dict[str, Any] = {f"key.k{number}": "word " * 2_000 for number in range(1_000)}
    rows: list[tuple[str, ...]] = []
    for mode in Fidelity:
        if mode is not Fidelity.FULL:
            work = partial(build_fidelity_preamble, mode, graph, context, names, "n1", logs)
            found = [_timed(work) for _ in range(9)]
            rows.append((f"`{mode}` preamble", f"{statistics.median(found):.2f}", f"{max(found):.2f}", "", ""))
    return rows


def reading() -> list[tuple[str, ...]]:
    """Measure reading and checking a graph of 10,000 stages and return the rows."""
    text = chain(10_000)
    found = [_timed(lambda: validate(parse_dot(text))) for _ in range(3)]
    return [("reading and checking 10,000 stages", f"{statistics.median(found):.0f}", f"{max(found):.0f}", "", "")]


def _timed(work: Any) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1_000


def main() -> None:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stages", type=int, default=1_000)
    stages: int = parser.parse_args().stages
    rows = [*asyncio.run(engine(stages)), *preambles(), *reading()]
    head = ("ms", "median", "99 % (or most)", "early", "late")
    for line in (head, ("---", "---:", "---:", "---:", "---:"), *rows):
        print(f"| {' | '.join(line)} |")


if __name__ == "__main__":
    main()
