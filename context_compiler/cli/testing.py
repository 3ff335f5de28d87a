"""`test`: run tests of contexts without pytest."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from runpy import run_path
from time import perf_counter
from traceback import extract_tb
from typing import Annotated, Any, TypeVar

import typer

from context_compiler.cli.options import Json, example, group
from context_compiler.cli.screen import Column, Screen
from context_compiler.cli.text import json_text
from context_compiler.errors import SettingsError
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
SKIPS = ("Skipped", "SkipTest")
"""Types of errors that skip a test: those of pytest and of unittest, by name, because neither has to be installed."""

T = TypeVar("T")


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
        rows = [
            (outcome.test, outcome.outcome, outcome.request or "", outcome.turn or "", f"{outcome.seconds:.2f}")
            for outcome in outcomes
        ]
        screen.table(OUTCOMES, rows)
        for outcome in outcomes:
            if outcome.explanation:
                screen.heading(outcome.test)
                screen.line(outcome.explanation)
    if any(outcome.outcome == FAILED for outcome in outcomes):
        raise typer.Exit(1)


def _run_file(file: Path, html: Path | None, *, update: bool) -> Iterator[Outcome]:
    with redirect_stdout(sys.stderr):  # what a test prints is not part of the table
        tests, skip = _load_tests(file)
    if skip is not None:
        yield Outcome(test=str(file), outcome=SKIPPED, explanation=str(skip))
    for name, function in tests:
        label = f"{file}::{name}"
        if missing := [parameter for parameter in inspect.signature(function).parameters if parameter != FIXTURE]:
            reason = f"needs pytest, for {' and '.join(missing)}"
            yield Outcome(test=label, outcome=SKIPPED, explanation=reason)
            continue
        contexts, started = Contexts(file, name, update=update), perf_counter()
        with redirect_stdout(sys.stderr):
            _, error = _call(partial(_run_test, function, contexts))
        seconds = perf_counter() - started
        if isinstance(error, ContextFailure) and html is not None:
            write_html(error, html / f"{file.stem}-{name}.html")
        yield _outcome(label, error, file, seconds)


def _outcome(label: str, error: BaseException | None, file: Path, seconds: float) -> Outcome:
    """Outcome of a test that ended with an error, or with none."""
    if error is None:
        return Outcome(test=label, outcome=PASSED, seconds=seconds)
    if _is_skip(error):
        return Outcome(test=label, outcome=SKIPPED, explanation=str(error), seconds=seconds)
    requests: dict[str, int] = {}
    if isinstance(error, ContextFailure):
        requests = {"request": error.request.number, "turn": error.request.turn}
    return Outcome(test=label, outcome=FAILED, explanation=_explain(error, file), seconds=seconds, **requests)


def _call(work: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    """Call `work`, and return its result or whatever it raises, except for Ctrl-C."""
    try:
        return work(), None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an exit, and what pytest raises to skip or fail a test, are no Exception
        return None, error


def _is_skip(error: BaseException) -> bool:
    return type(error).__name__ in SKIPS


def _run_test(function: Callable[..., Any], contexts: Contexts) -> None:
    result = function(**{FIXTURE: contexts} if inspect.signature(function).parameters else {})
    if inspect.iscoroutine(result):
        asyncio.run(result)


def _explain(error: BaseException, file: Path) -> str:
    """The text of an error, and the last line of the file that led to it."""
    text = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
    lines = [frame for frame in extract_tb(error.__traceback__) if Path(frame.filename) == file.absolute()]
    return "\n".join(filter(None, [text, *(f"{file}:{frame.lineno}: {frame.line}" for frame in lines[-1:])]))


def _load_tests(file: Path) -> tuple[Sequence[tuple[str, Callable[..., Any]]], BaseException | None]:
    """Test functions of a file, in its order; none, and the error that says so, if it skips all of them.

    Raises:
        SettingsError: There is no such file, it cannot be imported, or it has no tests.
    """
    if not file.is_file():
        raise SettingsError(f"{file}: no such Python file")
    sys.path[:0] = [str(Path.cwd()), str(file.parent.absolute())]  # as pytest does: its neighbours can be imported
    # From its source: cached bytecode outlives an edit within the same second that keeps the size.
    names, error = _call(lambda: run_path(str(file.absolute()), run_name=file.stem))
    if error is not None and _is_skip(error):
        return [], error
    if error is not None:
        raise SettingsError(f"{file}: cannot be imported: {type(error).__name__}: {error}")
    functions = [(name, value) for name, value in (names or {}).items() if inspect.isfunction(value)]
    tests = [(name, function) for name, function in functions if name.startswith(PREFIX)]
    if not tests:
        raise SettingsError(f"{file}: has no function {PREFIX}…({FIXTURE})")
    return tests, None
