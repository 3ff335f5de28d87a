"""Progress of a run: a live table on a terminal, one line per stage elsewhere, or events as JSON lines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.live import Live
from rich.table import Table
from rich.text import Text

from context_compiler.cli.screen import Screen, open_console
from context_compiler.cli.text import number, one_line, plural, safe
from context_compiler.pipeline.stores import PEOPLE, Event

STYLES = {"success": "green", "partial_success": "yellow", "fail": "red", "skipped": "dim", "running": "cyan"}
MAX_ROWS = 200
"""Maximum rows of the table; older ones are dropped."""


@dataclass(slots=True)
class Row:
    """One visit to a stage."""

    name: str
    fidelity: str
    thread: str
    began: float
    status: str = "running"
    retries: int = 0
    seconds: float | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    why: str = ""

    def cells(self) -> tuple[str, ...]:
        """Format its cells, in the order of the columns."""
        seconds = time.monotonic() - self.began if self.seconds is None else self.seconds
        tokens = f"{number(self.tokens_in)} in, {number(self.tokens_out)} out" if self.tokens_in else ""
        retries = plural(self.retries, "retry", "retries") if self.retries else ""
        fidelity = f"{self.fidelity} {self.thread}".strip()
        return self.name, fidelity, self.status, retries, f"{seconds:.1f} s", tokens, one_line(self.why, 120)


class RunProgress:
    """Prints the events of one run."""

    def __init__(self, screen: Screen, *, events: bool, silent: bool) -> None:
        """Configure the output: JSON lines if `events`, nothing if `silent`, else progress for people."""
        self._screen, self._events, self._silent = screen, events, silent
        self._rows: list[Row] = []
        self._open: dict[tuple[str, str | None], Row] = {}
        self._live: Live | None = None
        self._asking: set[tuple[str, str | None]] = set()
        """Stages that ask a person, or wait to ask; the table stands still meanwhile."""

    @contextmanager
    def display(self) -> Generator[None]:
        """Show the live table while the body runs, if output is a terminal."""
        if self._events or self._silent or not self._screen.rich:
            yield
            return
        self._live = Live(get_renderable=self._table, console=open_console(), refresh_per_second=8)
        with self._live:
            yield

    def on_event(self, event: Event) -> None:
        """Print one event, or show it in the table."""
        if self._events:
            sys.stdout.write(json.dumps(event.document()) + "\n")
            sys.stdout.flush()
        if self._events or self._silent:
            return
        row = self._find_row(event)
        if row is not None:
            self._update(row, event)
        if event.kind in PEOPLE:
            self._make_room(event)
        elif self._live is None and row is not None and event.kind in ("stage_completed", "stage_failed"):
            self._print_row(row)
        if self._live is None and event.kind == "run_finalized" and event.data.get("status") == "restarted":
            self._screen.line(f"restarted at {event.data.get('restart_target')}")

    def _make_room(self, event: Event) -> None:
        """Stop the table while any stage asks a person, because both would write to the same lines."""
        stage = (event.branch, event.node)
        (self._asking.add if event.kind == "interview_started" else self._asking.discard)(stage)
        if self._live is not None:
            (self._live.stop if self._asking else self._live.start)()

    def _find_row(self, event: Event) -> Row | None:
        stage = (event.branch, event.node)
        if event.kind == "stage_started" and event.node is not None:
            name = f"{event.branch}/{event.node}" if event.branch not in ("", event.node) else event.node
            facts = event.data
            self._open[stage] = Row(
                name=safe(name),
                fidelity=str(facts.get("fidelity", "")),
                thread=safe(str(facts.get("thread", ""))),
                began=time.monotonic(),
            )
            self._rows = [*self._rows, self._open[stage]][-MAX_ROWS:]
        return self._open.get(stage)

    def _update(self, row: Row, event: Event) -> None:
        facts: Any = event.data
        if event.kind == "stage_retrying":
            row.retries += 1
        elif event.kind in ("agent_answered", "context_compiled"):
            row.tokens_in += facts.get("input_tokens", 0)
            row.tokens_out += facts.get("output_tokens", 0)
            if facts.get("error"):
                row.why = f"context helper failed, prompt sent as written: {facts['error']}"
        elif event.kind in ("stage_completed", "stage_failed"):
            row.status, row.seconds = str(facts.get("status", "")), float(facts.get("duration", 0))
            row.why = str(facts.get("reason", "")) or row.why

    def _print_row(self, row: Row) -> None:
        name, fidelity, status, *rest = row.cells()
        self._screen.line(f"{name:<20}  {fidelity:<20}  {status:<15}  {'  '.join(filter(None, rest))}".rstrip())

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, show_edge=False, header_style="dim")
        for name in ("stage", "fidelity", "status", "retries", "time", "tokens", ""):
            table.add_column(name, no_wrap=True)
        for row in self._rows[-max(5, (self._live.console.height if self._live else MAX_ROWS) - 3) :]:
            cells = row.cells()
            table.add_row(
                *(Text(cell, STYLES.get(row.status, "") if index == 2 else "") for index, cell in enumerate(cells))
            )
        return table
