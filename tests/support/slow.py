"""Slow tests, by measurement: `python -m tests.support.slow` runs the suite and writes their names to `tests/slow.txt`.

A test function that takes more than `LIMIT` in any of its cases is marked `slow` when the suite is collected. What is
measured is CPU time, children included, so that the list is the same on a busy machine; `ASLEEP` finds those that wait.
The quick tests then run once more: what a slow test set up for them is theirs now.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

LIMIT = 0.1
"""Seconds of CPU time for set-up, call and tear-down together."""

ASLEEP = 1.0
"""Seconds by the clock."""

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
    return sum(os.times()[:4])


class Measure:
    """A plugin that notes which test functions are slow."""

    def __init__(self) -> None:
        self.slow: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        busy, clock = cpu_seconds(), time.monotonic()
        done = yield
        if cpu_seconds() - busy > LIMIT or time.monotonic() - clock > ASLEEP:
            self.slow.add(function_name(item.nodeid))
        return done


def measure(*options: str) -> set[str]:
    """The slow functions of one run in this process, by one worker."""
    found = Measure()
    if code := pytest.main(["-q", "-p", "no:cacheprovider", *options, str(TESTS)], plugins=[found]):
        sys.exit(f"the suite fails ({code}): run it first")
    return found.slow


def main() -> None:
    """Measure all tests, then the quick ones alone."""
    for options in ((), ("-m", "not slow")):
        found = measure(*options) | (set(slow_names()) if options else set())
        LIST.write_text("".join(f"{name}\n" for name in sorted(found)), encoding="utf-8")


if __name__ == "__main__":
    main()
