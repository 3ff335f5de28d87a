"""Validation of graphs. Each rule is a function that takes a graph and yields its findings.

An error prevents a run, a warning marks a probable mistake, and an info marks something that may surprise.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache, partial
from typing import TypeAlias

from context_compiler.errors import FidelityError, GraphError
from context_compiler.fidelity import Fidelity
from context_compiler.pipeline import attributes
from context_compiler.pipeline.commands import find_reader, placeholders
from context_compiler.pipeline.conditions import Clause, ConditionError, parse_condition, status_word
from context_compiler.pipeline.graph import (
    DEFAULT_HANDLER,
    HANDLERS,
    Diagnostic,
    Edge,
    Graph,
    Node,
    Severity,
    diagnostic,
    reachable,
)
from context_compiler.pipeline.stylesheet import EFFORTS, PROPERTIES, StylesheetError, parse_stylesheet
from context_compiler.pipeline.thread_rules import full_without_thread, thread_across_branches, thread_without_full
from context_compiler.pipeline.workflow import directives_known

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO


def start_node(graph: Graph) -> Iterator[Diagnostic]:
    """Report a missing start, and every start beyond the first."""
    starts = graph.starts
    if not starts:
        yield diagnostic(graph, "start_node", ERROR, "there is no start stage", "add one: start [shape=Mdiamond]")
    for node in starts[1:]:
        yield diagnostic(node, "start_node", ERROR, f"{starts[0].name!r} is already the start", "keep one start")


def terminal_node(graph: Graph) -> Iterator[Diagnostic]:
    """Report a missing exit, and every exit beyond the first."""
    exits = graph.exits
    if not exits:
        yield diagnostic(graph, "terminal_node", ERROR, "there is no exit stage", "add one: done [shape=Msquare]")
    for node in exits[1:]:
        yield diagnostic(node, "terminal_node", ERROR, f"{exits[0].name!r} is already the exit", "keep one exit")


def start_no_incoming(graph: Graph) -> Iterator[Diagnostic]:
    """Report edges to the start."""
    for start in graph.starts:
        for edge in graph.incoming(start.name):
            fix = f"make it lead to a stage after {start.name!r}"
            yield diagnostic(edge, "start_no_incoming", ERROR, "an edge leads to the start", fix)


def exit_no_outgoing(graph: Graph) -> Iterator[Diagnostic]:
    """Report edges from the exit."""
    for node in graph.exits:
        for edge in graph.outgoing(node.name):
            fix = f"make it leave a stage before {node.name!r}"
            yield diagnostic(edge, "exit_no_outgoing", ERROR, "an edge leaves the exit", fix)


def edge_target_exists(graph: Graph) -> Iterator[Diagnostic]:
    """Report stages that only edges name, and edges of a graph built in Python whose ends do not exist."""
    declared = [name for name, node in graph.nodes.items() if not node.implied]
    seen: set[str] = set()
    for edge in graph.edges:
        for name in dict.fromkeys((edge.source, edge.target)):
            node = graph.nodes.get(name)
            if node is None:
                yield diagnostic(edge, "edge_target_exists", ERROR, f"there is no stage {name!r}", "declare it")
            elif node.implied and name not in seen:
                seen.add(name)
                candidates = declared if len(seen) <= MAX_SUGGESTIONS else ()
                near = next((other for other in candidates if _one_letter_away(name, other)), "")
                fix = f"did you mean {near}?" if near else "declare it to give it a prompt other than its name"
                message = f"no statement declares the stage {name!r}"
                yield diagnostic(edge, "edge_target_exists", WARNING if near else INFO, message, fix)


def _one_letter_away(name: str, other: str) -> bool:
    """True if one letter added, left out, replaced or swapped with the next makes one name the other."""
    name, other = name.lower(), other.lower()
    start = len(os.path.commonprefix((name, other)))
    end = len(os.path.commonprefix((name[start:][::-1], other[start:][::-1])))
    rest, wanted = name[start : len(name) - end], other[start : len(other) - end]
    if (rest + wanted).isdigit() or min(len(name), len(other)) < 3:  # step1 and step2, a and b are different stages
        return False
    return max(len(rest), len(wanted)) <= 1 or (len(rest) == 2 and rest == wanted[::-1])


def reachability(graph: Graph) -> Iterator[Diagnostic]:
    """Report stages that cannot be reached from the start, along edges or by a jump to a retry target."""
    if not graph.starts:
        return
    reached = {node.name for node in graph.starts}
    waiting = [*reached]
    jumps = [graph.text("retry_target"), graph.text("fallback_retry_target")]
    while waiting or jumps:
        name = waiting.pop() if waiting else ""
        node = graph.nodes.get(name)
        targets = [edge.target for edge in graph.outgoing(name)] if name else jumps
        targets = [*targets, *((node.retry_target, node.fallback_retry_target) if node else ())]
        jumps = [] if not name else jumps
        for target in targets:
            if target in graph.nodes and target not in reached:
                reached.add(target)
                waiting.append(target)
    for name, node in graph.nodes.items():
        if name not in reached:
            message = "an orphan: it is unreachable from the start"
            yield diagnostic(node, "reachability", ERROR, message, "add an edge to it, or remove it")


def retry_target_exists(graph: Graph) -> Iterator[Diagnostic]:
    """Report retry targets that are not stages."""
    for part in (graph, *graph.nodes.values()):
        of_graph = " of the graph" if part is graph else ""
        for key in ("retry_target", "fallback_retry_target"):
            target = part.text(key)
            if target and target not in graph.nodes:
                message = f"{key}{of_graph} is not a stage: {target!r}"
                yield diagnostic(part, "retry_target_exists", WARNING, message, "name a stage that is declared")


def dead_end(graph: Graph) -> Iterator[Diagnostic]:
    """Report stages that no edge leaves, except the exit."""
    ends = {node.name for node in graph.exits}
    for name, node in graph.nodes.items():
        if ends and name not in ends and not graph.outgoing(name) and node.handler != "parallel":
            message = "a dead end: no edge leaves it, and it is not the exit"
            yield diagnostic(node, "dead_end", WARNING, message, "add an edge to the next stage or to the exit")


def exit_reachable(graph: Graph) -> Iterator[Diagnostic]:
    """Report where a run enters stages from which the exit cannot be reached."""
    ends = {node.name for node in graph.exits}
    stuck = graph.nodes.keys() - _stages_reaching(graph, ends) if ends else frozenset[str]()
    dead = {name for name in stuck if not graph.outgoing(name)}
    looping = stuck - _stages_reaching(graph, dead)
    for name, node in graph.nodes.items():
        region = looping if name in looping else stuck
        before = [edge.source for edge in graph.incoming(name) if edge.source != name]
        if name not in stuck or name in dead or (before and all(source in region for source in before)):
            continue
        if name in looping:
            message = "a cycle that no edge leaves: the exit cannot be reached from here"
            yield diagnostic(node, "cycle_without_exit", WARNING, message, "add an edge out of the cycle")
        else:
            message = "the exit cannot be reached from here"
            yield diagnostic(node, "exit_reachable", WARNING, message, "add an edge to the exit")


def _stages_reaching(graph: Graph, targets: Collection[str]) -> set[str]:
    """Return the stages from which a target can be reached, along edges or by a jump to a retry target."""
    before: dict[str, list[str]] = {}
    for edge in graph.edges:
        before.setdefault(edge.target, []).append(edge.source)
    for node in graph.nodes.values():
        whole = (graph.text("retry_target"), graph.text("fallback_retry_target")) if node.goal_gate else ()
        for target in (node.retry_target, node.fallback_retry_target, *whole):
            before.setdefault(target, []).append(node.name)
    return set(reachable(targets, lambda name: before.get(name, ())))


POLICIES = frozenset({"wait_all", "first_success", "k_of_n", "quorum", "all_success", "any_success", "ignore"})
"""Policies for joining the branches of a parallel stage."""

MAX_SUGGESTIONS = 1_000
"""Maximum number of unknown attributes for which a similar name is searched, because a search is slow."""
ERROR_POLICIES = frozenset({"continue", "fail_fast", "ignore"})
RETRY_POLICIES = frozenset({"none", "standard", "aggressive", "linear", "patient"})

NOT_RETRIED = ("start", "exit", "conditional", "parallel")
"""Handlers whose stages are not retried."""

EXPECTED = {
    "flag": "true or false",
    "whole": "a whole number, not below 0",
    "number": "a number, not below 0",
    "duration": "a duration such as 900s, 15m or 250ms",
}
"""Descriptions of the valid values, by attribute type."""


def _parts(graph: Graph) -> Iterator[tuple[Graph | Node | Edge, Mapping[str, str], Mapping[str, tuple[str, ...]]]]:
    """The graph, its stages and its edges, each with known attributes and their other spellings."""
    yield graph, attributes.GRAPH_ATTRIBUTES, attributes.GRAPH_SPELLINGS
    for node in graph.nodes.values():
        yield node, attributes.NODE_ATTRIBUTES, attributes.NODE_SPELLINGS
    for edge in graph.edges:
        yield edge, attributes.EDGE_ATTRIBUTES, {}


def attributes_known(graph: Graph) -> Iterator[Diagnostic]:
    """Report unknown attributes and old spellings."""
    unknown = 0
    for part, kinds, spellings in _parts(graph):
        for name in part.attrs:
            if name in kinds or name in attributes.DRAWING:
                continue
            unknown += 1
            standard = next((current for current, others in spellings.items() if name in others), "")
            if standard:
                yield diagnostic(part, "old_spelling", INFO, f"{name!r} is read as {standard!r}", f"write {standard}")
            else:
                near = _closest_name(name, tuple(kinds)) if unknown <= MAX_SUGGESTIONS else ""
                severity = WARNING if near else INFO
                fix = f"did you mean {near}?" if near else "the engine ignores it; your own handlers can read it"
                yield diagnostic(part, "unknown_attribute", severity, f"unknown attribute {name!r}", fix)


@lru_cache(maxsize=4096)
def _closest_name(name: str, names: tuple[str, ...]) -> str:
    return next(iter(get_close_matches(name[:100], names, n=1, cutoff=0.75)), "")


def value_type(graph: Graph) -> Iterator[Diagnostic]:
    """Report values that do not have the type of their attribute."""
    for part, kinds, _ in _parts(graph):
        for name in part.attrs:
            kind = kinds.get(name, "text")
            raw = part.raw(name) if kind != "text" else None
            if raw is None:
                continue
            value = attributes.READERS[kind](raw)
            negative = isinstance(value, int | float) and kind != "flag" and name != "weight" and value < 0
            if value is None or negative:
                yield diagnostic(part, "value_type", WARNING, f"{name}={raw!r} is not valid", f"give {EXPECTED[kind]}")


def fidelity_valid(graph: Graph) -> Iterator[Diagnostic]:
    """Report unknown fidelities; a run ignores them."""
    for part, _, _ in _parts(graph):
        name = "default_fidelity" if part is graph else "fidelity"
        value = part.text(name)
        if not value:
            continue
        try:
            Fidelity.parse(value, where=name)
        except FidelityError:
            fix = f"use one of {', '.join(Fidelity)}"
            yield diagnostic(part, "fidelity_valid", WARNING, f"unknown fidelity {value!r}", fix)


def reasoning_effort_known(graph: Graph) -> Iterator[Diagnostic]:
    """Report reasoning efforts other than low, medium and high."""
    for node in graph.nodes.values():
        if node.reasoning_effort and node.reasoning_effort not in EFFORTS:
            message = f"unknown reasoning_effort {node.reasoning_effort!r}"
            yield diagnostic(node, "reasoning_effort_known", WARNING, message, f"use one of {', '.join(EFFORTS)}")


def condition_syntax(graph: Graph) -> Iterator[Diagnostic]:
    """Report invalid conditions, and deviations that the parser tolerates."""
    for edge in graph.edges:
        try:
            condition = parse_condition(edge.condition)
        except ConditionError as error:
            message = f"condition {edge.condition[:80]!r}, character {error.at + 1}: {error.message}"
            yield diagnostic(edge, "condition_syntax", ERROR, message, "write key=value && key!=value")
            continue
        for warning in condition.warnings:
            message = f"condition {edge.condition[:80]!r}: {warning}"
            yield diagnostic(edge, "condition_operator", WARNING, message, "write =")


def stylesheet_syntax(graph: Graph) -> Iterator[Diagnostic]:
    """Report an invalid stylesheet, and unknown properties in a valid one."""
    if not graph.model_stylesheet:
        return
    try:
        rules = parse_stylesheet(graph.model_stylesheet)
    except StylesheetError as error:
        message = f"model_stylesheet, character {error.at + 1}: {error.message}"
        yield diagnostic(graph, "stylesheet_syntax", ERROR, message, "write selector { llm_model: name; }")
        return
    for rule in rules:
        for name in rule.properties:
            if name not in PROPERTIES:
                message = f"model_stylesheet: unknown property {name!r}"
                yield diagnostic(graph, "stylesheet_property", WARNING, message, f"use one of {', '.join(PROPERTIES)}")


def shape_known(graph: Graph) -> Iterator[Diagnostic]:
    """Report shapes that select no handler; an agent runs such a stage."""
    for node in graph.nodes.values():
        if not node.type and node.shape not in HANDLERS:
            message = f"shape {node.shape!r} selects no handler, so an agent runs the stage"
            yield diagnostic(node, "shape_known", INFO, message, f"use one of {', '.join(HANDLERS)}, or give a type")


def policies_known(graph: Graph) -> Iterator[Diagnostic]:
    """Report unknown policies for joins, for errors, and for retries."""
    joins, errors, retries = (POLICIES, ERROR), (ERROR_POLICIES, WARNING), (RETRY_POLICIES, WARNING)
    policies = {"join_policy": joins, "error_policy": errors, "retry_policy": retries}
    for name, (allowed, severity) in policies.items():
        for node in graph.nodes.values():
            value = node.text(name)
            if value and value not in allowed:
                fix = f"use one of {', '.join(sorted(allowed))}"
                yield diagnostic(node, f"{name}_known", severity, f"unknown {name} {value!r}", fix)


def goal_gate_has_retry(graph: Graph) -> Iterator[Diagnostic]:
    """Report goal gates that give no stage to retry from."""
    if graph.text("retry_target") or graph.text("fallback_retry_target"):
        return
    for node in graph.nodes.values():
        again = any(edge.loop_restart for edge in graph.outgoing(node.name))
        if node.goal_gate and not (node.retry_target or node.fallback_retry_target or again):
            message = "a goal gate without a retry_target: the run fails if the goal is not met"
            yield diagnostic(node, "goal_gate_has_retry", WARNING, message, "give it a retry_target")


def prompt_on_llm_nodes(graph: Graph) -> Iterator[Diagnostic]:
    """Report agent stages with neither prompt nor label."""
    for node in graph.with_ends().nodes.values():
        if node.handler == DEFAULT_HANDLER and not node.implied and not node.prompt and node.raw("label") is None:
            message = "an agent stage with neither prompt nor label"
            yield diagnostic(node, "prompt_on_llm_nodes", WARNING, message, "give it a prompt")


def tool_command_required(graph: Graph) -> Iterator[Diagnostic]:
    """Report tool stages without a command."""
    for node in graph.nodes.values():
        if node.handler == "tool" and not node.text("tool_command"):
            yield diagnostic(node, "tool_command_required", WARNING, "a tool stage without tool_command", "give it one")


def tool_command_values(graph: Graph) -> Iterator[Diagnostic]:
    """Report values that fail a tool stage unless they are harmless, because something reads text as commands."""
    for node in graph.nodes.values():
        command = node.text("tool_command") if node.handler == "tool" else ""
        reader = find_reader(command) if "$" in command else None
        if reader is None:
            continue
        for token, key in dict(placeholders(command)).items():
            if key not in ("goal", "graph.goal") or not reader.allowed.fullmatch(graph.goal):
                fix = f"put the command into a script, and run: ./script {token}"
                yield diagnostic(node, "tool_command_values", WARNING, reader.limit(token), fix)


def tool_command_used(graph: Graph) -> Iterator[Diagnostic]:
    """Report commands at stages that are not tool stages."""
    for node in graph.nodes.values():
        if node.handler in HANDLERS.values() and node.handler != "tool" and node.text("tool_command"):
            message = f"tool_command has no effect: the stage is run by {node.handler!r}"
            yield diagnostic(node, "tool_command_used", WARNING, message, "give it shape=parallelogram")


def max_retries_used(graph: Graph) -> Iterator[Diagnostic]:
    """Report `max_retries` at stages that are not retried."""
    for node in graph.nodes.values():
        if node.max_retries and node.handler in NOT_RETRIED:
            message = f"max_retries has no effect: {node.handler!r} is not retried"
            yield diagnostic(node, "max_retries_used", WARNING, message, "leave it out")


def all_conditional_edges(graph: Graph) -> Iterator[Diagnostic]:
    """Report stages whose outgoing edges all have conditions, unless one of them always holds."""
    for node in graph.nodes.values():
        edges = graph.outgoing(node.name)
        if not edges or node.handler in ("parallel", "exit") or not all(edge.condition for edge in edges):
            continue
        covered = _coverage(edges)
        if covered == "all":
            continue
        message = "every edge that leaves it has a condition; the run ends here if none holds"
        severity = INFO if covered == "success and fail" else WARNING
        yield diagnostic(node, "all_conditional_edges", severity, message, "add an edge without a condition")


def _coverage(edges: tuple[Edge, ...]) -> str:
    """Return the outcomes that the conditions cover: `all`, `success and fail`, or empty for neither."""
    single = [clause for edge in edges if (clause := _only_clause(edge)) is not None]
    equal = {(clause.key, status_word(clause.value)) for clause in single if clause.operator == "="}
    if any((clause.key, status_word(clause.value)) in equal for clause in single if clause.operator == "!="):
        return "all"
    return "success and fail" if {("outcome", "success"), ("outcome", "fail")} <= equal else ""


def _only_clause(edge: Edge) -> Clause | None:
    try:
        clauses = parse_condition(edge.condition).clauses
    except ConditionError:
        return None
    return clauses[0] if len(clauses) == 1 else None


def condition_on_human_gate(graph: Graph) -> Iterator[Diagnostic]:
    """Report conditions on the edges of human gates."""
    for node in graph.nodes.values():
        for edge in graph.outgoing(node.name) if node.handler == "wait.human" else ():
            if edge.condition:
                message = "a condition on an edge that a person chooses: if it holds, the choice is ignored"
                yield diagnostic(edge, "condition_on_human_gate", WARNING, message, "use labels only")


def default_choice_exists(graph: Graph) -> Iterator[Diagnostic]:
    """Report default choices that are not a choice of their human gate."""
    for node in graph.nodes.values():
        choice = node.text("human.default_choice")
        if choice and choice not in {edge.target for edge in graph.outgoing(node.name)}:
            message = f"human.default_choice {choice!r} is not the target of an edge from here"
            yield diagnostic(node, "default_choice_exists", WARNING, message, "name the target of one of its edges")


Rule: TypeAlias = Callable[[Graph], Iterable[Diagnostic]]

RULES: tuple[Rule, ...] = (
    *(start_node, terminal_node, edge_target_exists, reachability),
    *(start_no_incoming, exit_no_outgoing, retry_target_exists, dead_end, exit_reachable),
    *(condition_syntax, stylesheet_syntax, policies_known, fidelity_valid, value_type),
    *(reasoning_effort_known, shape_known, attributes_known),
    *(goal_gate_has_retry, prompt_on_llm_nodes, tool_command_required),
    *(tool_command_values, tool_command_used, max_retries_used),
    *(full_without_thread, thread_without_full),
    *(all_conditional_edges, condition_on_human_gate, default_choice_exists, thread_across_branches),
    directives_known,
)


def type_known(graph: Graph, handlers: Collection[str] = ()) -> Iterator[Diagnostic]:
    """Report every `type` that names no known handler."""
    for node in graph.nodes.values():
        if node.type and node.type not in HANDLERS.values() and node.type not in handlers:
            fix = f"use one of {', '.join(HANDLERS.values())}, or register a handler of that name"
            yield diagnostic(node, "type_known", Severity.WARNING, f"there is no handler {node.type!r}", fix)


def validate(
    graph: Graph, extra_rules: Iterable[Rule] = (), *, handlers: Collection[str] = ()
) -> tuple[Diagnostic, ...]:
    """Return all findings about a graph: errors first, and each severity in the order of the rules.

    Args:
        graph: The graph. Its findings from the parser are included.
        extra_rules: Rules to apply after the built-in ones.
        handlers: Registered handler types beyond the built-in ones.
    """
    findings = list(graph.diagnostics)
    for rule in (*RULES, partial(type_known, handlers=handlers), *extra_rules):
        findings += rule(graph)
    order = tuple(Severity)
    return tuple(sorted(findings, key=lambda finding: order.index(finding.severity)))


def validate_or_raise(
    graph: Graph, extra_rules: Iterable[Rule] = (), *, handlers: Collection[str] = ()
) -> tuple[Diagnostic, ...]:
    """Validate a graph before a run; return all findings if none of them is an error.

    Raises:
        GraphError: a finding is an error; `diagnostics` contains all findings.
    """
    findings = validate(graph, extra_rules, handlers=handlers)
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if errors:
        first = errors[0]
        about = f"{first.place}: " if first.node_id is not None or first.edge is not None else ""
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        message = f"{first.rule}: {about}{first.message}; {first.fix}{more}"
        raise GraphError(message, path=graph.path, line=first.line, column=first.column, diagnostics=findings)
    return findings
