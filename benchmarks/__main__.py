"""Measure all approaches by all measures and write one table each: `python -m benchmarks`.

python -m benchmarks --fast                      # a minute; needs neither data nor peers
python -m benchmarks --out results --resume      # everything; continues where it was stopped
python -m benchmarks --measure sessions --approach ours-live --approach harness-window
python -m benchmarks --report-only --out results --page docs/benchmarks --page docs/benchmarks.md
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import dial, goals
from benchmarks.approaches import HOMES, ONLY, Approach, Missing, installed, load
from benchmarks.data import Data, at_hand
from benchmarks.machine import HOST, machine
from benchmarks.measures import (
    Measure,
    ablations,
    added,
    answers,
    compiles,
    evidence,
    lived,
    references,
    sessions,
    sets,
    survival,
)
from benchmarks.page import can_draw, fill_page, ran, written
from benchmarks.results import Cell, Result, Results, code
from benchmarks.tables import RECOUNTS, TOO_LONG, markdown
from context_compiler.cli.screen import Screen, print_note, print_progress, progress_bar, step

MEASURES = {
    one.name: one
    for module in (lived, evidence, sets, ablations, sessions, references, survival, compiles, added, answers)
    for one in module.MEASURES
}

USUAL = tuple(name for name in MEASURES if name != answers.NAME)
"""Measures that ask no model."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(help="Compare this package with its peers, on the same histories, at the same budgets.")
def main(
    measure: Annotated[
        list[str] | None, typer.Option(help=f"One of {', '.join(MEASURES)}; default: all but answers.")
    ] = None,
    approach: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(HOMES)}; default: all.")] = None,
    data: Annotated[list[str] | None, typer.Option(help="A set of histories; default: all.")] = None,
    budget: Annotated[list[int] | None, typer.Option(help="A budget in tokens; default: all.")] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Use a small part of the data; takes a minute.")] = False,
    every: Annotated[int, typer.Option(help="Ask one question in N, drawn with a fixed seed.", min=1)] = 1,
    out: Annotated[Path, typer.Option(help="Folder for results, tables and plots.")] = Path("benchmark-results"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep figures measured with the same code and data.")
    ] = False,
    conversations: Annotated[
        int | None, typer.Option(help="Use only the first N conversations of every set; default: all.", min=1)
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="Model that answers, for answers; default: the small ones that are installed."),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Number of processes.", min=1)] = 1,
    page: Annotated[
        list[Path] | None,
        typer.Option(help="Also write the tables into this page, or the pages of this folder, and plots next to it."),
    ] = None,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="Keep rows and cells of pages that are not among the results, and keep their plots."
        ),
    ] = False,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Measure nothing; print the results already measured.")
    ] = False,
) -> None:
    """Measure, write the results, and print them."""
    chosen = [MEASURES[_known(name, MEASURES)] for name in measure or USUAL]
    names = [_known(name, HOMES) for name in approach or HOMES]
    there = _at_hand(fast, every, conversations, tuple(model or ()))
    results = Results(out, resume=resume or report_only)
    if there.folder is None:
        print_note("no data found (set CONTEXT_COMPILER_DATA to their folder): using a small generated history instead")
    if not report_only:
        _measure(chosen, names, there, results, data, budget, jobs)
    tables = _report(chosen, results, out)
    tables |= {"machine": ran(results), "goals": goals.table(results), "setup": setup(), "dial": dial.table(results)}
    pictures = {one.name: one.panels(_of(one, results)) for one in chosen if one.panels is not None}
    pictures["dial"] = dial.panels(results)
    for place in page or ():
        for one in sorted(place.glob("*.md")) if place.is_dir() else [place]:
            fill_page(one, tables, pictures, keep=keep)


@cache
def _at_hand(fast: bool, every: int, conversations: int | None, models: tuple[str, ...]) -> Data:
    return at_hand(fast, every, conversations, models)


def _known(name: str, names: Sequence[str] | dict[str, object] | dict[str, str] | dict[str, Measure]) -> str:
    if name not in names:
        raise typer.BadParameter(f"{name!r}: choose one of {', '.join(names)}")
    return name


def _measure(
    chosen: Sequence[Measure],
    names: Sequence[str],
    data: Data,
    results: Results,
    only: Sequence[str] | None,
    budgets: Sequence[int] | None,
    jobs: int,
) -> None:
    """Measure every cell without an up-to-date result."""
    wanted = [
        (one, cell)
        for one in chosen
        for cell in one.cells(data, [name for name in names if one.name in ONLY.get(name, {one.name})])
        if not only or cell.data.partition("+")[0] in only
        if not budgets or cell.budget in budgets
    ]
    prints = {name: data.fingerprint(name) for name in {cell.data for _, cell in wanted}}
    codes = {ours: code(ours=ours) for ours in (False, True)}
    todo: list[Task] = []
    for one, cell in wanted:
        approach = load(cell.approach)
        ours = one.alone or (isinstance(approach, Approach) and approach.ours)
        version = approach.version if isinstance(approach, Approach) else approach.reason
        stamp = "-".join([codes[ours], prints[cell.data], installed(HOST), version])
        if results.find(cell, stamp) is None:
            todo.append((one.name, cell, stamp, data.fast, data.every, data.most, data.models))
    if len(todo) < len(wanted):
        print_progress(f"{len(wanted) - len(todo)} of {len(wanted)} already measured")
    with progress_bar("measuring", len(todo)) as progress:
        for number, result in enumerate(_results(todo, jobs), 1):
            results.keep(result)
            step(progress)
            if progress is None:
                cell = result.cell
                what = f"{cell.measure} {cell.data} {cell.budget:,} {cell.approach}"
                print_progress(f"{number}/{len(todo)} {what} {result.seconds:.0f} s")


Task = tuple[str, Cell, str, bool, int, int | None, tuple[str, ...]]
"""Name of a measure, one of its cells with its stamp, and the part of the data to use."""


def _results(todo: Sequence[Task], jobs: int) -> Iterator[Result]:
    """Yield each result as soon as it is measured."""
    if jobs == 1:
        yield from map(_result, todo)
        return
    with ProcessPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(_result, task) for task in todo]):
            yield done.result()


def _result(task: Task) -> Result:
    name, cell, stamp, *part = task
    measure, approach, data = MEASURES[name], load(cell.approach), _at_hand(*part)
    if isinstance(approach, Missing):
        return Result(cell=cell, stamp=stamp, dash=approach.reason, ran=machine())
    if cell.data in TOO_LONG.get(cell.approach, ()):
        return Result(cell=cell, stamp=stamp, dash=RECOUNTS, ran=machine())
    started = time.perf_counter()
    try:
        found = measure.run(cell, approach, data)
    except Exception as error:  # a peer may raise anything: the error is its result, and the others continue
        print(f"{cell}: {type(error).__name__}: {error}", file=sys.stderr)
        found = f"raises {type(error).__name__}: {' '.join(str(error).split())[:160]}"
    seconds = time.perf_counter() - started
    if isinstance(found, str):
        return Result(cell=cell, stamp=stamp, dash=found, seconds=seconds, ran=machine())
    return Result(cell=cell, stamp=stamp, value=found, seconds=seconds, ran=machine())


def _of(measure: Measure, results: Results) -> list[Result]:
    order = {name: place for place, name in enumerate(HOMES)}
    of_measure = [one for one in results if one.cell.measure == measure.name]
    found = [one for one in of_measure if measure.name in ONLY.get(one.cell.approach, {measure.name})]
    return sorted(found, key=lambda one: order[one.cell.approach])


def setup() -> str:
    """Table of the settings and version of every approach."""
    found = (load(name) for name in HOMES)
    rows = [
        (one.title, one.setup, f"{one.package} {one.version}".strip()) for one in found if isinstance(one, Approach)
    ]
    return markdown(("", "set up as", "version"), rows)


def _report(chosen: Sequence[Measure], results: Results, out: Path) -> dict[str, str]:
    screen = Screen()
    screen.raw(machine())
    tables: dict[str, str] = {}
    for one in chosen:
        made = written(one, _of(one, results), out)
        tables |= made
        for name, table in made.items():
            screen.raw(f"\n### {one.title}: {name}\n\n{table}")
    if not can_draw():
        print_note('no plots: they need matplotlib, pip install "pydantic-ai-context-compiler[bench]"')
    screen.raw(f"\nwritten to {out}")
    return tables


if __name__ == "__main__":
    app()
