"""Run a campaign, and print its figures: `python -m benchmarks.campaign`.

python -m benchmarks.campaign --minutes 60                        # everything, on all cores
python -m benchmarks.campaign --minutes 5 --only fuzz --seed 7    # one part, with the random numbers of an earlier run
python -m benchmarks.campaign --only fuzz --seed 7 --case 123     # the one case named by a fault

Prints one figure per line, then every fault with the command that reproduces it. Exits with 1 if there is a fault.
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


@app.command(help="Use the package at random, and count what goes wrong.")
def main(
    minutes: Annotated[float, typer.Option(help="Approximate duration.", min=0.01)] = 5.0,
    only: Annotated[
        str, typer.Option(help=f"Parts to run, separated by commas: {', '.join(PARTS)}; default: all.")
    ] = "",
    seed: Annotated[
        int | None, typer.Option(help="Seed of the random numbers; default: a random one, which is printed.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Number of parallel processes; default: one per core.", min=1)
    ] = None,
    cases: Annotated[
        int | None, typer.Option(help="Number of cases of each part, instead of a duration.", min=1)
    ] = None,
    case: Annotated[int | None, typer.Option(help="Run one case of one part, in this process.", min=0)] = None,
) -> None:
    """Run the campaign, and print figures and faults."""
    names = [name.strip() for name in only.split(",") if name.strip()] or list(PARTS)
    if unknown := [name for name in names if name not in PARTS]:
        raise typer.BadParameter(f"{unknown[0]!r}: choose from {', '.join(PARTS)}")
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
