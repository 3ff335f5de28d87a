"""Which mode and which thread a stage gets: what is said nearest counts."""

from __future__ import annotations

import logging
from collections import UserList
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import context_compiler
from context_compiler.errors import FidelityError
from context_compiler.fidelity import (
    Fidelity,
    build_fidelity_preamble,
    fidelity_on_resume,
    resolve_fidelity,
    resolve_thread_id,
)
from context_compiler.pipeline import parse_dot
from context_compiler.tokens import TokenCounter

EXAMPLE = """
digraph pipeline {
    // Graph-level default
    default_fidelity="compact"
    start [shape=Mdiamond]
    analyze [shape=box prompt="Analyze the codebase" fidelity="summary:medium"]
    implement [shape=box prompt="Implement changes" fidelity="full" thread_id="coding"]
    review [shape=box prompt="Review implementation" fidelity="full" thread_id="coding"]
    deploy [shape=box prompt="Deploy to staging" fidelity="truncate"]
    done [shape=Msquare]
    start -> analyze
    analyze -> implement
    implement -> review [fidelity="full"]
    review -> implement [condition="review_passed == false" fidelity="full"]
    review -> deploy [condition="review_passed == true" fidelity="truncate"]
    deploy -> done
}
"""


def thing(**said: Any) -> SimpleNamespace:
    return SimpleNamespace(**said)


NOTHING = thing()


@pytest.mark.parametrize(
    ("edge", "node", "pipeline", "mode"),
    [
        ("full", "truncate", "summary:low", "full"),
        (None, "truncate", "summary:low", "truncate"),
        ("", "  ", "summary:low", "summary:low"),
        (None, None, None, "compact"),
        (" full ", None, None, "full"),
    ],
)
def test_fidelity_resolution_precedence(edge: Any, node: Any, pipeline: Any, mode: str) -> None:
    resolved = resolve_fidelity(thing(fidelity=edge), thing(fidelity=node), thing(default_fidelity=pipeline))
    assert str(resolved) == mode == resolved


def test_missing_edges_and_attributes_leave_the_default() -> None:
    assert resolve_fidelity(None, NOTHING, NOTHING) is Fidelity.COMPACT
    assert resolve_fidelity(NOTHING, thing(fidelity="full"), NOTHING) is Fidelity.FULL


def test_an_unknown_mode_is_skipped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="context_compiler"):
        assert resolve_fidelity(thing(fidelity="medium"), thing(fidelity="truncate"), NOTHING) == "truncate"
    assert "'medium'" in caplog.text


@pytest.mark.parametrize(
    ("node", "edge", "pipeline", "classes", "previous", "thread"),
    [
        ("node", "edge", "graph", ["class"], "before", "node"),
        (None, "edge", "graph", ["class"], "before", "edge"),
        (None, "", "graph", ["class"], "before", "graph"),
        (None, None, None, ["class", "other"], "before", "class"),
        (None, None, None, [], "before", "before"),
        (None, None, None, [], None, "own"),
    ],
)
def test_thread_resolution_precedence(
    node: Any, edge: Any, pipeline: Any, classes: list[str], previous: str | None, thread: str
) -> None:
    stage = thing(name="own", thread_id=node, classes=classes)
    resolved = resolve_thread_id(thing(thread_id=edge), stage, thing(default_thread_id=pipeline), previous)  # type: ignore[arg-type]
    assert resolved == thread


def test_the_classes_of_a_stage_are_any_sequence() -> None:
    for classes in (["review"], ("review",), UserList(["review"]), [" review "]):
        assert resolve_thread_id(None, thing(name="own", classes=classes), NOTHING, "before") == "review"
    none: list[object] = [[], None, "review"]
    for no_classes in none:
        assert resolve_thread_id(None, thing(name="own", classes=no_classes), NOTHING, "before") == "before"


def test_a_graph_can_rename_the_thread_attribute() -> None:
    assert resolve_thread_id(None, NOTHING, thing(thread_id="shared"), "before") == "shared"
    for name in ("default_thread_id", "thread_id", "default_thread", "context_thread_default"):
        graph = parse_dot(f"digraph g {{ {name}=shared; a }}")
        assert resolve_thread_id(None, graph.nodes["a"], graph, "before") == "shared"


def test_the_thread_of_a_stage_in_a_subgraph_is_the_class_of_its_label() -> None:
    graph = parse_dot('digraph g { subgraph cluster_x { label="Code & Review"; a [class="mine"] } }')
    assert graph.nodes["a"].classes == ("code--review", "mine")
    assert resolve_thread_id(None, graph.nodes["a"], graph, "before") == "code--review"


@pytest.mark.parametrize("mode", list(Fidelity))
def test_resume_degradation(mode: Fidelity) -> None:
    assert fidelity_on_resume(mode, True) == ("summary:high" if mode == "full" else mode)
    assert fidelity_on_resume(str(mode), False) == mode


def test_a_resume_refuses_an_unknown_mode() -> None:
    with pytest.raises(FidelityError):
        fidelity_on_resume("all", True)


def test_dot_parsing() -> None:
    graph = parse_dot(EXAMPLE)
    assert (graph.name, graph.default_fidelity, len(graph.nodes)) == ("pipeline", "compact", 6)
    nodes, edges = graph.nodes, {(edge.source, edge.target): edge for edge in graph.edges}
    assert (nodes["implement"].fidelity, nodes["implement"].thread_id) == ("full", "coding")
    modes = {
        edge.target + ("" if edge.source != "review" else "*"): str(resolve_fidelity(edge, nodes[edge.target], graph))
        for edge in graph.edges
    }
    assert modes == {
        "analyze": "summary:medium",
        "implement": "full",
        "review": "full",
        "implement*": "full",
        "deploy*": "truncate",
        "done": "compact",
    }
    assert resolve_thread_id(edges["implement", "review"], nodes["review"], graph, "implement") == "coding"


def test_dot_parsing_of_threads_on_edges_and_of_defaults() -> None:
    graph = parse_dot(
        "digraph g { graph [default_fidelity=truncate] node [fidelity=full] edge [thread_id=t, fidelity=compact]"
        " a -> b; a; b }"
    )
    assert graph.default_fidelity == "truncate"
    assert {node.fidelity for node in graph.nodes.values()} == {"full"}
    assert [(edge.thread_id, edge.fidelity) for edge in graph.edges] == [("t", "compact")]


@pytest.mark.parametrize("mode", [mode for mode in Fidelity if mode is not Fidelity.FULL])
def test_preamble_construction(mode: Fidelity) -> None:
    graph = parse_dot(EXAMPLE)
    text = build_fidelity_preamble(mode, graph, {"tests": "14 passed"}, ["start", "analyze"], "implement", [])
    heading = {"compact": "## Pipeline State", "summary:medium": "## Pipeline Progress"}
    assert text.startswith(heading.get(mode, "## Pipeline State (Compr" if mode == "summary:high" else "Pipeline"))
    assert ("14 passed" in text) is (mode in ("compact", "summary:medium", "summary:high"))


@pytest.mark.parametrize("mode", [mode for mode in Fidelity if mode is not Fidelity.FULL])
def test_token_budget_enforcement(mode: Fidelity) -> None:
    budget = {"truncate": 100}.get(mode, mode.cap)
    graph = parse_dot(EXAMPLE)
    done = [f"stage_{number}" for number in range(3_000)]
    logs = [{"node": name, "outcome": "success", "notes": "much was done " * 30} for name in done]
    text = build_fidelity_preamble(mode, graph, {f"k{n}": "v" * 900 for n in range(500)}, done, "review", logs)
    assert 0 < TokenCounter().text(text) <= budget
    assert mode == "truncate" or ("stage_2999" in text and "stage_0 " not in text)


def test_the_four_functions_are_public_names() -> None:
    for name in ("resolve_fidelity", "resolve_thread_id", "fidelity_on_resume", "build_fidelity_preamble"):
        assert getattr(context_compiler, name) is getattr(context_compiler.fidelity, name)


def test_modes_cost_nothing_to_import(tmp_path: Path) -> None:
    with pytest.raises(AttributeError, match="no_such"):
        _ = context_compiler.fidelity.no_such
