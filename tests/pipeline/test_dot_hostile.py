"""Any text is a graph or an error with a place, in bounded time and memory; any graph can be written and read back."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from context_compiler.errors import GraphError
from context_compiler.pipeline import Edge, Graph, Node, parse_dot, to_dot, validate

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,6}", fullmatch=True) | st.text(
    st.characters(exclude_characters="\0\r", codec="utf-8"), max_size=6
)
written = st.text(st.characters(exclude_characters="\0\r", codec="utf-8"), max_size=20)
values = written | st.booleans() | st.integers(-(10**13), 10**13) | st.sampled_from([0.5, -1.25, 3.0, 900.125])
attributes = st.dictionaries(names, values, max_size=3)


@given(
    attrs=attributes,
    nodes=st.dictionaries(names, attributes, max_size=4),
    edges=st.lists(st.tuples(names, names, attributes), max_size=4),
)
def test_any_graph_is_unchanged_by_writing_and_reading(
    attrs: dict[str, object], nodes: dict[str, dict[str, object]], edges: list[tuple[str, str, dict[str, object]]]
) -> None:
    from_python = Graph(name="g", attrs=attrs)  # type: ignore[arg-type]
    again = parse_dot(to_dot(from_python))
    assert (again.name, again.attrs) == ("g", attrs)
    named = {name: nodes.get(name, {}) for name in (*nodes, *(end for edge in edges for end in edge[:2]))}
    source = to_dot(_graph(attrs, nodes, edges))
    assert parse_dot(source) == _graph(attrs, named, edges)


def _graph(
    attrs: object, nodes: dict[str, dict[str, object]], edges: list[tuple[str, str, dict[str, object]]]
) -> Graph:

    return Graph(
        name="g",
        attrs=attrs,  # type: ignore[arg-type]
        nodes={name: Node(name=name, attrs=said) for name, said in nodes.items()},  # type: ignore[arg-type]
        edges=tuple(Edge(source=source, target=target, attrs=said) for source, target, said in edges),  # type: ignore[arg-type]
    )


pieces = st.sampled_from(
    [
        *(
            "digraph ",
            "g ",
            "{",
            "}",
            "[",
            "]",
            "a",
            "b ",
            "->",
            "=",
            ",",
            ";",
            '"',
            "\\",
            "\n",
            "//",
            "/*",
            "*/",
            "-",
            ".",
        ),
        *("subgraph ", "node ", "edge ", "graph ", "label", "1", "900s", "true", "<", ":", "é", "\0", "\ufeff", "#"),
    ]
)


@given(st.lists(pieces, max_size=40).map("".join) | st.text(max_size=60))
def test_any_text_is_a_graph_or_an_error_with_a_position(text: str) -> None:
    for source in (text, f"digraph g {{ {text} }}", f"digraph g {{ a [{text}] }}"):
        try:
            graph = parse_dot(source)
        except GraphError as error:
            assert error.line and error.column and error.snippet.endswith("^")
        else:
            assert parse_dot(to_dot(graph)) == graph


HOSTILE: dict[str, Callable[[], str]] = {
    "nesting": lambda: "digraph g {" + "subgraph {" * 200_000,
    "closed nesting": lambda: "digraph g {" + "subgraph {" * 100_000 + "}" * 100_001,
    "brackets": lambda: "digraph g { a " + "[" * 10_000_000,
    "an unclosed string": lambda: 'digraph g { a [x="' + "a" * 10_000_000,
    "many unclosed strings": lambda: "digraph g { a [" + 'x="\\' * 500_000,
    "an unclosed comment": lambda: "digraph g { /*" + "* " * 5_000_000,
    "one long comment": lambda: "digraph g { //" + "*" * 10_000_000,
    "many attributes": lambda: "digraph g { a [" + "k=v " * 100_000 + "] }",
    "many edges": lambda: edges(20_000),
    "a long chain": lambda: "digraph g { a" + "->a" * 25_000 + "}",
    "many stages": lambda: "digraph g {" + "a;" * 25_000 + "}",
    "NUL": lambda: "digraph g { a [x=" + "\0" * 1_000_000,
    "more than there may be": lambda: " " * 17_000_000,
    "many settings": lambda: "digraph g {" + "a=1;" * 25_000 + "}",
    "digits": lambda: "digraph g { a [x=" + "1" * 10_000_000 + "] }",
    "signs": lambda: "digraph g { a [x=" + "-." * 5_000_000,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_sources_end_in_a_graph_or_a_short_error(kind: str) -> None:
    ended(HOSTILE[kind]())


def edges(count: int) -> str:
    return "digraph g {" + "".join(f"n{n % 999}->n{n % 998};" for n in range(count)) + "}"


@pytest.mark.parametrize(
    ("source", "most"),
    [
        ("digraph g {" + "subgraph {" * 100_000, 50_000_000),
        (edges(10_000), 20_000_000),
        ("digraph g { /*" + "* " * 500_000, 50_000_000),
    ],
    ids=["nesting", "edges", "an unclosed comment"],
)
def test_hostile_sources_use_memory_in_proportion_to_their_length(source: str, most: int) -> None:
    """Sources are a tenth of those above, because tracing makes allocations slow."""
    tracemalloc.start()
    try:
        ended(source)
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def ended(source: str) -> None:
    try:
        parse_dot(source)
    except GraphError as error:
        assert len(str(error)) < 500 and len(error.snippet) < 500


def test_a_hundred_thousand_unknown_attributes_are_found() -> None:
    unknown = ",".join(f"shap{n}=1" for n in range(100_000))
    graph = parse_dot(
        f"digraph g {{ start [shape=Mdiamond]; done [shape=Msquare]; start -> a -> done; a [{unknown}] }}"
    )
    diagnostics = [diagnostic for diagnostic in validate(graph) if diagnostic.rule == "unknown_attribute"]
    assert len(diagnostics) == 100_000 and diagnostics[0].fix == "did you mean shape?"


def test_ten_thousand_stages_are_read_and_checked() -> None:
    stages = "".join(f'n{n} [label="Stage {n}", prompt="Do {n}", fidelity="summary:low"];\n' for n in range(10_000))
    edges = "".join(f'n{n} -> n{n + 1} [label="on"];\n' for n in range(9_999))
    ends = "start [shape=Mdiamond]; done [shape=Msquare]; start -> n0; n9999 -> done"
    source = f"digraph g {{\n{stages}{edges}{ends} }}"
    graph = parse_dot(source)
    assert len(graph.nodes) == 10_002 and validate(graph) == ()
