"""After a stage: what it said becomes part of the state, and the state says where the run goes on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from context_compiler.pipeline.artifacts import PREFIX, artifact_id
from context_compiler.pipeline.config import RunConfig
from context_compiler.pipeline.context import ContextStore, segment
from context_compiler.pipeline.excerpts import KEPT, LARGEST, artifact_reference
from context_compiler.pipeline.graph import Edge, Graph, Node
from context_compiler.pipeline.join import meeting
from context_compiler.pipeline.outcome import Outcome, StageStatus, failed
from context_compiler.pipeline.route import gate_target, retry_target, select_edge, unmet_gate
from context_compiler.pipeline.stage import Stage
from context_compiler.pipeline.stage_input import PASSING
from context_compiler.pipeline.state import RunState

OUTPUTS = ("last_response_ref", "tool.output_ref")
"""Keys under which a stage leaves the reference of all that it put out."""


def ended(state: RunState, reason: str) -> RunState:
    """A state in which the run has failed."""
    return replace(state, status="fail", failure_reason=reason, next_node=None, edge=None)


def completed(
    state: RunState, stage: Stage, outcome: Outcome, retries: int, duration: float
) -> tuple[RunState, Outcome]:
    """The state after a stage, but for the way on, and the outcome as it stands; `duration` in seconds."""
    context, name = stage.context, stage.node.name
    try:
        context.apply_updates(outcome.context_updates)
    except ValueError as error:
        outcome = failed(f"its context_updates are refused: {error}")
    for key in (*PASSING, "preferred_label"):
        context.remove(key)
    context.set("outcome", str(outcome.status))
    if outcome.preferred_label:
        context.set("preferred_label", outcome.preferred_label)
    if retries or name in state.retries:
        context.set(f"internal.retry_count.{segment(name)}", retries)
        state = replace(state, retries={**state.retries, name: retries})
    entry = {"node": name, "outcome": str(outcome.status), "notes": outcome.notes or outcome.failure_reason}
    ref = next((outcome.context_updates[key] for key in OUTPUTS if outcome.context_updates.get(key)), None)
    entry |= {"ref": ref} if ref is not None else {}
    context.append_log({**entry, "tools": list(outcome.tools), "duration": round(duration, 3)})
    _kept_aside(state, stage)
    done = replace(
        state,
        current_node=name,
        completed=(*state.completed, name),
        outcomes={**state.outcomes, name: outcome},
        recheck=tuple(gate for gate in state.recheck if gate != name),
        context=context.values(),
        logs=tuple(context.logs()),
        artifacts=stage.artifacts.held(),
        sequence=state.sequence + 1,
    )
    return done, outcome


def _kept_aside(state: RunState, stage: Stage) -> None:
    """What is too large for a preamble is an artifact too, under the reference that a preamble shows of it.

    A branch has references of its own, because the usual ones are those of the run around it.
    """
    values = stage.context.values()
    own: dict[str, str] = {}
    for key in sorted(stage.context.touched() & values.keys()):
        value = values[key]
        if isinstance(value, str | list | dict) and state.context.get(key) is not value:
            if len(json.dumps(value)) > LARGEST:
                usual = artifact_reference(key).removeprefix(PREFIX)
                id = artifact_id(stage.branch_id, "context", key) if stage.branch_id else usual
                own[key] = stage.artifacts.store(id, key, value).reference
    if own and stage.branch_id:
        known: object = values.get(KEPT)
        stage.context.set(KEPT, {**cast("dict[str, Any]", known if isinstance(known, dict) else {}), **own})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A branch of a parallel stage that came to its end."""

    place: int
    """The place of its edge in the graph's edges."""
    before: RunState
    after: RunState


def merged(state: RunState, context: ContextStore, branches: Sequence[Ended]) -> RunState:
    """The state with what stages in branches did, in the order of the branches' edges; their contexts stay theirs."""
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


class Router:
    """Finds the way on through one graph.

    Args:
        graph: The graph.
        config: How failures and gates are treated.
        gates: Whether goal gates are looked at where the graph ends; in a branch they are not.
    """

    def __init__(self, graph: Graph, config: RunConfig, *, gates: bool) -> None:
        self._graph, self._config, self._gates = graph, config, gates
        self._places = {id(edge): place for place, edge in enumerate(graph.edges)}

    def onward(self, state: RunState, node: Node, outcome: Outcome) -> RunState:
        """The state with the way on: an edge, a retry target, or the end."""
        bad = outcome.status is StageStatus.FAIL
        parallel = node.handler == "parallel"  # its edges are no ways on
        join = meeting(self._graph, node.name) if parallel and not bad else None
        if join is not None:
            return replace(state, next_node=join, how="join", edge=None)
        edge = None if parallel else select_edge(self._graph, node.name, outcome, state.context)
        # Nobody chose where a human gate failed, so none of its choices is taken.
        strict = self._config.strict_failure_edges or self._graph.strict_failure_edges
        strict = bad and (strict or node.handler == "wait.human")
        if edge is not None and (edge.condition or not strict):
            return self._along(state, edge)
        target = retry_target(self._graph, node) if bad else None
        if target is not None:
            return replace(state, next_node=target, how="jump", edge=None)
        if bad:
            return ended(state, f"{node.name}: {outcome.failure_reason or 'failed'}")
        edges = self._graph.outgoing(node.name)
        if edges:
            ways = ", ".join(f"{edge.target} [{edge.condition}]" for edge in edges)
            return ended(state, f"{node.name}: no edge is open after {outcome.status}; there are {ways}"[:2_000])
        return self.back(state) or replace(state, next_node=None, status="success", edge=None)

    def back(self, state: RunState) -> RunState | None:
        """The state in which a goal gate sends the run back, or fails it; None: no gate does."""
        gate = unmet_gate(self._graph, state, unvisited=self._config.unvisited_gates) if self._gates else None
        if gate is None:
            return None
        target = gate_target(self._graph, gate)
        if target is None:
            return ended(state, f"goal gate {gate.name} unsatisfied and no retry target")
        recheck = tuple(dict.fromkeys((*state.recheck, gate.name)))
        return replace(state, next_node=target, how="jump", edge=None, recheck=recheck)

    def _along(self, state: RunState, edge: Edge) -> RunState:
        ahead = replace(state, next_node=edge.target, how="edge", edge=self._places[id(edge)])
        return replace(ahead, how="restart", status="restarted") if edge.loop_restart else ahead
