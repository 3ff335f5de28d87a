"""Goals of this project compared with the measured figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from benchmarks.measures.lived import PAIRED, SCENARIOS, TITLES, less_one_view, per_request
from benchmarks.recall import interval
from benchmarks.results import Cell, Result
from benchmarks.tables import markdown

Known = Mapping[Cell, Mapping[str, Any]]
Row = tuple[str, str, str, bool]
"""Name of a figure, its goal, the measured value, and True if it meets the goal."""

EVIDENCE = {
    "evidence": {
        "locomo": {1_000: 87, 2_000: 92, 4_000: 95, 8_000: 98},
        "beam-100k": {2_000: 71, 4_000: 78, 8_000: 85, 16_000: 89, 32_000: 94},
        "beam-500k": {8_000: 75},
    },
    "evidence-blind": {"locomo": {4_000: 52}, "beam-100k": {8_000: 80}, "beam-500k": {8_000: 35}},
}
REFERENCES = {("swe", 4_000): (97, 85), ("tau", 1_000): (98, 85), ("pi", 32_000): (98, 75)}
COST = {16_000: 0.15, 32_000: 0.19, 64_000: 0.29}
HELD = {
    "locomo": {1_000: 80, 2_000: 87, 4_000: 93.5, 8_000: 96},
    "beam-100k": {4_000: 73, 16_000: 84},
    "tau": {1_000: 80, 2_000: 80},
    "pi": {16_000: 80, 32_000: 80},
}
"""Minimum evidence held in conversations run turn by turn, in per cent."""
LESS, LEAST = -3, -6
"""Minimum difference to a one-shot view at the same points, in points: of the mean, and of the interval's lower end."""
UNASKED = {("locomo", 4_000): 38, ("beam-100k", 16_000): 69}
TOKENS = {("locomo", 4_000): 1_200, ("beam-100k", 16_000): 6_900}
ECONOMY, COSTS_LESS = 0.7, 8
"""Maximum cost of the economy setting relative to the default, and points that it may hold less."""
BLAND = 2
"""Points that may be lost if the model's summaries say nothing."""
SMALL_REFERENCES, SMALL_COST = (80, 33), 0.85
"""Goals for `tau` at 1,000 tokens, live: references (all, long-range) in per cent, and cost."""
NAMES = {"evidence": "evidence recall, query-aware", "evidence-blind": "evidence recall, query-blind"}


def table(results: Iterable[Result]) -> str:
    """Build the table of every goal with a measured figure."""
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


def _lived(known: Known) -> Iterator[Row]:
    for data, goals in HELD.items():
        for budget, goal in goals.items():
            value = known.get(Cell("lived", PAIRED, data, budget))
            if value is not None:
                what = f"{data} at {budget:,}"
                yield _at_least(f"held when asked, live, {what}", 100 * interval(value["held"])[0], goal)
                yield _parity(f"the same less one view, {what}", value)
    for scenario, budget in SCENARIOS.items():
        value = known.get(Cell("lived", PAIRED, f"locomo+{scenario}", budget))
        if value is not None:
            yield _parity(f"held less one view, locomo at {budget:,}, {TITLES[scenario]}", value)
            if value["one_shot_cost"]:
                cost, most = value["cost"] / value["whole"], value["one_shot_cost"] / value["whole"]
                yield f"cost where {TITLES[scenario]}", f"≤ {most:.2f}, one view a request", f"{cost:.2f}", cost <= most
    for (data, budget), goal in UNASKED.items():
        value = known.get(Cell("lived", PAIRED, data, budget))
        if value is not None:
            what = f"held when nothing asks, live, {data} at {budget:,}"
            yield _at_least(what, 100 * interval(value["unasked"])[0], goal)


def _dial(known: Known) -> Iterator[Row]:
    """Yield the goals for cost and evidence held at the settings of the live agent."""
    for (data, budget), goal in TOKENS.items():
        value = known.get(Cell("lived", PAIRED, data, budget))
        if value is None:
            continue
        what, tokens = f"{data} at {budget:,}", per_request(value)
        yield f"tokens a request, live, {what}", f"≤ {goal:,}", f"{tokens:,.0f}", tokens <= goal
        held = 100 * interval(value["held"])[0]
        economy = known.get(Cell("lived", "ours-live-economy", data, budget))
        if economy is not None:
            share, less = per_request(economy) / tokens, held - 100 * interval(economy["held"])[0]
            yield f"economy, {what}: tokens", f"≤ {ECONOMY:.0%} of the default", f"{share:.0%}", share <= ECONOMY
            yield f"economy, {what}: held less", f"≤ {COSTS_LESS} points", f"{less:.1f}", less <= COSTS_LESS
        bland = known.get(Cell("lived", "ours-live-bland", data, budget))
        if bland is not None:
            less = held - 100 * interval(bland["held"])[0]
            yield f"bland summaries, {what}: held less", f"≤ {BLAND} points", f"{less:.1f}", less <= BLAND


def _at_least(what: str, found: float, goal: float) -> Row:
    return what, f"≥ {goal} %", f"{found:.1f} %", found >= goal


def _parity(what: str, value: Mapping[str, Any]) -> Row:
    mean, low, high = (100 * one for one in interval(less_one_view(value, value)))
    met = mean >= LESS and low >= LEAST
    return what, f"≥ {LESS}, interval from {LEAST}", f"{mean:+.1f} [{low:+.0f}, {high:+.0f}]", met


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
    ours = [value for cell, value in known.items() if cell.measure == "lived" and cell.approach.startswith("ours")]
    lived = [value for cell, value in known.items() if (cell.measure, cell.approach) == ("sessions", "ours-live")]
    lived += ours
    requests = sum(value["requests"] for value in lived)
    for what, field in (("requests with a broken pair", "broken"), ("requests over the budget", "over")):
        count = sum(value[field] for value in lived)
        if requests:
            yield what, "0", f"{count:,} of {requests:,}", not count
    for budget, goal in COST.items():
        session, life = (known.get(Cell(measure, PAIRED, "pi", budget)) for measure in ("sessions", "lived"))
        costs = [session["relative"]] if session else [life["cost"] / life["whole"]] if life else []
        for cost in costs:
            yield f"cost with a prompt cache, pi at {budget:,}", f"≤ {goal}", f"{cost:.3f}", cost <= goal
    value = known.get(Cell("sessions", "ours-live", "tau", 1_000))
    if value is not None:
        for goal, name, field in zip(
            SMALL_REFERENCES, ("all", "long-range"), ("references", "references_long"), strict=True
        ):
            found = 100 * interval([group for group in value[field] if group])[0]
            yield _at_least(f"references, live, {name}, tau at 1,000", found, goal)
        cost = value["relative"]
        yield "cost with a prompt cache, tau at 1,000", f"≤ {SMALL_COST}", f"{cost:.3f}", cost <= SMALL_COST


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


def _blocks(known: Known) -> Iterator[Row]:
    for cell, value in known.items():
        if cell.measure == "blocks":
            median, p90 = value["median"], value["p90"]
            what = f"CPU time of a recall block, {value['messages']:,} messages, within {cell.budget:,}"
            yield what, "≤ 6 ms, p90 ≤ 12", f"{median:.1f} ms, p90 {p90:.1f}", median <= 6 and p90 <= 12


def _store(known: Known) -> Iterator[Row]:
    for cell, value in known.items():
        for name, *figures in value["rows"] if cell.measure == "store" else ():
            median, ratio = float(figures[0]), float(figures[-1])
            yield f"a recorded request, {name}", "≤ 2 ms", f"{median:.2f} ms", median <= 2
            if "no index" in name:
                yield f"bytes on disk for a new byte, {name}", "≤ 1.5", f"{ratio:.2f}", ratio <= 1.5


GOALS: tuple[Callable[[Known], Iterator[Row]], ...] = (
    _lived,
    _dial,
    _evidence,
    _references,
    _requests,
    _compiles,
    _added,
    _blocks,
    _store,
)
