"""One module a measure: which cells it has, how one of them is measured, and the table that they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.approaches import Approach
from benchmarks.data import Data
from benchmarks.results import Cell, Result
from context_compiler.cli.drawing import Panel


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A measure."""

    name: str
    title: str
    about: str
    """Its definition, and the direction in which better is."""
    cells: Callable[[Data, Sequence[str]], list[Cell]]
    """What is to be measured of these approaches."""
    run: Callable[[Cell, Approach, Data], Mapping[str, Any] | str]
    """The values of a cell, or why there are none."""
    tables: Callable[[Sequence[Result]], dict[str, str]]
    """Markdown tables by name."""
    panels: Callable[[Sequence[Result]], list[Panel]] | None = None
    alone: bool = field(default=False)
    """It measures no approach but parts of this package."""
