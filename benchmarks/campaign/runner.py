"""Parts of a campaign, its workers, and their report."""

from __future__ import annotations

import logging
import multiprocessing
import queue
import time
import warnings
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.progress import Progress

from benchmarks.campaign import conversations, disk, kills, others, processes, reading, soak
from benchmarks.campaign.case import Case, Fault, Run, rotation, run_case
from context_compiler.cli.screen import Screen, progress_bar

SHOWN = 4
"""Maximum printed faults of one kind."""
QUIET_S = 1800
"""Seconds without a message after which a worker counts as hanging."""
HOUR = 60.0

FUZZ = rotation(
    *[conversations.converse] * 7,
    *(others.one_shot, others.processed, others.managed, others.layered, others.rewritten, reading.read),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a campaign."""

    run: Run
    share: float = 0.0
    """Fraction of the time; 0 for a part with a fixed number of cases, whose length follows the scale."""
    cases: int = 0


PARTS = {
    "kills": Part(run=kills.kill, share=0.06),
    "disk": Part(run=disk.fail, share=0.06),
    "processes": Part(run=processes.share, cases=2),
    "hostile": Part(run=partial(conversations.converse, hostile=0.6), share=0.08),
    "counts": Part(run=partial(conversations.converse, counted=True), share=0.05),
    "fuzz": Part(run=FUZZ, share=0.6),
    "soak": Part(run=soak.soak, cases=1),
}
"""Parts that fork come first, while a worker is small. Parts with a fixed number of cases use the remaining time."""


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


def hush() -> None:
    """Silence logs and warnings, because cases provoke them."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")


def run_campaign(names: list[str], seed: int, jobs: int, minutes: float, cases: int | None = None) -> Report:
    """Run parts in parallel processes, for `minutes`, or for a number of `cases` of each part."""
    report = Report()
    context = multiprocessing.get_context("spawn")
    heard: Any = context.Queue()
    workers = [
        context.Process(target=_work, args=(names, seed, place, jobs, minutes, cases, heard), daemon=False)
        for place in range(jobs)
    ]
    for one in workers:
        one.start()
    with progress_bar("campaign") as progress:
        _listen(report, workers, heard, progress, seed)
    for one in workers:
        one.join(10)
    return report


def _listen(report: Report, workers: list[Any], heard: Any, progress: Progress | None, seed: int) -> None:
    """Collect every case, until each worker is done, has died, or hangs."""
    now: dict[int, tuple[str, int]] = {}
    last, left = dict.fromkeys(range(len(workers)), time.monotonic()), set(range(len(workers)))
    while left:
        try:
            place, part, number, case = heard.get(timeout=2)
        except queue.Empty:
            for place in sorted(left):
                dead = not workers[place].is_alive()
                if dead or time.monotonic() - last[place] > QUIET_S:
                    workers[place].kill()
                    left.discard(place)
                    part, number = now.get(place, ("fuzz", 0))
                    what = f"died with {workers[place].exitcode}" if dead else f"said nothing for {QUIET_S} s"
                    report.figures[part]["workers that died or hung"] += 1
                    report.faults.append(Fault(part=part, seed=seed, number=number, text=f"a worker {what}"))
            continue
        last[place] = time.monotonic()
        if part == "":
            left.discard(place)
        elif case is None:
            now[place] = (part, number)
        else:
            report.add(part, case)
            if progress is not None:
                said = ", ".join(f"{name} {figures['cases']:,}" for name, figures in report.figures.items())
                progress.update(progress.task_ids[0], description=f"{said}; faults {len(report.faults):,}")


def _work(names: list[str], seed: int, place: int, jobs: int, minutes: float, cases: int | None, heard: Any) -> None:
    """Run the share of one worker: cases `place`, `place + jobs`, and so on, of each part."""
    hush()
    shares = sum(PARTS[name].share for name in names)
    counted = any(PARTS[name].cases for name in names)
    whole = 1.0 if counted and shares else shares
    for name in names:
        part, number = PARTS[name], place
        end = time.monotonic() + 60 * minutes * (part.share / whole if whole else 0)
        most = part.cases or cases
        while number < most if most else time.monotonic() < end:
            heard.put((place, name, number, None))
            case = run_case(part.run, name, seed, number, minutes / HOUR)
            heard.put((place, name, number, _plain(case)))
            number += jobs
    heard.put((place, "", 0, None))


def _plain(case: Case) -> Case:
    """Return a copy of the case that is cheap to send between processes."""
    return Case(case.part, case.seed, case.number, Path(), case.scale, case.figures, case.faults)
