"""Compare this package with its peers, on the same histories, at the same budgets: `python -m benchmarks`.

    python -m benchmarks --fast                      # a minute; needs neither data nor peers
    python -m benchmarks --out results --resume      # everything; continues where it was stopped
    python -m benchmarks --measure sessions --approach ours-live --approach harness-window
    python -m benchmarks --report-only --out results --page docs/benchmarks --page docs/benchmarks.md

Without `--measure`, all measures but `answers` run; `--approach`, `--data`, `--budget` and `--conversations` (the first
N of every set) restrict them further, and `--every N` asks one question in N, drawn with a fixed seed. `--resume` keeps
figures of the same code and data. `--page` also writes the tables into a page or the pages of a folder, and plots next
to it; with `--keep`, rows and cells that are not among the results stay, and so do the plots. `--model` names a model
that answers, or with `--measure lived` one that writes the summaries.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks import goals
from benchmarks.approaches import HOMES, ONLY, Approach, Missing, installed, load
from benchmarks.command import HOST, arguments, machine
from benchmarks.data import Data, at_hand
from benchmarks.measures import Measure, ablations, answers, evidence, lived, sessions, sets
from benchmarks.page import can_draw, fill_page, ran, written
from benchmarks.results import Cell, Result, Results, code
from benchmarks.tables import RECOUNTS, TOO_LONG, markdown
from context_compiler.cli.screen import Screen, print_note, print_progress, progress_bar, step

MEASURES = {
    measure.name: measure
    for module in (lived, evidence, sets, ablations, sessions, answers)
    for measure in module.MEASURES
}

Task = tuple[str, Cell, str, bool, int, int | None, tuple[str, ...]]
"""Name of a measure, one of its cells with its stamp, and the part of the data to use."""


def main(argv: Sequence[str] | None = None) -> None:
    options = arguments(
        __doc__,
        argv=argv,
        measure=[*MEASURES],
        approach=[*HOMES],
        data=[str],
        budget=[int],
        fast=False,
        every=1,
        out=Path("benchmark-results"),
        resume=False,
        conversations=int,
        model=[str],
        jobs=1,
        page=[Path],
        keep=False,
        report_only=False,
    )
    chosen = [MEASURES[name] for name in options.measure or MEASURES if options.measure or name != answers.NAME]
    data = at_hand(options.fast, options.every, options.conversations, tuple(options.model))
    results = Results(options.out, resume=options.resume or options.report_only)
    if data.folder is None:
        print_note("no data found (set CONTEXT_COMPILER_DATA to their folder): using a small generated history instead")
    if not options.report_only:
        _measure(_cells(chosen, data, options), data, results, options.jobs)
    tables = _report(chosen, results, options.out)
    tables |= {
        "machine": ran(results),
        "goals": goals.table(results),
        "setup": setup(),
        "dial": lived.dial_table(results),
    }
    plots = {measure.name: measure.panels(_of(measure, results)) for measure in chosen if measure.panels is not None}
    plots["dial"] = lived.dial_panels(results)
    for path in options.page:
        for page in sorted(path.glob("*.md")) if path.is_dir() else [path]:
            fill_page(page, tables, plots, keep=options.keep)


def _cells(chosen: Sequence[Measure], data: Data, options: argparse.Namespace) -> list[tuple[Measure, Cell]]:
    """Return the cells of the measures, restricted to the sets and budgets that were asked for."""
    names: Collection[str] = options.approach or HOMES
    return [
        (measure, cell)
        for measure in chosen
        for cell in measure.cells(data, [name for name in names if measure.name in ONLY.get(name, {measure.name})])
        if not options.data or cell.data.partition("+")[0] in options.data
        if not options.budget or cell.budget in options.budget
    ]


def _measure(wanted: Sequence[tuple[Measure, Cell]], data: Data, results: Results, jobs: int) -> None:
    """Measure every cell without an up-to-date result."""
    prints = {name: data.fingerprint(name) for name in {cell.data for _, cell in wanted}}
    codes = {ours: code(ours=ours) for ours in (False, True)}
    todo: list[Task] = []
    for measure, cell in wanted:
        approach = load(cell.approach)
        ours = isinstance(approach, Approach) and approach.ours
        version = approach.version if isinstance(approach, Approach) else approach.reason
        stamp = "-".join([codes[ours], prints[cell.data], installed(HOST), version])
        if results.find(cell, stamp) is None:
            todo.append((measure.name, cell, stamp, data.fast, data.every, data.most, data.models))
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


def _results(todo: Sequence[Task], jobs: int) -> Iterator[Result]:
    if jobs == 1:
        yield from map(_result, todo)
        return
    with ProcessPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(_result, task) for task in todo]):
            yield done.result()


def _result(task: Task) -> Result:
    name, cell, stamp, *part = task
    approach, started = load(cell.approach), time.perf_counter()
    if isinstance(approach, Missing):
        value = approach.reason
    elif cell.data in TOO_LONG.get(cell.approach, ()):
        value = RECOUNTS
    else:
        try:
            value = MEASURES[name].run(cell, approach, at_hand(*part))
        except Exception as error:  # a peer may raise anything: the error is its result, and the others continue
            print(f"{cell}: {type(error).__name__}: {error}", file=sys.stderr)
            value = f"raises {type(error).__name__}: {' '.join(str(error).split())[:160]}"
    more: dict[str, Any] = {"dash": value} if isinstance(value, str) else {"value": value}
    return Result(cell=cell, stamp=stamp, seconds=time.perf_counter() - started, ran=machine(), **more)


def _of(measure: Measure, results: Results) -> list[Result]:
    order = [*HOMES]
    own = (result for result in results if result.cell.measure == measure.name)
    shown = (result for result in own if measure.name in ONLY.get(result.cell.approach, {measure.name}))
    return sorted(shown, key=lambda result: order.index(result.cell.approach))


def setup() -> str:
    """Table of the settings and version of every approach."""
    rows = [
        (approach.title, approach.setup, f"{approach.package} {approach.version}".strip())
        for approach in map(load, HOMES)
        if isinstance(approach, Approach)
    ]
    return markdown(("", "set up as", "version"), rows)


def _report(chosen: Sequence[Measure], results: Results, out: Path) -> dict[str, str]:
    screen = Screen()
    screen.raw(machine())
    tables: dict[str, str] = {}
    for measure in chosen:
        own = written(measure, _of(measure, results), out)
        tables |= own
        for name, table in own.items():
            screen.raw(f"\n### {measure.title}: {name}\n\n{table}")
    if not can_draw():
        print_note('no plots: they need matplotlib, pip install "pydantic-ai-context-compiler[bench]"')
    screen.raw(f"\nwritten to {out}")
    return tables


if __name__ == "__main__":
    main()
