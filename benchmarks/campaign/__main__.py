"""Run a campaign, and print its figures: `python -m benchmarks.campaign`.

    python -m benchmarks.campaign --minutes 60                       # everything, on all cores
    python -m benchmarks.campaign --minutes 5 --only fuzz --seed 7   # one part, as drawn in an earlier run
    python -m benchmarks.campaign --only fuzz --seed 7 --case 123    # the one case named by a fault

Prints one figure per line, then every fault with the command that reproduces it. Exits with 1 if there is a fault.
`--only` names parts, separated by commas. `--cases` is a number of cases of each part, instead of a duration; `--jobs`
is the number of processes, one per core without it. Without a seed, a random one is printed.
"""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from random import SystemRandom

from benchmarks.campaign.case import run_case
from benchmarks.campaign.runner import HOUR, PARTS, Report, hush, run_campaign
from benchmarks.command import HOST, arguments
from context_compiler.cli.screen import Screen


def main() -> None:
    options = arguments(__doc__, minutes=5.0, only=",".join(PARTS), seed=int, jobs=int, cases=int, case=int)
    names = [name.strip() for name in options.only.split(",") if name.strip()]
    if unknown := [name for name in names if name not in PARTS]:
        raise SystemExit(f"{unknown[0]!r}: choose from {', '.join(PARTS)}")
    seed = SystemRandom().randrange(10**6) if options.seed is None else options.seed
    screen = Screen()
    screen.raw(f"seed {seed}")
    if options.case is not None:
        hush()
        report = Report()
        for name in names:
            report.add(name, run_case(PARTS[name].run, name, seed, options.case, options.minutes / HOUR))
        raise SystemExit(report.show(screen))
    jobs = options.jobs or os.cpu_count() or 1
    length = f"{options.minutes:g} minutes" if options.cases is None else f"{options.cases} cases a part"
    screen.raw(f"{length}, {jobs} jobs, {HOST} {version(HOST)}, Python {platform.python_version()}")
    raise SystemExit(run_campaign(names, seed, jobs, options.minutes, options.cases).show(screen))


if __name__ == "__main__":
    main()
