"""Conversations run turn by turn: is what a question needs in the request that answers it? See `benchmarks.lived`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from benchmarks.approaches import Approach
from benchmarks.data import Data
from benchmarks.lived import a_peer, conversations, ours
from benchmarks.lives import Lived, total
from benchmarks.measures import Measure, grid
from benchmarks.peers.ours import LIVE
from benchmarks.recall import interval
from benchmarks.results import Cell, Result
from benchmarks.tables import DASH, by_set, columns_of, line_name, lines_of, markdown, part, percent, ranked
from context_compiler.cli.drawing import Line, Panel
from context_compiler.cli.text import plural

NAME = "lived"
PEERS = (
    "everything tail harness-window harness-window-quarter harness-tiered harness-summary summarization-window "
    "summarization-summary langchain-trim llamaindex-memory"
).split()
PAIRED = "ours-live"
"""Approach for which one-shot views are made; the points are the same for all."""
ONE_VIEW = "one view at the same points"
SCENARIOS = {
    "tools1": (2_000, "a tool exchange of no use in every turn"),
    "tools5": (2_000, "a tool exchange of no use in every fifth turn"),
    "toolask": (2_000, "a tool is called in every turn that asks"),
    "output": (2_000, "structured output (`output_type=`)"),
    "everyasks": (4_000, "every prompt asks"),
}
"""Other scenarios for LoCoMo, the budgets at which they run, and their titles."""
TICKS = (125, 250, 500, 1_000, 2_000, 4_000, 8_000, 16_000)
TITLES_OF_SETS = {"locomo": "LoCoMo", "beam-100k": "BEAM-100K", "tau": "τ-bench", "pi": "`pi`"}


def cells(data: Data, approaches: Sequence[str]) -> list[Cell]:
    if data.models:  # they write the summaries
        own = grid(NAME, data.turn_by_turn, [name for name in approaches if name == PAIRED])
        return [replace(cell, data=f"{cell.data}+{model}") for cell in own for model in data.models]
    cells = grid(NAME, data.turn_by_turn, [name for name in approaches if name in LIVE or name in PEERS])
    if PAIRED in approaches and "locomo" in data.turn_by_turn:
        cells += [Cell(NAME, PAIRED, f"locomo+{scenario}", budget) for scenario, (budget, _) in SCENARIOS.items()]
    return cells


def run(cell: Cell, approach: Approach, data: Data) -> Mapping[str, Any] | str:
    name, _, scenario = cell.data.partition("+")
    model, own, *_ = LIVE.get(cell.approach, ("", {}))
    if model == "good" and not name.startswith("locomo"):
        return "no model summaries are recorded for these data"
    settings: dict[str, Any] = {
        "scenario": scenario if scenario in SCENARIOS else "plain",
        "model": scenario if scenario in data.models else model,
        "paired": cell.approach == PAIRED,
        **own,
    }
    lives: list[Lived] = []
    for conversation in conversations(data, name, cell.budget):
        chosen = conversation, cell.budget, data
        lived = asyncio.run(ours(*chosen, **settings) if model else a_peer(*chosen, approach))
        if isinstance(lived, str):
            return lived
        lives.append(lived)
    return total(lives)


def less_one_view(value: Mapping[str, Any], paired: Mapping[str, Any]) -> list[list[float]]:
    """Return the evidence held minus that of a one-shot view at the same points, by conversation."""
    pairs = zip(value["held"], paired["one_shot"], strict=True)
    return [[here - there for here, there in zip(*pair, strict=True)] for pair in pairs]


def per_request(value: Mapping[str, Any]) -> float:
    """Return the cost of a request with a prompt cache, in plain input tokens."""
    return value["cost"] / value["requests"]


def tables(results: Sequence[Result]) -> dict[str, str]:
    """Build a table of evidence held per set, a table of all figures per set and budget, and one of scenarios."""
    plain = [result for result in results if "+" not in result.cell.data]
    tables = {f"{NAME}-sample": _sample(plain)}
    for name, of_set in by_set(plain).items():
        tables[f"{NAME}-{name}"] = ranked(
            of_set,
            lambda value: percent(value["held"]),
            above=(ONE_VIEW, PAIRED, lambda value: percent(value["one_shot"])),
        )
        for budget in sorted({result.cell.budget for result in of_set}):
            rows = [result for result in of_set if result.cell.budget == budget]
            tables[f"{NAME}-{name}-{budget}"] = columns_of(_compared(rows), COLUMNS)
    if scenarios := [result for result in results if "+" in result.cell.data and result.value is not None]:
        rows = [[figure(result) for figure in SCENARIO_COLUMNS.values()] for result in scenarios]
        tables[f"{NAME}-scenarios"] = markdown([*SCENARIO_COLUMNS], rows)
    return tables


def _sample(results: Sequence[Result]) -> str:
    """List the part of every set that was run, from the rows of this package."""
    budgets: dict[str, list[str]] = {}
    for result in results:
        if result.cell.approach == PAIRED and result.value is not None:
            groups, name = result.value["held"], TITLES_OF_SETS.get(result.cell.data, result.cell.data)
            part = f"{name}, {plural(len(groups), 'conversation')} with {plural(sum(map(len, groups)), 'question')}"
            budgets.setdefault(part, []).append(f"{result.cell.budget:,}")
    return "\n".join(f"* {part}, within {' and '.join(own)} tokens" for part, own in budgets.items())


def _compared(results: Sequence[Result]) -> list[Result]:
    """Add the difference to one view to the results of a set and budget, and whether they are ours."""
    paired = next((result.value for result in results if result.cell.approach == PAIRED), None)
    compared: list[Result] = []
    for result in results:
        value = result.value
        if value is not None:
            less = less_one_view(value, paired) if paired is not None else []
            value = {**value, "less": less, "ours": result.cell.approach in LIVE}
        compared.append(replace(result, value=value))
    return compared


COLUMNS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "held, %": lambda value: percent(value["held"]),
    "less one view": lambda value: percent(value["less"], "+"),
    "not asked, %": lambda value: percent(value["unasked"]),
    "cost": lambda value: f"{value['cost'] / value['whole']:.2f}",
    "tokens a request": lambda value: f"{per_request(value):,.0f}",
    "cost, breakpoints": lambda value: f"{value['pointed'] / value['whole']:.2f}",
    "over budget": lambda value: part(value["over"], value["requests"]),
    "broken pairs": lambda value: part(value["broken"], value["requests"]),
    "compiles": lambda value: f"{value['compiles']:,}" if value["ours"] else DASH,
    "model calls": lambda value: f"{value['asked']:,}" if value["ours"] else DASH,
}


def _cost(value: Mapping[str, Any]) -> str:
    cost = COLUMNS["cost"](value)
    once = value["one_shot_cost"]
    return f"{cost}; one view a request {once / value['whole']:.2f}" if once else cost


SCENARIO_COLUMNS: dict[str, Callable[[Any], str]] = {
    "": lambda result: SCENARIOS.get(name := result.cell.data.partition("+")[2], ("", f"summaries by `{name}`"))[1],
    "budget": lambda result: f"{result.cell.budget:,}",
    "held, %": lambda result: percent(result.value["held"]),
    "one view, %": lambda result: f"{100 * fmean(sum(result.value['one_shot'], [])):.1f}",
    "less one view": lambda result: percent(less_one_view(result.value, result.value), "+"),
    "not asked, %": lambda result: percent(result.value["unasked"]),
    "cost": lambda result: _cost(result.value),
    "over budget": lambda result: part(result.value["over"], result.value["requests"]),
    "fallbacks": lambda result: f"{result.value['fallbacks']:,}",
}


def panels(results: Sequence[Result]) -> list[Panel]:
    """Build panels of evidence held against the budget, and against the cost of a request, one point per budget."""
    plain = [result for result in results if result.value is not None and "+" not in result.cell.data]
    against_budget = lines_of(plain, held_share, y="held when asked, %", leave_out={"everything"})
    return [_with_one_view(panel, plain) for panel in against_budget[:1]] + [
        _front(name, plain) for name in dict.fromkeys(panel.title for panel in against_budget[:2])
    ]


def held_share(value: Mapping[str, Any], field: str = "held") -> float:
    """Return the evidence held when asked, or another share, in per cent."""
    return 100 * interval(value[field])[0]


def _points(results: Sequence[Result], approach: str, data: str) -> list[tuple[int, Mapping[str, Any]]]:
    """Return the budgets and values of an approach on a set, by budget."""
    own = [result for result in results if (result.cell.approach, result.cell.data) == (approach, data)]
    return sorted(((result.cell.budget, result.value) for result in own if result.value), key=lambda point: point[0])


def _with_one_view(panel: Panel, results: Sequence[Result]) -> Panel:
    points = _points(results, PAIRED, panel.title)
    xs, ys = [budget for budget, _ in points], [held_share(value, "one_shot") for _, value in points]
    line = Line(name=ONE_VIEW, x=xs, y=ys, dashed=True)
    name = TITLES_OF_SETS.get(panel.title, panel.title).replace("`", "")
    return Panel(title=name, x=panel.x, y=panel.y, lines=[*panel.lines, line], log_x=True, ticks=panel.ticks)


def front(name: str, values: Sequence[Mapping[str, Any]], *, strong: bool = False) -> Line:
    """Build a line of the evidence held against the cost of a request."""
    return Line(name=name, x=[*map(per_request, values)], y=[*map(held_share, values)], strong=strong)


def _front(name: str, results: Sequence[Result]) -> Panel:
    own = [result for result in results if result.cell.data == name and result.cell.approach != "everything"]
    lines: list[Line] = []
    for approach in dict.fromkeys(result.cell.approach for result in own):
        values = [value for _, value in _points(own, approach, name)]
        lines.append(front(line_name(approach), values, strong=approach.startswith("ours")))
    return Panel(
        title=TITLES_OF_SETS.get(name, name).replace("`", ""),
        x="tokens a request, cached ones at a tenth",
        y="held when asked, %",
        lines=lines,
        log_x=True,
        ticks=[tick for tick in TICKS if min(x for line in lines for x in line.x) <= 2 * tick],
    )


SETTINGS = {
    "ours-live-off": ("off", "`0`"),
    "ours-live-economy": ("economy", "`0.15`"),
    "ours-live": ("**default**", "`1.0`"),
    "everything": ("everything, no budget", ""),
}
"""Approaches, each with the name of its setting and its `recall`."""
DIAL_COLUMNS = (("locomo", 4_000), ("beam-100k", 16_000), ("tau", 2_000), ("pi", 16_000))
DIAL_PANELS = {"chats": ("locomo", "beam-100k"), "tool sessions": ("tau", "pi")}


def dial_table(results: Iterable[Result]) -> str:
    """Build the table of evidence held and cost per request at each setting, one column per set."""
    values = _dial_values(results)
    columns = [column for column in DIAL_COLUMNS if any(Cell(NAME, name, *column) in values for name in SETTINGS)]
    rows: list[Sequence[str]] = []
    for name, head in SETTINGS.items():
        cells = [values.get(Cell(NAME, name, *column)) for column in columns]
        if any(cells):
            rows.append((*head, *(f"{held_share(v):.0f} % · {per_request(v):,.0f}" if v else DASH for v in cells)))
    return markdown(("", "`recall=`", *(f"{TITLES_OF_SETS[name]}, {budget:,}" for name, budget in columns)), rows)


def dial_panels(results: Iterable[Result]) -> list[Panel]:
    """Build panels of evidence held against cost per request: one line per budget, one point per setting."""
    values = _dial_values(results)
    columns = {(cell.data, cell.budget) for cell in values if cell.approach == "ours-live"}

    def panel(title: str, sets: Sequence[str]) -> Panel:
        own = sorted((sets.index(data), budget) for data, budget in columns if data in sets)
        return Panel(
            title=title,
            x="input tokens a request, cached ones at a tenth",
            y="held when asked, %",
            lines=[_dial_line(values, sets[number], budget) for number, budget in own],
            log_x=True,
            ticks=(250, 500, 1_000, 2_000, 4_000, 8_000),
        )

    return [panel(title, sets) for title, sets in DIAL_PANELS.items() if any(data in sets for data, _ in columns)]


def _dial_line(values: Mapping[Cell, Mapping[str, Any]], data: str, budget: int) -> Line:
    points = [values[cell] for name in [*SETTINGS][:-1] if (cell := Cell(NAME, name, data, budget)) in values]
    name = f"{TITLES_OF_SETS[data]}, {budget:,}".replace("`", "")
    return front(name, points)


def _dial_values(results: Iterable[Result]) -> Mapping[Cell, Mapping[str, Any]]:
    return {result.cell: result.value for result in results if result.cell.measure == NAME and result.value is not None}


MEASURES = (
    Measure(name=NAME, title="Conversations, turn by turn", cells=cells, run=run, tables=tables, panels=panels),
)
