"""Run a campaign, and print its figures: `python -m benchmarks.campaign`.

python -m benchmarks.campaign --minutes 60                        # everything, on all cores
python -m benchmarks.campaign --minutes 5 --only fuzz --seed 7    # a part, with the random numbers of a former run
python -m benchmarks.campaign --only fuzz --seed 7 --case 123     # the one case that a fault names

Prints one figure a line, then every fault with the command that shows it again; exits with 1 if there is any.
"""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from random import SystemRandom
from typing import Annotated

import typer

from benchmarks.campaign.case import run_case
from benchmarks.campaign.runner import HOUR, PARTS, Report, hush, run_campaign
from benchmarks.machine import HOST
from context_compiler.cli.screen import Screen

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(help="Use the package at random, kill it, break its disk, and count what goes wrong.")
def main(
    minutes: Annotated[float, typer.Option(help="How long, about.", min=0.01)] = 5.0,
    only: Annotated[str, typer.Option(help=f"Some of {', '.join(PARTS)}, with commas; all without.")] = "",
    seed: Annotated[int | None, typer.Option(help="Of the random numbers; drawn and printed without.")] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Processes at the same time; as many as cores without.", min=1)
    ] = None,
    cases: Annotated[int | None, typer.Option(help="Of each part, instead of as many as time allows.", min=1)] = None,
    case: Annotated[int | None, typer.Option(help="Run one case of one part, in this process.", min=0)] = None,
) -> None:
    """Run it, print figures and faults."""
    names = [name.strip() for name in only.split(",") if name.strip()] or list(PARTS)
    if unknown := [name for name in names if name not in PARTS]:
        raise typer.BadParameter(f"{unknown[0]!r}: there is {', '.join(PARTS)}")
    seed = SystemRandom().randrange(10**6) if seed is None else seed
    jobs = jobs or os.cpu_count() or 1
    screen = Screen()
    screen.raw(f"seed {seed}")
    if case is not None:
        hush()
        report = Report()
        for name in names:
            report.add(name, run_case(PARTS[name].run, name, seed, case, minutes / HOUR))
        raise SystemExit(report.show(screen))
    length = f"{minutes:g} minutes" if cases is None else f"{cases} cases a part"
    screen.raw(f"{length}, {jobs} jobs, {HOST} {version(HOST)}, Python {platform.python_version()}")
    report = run_campaign(names, seed, jobs, minutes, cases)
    raise SystemExit(report.show(screen))


if __name__ == "__main__":
    app()
