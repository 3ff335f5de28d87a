"""The goals of this project beside what was measured, met or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from benchmarks.recall import interval
from benchmarks.results import Cell, Result
from benchmarks.tables import markdown

Known = Mapping[Cell, Mapping[str, Any]]
Row = tuple[str, str, str, bool]
"""What, the goal, what was measured, and whether that meets it."""

EVIDENCE = {
    "evidence": {
        "locomo": {1_000: 87, 2_000: 92, 4_000: 95, 8_000: 98},
        "beam-100k": {2_000: 71, 4_000: 78, 8_000: 85, 16_000: 89, 32_000: 94},
        "beam-500k": {8_000: 75},
    },
    "evidence-blind": {"locomo": {4_000: 52}, "beam-100k": {8_000: 80}, "beam-500k": {8_000: 35}},
}
REFERENCES = {("swe", 4_000): (97, 85), ("tau", 1_000): (98, 85), ("pi", 32_000): (98, 75)}
COST = {16_000: 0.13, 64_000: 0.28}
NAMES = {"evidence": "evidence recall, query-aware", "evidence-blind": "evidence recall, query-blind"}


def table(results: Iterable[Result]) -> str:
    """Every goal for which something was measured."""
    known = {one.cell: one.value for one in results if one.value is not None}
    rows = [row for goals in GOALS for row in goals(known)]
    head = ("", "goal", "measured", "met")
    return markdown(head, [(what, goal, found, "yes" if met else "**no**") for what, goal, found, met in rows])


def _evidence(known: Known) -> Iterator[Row]:
    for measure, sets in EVIDENCE.items():
        for data, goals in sets.items():
            for budget, goal in goals.items():
                value = known.get(Cell(measure, "ours", data, budget))
                if value is not None:
                    mean, low, high = (100 * one for one in interval(value["groups"]))
                    what = f"{NAMES[measure]}, {data} at {budget:,}"
                    yield what, f"≥ {goal} %", f"{mean:.1f} % [{low:.0f}, {high:.0f}]", mean >= goal


def _references(known: Known) -> Iterator[Row]:
    for (data, budget), goals in REFERENCES.items():
        value = known.get(Cell("references", "ours", data, budget))
        for goal, name, field in zip(goals, ("all", "long-range"), ("all", "long"), strict=True):
            if value is not None and (groups := [group for group in value[field] if group]):
                mean = 100 * interval(groups)[0]
                yield (
                    f"references in one view, {name}, {data} at {budget:,}",
                    f"≥ {goal} %",
                    f"{mean:.1f} %",
                    mean >= goal,
                )


def _requests(known: Known) -> Iterator[Row]:
    lived = [value for cell, value in known.items() if (cell.measure, cell.approach) == ("sessions", "ours-live")]
    requests = sum(value["requests"] for value in lived)
    for what, field in (("requests with a broken pair", "broken"), ("requests over the budget", "over")):
        count = sum(value[field] for value in lived)
        if requests:
            yield what, "0", f"{count:,} of {requests:,}", not count
    for budget, goal in COST.items():
        value = known.get(Cell("sessions", "ours-live", "pi", budget))
        if value is not None:
            cost = value["relative"]
            yield f"cost with a prompt cache, pi at {budget:,}", f"≤ {goal}", f"{cost:.3f}", cost <= goal


def _compiles(known: Known) -> Iterator[Row]:
    for cell, value in known.items():
        if (cell.measure, cell.approach) == ("compiles", "ours-live"):
            yield "compiles in a run of 50 tool steps", "≤ 1", str(value["run"]), value["run"] <= 1


def _added(known: Known) -> Iterator[Row]:
    wanted = {"ours, raw sent": ("raw history is sent", 1.10), "ours, a view of 8,000 tokens": ("a view is sent", 1.0)}
    rows = [row for cell, value in known.items() if cell.measure == "added" for row in value["rows"]]
    host = {row["messages"]: row["cpu_ms"] for row in rows if row["way"] == "the host alone"}
    for row in rows:
        if row["messages"] == 10_000 and row["way"] in wanted:
            what, most = wanted[row["way"]]
            times = row["cpu_ms"] / host[10_000]
            yield (
                f"CPU time of a request of 10,000 messages, {what}",
                f"≤ {most:.2f} × host",
                f"{times:.2f}",
                times <= most,
            )


def _store(known: Known) -> Iterator[Row]:
    for cell, value in known.items():
        for name, *figures in value["rows"] if cell.measure == "store" else ():
            median, ratio = float(figures[0]), float(figures[-1])
            yield f"a recorded request, {name}", "≤ 2 ms", f"{median:.2f} ms", median <= 2
            if "no index" in name:
                yield f"bytes on disk for a new byte, {name}", "≤ 1.5", f"{ratio:.2f}", ratio <= 1.5


GOALS: tuple[Callable[[Known], Iterator[Row]], ...] = (_evidence, _references, _requests, _compiles, _added, _store)
