"""Goals of this project compared with the measured figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from benchmarks.measures.lived import PAIRED, SCENARIOS, held_share, less_one_view, per_request
from benchmarks.recall import interval
from benchmarks.results import Cell, Result
from benchmarks.tables import markdown

Values = Mapping[Cell, Mapping[str, Any]]
Goals = Mapping[str, Mapping[int, float]]
"""Goals by set and budget."""
Row = tuple[str, str, str, bool]
"""Name of a figure, its goal, the measured value, and True if it meets the goal."""

EVIDENCE: Goals = {
    "locomo": {1_000: 87, 2_000: 92, 4_000: 95, 8_000: 98},
    "beam-100k": {2_000: 71, 4_000: 78, 8_000: 85, 16_000: 89, 32_000: 94},
    "beam-500k": {8_000: 75},
}
BLIND: Goals = {"locomo": {4_000: 52}, "beam-100k": {8_000: 80}, "beam-500k": {8_000: 35}}
COST = {16_000: 0.15, 32_000: 0.19, 64_000: 0.29}
HELD: Goals = {
    "locomo": {1_000: 80, 2_000: 87, 4_000: 93.5, 8_000: 96},
    "beam-100k": {4_000: 73, 16_000: 84},
    "tau": {1_000: 80, 2_000: 80},
    "pi": {16_000: 80, 32_000: 80},
}
"""Minimum evidence held in conversations run turn by turn, in per cent."""
LESS, LEAST = -3, -6
"""Minimum difference to a one-shot view at the same points, in points: of the mean, and of the interval's lower end."""
UNASKED: Goals = {"locomo": {4_000: 38}, "beam-100k": {16_000: 69}}
TOKENS: Goals = {"locomo": {4_000: 1_200}, "beam-100k": {16_000: 6_900}}
ECONOMY, COSTS_LESS = 0.7, 8
"""Maximum cost of the economy setting relative to the default, and points that it may hold less."""
BLAND = 2
"""Points that may be lost if the model's summaries say nothing."""
SMALL_REFERENCES, SMALL_COST = {"all": ("references", 80), "long-range": ("references_long", 33)}, 0.85
"""Goals for `tau` at 1,000 tokens, live: references in per cent, and cost."""


def table(results: Iterable[Result]) -> str:
    values = {result.cell: result.value for result in results if result.value is not None}
    rows = [row for goals in (_lived, _dial, _evidence, _requests) for row in goals(values)]
    return markdown(("", "goal", "measured", "met"), [(*row[:3], "yes" if row[3] else "**no**") for row in rows])


def _measured(
    values: Values, measure: str, approach: str, goals: Goals
) -> Iterator[tuple[str, Cell, Mapping[str, Any], float]]:
    """Yield set and budget in words, cell, value and goal of every figure that was measured."""
    for data, by_budget in goals.items():
        for budget, goal in by_budget.items():
            cell = Cell(measure, approach, data, budget)
            if cell in values:
                yield f"{data} at {budget:,}", cell, values[cell], goal


def _evidence(values: Values) -> Iterator[Row]:
    for measure, title, goals in (("evidence", "aware", EVIDENCE), ("evidence-blind", "blind", BLIND)):
        for what, _, value, goal in _measured(values, measure, "ours", goals):
            mean, low, high = (100 * share for share in interval(value["groups"]))
            name = f"evidence recall, query-{title}, {what}"
            yield name, f"≥ {goal} %", f"{mean:.1f} % [{low:.0f}, {high:.0f}]", mean >= goal


def _lived(values: Values) -> Iterator[Row]:
    for what, _, value, goal in _measured(values, "lived", PAIRED, HELD):
        yield _at_least(f"held when asked, live, {what}", held_share(value), goal)
        yield _parity(f"the same less one view, {what}", value)
    for scenario, (budget, title) in SCENARIOS.items():
        value = values.get(Cell("lived", PAIRED, f"locomo+{scenario}", budget))
        if value is not None:
            yield _parity(f"held less one view, locomo at {budget:,}, {title}", value)
            if value["one_shot_cost"]:
                cost, most = value["cost"] / value["whole"], value["one_shot_cost"] / value["whole"]
                yield f"cost where {title}", f"≤ {most:.2f}, one view a request", f"{cost:.2f}", cost <= most
    for what, _, value, goal in _measured(values, "lived", PAIRED, UNASKED):
        yield _at_least(f"held when nothing asks, live, {what}", held_share(value, "unasked"), goal)


def _dial(values: Values) -> Iterator[Row]:
    """Yield the goals for cost and evidence held at the settings of the live agent."""
    for what, cell, value, goal in _measured(values, "lived", PAIRED, TOKENS):
        tokens, held = per_request(value), held_share(value)
        yield f"tokens a request, live, {what}", f"≤ {goal:,}", f"{tokens:,.0f}", tokens <= goal
        economy, bland = (values.get(replace(cell, approach=f"ours-live-{name}")) for name in ("economy", "bland"))
        if economy is not None:
            share, less = per_request(economy) / tokens, held - held_share(economy)
            yield f"economy, {what}: tokens", f"≤ {ECONOMY:.0%} of the default", f"{share:.0%}", share <= ECONOMY
            yield f"economy, {what}: held less", f"≤ {COSTS_LESS} points", f"{less:.1f}", less <= COSTS_LESS
        if bland is not None:
            less = held - held_share(bland)
            yield f"bland summaries, {what}: held less", f"≤ {BLAND} points", f"{less:.1f}", less <= BLAND


def _at_least(what: str, share: float, goal: float) -> Row:
    return what, f"≥ {goal} %", f"{share:.1f} %", share >= goal


def _parity(what: str, value: Mapping[str, Any]) -> Row:
    mean, low, high = (100 * points for points in interval(less_one_view(value, value)))
    met = mean >= LESS and low >= LEAST
    return what, f"≥ {LESS}, interval from {LEAST}", f"{mean:+.1f} [{low:+.0f}, {high:+.0f}]", met


def _requests(values: Values) -> Iterator[Row]:
    lived = [value for cell, value in values.items() if cell.measure == "lived" and cell.approach.startswith("ours")]
    lived += [value for cell, value in values.items() if (cell.measure, cell.approach) == ("sessions", "ours-live")]
    requests = sum(value["requests"] for value in lived)
    for what, field in (("requests with a broken pair", "broken"), ("requests over the budget", "over")):
        count = sum(value[field] for value in lived)
        if requests:
            yield what, "0", f"{count:,} of {requests:,}", not count
    for budget, goal in COST.items():
        session, life = (values.get(Cell(measure, PAIRED, "pi", budget)) for measure in ("sessions", "lived"))
        if session or life:
            cost = session["relative"] if session else life["cost"] / life["whole"] if life else 0.0
            yield f"cost with a prompt cache, pi at {budget:,}", f"≤ {goal}", f"{cost:.3f}", cost <= goal
    value = values.get(Cell("sessions", "ours-live", "tau", 1_000))
    if value is not None:
        for name, (field, goal) in SMALL_REFERENCES.items():
            share = 100 * interval([group for group in value[field] if group])[0]
            yield _at_least(f"references, live, {name}, tau at 1,000", share, goal)
        cost = value["relative"]
        yield "cost with a prompt cache, tau at 1,000", f"≤ {SMALL_COST}", f"{cost:.3f}", cost <= SMALL_COST
