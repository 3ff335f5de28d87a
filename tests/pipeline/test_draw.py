"""A drawing shows every stage and edge, with fidelity and thread, and nothing of the graph's text is markup."""

from __future__ import annotations

import shutil
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.dom import minidom

import pytest
from hypothesis import given
from hypothesis import strategies as st

from context_compiler.errors import PipelineError
from context_compiler.pipeline import Edge, Graph, Node, parse_dot, to_svg
from context_compiler.pipeline.layout import Layout, compute_layout
from tests.pipeline.test_fidelity import EXAMPLE


def texts(svg: str) -> list[str]:
    document = minidom.parseString(svg)
    return [node.firstChild.data for node in document.getElementsByTagName("text") if node.firstChild]  # type: ignore[union-attr]


def drawn(graph: Graph) -> str:
    return to_svg(graph, graphviz=None)


def test_stages_and_edges_show_fidelity_and_thread() -> None:
    shown = texts(drawn(parse_dot(EXAMPLE)))
    for said in ("pipeline", "default fidelity: compact", "implement", "full #coding", "summary:medium", "truncate"):
        assert said in shown, said
    assert shown.count("full") == 2 and shown.count("review_passed == true") == 1


def test_every_edge_is_a_line_once() -> None:
    svg = drawn(parse_dot("digraph g { a -> b; b -> a; a -> c; b -> b; a -> b [label=again]; a; b; c }"))
    assert svg.count("marker-end") == 4
    assert "again" in texts(svg)


def test_stages_do_not_overlap() -> None:
    document = minidom.parseString(drawn(parse_dot(EXAMPLE.replace("shape=box", "shape=box label=x"))))
    boxes = [
        tuple(float(box.getAttribute(name)) for name in ("x", "y", "width", "height"))
        for box in document.getElementsByTagName("rect")[1:]
    ]
    assert len(boxes) == 6
    for index, (x, y, w, h) in enumerate(boxes):
        for x2, y2, w2, h2 in boxes[index + 1 :]:
            assert x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y


HOSTILE = '</text><script>alert(1)</script><a href=\\"javascript:x\\"> & ]]> \x07 \ud800 \ufffe'


def test_text_of_the_graph_is_never_markup() -> None:
    source = (
        f'digraph "{HOSTILE}" {{ goal="{HOSTILE}"; default_thread_id="{HOSTILE}"; "{HOSTILE}" [label="{HOSTILE}", '
        f'prompt="{HOSTILE}", thread_id="{HOSTILE}", fidelity="{HOSTILE}", llm_model="{HOSTILE}", shape="{HOSTILE}"];'
        f' "{HOSTILE}" -> b [label="{HOSTILE}", condition="{HOSTILE}"] }}'
    )
    document = minidom.parseString(drawn(parse_dot(source)).encode())
    assert not document.getElementsByTagName("script") and not document.getElementsByTagName("a")
    assert {node.tagName for node in document.getElementsByTagName("*")} <= ALLOWED


ALLOWED = {"svg", "title", "style", "defs", "marker", "path", "rect", "text", "g", "polygon"}


def test_an_empty_graph_and_a_stage_that_only_an_edge_names_can_be_drawn() -> None:
    assert "pipeline" in texts(drawn(parse_dot("digraph { }")))
    shown = texts(drawn(parse_dot("digraph g { a -> b; a }")))
    assert shown[-2:] == ["b", "codergen"]
    shown = texts(drawn(Graph(name="g", nodes={"a": Node(name="a")}, edges=(Edge(source="a", target="b"),))))
    assert "not declared" in shown


def test_the_same_graph_gives_the_same_drawing() -> None:
    assert drawn(parse_dot(EXAMPLE)) == drawn(parse_dot(EXAMPLE))


def test_the_drawing_in_the_docs_matches_its_graph() -> None:
    docs = Path(__file__).parents[2] / "docs"
    source = (docs / "pipelines.md").read_text(encoding="utf-8").partition("```text\n")[2].partition("```")[0]
    assert drawn(parse_dot(source)) == (docs / "pipeline.svg").read_text(encoding="utf-8")


def test_a_graph_that_is_too_large_to_draw_is_refused() -> None:
    chain = " -> ".join(f"n{number}" for number in range(2_000))
    with pytest.raises(PipelineError, match="too many to draw"):
        drawn(parse_dot(f"digraph g {{ {chain} }}"))


def program(folder: Path, body: str) -> str:
    """A stand-in for Graphviz."""
    path = folder / "dot"
    path.write_text(f"#!{sys.executable}\nimport sys, time\nsource = sys.stdin.read()\n{body}\n")
    path.chmod(0o755)
    return str(path)


PLAIN = """
# as the program prints it, with a label that only keeps a place free
assert sys.argv[1:] == ["-Tplain"] and "secret" not in source
print("graph 1 2 3")
print("node n0 1 2.5 1 0.5 x solid box black lightgrey")
print("node n1 1 0.5 1 0.5 x solid box black lightgrey")
print('edge n0 n1 4 1 2.25 1 2 1 1.5 1 0.75 "<TABLE>" 1.5 1 solid black')
print("stop")
"""


def test_graphviz_is_given_sizes_only_and_its_plain_answer_is_read(tmp_path: Path) -> None:
    layout = compute_layout([(72, 36), (72, 36)], [(0, 1)], graphviz=program(tmp_path, PLAIN))
    assert layout == Layout(
        width=144.0,
        height=216.0,
        centres=[(72.0, 36.0), (72.0, 180.0)],
        lines={(0, 1): ((72.0, 54.0), (72.0, 72.0), (72.0, 108.0), (72.0, 162.0))},
        curved=True,
        labels={(0, 1): (108.0, 144.0)},
    )
    svg = to_svg(parse_dot("digraph g { secret -> b; secret; b }"), graphviz=program(tmp_path, PLAIN))
    assert " C" in svg and "secret" in texts(svg)


@pytest.mark.parametrize("body", ["sys.exit(3)", "print('edge n0')", "print('node n9 1 1')"])
def test_a_graphviz_that_fails_is_an_error_of_one_line(tmp_path: Path, body: str) -> None:
    with pytest.raises(PipelineError, match="could not lay out the graph"):
        compute_layout([(72, 36)], [], graphviz=program(tmp_path, body))


def test_without_graphviz_the_built_in_layout_is_used(tmp_path: Path) -> None:
    layout = compute_layout([(72, 36), (72, 36), (10, 10)], [(0, 1)], graphviz=str(tmp_path / "no-dot"))
    assert not layout.curved
    assert layout.centres[0][1] < layout.centres[1][1]
    assert set(layout.lines) == {(0, 1)}


def test_a_line_bends_round_a_box_in_its_way() -> None:
    svg = drawn(parse_dot("digraph g { a -> b -> c -> d; d -> a; a; b; c; d }"))
    assert " Q" in svg and svg.count("marker-end") == 4


def test_labels_of_edges_between_the_same_boxes_are_placed_below_each_other() -> None:
    svg = drawn(parse_dot('digraph g { a; b; a -> b [label=one, condition="outcome=fail"]; a -> b [label=two] }'))
    labels = minidom.parseString(svg).getElementsByTagName("text")
    rows = {node.firstChild.data: float(node.getAttribute("y")) for node in labels if node.firstChild}  # type: ignore[union-attr]
    assert rows["one"] < rows["outcome=fail"] < rows["two"]
    assert svg.count("marker-end") == 1


GRAPHVIZ = shutil.which("dot")
real = pytest.mark.skipif(GRAPHVIZ is None, reason="Graphviz is not installed (Debian: apt-get install graphviz)")


@real
def test_graphviz_itself_lays_a_graph_out_and_lines_reach_their_boxes() -> None:
    sizes = [(90.0, 40.0), (120.0, 60.0), (70.0, 30.0)]
    links = [(0, 1), (1, 2), (2, 0)]
    layout = compute_layout(sizes, links, labels={(1, 2): (80.0, 30.0)}, graphviz=GRAPHVIZ)
    assert layout.curved and set(layout.lines) == set(links) and set(layout.labels) == {(1, 2)}
    for source, target in links:
        for end, index in ((source, 0), (target, -1)):
            (x, y), (cx, cy), (w, h) = layout.lines[source, target][index], layout.centres[end], sizes[end]
            assert abs(x - cx) <= w / 2 + 2 and abs(y - cy) <= h / 2 + 2
    for (x, y), (w, h) in zip(layout.centres, sizes, strict=True):
        assert w / 2 - 1 <= x <= layout.width - w / 2 + 1 and h / 2 - 1 <= y <= layout.height - h / 2 + 1


@real
def test_graphviz_itself_draws_everything_that_is_drawn_without_it() -> None:
    for source in (EXAMPLE, "digraph { }", "digraph g { a -> a; a -> b; b -> a [label=back]; a; b }"):
        graph = parse_dot(source)
        by_graphviz = to_svg(graph, graphviz=GRAPHVIZ)
        assert sorted(texts(by_graphviz)) == sorted(texts(drawn(graph)))
        assert by_graphviz == to_svg(graph, graphviz=GRAPHVIZ)


@real
def test_graphviz_gets_no_text_of_a_hostile_graph() -> None:
    source = f'digraph "{HOSTILE}" {{ "{HOSTILE}" [label="{HOSTILE}"]; "{HOSTILE}" -> b [label="{HOSTILE}"] }}'
    document = minidom.parseString(to_svg(parse_dot(source), graphviz=GRAPHVIZ).encode())
    assert {node.tagName for node in document.getElementsByTagName("*")} <= ALLOWED


SIZES = st.lists(st.tuples(st.integers(20, 200), st.integers(20, 80)), min_size=1, max_size=12)


@given(st.data(), SIZES)
def test_boxes_and_labels_never_cover_each_other_and_lines_pass_between_boxes(data: st.DataObject, sizes: Any) -> None:
    end = st.integers(0, len(sizes) - 1)
    pairs = data.draw(st.lists(st.tuples(end, end).filter(lambda pair: pair[0] != pair[1]), unique=True, max_size=24))
    labelled = data.draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    labels = dict.fromkeys(labelled, (90.0, 30.0))
    layout = compute_layout(sizes, pairs, labels=labels, graphviz=None)
    boxes = [around(*pair) for pair in zip(layout.centres, sizes, strict=True)]
    places = [*boxes, *(around(layout.labels[link], size) for link, size in labels.items())]
    for index, area in enumerate(places):
        assert (
            -0.01 <= area[0] and area[2] <= layout.width + 0.01 and -0.01 <= area[1] and area[3] <= layout.height + 0.01
        )
        assert not any(overlap(area, other) for other in places[index + 1 :])
    assert set(layout.lines) == set(pairs) and set(layout.labels) == set(labelled)
    for (source, target), points in layout.lines.items():
        for end, (x, y) in ((source, points[0]), (target, points[-1])):
            left, top, right, bottom = boxes[end]
            assert left <= x <= right and min(abs(y - top), abs(y - bottom)) < 0.01
        for (x, y), (x2, y2) in pairwise(points):
            steps = [(x + (x2 - x) * part / 10, y + (y2 - y) * part / 10) for part in range(11)]
            assert not any(overlap((px, py, px, py), box) for px, py in steps for box in boxes)


def around(centre: tuple[float, float], size: tuple[float, float]) -> tuple[float, float, float, float]:
    """Left, top, right, bottom."""
    (x, y), (w, h) = centre, size
    return x - w / 2, y - h / 2, x + w / 2, y + h / 2


def overlap(area: tuple[float, ...], other: tuple[float, ...]) -> bool:
    across = min(area[2], other[2]) - max(area[0], other[0])
    down = min(area[3], other[3]) - max(area[1], other[1])
    inside = area[:2] == area[2:] and across > -0.01
    return (across > 0.01 or inside and other[0] + 0.01 < area[0] < other[2] - 0.01) and (
        down > 0.01 or inside and other[1] + 0.01 < area[1] < other[3] - 0.01
    )


def test_two_stages_that_lead_to_each_other_have_two_lines_apart() -> None:
    layout = compute_layout([(90, 40), (90, 40)], [(0, 1), (1, 0)], graphviz=None)
    there, back = layout.lines[0, 1], layout.lines[1, 0]
    assert abs(there[0][0] - back[-1][0]) > 10 and (there[0][0] < back[-1][0]) == (there[-1][0] < back[0][0])
