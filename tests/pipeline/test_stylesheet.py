"""A stylesheet fills in what stages do not say themselves; the nearer rule wins."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from context_compiler.pipeline import (
    Graph,
    Node,
    StylesheetError,
    apply_stylesheet,
    parse_dot,
    parse_stylesheet,
)

SHEET = """
    /* everybody */ * { llm_model: small; llm_provider: p; }
    hexagon { llm_model: medium }
    .review { llm_model: "large \\"one\\""; reasoning_effort: low; }
    .review { reasoning_effort: high; }
    #special { llm_model: gpt-5.2:thinking; }
"""


def styled(nodes: str) -> dict[str, Node]:
    graph = parse_dot(f"digraph g {{ {nodes} }}")
    sheet = {"model_stylesheet": SHEET}
    return dict(apply_stylesheet(Graph(name="g", attrs=sheet, nodes=graph.nodes)).nodes)


def test_the_more_specific_rule_wins_and_then_the_later_one() -> None:
    nodes = styled('a; b [shape=hexagon]; c [shape=hexagon, class="x, review"]; special [class=review]')
    assert {name: node.llm_model for name, node in nodes.items()} == {
        "a": "small",
        "b": "medium",
        "c": 'large "one"',
        "special": "gpt-5.2:thinking",
    }
    assert (nodes["c"].reasoning_effort, nodes["a"].reasoning_effort) == ("high", "")
    assert {node.llm_provider for node in nodes.values()} == {"p"}


def test_attributes_of_the_stage_override_every_rule() -> None:
    nodes = styled('special [llm_model=own, reasoning_effort=""]; node [llm_model=default]; d [class=review]')
    assert nodes["special"].llm_model == "own"
    assert nodes["d"].llm_model == "default"


def test_the_class_of_a_subgraph_counts() -> None:
    assert styled('subgraph s { label="Review"; a }')["a"].reasoning_effort == "high"


def test_the_given_graph_is_not_changed() -> None:
    graph = parse_dot('digraph g { model_stylesheet="* { llm_model: m; }"; a }')
    new = apply_stylesheet(graph)
    assert (graph.nodes["a"].llm_model, new.nodes["a"].llm_model) == ("", "m")
    assert apply_stylesheet(parse_dot("digraph g { a }")).nodes["a"].attrs == {}


def test_the_names_of_other_engines_are_read() -> None:
    graph = parse_dot('digraph g { model_stylesheet="box { model: m; provider: p }"; a }')
    node = apply_stylesheet(graph).nodes["a"]
    assert (node.llm_model, node.llm_provider) == ("m", "p")


@pytest.mark.parametrize(
    ("sheet", "at", "why"),
    [
        ("* llm_model: x", 2, "{ is missing"),
        ("* { llm_model x }", 4, "declaration"),
        ("* { llm_model: x", 16, "missing"),
        ("* { llm_model: a b: c }", 17, "; is missing"),
        ("% { }", 0, "selector"),
        ("* {} }", 5, "selector"),
        ("* { /* open", 4, "declaration"),
    ],
)
def test_an_invalid_stylesheet_is_refused_with_its_position(sheet: str, at: int, why: str) -> None:
    with pytest.raises(StylesheetError, match=why) as caught:
        parse_stylesheet(sheet)
    assert caught.value.at == at


pieces = st.sampled_from(
    ["*", "{", "}", "#a", ".b", "box", "llm_model", ":", ";", " ", '"', "/*", "*/", "x", "\\", "\n"]
)


@given(st.lists(pieces, max_size=20).map("".join) | st.text(max_size=40))
def test_any_text_is_a_stylesheet_or_an_error(text: str) -> None:
    try:
        rules = parse_stylesheet(text)
    except StylesheetError as error:
        assert 0 <= error.at <= len(text)
    else:
        assert all(rule.name for rule in rules)


def test_attributes_of_the_graph_apply_after_every_rule() -> None:
    graph = parse_dot(
        'digraph g { llm_model=big; reasoning_effort=low; model_stylesheet=".x { llm_model: small }";'
        "a; b [class=x]; c [llm_model=own] }"
    )
    models = {node.name: (node.llm_model, node.reasoning_effort) for node in apply_stylesheet(graph).nodes.values()}
    assert models == {"a": ("big", "low"), "b": ("small", "low"), "c": ("own", "low")}
