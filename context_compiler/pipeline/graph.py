"""Immutable graphs of pipelines: stages, edges, subgraphs, their attributes, and findings about them.

`Graph` has the attributes that other engines expect of a pipeline: `name`, `goal`, `nodes`, `default_fidelity` and
`default_thread_id`. To change a graph, copy it with `dataclasses.replace`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TypeAlias, TypeVar

from context_compiler.pipeline.attributes import GRAPH_SPELLINGS, NODE_SPELLINGS, Attribute, Attributed, as_flag

T = TypeVar("T")


class Severity(StrEnum):
    """Severity of a finding; a graph with an error cannot run."""

    ERROR = "ERROR"
    WARNING = "WARNING"
    INFO = "INFO"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """A finding about a graph."""

    rule: str
    """Name of the rule, such as `reachability`."""
    severity: Severity
    message: str
    node_id: str | None = None
    edge: tuple[str, str] | None = None
    """Source and target."""
    fix: str | None = None
    """Remedy."""
    line: int | None = None
    """Line in the source, from 1."""
    column: int | None = None

    @property
    def place(self) -> str:
        """The stage, edge or line that the finding is about; empty for the whole graph."""
        if self.node_id is not None:
            return self.node_id
        if self.edge is not None:
            return " -> ".join(self.edge)
        return f"line {self.line}" if self.line else ""

    def __str__(self) -> str:
        where = f"{self.line}:{self.column or 1}: " if self.line else ""
        about = f"{self.place}: " if self.node_id is not None or self.edge is not None else ""
        remedy = f"; {self.fix}" if self.fix else ""
        return f"{where}{self.severity.lower()} {self.rule}: {about}{self.message}{remedy}"


HANDLERS = MappingProxyType(
    {
        "Mdiamond": "start",
        "Msquare": "exit",
        "box": "codergen",
        "hexagon": "wait.human",
        "diamond": "conditional",
        "component": "parallel",
        "tripleoctagon": "parallel.fan_in",
        "parallelogram": "tool",
        "house": "stack.manager_loop",
    }
)
"""Handlers by the shape that selects them."""

_GOAL = re.compile(r"\$goal\b")

DEFAULT_HANDLER = "codergen"
AGENTS = (DEFAULT_HANDLER, "agent")
"""Handlers that run the prompt of a stage with an agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node(Attributed):
    """A stage of a pipeline."""

    name: str
    """Id of the stage in the source."""
    derived: tuple[str, ...] = ()
    """Classes from the labels of the subgraphs around it, innermost first."""
    line: int | None = field(default=None, compare=False)
    """Line of the first declaration, from 1."""
    column: int | None = field(default=None, compare=False)
    implied: bool = field(default=False, compare=False)
    """True if no statement declares the stage, only an edge names it."""
    prompt_line: int | None = field(default=None, compare=False)
    """First line of the prompt, from 1, if the prompt has its own lines as in a workflow file."""

    def spellings(self, name: str) -> tuple[str, ...]:
        """Other spellings of a node attribute."""
        return NODE_SPELLINGS.get(name, ())

    @property
    def classes(self) -> tuple[str, ...]:
        """Classes without duplicates: from the subgraphs, then from `class`."""
        named = (name.strip() for name in self.text("class").replace(",", " ").split())
        return tuple(dict.fromkeys((*self.derived, *named)))

    @property
    def label(self) -> str:
        """Display name; the stage's name by default."""
        return self.text("label", self.name)

    @property
    def shape(self) -> str:
        """Shape, which selects the handler."""
        return self.text("shape", "box")

    type = Attribute(Attributed.text)
    """Name of the handler; empty if the shape selects it."""

    @property
    def handler(self) -> str:
        """Name of the handler, which may not exist: `type`, else by shape, else `codergen`."""
        return self.type or HANDLERS.get(self.shape, DEFAULT_HANDLER)

    prompt = Attribute(Attributed.text)
    """Instruction for the stage; empty means its label."""
    fidelity = Attribute(Attributed.text)
    """Fidelity of the stage; empty if not set."""
    thread_id = Attribute(Attributed.text)
    """Key of the conversation that the stage continues at `full`; empty if not set."""
    max_retries = Attribute(Attributed.whole)
    """Maximum attempts beyond the first; None, unlike 0, means the default of the graph."""
    timeout = Attribute(Attributed.seconds)
    """Time limit in seconds."""
    goal_gate = Attribute(Attributed.flag)
    """True if the run may end only after this stage succeeded."""
    auto_status = Attribute(Attributed.flag)
    """True if the stage succeeds when its handler returns no outcome."""
    allow_partial = Attribute(Attributed.flag)
    """True if the stage counts as a partial success when its retries are exhausted."""
    retry_target = Attribute(Attributed.text)
    """Next stage after a failure; empty if not set."""
    fallback_retry_target = Attribute(Attributed.text)
    """Next stage after a failure if there is no `retry_target`; empty if not set."""
    llm_model = Attribute(Attributed.text)
    """Model of the stage; empty means the model of the run."""
    context_helper = Attribute(Attributed.text)
    """Template that compiles the outputs of earlier stages for this one; empty if not set."""
    llm_provider = Attribute(Attributed.text)
    """Provider of the model; empty if not set."""
    reasoning_effort = Attribute(Attributed.text)
    """`low`, `medium` or `high`; empty if not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge(Attributed):
    """A connection from one stage to the next."""

    source: str
    target: str
    line: int | None = field(default=None, compare=False)
    """Line in the source, from 1."""
    column: int | None = field(default=None, compare=False)

    label = Attribute(Attributed.text)
    """Caption; a stage can ask for an edge by its label."""
    condition = Attribute(Attributed.text)
    """Condition for taking the edge; empty if there is none."""

    @property
    def weight(self) -> int:
        """Priority; the edge with the highest wins."""
        return self.whole("weight") or 0

    fidelity = Attribute(Attributed.text)
    """Fidelity of the target stage; empty if not set."""
    thread_id = Attribute(Attributed.text)
    """Key of the conversation that the target stage continues at `full`; empty if not set."""
    loop_restart = Attribute(Attributed.flag)
    """True if taking the edge restarts the run at its target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subgraph(Attributed):
    """A part of the source that gives its stages defaults and a class; it has no other effect."""

    name: str
    """Name of the subgraph; empty if it has none."""
    nodes: tuple[str, ...] = ()
    """Stages declared directly in the subgraph."""
    parent: int | None = None
    """Index of the enclosing subgraph in `Graph.subgraphs`; None if the graph itself encloses it."""

    label = Attribute(Attributed.text)
    """Label, from which the class of the stages is derived."""


def _edges_by(edges: Iterable[Edge], end: str) -> Mapping[str, tuple[Edge, ...]]:
    grouped: dict[str, list[Edge]] = {}
    for edge in edges:
        grouped.setdefault(getattr(edge, end), []).append(edge)
    return {name: tuple(some) for name, some in grouped.items()}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Graph(Attributed):
    """A pipeline as written in its source."""

    name: str = ""
    nodes: Mapping[str, Node] = field(default_factory=dict[str, Node], hash=False)
    """Stages by name: the declared ones in the order of the source, then those that only an edge names."""
    edges: tuple[Edge, ...] = ()
    subgraphs: tuple[Subgraph, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = field(default=(), compare=False)
    """Findings of the parser about deviations that it tolerated."""
    path: str | None = field(default=None, compare=False)
    source: str = field(default="", compare=False)
    """Text that the graph was parsed from; empty for a graph built in Python."""
    _outgoing: Mapping[str, tuple[Edge, ...]] = field(init=False, repr=False, compare=False)
    _incoming: Mapping[str, tuple[Edge, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_outgoing", _edges_by(self.edges, "source"))
        object.__setattr__(self, "_incoming", _edges_by(self.edges, "target"))

    def __repr__(self) -> str:
        return f"Graph({self.name!r}, {len(self.nodes)} nodes, {len(self.edges)} edges)"

    def spellings(self, name: str) -> tuple[str, ...]:
        """Other spellings of a graph attribute."""
        return GRAPH_SPELLINGS.get(name, ())

    def outgoing(self, name: str) -> tuple[Edge, ...]:
        """Edges that leave a stage, in the order of the source."""
        return self._outgoing.get(name, ())

    def incoming(self, name: str) -> tuple[Edge, ...]:
        """Edges that lead to a stage, in the order of the source."""
        return self._incoming.get(name, ())

    goal = Attribute(Attributed.text)
    """Purpose of the run."""

    def with_goal(self, text: str) -> str:
        """Replace `$goal` in a string with the goal, except at the beginning of a longer word."""
        return _GOAL.sub(lambda _: self.goal, text) if "$goal" in text else text

    @property
    def label(self) -> str:
        """Display name."""
        return self.text("label", self.name)

    default_fidelity = Attribute(Attributed.text)
    """Fidelity if neither the edge nor the stage sets one; empty if not set."""
    default_thread_id = Attribute(Attributed.text)
    """Thread at `full` if neither the stage nor the edge sets one; empty if not set."""

    @property
    def default_max_retries(self) -> int:
        """Maximum attempts beyond the first for stages that set no `max_retries`."""
        return self.whole("default_max_retries") or 0

    @property
    def strict_failure_edges(self) -> bool | None:
        """True if a failure may take only edges with a condition, False if it may take any edge; None if not set."""
        return as_flag(self.raw("strict_failure_edges"))

    model_stylesheet = Attribute(Attributed.text)
    """Stylesheet that assigns models to stages."""

    @property
    def starts(self) -> tuple[Node, ...]:
        """Stages that start a run: by shape or type, else by id."""
        return self._find_ends("start", ("start", "Start"))

    @property
    def exits(self) -> tuple[Node, ...]:
        """Stages that end a run: by shape or type, else by id."""
        return self._find_ends("exit", ("exit", "end"))

    def with_ends(self) -> Graph:
        """Give start and exit stages the matching shape if only their id marks them and they have no prompt."""
        ends = [*((node, "Mdiamond") for node in self.starts), *((node, "Msquare") for node in self.exits)]
        nodes = {
            node.name: replace(node, attrs={**node.attrs, "shape": shape})
            for node, shape in ends
            if node.handler == DEFAULT_HANDLER and not node.type and not node.prompt
        }
        return replace(self, nodes={**self.nodes, **nodes}) if nodes else self

    def _find_ends(self, handler: str, ids: tuple[str, ...]) -> tuple[Node, ...]:
        nodes = self.nodes.values()
        by_handler = tuple(node for node in nodes if node.handler == handler)
        by_name = tuple(self.nodes[name] for name in ids if name in self.nodes)
        return by_handler or by_name or tuple(node for node in nodes if node.name.lower() in ids)


Pipeline: TypeAlias = Graph
"""Alias of `Graph`, because other engines call such a graph a pipeline."""


def diagnostic(thing: Graph | Node | Edge, rule: str, severity: Severity, message: str, fix: str) -> Diagnostic:
    """Build a finding about a graph, a stage or an edge."""
    node_id = thing.name if isinstance(thing, Node) else None
    edge = (thing.source, thing.target) if isinstance(thing, Edge) else None
    line, column = (None, None) if isinstance(thing, Graph) else (thing.line, thing.column)
    return Diagnostic(
        rule=rule, severity=severity, message=message, node_id=node_id, edge=edge, fix=fix, line=line, column=column
    )


def join_stage(graph: Graph, name: str) -> str | None:
    """Return the stage where the branches of a parallel stage join; None if there is none.

    If several stages qualify, choose the one whose longest branch is the shortest, then the first by name.
    """
    reached = [distances(graph, edge.target) for edge in graph.outgoing(name)]
    if not reached:
        return None
    common = set(reached[0]).intersection(*reached[1:])
    joins = {name for name in common if name in graph.nodes and graph.nodes[name].handler == "parallel.fan_in"}
    candidates = joins or {name for name in common if name in graph.nodes}
    if len(reached) == 1 and not joins:
        candidates = {name for name in common if not graph.outgoing(name)}
    return min(candidates, key=lambda name: (max(branch[name] for branch in reached), name), default=None)


def shared_stages(graph: Graph, index: int, stop: str) -> frozenset[str]:
    """Return the stages that the branch of an edge may share with its sibling branches before they join at `stop`.

    Args:
        graph: The graph.
        index: Index of the edge in the graph's edges.
        stop: The stage where the branches join.
    """

    def onward(name: str) -> list[str]:
        node = graph.nodes.get(name)
        if node is None or name == stop:
            return []
        retries = (node.retry_target, node.fallback_retry_target)
        return [*(edge.target for edge in graph.outgoing(name)), *(target for target in retries if target)]

    def stages(edges: Iterable[Edge]) -> set[str]:
        return set(reachable([edge.target for edge in edges], onward))

    edge = graph.edges[index]
    others = [other for other in graph.outgoing(edge.source) if other is not edge]
    return frozenset(stages([edge]) & stages(others))


def distances(graph: Graph, start: str, *, without: str = "") -> dict[str, int]:
    """Return the distance in edges from `start` to each reachable stage, including itself.

    Paths do not continue beyond a stage with the handler `without`.
    """

    def onward(name: str) -> list[str]:
        node = graph.nodes.get(name)
        return [] if node is None or node.handler == without else [edge.target for edge in graph.outgoing(name)]

    return reachable([start], onward)


def reachable(starts: Iterable[T], onward: Callable[[T], Iterable[T]]) -> dict[T, int]:
    """Return everything that `onward`, which takes one step, leads to from `starts`, with its distance in steps."""
    distance = dict.fromkeys(starts, 0)
    waiting = deque(distance)
    while waiting:
        here = waiting.popleft()
        for there in onward(here):
            if there not in distance:
                distance[there] = distance[here] + 1
                waiting.append(there)
    return distance
