"""Rules about the shape of a graph: one way in, one way out, and every stage on a way between them."""

from __future__ import annotations

from collections.abc import Iterator

from context_compiler.pipeline.diagnostics import Diagnostic, Severity
from context_compiler.pipeline.graph import Edge, Graph, Node

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO


def of_node(node: Node, rule: str, severity: Severity, message: str, fix: str) -> Diagnostic:
    """A finding about a stage."""
    return Diagnostic(
        rule=rule,
        severity=severity,
        message=message,
        node_id=node.name,
        fix=fix,
        line=node.line,
        column=node.column,
    )


def of_edge(edge: Edge, rule: str, severity: Severity, message: str, fix: str) -> Diagnostic:
    """A finding about an edge."""
    return Diagnostic(
        rule=rule,
        severity=severity,
        message=message,
        edge=(edge.source, edge.target),
        fix=fix,
        line=edge.line,
        column=edge.column,
    )


def start_node(graph: Graph) -> Iterator[Diagnostic]:
    """A pipeline begins at exactly one stage."""
    starts = graph.starts
    if not starts:
        fix = "add one: start [shape=Mdiamond]"
        yield Diagnostic(rule="start_node", severity=ERROR, message="there is no stage to start at", fix=fix)
    for node in starts[1:]:
        yield of_node(node, "start_node", ERROR, f"{starts[0].name!r} is the start already", "keep one start")


def terminal_node(graph: Graph) -> Iterator[Diagnostic]:
    """A pipeline ends at exactly one stage."""
    exits = graph.exits
    if not exits:
        fix = "add one: done [shape=Msquare]"
        yield Diagnostic(rule="terminal_node", severity=ERROR, message="there is no stage to end at", fix=fix)
    for node in exits[1:]:
        yield of_node(node, "terminal_node", ERROR, f"{exits[0].name!r} is the exit already", "keep one exit")


def start_no_incoming(graph: Graph) -> Iterator[Diagnostic]:
    """No edge leads back to the start."""
    for start in graph.starts:
        for edge in graph.incoming(start.name):
            fix = f"lead it to the stage after {start.name!r}"
            yield of_edge(edge, "start_no_incoming", ERROR, "an edge leads to the start", fix)


def exit_no_outgoing(graph: Graph) -> Iterator[Diagnostic]:
    """No edge leaves the exit."""
    for node in graph.exits:
        for edge in graph.outgoing(node.name):
            fix = f"let it leave a stage before {node.name!r}"
            yield of_edge(edge, "exit_no_outgoing", ERROR, "an edge leaves the exit", fix)


def edge_target_exists(graph: Graph) -> Iterator[Diagnostic]:
    """Both ends of an edge are declared."""
    for edge in graph.edges:
        for name in dict.fromkeys((edge.source, edge.target)):
            if name not in graph.nodes:
                fix = f'declare it: {name} [prompt="..."]'
                yield of_edge(edge, "edge_target_exists", ERROR, f"there is no stage {name!r}", fix)


def reachability(graph: Graph) -> Iterator[Diagnostic]:
    """Every stage can be reached from the start, along edges or by a jump to a retry target."""
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
            yield of_node(node, "reachability", ERROR, message, "lead an edge to it, or take it out")


def retry_target_exists(graph: Graph) -> Iterator[Diagnostic]:
    """A retry target is a stage."""
    for key in ("retry_target", "fallback_retry_target"):
        if graph.text(key) and graph.text(key) not in graph.nodes:
            message = f"{key} of the graph names no stage: {graph.text(key)!r}"
            fix = "name a stage that is declared"
            yield Diagnostic(rule="retry_target_exists", severity=WARNING, message=message, fix=fix)
    for node in graph.nodes.values():
        for key, target in (("retry_target", node.retry_target), ("fallback_retry_target", node.fallback_retry_target)):
            if target and target not in graph.nodes:
                message = f"{key} names no stage: {target!r}"
                yield of_node(node, "retry_target_exists", WARNING, message, "name a stage that is declared")


STRUCTURE = (
    *(start_node, terminal_node, edge_target_exists, reachability),
    *(start_no_incoming, exit_no_outgoing, retry_target_exists),
)
