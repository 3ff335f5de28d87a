"""A pipeline is a value: a graph of stages, the edges between them, and what was said about each.

A `Graph` is what other pages call a pipeline: it has `name`, `goal`, `nodes`, `default_fidelity` and
`default_thread_id`. A change makes a new graph (`dataclasses.replace`); nothing here is ever edited in place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from context_compiler.pipeline.attributes import GRAPH_SPELLINGS, Attributed
from context_compiler.pipeline.diagnostics import Diagnostic
from context_compiler.pipeline.nodes import DEFAULT_HANDLER, HANDLERS, Node

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


def _by_end(edges: Iterable[Edge], end: str) -> Mapping[str, tuple[Edge, ...]]:
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
        object.__setattr__(self, "_outgoing", _by_end(self.edges, "source"))
        object.__setattr__(self, "_incoming", _by_end(self.edges, "target"))

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
