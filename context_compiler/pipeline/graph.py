"""What is to be said about a graph: which rule, how bad, where, and what to do about it."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TypeAlias

from context_compiler.pipeline.attributes import GRAPH_SPELLINGS, NODE_SPELLINGS, Attributed


class Severity(StrEnum):
    """How bad it is: a graph with an error is not run."""

    ERROR = "ERROR"
    WARNING = "WARNING"
    INFO = "INFO"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One finding."""

    rule: str
    """The name of the rule, such as `reachability`."""
    severity: Severity
    message: str
    node_id: str | None = None
    edge: tuple[str, str] | None = None
    """From where to where."""
    fix: str | None = None
    """What to do about it."""
    line: int | None = None
    """In the source, from 1."""
    column: int | None = None

    @property
    def place(self) -> str:
        """The node, edge or line that it is about; empty: the whole graph."""
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
"""Which handler a shape asks for."""

DEFAULT_HANDLER = "codergen"
AGENTS = (DEFAULT_HANDLER, "agent")
"""The handlers that ask an agent what the prompt says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node(Attributed):
    """One stage."""

    name: str
    """Its id in the source."""
    derived: tuple[str, ...] = ()
    """Classes that come from the labels of the subgraphs around it, innermost first."""
    line: int | None = field(default=None, compare=False)
    """Where it is declared first, from 1."""
    column: int | None = field(default=None, compare=False)
    prompt_line: int | None = field(default=None, compare=False)
    """The line at which its prompt begins, where the source keeps a prompt on lines of its own."""

    def spellings(self, name: str) -> tuple[str, ...]:
        """Other names under which a node knows `name`."""
        return NODE_SPELLINGS.get(name, ())

    @property
    def classes(self) -> tuple[str, ...]:
        """Every class, each once: those of the subgraphs around it first, then what `class` says."""
        said = (one.strip() for one in self.text("class").replace(",", " ").split())
        return tuple(dict.fromkeys((*self.derived, *said)))

    @property
    def label(self) -> str:
        """What to show for it; its name where nothing is said."""
        return self.text("label", self.name)

    @property
    def shape(self) -> str:
        """How it is drawn, and with that what runs it."""
        return self.text("shape", "box")

    @property
    def type(self) -> str:
        """The handler that is asked for by name; empty: the shape decides."""
        return self.text("type")

    @property
    def handler(self) -> str:
        """The handler's name: `type`, else by shape, else `codergen`. Whether there is such a one, an engine knows."""
        return self.type or HANDLERS.get(self.shape, DEFAULT_HANDLER)

    @property
    def prompt(self) -> str:
        """What the stage is told; empty: its label."""
        return self.text("prompt")

    @property
    def fidelity(self) -> str:
        """How much of the past it wants; empty: nothing is said here."""
        return self.text("fidelity")

    @property
    def thread_id(self) -> str:
        """Whose conversation it continues at `full`; empty: nothing is said here."""
        return self.text("thread_id")

    @property
    def max_retries(self) -> int | None:
        """Attempts beyond the first; None: the graph's default. An explicit 0 is 0."""
        return self.whole("max_retries")

    @property
    def timeout(self) -> float | None:
        """The longest it may run, in seconds."""
        return self.seconds("timeout")

    @property
    def goal_gate(self) -> bool:
        """Whether the run may end only when this stage succeeded."""
        return self.flag("goal_gate")

    @property
    def auto_status(self) -> bool:
        """Whether a stage that says nothing of its outcome succeeded."""
        return self.flag("auto_status")

    @property
    def allow_partial(self) -> bool:
        """Whether a stage that used up its retries is a partial success."""
        return self.flag("allow_partial")

    @property
    def retry_target(self) -> str:
        """Where to go on after a failure; empty: nowhere."""
        return self.text("retry_target")

    @property
    def fallback_retry_target(self) -> str:
        """Where to go on if there is no `retry_target`."""
        return self.text("fallback_retry_target")

    @property
    def llm_model(self) -> str:
        """The model that runs it; empty: the engine's."""
        return self.text("llm_model")

    @property
    def context_helper(self) -> str:
        """The template with which the outputs before it are compiled for it; empty: none."""
        return self.text("context_helper")

    @property
    def llm_provider(self) -> str:
        """The provider of the model; empty: the engine's."""
        return self.text("llm_provider")

    @property
    def reasoning_effort(self) -> str:
        """`low`, `medium` or `high`; empty: nothing is said."""
        return self.text("reasoning_effort")


_GOAL = re.compile(r"\$goal\b")

__all__ = ["HANDLERS", "Edge", "Graph", "Node", "Pipeline", "Subgraph"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge(Attributed):
    """A way from one stage to the next."""

    source: str
    target: str
    line: int | None = field(default=None, compare=False)
    """Where it is drawn, from 1."""
    column: int | None = field(default=None, compare=False)

    @property
    def label(self) -> str:
        """Its caption, by which a stage can ask for it."""
        return self.text("label")

    @property
    def condition(self) -> str:
        """When it may be taken; empty: always."""
        return self.text("condition")

    @property
    def weight(self) -> int:
        """The higher wins."""
        return self.whole("weight") or 0

    @property
    def fidelity(self) -> str:
        """How much of the past goes with it; empty: nothing is said here."""
        return self.text("fidelity")

    @property
    def thread_id(self) -> str:
        """Whose conversation its target continues at `full`; empty: nothing is said here."""
        return self.text("thread_id")

    @property
    def loop_restart(self) -> bool:
        """Whether taking it begins the run anew at its target."""
        return self.flag("loop_restart")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subgraph(Attributed):
    """A part of the source that gave its stages defaults and a class; it plays no role when a graph runs."""

    name: str
    """Empty: it has none."""
    nodes: tuple[str, ...] = ()
    """The stages that are declared directly in it."""
    parent: int | None = None
    """The place of the subgraph around it in `Graph.subgraphs`; None: the graph itself."""

    @property
    def label(self) -> str:
        """Where the class of its stages comes from."""
        return self.text("label")


def _edges_by(edges: Iterable[Edge], end: str) -> Mapping[str, tuple[Edge, ...]]:
    found: dict[str, list[Edge]] = {}
    for edge in edges:
        found.setdefault(getattr(edge, end), []).append(edge)
    return {name: tuple(some) for name, some in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph(Attributed):
    """A whole pipeline, as its source says it."""

    name: str = ""
    nodes: Mapping[str, Node] = field(default_factory=dict[str, Node], hash=False)
    """Every stage that is declared, by name, in the order of the source. A stage that only an edge names is not one."""
    edges: tuple[Edge, ...] = ()
    subgraphs: tuple[Subgraph, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = field(default=(), compare=False)
    """What reading it had to forgive."""
    path: str | None = field(default=None, compare=False)
    source: str = field(default="", compare=False, repr=False)
    """The text it was read from; empty: it was made in Python."""
    _outgoing: Mapping[str, tuple[Edge, ...]] = field(init=False, repr=False, compare=False)
    _incoming: Mapping[str, tuple[Edge, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_outgoing", _edges_by(self.edges, "source"))
        object.__setattr__(self, "_incoming", _edges_by(self.edges, "target"))

    def spellings(self, name: str) -> tuple[str, ...]:
        """Other names under which a graph knows `name`."""
        return GRAPH_SPELLINGS.get(name, ())

    def outgoing(self, name: str) -> tuple[Edge, ...]:
        """The edges that leave a stage, in the order of the source."""
        return self._outgoing.get(name, ())

    def incoming(self, name: str) -> tuple[Edge, ...]:
        """The edges that lead to a stage, in the order of the source."""
        return self._incoming.get(name, ())

    @property
    def goal(self) -> str:
        """What the run is for."""
        return self.text("goal")

    def with_goal(self, text: str) -> str:
        """A text with the goal in place of `$goal`, but not of the beginning of a longer word."""
        return _GOAL.sub(lambda _: self.goal, text) if "$goal" in text else text

    @property
    def label(self) -> str:
        """What to show for it."""
        return self.text("label", self.name)

    @property
    def default_fidelity(self) -> str:
        """How much of the past a stage gets where nothing nearer says; empty: nothing is said."""
        return self.text("default_fidelity")

    @property
    def default_thread_id(self) -> str:
        """Whose conversation stages continue at `full` where nothing nearer says; empty: nothing is said."""
        return self.text("default_thread_id")

    @property
    def default_max_retries(self) -> int:
        """Attempts beyond the first where a stage says nothing."""
        return self.whole("default_max_retries") or 0

    @property
    def strict_failure_edges(self) -> bool:
        """Whether a failure never takes an edge without a condition."""
        return self.flag("strict_failure_edges")

    @property
    def model_stylesheet(self) -> str:
        """Which stages get which model, as text."""
        return self.text("model_stylesheet")

    @property
    def starts(self) -> tuple[Node, ...]:
        """Every stage that could be the first: by shape or type, else by its id."""
        return self._ends("start", ("start", "Start"))

    @property
    def exits(self) -> tuple[Node, ...]:
        """Every stage that ends a run: by shape or type, else by its id."""
        return self._ends("exit", ("exit", "end"))

    def with_ends(self) -> Graph:
        """The graph in which a start or exit that is one by its id alone, and asks nothing, is one by its shape."""
        ends = [*((node, "Mdiamond") for node in self.starts), *((node, "Msquare") for node in self.exits)]
        nodes = {
            node.name: replace(node, attrs={**node.attrs, "shape": shape})
            for node, shape in ends
            if node.handler == DEFAULT_HANDLER and not node.type and not node.prompt
        }
        return replace(self, nodes={**self.nodes, **nodes}) if nodes else self

    def _ends(self, handler: str, ids: tuple[str, ...]) -> tuple[Node, ...]:
        nodes = self.nodes.values()
        by_handler = tuple(node for node in nodes if node.handler == handler)
        by_name = tuple(self.nodes[name] for name in ids if name in self.nodes)
        return by_handler or by_name or tuple(node for node in nodes if node.name.lower() in ids)


Pipeline: TypeAlias = Graph
"""The name that the documents of this field use."""


def join_stage(graph: Graph, name: str) -> str | None:
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


def shared_stages(graph: Graph, place: int, stop: str) -> frozenset[str]:
    """The stages that the branch of an edge and one beside it may both run, before they meet at `stop`.

    Args:
        graph: The graph.
        place: Of the edge in the graph's edges.
        stop: Where the branches meet.
    """
    edge = graph.edges[place]
    others = [other for other in graph.outgoing(edge.source) if other is not edge]
    mine = _stages_before(graph, [edge.target], stop)
    return frozenset(mine & _stages_before(graph, [other.target for other in others], stop))


def _stages_before(graph: Graph, starts: Sequence[str], stop: str) -> set[str]:
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
