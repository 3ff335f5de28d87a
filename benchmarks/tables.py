"""Format results as markdown tables and as lines of a plot; reasons for dashes are below the table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from benchmarks.approaches import HOMES, Approach, load
from benchmarks.recall import interval
from benchmarks.results import Result
from context_compiler.cli.drawing import Line, Panel

TOO_LONG = {"llamaindex-buffer": {"beam-500k", "pi"}}
"""Sets that take an approach hours."""
RECOUNTS = "recounts the whole history for every message that it drops, which takes hours on these data"

Shown = Callable[[Mapping[str, Any]], str]


def title(name: str) -> str:
    """Return the title of an approach in tables."""
    found = load(name) if name in HOMES else None
    return found.title if isinstance(found, Approach) else name


def line_name(name: str) -> str:
    """Return the title of an approach in plots."""
    return title(name).replace("`", "").replace("summarization-pydantic-ai", "summarization-p.-ai")


def named(name: str) -> str:
    """Return the title of an approach, in bold if it is ours."""
    return f"**{title(name)}**" if name.startswith("ours") else title(name)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a markdown table."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


def by_set(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Group results by data set."""
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(result.cell.data, []).append(result)
    return found


def rows_of(results: Sequence[Result], width: int, cells: Callable[[Mapping[str, Any]], list[str]]) -> list[list[str]]:
    """Return a row per result: the title of its approach, then the cells of its value, or dashes if it has none."""
    dashes = ["–"] * (width - 1)
    return [[named(one.cell.approach), *(dashes if one.value is None else cells(one.value))] for one in results]


def part(count: int, whole: int) -> str:
    """Format a count and its share of a whole."""
    return f"{count:,} ({count / whole:.0%})" if count else "0"


def percent(groups: Sequence[Sequence[float]], sign: str = "") -> str:
    """Format the mean in per cent, with an interval if there are several sessions or conversations."""
    there = [group for group in groups if group]
    if not there:
        return "–"
    mean, low, high = (100 * one for one in interval(there))
    return f"{mean:{sign}.1f} [{low:{sign}.0f}, {high:{sign}.0f}]" if len(there) > 1 else f"{mean:{sign}.1f}"


def ranked(results: Sequence[Result], shown: Shown) -> str:
    """Format a table of approaches by budget, with the reasons for dashes below."""
    budgets = sorted({one.cell.budget for one in results})
    found = {(one.cell.approach, one.cell.budget): one for one in results}
    names = [name for name in HOMES if any(one.cell.approach == name for one in results)]
    rows = [[named(name), *(_cell(found.get((name, budget)), shown) for budget in budgets)] for name in names]
    return markdown(["", *(f"{budget:,} tokens" for budget in budgets)], rows) + reasons(results)


def _cell(result: Result | None, shown: Shown) -> str:
    return shown(result.value) if result is not None and result.value is not None else "–"


def reasons(results: Sequence[Result]) -> str:
    """Format the reasons for dashes."""
    why: dict[str, list[str]] = {}
    for one in results:
        if one.dash and title(one.cell.approach) not in why.setdefault(one.dash, []):
            why[one.dash].append(title(one.cell.approach))
    return "".join(f"\n\n– {', '.join(names)}: {reason}." for reason, names in why.items())


def lines_of(
    results: Sequence[Result],
    value: Callable[[Mapping[str, Any]], float],
    *,
    y: str,
    leave_out: Collection[str] = (),
    log_y: bool = False,
) -> list[Panel]:
    """Build panels of a value against the budget: one panel per set, one line per approach."""
    panels: list[Panel] = []
    for data, every in by_set(results).items():
        of_set = [one for one in every if one.value is not None]
        budgets = sorted({one.cell.budget for one in of_set})
        if len(budgets) < 2:
            continue
        lines = [
            _line(name, [one for one in of_set if one.cell.approach == name], value)
            for name in HOMES
            if name not in leave_out and any(one.cell.approach == name for one in of_set)
        ]
        panels.append(Panel(title=data, x="budget, tokens", y=y, lines=lines, log_x=True, log_y=log_y, ticks=budgets))
    return panels


def _line(name: str, results: Sequence[Result], value: Callable[[Mapping[str, Any]], float]) -> Line:
    points = sorted((one.cell.budget, value(one.value)) for one in results if one.value is not None)
    return Line(
        name=line_name(name),
        x=[x for x, _ in points],
        y=[y for _, y in points],
        strong=name.startswith("ours"),
        dashed=name == "oracle",
    )
