"""Table and plot of the dial `recall=`: evidence held and tokens spent at each budget and setting.

Every figure comes from the measure `lived` (`benchmarks.measures.lived`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.measures.lived import NAME, TITLES_OF_SETS, held_share, per_request
from benchmarks.results import Cell, Result
from benchmarks.tables import markdown
from context_compiler.cli.drawing import Line, Panel

SETTINGS = {
    "ours-live-off": ("off", "0"),
    "ours-live-economy": ("economy", "0.15"),
    "ours-live": ("default", "0.5"),
    "ours-live-parity": ("parity", "1.0"),
}
"""Approaches, each with the name of its setting and its `recall`."""
COLUMNS = (("locomo", 4_000), ("beam-100k", 16_000), ("tau", 2_000), ("pi", 16_000))
Known = Mapping[Cell, Mapping[str, Any]]
PANELS = {"chats": ("locomo", "beam-100k"), "tool sessions": ("tau", "pi")}


def table(results: Iterable[Result]) -> str:
    """Build the table of evidence held and cost per request at each setting, one column per set."""
    known = _known(results)
    there = [column for column in COLUMNS if any(Cell(NAME, name, *column) in known for name in SETTINGS)]
    rows: list[Sequence[str]] = []
    for name, (setting, recall) in SETTINGS.items():
        found = [known.get(Cell(NAME, name, *column)) for column in there]
        if any(value is not None for value in found):
            bold = f"**{setting}**" if setting == "default" else setting
            cells = ("–" if one is None else f"{held_share(one):.0f} % · {per_request(one):,.0f}" for one in found)
            rows.append((bold, f"`{recall}`", *cells))
    whole = [known.get(Cell(NAME, "everything", *column)) for column in there]
    if any(value is not None for value in whole):
        cells = ("–" if one is None else f"100 % · {per_request(one):,.0f}" for one in whole)
        rows.append(("everything, no budget", "", *cells))
    head = ("", "`recall=`", *(f"{TITLES_OF_SETS[name]}, {budget:,}" for name, budget in there))
    return markdown(head, rows)


def panels(results: Iterable[Result]) -> list[Panel]:
    """Build panels of evidence held against cost per request: one line per budget, one point per setting."""
    known = _known(results)
    return [
        Panel(
            title=title,
            x="input tokens a request, cached ones at a tenth",
            y="held when asked, %",
            lines=lines,
            log_x=True,
            ticks=(250, 500, 1_000, 2_000, 4_000, 8_000),
        )
        for title, sets in PANELS.items()
        if (lines := [_line(known, *column) for column in _columns(known, sets)])
    ]


def _columns(known: Known, sets: Sequence[str]) -> list[tuple[str, int]]:
    found = {(cell.data, cell.budget) for cell in known if cell.approach == "ours-live" and cell.data in sets}
    return sorted(found, key=lambda one: (sets.index(one[0]), one[1]))


def _line(known: Known, data: str, budget: int) -> Line:
    values = [known[cell] for name in SETTINGS if (cell := Cell(NAME, name, data, budget)) in known]
    return Line(
        name=f"{TITLES_OF_SETS[data]}, {budget:,}".replace("`", ""),
        x=[per_request(value) for value in values],
        y=[held_share(value) for value in values],
    )


def _known(results: Iterable[Result]) -> Known:
    return {one.cell: one.value for one in results if one.cell.measure == NAME and one.value is not None}
