"""Rules about the threads of stages at `full`: threads that are missing, that begin late, or that have no effect."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice

from context_compiler.fidelity import resolve_thread_id
from context_compiler.pipeline.graph import (
    AGENTS,
    Diagnostic,
    Edge,
    Graph,
    Node,
    Severity,
    diagnostic,
    join_stage,
    reachable,
)

WARNING, INFO = Severity.WARNING, Severity.INFO

MAX_STEPS = 500_000
"""Maximum number of edges that are followed to find the first stages of threads."""


def full_without_thread(graph: Graph) -> Iterator[Diagnostic]:
    """Report stages at `full` that name no thread, or that come after other stages as the first of their thread."""
    users: dict[str, dict[str, Node]] = {}
    for node in graph.nodes.values():
        edges = [edge for edge in graph.incoming(node.name) if _edge_fidelity(edge, node, graph) == "full"]
        for edge in edges if node.handler in AGENTS else ():
            if graph.default_thread_id or node.thread_id or node.classes or edge.thread_id:
                users.setdefault(resolve_thread_id(edge, node, graph, edge.source), {})[node.name] = node
            else:
                message = "full without a thread: it continues a thread named after the stage before it"
                fix = "give the stages that belong together a thread_id"
                yield diagnostic(node, "full_without_thread", INFO, message, fix)
                break
    for thread in islice(users, 1 + MAX_STEPS // (1 + len(graph.edges))):
        for name in sorted(_stages_first_in(graph, users[thread])):
            message = (
                f"it can be the first stage of the thread {thread!r}, and then sees nothing of the stages before it"
            )
            fix = "give an earlier stage the same thread, or give this one another fidelity"
            yield diagnostic(users[thread][name], "full_without_thread", INFO, message, fix)


def _stages_first_in(graph: Graph, users: Collection[str]) -> set[str]:
    """Return the stages of a thread that a run can reach after other work, but after no other stage of the thread."""

    def onward(step: tuple[str, bool]) -> list[tuple[str, bool]]:
        name, worked = step
        node = graph.nodes.get(name)
        worked = worked or (node is not None and node.handler not in ("start", "conditional", "parallel"))
        return [] if name in users else [(edge.target, worked) for edge in graph.outgoing(name)]

    steps = reachable([(node.name, False) for node in graph.starts], onward)
    return {name for name, worked in steps if worked and name in users}


def thread_without_full(graph: Graph) -> Iterator[Diagnostic]:
    """Report threads that have no effect because the stage does not run at `full`."""
    for node in graph.nodes.values():
        modes = {_edge_fidelity(edge, node, graph) for edge in graph.incoming(node.name) or (None,)}
        if node.thread_id and "full" not in modes:
            message = f"thread_id {node.thread_id!r} has no effect: the stage always starts a new conversation"
            yield diagnostic(node, "thread_without_full", WARNING, message, "set fidelity=full, or leave thread_id out")
    for edge in graph.edges:
        node = graph.nodes.get(edge.target)
        if edge.thread_id and node is not None and _edge_fidelity(edge, node, graph) != "full":
            message = f"thread_id {edge.thread_id!r} has no effect: the target starts a new conversation"
            yield diagnostic(edge, "thread_without_full", WARNING, message, "set fidelity=full, or leave thread_id out")


def _edge_fidelity(edge: Edge | None, node: Node, graph: Graph) -> str:
    values = (edge.fidelity if edge else "", node.fidelity, graph.default_fidelity)
    return next((value.strip() for value in values if value.strip()), "")


def thread_across_branches(graph: Graph) -> Iterator[Diagnostic]:
    """Report threads that several branches of a parallel stage use."""
    if not any(part.thread_id for part in (*graph.nodes.values(), *graph.edges)):
        return
    for node in graph.nodes.values():
        if node.handler != "parallel" or not graph.outgoing(node.name):
            continue
        seen: dict[str, str] = {}
        join = join_stage(graph, node.name)
        for edge in graph.outgoing(node.name):
            for thread in dict.fromkeys(_branch_threads(graph, edge, join)):
                if seen.setdefault(thread, edge.target) != edge.target:
                    message = f"the branches {seen[thread]!r} and {edge.target!r} both use the thread {thread!r}"
                    fix = "give each branch its own thread_id: a branch does not see what another adds"
                    yield diagnostic(node, "thread_across_branches", WARNING, message, fix)


def _branch_threads(graph: Graph, first: Edge, join: str | None) -> Iterator[str]:
    """Yield the threads that the stages of a branch name, up to the join."""
    waiting, reached = [first], {first.target}
    while waiting:
        edge = waiting.pop()
        node = graph.nodes.get(edge.target)
        if node is None or node.name == join or node.handler == "exit":
            continue
        if _edge_fidelity(edge, node, graph) == "full" and (node.thread_id or edge.thread_id):
            yield node.thread_id or edge.thread_id
        onward = [next_edge for next_edge in graph.outgoing(node.name) if next_edge.target not in reached]
        reached |= {next_edge.target for next_edge in onward}
        waiting += onward
