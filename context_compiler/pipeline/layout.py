"""Positions of boxes and lines, computed by Graphviz if it is installed, else by a layered (Sugiyama) layout in Python.

Graphviz gets only generated names and sizes, so no text from a graph reaches it.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import inf
from types import MappingProxyType
from typing import TypeAlias

from context_compiler.errors import PipelineError

Point: TypeAlias = tuple[float, float]
Size: TypeAlias = tuple[float, float]
Link: TypeAlias = tuple[int, int]
"""Indices of the source and target box."""

SECONDS = 60.0
"""Time limit for Graphviz."""
MAX_ELEMENTS = 10_000
"""Maximum number of stages and edges in total, if Graphviz computes the layout."""
MAX_ELEMENTS_PURE = 800
"""Maximum number of stages and edges in total without Graphviz."""
GAP = 46.0
"""Distance between two ranks in points; boxes in a rank are half of it apart."""
PORT = 20.0
"""Maximum distance between two lines where they meet a box, in points."""
BESIDE = 5.0
"""Distance between a line and its label, in points."""
SWEEPS, WORK = 60, 100_000
"""Maximum passes over all ranks, and maximum spots visited in all passes, so that a huge graph gets fewer passes."""
INCH = 72.0
"""Points per inch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Positions of boxes, lines and labels, in points from the upper left corner."""

    width: float
    height: float
    centres: Sequence[Point]
    """Centres of the boxes, in order."""
    lines: Mapping[Link, tuple[Point, ...]]
    """Points of each line, by source and target box."""
    curved: bool
    """True if the points define cubic curves; if False, they are corners."""
    labels: Mapping[Link, Point] = field(default_factory=dict[Link, Point])
    """Centres of the labels."""


def compute_layout(
    sizes: Sequence[Size],
    links: Sequence[Link],
    *,
    labels: Mapping[Link, Size] = MappingProxyType({}),
    graphviz: str | None = "dot",
) -> Layout:
    """Compute positions for boxes and for the links between them, in layers from top to bottom.

    Args:
        sizes: Width and height of each box, in points.
        links: Links between boxes. Each pair occurs once, and no box links to itself.
        labels: Sizes of the labels beside links, in points.
        graphviz: The Graphviz program. If it is None or not installed, the layout is computed in Python.

    Raises:
        PipelineError: the graph is too large, or Graphviz failed.
    """
    program = shutil.which(graphviz) if graphviz else None
    most = MAX_ELEMENTS if program else MAX_ELEMENTS_PURE
    if len(sizes) + len(links) > most:
        raise PipelineError(f"{len(sizes):,} stages and {len(links):,} edges are too many to draw")
    return _layout_by_graphviz(program, sizes, links, labels) if program else _layout_by_ranks(sizes, links, labels)


def _layout_by_graphviz(
    program: str, sizes: Sequence[Size], links: Sequence[Link], labels: Mapping[Link, Size]
) -> Layout:
    lines = [f"digraph {{ nodesep={GAP / 2 / INCH:.3f} ranksep={GAP / INCH:.3f} edge [dir=none]"]
    lines += ["node [shape=box fixedsize=true label=x]"]
    lines += [f"n{box} [width={w / INCH:.3f} height={h / INCH:.3f}]" for box, (w, h) in enumerate(sizes)]
    lines += [f"n{ends[0]} -> n{ends[1]}{_empty_label(labels.get(ends))}" for ends in links]
    command = [program, "-Tplain"]
    try:
        done = subprocess.run(
            command, input="\n".join([*lines, "}"]), capture_output=True, text=True, timeout=SECONDS, check=True
        )
        return _read_plain(done.stdout, len(sizes))
    except subprocess.TimeoutExpired:
        raise PipelineError(f"{program} took longer than {SECONDS:g} s to lay out the graph") from None
    except (subprocess.CalledProcessError, OSError, ValueError, IndexError) as error:
        raise PipelineError(f"{program} could not lay out the graph: {str(error)[:200]}") from error


def _empty_label(size: Size | None) -> str:
    """An empty label of a given size, in DOT, which makes Graphviz keep that space free."""
    if size is None:
        return ""
    table = (
        f'<TABLE FIXEDSIZE="TRUE" BORDER="0" WIDTH="{size[0]:.0f}" HEIGHT="{size[1]:.0f}"><TR><TD></TD></TR></TABLE>'
    )
    return f" [label=<{table}>]"


def _read_plain(text: str, count: int) -> Layout:
    """Parse the plain output of Graphviz, in inches from the lower left corner."""
    width = height = 0.0
    centres: list[Point] = [(0.0, 0.0)] * count
    links: dict[Link, tuple[Point, ...]] = {}
    labels: dict[Link, Point] = {}
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
            if len(words) == last + 5:  # a label and its position come before style and color
                labels[ends] = (float(words[last + 1]) * INCH, height - float(words[last + 2]) * INCH)
    return Layout(width=width, height=height, centres=centres, lines=links, curved=True, labels=labels)


def _layout_by_ranks(sizes: Sequence[Size], links: Sequence[Link], labels: Mapping[Link, Size]) -> Layout:
    """Compute a layered layout: ranks by longest path, order by barycenter, x by least squares."""
    upward = _back_links(len(sizes), links)
    steps = [
        (b, a, length) if (a, b) in upward else (a, b, length)
        for a, b in links
        for length in (2 if (a, b) in labels else 1,)
    ]
    ranks = _ranks(len(sizes), steps)
    boxes = [_Spot(left=w / 2, right=w / 2, height=h, box=True) for w, h in sizes]
    rows: list[list[_Spot]] = [[] for _ in range(max(ranks, default=-1) + 1)]
    for box, rank in zip(boxes, ranks, strict=True):
        rows[rank].append(box)
    chains: list[list[_Spot]] = []
    for link, (source, target, _) in zip(links, steps, strict=True):
        bends = [_Spot(left=GAP / 4, right=GAP / 4) for _ in range(ranks[source] + 1, ranks[target])]
        if link in labels:
            width, height = labels[link]
            labelled = bends[-1 if link in upward else 0]  # next to the source of the link
            labelled.right, labelled.height = BESIDE + width, height
        chain = [boxes[source], *bends, boxes[target]]
        for rank, bend in enumerate(bends, ranks[source] + 1):
            rows[rank].append(bend)
        for above, below in pairwise(chain):
            above.below.append(below)
            below.above.append(above)
        chains.append(chain)
    _order_ranks(rows)
    _set_x(rows)
    _straighten(rows, chains)
    return _build_layout(rows, boxes, dict(zip(links, chains, strict=True)), upward, labels)


@dataclass(slots=True, eq=False)
class _Spot:
    """A box in its rank, or the point where a longer link passes through a rank, with its label."""

    left: float
    right: float
    """Width on each side of `x`."""
    height: float = 0.0
    x: float = 0.0
    y: float = 0.0
    box: bool = False
    position: int = 0
    """Position in the rank, from 0."""
    above: list[_Spot] = field(default_factory=list["_Spot"])
    below: list[_Spot] = field(default_factory=list["_Spot"])


def _back_links(count: int, links: Sequence[Link]) -> set[Link]:
    """Return the links that close a cycle, by a depth-first search that starts at the first box."""
    targets: list[list[int]] = [[] for _ in range(count)]
    for source, target in links:
        targets[source].append(target)
    closing: set[Link] = set()
    state = [0] * count  # 1: on the current path, 2: done
    for first in range(count):
        path = [] if state[first] else [(first, iter(targets[first]))]
        state[first] = state[first] or 1
        while path:
            here, ahead = path[-1]
            target = next(ahead, None)
            if target is None:
                state[here] = 2
                path.pop()
            elif state[target] == 1:
                closing.add((here, target))
            elif state[target] == 0:
                state[target] = 1
                path.append((target, iter(targets[target])))
    return closing


def _ranks(count: int, steps: Sequence[tuple[int, int, int]]) -> list[int]:
    """Rank of each box, below all its predecessors; a step is `(source, target, minimum distance in ranks)`."""
    after: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    missing = [0] * count
    for source, target, length in steps:
        after[source].append((target, length))
        missing[target] += 1
    ranks, ready = [0] * count, [box for box in range(count) if not missing[box]]
    first = tuple(ready)
    while ready:
        here = ready.pop()
        for target, length in after[here]:
            ranks[target] = max(ranks[target], ranks[here] + length)
            missing[target] -= 1
            if not missing[target]:
                ready.append(target)
    for here in first:  # no predecessor, so it can move down to its successors
        ranks[here] = min((ranks[target] - length for target, length in after[here]), default=0)
    return ranks


def _order_ranks(rows: list[list[_Spot]]) -> None:
    """Order each rank in place, so that few links cross."""
    _set_positions(rows)
    best, fewest = [list(row) for row in rows], _crossings(rows)
    sweeps = max(2, min(SWEEPS, WORK // (1 + sum(map(len, rows)))))
    for sweep in range(sweeps):
        down = sweep % 2 == 0
        for row in rows[1:] if down else rows[-2::-1]:
            row.sort(key=lambda spot: _barycentre(spot, spot.above if down else spot.below))
            _set_positions([row])
        crossings = _crossings(rows)
        if crossings < fewest:
            best, fewest = [list(row) for row in rows], crossings
    rows[:] = best
    _set_positions(rows)


def _set_positions(rows: Sequence[Sequence[_Spot]]) -> None:
    for row in rows:
        for position, spot in enumerate(row):
            spot.position = position


def _barycentre(spot: _Spot, beside: Sequence[_Spot]) -> float:
    return sum(neighbor.position for neighbor in beside) / len(beside) if beside else spot.position


def _crossings(rows: Sequence[Sequence[_Spot]]) -> int:
    """Count the crossings of links between neighboring ranks."""
    count = 0
    for row in rows:
        passed: list[int] = []
        for position in (below for spot in row for below in sorted(neighbor.position for neighbor in spot.below)):
            index = bisect_right(passed, position)
            count += len(passed) - index  # links from further left that end further right
            passed.insert(index, position)
    return count


def _set_x(rows: Sequence[Sequence[_Spot]]) -> None:
    """Set the x of every spot close to its neighbors above and below, without overlap."""
    for row in rows:
        _settle_rank(row, [0.0] * len(row), [1.0] * len(row))
    sweeps = max(2, min(SWEEPS, WORK // (1 + sum(map(len, rows)))))
    for sweep in range(sweeps):
        both, down = sweep >= sweeps - 2, sweep % 2 == 0
        for row in rows if down else reversed(rows):
            wanted: list[float] = []
            weights: list[float] = []
            for spot in row:
                beside = spot.above + spot.below if both else spot.above if down else spot.below
                pulls = [_pull(spot, neighbor) for neighbor in beside]
                total = sum(pulls)
                middle = sum(pull * neighbor.x for pull, neighbor in zip(pulls, beside, strict=True))
                wanted.append(middle / total if total else spot.x)
                weights.append(total or 0.1)
            _settle_rank(row, wanted, weights)


def _pull(spot: _Spot, other: _Spot) -> float:
    """Weight of a link between two spots; it is largest between two bends, where a link should be straight."""
    return (8.0, 2.0, 1.0)[spot.box + other.box]


def _straighten(rows: Sequence[Sequence[_Spot]], chains: Iterable[Sequence[_Spot]]) -> None:
    """Align the bends of each link vertically if their neighbors leave room."""
    ranks = {id(spot): row for row in rows for spot in row}
    for _, *bends, _ in chains:
        low, high = -inf, inf
        for bend in bends:
            row = ranks[id(bend)]
            if bend.position:
                left = row[bend.position - 1]
                low = max(low, left.x + left.right + GAP / 2 + bend.left)
            if bend.position + 1 < len(row):
                right = row[bend.position + 1]
                high = min(high, right.x - right.left - GAP / 2 - bend.right)
        if bends and low <= high:
            middle = min(max(sum(bend.x for bend in bends) / len(bends), low), high)
            for bend in bends:
                bend.x = middle


def _settle_rank(row: Sequence[_Spot], wanted: Sequence[float], weights: Sequence[float]) -> None:
    """Set the x of the spots in a rank close to wanted values, by least squares (pool adjacent violators)."""
    blocks: list[tuple[float, float, int]] = []  # mean, weight, spots
    offsets = list(accumulate((a.right + GAP / 2 + b.left for a, b in pairwise(row)), initial=0.0))
    for want, weight, offset in zip(wanted, weights, offsets, strict=False):
        mean, size = want - offset, 1
        while blocks and blocks[-1][0] >= mean:
            other, heavy, more = blocks.pop()
            mean, weight, size = (mean * weight + other * heavy) / (weight + heavy), weight + heavy, size + more
        blocks.append((mean, weight, size))
    means = [mean for mean, _, size in blocks for _ in range(size)]
    for spot, mean, offset in zip(row, means, offsets, strict=False):
        spot.x = mean + offset


def _build_layout(
    rows: Sequence[Sequence[_Spot]],
    boxes: Sequence[_Spot],
    chains: Mapping[Link, Sequence[_Spot]],
    upward: Collection[Link],
    labels: Mapping[Link, Size],
) -> Layout:
    """Build the layout, moved so that it starts at the origin."""
    x0 = min((spot.x - spot.left for row in rows for spot in row), default=0.0)
    bounds: dict[int, tuple[float, float]] = {}
    y = 0.0
    for row in rows:
        tall = max(spot.height for spot in row)
        if bounds:  # not above the first rank
            y += GAP if any(spot.box for spot in row) else GAP / 2
        for spot in row:
            spot.x, spot.y = spot.x - x0, y + tall / 2
            bounds[id(spot)] = (y, y + tall)
        y += tall
    upper, lower = _ports(chains, 0), _ports(chains, -1)
    lines: dict[Link, tuple[Point, ...]] = {}
    for link, (first, *bends, last) in chains.items():
        start, end = upper[link], lower[link]
        points = [(start, first.y + first.height / 2), (start, bounds[id(first)][1])]
        points += [(bend.x, y) for bend in bends for y in bounds[id(bend)]]
        points += [(end, bounds[id(last)][0]), (end, last.y - last.height / 2)]
        points = list(dict.fromkeys(points))
        lines[link] = tuple(reversed(points) if link in upward else points)
    spots = {link: chains[link][-2 if link in upward else 1] for link in labels if link in chains}
    return Layout(
        width=max((spot.x + spot.right for row in rows for spot in row), default=0.0),
        height=y,
        centres=[(box.x, box.y) for box in boxes],
        lines=lines,
        curved=False,
        labels={link: (spot.x + BESIDE + labels[link][0] / 2, spot.y) for link, spot in spots.items()},
    )


def _ports(chains: Mapping[Link, Sequence[_Spot]], end: int) -> dict[Link, float]:
    """Compute the x where each link meets the box at its upper (`end=0`) or lower (`end=-1`) end, evenly spaced."""
    links_of: dict[int, list[Link]] = {}
    for link, chain in chains.items():
        links_of.setdefault(id(chain[end]), []).append(link)
    ports: dict[Link, float] = {}
    for some in links_of.values():
        some.sort(key=lambda link: chains[link][1 if end == 0 else -2].x)
        box = chains[some[0]][end]
        apart = min(PORT, (box.left + box.right - PORT) / len(some))
        for index, link in enumerate(some):
            ports[link] = box.x + (index - (len(some) - 1) / 2) * apart
    return ports
