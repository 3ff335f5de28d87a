"""One case of a campaign, with its own random numbers, folder, figures and faults."""

from __future__ import annotations

import asyncio
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from context_compiler.middleware.windows import WINDOWS

MOST = 12
"""Maximum reported faults of one case, because one fault tends to repeat at every later request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An invariant that did not hold."""

    part: str
    seed: int
    number: int
    text: str

    @property
    def command(self) -> str:
        """The command that runs this case alone."""
        return f"python -m benchmarks.campaign --only {self.part} --seed {self.seed} --case {self.number}"


@dataclass(slots=True)
class Case:
    """A case; its random draws depend only on part, seed and number."""

    part: str
    seed: int
    number: int
    folder: Path
    scale: float = 1.0
    """Size of cases with a variable length; 1 is the size in a campaign of one hour."""
    figures: Counter[str] = field(default_factory=Counter[str])
    faults: list[Fault] = field(default_factory=list[Fault])
    random: Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = Random(f"{self.part} {self.seed} {self.number}")

    def count(self, what: str, number: int = 1) -> None:
        """Add to a figure."""
        self.figures[what] += number

    def check(self, holds: object, what: str, text: Callable[[], str] | str = "") -> None:
        """Check an invariant; if it does not hold, the figure `what` counts it and a fault is added."""
        self.figures[what] += not holds
        if not holds and len(self.faults) < MOST:
            more = text() if callable(text) else text
            said = " ".join(f"{what}: {more}".split())[:700]
            self.faults.append(Fault(part=self.part, seed=self.seed, number=self.number, text=said))


Run = Callable[[Case], Coroutine[Any, Any, None] | None]
"""A kind of case; a coroutine that it returns runs in a new event loop."""


def rotation(*kinds: Run) -> Run:
    """Return a run of one of several kinds, in rotation by the number of the case."""
    return lambda case: kinds[case.number % len(kinds)](case)


def run_case(run: Run, part: str, seed: int, number: int, scale: float = 1.0) -> Case:
    """Run one case in a new folder; an exception is a fault too."""
    with tempfile.TemporaryDirectory(prefix="campaign-", ignore_cleanup_errors=True) as folder:
        case = Case(part, seed, number, Path(folder), scale)
        case.count("cases")
        WINDOWS.forget()
        try:
            work = run(case)
            if work is not None:
                asyncio.run(work)
        except Exception as error:  # an exception is the result of a case, and the next case runs
            frames = reversed(traceback.extract_tb(error.__traceback__)[-6:])
            where = " < ".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames)
            case.check(False, "exceptions", f"{type(error).__name__}: {error} at {where}")
        case.figures["exceptions"] += 0
    return case
