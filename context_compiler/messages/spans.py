"""Runs of consecutive positions in a history."""

from __future__ import annotations

from collections.abc import Iterable

Span = tuple[int, int]
"""Positions from `start` to before `stop`."""


def spans(positions: Iterable[int]) -> tuple[Span, ...]:
    """Group sorted positions into spans."""
    groups: list[Span] = []
    for index in positions:
        if groups and groups[-1][1] == index:
            groups[-1] = (groups[-1][0], index + 1)
        else:
            groups.append((index, index + 1))
    return tuple(groups)


def positions(given: Iterable[Span]) -> set[int]:
    """Expand spans to positions, the inverse of `spans`."""
    return {index for start, stop in given for index in range(start, stop)}
