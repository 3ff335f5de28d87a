"""Which columns of a table there is room for on a terminal, and how wide each is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from context_compiler.cli.text import one_line, shortened

GAP, LEAST, NAMED = 2, 12, 3 / 8
"""Columns between two columns of a table; those that an elastic one is left; the share that one of names is left."""

Widths = Mapping[int, int]
"""The columns of a table that are shown, by position, and how wide each is."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; the last three say what gives way where a terminal is too narrow."""

    name: str
    right: bool = False
    style: str = ""
    elastic: bool = False
    """It may be cut to fewer columns, with an ellipsis."""
    names: bool = False
    """What it holds is typed in again: it may be shortened in its middle, as `shortened` does."""
    spare: int = 0
    """It may be left away: the highest number first, and of two with one number the one that stands further right."""


def fitting(columns: Sequence[Column], widths: Sequence[int], cells: Sequence[Sequence[str]], room: int) -> Widths:
    """The columns that there is room for, by position, and how wide each is; spare ones that say nothing go first."""
    fit = dict(enumerate(widths))
    least = [
        min(width, int(room * NAMED) if column.names else LEAST if column.elastic else width)
        for column, width in zip(columns, widths, strict=True)
    ]
    empty = {at for at in fit if not any(row[at] for row in cells)}
    spare = sorted((at for at in fit if columns[at].spare), key=lambda at: (columns[at].spare, at), reverse=True)
    for at in [*(at for at in spare if at in empty), *(at for at in spare if at not in empty)]:
        if at in empty or sum(least[one] + GAP for one in fit) - GAP > room:
            del fit[at]
    while sum(fit.values()) + GAP * (len(fit) - 1) > room:
        widest = max((at for at in fit if fit[at] > least[at]), key=lambda at: fit[at], default=None)
        if widest is None:
            break
        fit[widest] -= 1
    return fit


def drawn(columns: Sequence[Column], cells: Sequence[Sequence[str]], fit: Widths) -> Table:
    """A table for a terminal, of the columns in `fit`."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold", collapse_padding=True)
    shown: list[Sequence[str]] = []
    for at, width in fit.items():
        column, said = columns[at], [row[at] for row in cells]
        justify = "right" if column.right else "left"
        table.add_column(Text(column.name), justify=justify, style=column.style or None, overflow="fold", width=width)
        shown.append(shortened(said, width) if column.names else [one_line(cell, width) for cell in said])
    for row in zip(*shown, strict=True):
        table.add_row(*map(Text, row))
    return table
