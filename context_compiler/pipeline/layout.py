"""Boxes and lines get their places from a real layout engine: Graphviz where it is installed, else grandalf.

Both are given names of our own making and sizes, nothing else, so nothing of a graph's text reaches them.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from math import hypot
from types import MappingProxyType
from typing import Any, TypeAlias

from context_compiler.errors import PipelineError

Point: TypeAlias = tuple[float, float]
Size: TypeAlias = tuple[float, float]

SECONDS = 60.0
"""How long Graphviz may take."""
MOST = 5_000
"""Stages and edges that are drawn with Graphviz."""
MOST_PURE = 400
"""The same without; grandalf takes longer, and recurses."""
GAP = 46.0
"""Between two ranks, and half of it between two boxes."""
MOST_GAP = 76.0
"""The same where two labels are to stand between them."""
INCH = 72.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where everything is, in points from the upper left corner."""

    width: float
    height: float
    centres: Sequence[Point]
    """Of the boxes, in their order."""
    lines: Mapping[tuple[int, int], tuple[Point, ...]]
    """From box to box."""
    curved: bool
    """Whether the points are those of cubic curves; else they are corners."""
    labels: Mapping[tuple[int, int], Point] = field(default_factory=dict[tuple[int, int], Point])
    """The middles of the places that were kept free for what is written on a line."""


def laid_out(
    sizes: Sequence[Size],
    links: Sequence[tuple[int, int]],
    *,
    labels: Mapping[tuple[int, int], Size] = MappingProxyType({}),
    graphviz: str | None = "dot",
) -> Layout:
    """Places for boxes of these sizes, from the first down, and for the links between them.

    Args:
        sizes: Width and height of each box, in points.
        links: From which box to which; each pair once, no box to itself.
        labels: What room is wanted beside a link, in points; the library only leaves more between ranks.
        graphviz: The program; where it is not found, or None, the Python library is used.

    Raises:
        PipelineError: there is too much to draw, or nothing that can.
    """
    program = shutil.which(graphviz) if graphviz else None
    most = MOST if program else MOST_PURE
    if len(sizes) + len(links) > most * 2:
        raise PipelineError(f"{len(sizes):,} stages and {len(links):,} edges are too many to draw")
    return _by_graphviz(program, sizes, links, labels) if program else _by_grandalf(sizes, links, labels)


def _by_graphviz(
    program: str,
    sizes: Sequence[Size],
    links: Sequence[tuple[int, int]],
    labels: Mapping[tuple[int, int], Size],
) -> Layout:
    lines = [f"digraph {{ nodesep={GAP / 2 / INCH:.3f} ranksep={GAP / INCH:.3f} edge [dir=none]"]
    lines += ["node [shape=box fixedsize=true label=x]"]
    lines += [f"n{at} [width={w / INCH:.3f} height={h / INCH:.3f}]" for at, (w, h) in enumerate(sizes)]
    lines += [f"n{ends[0]} -> n{ends[1]}{_room(labels.get(ends))}" for ends in links]
    command = [program, "-Tplain"]
    try:
        done = subprocess.run(
            command, input="\n".join([*lines, "}"]), capture_output=True, text=True, timeout=SECONDS, check=True
        )
        return _read_plain(done.stdout, len(sizes))
    except subprocess.TimeoutExpired:
        raise PipelineError(f"{program} took longer than {SECONDS:g} s to lay the graph out") from None
    except (subprocess.CalledProcessError, OSError, ValueError, IndexError) as error:
        raise PipelineError(f"{program} could not lay the graph out: {str(error)[:200]}") from error


def _room(size: Size | None) -> str:
    """A label of that size that says nothing."""
    if size is None:
        return ""
    table = (
        f'<TABLE FIXEDSIZE="TRUE" BORDER="0" WIDTH="{size[0]:.0f}" HEIGHT="{size[1]:.0f}"><TR><TD></TD></TR></TABLE>'
    )
    return f" [label=<{table}>]"


def _read_plain(text: str, count: int) -> Layout:
    """Graphviz's plain output: inches, counted from below."""
    width = height = 0.0
    centres: list[Point] = [(0.0, 0.0)] * count
    links: dict[tuple[int, int], tuple[Point, ...]] = {}
    labels: dict[tuple[int, int], Point] = {}
    for line in text.splitlines():
        words = shlex.split(line)
        if words[0] == "graph":
            width, height = float(words[2]) * INCH, float(words[3]) * INCH
        elif words[0] == "node":
            centres[int(words[1][1:])] = (float(words[2]) * INCH, height - float(words[3]) * INCH)
        elif words[0] == "edge":
            ends, last = (int(words[1][1:]), int(words[2][1:])), 4 + 2 * int(words[3])
            numbers = [float(word) * INCH for word in words[4:last]]
            points = zip(numbers[::2], numbers[1::2], strict=True)
            links[ends] = tuple((x, height - y) for x, y in points)
            if len(words) == last + 5:  # a label and its place, before style and colour
                labels[ends] = (float(words[last + 1]) * INCH, height - float(words[last + 2]) * INCH)
    return Layout(width=width, height=height, centres=centres, lines=links, curved=True, labels=labels)


class _View:
    """What grandalf wants of a box, and what it writes on it."""

    def __init__(self, size: Size) -> None:
        self.w, self.h = size
        self.xy: Point = (0.0, 0.0)


def _by_grandalf(
    sizes: Sequence[Size], links: Sequence[tuple[int, int]], labels: Mapping[tuple[int, int], Size]
) -> Layout:
    try:
        graphs, layouts, routing = (import_module(f"grandalf.{name}") for name in ("graphs", "layouts", "routing"))
    except ImportError:
        raise PipelineError(
            "drawing needs Graphviz, or pip install 'pydantic-ai-context-compiler[draw]'; neither is there"
        ) from None
    boxes: list[Any] = [graphs.Vertex(at) for at in range(len(sizes))]
    for box, size in zip(boxes, sizes, strict=True):
        box.view = _View(size)
    edges: list[Any] = [graphs.Edge(boxes[source], boxes[target]) for source, target in links]
    for edge in edges:
        edge.view = routing.EdgeViewer()
    gap = max(GAP, min(MOST_GAP, 2 * max((height for _, height in labels.values()), default=0.0)))
    left, centres = 0.0, [(0.0, 0.0)] * len(sizes)
    lines: dict[tuple[int, int], tuple[Point, ...]] = {}
    bottom = 0.0
    for component in graphs.Graph(boxes, edges).C:
        inside: list[Any] = sorted(component.sV, key=lambda box: box.data)
        width, height = _placed(component, inside, layouts, routing, gap)
        for box in inside:
            centres[box.data] = (box.view.xy[0] + left, box.view.xy[1])
        for edge in component.sE:
            points = [(x + left, y) for x, y in getattr(edge.view, "_pts", ())]
            ends = (edge.v[0].data, edge.v[1].data)
            lines[ends] = tuple(points) or (centres[ends[0]], centres[ends[1]])
        left, bottom = left + width + GAP, max(bottom, height)
    return Layout(width=max(0.0, left - GAP), height=bottom, centres=centres, lines=lines, curved=False)


def _placed(component: Any, inside: Sequence[Any], layouts: Any, routing: Any, gap: float) -> Size:
    """Lay out what hangs together, shifted so that it begins at the corner; its size."""
    if len(inside) > 1:
        sugiyama = layouts.SugiyamaLayout(component)
        sugiyama.xspace, sugiyama.yspace = GAP / 2, gap
        sugiyama.route_edge = routing.route_with_lines
        sugiyama.init_all(roots=[inside[0]])
        sugiyama.draw(3)
    drawn: list[Point] = [point for edge in component.sE for point in getattr(edge.view, "_pts", ())]
    x0 = min([box.view.xy[0] - box.view.w / 2 for box in inside] + [x for x, _ in drawn])
    y0 = min(box.view.xy[1] - box.view.h / 2 for box in inside)
    for box in inside:
        box.view.xy = (box.view.xy[0] - x0, box.view.xy[1] - y0)
    for edge in component.sE:
        edge.view._pts = [(x - x0, y - y0) for x, y in getattr(edge.view, "_pts", ())]
    right = max([box.view.xy[0] + box.view.w / 2 for box in inside] + [x - x0 for x, _ in drawn])
    return right, max(box.view.xy[1] + box.view.h / 2 for box in inside)


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
