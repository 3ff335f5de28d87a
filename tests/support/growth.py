"""Growth of the work that a text costs, in CPU time of this process: a busy machine does not change it."""

from __future__ import annotations

import time
from collections.abc import Callable

SMALL, LARGE = 1_000, 100_000
"""Characters of a text, and of one that is a hundred times as long."""

STEEPEST = 1_000
"""Times the work for a hundredfold text: linear work takes 100 times, quadratic work 10,000 times."""

NOTHING = 0.5
"""Seconds of CPU that are not worth a comparison."""


def cpu(work: Callable[[], object]) -> float:
    """Seconds of CPU that some work takes."""
    started = time.process_time()
    work()
    return time.process_time() - started


def assert_bounded(work: Callable[[str], object], unit: str) -> None:
    """Fail where the work for a text that repeats `unit` grows much faster than the text."""
    work(unit)  # whatever is loaded or built once
    few = min(cpu(lambda: work(unit * (SMALL // len(unit)))) for _ in range(3))
    many = cpu(lambda: work(unit * (LARGE // len(unit))))
    assert many < max(NOTHING, few * STEEPEST), (
        f"{unit!r}: {few:.4f} s for {SMALL:,} characters, {many:.4f} s for {LARGE:,}"
    )
