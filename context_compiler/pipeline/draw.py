"""Drawings of graphs as SVG, with the stages, the edges, and their fidelities and threads.

All text from the graph is escaped. A drawing contains no script and loads no other file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import hypot
from unicodedata import category, east_asian_width

from context_compiler.pipeline.graph import Edge, Graph, Node
from context_compiler.pipeline.layout import Layout, Link, Point, compute_layout

COLUMN = 7.2
"""Width of one column of text, in points."""
LINE = 16.0
LINE_COLUMNS = 34
"""Maximum columns in a line of text."""
MARGIN = 24.0
ROW = 13.0
"""Height of a line of small text, in points."""
BEND = 26.0
"""Distance from a corner at which a line starts to bend, in points."""

FILLS = {
    **{"start": "#e8f5e9", "exit": "#e8f5e9", "codergen": "#e3f2fd", "tool": "#eeeeee", "conditional": "#fff8e1"},
    **{"wait.human": "#fce4ec", "parallel": "#ede7f6", "parallel.fan_in": "#ede7f6", "stack.manager_loop": "#e0f2f1"},
}
STROKES = {"full": "#1565c0", "truncate": "#9e9e9e"}
_UNPRINTABLE = re.compile("[^\t\n\r -\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

STYLE = (
    "text{font:12px ui-sans-serif,system-ui,sans-serif;fill:#212121}"
    ".name{font-weight:600}.small{font-size:10.5px;fill:#616161}.past{font-size:10.5px;fill:#1565c0}"
    ".title{font-size:14px;font-weight:600}path{fill:none;stroke:#757575;stroke-width:1.2}"
    ".tip{fill:#757575;stroke:none}.past-edge{stroke:#1565c0}.shut{stroke-dasharray:5 4}"
    ".on-line{paint-order:stroke;stroke:#ffffff;stroke-width:3px}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Outcome of a stage in a drawing within a page, and the address of its entry."""

    outcome: str
    """CSS class, such as `ran-success`."""
    link: str
    """Address of the stage's entry."""


def to_svg(graph: Graph, *, graphviz: str | None = "dot", marks: Mapping[str, Mark] | None = None) -> str:
    """Draw a graph as an SVG document.

    Args:
        graph: The graph. A stage that no statement declares gets a dashed outline.
        graphviz: The Graphviz program. If it is None or not installed, the layout is computed in Python.
        marks: For a drawing within a page, which has the style sheet: the marks of the stages that ran.

    Raises:
        PipelineError: the graph is too large, or Graphviz failed.
    """
    ends = [name for edge in graph.edges for name in (edge.source, edge.target)]
    first = [node.name for node in graph.starts]
    names = list(dict.fromkeys((*first, *graph.nodes, *ends)))
    positions = {name: position for position, name in enumerate(names)}
    boxes = [_box_lines(graph.nodes.get(name), name) for name in names]
    sizes = [(2 * LINE + COLUMN * max(_columns(text) for _, text in box), LINE * (len(box) + 1)) for box in boxes]
    links = [(positions[edge.source], positions[edge.target]) for edge in graph.edges if edge.source != edge.target]
    groups: dict[Link, list[Edge]] = {}  # edges between the same boxes share a line
    for edge in graph.edges:
        groups.setdefault((positions[edge.source], positions[edge.target]), []).append(edge)
    labels = {ends: _label_size(rows) for ends, some in groups.items() if (rows := _label_rows(some))}
    layout = compute_layout(sizes, list(dict.fromkeys(links)), labels=labels, graphviz=graphviz)
    lines = {ends: _line_points(ends, layout) for ends in groups}
    drawn = [element for ends, some in groups.items() for element in _draw_edges(some, lines[ends], layout, ends)]
    for position, name in enumerate(names):
        box = _draw_box(graph.nodes.get(name), boxes[position], layout.centres[position], sizes[position])
        drawn += box if marks is None else _marked(box, marks.get(name))
    return _document(graph, layout, drawn, alone=marks is None)


def _marked(box: Iterable[str], mark: Mark | None) -> Iterator[str]:
    """A box with the class of its outcome, as a link to its entry."""
    if mark is None:
        yield from ('<g class="stage not-run">', *box, "</g>")
    else:
        yield from (f'<a class="stage {_escape(mark.outcome)}" href="{_escape(mark.link)}">', *box, "</a>")


def _document(graph: Graph, layout: Layout, drawn: Iterable[str], *, alone: bool) -> str:
    title = _shorten(graph.label or "pipeline", 80)
    lines = [f"goal: {_shorten(graph.goal, 100)}"] if graph.goal else []
    lines.append(f"default fidelity: {_shorten(graph.default_fidelity or 'compact', 40)}")
    if graph.default_thread_id:
        lines.append(f"default thread: {_shorten(graph.default_thread_id, 40)}")
    longest = COLUMN * max(map(_columns, (title, *lines)))
    labels = (len(text) for edge in graph.edges for text in (edge.label, edge.condition))
    room = min(LINE_COLUMNS, max(labels, default=0)) * COLUMN
    width, top = max(layout.width, longest) + 2 * MARGIN + 2 * room, LINE * (len(lines) + 3)
    head = [_text(MARGIN, 1.6 * LINE, title, "title", "start")]
    head += [_text(MARGIN, LINE * (number + 2.7), line, "small", "start") for number, line in enumerate(lines)]
    body = [f'<g transform="translate({MARGIN + room:.1f} {top + MARGIN / 2:.1f})">', *drawn, "</g>"]
    height = layout.height + top + 2 * MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
            f'width="{width:.0f}" height="{height:.0f}" role="img">',
            f"<title>{_escape(title)}</title>",
            *([f"<style>{STYLE}</style>"] if alone else []),
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" fill="#757575" class="tip"/></marker></defs>',
            *(['<rect width="100%" height="100%" fill="#ffffff"/>'] if alone else []),
            *head,
            *body,
            "</svg>",
            "",
        ]
    )


def _box_lines(node: Node | None, name: str) -> list[tuple[str, str]]:
    """Lines of text in a stage's box, as `(CSS class, text)`."""
    if node is None:
        return [("name", _shorten(name, LINE_COLUMNS)), ("small", "not declared")]
    lines = [("name", _shorten(node.label.splitlines()[0] if node.label.strip() else name, LINE_COLUMNS))]
    model = f" · {node.llm_model}" if node.llm_model else ""
    named = f"{name} · " if node.label != name else ""
    lines.append(("small", _shorten(f"{named}{node.handler}{model}", LINE_COLUMNS)))
    caption = _fidelity_text(node.fidelity, node.thread_id)
    if caption:
        lines.append(("past", caption))
    if node.goal_gate:
        lines.append(("small", "goal gate"))
    return lines


def _fidelity_text(fidelity: str, thread: str) -> str:
    """Text for a fidelity and a thread; empty if neither is set."""
    return _shorten(" ".join(text for text in (fidelity, f"#{thread}" if thread else "") if text), LINE_COLUMNS)


def _draw_box(node: Node | None, lines: Sequence[tuple[str, str]], centre: Point, size: Point) -> Iterator[str]:
    (x, y), (w, h) = centre, size
    fill = FILLS.get(node.handler, "#f5f5f5") if node else "#ffffff"
    stroke = STROKES.get(node.fidelity, "#616161") if node else "#c62828"
    dash = "" if node else ' stroke-dasharray="4 3"'
    shown = _shorten(node.prompt or node.label, 300) if node else "only an edge names this stage"
    yield f"<g><title>{_escape(shown)}</title>"
    style = f'fill="{fill}" stroke="{stroke}" stroke-width="1.3"{dash}'
    left, up, right, down = x - w / 2, y - h / 2, x + w / 2, y + h / 2
    if node is not None and node.handler in ("conditional", "wait.human"):
        inset = 12.0
        corners = [(left, y), (left + inset, up), (right - inset, up), (right, y), (right - inset, down)]
        points = " ".join(f"{px:.1f},{py:.1f}" for px, py in [*corners, (left + inset, down)])
        yield f'<polygon points="{points}" {style}/>'
    else:
        round_ = h / 2 if node is not None and node.handler in ("start", "exit") else 6
        yield f'<rect x="{left:.1f}" y="{up:.1f}" width="{w:.1f}" height="{h:.1f}" rx="{round_:.1f}" {style}/>'
    for number, (kind, text) in enumerate(lines):
        yield _text(x, up + LINE * (number + 1) + 2, text, kind, "middle")
    yield "</g>"


def _label_rows(edges: Iterable[Edge]) -> list[tuple[str, str]]:
    """Rows of the label of a line, as `(CSS class, text)`."""
    rows: list[tuple[str, str]] = []
    for edge in edges:
        texts = (edge.label, edge.condition, "restart" if edge.loop_restart else "")
        rows += [("small", _shorten(text, LINE_COLUMNS)) for text in texts if text]
        caption = _fidelity_text(edge.fidelity, edge.thread_id)
        rows += [("past", caption)] if caption else []
    return rows


def _label_size(rows: Sequence[tuple[str, str]]) -> Point:
    return 10 + COLUMN * 0.88 * max(_columns(text) for _, text in rows), ROW * len(rows) + 4


def _line_points(ends: Link, layout: Layout) -> Sequence[Point]:
    """Points of a line; an edge from a stage to itself becomes a loop above its box."""
    if ends[0] == ends[1]:
        x, y = layout.centres[ends[0]]
        return ((x - 14, y - 20), (x - 40, y - 62), (x + 40, y - 62), (x + 14, y - 20))
    return layout.lines.get(ends, ())


def _draw_edges(edges: Sequence[Edge], points: Sequence[Point], layout: Layout, ends: Link) -> Iterator[str]:
    """Draw the line and the label of all edges between two boxes."""
    marked, conditional = any(edge.fidelity or edge.thread_id for edge in edges), all(edge.condition for edge in edges)
    kind = f"{'past-edge' if marked else ''} {'shut' if conditional else ''}".strip()
    if points:
        line = _path_data(points, layout.curved or ends[0] == ends[1])
        yield f'<path class="{kind}" d="{line}" marker-end="url(#tip)"/>'
    rows = _label_rows(edges)
    x, y = points[len(points) // 2] if points else layout.centres[ends[0]]
    spot = layout.labels.get(ends)
    if rows and spot is not None:
        width, height = _label_size(rows)
        x, y = spot[0] - width / 2, spot[1] - height / 2 + ROW - 1
    for number, (style, text) in enumerate(rows):
        yield _text(x + 5, y + ROW * number, text, f"{style} on-line", "start")


def _path_data(points: Sequence[Point], curved: bool) -> str:
    """SVG path data: cubic curves, or straight lines with round corners."""
    (x, y), rest = points[0], points[1:]
    if curved and len(rest) % 3 == 0:
        return f"M{x:.1f},{y:.1f} C{' '.join(f'{px:.1f},{py:.1f}' for px, py in rest)}"
    pieces = [f"M{x:.1f},{y:.1f}"]
    for before, corner, after in zip(points, rest, rest[1:], strict=False):
        (ax, ay), (bx, by) = _bend_start(corner, before), _bend_start(corner, after)
        pieces.append(f"L{ax:.1f},{ay:.1f} Q{corner[0]:.1f},{corner[1]:.1f} {bx:.1f},{by:.1f}")
    return " ".join([*pieces, f"L{points[-1][0]:.1f},{points[-1][1]:.1f}"])


def _bend_start(corner: Point, other: Point) -> Point:
    """Point on the line from a corner to another point where the bend starts, at most halfway."""
    dx, dy = other[0] - corner[0], other[1] - corner[1]
    length = hypot(dx, dy)
    part = min(BEND / length, 0.5) if length else 0.0
    return corner[0] + dx * part, corner[1] + dy * part


def _text(x: float, y: float, text: str, kind: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{_escape(text)}</text>'


def _shorten(text: str, most: int) -> str:
    line = " ".join(text[: 4 * most].split())
    line = line if _columns(line) <= most else line[: most + 1]
    while _columns(line) > most:
        line = line[:-2].rstrip() + "…"
    return line


def _escape(text: str) -> str:
    return escape(_UNPRINTABLE.sub("", text))


def _columns(text: str) -> int:
    """Width of a text in columns: two for a wide character, none for an invisible one or one on top of another."""
    return sum(1 + (east_asian_width(sign) in "FW") for sign in text if category(sign) not in ("Mn", "Me", "Cf", "Cc"))
