"""DOT is read by what it means, forgiven where only punctuation differs, and refused with the place elsewhere."""

from __future__ import annotations

import pytest

from context_compiler.errors import GraphError, PipelineError
from context_compiler.pipeline import Graph, parse_dot, to_dot
from context_compiler.pipeline.dot_graph import TOLERATED

LINEAR = "digraph g { start [shape=Mdiamond] a [prompt=x] b [prompt=y] done [shape=Msquare] start -> a -> b -> done }"


def rules(graph: Graph) -> list[str]:
    return [one.rule for one in graph.diagnostics]


def test_a_linear_pipeline_has_its_stages_and_edges_in_order() -> None:
    graph = parse_dot(LINEAR)
    assert list(graph.nodes) == ["start", "a", "b", "done"]
    assert [(edge.source, edge.target) for edge in graph.edges] == [("start", "a"), ("a", "b"), ("b", "done")]
    assert [edge.target for edge in graph.outgoing("a")] == ["b"]
    assert [edge.source for edge in graph.incoming("a")] == ["start"]
    assert graph.diagnostics == ()
    assert (graph.starts[0].name, graph.exits[0].name) == ("start", "done")


def test_settings_of_the_graph_come_from_a_graph_block_or_plain_assignments() -> None:
    graph = parse_dot('digraph g { graph [goal="Ship", label="L"]; default_max_retries=3; rankdir=LR }')
    assert (graph.goal, graph.label, graph.default_max_retries) == ("Ship", "L", 3)
    assert graph.attrs["rankdir"] == "LR"


def test_attributes_may_span_lines_with_comments_between_them() -> None:
    graph = parse_dot(
        """digraph g {
        /* all of it */
        a [
            label = "A // no comment", // a comment with "quotes" and ]
            prompt = "see https://example.com /* kept */
second line",
            /* , */ max_retries = 2
        ]
    }"""
    )
    node = graph.nodes["a"]
    assert node.label == "A // no comment" and node.max_retries == 2
    assert node.prompt == "see https://example.com /* kept */\nsecond line"
    assert graph.diagnostics == ()


def test_values_have_their_types_and_are_read_by_meaning() -> None:
    graph = parse_dot(
        'digraph g { a [goal_gate="true", allow_partial=true, max_retries="3", timeout="900s", weight=-2, x=.5, y=1.50]'
        " b [timeout=1200, auto_status=yes, max_retries=0] c [timeout=15m] d [timeout=250ms, goal_gate=maybe]"
        ' a -> b [weight="7"] }'
    )
    a, b, c, d = graph.nodes.values()
    assert a.goal_gate and a.allow_partial and a.max_retries == 3 and a.timeout == 900
    assert a.attrs["weight"] == -2 and a.number("x") == 0.5 and a.attrs["y"] == 1.5
    assert b.timeout == 1200 and b.auto_status and b.max_retries == 0
    assert (c.timeout, d.timeout, d.goal_gate, c.max_retries) == (900, 0.25, False, None)
    assert graph.edges[0].weight == 7


def test_escapes_in_strings() -> None:
    graph = parse_dot(r'digraph g { a [prompt="say \"hi\"\n\tthen \\ and \d+ \l"] }')
    assert graph.nodes["a"].prompt == 'say "hi"\n\tthen \\ and \\d+ \\l'


def test_chained_edges_share_their_attributes() -> None:
    graph = parse_dot("digraph g { a -> b -> c [label=x, weight=2]; a; b; c }")
    assert [(edge.source, edge.target, edge.label, edge.weight) for edge in graph.edges] == [
        ("a", "b", "x", 2),
        ("b", "c", "x", 2),
    ]


def test_defaults_apply_from_their_position_within_their_scope() -> None:
    graph = parse_dot(
        """digraph g {
        before
        node [shape=diamond, llm_model=m]
        edge [weight=1]
        outer [llm_model=own]
        subgraph inner { node [shape=hexagon]; edge [weight=5]; x; x -> outer }
        after
        after -> outer
    }"""
    )
    shapes = {name: (node.shape, node.llm_model) for name, node in graph.nodes.items()}
    assert shapes == {
        "before": ("box", ""),
        "outer": ("diamond", "own"),
        "x": ("hexagon", "m"),
        "after": ("diamond", "m"),
    }
    assert [edge.weight for edge in graph.edges] == [5, 1]


def test_a_subgraph_gives_its_stages_a_class_and_disappears() -> None:
    graph = parse_dot(
        """digraph g {
        subgraph cluster_a { label="Loop A!"; x [class="one, two"]
            subgraph { graph [label="Inner Part"]; y } }
        subgraph b { z }
    }"""
    )
    assert graph.nodes["x"].classes == ("loop-a", "one", "two")
    assert graph.nodes["y"].classes == ("inner-part", "loop-a")
    assert graph.nodes["z"].classes == ()
    assert "label" not in graph.attrs
    assert [(subgraph.name, subgraph.nodes, subgraph.parent) for subgraph in graph.subgraphs] == [
        ("cluster_a", ("x",), None),
        ("", ("y",), 0),
        ("b", ("z",), None),
    ]


def test_declaring_a_stage_again_merges_its_attributes() -> None:
    graph = parse_dot(
        'digraph g { a [label=x, prompt=p]; node [shape=hexagon]; a [label=y]; subgraph { label="S"; a } }'
    )
    assert graph.nodes["a"].attrs == {"label": "y", "prompt": "p"}
    assert graph.nodes["a"].classes == ("s",)


def test_a_stage_that_only_an_edge_names_exists_with_the_defaults_of_that_place() -> None:
    graph = parse_dot("digraph g { node [max_retries=2]; subgraph s { label=Work; a -> b -> c } c [max_retries=1]; a }")
    assert {name: node.max_retries for name, node in graph.nodes.items()} == {"c": 1, "a": 2, "b": 2}
    assert [(node.implied, node.classes) for node in graph.nodes.values()] == [
        (False, ()),
        (False, ()),
        (True, ("work",)),
    ]


@pytest.mark.parametrize(
    "source",
    [
        'x [node_type="codergen", type="tool"]',
        'node [type="codergen"]; x [type="tool"]',
        'node [type="codergen"]; x [node_type="tool"]',
        'node [node_type="codergen"]; x [shape=parallelogram]',
        'x [type="codergen"]; x [node_type="tool"]',
    ],
)
def test_a_tool_type_or_shape_of_a_stage_wins_over_codergen(source: str) -> None:
    assert parse_dot(f"digraph g {{ {source} }}").nodes["x"].handler == "tool"


def test_keys_may_contain_dots_and_unknown_ones_are_kept() -> None:
    graph = parse_dot('digraph g { stack.child_dotfile="c.dot"; a [human.default_choice=b, my.own_key="x"] }')
    assert graph.text("stack.child_dotfile") == "c.dot"
    assert graph.nodes["a"].text("human.default_choice") == "b"
    assert graph.nodes["a"].attrs["my.own_key"] == "x"


def test_old_spellings_are_read() -> None:
    graph = parse_dot(
        "digraph g { default_max_retry=4; context_fidelity_default=full; context_thread_default=t"
        ' a [node_type=tool, llm_prompt="p"] }'
    )
    assert (graph.default_max_retries, graph.default_fidelity, graph.default_thread_id) == (4, "full", "t")
    assert (graph.nodes["a"].handler, graph.nodes["a"].prompt) == ("tool", "p")


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("digraph g { a [x=1 y=2] }", "missing_separator"),
        ("digraph g { a [x=1; y=2] }", "semicolon_separator"),
        ("digraph g { a [x=1, y=2,] }", "trailing_separator"),
        ('digraph g { a [x="1\\\n2", y=2] }', "line_continuation"),
        ('digraph g { "a" [x=1, y=2] }', "quoted_id"),
        ('digraph g { a [x=1, "y"=2] }', "quoted_id"),
        ("digraph { a [x=1, y=2] }", "anonymous_graph"),
        ("digraph g { a [x=1] [y=2] }", "several_blocks"),
        ("digraph g { a.b [x=1, y=2] }", "dotted_id"),
    ],
)
def test_a_tolerated_mistake_is_a_warning_with_its_position(source: str, rule: str) -> None:
    graph = parse_dot(source)
    assert rules(graph) == [rule]
    (warning,) = graph.diagnostics
    assert warning.severity == "WARNING" and warning.fix and warning.line and warning.column
    (node,) = graph.nodes.values()
    assert node.attrs in ({"x": 1, "y": 2}, {"x": "12", "y": 2})


def test_every_tolerated_mistake_has_a_test() -> None:
    marks = next(mark for mark in test_a_tolerated_mistake_is_a_warning_with_its_position.pytestmark)  # type: ignore[attr-defined]
    assert {rule for _, rule in marks.args[1]} == set(TOLERATED)


def test_a_repeated_kind_of_mistake_is_one_warning_with_its_count() -> None:
    graph = parse_dot("digraph g {\n a [x=1 y=2 z=3]\n b [x=1 y=2] }")
    (warning,) = graph.diagnostics
    assert "(3 times)" in warning.message and (warning.line, warning.column) == (2, 9)


@pytest.mark.parametrize(
    ("source", "column", "why"),
    [
        ("", 1, "begins with: digraph"),
        ("strict digraph g {}", 1, "strict"),
        ("graph g { a -- b }", 1, "undirected"),
        ("digraph g { a -- b }", 15, "write -> instead"),
        ("digraph g { a:port -> b }", 14, "ports"),
        ("digraph g { a [label=<b>x</b>] }", 22, "HTML"),
        ("digraph g { {a b} -> c }", 13, "braces"),
        ("digraph g { a -> {b c} }", 18, "braces"),
        ("digraph g { a } digraph h { b }", 17, "one graph per file"),
        ('digraph g { a [condition=\\"x=y\\"] }', 26, "backslash"),
        ('digraph g { a [label="x] }', 22, "not closed"),
        ("digraph g { a /* b }", 15, "comment is not closed"),
        ("digraph g { a [x=1]; [y=2] }", 22, "must directly follow"),
        ("digraph g { [y=2] }", 13, "must directly follow"),
        ("digraph g { a [bold] }", 16, "no value"),
        ("digraph g { a [x=1,,y=2] }", 20, "','"),
        ("digraph g { a [x=1abc] }", 18, "quotes"),
        ("digraph g { a -> }", 18, "after ->"),
        ("digraph g { a ", 15, "ends too early"),
        ("digraph g { my-stage }", 15, "letters, digits"),
        ("digraph g { # no\n }", 13, "//"),
        ("digraph g { a\0 }", 14, "NUL"),
        ("digraph g { é }", 13, "'é'"),
    ],
)
def test_a_syntax_error_has_line_column_and_caret(source: str, column: int, why: str) -> None:
    with pytest.raises(GraphError) as caught:
        parse_dot(source, "plan.dot")
    error = caught.value
    assert isinstance(error, PipelineError)
    assert (error.path, error.line, error.column) == ("plan.dot", 1, column)
    assert why in str(error) and str(error).startswith(f"plan.dot:1:{column}: ") and "\n" not in str(error)
    line, _, caret = error.snippet.rpartition("\n")
    assert line == source.splitlines()[0] if source else line == ""
    assert caret.index("^") == column - 1


def test_the_position_is_right_on_later_lines_with_windows_line_ends_and_on_long_lines() -> None:
    with pytest.raises(GraphError) as caught:
        parse_dot('\ufeffdigraph g {\r\n  a [x="1"]\r\n\tb [y=$]\r\n}')
    assert (caught.value.line, caught.value.column, caught.value.snippet) == (3, 7, "\tb [y=$]\n\t     ^")
    with pytest.raises(GraphError) as caught:
        parse_dot("digraph g { " + "a; " * 1_000 + "$" + " b;" * 1_000 + "}")
    shown, caret = caught.value.snippet.split("\n")
    assert len(shown) <= 100 and shown[caret.index("^")] == "$"


def test_a_graph_is_unchanged_by_writing_and_reading() -> None:
    graph = parse_dot(
        """digraph plan { goal="Say \\"hi\\"\\n"; x.y=0.25
        node [llm_model="m"] "odd name" [label="a\\\\b", big=123456789012345678901234567890, n=-3]
        subgraph a { label="Part One"; one; subgraph { label=Two; two } three }
        one -> "odd name" -> node [condition="outcome=success", w=1.0, t=900s, ok=false] }"""
    )
    assert parse_dot(to_dot(graph)) == graph
    assert to_dot(parse_dot(to_dot(graph))) == to_dot(graph)
