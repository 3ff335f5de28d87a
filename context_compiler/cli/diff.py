"""Two views side by side: the beginning they share, which a prompt cache keeps, and what differs after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import unified_diff

from context_compiler.cli.screen import Screen
from context_compiler.cli.show import body, role
from context_compiler.cli.text import number, plural, share
from context_compiler.messages.history import History

COLOURS = {"+": "green", "-": "red", "@": "cyan"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What two views have in common and what not."""

    common_messages: int
    """Messages at the beginning that are the same in both, whatever a host stamped on them."""
    common_tokens: int
    messages: tuple[int, int]
    tokens: tuple[int, int]
    diff: tuple[str, ...]
    """A unified diff of both as text."""


def compare(first: History, second: History, *, names: tuple[str, str]) -> Comparison:
    """Compare two views."""
    pairs = zip(first.ids, second.ids, strict=False)
    common = next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second)))
    return Comparison(
        common_messages=common,
        common_tokens=first.sums[common],
        messages=(len(first), len(second)),
        tokens=(first.tokens, second.tokens),
        diff=differing(rendered(first), rendered(second), names=names),
    )


def rendered(history: History) -> list[str]:
    """A view as lines: who, and below what was said, set in."""
    lines: list[str] = []
    for one in history.readings:
        lines.append(f"{role(one)}:")
        lines.extend(f"    {line}".rstrip() for line in body(one).plain.splitlines())
    return lines


def differing(first: Sequence[str], second: Sequence[str], *, names: tuple[str, str]) -> tuple[str, ...]:
    """A unified diff of two lists of lines; empty when they are the same."""
    return tuple(line.rstrip("\n") for line in unified_diff(first, second, *names, n=2, lineterm=""))


def as_json(compared: Comparison) -> dict[str, object]:
    """A comparison for JSON."""
    return {
        "common_messages": compared.common_messages,
        "common_tokens": compared.common_tokens,
        "messages": compared.messages,
        "tokens": compared.tokens,
        "diff": compared.diff,
    }


def show_comparison(screen: Screen, compared: Comparison) -> None:
    """What two views share, then the diff."""
    (first, second), (before, after) = compared.messages, compared.tokens
    kept = f"{plural(compared.common_messages, 'message')}, {number(compared.common_tokens)} tokens"
    part = share(compared.common_tokens, after) or "0%"
    screen.facts(
        [
            ("messages", f"{first:,} → {second:,}"),
            ("tokens", f"{number(before)} → {number(after)}"),
            ("the same", f"{kept} from the beginning: {part} of the second, which a prompt cache keeps"),
        ]
    )
    show_diff(screen, compared.diff)


def show_diff(screen: Screen, lines: Sequence[str]) -> None:
    """A unified diff, in colour on a terminal."""
    screen.line()
    if not lines:
        screen.line("no difference")
    for line in lines:
        header = line.startswith(("--- ", "+++ "))
        screen.line((line, "bold" if header else COLOURS.get(line[:1], "")))
