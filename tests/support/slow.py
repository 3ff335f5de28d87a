"""Slow tests, by measurement: a plugin that notes what tests take, and the list `tests/slow.txt` that follows from it.

`make test` notes; `make marks` writes the list from what was noted last, and prints the functions that take most. So
does `pytest -p tests.support.slow` with any files: other functions stay as they are on the list. A function that takes
more than `LIMIT` in any of its cases, or more than `TOTAL` in all of them, is marked `slow` at collection. What is
measured is CPU time, children included, so that the list is the same on a busy machine; `ASLEEP` finds tests that wait.
What is set up once for several tests counts for the first of them. Cases with a PostgreSQL of their own are slow,
whatever they take, and their functions are judged by the others.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import pytest

LIMIT = 0.02
"""Seconds of CPU time for set-up, call and tear-down of one case."""

TOTAL = 0.4
"""Seconds of CPU time for all cases of a function."""

ASLEEP = 0.5
"""Seconds in which a case neither works nor waits for a processor."""

TOP = 60
"""Functions that are printed."""

TESTS = Path(__file__).parents[1]
LIST = TESTS / "slow.txt"
NOTES = TESTS.parent / "build" / "test-times"
"""A file for every process of the last run."""


_TEST = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)
_MARKED = re.compile(r"^pytestmark = .*\bslow\b", re.MULTILINE)


def function_name(node_id: str) -> str:
    """The name of a test function below `tests/`: a node id without folder and parameters."""
    return node_id.removeprefix("tests/").partition("[")[0]


@cache
def slow_names() -> frozenset[str]:
    """The listed names."""
    return frozenset(LIST.read_text(encoding="utf-8").split())


def served(item: pytest.Item) -> bool:
    """True for a case on a PostgreSQL of its own."""
    return "postgres" in item.nodeid.partition("[")[2]


def only_slow(path: Path) -> bool:
    """True for a file of tests that are all slow."""
    source, name = path.read_text(encoding="utf-8"), path.relative_to(TESTS).as_posix()
    tests = {f"{name}::{test}" for test in _TEST.findall(source)}
    return bool(_MARKED.search(source)) or (bool(tests) and tests <= slow_names())


def cpu_seconds() -> float:
    """CPU time of this process and of its children."""
    return time.process_time() + sum(os.times()[2:4])


def queue_seconds() -> float:
    """Time for which the main thread was ready to run and had no processor; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


@dataclass(slots=True)
class Taken:
    """Seconds that a test function takes."""

    cpu: float = 0.0
    cases: int = 0
    longest: float = 0.0
    """CPU time of its longest case."""
    asleep: float = 0.0
    """The longest that a case waits."""

    @property
    def slow(self) -> bool:
        """True above a limit."""
        return self.longest > LIMIT or self.cpu > TOTAL or self.asleep > ASLEEP


class Measure:
    """Notes of one process."""

    def __init__(self) -> None:
        self.taken: dict[str, Taken] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        busy, idle = cpu_seconds(), time.monotonic() - queue_seconds()
        done = yield
        if served(item):
            return done
        busy = cpu_seconds() - busy
        idle = time.monotonic() - queue_seconds() - idle - busy
        taken = self.taken.setdefault(function_name(item.nodeid), Taken())
        taken.cpu, taken.cases = taken.cpu + busy, taken.cases + 1
        taken.longest, taken.asleep = max(taken.longest, busy), max(taken.asleep, idle)
        return done

    def pytest_sessionfinish(self) -> None:
        if self.taken:
            notes = {name: asdict(taken) for name, taken in self.taken.items()}
            NOTES.mkdir(parents=True, exist_ok=True)
            (NOTES / f"{os.getpid()}.json").write_text(json.dumps(notes), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Measure this run, and forget the last."""
    if not hasattr(config, "workerinput"):
        for old in NOTES.glob("*.json"):
            old.unlink()
    config.pluginmanager.register(Measure())


def times(notes: Iterable[Path]) -> dict[str, Taken]:
    """What all processes of a run have noted."""
    all_taken: dict[str, Taken] = {}
    for path in notes:
        for name, values in json.loads(path.read_text(encoding="utf-8")).items():
            cost, taken = Taken(**values), all_taken.setdefault(name, Taken())
            taken.cpu, taken.cases = taken.cpu + cost.cpu, taken.cases + cost.cases
            taken.longest, taken.asleep = max(taken.longest, cost.longest), max(taken.asleep, cost.asleep)
    return all_taken


def remaining(names: Iterable[str], taken: dict[str, Taken]) -> Iterator[str]:
    """Names that were not measured, of functions that are still there."""
    for name in names:
        path, _, function = name.partition("::")
        file = TESTS / path
        if name not in taken and file.is_file() and f"def {function.rpartition('::')[2]}(" in file.read_text("utf-8"):
            yield name


def main() -> None:
    """Write the list, and print which functions take most."""
    taken = times(NOTES.glob("*.json"))
    if not taken:
        sys.exit("nothing is measured: run `make test` first")
    listed = {name for name, cost in taken.items() if cost.slow} | set(remaining(slow_names(), taken))
    LIST.write_text("".join(f"{name}\n" for name in sorted(listed)), encoding="utf-8")
    total, quick = (
        sum(cost.cpu for name, cost in taken.items() if some or name not in listed) for some in (True, False)
    )
    cases = sum(cost.cases for cost in taken.values())
    print(f"{total:.1f} s of CPU time for {cases:,} cases, {quick:.1f} s without the slow ones; most of it for")
    for name, cost in sorted(taken.items(), key=lambda pair: -pair[1].cpu)[:TOP]:
        print(f"{cost.cpu:8.2f} s {cost.cases:5,} × {name}")


if __name__ == "__main__":
    main()
