"""What was measured, written down: tables, JSON and plots in a folder, and the tables of a page of the docs.

A page says where a table belongs with a line `<!-- table: NAME -->`; everything from there to `<!-- end -->` is
replaced. Plots lie beside the page.
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
from context_compiler.cli.drawing import draw, libraries
from context_compiler.errors import SettingsError

PLACE = re.compile(r"<!-- table: ([\w.-]+) -->\n.*?<!-- end -->", re.DOTALL)
MADE_UP = "\n\nMeasured on a small generated history, because no data are at hand: this shows only that it works."


def written(measure: Measure, results: Sequence[Result], folder: Path) -> dict[str, str]:
    """Write the tables, the JSON and the plot of a measure into a folder; its tables by name."""
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
    """What was measured where, with which versions."""
    found: dict[str, dict[str, None]] = {}
    for one in results:
        found.setdefault(one.ran, {})[one.cell.measure] = None
    return "\n".join(f"* {', '.join(measures)}: {where}" for where, measures in found.items() if where)


def plotted(measure: Measure, results: Sequence[Result], path: Path) -> bool:
    """Draw a measure, where there is something to draw and something to draw with."""
    panels = measure.panels(results) if measure.panels is not None else []
    if not panels or not can_draw():
        return False
    draw(panels, path)
    return True


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    try:
        libraries()
    except SettingsError:
        return False
    return True


def filled(text: str, tables: Mapping[str, str]) -> str:
    """A page with its tables; what was not measured stays as it was."""

    def table(found: re.Match[str]) -> str:
        name = found[1]
        return f"<!-- table: {name} -->\n{tables[name]}\n<!-- end -->" if name in tables else found[0]

    return PLACE.sub(table, text)
