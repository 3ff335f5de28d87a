"""Routing: apply the outcome of a stage to the state, and choose the next stage."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain, takewhile
from typing import Any, cast

from context_compiler.pipeline.artifacts import MAX_SHOWN_BYTES, PREFIX, REFERENCES_KEY, artifact_id, artifact_reference
from context_compiler.pipeline.conditions import ConditionError, parse_condition
from context_compiler.pipeline.config import RunConfig
from context_compiler.pipeline.graph import Edge, Graph, Node, distances, join_stage
from context_compiler.pipeline.interviewers import AutoApprove
from context_compiler.pipeline.stage import TRANSIENT_KEYS, Stage
from context_compiler.pipeline.state import Outcome, RunState, StageStatus, failure, segment

_ACCELERATOR = re.compile(r"\s*(?:\[(?P<bracketed>[^\]]{1,20})\]\s*|(?P<closed>\w{1,3})\)\s*|(?P<dashed>\w)\s+-\s+)")


def normalise_label(label: str) -> str:
    """Normalise a label for comparison: lower case, without accelerator and surrounding spaces."""
    return accelerator(label)[1].strip().lower()


def accelerator(label: str) -> tuple[str, str]:
    """Split a label such as `[Y] Yes`, `Y) Yes` or `Y - Yes` into key and text; the key is empty if there is none."""
    match = _ACCELERATOR.match(label)
    if match is None or not label[match.end() :].strip():
        return "", label.strip()
    return match["bracketed"] or match["closed"] or match["dashed"], label[match.end() :].strip()


def select_edge(graph: Graph, name: str, outcome: Outcome, values: Mapping[str, Any]) -> Edge | None:
    """Choose the edge to take out of a stage; None if no edge is open.

    In order of precedence: a condition that holds, the label that the outcome prefers, the stages that it suggests,
    the weight of the edge, the name of its target.

    Args:
        graph: The graph.
        name: The stage.
        outcome: Its outcome.
        values: The current context.
    """
    edges = graph.outgoing(name)
    holding = [edge for edge in edges if edge.condition and _holds(edge, outcome, values)]
    if holding:
        return _best(holding)
    unconditional = [edge for edge in edges if not edge.condition]
    wanted = normalise_label(outcome.preferred_label)
    labelled = (edge for edge in unconditional if wanted and normalise_label(edge.label) == wanted)
    suggested = (edge for id in outcome.suggested_next_ids for edge in unconditional if edge.target == id)
    return next(chain(labelled, suggested), None) or _best(unconditional)


def _holds(edge: Edge, outcome: Outcome, values: Mapping[str, Any]) -> bool:
    """True if the condition of an edge holds; an invalid condition never holds."""
    try:
        condition = parse_condition(edge.condition)
    except ConditionError:
        return False
    return condition.holds(values, outcome=outcome.status, preferred_label=outcome.preferred_label, raw=outcome.raw)


def _best(edges: Iterable[Edge]) -> Edge | None:
    return min(edges, key=lambda edge: (-edge.weight, edge.target), default=None)


def retry_target(graph: Graph, node: Node, *, gate: bool) -> str | None:
    """The stage at which the run continues after `node` fails or, with `gate`, is unsatisfied; None if not set."""
    names = [node.retry_target, node.fallback_retry_target]
    names += [graph.text("retry_target"), graph.text("fallback_retry_target")] if gate else []
    return next((name for name in names if name in graph.nodes), None)


def unmet_gate(graph: Graph, state: RunState, *, unvisited: bool = False, without: str = "") -> Node | None:
    """The first goal gate, in the order of the graph, that prevents success; None if all are satisfied.

    Args:
        graph: The graph.
        state: The state of the run.
        unvisited: True if a gate that never ran counts as unsatisfied.
        without: A stage that is about to run and is not checked.
    """
    for node in graph.nodes.values():
        if not node.goal_gate or node.name == without:
            continue
        outcome = state.outcomes.get(node.name)
        unmet = unvisited if outcome is None else not outcome.status.good
        if unmet or node.name in state.recheck:
            return node
    return None


MAX_ERRORS = 5
"""Consecutive errors of one stage after which the run fails instead of going back."""
GOOD = frozenset(status.value for status in StageStatus if status.good)
OUTPUTS = ("last_response_ref", "tool.output_ref")
"""Context keys of references to the complete output of a stage."""


def fail_run(state: RunState, reason: str) -> RunState:
    """Return the state with the run ended as failed."""
    return replace(state, status="fail", failure_reason=reason, next_node=None, edge=None)


def complete_stage(
    state: RunState, stage: Stage, outcome: Outcome, retries: int, duration: float
) -> tuple[RunState, Outcome]:
    """Apply the outcome of a stage to the state, without choosing the next stage; `duration` is in seconds.

    Returns:
        The new state, and the outcome, which is a failure if its context updates were invalid.
    """
    context, name = stage.context, stage.node.name
    try:
        context.apply_updates(outcome.context_updates)
    except ValueError as error:
        outcome = failure(f"its context_updates are refused: {error}")
    for key in (*TRANSIENT_KEYS, "preferred_label"):
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
    """Store changed values that are too large for a preamble as artifacts, under the references that preambles show.

    A branch uses its own references, because the usual ones belong to the surrounding run.
    """
    values = stage.context.values()
    own: dict[str, str] = {}
    for key in sorted(stage.context.changed_keys() & values.keys()):
        value = values[key]
        if isinstance(value, str | list | dict) and state.context.get(key) is not value:
            if len(json.dumps(value)) > MAX_SHOWN_BYTES:
                usual = artifact_reference(key).removeprefix(PREFIX)
                id = artifact_id(stage.branch_id, "context", key) if stage.branch_id else usual
                own[key] = stage.artifacts.store(id, key, value).reference
    if own and stage.branch_id:
        references: object = values.get(REFERENCES_KEY)
        others = cast("dict[str, Any]", references) if isinstance(references, dict) else {}
        stage.context.set(REFERENCES_KEY, {**others, **own})


class Router:
    """Chooses the next stage in a graph.

    Args:
        graph: The graph.
        config: Configuration, which decides how failures and gates are treated.
        gates: True to check goal gates at the end of the graph; False in a branch.
    """

    def __init__(self, graph: Graph, config: RunConfig, *, gates: bool) -> None:
        self._graph, self._config, self._gates = graph, config, gates
        self._indices = {id(edge): index for index, edge in enumerate(graph.edges)}

    def route(self, state: RunState, node: Node, outcome: Outcome) -> RunState:
        """Set the next stage by following an edge or jumping to a retry target, or end the run.

        A failure follows an edge meant for failures, else jumps to a retry target, else ends the run. It follows no
        other edge, because that would turn the failure into a success.
        """
        failed = outcome.status is StageStatus.FAIL
        parallel = node.handler == "parallel"  # its edges are branches
        join = join_stage(self._graph, node.name) if parallel else None
        joined = replace(state, next_node=join, how="join", edge=None)
        if join is not None and not failed:
            return joined
        edge = None if parallel else select_edge(self._graph, node.name, outcome, state.context)
        if edge is not None and (not failed or self._accepts_failure(edge, node, outcome)):
            return self._follow(state, edge)
        if failed and join is not None and self._join_handles_failure(join, outcome):
            return self._retry(state, node) or joined
        if failed:
            return self._retry(state, node) or self._follow_or_fail(state, node, outcome, edge)
        edges = self._graph.outgoing(node.name)
        if edges:
            listed = ", ".join(f"{edge.target} [{edge.condition}]" for edge in edges)
            return fail_run(state, f"{node.name}: no edge is open after {outcome.status}; there are {listed}"[:2_000])
        return self.gate_jump(state) or replace(state, next_node=None, status="success", edge=None)

    def _strict(self) -> bool | None:
        """`strict_failure_edges` of the config, else of the graph; None if neither sets it."""
        config = self._config.strict_failure_edges
        return self._graph.strict_failure_edges if config is None else config

    def _accepts_failure(self, edge: Edge, node: Node, outcome: Outcome) -> bool:
        """True if an edge chosen by `select_edge` may be followed after a failure.

        Such an edge has a condition (which holds), is the one that the stage asked for, is the `else` beside edges
        with conditions on the outcome, or leads to a junction, which routes the failure itself.
        """
        if edge.condition:
            return True
        if self._strict() is not None or node.handler == "wait.human":  # a failed human gate made no choice
            return False
        label = normalise_label(outcome.preferred_label)
        if (label and label == normalise_label(edge.label)) or edge.target in outcome.suggested_next_ids:
            return True
        target = self._graph.nodes.get(edge.target)
        if target is not None and target.handler == "conditional":
            return True
        return any(_tests_outcome(other) for other in self._graph.outgoing(node.name))

    def _join_handles_failure(self, join: str, outcome: Outcome) -> bool:
        """True if the stage at which branches join decides what happens after all of them failed.

        A fan-in does, and so does a junction unless strictness is set. Under a join policy other than `wait_all`, the
        parallel stage has already decided.
        """
        if outcome.context_updates.get("parallel.join_policy") != "wait_all":
            return False
        strict, handler = self._strict(), self._graph.nodes[join].handler
        return strict is False or handler == "parallel.fan_in" or (handler == "conditional" and strict is None)

    def _retry(self, state: RunState, node: Node) -> RunState | None:
        """Jump to the retry target of a failed stage; None if there is no target."""
        gate = node.goal_gate and self._gates
        target = retry_target(self._graph, node, gate=gate)
        return None if target is None else self._jump(state, node, target, recheck=gate)

    def _follow_or_fail(self, state: RunState, node: Node, outcome: Outcome, edge: Edge | None) -> RunState:
        """Follow an edge not meant for failures, if the settings allow that; otherwise fail the run."""
        if edge is not None and self._strict() is False and node.handler != "wait.human":
            return self._follow(state, edge)
        if node.goal_gate and self._gates:
            return fail_run(state, _unsatisfied(node, state))
        return fail_run(state, f"{node.name}: {outcome.failure_reason or 'failed'}")

    def gate_jump(self, state: RunState, without: str = "") -> RunState | None:
        """Jump back because of an unsatisfied goal gate, or fail the run; None if all gates are satisfied.

        The stage `without` is about to run and is not checked.
        """
        if not self._gates:
            return None
        gate = unmet_gate(self._graph, state, unvisited=self._config.unvisited_gates, without=without)
        if gate is None:
            return None
        target = retry_target(self._graph, gate, gate=True)
        if target in (None, without):
            return fail_run(state, _unsatisfied(gate, state))
        return self._jump(state, gate, target, recheck=True)

    def _jump(self, state: RunState, node: Node, target: str, *, recheck: bool) -> RunState:
        """Jump to a target, or fail the run if the stage keeps ending in errors."""
        if (failed := _fail_repeated(state, node.name)) is not None:
            return failed
        gates = tuple(dict.fromkeys((*state.recheck, node.name))) if recheck else state.recheck
        return replace(state, next_node=target, how="jump", edge=None, recheck=gates)

    def _follow(self, state: RunState, edge: Edge) -> RunState:
        followed = replace(state, next_node=edge.target, how="edge", edge=self._indices[id(edge)])
        if edge.loop_restart:
            return replace(followed, how="restart", status="restarted")
        failed = _fail_repeated(state, edge.source)
        return failed if failed is not None and self.leads_back(followed) else followed

    def leads_back(self, state: RunState) -> bool:
        """True if the run reaches its next stage by a jump, a restart, or an edge that is part of a cycle.

        A cycle in which a person decides about another round does not count, nor does an edge out of a junction.
        """
        if state.edge is None or state.how != "edge":
            return state.how in ("jump", "restart")
        edge, automatic = self._graph.edges[state.edge], isinstance(self._config.interviewer, AutoApprove)
        if self._graph.nodes[edge.source].handler == "conditional":
            return False
        return edge.source in distances(self._graph, edge.target, without="" if automatic else "wait.human")


def _unsatisfied(gate: Node, state: RunState) -> str:
    """Reason why a run fails at a goal gate that has no retry target, with the reason of the gate's own failure."""
    outcome = state.outcomes.get(gate.name)
    why = outcome.failure_reason if outcome is not None else ""
    return f"goal gate {gate.name} unsatisfied and no retry target: {why}".rstrip(": ")


def _fail_repeated(state: RunState, name: str) -> RunState | None:
    """Fail the run if a stage keeps ending in errors, which another round would not fix; None if it does not."""
    name, errors = errors_in_a_row(state, name)
    if errors < MAX_ERRORS:
        return None
    reason = state.outcomes[name].failure_reason
    return fail_run(state, f"{name}: {MAX_ERRORS} visits in a row ended in an error: {reason}")


def _tests_outcome(edge: Edge) -> bool:
    """True if the condition of an edge is valid and tests the outcome."""
    try:
        return any(clause.key == "outcome" for clause in parse_condition(edge.condition).clauses)
    except ConditionError:
        return False


def errors_in_a_row(state: RunState, name: str) -> tuple[str, int]:
    """Find the stage whose errors make the run go back, and count its latest consecutive visits with an exception.

    It is the stage `name`, which the run leaves, or a stage that has raised since the last success, because another
    stage may report its errors.
    """
    visits = (entry for entry in reversed(state.logs) if entry.get("node") == name)
    errors = sum(1 for _ in takewhile(lambda entry: entry.get("error"), visits))
    since = takewhile(lambda entry: entry.get("outcome") not in GOOD, reversed(state.logs))
    raised = Counter(str(entry.get("node")) for entry in since if entry.get("error"))
    return max([(name, errors), *raised.items()], key=lambda pair: pair[1])
