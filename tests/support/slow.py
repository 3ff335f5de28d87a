"""Slow tests, by measurement: `python -m tests.support.slow` runs the suite and writes their names to `tests/slow.txt`.

A test function that takes more than `LIMIT` in any of its cases, or more than `TOTAL` in all of them, is marked `slow`
when the suite is collected. What is measured is CPU time, children included, so that the list is the same on a busy
machine; `ASLEEP` finds those that wait. The quick tests then run once more: what a slow test set up for them is theirs
now. Of each run the functions that take most are printed.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

LIMIT = 0.05
"""Seconds of CPU time for set-up, call and tear-down of one case."""

TOTAL = 0.4
"""Seconds of CPU time for all cases of a function."""

ASLEEP = 1.0
"""Seconds by the clock."""

TOP = 60
"""Functions that are printed."""

TESTS = Path(__file__).parents[1]
LIST = TESTS / "slow.txt"


def function_name(node_id: str) -> str:
    """The name of a test function below `tests/`: a node id without folder and parameters."""
    return node_id.removeprefix("tests/").partition("[")[0]


def slow_names() -> frozenset[str]:
    """The listed names."""
    return frozenset(LIST.read_text(encoding="utf-8").split())


def cpu_seconds() -> float:
    """CPU time of this process and of its children."""
    return time.process_time() + sum(os.times()[2:4])


class Measure:
    """A plugin that notes what test functions take."""

    def __init__(self) -> None:
        self.cpu: Counter[str] = Counter()
        self.cases: Counter[str] = Counter()
        self._slow: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        busy, clock = cpu_seconds(), time.monotonic()
        done = yield
        name, busy = function_name(item.nodeid), cpu_seconds() - busy
        self.cpu[name] += busy
        self.cases[name] += 1
        if busy > LIMIT or time.monotonic() - clock > ASLEEP:
            self._slow.add(name)
        return done

    def slow(self) -> set[str]:
        """The functions above a limit."""
        return self._slow | {name for name, seconds in self.cpu.items() if seconds > TOTAL}

    def report(self) -> None:
        """Print which functions take most."""
        print(f"{sum(self.cpu.values()):.1f} s of CPU time for {sum(self.cases.values()):,} cases, most of it for")
        for name, seconds in self.cpu.most_common(TOP):
            print(f"{seconds:8.2f} s {self.cases[name]:5,} × {name}")


def measure(*options: str) -> set[str]:
    """The slow functions of one run in this process, by one worker."""
    found = Measure()
    if code := pytest.main(["-q", "-p", "no:cacheprovider", *options, str(TESTS)], plugins=[found]):
        sys.exit(f"the suite fails ({code}): run it first")
    found.report()
    return found.slow()


def main() -> None:
    """Measure all tests, then the quick ones alone."""
    for options in ((), ("-m", "not slow")):
        found = measure(*options) | (set(slow_names()) if options else set())
        LIST.write_text("".join(f"{name}\n" for name in sorted(found)), encoding="utf-8")


if __name__ == "__main__":
    main()
