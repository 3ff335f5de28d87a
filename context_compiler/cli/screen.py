"""Output in two forms: tables and color on a terminal, plain aligned text everywhere else.

Plain text is never truncated, so that programs can read it. All text passes through `safe`; none of it is markup.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Column as RichColumn
from rich.table import Table
from rich.text import Text

from context_compiler.cli.text import abbreviate, json_text, one_line, safe
from context_compiler.errors import SettingsError

Piece = str | tuple[str, str]
"""A string, or a string and its style."""

BAR, SHORTEST = 44, 12
"""Columns of a full bar, and its minimum on a narrow terminal."""

LONG = 240
"""Maximum columns of a line when only the first lines of a text are shown."""


def open_console(*, stderr: bool = False) -> Console:
    """Create a console without markup; with NO_COLOR it also has no bold, dim or italic text."""
    system = None if os.environ.get("NO_COLOR") else "auto"
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, color_system=system)


def styled_text(*pieces: Piece) -> Text:
    """Join pieces to one rich text."""
    text = Text()
    for piece in pieces:
        words, style = (piece, "") if isinstance(piece, str) else piece
        text.append(safe(words), style or None)
    return text


class Screen:
    """Writer to the current standard output; create one per command."""

    def __init__(self) -> None:
        self.console = open_console()
        self.rich = self.console.is_terminal

    def line(self, *pieces: Piece) -> None:
        """Print one line, or an empty one."""
        if self.rich:
            self.console.print(styled_text(*pieces))
        else:
            self.raw(styled_text(*pieces).plain)

    def heading(self, text: str) -> None:
        """Print an empty line and a heading."""
        self.line()
        self.line((text, "bold"))

    def facts(self, pairs: Iterable[tuple[str, object]]) -> None:
        """Print names and values, one pair per line; skip values that are None or empty."""
        shown = [(name, one_line(str(value))) for name, value in pairs if value not in (None, "")]
        if self.rich:
            grid = Table.grid(RichColumn(style="dim", no_wrap=True), RichColumn(overflow="fold"), padding=(0, 2))
            for name, value in shown:
                grid.add_row(styled_text(name), Text(value))
            self.console.print(Padding(grid, (0, 0, 0, 2), expand=False))
            return
        width = max((cell_len(name) for name, _ in shown), default=0)
        for name, value in shown:
            self.raw(f"  {safe(name).ljust(width)}  {value}".rstrip())

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> None:
        """Print a table."""
        cells = [[one_line(str(cell)) for cell in row] for row in rows]
        widths = [
            max(map(cell_len, [column.name, *(row[index] for row in cells)])) for index, column in enumerate(columns)
        ]
        if self.rich:
            fit = fit_columns(columns, widths, cells, self.console.width)
            self.console.print(draw_table(columns, cells, fit))
            hidden = [
                column.name
                for index, column in enumerate(columns)
                if index not in fit and column.name and any(r[index] for r in cells)
            ]
            if hidden:
                self.line((f"a wider terminal also shows: {', '.join(hidden)}", "dim"))
            return
        for row in [[column.name for column in columns], *cells]:
            padded = [_pad(cell, width, column.right) for cell, width, column in zip(row, widths, columns, strict=True)]
            self.raw("  ".join(padded).rstrip())

    def block(self, title: Sequence[Piece], text: str | Text, *, style: str = "", lines: int = 0) -> None:
        """Print a string under a title: its first `lines`, or all of it if that is 0."""
        body = _first_lines(text if isinstance(text, Text) else styled_text(text), lines)
        if self.rich:
            panel = Panel(
                body, title=styled_text(*title), title_align="left", border_style=style or "dim", box=box.ROUNDED
            )
            self.console.print(panel)
            return
        self.raw(styled_text(*title).plain)
        for line in body.plain.splitlines():
            self.raw(f"    {line}".rstrip())

    def bars(self, whole: float, rows: Sequence[tuple[str, float, str, Sequence[Piece]]]) -> None:
        """Print a bar chart in which `whole` is a full bar; a row is a name, a value, a style and a label."""
        width = max(cell_len(name) for name, *_ in rows)
        label = max(cell_len(styled_text(*rest).plain) for *_, rest in rows)
        longest = min(BAR, max(SHORTEST, self.console.width - width - label - 6)) if self.rich else BAR
        for name, value, style, rest in rows:
            filled = max(round(longest * value / whole) if whole else 0, 1 if value else 0)
            bar = (("━" if self.rich else "#") * filled).ljust(longest)
            self.line("  ", (name.ljust(width), "bold"), "  ", (bar, style), "  ", *rest)

    def indented(self, text: str, style: str = "") -> None:
        """Print an indented paragraph."""
        if self.rich:
            self.console.print(Padding(styled_text((text, style)), (0, 0, 0, 2)))
            return
        for line in safe(text).splitlines():
            self.raw(f"  {line}".rstrip())

    def raw(self, text: str) -> None:
        """Print a string that is already safe and must not be wrapped: JSON, markdown, a template."""
        sys.stdout.write(text + "\n")


def _pad(cell: str, width: int, right: bool) -> str:
    room = " " * (width - cell_len(cell))
    return room + cell if right else cell + room


def _first_lines(text: Text, lines: int) -> Text:
    if not lines:
        return text
    split = text.split("\n")
    kept = split if len(split) <= lines + 1 else split[:lines]
    for line in kept:
        line.truncate(LONG, overflow="ellipsis")
    left = len(split) - len(kept)
    return Text("\n").join([*kept, *([Text(f"… {left:,} more lines", "dim")] if left else [])])


@contextmanager
def progress_bar(what: str, total: int | None = None, *, quiet: bool = False) -> Generator[Progress | None]:
    """Show a progress bar on standard error; yield None if that is not a terminal.

    Args:
        what: Description of the work.
        total: Number of steps, each reported by `step`; None if unknown.
        quiet: Show no bar.
    """
    console = open_console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    count = (BarColumn(), MofNCompleteColumn()) if total is not None else ()
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), *count)
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task(what, total=total)
        yield progress


def step(progress: Progress | None) -> None:
    """Advance the progress bar by one step."""
    if progress is not None:
        progress.advance(progress.task_ids[0])


def print_list(
    document: object, columns: Sequence[Column], rows: Iterable[Sequence[object]], *, json: bool, empty: str = ""
) -> None:
    """Print one JSON document or a table; `empty` is printed instead of an empty table."""
    cells = list(rows)
    if json or (empty and not cells):
        print_result(document, empty, json=json)
    else:
        Screen().table(columns, cells)


def print_result(document: object, *line: Piece, json: bool) -> None:
    """Print one JSON document or a line."""
    if json:
        Screen().raw(json_text(document))
    else:
        Screen().line(*line)


def print_error(message: str) -> None:
    """Print an error as one line on standard error."""
    console = open_console(stderr=True)
    console.print(styled_text(("error: ", "bold red"), one_line(message)), soft_wrap=True)


def print_progress(message: str, bar: Progress | None = None) -> None:
    """Print a line of progress on standard error, unless a progress bar is there."""
    if bar is None:
        print(one_line(message), file=sys.stderr, flush=True)


def print_note(message: str) -> None:
    """Print a note as one line on standard error."""
    console = open_console(stderr=True)
    console.print(styled_text(("note: ", "yellow"), one_line(message)), soft_wrap=True)


def confirm(question: str, otherwise: str) -> None:
    """Ask a question on standard error.

    Raises:
        Exit: the answer is not y or yes; the error message is `otherwise`.
        SettingsError: standard input is empty.
    """
    print(one_line(question), "[y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer:
        print(file=sys.stderr)
        raise SettingsError("no answer on standard input; give --yes in scripts")
    if answer.strip().lower() not in ("y", "yes"):
        print_error(otherwise)
        raise typer.Exit(1)


GAP, MINIMUM, NAMES_SHARE = 2, 12, 3 / 8
"""Space between columns; minimum width of an elastic column; minimum fraction of the terminal for a column of names."""

Widths = Mapping[int, int]
"""Widths of the columns that are shown, by position."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; the last four fields matter on a narrow terminal."""

    name: str
    right: bool = False
    style: str = ""
    elastic: bool = False
    """May be truncated, with an ellipsis."""
    wraps: bool = False
    """May be wrapped."""
    names: bool = False
    """Contains names that users type; may be truncated in the middle by `abbreviate`."""
    spare: int = 0
    """May be hidden unless 0; the highest number is hidden first, then the rightmost column."""


def fit_columns(columns: Sequence[Column], widths: Sequence[int], cells: Sequence[Sequence[str]], room: int) -> Widths:
    """Choose the columns that fit, and their widths; empty spare columns are hidden first."""
    fit = dict(enumerate(widths))
    minimum = [
        min(width, int(room * NAMES_SHARE) if column.names else MINIMUM if column.elastic or column.wraps else width)
        for column, width in zip(columns, widths, strict=True)
    ]
    empty = {index for index in fit if not any(row[index] for row in cells)}
    spare = [index for index in fit if columns[index].spare]
    for index in sorted(spare, key=lambda index: (index in empty, columns[index].spare, index), reverse=True):
        if index in empty or sum(minimum[other] + GAP for other in fit) - GAP > room:
            del fit[index]
    while sum(fit.values()) + GAP * (len(fit) - 1) > room:
        widest = max(
            (index for index in fit if fit[index] > minimum[index]), key=lambda index: fit[index], default=None
        )
        if widest is None:
            break
        fit[widest] -= 1
    return fit


def draw_table(columns: Sequence[Column], cells: Sequence[Sequence[str]], fit: Widths) -> Table:
    """Build a table for a terminal from the columns in `fit`."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold", collapse_padding=True)
    shown: list[Sequence[str]] = []
    for index, width in fit.items():
        column, values = columns[index], [row[index] for row in cells]
        justify = "right" if column.right else "left"
        table.add_column(Text(column.name), justify=justify, style=column.style or None, overflow="fold", width=width)
        whole = values if column.wraps else [one_line(cell, width) for cell in values]
        shown.append(abbreviate(values, width) if column.names else whole)
    for row in zip(*shown, strict=True):
        table.add_row(*map(Text, row))
    return table
