"""One page, two ways to print it: tables and colour on a terminal, plain aligned text everywhere else.

The plain way cuts nothing, whatever the width of a terminal somebody may have, so that it can be read by
programs too. All text passes through `safe`; nothing is read as markup.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Column as RichColumn
from rich.table import Table
from rich.text import Text

from context_compiler.cli.text import json_text, one_line, safe, shortened

Piece = str | tuple[str, str]
"""A text, or a text and its style."""

BAR, SHORTEST = 44, 12
"""Columns of a full bar, and on the narrowest terminal."""

LONG = 240
"""Columns that a line keeps where only the first lines are shown."""


def styled(*pieces: Piece) -> Text:
    """Pieces as one rich text."""
    text = Text()
    for piece in pieces:
        words, style = (piece, "") if isinstance(piece, str) else piece
        text.append(safe(words), style or None)
    return text


class Screen:
    """Standard output as it is now; make one a command."""

    def __init__(self) -> None:
        self.console = Console(highlight=False, markup=False, emoji=False)
        self.rich = self.console.is_terminal

    def line(self, *pieces: Piece) -> None:
        """One line of text, or an empty one."""
        if self.rich:
            self.console.print(styled(*pieces))
        else:
            self._plain(styled(*pieces).plain)

    def heading(self, text: str) -> None:
        """A line that says what follows, after an empty one."""
        self.line()
        self.line((text, "bold"))

    def facts(self, pairs: Iterable[tuple[str, object]]) -> None:
        """Names and values, one a line; a value that is None or empty is left out, a long one stays in its column."""
        said = [(name, one_line(str(value))) for name, value in pairs if value not in (None, "")]
        if self.rich:
            grid = Table.grid(RichColumn(style="dim", no_wrap=True), RichColumn(overflow="fold"), padding=(0, 2))
            for name, value in said:
                grid.add_row(styled(name), Text(value))
            self.console.print(Padding(grid, (0, 0, 0, 2), expand=False))
            return
        width = max((cell_len(name) for name, _ in said), default=0)
        for name, value in said:
            self._plain(f"  {safe(name).ljust(width)}  {value}".rstrip())

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> None:
        """Rows under the names of their columns."""
        cells = [[one_line(str(cell)) for cell in row] for row in rows]
        widths = [max(map(cell_len, [column.name, *(row[at] for row in cells)])) for at, column in enumerate(columns)]
        if self.rich:
            fit = fitting(columns, widths, cells, self.console.width)
            self.console.print(drawn(columns, cells, fit))
            left = [
                one.name for at, one in enumerate(columns) if at not in fit and one.name and any(r[at] for r in cells)
            ]
            if left:
                self.line((f"a wider terminal shows also: {', '.join(left)}", "dim"))
            return
        for row in [[column.name for column in columns], *cells]:
            padded = [_pad(cell, width, column.right) for cell, width, column in zip(row, widths, columns, strict=True)]
            self._plain("  ".join(padded).rstrip())

    def block(self, title: Sequence[Piece], text: str | Text, *, style: str = "", lines: int = 0) -> None:
        """A text under a title of its own; only the first `lines` of it when that is given."""
        body = _shortened(text if isinstance(text, Text) else styled(text), lines)
        if self.rich:
            panel = Panel(body, title=styled(*title), title_align="left", border_style=style or "dim", box=box.ROUNDED)
            self.console.print(panel)
            return
        self._plain(styled(*title).plain)
        for line in body.plain.splitlines():
            self._plain(f"    {line}".rstrip())

    def bars(self, whole: float, rows: Sequence[tuple[str, float, str, Sequence[Piece]]]) -> None:
        """Bars as long as their values' shares of `whole`, each a name, a value, a style and what stands behind it."""
        width = max(cell_len(name) for name, *_ in rows)
        behind = max(cell_len(styled(*rest).plain) for *_, rest in rows)
        longest = min(BAR, max(SHORTEST, self.console.width - width - behind - 6)) if self.rich else BAR
        for name, value, style, rest in rows:
            filled = max(round(longest * value / whole) if whole else 0, 1 if value else 0)
            bar = (("━" if self.rich else "#") * filled).ljust(longest)
            self.line("  ", (name.ljust(width), "bold"), "  ", (bar, style), "  ", *rest)

    def indented(self, text: str, style: str = "") -> None:
        """A paragraph, set in."""
        if self.rich:
            self.console.print(Padding(styled((text, style)), (0, 0, 0, 2)))
            return
        for line in safe(text).splitlines():
            self._plain(f"  {line}".rstrip())

    def raw(self, text: str) -> None:
        """A text that is safe already and must not be wrapped: JSON, markdown, a template."""
        self._plain(text)

    def _plain(self, line: str) -> None:
        sys.stdout.write(line + "\n")


def _pad(cell: str, width: int, right: bool) -> str:
    room = " " * (width - cell_len(cell))
    return room + cell if right else cell + room


def _shortened(text: Text, lines: int) -> Text:
    if not lines:
        return text
    split = text.split("\n")
    kept = split if len(split) <= lines + 1 else split[:lines]
    for line in kept:
        line.truncate(LONG, overflow="ellipsis")
    left = len(split) - len(kept)
    return Text("\n").join([*kept, *([Text(f"… {left:,} more lines", "dim")] if left else [])])


@contextmanager
def working(what: str, total: int | None = None, *, quiet: bool = False) -> Generator[Progress | None]:
    """A progress bar on the terminal behind standard error, or nothing where there is none.

    Args:
        what: What is being done.
        total: Steps until it is done, each told to `step`; None is not known.
        quiet: Show nothing after all.
    """
    console = Console(stderr=True, highlight=False, markup=False)
    if quiet or not console.is_terminal:
        yield None
        return
    count = (BarColumn(), MofNCompleteColumn()) if total is not None else ()
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), *count)
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task(what, total=total)
        yield progress


def step(progress: Progress | None) -> None:
    """One step of `working` is done."""
    if progress is not None:
        progress.advance(progress.task_ids[0])


def listed(
    document: object, columns: Sequence[Column], rows: Iterable[Sequence[object]], *, json: bool, empty: str = ""
) -> None:
    """The answer of a command that lists: one JSON document, or a table; `empty` is said instead of an empty one."""
    cells = list(rows)
    if json or (empty and not cells):
        told(document, empty, json=json)
    else:
        Screen().table(columns, cells)


def told(document: object, *line: Piece, json: bool) -> None:
    """The answer of a command that does something: one JSON document, or a line."""
    if json:
        Screen().raw(json_text(document))
    else:
        Screen().line(*line)


def complain(message: str) -> None:
    """One line on standard error: what, where, and what to do."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    console.print(styled(("error: ", "bold red"), one_line(message)), soft_wrap=True)


def tell(message: str) -> None:
    """One line on standard error about what is going on, for where no bar can be shown."""
    print(one_line(message), file=sys.stderr, flush=True)


def warn(message: str) -> None:
    """One line on standard error about something that may matter."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    console.print(styled(("note: ", "yellow"), one_line(message)), soft_wrap=True)


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
