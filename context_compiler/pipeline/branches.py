"""Results of finished branches, saved while their parallel stage still runs: a resumed run does not repeat them.

Only what a branch changed is saved; its input is part of the run's state already.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from context_compiler.errors import PipelineError
from context_compiler.middleware.middleware import log_text
from context_compiler.pipeline.artifacts import ArtifactStore
from context_compiler.pipeline.context import ContextStore
from context_compiler.pipeline.outcome import parse_outcome
from context_compiler.pipeline.state import RunState

log = logging.getLogger("context_compiler.pipeline")

_MISSING = object()


class Branches:
    """Finished branches of the stage that is running, by place, nested ones included."""

    def __init__(self, save: Callable[[RunState], Awaitable[None]]) -> None:
        self._save = save
        self._lock = asyncio.Lock()
        self._state: RunState | None = None
        self._artifacts = ArtifactStore()
        self._ended: dict[str, Any] = {}

    def begin(self, state: RunState, artifacts: ArtifactStore) -> None:
        """Start a stage; `state` is the run before it, and holds branches that finished before an interruption."""
        self._state, self._artifacts, self._ended = state, artifacts, dict(state.branches)

    def find(self, place: str, before: RunState) -> RunState | None:
        """Final state of a finished branch, given the state it started with; None if it has not finished.

        A damaged entry counts as missing.
        """
        found = self._ended.get(place)
        try:
            return None if found is None else _restore(before, found)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            log.warning("the branch %s runs again, because its saved data is damaged: %s", place, log_text(error))
            return None

    async def record(self, place: str, before: RunState, after: RunState) -> None:
        """Save how a branch ended. If that fails the run goes on, and the next checkpoint decides."""
        self._ended[place] = _changes(before, after)
        async with self._lock:
            state = self._state
            if state is None:
                return
            try:
                await self._save(replace(state, branches=dict(self._ended), artifacts=self._artifacts.in_memory()))
            except PipelineError as error:
                log.warning("the branch %s has ended, but that could not be kept: %s", place, error)


def _changes(before: RunState, after: RunState) -> dict[str, Any]:
    """Changes made by a branch, as plain data."""
    given, now = before.context, after.context
    return {
        "next_node": after.next_node,
        "how": after.how,
        "edge": after.edge,
        "current_node": after.current_node,
        "status": after.status,
        "failure_reason": after.failure_reason,
        "sequence": after.sequence - before.sequence,
        "completed": list(after.completed[len(before.completed) :]),
        "logs": list(after.logs[len(before.logs) :]),
        "outcomes": {
            name: outcome.document()
            for name, outcome in after.outcomes.items()
            if before.outcomes.get(name) is not outcome
        },
        "visits": dict(after.visits),
        "retries": dict(after.retries),
        "recheck": list(after.recheck),
        "context": {key: value for key, value in now.items() if given.get(key, _MISSING) is not value},
        "gone": [key for key in given if key not in now],
    }


def _restore(before: RunState, found: Mapping[str, Any]) -> RunState:
    """The state after a branch; everything unchanged is shared with the state before it."""
    kept = {key: value for key, value in before.context.items() if key not in found["gone"]}
    return replace(
        before,
        next_node=found["next_node"],
        how=found["how"],
        edge=found["edge"],
        current_node=found["current_node"],
        status=found["status"],
        failure_reason=found["failure_reason"],
        sequence=before.sequence + found["sequence"],
        completed=(*before.completed, *found["completed"]),
        logs=(*before.logs, *found["logs"]),
        outcomes={**before.outcomes, **{name: parse_outcome(one) for name, one in found["outcomes"].items()}},
        visits=dict(found["visits"]),
        retries=dict(found["retries"]),
        recheck=tuple(found["recheck"]),
        context={**kept, **found["context"]},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchResult:
    """A finished branch of a parallel stage."""

    place: int
    """Index of its edge in the graph's edges."""
    before: RunState
    after: RunState


def merge_branches(state: RunState, context: ContextStore, branches: Sequence[BranchResult]) -> RunState:
    """Merge the progress of branches into a state, in the order of their edges; their contexts stay separate."""
    for one in sorted(branches, key=lambda one: one.place):
        before, after = one.before, one.after
        for entry in after.logs[len(before.logs) :]:
            context.append_log(entry)
        new = {name: outcome for name, outcome in after.outcomes.items() if before.outcomes.get(name) is not outcome}
        more = {name: count - before.visits.get(name, 0) for name, count in after.visits.items()}
        state = replace(
            state,
            completed=(*state.completed, *after.completed[len(before.completed) :]),
            outcomes={**state.outcomes, **new},
            visits={**state.visits, **{name: state.visits.get(name, 0) + by for name, by in more.items() if by}},
            recheck=tuple(gate for gate in state.recheck if gate not in new),
            sequence=state.sequence + after.sequence - before.sequence,
        )
    return state
