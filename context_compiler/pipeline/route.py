"""Which way a run goes on after a stage: conditions first, then what the stage asked for, then weight, then name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from context_compiler.pipeline.conditions import ConditionError, parse_condition
from context_compiler.pipeline.graph import Edge, Graph, Node
from context_compiler.pipeline.outcome import Outcome
from context_compiler.pipeline.state import RunState

_ACCELERATOR = re.compile(r"\s*(?:\[(?P<bracketed>[^\]]{1,20})\]\s*|(?P<closed>\w{1,3})\)\s*|(?P<dashed>\w)\s+-\s+)")


def normalized(label: str) -> str:
    """A label without accelerator, blanks at its ends and capitals, as labels are compared."""
    return accelerator(label)[1].strip().lower()


def accelerator(label: str) -> tuple[str, str]:
    """The key that a label gives itself, as in `[Y] Yes`, `Y) Yes` and `Y - Yes`, and the rest; empty: none."""
    found = _ACCELERATOR.match(label)
    if found is None or not label[found.end() :].strip():
        return "", label.strip()
    return found["bracketed"] or found["closed"] or found["dashed"], label[found.end() :].strip()


def select_edge(graph: Graph, name: str, outcome: Outcome, values: Mapping[str, Any]) -> Edge | None:
    """The edge that is taken out of a stage; None: none is open.

    Args:
        graph: The graph.
        name: The stage.
        outcome: What it said.
        values: The context as it is now.
    """
    edges = graph.outgoing(name)
    true = [edge for edge in edges if edge.condition and _holds(edge, outcome, values)]
    if true:
        return _best(true)
    free = [edge for edge in edges if not edge.condition]
    wanted = normalized(outcome.preferred_label)
    if wanted:
        for edge in free:
            if normalized(edge.label) == wanted:
                return edge
    for id in outcome.suggested_next_ids:
        for edge in free:
            if edge.target == id:
                return edge
    return _best(free) if free else None


def _holds(edge: Edge, outcome: Outcome, values: Mapping[str, Any]) -> bool:
    """Whether a condition holds; one that cannot be read never does."""
    try:
        condition = parse_condition(edge.condition)
    except ConditionError:
        return False
    return condition.holds(values, outcome=outcome.status, preferred_label=outcome.preferred_label, raw=outcome.raw)


def _best(edges: Iterable[Edge]) -> Edge:
    return min(edges, key=lambda edge: (-edge.weight, edge.target))


def retry_target(graph: Graph, node: Node) -> str | None:
    """Where to go on after a stage failed and no edge is open; None: nowhere."""
    return _first(graph, (node.retry_target, node.fallback_retry_target))


def gate_target(graph: Graph, gate: Node) -> str | None:
    """Where to go on when a goal gate is not satisfied at the end; None: nowhere."""
    own = (gate.retry_target, gate.fallback_retry_target)
    return _first(graph, (*own, graph.text("retry_target"), graph.text("fallback_retry_target")))


def unmet_gate(graph: Graph, state: RunState, *, unvisited: bool = False) -> Node | None:
    """The first goal gate, in the order of the graph, that keeps a run from ending well.

    Args:
        graph: The graph.
        state: Where the run stands.
        unvisited: Whether a gate that never ran counts as not satisfied.
    """
    for node in graph.nodes.values():
        if not node.goal_gate:
            continue
        outcome = state.outcomes.get(node.name)
        if node.name in state.recheck or (outcome is None and unvisited):
            return node
        if outcome is not None and not outcome.status.good:
            return node
    return None


def _first(graph: Graph, names: Iterable[str]) -> str | None:
    return next((name for name in names if name in graph.nodes), None)
