"""Rules about what a graph says: attributes that are known, values that can be read, conditions, stylesheets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache

from context_compiler.errors import FidelityError
from context_compiler.fidelity import Fidelity
from context_compiler.pipeline.attributes import (
    DRAWING,
    EDGE_ATTRIBUTES,
    GRAPH_ATTRIBUTES,
    GRAPH_SPELLINGS,
    NODE_ATTRIBUTES,
    NODE_SPELLINGS,
    READERS,
    Attributed,
)
from context_compiler.pipeline.conditions import ConditionError, parse_condition
from context_compiler.pipeline.diagnostics import Diagnostic, Severity
from context_compiler.pipeline.graph import HANDLERS, Edge, Graph, Node
from context_compiler.pipeline.structure import ERROR, INFO, WARNING, of_edge, of_node
from context_compiler.pipeline.stylesheet import EFFORTS, PROPERTIES, StylesheetError, parse_stylesheet

POLICIES = frozenset({"wait_all", "first_success", "k_of_n", "quorum", "all_success", "any_success", "ignore"})
"""How the branches of a parallel stage are joined."""

LOOKED_UP = 1_000
"""Unknown attributes for which a known one of a similar name is looked for."""
ERROR_POLICIES = frozenset({"continue", "fail_fast", "ignore"})
RETRY_POLICIES = frozenset({"none", "standard", "aggressive", "linear", "patient"})

WANTED = {
    "flag": "true or false",
    "whole": "a whole number, not below 0",
    "number": "a number, not below 0",
    "duration": "a duration such as 900s, 15m or 250ms",
}

_Say = Callable[[str, Severity, str, str], Diagnostic]


def _things(graph: Graph) -> Iterator[tuple[Attributed, Mapping[str, str], Mapping[str, tuple[str, ...]], _Say]]:
    """Everything that has attributes: what it may say, other spellings, and how to speak of it."""
    yield graph, GRAPH_ATTRIBUTES, GRAPH_SPELLINGS, _of_graph
    for node in graph.nodes.values():
        yield node, NODE_ATTRIBUTES, NODE_SPELLINGS, _speaking(node)
    for edge in graph.edges:
        yield edge, EDGE_ATTRIBUTES, {}, _speaking(edge)


def _of_graph(rule: str, severity: Severity, message: str, fix: str) -> Diagnostic:
    return Diagnostic(rule=rule, severity=severity, message=message, fix=fix)


def _speaking(thing: Node | Edge) -> _Say:
    def say(rule: str, severity: Severity, message: str, fix: str) -> Diagnostic:
        if isinstance(thing, Node):
            return of_node(thing, rule, severity, message, fix)
        return of_edge(thing, rule, severity, message, fix)

    return say


def attributes_known(graph: Graph) -> Iterator[Diagnostic]:
    """An attribute is one that somebody reads; a new name for an old one is said so."""
    looked = 0
    for thing, known, spellings, say in _things(graph):
        for name in thing.attrs:
            if name in known or name in DRAWING:
                continue
            looked += 1
            meant = next((one for one, others in spellings.items() if name in others), "")
            if meant:
                yield say("old_spelling", INFO, f"{name!r} is read as {meant!r}", f"write {meant}")
            else:
                near = _near(name, tuple(known)) if looked <= LOOKED_UP else ""
                severity = WARNING if near else INFO
                fix = f"did you mean {near}?" if near else "nothing here reads it; handlers of your own can"
                yield say("unknown_attribute", severity, f"unknown attribute {name!r}", fix)


@lru_cache(maxsize=4096)
def _near(name: str, known: tuple[str, ...]) -> str:
    return next(iter(get_close_matches(name[:100], known, n=1, cutoff=0.75)), "")


def value_type(graph: Graph) -> Iterator[Diagnostic]:
    """A value can be read as what its attribute is."""
    for thing, known, _, say in _things(graph):
        for name in thing.attrs:
            kind = known.get(name, "text")
            raw = thing.raw(name) if kind != "text" else None
            if raw is None:
                continue
            value = READERS[kind](raw)
            negative = isinstance(value, int | float) and kind != "flag" and name != "weight" and value < 0
            if value is None or negative:
                yield say("value_type", WARNING, f"{name}={raw!r} is not read", f"give {WANTED[kind]}")


def fidelity_valid(graph: Graph) -> Iterator[Diagnostic]:
    """A fidelity is one of the six modes; another one is passed over when a run resolves it."""
    for thing, _, _, say in _things(graph):
        name = "default_fidelity" if thing is graph else "fidelity"
        said = thing.text(name)
        if not said:
            continue
        try:
            Fidelity.parse(said, where=name)
        except FidelityError:
            fix = f"use one of {', '.join(Fidelity)}"
            yield say("fidelity_valid", WARNING, f"unknown fidelity {said!r}", fix)


def reasoning_effort_known(graph: Graph) -> Iterator[Diagnostic]:
    """A reasoning effort is low, medium or high."""
    for node in graph.nodes.values():
        if node.reasoning_effort and node.reasoning_effort not in EFFORTS:
            message = f"unknown reasoning_effort {node.reasoning_effort!r}"
            yield of_node(node, "reasoning_effort_known", WARNING, message, f"use one of {', '.join(EFFORTS)}")


def condition_syntax(graph: Graph) -> Iterator[Diagnostic]:
    """A condition can be read."""
    for edge in graph.edges:
        try:
            condition = parse_condition(edge.condition)
        except ConditionError as error:
            message = f"condition {edge.condition[:80]!r}, character {error.at + 1}: {error.message}"
            yield of_edge(edge, "condition_syntax", ERROR, message, "write key=value && key!=value")
            continue
        for warning in condition.warnings:
            yield of_edge(
                edge, "condition_operator", WARNING, f"condition {edge.condition[:80]!r}: {warning}", "write ="
            )


def stylesheet_syntax(graph: Graph) -> Iterator[Diagnostic]:
    """The stylesheet can be read, and says only what stages can take over."""
    try:
        rules = parse_stylesheet(graph.model_stylesheet)
    except StylesheetError as error:
        message = f"model_stylesheet, character {error.at + 1}: {error.message}"
        fix = "write selector { llm_model: name; }"
        yield Diagnostic(rule="stylesheet_syntax", severity=ERROR, message=message, fix=fix)
        return
    for rule in rules:
        for name in rule.properties:
            if name not in PROPERTIES:
                message = f"model_stylesheet: unknown property {name!r}"
                yield _of_graph("stylesheet_property", WARNING, message, f"use one of {', '.join(PROPERTIES)}")


def shape_known(graph: Graph) -> Iterator[Diagnostic]:
    """A shape stands for a handler; any other is drawn, and runs as an agent."""
    for node in graph.nodes.values():
        if not node.type and node.shape not in HANDLERS:
            message = f"shape {node.shape!r} stands for no handler, so an agent runs the stage"
            yield of_node(node, "shape_known", INFO, message, f"use one of {', '.join(HANDLERS)}, or give a type")


def join_policy_known(graph: Graph) -> Iterator[Diagnostic]:
    """A parallel stage is joined in a way that there is."""
    yield from _chosen(graph, "join_policy", POLICIES, ERROR)


def error_policy_known(graph: Graph) -> Iterator[Diagnostic]:
    """What a branch that fails does to the others is one of three things."""
    yield from _chosen(graph, "error_policy", ERROR_POLICIES, WARNING)


def retry_policy_known(graph: Graph) -> Iterator[Diagnostic]:
    """A retry policy is one that has a name here."""
    yield from _chosen(graph, "retry_policy", RETRY_POLICIES, WARNING)


def _chosen(graph: Graph, name: str, known: frozenset[str], severity: Severity) -> Iterator[Diagnostic]:
    for node in graph.nodes.values():
        said = node.text(name)
        if said and said not in known:
            fix = f"use one of {', '.join(sorted(known))}"
            yield of_node(node, f"{name}_known", severity, f"unknown {name} {said!r}", fix)


WORDING = (
    *(condition_syntax, stylesheet_syntax, join_policy_known, error_policy_known, retry_policy_known),
    *(fidelity_valid, value_type),
    *(reasoning_effort_known, shape_known, attributes_known),
)
