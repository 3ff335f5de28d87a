"""Everything that a run's loop reads is one frozen value; what is not in it, the loop cannot have.

A checkpoint is this value written down, so a run that is resumed is a run whose loop begins with another value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

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

    def following(self) -> Lineage:
        """The lineage of the next attempt."""
        return Lineage(root_run_id=self.root_run_id, attempt=self.attempt + 1, parent_run_id=self.run_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hashes:
    """Which graph a run is of, by content; None: it was made in Python, without a source."""

    source: str | None = None
    snapshot: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
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

    touched: Touched | None = field(default=None, compare=False, repr=False)
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
    def last(self) -> Outcome | None:
        """The outcome of the stage that was completed last."""
        return self.outcomes.get(self.current_node) if self.current_node is not None else None
