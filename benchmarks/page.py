"""Write results: tables, JSON and plots into a folder, and tables into a page of the docs.

In a page, the text between `<!-- table: NAME -->` and `<!-- end -->` is replaced by the table of that name. Plots are
written next to the page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.data import GENERATED
from benchmarks.measures import Measure
from benchmarks.results import Result
from benchmarks.tables import DASH, markdown
from context_compiler.cli.drawing import Panel, draw, libraries
from context_compiler.errors import SettingsError

PLACE = re.compile(r"<!-- table: ([\w.-]+) -->\n(.*?)\n?<!-- end -->", re.DOTALL)
PICTURES = {
    "lived": "Evidence held when asked, against the budget and against the cost of a request, for every approach.",
    "dial": "What is held when asked against what a request costs: a line a budget, a point for each share of recall.",
}
"""Alternative texts of plots."""
MACHINES = "machine"
"""List of a page to which `keep` adds lines."""
MADE_UP = (
    "\n\nMeasured on a small generated history because no data are at hand: this shows only that the benchmark works."
)


def written(measure: Measure, results: Sequence[Result], folder: Path) -> dict[str, str]:
    """Write the tables, the JSON and the plot of a measure into a folder, and return its tables by name."""
    if not results:
        return {}
    tables = measure.tables(results)
    note = MADE_UP if any(result.cell.data == GENERATED for result in results) else ""
    body = "\n\n".join(f"### {name}\n\n{table}" for name, table in tables.items())
    text = f"## {measure.title}\n\n{ran(results)}{note}\n\n{body}\n"
    (folder / f"{measure.name}.md").write_text(text, encoding="utf-8")
    document = {"measure": measure.name, "results": [asdict(result) for result in results]}
    (folder / f"{measure.name}.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    panels = measure.panels(results) if measure.panels is not None else []
    if panels and can_draw():
        draw(panels, folder / f"{measure.name}.svg")
    return tables


def ran(results: Iterable[Result]) -> str:
    """List the measures by date, machine and versions."""
    measures: dict[str, dict[str, None]] = {}
    for result in results:
        measures.setdefault(result.ran, {})[result.cell.measure] = None
    return "\n".join(f"* {', '.join(names)}: {where}" for where, names in measures.items() if where)


def fill_page(
    page: Path, tables: Mapping[str, str], pictures: Mapping[str, Sequence[Panel]], *, keep: bool = False
) -> None:
    """Write tables into a page, and next to it the plots that it shows or has a place for.

    With `keep`, tables keep the rows and cells that were not measured again. Plots stay unchanged, because new ones
    would lack those points.
    """
    text, links = page.read_text(encoding="utf-8"), dict(tables)
    for name, panels in () if keep else pictures.items():
        picture = page.with_name(f"benchmarks-{name}.svg")
        if panels and (f"<!-- table: {name}-plot -->" in text or f"({picture.name})" in text) and can_draw():
            draw(panels, picture)
            links[f"{name}-plot"] = f"![{PICTURES.get(name, name)}]({picture.name})"
    page.write_text(filled(text, links, keep=keep), encoding="utf-8")


def can_draw() -> bool:
    """True if matplotlib is installed."""
    try:
        libraries()
    except SettingsError:
        return False
    return True


def filled(text: str, tables: Mapping[str, str], *, keep: bool = False) -> str:
    """Return a page with its tables; tables without results stay, with `keep` also rows and cells without results."""

    def table(match: re.Match[str]) -> str:
        name, old = match[1], match[2]
        if name not in tables:
            return match[0]
        new = tables[name]
        if keep and new.startswith("|"):
            new = _merged(new, old)
        elif keep:
            new = "\n".join(dict.fromkeys([*old.splitlines(), *new.splitlines()])) if name == MACHINES else old
        return f"<!-- table: {name} -->\n{new}\n<!-- end -->"

    return PLACE.sub(table, text)


def _merged(new: str, old: str) -> str:
    """Merge a table into an older one, whose other rows and cells stay; new rows follow our own rows.

    A table whose first cells are not unique replaces the older one as a whole.
    """
    (columns, rows), (old_columns, old_rows) = _cells(new), _cells(old)
    if not set(columns) <= set(old_columns) or len(rows) < sum(line.startswith("|") for line in new.splitlines()) - 2:
        return new
    ours = max((number for number, name in enumerate(old_rows, 1) if name.startswith("**")), default=len(old_rows))
    names = [*old_rows][:ours] + [name for name in rows if name not in old_rows] + [*old_rows][ours:]
    table = markdown(old_columns, [[_newest(name, column, rows, old_rows) for column in old_columns] for name in names])
    reasons = [line for text in (new, old) for line in text.splitlines() if line.startswith("– ")]
    return "\n\n".join([table, *dict.fromkeys(reasons)])


def _cells(table: str) -> tuple[list[str], dict[str, dict[str, str]]]:
    """Return the columns of a table, and its rows by their first cell."""
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")]
    columns, _, *rows = lines or [[], []]
    return columns, {row[0]: dict(zip(columns, row, strict=True)) for row in rows}


def _newest(name: str, column: str, *tables: Mapping[str, Mapping[str, str]]) -> str:
    """Return the cell from the first table in which it is not a dash."""
    cells = (table.get(name, {}).get(column, DASH) for table in tables)
    return next((cell for cell in cells if cell != DASH), DASH)
