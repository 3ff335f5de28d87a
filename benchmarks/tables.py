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
DASH = "–"
"""Cell for a figure that was not measured."""

Value = Mapping[str, Any]


def title(name: str) -> str:
    approach = load(name) if name in HOMES else None
    return approach.title if isinstance(approach, Approach) else name


def line_name(name: str) -> str:
    """Return the title of an approach in plots."""
    return title(name).replace("`", "").replace("summarization-pydantic-ai", "summarization-p.-ai")


def named(name: str) -> str:
    """Return the title of an approach, in bold if it is ours."""
    return f"**{title(name)}**" if name.startswith("ours") else title(name)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


def by_set(results: Sequence[Result]) -> dict[str, list[Result]]:
    return {
        name: [result for result in results if result.cell.data == name]
        for name in dict.fromkeys(result.cell.data for result in results)
    }


def columns_of(results: Sequence[Result], columns: Mapping[str, Callable[[Value], str]]) -> str:
    """Format a table with a row per result and a column per figure, with the reasons for dashes below."""
    rows = [
        [
            named(result.cell.approach),
            *(DASH if result.value is None else figure(result.value) for figure in columns.values()),
        ]
        for result in results
    ]
    return markdown(["", *columns], rows) + reasons(results)


def part(count: int, whole: int) -> str:
    """Format a count and its share of a whole."""
    return f"{count:,} ({count / whole:.0%})" if count else "0"


def percent(groups: Sequence[Sequence[float]], sign: str = "") -> str:
    """Format the mean in per cent, with an interval if there are several sessions or conversations."""
    groups = [group for group in groups if group]
    if not groups:
        return DASH
    mean, low, high = (100 * share for share in interval(groups))
    return f"{mean:{sign}.1f} [{low:{sign}.0f}, {high:{sign}.0f}]" if len(groups) > 1 else f"{mean:{sign}.1f}"


def ranked(
    results: Sequence[Result],
    shown: Callable[[Value], str],
    *,
    above: tuple[str, str, Callable[[Value], str]] | None = None,
) -> str:
    """Format a table of approaches by budget, with the reasons for dashes below; `above` is a first row."""
    budgets = sorted({result.cell.budget for result in results})
    values = {(result.cell.approach, result.cell.budget): result.value for result in results}
    names = [name for name in HOMES if any(name == approach for approach, _ in values)]
    lines = [*([above] if above is not None else []), *((named(name), name, shown) for name in names)]
    rows = [
        [head, *(cell(value) if (value := values.get((name, budget))) else DASH for budget in budgets)]
        for head, name, cell in lines
    ]
    return markdown(["", *(f"{budget:,} tokens" for budget in budgets)], rows) + reasons(results)


def reasons(results: Sequence[Result]) -> str:
    titles: dict[str, dict[str, None]] = {}
    for result in results:
        if result.dash:
            titles.setdefault(result.dash, {})[title(result.cell.approach)] = None
    return "".join(f"\n\n– {', '.join(names)}: {reason}." for reason, names in titles.items())


def lines_of(
    results: Sequence[Result], value: Callable[[Value], float], *, y: str, leave_out: Collection[str] = ()
) -> list[Panel]:
    """Build panels of a value against the budget: one panel per set, one line per approach."""
    panels: list[Panel] = []
    for data, of_set in by_set([result for result in results if result.value is not None]).items():
        budgets = sorted({result.cell.budget for result in of_set})
        if len(budgets) < 2:
            continue
        approaches = {result.cell.approach for result in of_set} - set(leave_out)
        lines = [_line(name, of_set, value) for name in HOMES if name in approaches]
        panels.append(Panel(title=data, x="budget, tokens", y=y, lines=lines, log_x=True, ticks=budgets))
    return panels


def _line(name: str, results: Sequence[Result], value: Callable[[Value], float]) -> Line:
    points = sorted(
        (result.cell.budget, value(result.value)) for result in results if result.cell.approach == name and result.value
    )
    xs, ys = [x for x, _ in points], [y for _, y in points]
    return Line(name=line_name(name), x=xs, y=ys, strong=name.startswith("ours"), dashed=name == "oracle")
