"""Measures, one per module: each defines its cells, how to measure a cell, and the tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.approaches import Approach
from benchmarks.data import Data
from benchmarks.results import Cell, Result
from context_compiler.cli.drawing import Panel


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """Definition of a measure."""

    name: str
    title: str
    cells: Callable[[Data, Sequence[str]], list[Cell]]
    """Return the cells to measure for the given approaches."""
    run: Callable[[Cell, Approach, Data], Mapping[str, Any] | str]
    """Return the values of a cell, or the reason why it has none."""
    tables: Callable[[Sequence[Result]], dict[str, str]]
    """Return markdown tables by name."""
    panels: Callable[[Sequence[Result]], list[Panel]] | None = None


def grid(name: str, sets: Mapping[str, Sequence[int]], approaches: Sequence[str]) -> list[Cell]:
    """Return the cells of a measure for all approaches on sets with their budgets."""
    return [
        Cell(name, approach, chosen, budget)
        for chosen, budgets in sets.items()
        for approach in approaches
        for budget in budgets
    ]
