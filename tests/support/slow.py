"""Slow tests, by measurement: `python -m tests.support.slow` runs the suite and writes their names to `tests/slow.txt`.

A test function that takes longer than `LIMIT` in any of its cases is marked `slow` when the suite is collected.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

LIMIT = 0.1
"""Seconds of set-up, call and tear-down together."""

TESTS = Path(__file__).parents[1]
LIST = TESTS / "slow.txt"
LINE = re.compile(r"([\d.]+)s (?:call|setup|teardown)\s+tests/(\S+?\.py::\S+)")


def function_name(node_id: str) -> str:
    """The name of a test function below `tests/`: a node id without folder and parameters."""
    return node_id.removeprefix("tests/").partition("[")[0]


def slow_names() -> frozenset[str]:
    """The listed names."""
    return frozenset(LIST.read_text(encoding="utf-8").split())


def slow_of(report: Iterable[str]) -> set[str]:
    """The names of test functions that a report of durations shows above the limit."""
    seconds: dict[str, float] = {}
    for line in report:
        if found := LINE.match(line):
            seconds[found[2]] = seconds.get(found[2], 0.0) + float(found[1])
    return {function_name(name) for name, taken in seconds.items() if taken > LIMIT}


def main() -> None:
    """Measure one worker alone, so that workers do not slow each other down."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as report:
        command = [sys.executable, "-m", "pytest", "-q", "--durations=0", "-p", "no:cacheprovider"]
        code = subprocess.run(command, cwd=TESTS.parent, stdout=report, check=False).returncode
        report.seek(0)
        found = slow_of(report)
    if code:
        sys.exit(f"the suite fails ({code}): run it first")
    LIST.write_text("".join(f"{name}\n" for name in sorted(found)), encoding="utf-8")


if __name__ == "__main__":
    main()
