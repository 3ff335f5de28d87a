"""Everything that a run's loop reads is one frozen value; what is not in it, the loop cannot have.

A checkpoint is this value written down, so a run that is resumed is a run whose loop begins with another value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from context_compiler.errors import PipelineError
from context_compiler.ids import text_hash
from context_compiler.pipeline.attributes import as_text
from context_compiler.pipeline.context import ContextStore, check_key, segment, to_json
from context_compiler.pipeline.dot import to_dot
from context_compiler.pipeline.graph import Graph
from context_compiler.pipeline.outcome import Outcome

SCHEMA_VERSION = 1

How: TypeAlias = Literal["start", "edge", "jump", "join", "restart"]
"""How a run comes to its next stage: as the first, by an edge, by a retry target, after a parallel stage, anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """A conversation that several stages share, as JSON."""

    messages: tuple[Any, ...] = ()
    """One plain value a message, oldest first."""
    marks: tuple[tuple[str, int], ...] = ()
    """The stages that ran in it, each with the number of messages there were before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """Which attempt of which run this is."""

    root_run_id: str
    attempt: int = 1
    parent_run_id: str | None = None

    @property
    def run_id(self) -> str:
        """The root's id, from the second attempt on with its number."""
        return self.root_run_id if self.attempt == 1 else f"{self.root_run_id}:attempt:{self.attempt}"

    def successor(self) -> Lineage:
        """The lineage of the next attempt."""
        return Lineage(root_run_id=self.root_run_id, attempt=self.attempt + 1, parent_run_id=self.run_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hashes:
    """Which graph a run is of, by content; None: it was made in Python, without a source."""

    source: str | None = None
    snapshot: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What the last stage may have changed, so that whoever saves a state need not look through all of it."""

    since: int
    """The `sequence` of the state before the stage."""
    names: frozenset[str]
    """Stages of which something is other."""
    keys: frozenset[str]
    """Keys of the context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """Where a run stands between two stages."""

    lineage: Lineage
    graph: Hashes
    next_node: str | None
    """The stage that comes next; None: the run has ended."""
    how: How = "start"
    edge: int | None = None
    """The place of the edge that leads there in the graph's edges, if it was an edge."""
    current_node: str | None = None
    """The stage that was completed last."""
    completed: tuple[str, ...] = ()
    """In order, each as often as it was completed."""
    outcomes: Mapping[str, Outcome] = field(default_factory=dict[str, Outcome])
    """The last outcome of each stage."""
    retries: Mapping[str, int] = field(default_factory=dict[str, int])
    """Attempts beyond the first of the last visit, where there were any."""
    visits: Mapping[str, int] = field(default_factory=dict[str, int])
    recheck: tuple[str, ...] = ()
    """Goal gates that sent the run back and must run again before it may end."""
    fidelity: str = ""
    """The mode of the stage that was completed last."""
    thread: str | None = None
    given: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Values that every attempt begins with, beside those of the graph."""
    context: Mapping[str, Any] = field(default_factory=dict[str, Any])
    logs: tuple[Any, ...] = ()
    artifacts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Those that are not in files."""
    threads: Mapping[str, Thread] = field(default_factory=dict[str, Thread])
    branches: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What branches did that have ended, by place, while `next_node` is a parallel stage that has not."""
    status: str = ""
    """Empty: it goes on; success or fail: it has ended; restarted: the next attempt begins at `next_node`."""
    failure_reason: str = ""
    sequence: int = 0
    """Stages that this run and its earlier attempts have completed."""
    resumed: bool = field(default=False, compare=False)
    """Whether the next stage is the first after a resume; no checkpoint holds this."""

    changes: Changes | None = field(default=None, compare=False, repr=False)
    """None: anything. No checkpoint holds this either."""

    @property
    def run_id(self) -> str:
        """The id of this attempt."""
        return self.lineage.run_id

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do."""
        return self.status in ("success", "fail")

    @property
    def ok(self) -> bool:
        """True once the run has ended in success."""
        return self.status == "success"

    @property
    def state(self) -> RunState:
        """The state itself, for callers of the time when results were wrapped."""
        return self

    @property
    def last(self) -> Outcome | None:
        """The outcome of the stage that was completed last."""
        return self.outcomes.get(self.current_node) if self.current_node is not None else None


RunResult: TypeAlias = RunState
"""What running a pipeline gives back is the state it ended in."""


STAGE_KEYS = ("outcome", "preferred_label", "current_node")
"""What a branch does not take over: it is about the stage before the branch."""
GRAPH_PATH = "internal.graph_path"
"""The key of the file that the graph of a run is from: what it names is looked for beside it, also after a resume."""


def graph_hashes(graph: Graph) -> Hashes:
    """What a graph is known by."""
    return Hashes(source=text_hash(graph.source) if graph.source else None, snapshot=text_hash(to_dot(graph)))


def initial_state(graph: Graph, names: Hashes, run_id: str, given: Mapping[str, Any]) -> RunState:
    """The state before the first stage; `graph` is as it runs, `names` are of the graph as it was given.

    Raises:
        PipelineError: a value that the run is given is none, or the graph has no start.
    """
    try:
        kept = {check_key(key): to_json(value) for key, value in given.items()}
    except ValueError as error:
        raise PipelineError(f"context: {error}") from None
    starts = graph.starts
    if not starts:
        raise PipelineError("the graph has no stage to start at")
    lineage = Lineage(root_run_id=run_id)
    return RunState(
        lineage=lineage,
        graph=names,
        next_node=starts[0].name,
        given=kept,
        context=_initial_context(graph, lineage, kept),
    )


def next_attempt(graph: Graph, state: RunState) -> RunState:
    """The state before the first stage of the next attempt: only the way there is kept, and what every attempt has."""
    lineage = state.lineage.successor()
    return RunState(
        lineage=lineage,
        graph=state.graph,
        next_node=state.next_node,
        how="restart",
        edge=state.edge,
        given=state.given,
        context=_initial_context(graph, lineage, state.given),
        sequence=state.sequence,
    )


def branch_state(state: RunState, context: ContextStore, *, target: str, place: int, branch_id: str) -> RunState:
    """The state before the first stage of a branch, with the values that the parallel stage had."""
    values = {key: value for key, value in context.values().items() if key not in STAGE_KEYS}
    values |= {"work.branch_id": branch_id, "work.branch_target": target}
    here = context.get("current_node")
    return replace(
        state,
        next_node=target,
        how="edge",
        edge=place,
        current_node=here,
        context=values,
        logs=tuple(context.logs()),
        branches={},
    )


def lineage_facts(state: RunState) -> dict[str, Any]:
    """What events say of an attempt."""
    return {
        "root_run_id": state.lineage.root_run_id,
        "attempt": state.lineage.attempt,
        "parent_run_id": state.lineage.parent_run_id,
    }


def _initial_context(graph: Graph, lineage: Lineage, given: Mapping[str, Any]) -> dict[str, Any]:
    """Values that an attempt begins with."""
    context = ContextStore({"graph.goal": graph.goal})
    for key, value in graph.attrs.items():
        context.set("graph." + ".".join(map(segment, key.split("."))), as_text(value))
    facts: dict[str, Any] = {"internal.run_id": lineage.run_id, "internal.lineage.root_run_id": lineage.root_run_id}
    facts["internal.lineage.attempt"] = lineage.attempt
    facts |= {"internal.lineage.parent_run_id": lineage.parent_run_id} if lineage.parent_run_id else {}
    facts |= {GRAPH_PATH: str(Path(graph.path).absolute())} if graph.path else {}
    context.apply_updates({**given, **facts})
    return context.values()
