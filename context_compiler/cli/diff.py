"""Comparison of two views: their common beginning, which a prompt cache can reuse, and a diff; `views diff`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from difflib import unified_diff
from typing import Annotated

import typer

from context_compiler.cli.options import DB, Db, Json, Owner, ViewId, example, group
from context_compiler.cli.records import find_view, recorded_messages, with_record
from context_compiler.cli.screen import Screen
from context_compiler.cli.show import body, read_recorded
from context_compiler.cli.text import json_text, number, plural, share
from context_compiler.messages.display import role
from context_compiler.messages.history import History
from context_compiler.record.store import SQLStore

app = group("Compare recorded requests.")

COLORS = {"+": "green", "-": "red", "@": "cyan"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Common beginning and differences of two views."""

    common_messages: int
    """Messages at the beginning that are equal in both, apart from the host's timestamps and ids."""
    common_tokens: int
    messages: tuple[int, int]
    tokens: tuple[int, int]
    diff: tuple[str, ...]
    """Unified diff of both views as text."""


@app.command("diff", epilog=example("views diff 2 3"))
def diff(
    view: ViewId,
    other: Annotated[int, typer.Argument(metavar="OTHER", help="Number of another view.")],
    db: Db = DB,
    owner: Owner = None,
    json: Json = False,
) -> None:
    """Compare two views: show their common beginning and a diff."""
    first, second = with_record(lambda store: _load_two(store, view, other), db, owner)
    compared = compare(first, second, names=(f"view {view}", f"view {other}"))
    screen = Screen()
    if json:
        screen.raw(json_text({"views": [view, other], **asdict(compared)}))
    else:
        print_comparison(screen, compared)


async def _load_two(store: SQLStore, view: int, other: int) -> tuple[History, History]:
    records = [await find_view(store, number) for number in (view, other)]
    first, second = [await recorded_messages(store, record, raw=False) for record in records]
    return read_recorded(first), read_recorded(second)


def compare(first: History, second: History, *, names: tuple[str, str]) -> Comparison:
    """Compare two views."""
    pairs = zip(first.exact, second.exact, strict=False)
    common = next(
        (position for position, (message, other) in enumerate(pairs) if message != other), min(len(first), len(second))
    )
    return Comparison(
        common_messages=common,
        common_tokens=first.sums[common],
        messages=(len(first), len(second)),
        tokens=(first.tokens, second.tokens),
        diff=unified(view_lines(first), view_lines(second), names=names),
    )


def view_lines(history: History) -> list[str]:
    """Format a view as lines: changed instructions, then each role with failed outcomes and its indented text."""
    lines: list[str] = []
    previous: str | None = None
    for message, reading in zip(history.messages, history.readings, strict=True):
        instructions = message.instructions if message.kind == "request" else None
        if instructions is not None and instructions != previous:
            lines.append("instructions:")
            lines.extend(f"    {line}".rstrip() for line in instructions.splitlines())
            previous = instructions
        outcomes = [getattr(part, "outcome", "success") for part in message.parts]
        failed = ", ".join(outcome for outcome in outcomes if outcome != "success")
        lines.append(f"{role(reading)} ({failed}):" if failed else f"{role(reading)}:")
        lines.extend(f"    {line}".rstrip() for line in body(reading).plain.splitlines())
    return lines


def unified(first: Sequence[str], second: Sequence[str], *, names: tuple[str, str]) -> tuple[str, ...]:
    """Return a unified diff of two lists of lines; empty if they are equal."""
    return tuple(line.rstrip("\n") for line in unified_diff(first, second, *names, n=2, lineterm=""))


def print_comparison(screen: Screen, compared: Comparison) -> None:
    """Print the common beginning of two views, then their diff."""
    (first, second), (before, after) = compared.messages, compared.tokens
    kept = f"{plural(compared.common_messages, 'message')}, {number(compared.common_tokens)} tokens"
    part = share(compared.common_tokens, after) or "0%"
    screen.facts(
        [
            ("messages", f"{first:,} → {second:,}"),
            ("tokens", f"{number(before)} → {number(after)}"),
            ("shared", f"{kept} from the beginning: {part} of the second, which a prompt cache can reuse"),
        ]
    )
    print_diff(screen, compared.diff)


def print_diff(screen: Screen, lines: Sequence[str]) -> None:
    """Print a unified diff, in color on a terminal."""
    screen.line()
    if not lines:
        screen.line("no difference")
    for line in lines:
        header = line.startswith(("--- ", "+++ "))
        screen.line((line, "bold" if header else COLORS.get(line[:1], "")))
