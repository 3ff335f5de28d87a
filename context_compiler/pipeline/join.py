"""Where the branches of a parallel stage meet: the nearest fan-in that all of them reach, else the nearest stage."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from context_compiler.pipeline.graph import Graph


def meeting(graph: Graph, name: str) -> str | None:
    """The stage up to which the branches of a parallel stage run, and where the run goes on; None: there is none.

    Of several, the one that is nearest to the branch farthest from it; then the first by name.
    """
    reached = [distances(graph, edge.target) for edge in graph.outgoing(name)]
    if not reached:
        return None
    common = set(reached[0]).intersection(*reached[1:])
    joins = {name for name in common if name in graph.nodes and graph.nodes[name].handler == "parallel.fan_in"}
    found = joins or {name for name in common if name in graph.nodes}
    if len(reached) == 1 and not joins:
        found = {name for name in common if not graph.outgoing(name)}
    return min(found, key=lambda name: (max(one[name] for one in reached), name), default=None)


def shared(graph: Graph, place: int, stop: str) -> frozenset[str]:
    """The stages that the branch of an edge and one beside it may both run, before they meet at `stop`.

    Args:
        graph: The graph.
        place: Of the edge in the graph's edges.
        stop: Where the branches meet.
    """
    edge = graph.edges[place]
    others = [other for other in graph.outgoing(edge.source) if other is not edge]
    mine = _before(graph, [edge.target], stop)
    return frozenset(mine & _before(graph, [other.target for other in others], stop))


def _before(graph: Graph, starts: Sequence[str], stop: str) -> set[str]:
    """The stages that can be reached without passing through `stop`."""
    found = {name for name in starts if name != stop}
    waiting = list(found)
    while waiting:
        for edge in graph.outgoing(waiting.pop()):
            if edge.target != stop and edge.target not in found:
                found.add(edge.target)
                waiting.append(edge.target)
    return found


def distances(graph: Graph, start: str) -> dict[str, int]:
    """How many edges away each stage is that can be reached, itself included."""
    found = {start: 0}
    waiting = deque([start])
    while waiting:
        name = waiting.popleft()
        for edge in graph.outgoing(name):
            if edge.target not in found:
                found[edge.target] = found[name] + 1
                waiting.append(edge.target)
    return found
