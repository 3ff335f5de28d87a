"""What is written on a line stands beside it where nothing else stands, if there is such a place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import hypot
from typing import TypeAlias

from context_compiler.pipeline.layout import Point, Size

Link: TypeAlias = tuple[int, int]
Rectangle: TypeAlias = tuple[float, float, float, float]
"""Left, top, right, bottom."""

BESIDE = 5.0
"""From a line to what is written on it."""
PLACES = (0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8, 0.1, 0.9)
"""Parts of a line's length at which a place is looked for, the best first."""


def label_places(
    lines: Mapping[Link, Sequence[Point]], sizes: Mapping[Link, Size], boxes: Sequence[Rectangle]
) -> dict[Link, Point]:
    """The middle of a place for each label, found one after another.

    Args:
        lines: Corners of each line.
        sizes: Width and height of each label.
        boxes: Where nothing may be written.
    """
    taken = list(boxes)
    found: dict[Link, Point] = {}
    for link, (width, height) in sizes.items():
        points = lines.get(link, ())
        if len(points) < 2:
            continue
        tried = list(_tried(points, width, left=link[::-1] in lines and points[0][1] > points[-1][1]))
        x, y = min(tried, key=lambda one: _covered(one, (width, height), taken))  # of equals, the first
        found[link] = (x, y)
        taken.append((x - width / 2, y - height / 2, x + width / 2, y + height / 2))
    return found


def _tried(points: Sequence[Point], width: float, *, left: bool) -> Iterator[Point]:
    """Middles of places beside a line; on its left first where a line back is on its right."""
    for part in PLACES:
        x, y = _along(points, part)
        for side in (-1, 1) if left else (1, -1):
            yield x + side * (width / 2 + BESIDE), y


def _along(points: Sequence[Point], part: float) -> Point:
    """The point at so much of the length of a line."""
    pairs = list(zip(points, points[1:], strict=False))
    lengths = [hypot(bx - ax, by - ay) for (ax, ay), (bx, by) in pairs]
    rest = part * sum(lengths)
    for ((ax, ay), (bx, by)), length in zip(pairs, lengths, strict=True):
        if rest <= length and length:
            return ax + (bx - ax) * rest / length, ay + (by - ay) * rest / length
        rest -= length
    return points[-1]


def _covered(centre: Point, size: Size, taken: Sequence[Rectangle]) -> float:
    """How much of what stands somewhere already would be written over, as an area."""
    left, top = centre[0] - size[0] / 2, centre[1] - size[1] / 2
    area = 0.0
    for west, north, east, south in taken:
        across = min(left + size[0], east) - max(left, west)
        down = min(top + size[1], south) - max(top, north)
        area += max(0.0, across) * max(0.0, down)
    return area
