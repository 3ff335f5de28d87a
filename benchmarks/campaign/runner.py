"""Parts of a campaign, its workers, and their report."""

from __future__ import annotations

import logging
import multiprocessing
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice, takewhile
from pathlib import Path

from benchmarks.campaign import conversations, others, pipelines, processes, reading, soak
from benchmarks.campaign.case import Case, Fault, Run, rotation, run_case
from context_compiler.cli.screen import Screen, progress_bar

SHOWN = 4
"""Maximum printed faults of one kind."""
QUIET_S = 1800
"""Seconds without a message after which a worker counts as hanging."""
HOUR = 60.0

FUZZ = rotation(
    *[conversations.converse] * 7,
    *(others.one_shot, others.processed, others.managed, others.attached, others.layered, others.rewritten),
    reading.read,
    pipelines.killed,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a campaign."""

    run: Run
    share: float = 0.0
    """Fraction of the time; 0 for a part with a fixed number of cases, whose length follows the scale."""
    cases: int = 0


PARTS = {
    "processes": Part(run=processes.share, cases=2),
    "hostile": Part(run=partial(conversations.converse, hostile=0.6), share=0.1),
    "counts": Part(run=partial(conversations.converse, counted=True), share=0.07),
    "fuzz": Part(run=FUZZ, share=0.7),
    "soak": Part(run=soak.soak, cases=1),
}
"""Parts with a fixed number of cases use the remaining time."""


@dataclass
class Report:
    """Figures by part, and faults."""

    figures: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    faults: list[Fault] = field(default_factory=list[Fault])

    def add(self, part: str, case: Case) -> None:
        """Add the figures and faults of a case."""
        self.figures[part].update(case.figures)
        self.faults += case.faults

    def show(self, screen: Screen) -> int:
        """Print everything, and return the exit code."""
        for part, figures in self.figures.items():
            for name, number in figures.items():
                screen.raw(f"{part}: {name}: {number:,}")
        kinds: defaultdict[str, list[Fault]] = defaultdict(list)
        for fault in self.faults:
            kinds[f"{fault.part}: {fault.text.partition(':')[0]}"].append(fault)
        for kind, faults in kinds.items():
            for fault in faults[:SHOWN]:
                screen.raw(f"\nfault in {fault.part}: {fault.text}\n  again: {fault.command}")
            if len(faults) > SHOWN:
                screen.raw(f"\n… and {len(faults) - SHOWN} more of {kind}")
        screen.raw(f"faults: {len(self.faults):,}")
        return 1 if self.faults else 0


WORKERS = multiprocessing.get_context("forkserver")
WORKERS.set_forkserver_preload([__name__])  # imports once for the workers of all parts


def hush() -> None:
    """Silence logs and warnings, because cases provoke them."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")


def run_campaign(names: list[str], seed: int, jobs: int, minutes: float, cases: int | None = None) -> Report:
    """Run parts in parallel processes, for `minutes`, or for a number of `cases` of each part."""
    report, shares = Report(), sum(PARTS[name].share for name in names)
    whole = 1.0 if any(PARTS[name].cases for name in names) else shares
    with progress_bar("campaign") as progress:
        for name in names:
            part = PARTS[name]
            numbers = _numbers(part.cases or cases, time.monotonic() + 60 * minutes * part.share / (whole or 1))
            for case in _run_part(name, seed, numbers, jobs, minutes / HOUR):
                report.add(name, case)
                if progress is not None:
                    said = ", ".join(f"{name} {figures['cases']:,}" for name, figures in report.figures.items())
                    progress.update(progress.task_ids[0], description=f"{said}; faults {len(report.faults):,}")
    return report


def _numbers(most: int | None, end: float) -> Iterator[int]:
    """Yield the numbers of cases: `most`, or as many as are asked for until a moment."""
    return takewhile(lambda number: number < most if most else time.monotonic() < end, count())


def _run_part(name: str, seed: int, numbers: Iterator[int], jobs: int, scale: float) -> Iterator[Case]:
    """Yield the cases of a part as they end; if a worker dies or hangs, the cases under way are faults, and it ends."""
    with ProcessPoolExecutor(jobs, WORKERS, hush) as pool:
        running: dict[Future[Case], int] = {}
        while True:
            for number in islice(numbers, jobs - len(running)):
                running[pool.submit(_run_plain, name, seed, number, scale)] = number
            if not running:
                return
            done = wait(running, QUIET_S, FIRST_COMPLETED).done
            for future in done:
                if future.exception() is None:
                    yield future.result()
                    del running[future]
            if not done or any(future.exception() for future in done):
                for child in multiprocessing.active_children():
                    child.kill()
                yield from (_lost(name, seed, number) for number in running.values())
                return


def _run_plain(name: str, seed: int, number: int, scale: float) -> Case:
    """Run a case, and return a copy that is cheap to send between processes."""
    case = run_case(PARTS[name].run, name, seed, number, scale)
    return Case(name, seed, number, Path(), scale, case.figures, case.faults)


def _lost(name: str, seed: int, number: int) -> Case:
    """Return a case whose worker died or hung."""
    case = Case(name, seed, number, Path())
    case.check(False, "workers that died or hung", f"under way when a worker died, or all said nothing for {QUIET_S} s")
    return case
