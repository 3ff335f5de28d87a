"""Reference recall of one view before every real tool call: are the identifiers that it needs in their context?"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import references
from benchmarks.approaches import Approach
from benchmarks.data import Data
from benchmarks.measures import Measure
from benchmarks.results import Cell, Result
from benchmarks.tables import by_set, markdown, percent, reasons, rows_of

NAME = "references"
BUDGETS = {"pi": 32_000, "swe": 4_000, "tau": 1_000}
"""Budgets of the goals; other sets use their smallest budget."""


def cells(data: Data, approaches: Sequence[str]) -> list[Cell]:
    lived = data.lived.items()
    return [
        Cell(NAME, approach, chosen, BUDGETS.get(chosen, budgets[0]))
        for chosen, budgets in lived
        for approach in approaches
    ]


def run(cell: Cell, approach: Approach, data: Data) -> Mapping[str, Any] | str:
    """Measure every call of a set that refers to something earlier."""
    if approach.view is None:
        return approach.dashes.get("view", "there is no evidence without a question")
    sessions = data.sessions(cell.data)
    score = asyncio.run(references.measured(sessions, cell.budget, approach.view, data.every))
    return {"all": score.all, "long": score.long, "over": score.over}


def tables(results: Sequence[Result]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, of_set in by_set(results).items():
        head = (f"{of_set[0].cell.budget:,} tokens", "all, %", "long-range, %", "calls", "over the budget")
        found[f"{NAME}-{name}"] = markdown(head, rows_of(of_set, len(head), _row)) + reasons(of_set)
    return found


def _row(value: Mapping[str, Any]) -> list[str]:
    calls = sum(map(len, value["all"]))
    return [percent(value["all"]), percent(value["long"]), f"{calls:,}", f"{value['over']:,}"]


MEASURES = (
    Measure(
        name=NAME,
        title="Is what a tool call needs in one view?",
        about=(
            "For every real tool call: the share of the ids and paths in its arguments that occurred before and that "
            "one view of the history before the call still holds, with the words around them; long-range are those "
            "last mentioned further back than the budget. More is better."
        ),
        cells=cells,
        run=run,
        tables=tables,
    ),
)
