"""What happens in a run is told as it happens, in order, each with a number that only grows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

RUN = ("run_initialized", "run_resumed", "run_finalized")
STAGE = ("stage_started", "agent_answered", "stage_retrying", "stage_completed", "stage_failed", "checkpoint_saved")
PARALLEL = ("parallel_started", "parallel_branch_started", "parallel_branch_completed", "parallel_completed")
PEOPLE = ("interview_started", "interview_completed", "interview_timeout")
CHILD = ("child_started", "child_observed", "child_steered", "child_stopped")
ASKING = ("context_compiled", "tool_hook_failed")
KINDS = (*RUN, *STAGE, *ASKING, *PARALLEL, *PEOPLE, *CHILD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened."""

    kind: str
    """One of `KINDS`."""
    run_id: str
    """The attempt it happened in."""
    sequence: int
    """From 1, over all attempts of a run."""
    at: str
    """ISO 8601, UTC."""
    node: str | None = None
    branch: str = ""
    """The branch of a parallel stage it happened in; empty: in none."""
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def document(self) -> dict[str, Any]:
        """As plain data."""
        said: dict[str, Any] = {"kind": self.kind, "run_id": self.run_id, "sequence": self.sequence, "at": self.at}
        said |= {"node": self.node} if self.node is not None else {}
        said |= {"branch": self.branch} if self.branch else {}
        return {**said, "data": dict(self.data)} if self.data else said


OnEvent = Callable[[Event], Any]
"""Hears every event; may be async."""


def event_of(data: Mapping[str, Any]) -> Event:
    """An event from plain data."""
    return Event(**data)
