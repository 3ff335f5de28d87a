"""Routing: apply the outcome of a stage to the state, and choose the next stage."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import takewhile
from typing import Any, cast

from context_compiler.pipeline.artifacts import PREFIX, artifact_id
from context_compiler.pipeline.conditions import ConditionError, parse_condition
from context_compiler.pipeline.config import RunConfig
from context_compiler.pipeline.graph import Edge, Graph, Node, distances, join_stage
from context_compiler.pipeline.interviewers import AutoApprove
from context_compiler.pipeline.preamble import KEPT, LARGEST, artifact_reference
from context_compiler.pipeline.stage import PASSING, Stage
from context_compiler.pipeline.state import Outcome, RunState, StageStatus, failure, segment

_ACCELERATOR = re.compile(r"\s*(?:\[(?P<bracketed>[^\]]{1,20})\]\s*|(?P<closed>\w{1,3})\)\s*|(?P<dashed>\w)\s+-\s+)")


def normalise_label(label: str) -> str:
    """A label in the form in which labels are compared: without accelerator, stripped, lower case."""
    return accelerator(label)[1].strip().lower()


def accelerator(label: str) -> tuple[str, str]:
    """The key in a label such as `[Y] Yes`, `Y) Yes` or `Y - Yes`, empty if there is none, and the rest."""
    found = _ACCELERATOR.match(label)
    if found is None or not label[found.end() :].strip():
        return "", label.strip()
    return found["bracketed"] or found["closed"] or found["dashed"], label[found.end() :].strip()


def select_edge(graph: Graph, name: str, outcome: Outcome, values: Mapping[str, Any]) -> Edge | None:
    """The edge to take out of a stage; None if none is open.

    Conditions come first, then the label and the stages the outcome asks for, then weight, then name.

    Args:
        graph: The graph.
        name: The stage.
        outcome: Its outcome.
        values: The current context.
    """
    edges = graph.outgoing(name)
    true = [edge for edge in edges if edge.condition and _holds(edge, outcome, values)]
    if true:
        return _best(true)
    free = [edge for edge in edges if not edge.condition]
    wanted = normalise_label(outcome.preferred_label)
    if wanted:
        for edge in free:
            if normalise_label(edge.label) == wanted:
                return edge
    for id in outcome.suggested_next_ids:
        for edge in free:
            if edge.target == id:
                return edge
    return _best(free) if free else None


def _holds(edge: Edge, outcome: Outcome, values: Mapping[str, Any]) -> bool:
    """True if a condition holds; an invalid one never does."""
    try:
        condition = parse_condition(edge.condition)
    except ConditionError:
        return False
    return condition.holds(values, outcome=outcome.status, preferred_label=outcome.preferred_label, raw=outcome.raw)


def _best(edges: Iterable[Edge]) -> Edge:
    return min(edges, key=lambda edge: (-edge.weight, edge.target))


def retry_target(graph: Graph, node: Node) -> str | None:
    """The stage to continue at after a failure; None if not set."""
    return _first(graph, (node.retry_target, node.fallback_retry_target))


def gate_target(graph: Graph, gate: Node) -> str | None:
    """The stage to continue at if a goal gate is unsatisfied at the end; None if not set."""
    own = (gate.retry_target, gate.fallback_retry_target)
    return _first(graph, (*own, graph.text("retry_target"), graph.text("fallback_retry_target")))


def unmet_gate(graph: Graph, state: RunState, *, unvisited: bool = False) -> Node | None:
    """The first goal gate, in the order of the graph, that prevents a successful end.

    Args:
        graph: The graph.
        state: The state of the run.
        unvisited: True if a gate that never ran counts as unsatisfied.
    """
    for node in graph.nodes.values():
        if not node.goal_gate:
            continue
        outcome = state.outcomes.get(node.name)
        if node.name in state.recheck or (outcome is None and unvisited):
            return node
        if outcome is not None and not outcome.status.good:
            return node
    return None


def _first(graph: Graph, names: Iterable[str]) -> str | None:
    return next((name for name in names if name in graph.nodes), None)


UNSATISFIED = "goal gate {} unsatisfied and no retry target"
MOST_ERRORS = 5
"""Consecutive errors of one stage after which no way back is taken."""
GOOD = frozenset(status.value for status in StageStatus if status.good)
OUTPUTS = ("last_response_ref", "tool.output_ref")
"""Context keys under which a stage leaves a reference to its complete output."""


def fail_run(state: RunState, reason: str) -> RunState:
    """The state with the run failed."""
    return replace(state, status="fail", failure_reason=reason, next_node=None, edge=None)


def complete_stage(
    state: RunState, stage: Stage, outcome: Outcome, retries: int, duration: float
) -> tuple[RunState, Outcome]:
    """Apply the outcome of a stage to the state, except for the next stage; `duration` in seconds."""
    context, name = stage.context, stage.node.name
    try:
        context.apply_updates(outcome.context_updates)
    except ValueError as error:
        outcome = failure(f"its context_updates are refused: {error}")
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
    entry |= {"error": outcome.error} if outcome.error else {}
    context.append_log({**entry, "tools": list(outcome.tools), "duration": round(duration, 3)})
    _store_large_values(state, stage)
    done = replace(
        state,
        current_node=name,
        completed=(*state.completed, name),
        outcomes={**state.outcomes, name: outcome},
        recheck=tuple(gate for gate in state.recheck if gate != name),
        context=context.values(),
        logs=tuple(context.logs()),
        artifacts=stage.artifacts.in_memory(),
        sequence=state.sequence + 1,
    )
    return done, outcome


def _store_large_values(state: RunState, stage: Stage) -> None:
    """Store values too large for a preamble as artifacts, under the reference that a preamble shows.

    A branch uses references of its own, because the usual ones belong to the run around it.
    """
    values = stage.context.values()
    own: dict[str, str] = {}
    for key in sorted(stage.context.changed_keys() & values.keys()):
        value = values[key]
        if isinstance(value, str | list | dict) and state.context.get(key) is not value:
            if len(json.dumps(value)) > LARGEST:
                usual = artifact_reference(key).removeprefix(PREFIX)
                id = artifact_id(stage.branch_id, "context", key) if stage.branch_id else usual
                own[key] = stage.artifacts.store(id, key, value).reference
    if own and stage.branch_id:
        known: object = values.get(KEPT)
        stage.context.set(KEPT, {**cast("dict[str, Any]", known if isinstance(known, dict) else {}), **own})


class Router:
    """Chooses the next stage in a graph.

    Args:
        graph: The graph.
        config: Treatment of failures and gates.
        gates: True to check goal gates at the end of the graph; False in a branch.
    """

    def __init__(self, graph: Graph, config: RunConfig, *, gates: bool) -> None:
        self._graph, self._config, self._gates = graph, config, gates
        self._places = {id(edge): place for place, edge in enumerate(graph.edges)}

    def route(self, state: RunState, node: Node, outcome: Outcome) -> RunState:
        """Set the next stage: along an edge, to a retry target, or the end of the run.

        A failure goes along an edge meant for it, else to a retry target, and ends the run else: an edge that says
        nothing of outcomes would turn it into a success.
        """
        bad = outcome.status is StageStatus.FAIL
        parallel = node.handler == "parallel"  # its edges are branches
        join = join_stage(self._graph, node.name) if parallel else None
        joined = replace(state, next_node=join, how="join", edge=None)
        if join is not None and not bad:
            return joined
        edge = None if parallel else select_edge(self._graph, node.name, outcome, state.context)
        if edge is not None and (not bad or self._takes_failure(edge, node, outcome)):
            return self._follow(state, edge)
        if bad and join is not None and self._joins_failure(join, outcome):
            return self._retry(state, node) or joined
        if bad:
            return self._retry(state, node) or self._fall_through(state, node, outcome, edge)
        edges = self._graph.outgoing(node.name)
        if edges:
            ways = ", ".join(f"{edge.target} [{edge.condition}]" for edge in edges)
            return fail_run(state, f"{node.name}: no edge is open after {outcome.status}; there are {ways}"[:2_000])
        return self.gate_jump(state) or replace(state, next_node=None, status="success", edge=None)

    def _strict(self) -> bool | None:
        config = self._config.strict_failure_edges
        return self._graph.strict_failure_edges if config is None else config

    def _takes_failure(self, edge: Edge, node: Node, outcome: Outcome) -> bool:
        """True if an edge is meant for a failure.

        It has a condition that holds, is the one that the stage asked for, is the `else` beside conditions on the
        outcome, or leads to a junction, which decides.
        """
        if edge.condition:
            return True
        if self._strict() is not None or node.handler == "wait.human":  # a failed human gate has no choice to follow
            return False
        label = normalise_label(outcome.preferred_label)
        if (label and label == normalise_label(edge.label)) or edge.target in outcome.suggested_next_ids:
            return True
        target = self._graph.nodes.get(edge.target)
        if target is not None and target.handler == "conditional":
            return True
        return any(_asks_outcome(other) for other in self._graph.outgoing(node.name))

    def _joins_failure(self, join: str, outcome: Outcome) -> bool:
        """True if the stage where branches join decides what happens after all of them failed.

        A fan-in and a junction do, except under a policy that demands successes, which has decided already.
        """
        if outcome.context_updates.get("parallel.join_policy") != "wait_all":
            return False
        strict, handler = self._strict(), self._graph.nodes[join].handler
        return strict is False or handler == "parallel.fan_in" or (handler == "conditional" and strict is None)

    def _retry(self, state: RunState, node: Node) -> RunState | None:
        """The jump to a retry target after a failure; None if there is none."""
        gate = node.goal_gate and self._gates
        target = gate_target(self._graph, node) if gate else retry_target(self._graph, node)
        return None if target is None else self._jump(state, node, target, recheck=gate)

    def _fall_through(self, state: RunState, node: Node, outcome: Outcome, edge: Edge | None) -> RunState:
        """Along an edge not meant for a failure, if that is allowed; else the end of the run."""
        if edge is not None and self._strict() is False and node.handler != "wait.human":
            return self._follow(state, edge)
        if node.goal_gate and self._gates:
            return fail_run(state, UNSATISFIED.format(node.name))
        return fail_run(state, f"{node.name}: {outcome.failure_reason or 'failed'}")

    def gate_jump(self, state: RunState) -> RunState | None:
        """The state after an unsatisfied goal gate sent the run back or failed it; None if all are satisfied."""
        gate = unmet_gate(self._graph, state, unvisited=self._config.unvisited_gates) if self._gates else None
        if gate is None:
            return None
        target = gate_target(self._graph, gate)
        if target is None:
            return fail_run(state, UNSATISFIED.format(gate.name))
        return self._jump(state, gate, target, recheck=True)

    def _jump(self, state: RunState, node: Node, target: str, *, recheck: bool) -> RunState:
        """The jump to a target, unless the stage keeps ending in an error, which another round does not mend."""
        if (failed := _fail_repeated(state, node.name)) is not None:
            return failed
        again = tuple(dict.fromkeys((*state.recheck, node.name))) if recheck else state.recheck
        return replace(state, next_node=target, how="jump", edge=None, recheck=again)

    def _follow(self, state: RunState, edge: Edge) -> RunState:
        ahead = replace(state, next_node=edge.target, how="edge", edge=self._places[id(edge)])
        if edge.loop_restart:
            return replace(ahead, how="restart", status="restarted")
        failed = _fail_repeated(state, edge.source)
        return failed if failed is not None and self.leads_back(ahead) else ahead

    def leads_back(self, state: RunState) -> bool:
        """True if the way taken to the next stage is a jump, or an edge that is part of a cycle.

        A cycle in which a person decides on another round does not count; nor does an edge that leaves a junction.
        """
        if state.edge is None or state.how != "edge":
            return state.how in ("jump", "restart")
        edge, automatic = self._graph.edges[state.edge], isinstance(self._config.interviewer, AutoApprove)
        if self._graph.nodes[edge.source].handler == "conditional":
            return False
        return edge.source in distances(self._graph, edge.target, without="" if automatic else "wait.human")


def _fail_repeated(state: RunState, name: str) -> RunState | None:
    """The failed run, if a stage keeps ending in an error that another round would not fix; else None."""
    name, errors = errors_in_a_row(state, name)
    if errors < MOST_ERRORS:
        return None
    reason = state.outcomes[name].failure_reason
    return fail_run(state, f"{name}: {MOST_ERRORS} visits in a row ended in an error: {reason}")


def _asks_outcome(edge: Edge) -> bool:
    try:
        return any(clause.key == "outcome" for clause in parse_condition(edge.condition).clauses)
    except ConditionError:
        return False


def errors_in_a_row(state: RunState, name: str) -> tuple[str, int]:
    """The stage responsible for a way back, and the number of its latest visits that all ended in an exception.

    It is the stage being left, or one that has raised since the last success, whose errors another stage may report.
    """
    own = (entry for entry in reversed(state.logs) if entry.get("node") == name)
    mine = sum(1 for _ in takewhile(lambda entry: entry.get("error"), own))
    since = takewhile(lambda entry: entry.get("outcome") not in GOOD, reversed(state.logs))
    raised = Counter(str(entry.get("node")) for entry in since if entry.get("error"))
    return max([(name, mine), *raised.items()], key=lambda one: one[1])
