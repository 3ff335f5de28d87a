"""Conversations run turn by turn: is what a question needs in the request that answers it? See `benchmarks.lived`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from benchmarks.approaches import Approach
from benchmarks.data import Data
from benchmarks.lived import a_peer, conversations, ours
from benchmarks.measures import Measure
from benchmarks.recall import interval
from benchmarks.results import Cell, Result
from benchmarks.tables import by_set, line_name, lines_of, markdown, named, part, percent, reasons
from context_compiler.cli.drawing import Line, Panel
from context_compiler.cli.text import plural

NAME = "lived"
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "ours-live": ("none", {}),
    "ours-live-bland": ("bland", {}),
    "ours-live-good": ("good", {}),
    "ours-live-economy": ("none", {"recall": 0.15}),
    "ours-live-parity": ("none", {"recall": 1.0}),
    "ours-live-off": ("none", {"recall": 0}),
}
"""Our approaches, each with its writer of summaries and other arguments of `ContextCompiler`."""
PEERS = (
    "everything",
    "tail",
    "harness-window",
    "harness-window-quarter",
    "harness-tiered",
    "harness-summary",
    "summarization-window",
    "summarization-summary",
    "langchain-trim",
    "llamaindex-memory",
)
PAIRED = "ours-live"
"""Approach for which one-shot views are made; the points are the same for all."""
SCENARIOS = {"tools1": 2_000, "tools5": 2_000, "toolask": 2_000, "output": 2_000, "everyasks": 4_000}
"""Other scenarios for LoCoMo, and the budgets at which they run."""
TITLES = {
    "tools1": "a tool exchange of no use in every turn",
    "tools5": "a tool exchange of no use in every fifth turn",
    "toolask": "a tool is called in every turn that asks",
    "output": "structured output (`output_type=`)",
    "everyasks": "every prompt asks",
}
TICKS = (125, 250, 500, 1_000, 2_000, 4_000, 8_000, 16_000)
TITLES_OF_SETS = {"locomo": "LoCoMo", "beam-100k": "BEAM-100K", "tau": "τ-bench", "pi": "`pi`"}
SUMS = ("requests", "over", "broken", "cost", "whole", "pointed", "one_shot_cost", "sent", "compiles", "asked")


def cells(data: Data, approaches: Sequence[str]) -> list[Cell]:
    names = [name for name in approaches if name in OURS or name in PEERS]
    turned = data.turn_by_turn
    found = [Cell(NAME, name, chosen, budget) for chosen in turned for name in names for budget in turned[chosen]]
    if PAIRED in names and "locomo" in turned:
        found += [Cell(NAME, PAIRED, f"locomo+{scenario}", budget) for scenario, budget in SCENARIOS.items()]
    return found


def run(cell: Cell, approach: Approach, data: Data) -> Mapping[str, Any] | str:
    """Run every conversation of a set."""
    name, _, scenario = cell.data.partition("+")
    model, given = OURS.get(cell.approach, ("", {}))
    if model == "good" and not name.startswith("locomo"):
        return "no model summaries are recorded for these data"
    value: dict[str, Any] = {"held": [], "one_shot": [], "unasked": [], "worst": 0.0, **dict.fromkeys(SUMS, 0)}
    for conversation in conversations(data, name, cell.budget):
        if model:
            paired = cell.approach == PAIRED
            living = ours(
                conversation, cell.budget, data, scenario=scenario or "plain", model=model, paired=paired, **given
            )
            lived = asyncio.run(living)
        else:
            lived = asyncio.run(a_peer(conversation, cell.budget, data, approach))
        if isinstance(lived, str):
            return lived
        for field in ("held", "one_shot", "unasked"):
            value[field].append(getattr(lived, field))
        value["worst"] = max(value["worst"], lived.worst)
        for field in SUMS:
            value[field] += getattr(lived, field)
    return value


def less_one_view(value: Mapping[str, Any], paired: Mapping[str, Any]) -> list[list[float]]:
    """Return the evidence held minus that of a one-shot view at the same points, by conversation."""
    pairs = zip(value["held"], paired["one_shot"], strict=True)
    return [[here - there for here, there in zip(*pair, strict=True)] for pair in pairs]


def per_request(value: Mapping[str, Any]) -> float:
    """Return the cost of a request with a prompt cache, in plain input tokens."""
    return value["cost"] / value["requests"]


def held_share(value: Mapping[str, Any]) -> float:
    """Return the evidence held when asked, in per cent."""
    return _mean(value)


def tables(results: Sequence[Result]) -> dict[str, str]:
    """Build a table of evidence held per set, a table of all figures per set and budget, and one of scenarios."""
    found: dict[str, str] = {}
    plain = [one for one in results if "+" not in one.cell.data]
    for name, of_set in by_set(plain).items():
        found[f"{NAME}-{name}"] = _held(of_set)
        for budget in sorted({one.cell.budget for one in of_set}):
            rows = [one for one in of_set if one.cell.budget == budget]
            found[f"{NAME}-{name}-{budget}"] = markdown(HEAD, list(_rows(rows))) + reasons(rows)
    found[f"{NAME}-sample"] = _sample(plain)
    scenarios = [one for one in results if "+" in one.cell.data and one.value is not None]
    if scenarios:
        found[f"{NAME}-scenarios"] = markdown(SCENARIO_HEAD, list(_scenario_rows(scenarios)))
    return found


def _held(results: Sequence[Result]) -> str:
    budgets = sorted({one.cell.budget for one in results})
    known = {(one.cell.approach, one.cell.budget): one.value for one in results if one.value is not None}
    rows: list[list[str]] = []
    for field, names in (("one_shot", (PAIRED,)), ("held", dict.fromkeys(one.cell.approach for one in results))):
        for name in names:
            values = [known.get((name, budget)) for budget in budgets]
            cells = [percent(value[field]) if value is not None else "–" for value in values]
            rows.append(["one view at the same points" if field == "one_shot" else named(name), *cells])
    return markdown(["", *(f"{budget:,} tokens" for budget in budgets)], rows) + reasons(results)


def _sample(results: Sequence[Result]) -> str:
    """List the part of every set that was run, from the rows of this package."""
    found: dict[str, list[str]] = {}
    for one in results:
        if one.cell.approach == PAIRED and one.value is not None:
            groups, name = one.value["held"], TITLES_OF_SETS.get(one.cell.data, one.cell.data)
            part = f"{name}, {plural(len(groups), 'conversation')} with {plural(sum(map(len, groups)), 'question')}"
            found.setdefault(part, []).append(f"{one.cell.budget:,}")
    lines = [f"* {part}, within {' and '.join(budgets)} tokens" for part, budgets in found.items()]
    return "\n".join(lines)


HEAD = (
    "",
    "held, %",
    "less one view",
    "not asked, %",
    "cost",
    "tokens a request",
    "cost, breakpoints",
    "over budget",
    "broken pairs",
    "compiles",
    "model calls",
)


def _rows(results: Sequence[Result]) -> Iterator[list[str]]:
    paired = next((one.value for one in results if one.cell.approach == PAIRED), None)
    for one in results:
        name, value = named(one.cell.approach), one.value
        if value is None:
            yield [name, *("–" for _ in HEAD[1:])]
            continue
        less = less_one_view(value, paired) if paired is not None else []
        yield [
            name,
            percent(value["held"]),
            percent(less, "+") if less else "–",
            percent(value["unasked"]),
            f"{value['cost'] / value['whole']:.2f}",
            f"{per_request(value):,.0f}",
            f"{value['pointed'] / value['whole']:.2f}",
            part(value["over"], value["requests"]),
            part(value["broken"], value["requests"]),
            f"{value['compiles']:,}" if one.cell.approach in OURS else "–",
            f"{value['asked']:,}" if one.cell.approach in OURS else "–",
        ]


SCENARIO_HEAD = ("", "budget", "held, %", "one view, %", "less one view", "not asked, %", "cost", "over budget")


def _scenario_rows(results: Sequence[Result]) -> Iterator[list[str]]:
    for one in results:
        assert one.value is not None
        value, scenario = one.value, one.cell.data.partition("+")[2]
        cost = f"{value['cost'] / value['whole']:.2f}"
        if value["one_shot_cost"]:
            cost += f"; one view a request {value['one_shot_cost'] / value['whole']:.2f}"
        yield [
            TITLES[scenario],
            f"{one.cell.budget:,}",
            percent(value["held"]),
            f"{100 * fmean(score for group in value['one_shot'] for score in group):.1f}",
            percent(less_one_view(value, value), "+"),
            percent(value["unasked"]),
            cost,
            part(value["over"], value["requests"]),
        ]


def panels(results: Sequence[Result]) -> list[Panel]:
    """Build panels of evidence held against the budget, and against the cost of a request, one point per budget."""
    there = [one for one in results if one.value is not None and "+" not in one.cell.data]
    against_budget = lines_of(there, _mean, y="held when asked, %", leave_out={"everything"})
    return [_with_one_view(panel, there) for panel in against_budget[:1]] + [
        _front(name, there) for name in dict.fromkeys(panel.title for panel in against_budget[:2])
    ]


def _mean(value: Mapping[str, Any], field: str = "held") -> float:
    return 100 * interval(value[field])[0]


def _with_one_view(panel: Panel, results: Sequence[Result]) -> Panel:
    of_set = [one for one in results if (one.cell.approach, one.cell.data) == (PAIRED, panel.title)]
    points = sorted((one.cell.budget, _mean(one.value, "one_shot")) for one in of_set if one.value is not None)
    line = Line(name="one view at the same points", x=[x for x, _ in points], y=[y for _, y in points], dashed=True)
    name = TITLES_OF_SETS.get(panel.title, panel.title).replace("`", "")
    return Panel(title=name, x=panel.x, y=panel.y, lines=[*panel.lines, line], log_x=True, ticks=panel.ticks)


def _front(name: str, results: Sequence[Result]) -> Panel:
    lines: list[Line] = []
    for approach in dict.fromkeys(one.cell.approach for one in results if one.cell.data == name):
        of_it = [one for one in results if (one.cell.approach, one.cell.data) == (approach, name)]
        points = sorted((one.cell.budget, per_request(one.value), _mean(one.value)) for one in of_it if one.value)
        if approach != "everything":
            xs, ys = [x for _, x, _ in points], [y for _, _, y in points]
            strong = approach.startswith("ours")
            lines.append(Line(name=line_name(approach), x=xs, y=ys, strong=strong))
    return Panel(
        title=TITLES_OF_SETS.get(name, name).replace("`", ""),
        x="tokens a request, cached ones at a tenth",
        y="held when asked, %",
        lines=lines,
        log_x=True,
        ticks=[tick for tick in TICKS if min(x for line in lines for x in line.x) <= 2 * tick],
    )


MEASURES = (
    Measure(
        name=NAME,
        title="Conversations, turn by turn",
        about=(
            "Every message is a turn of a running agent, every question a turn of its own at a random boundary after "
            "its evidence. `held`: the evidence in the last request of the question's turn, in per cent, with its 95 % "
            "interval; `less one view`: the difference to `compile_view` at the same point; `not asked`: the evidence "
            "in the last request of the turn before (more is better). `cost`: cost with a prompt cache, relative to "
            "sending everything; `cost, breakpoints`: the same with a cache that is written at breakpoints only; "
            "`tokens a request`: input tokens, cached ones at a tenth and new ones at 1.25; `compiles`: advances of "
            "the view; `model calls`: summaries requested (less is better). A budget covers all messages of a request."
        ),
        cells=cells,
        run=run,
        tables=tables,
        panels=panels,
    ),
)
