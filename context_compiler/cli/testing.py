"""`test`: run tests of contexts without pytest."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from time import perf_counter
from traceback import extract_tb
from typing import Annotated, Any

import typer

from context_compiler.cli.options import Json, example, group
from context_compiler.cli.screen import Column, Screen
from context_compiler.cli.text import json_text
from context_compiler.errors import SettingsError
from context_compiler.resilience import attempt
from context_compiler.testing import ContextFailure, Contexts, write_html

app = group("Run tests of contexts, also without pytest.")

OUTCOMES = (
    Column("test", style="bold", names=True),
    Column("outcome"),
    Column("request", right=True),
    Column("turn", right=True),
    Column("seconds", right=True, spare=1),
)
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
PREFIX, FIXTURE = "test_", "contexts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a test."""

    test: str
    outcome: str
    request: int | None = None
    """Number of the request at which an assertion failed, if one did."""
    turn: int | None = None
    explanation: str = ""
    seconds: float = 0.0


@app.command("test", epilog=example("test tests/test_desk.py"))
def test(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Python files with functions test_…(contexts).")],
    html: Annotated[
        Path | None, typer.Option("--html", help="Write an HTML file for each failure into this folder.")
    ] = None,
    update: Annotated[bool, typer.Option("--update", help="Write snapshots instead of comparing with them.")] = False,
    json: Json = False,
) -> None:
    """Run tests of contexts, also without pytest. The exit code is 1 if one fails."""
    outcomes = [outcome for file in files for outcome in _run_file(file, html, update=update)]
    screen = Screen()
    if json:
        screen.raw(json_text({"tests": outcomes}))
    else:
        rows = [(one.test, one.outcome, one.request or "", one.turn or "", f"{one.seconds:.2f}") for one in outcomes]
        screen.table(OUTCOMES, rows)
        for one in outcomes:
            if one.explanation:
                screen.heading(one.test)
                screen.line(one.explanation)
    if any(one.outcome == FAILED for one in outcomes):
        raise typer.Exit(1)


def _run_file(file: Path, html: Path | None, *, update: bool) -> Iterator[Outcome]:
    tests = _load_tests(file)
    for name, function in tests:
        label = f"{file}::{name}"
        if missing := [each for each in inspect.signature(function).parameters if each != FIXTURE]:
            wanted = f"needs pytest, for {' and '.join(missing)}"
            yield Outcome(test=label, outcome=SKIPPED, explanation=wanted)
            continue
        contexts, started = Contexts(file, name, update=update), perf_counter()
        error = attempt(lambda function=function, contexts=contexts: _call(function, contexts)).error
        seconds = perf_counter() - started
        if error is None:
            yield Outcome(test=label, outcome=PASSED, seconds=seconds)
            continue
        line = extract_tb(error.__traceback__)[-1].line or ""
        text = str(error) or line if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        place: dict[str, int] = {}
        if isinstance(error, ContextFailure):
            place = {"request": error.request.number, "turn": error.request.turn}
            if html is not None:
                write_html(error, html / f"{file.stem}-{name}.html")
        yield Outcome(test=label, outcome=FAILED, explanation=text, seconds=seconds, **place)


def _call(function: Callable[..., Any], contexts: Contexts) -> None:
    given = {FIXTURE: contexts} if inspect.signature(function).parameters else {}
    result = function(**given)
    if inspect.iscoroutine(result):
        asyncio.run(result)


def _load_tests(file: Path) -> Sequence[tuple[str, Callable[..., Any]]]:
    """Test functions of a file, in its order.

    Raises:
        SettingsError: There is no such file, it cannot be imported, or it has no tests.
    """
    spec = spec_from_file_location(file.stem, file) if file.is_file() else None
    if spec is None or spec.loader is None:
        raise SettingsError(f"{file}: no such Python file")
    module, loader = module_from_spec(spec), spec.loader
    sys.path[:0] = [str(Path.cwd()), str(file.parent.absolute())]  # as pytest does: its neighbours can be imported
    error = attempt(lambda: loader.exec_module(module)).error
    if error is not None:
        raise SettingsError(f"{file}: cannot be imported: {type(error).__name__}: {error}")
    found = [(name, one) for name, one in vars(module).items() if name.startswith(PREFIX) and inspect.isfunction(one)]
    if not found:
        raise SettingsError(f"{file}: has no function {PREFIX}…({FIXTURE})")
    return found
