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
from benchmarks.tables import markdown
from context_compiler.cli.drawing import Panel, draw, libraries
from context_compiler.errors import SettingsError

PLACE = re.compile(r"<!-- table: ([\w.-]+) -->\n(.*?)\n?<!-- end -->", re.DOTALL)
PICTURES = {
    "lived": "Evidence held when asked, against the budget and against the cost of a request, for every approach.",
    "dial": "What is held when asked against what a request costs: a line a budget, a point for each share of recall.",
}
"""Alternative texts of plots."""
ADDED = ("goals", "machine")
"""Tables of a page that keep rows which were not measured again."""
DASH = "–"
"""Cell for a figure that was not measured."""
MADE_UP = (
    "\n\nMeasured on a small generated history because no data are at hand: this shows only that the benchmark works."
)


def written(measure: Measure, results: Sequence[Result], folder: Path) -> dict[str, str]:
    """Write the tables, the JSON and the plot of a measure into a folder, and return its tables by name."""
    if not results:
        return {}
    tables = measure.tables(results)
    note = MADE_UP if any(one.cell.data == GENERATED for one in results) else ""
    body = "\n\n".join(f"### {name}\n\n{table}" for name, table in tables.items())
    text = f"## {measure.title}\n\n{measure.about}\n\n{ran(results)}{note}\n\n{body}\n"
    (folder / f"{measure.name}.md").write_text(text, encoding="utf-8")
    document = {"measure": measure.name, "about": measure.about}
    kept = {**document, "results": [asdict(one) for one in results]}
    (folder / f"{measure.name}.json").write_text(json.dumps(kept, indent=1), encoding="utf-8")
    plotted(measure, results, folder / f"{measure.name}.svg")
    return tables


def ran(results: Iterable[Result]) -> str:
    """List the measures by date, machine and versions."""
    found: dict[str, dict[str, None]] = {}
    for one in results:
        found.setdefault(one.ran, {})[one.cell.measure] = None
    return "\n".join(f"* {', '.join(measures)}: {where}" for where, measures in found.items() if where)


def plotted(measure: Measure, results: Sequence[Result], path: Path) -> bool:
    """Draw a measure if it has panels and matplotlib is installed; True if drawn."""
    panels = measure.panels(results) if measure.panels is not None else []
    if not panels or not can_draw():
        return False
    draw(panels, path)
    return True


def fill_page(
    page: Path, tables: Mapping[str, str], pictures: Mapping[str, Sequence[Panel]], *, keep: bool = False
) -> None:
    """Write tables into a page, and next to it the plots that it shows or has a place for.

    With `keep`, tables keep the rows and cells that were not measured again. Plots stay unchanged, because new ones
    would lack those points.
    """
    if keep:
        page.write_text(filled(page.read_text(encoding="utf-8"), tables, keep=True), encoding="utf-8")
        return
    text, links = page.read_text(encoding="utf-8"), dict(tables)
    for name, panels in pictures.items():
        picture = page.with_name(f"benchmarks-{name}.svg")
        if panels and (f"<!-- table: {name}-plot -->" in text or f"({picture.name})" in text) and can_draw():
            draw(panels, picture)
            links[f"{name}-plot"] = f"![{PICTURES.get(name, name)}]({picture.name})"
    page.write_text(filled(text, links), encoding="utf-8")


def can_draw() -> bool:
    """True if matplotlib is installed."""
    try:
        libraries()
    except SettingsError:
        return False
    return True


def filled(text: str, tables: Mapping[str, str], *, keep: bool = False) -> str:
    """Return a page with its tables; tables without results stay, with `keep` also rows and cells without results."""

    def table(found: re.Match[str]) -> str:
        name, old = found[1], found[2]
        if name not in tables:
            return found[0]
        new = tables[name]
        if keep and new.startswith("|"):
            new = _merged(new, old)
        elif keep:
            new = "\n".join(dict.fromkeys([*old.splitlines(), *new.splitlines()])) if name in ADDED else old
        elif name in ADDED:
            new = _with_kept_rows(new, old)
        return f"<!-- table: {name} -->\n{new}\n<!-- end -->"

    return PLACE.sub(table, text)


def _with_kept_rows(new: str, old: str) -> str:
    """Return the lines of a table or list, followed by the lines of an older one that it does not replace."""
    lines = new.splitlines()
    if lines and lines[0].startswith("|"):
        known = {_first_cell(line) for line in lines}
        kept = [line for line in old.splitlines() if line.startswith("|") and _first_cell(line) not in known]
        return "\n".join([*lines, *(line for line in kept if not line.startswith("|---"))])
    measured = {name for line in lines for name in _measures(line)}
    for line in old.splitlines():
        left = [name for name in _measures(line) if name not in measured]
        if left:
            lines.append(f"* {', '.join(left)}:{line.partition(':')[2]}")
    return "\n".join(lines)


def _merged(new: str, old: str) -> str:
    """Merge a table into an older one, whose other rows and cells stay; new rows follow our own rows.

    A table whose first cells are not unique replaces the older one as a whole.
    """
    (columns, rows), (known, kept) = _cells(new), _cells(old)
    if not set(columns) <= set(known) or len(rows) < sum(line.startswith("|") for line in new.splitlines()) - 2:
        return new
    place = max((at for at, name in enumerate(kept, 1) if name.startswith("**")), default=len(kept))
    names = [*kept][:place] + [name for name in rows if name not in kept] + [*kept][place:]
    lines = [markdown(known, [[_newest(name, column, rows, kept) for column in known] for name in names])]
    reasons = [line for text in (new, old) for line in text.splitlines() if line.startswith("– ")]
    return "\n\n".join([*lines, *dict.fromkeys(reasons)])


def _cells(table: str) -> tuple[list[str], dict[str, dict[str, str]]]:
    """Return the columns of a table, and its rows by their first cell."""
    lines = [[one.strip() for one in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")]
    columns, _, *rows = lines or [[], []]
    return columns, {row[0]: dict(zip(columns, row, strict=True)) for row in rows}


def _newest(name: str, column: str, *tables: Mapping[str, Mapping[str, str]]) -> str:
    """Return the cell from the first table in which it is not a dash."""
    found = (table.get(name, {}).get(column, DASH) for table in tables)
    return next((one for one in found if one != DASH), DASH)


def _first_cell(line: str) -> str:
    return line.split("|")[1].strip()


def _measures(line: str) -> list[str]:
    """Return the measures named in a line of the list of machines."""
    return line.removeprefix("* ").partition(":")[0].split(", ") if line.startswith("* ") else []
