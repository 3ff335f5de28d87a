"""Stages that run their outgoing edges concurrently, as branches with copies of everything.

The run continues at the stage where the branches join. Their results are in `parallel.results`, sorted by name, and a
join policy decides the outcome of the parallel stage.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from context_compiler.pipeline.artifacts import artifact_id
from context_compiler.pipeline.check import POLICIES
from context_compiler.pipeline.graph import join_stage
from context_compiler.pipeline.stage import Stage, Unanswered
from context_compiler.pipeline.state import STAGE_KEYS, Outcome, RunState, StageStatus, failure
from context_compiler.resilience import cancel_and_wait, try_await

DEFAULT_CONCURRENCY = 4
"""Default of `max_parallel`: the number of branches that run at the same time."""
LARGEST = 8 * 1024
"""Maximum length in characters of a value in the results, as JSON; a larger value becomes an artifact."""
OWN_PREFIXES = ("internal.", "graph.", "work.", "parallel.")
OWN_KEYS = frozenset(("thread_key", "last_stage", "last_response", "last_response_ref", *STAGE_KEYS))
"""Context keys, and their prefixes, that are not reported as results of a branch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A branch to run."""

    id: str
    """Name of the branch, unique in its stage."""
    target: str
    """First stage of the branch."""
    edge: int
    """Index of its edge in the graph's edges."""


class ParallelHandler:
    """Runs the branches of a stage concurrently."""

    reads_past = False
    retries = False

    async def execute(self, stage: Stage) -> Outcome:
        """Run all branches up to the stage where they join."""
        branches = branches_of(stage)
        policy = stage.node.text("join_policy", "wait_all")
        if not branches:
            return failure("a parallel stage without edges: there are no branches")
        if policy not in POLICIES:
            return failure(f"unknown join_policy {policy!r}; use one of {', '.join(sorted(POLICIES))}")
        join = join_stage(stage.graph, stage.node.name)
        if join is None:
            return failure("the branches never meet: lead them to one parallel.fan_in stage")
        await stage.emit("parallel_started", branch_count=len(branches), join=join)
        rows = await _run_branches(stage, branches, join, policy)
        rows.sort(key=lambda row: str(row["branch_id"]))
        outcome = join_status(policy, rows, stage)
        good = sum(map(succeeded, rows))
        counts = {"success_count": good, "fail_count": sum(row["status"] == "fail" for row in rows)}
        await stage.emit("parallel_completed", **counts)
        facts = {"results": rows, "branch_count": len(rows), "join_policy": policy, **counts}
        return Outcome(
            status=outcome,
            context_updates={f"parallel.{key}": value for key, value in facts.items()},
            notes=f"{good} of {len(rows)} branches succeeded",
            failure_reason="" if outcome is not StageStatus.FAIL else _failure_reason(policy, rows),
        )


def branches_of(stage: Stage) -> list[Branch]:
    """Return the branches of a stage, one per outgoing edge, with distinct names."""
    branches: dict[str, Branch] = {}
    counts: dict[str, int] = {}
    for index, edge in enumerate(stage.graph.edges):
        if edge.source == stage.node.name:
            name = label = edge.label or edge.target
            while name in branches:
                counts[label] = counts.get(label, 1) + 1
                name = f"{label}-{counts[label]}"
            branches[name] = Branch(id=name, target=edge.target, edge=index)
    return list(branches.values())


async def _run_branches(stage: Stage, branches: Sequence[Branch], join: str, policy: str) -> list[dict[str, Any]]:
    """Run branches and return their results; branches that were not waited for are skipped.

    Raises:
        Unanswered: a branch that is needed has stopped because nobody can be asked. The others have ended.
    """
    places = asyncio.Semaphore(max(1, stage.node.whole("max_parallel") or DEFAULT_CONCURRENCY))
    tasks = {asyncio.create_task(_run_branch(stage, branch, join, places)): branch for branch in branches}
    fast = stage.node.text("error_policy") == "fail_fast"
    rows: dict[str, dict[str, Any]] = {}
    waiting, unanswered = set(tasks), list[Unanswered]()
    try:
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if isinstance(error := task.exception(), Unanswered):
                    unanswered.append(error)
                else:
                    rows[tasks[task].id] = task.result()
            enough = policy == "first_success" and any(map(succeeded, rows.values()))
            if enough or (fast and any(row["status"] == "fail" for row in rows.values())):
                break
        else:
            for error in unanswered:
                raise error
    finally:
        await cancel_and_wait(*tasks)
    skipped = {"status": StageStatus.SKIPPED.value, "notes": "not waited for", "score": 0}
    return [
        rows.get(branch.id) or {"branch_id": branch.id, "target_node": branch.target, **skipped} for branch in branches
    ]


async def _run_branch(stage: Stage, branch: Branch, join: str, places: asyncio.Semaphore) -> dict[str, Any]:
    """Run a branch once there is a place for it, and return its result."""
    async with places:
        await stage.emit("parallel_branch_started", branch=branch.id, index=branch.edge)
        before = stage.context.values()
        started = stage.config.clock()
        ran = await try_await(stage.branch(branch.target, branch.edge, branch.id, join))
        row: dict[str, Any] = {"branch_id": branch.id, "target_node": branch.target}
        if ran.value is None:
            row |= {"status": "fail", "score": 0, "notes": "", "failure_reason": f"{ran.error}"}
        else:
            row |= _branch_row(stage, branch, before, ran.value)
        duration = stage.config.clock() - started
        facts = {"branch": branch.id, "index": branch.edge, "success": succeeded(row), "duration": duration}
        await stage.emit("parallel_branch_completed", **facts)
        return row


def _branch_row(stage: Stage, branch: Branch, before: Mapping[str, Any], state: RunState) -> dict[str, Any]:
    """Result of a branch that ran, given the context values before it and its final state."""
    last = state.last  # None if the branch ran no stage
    status = "fail" if state.status == "fail" else last.status.value if last else "success"
    new = {key: value for key, value in state.context.items() if before.get(key) is not value}
    updates = {
        key: value if len(json.dumps(value)) <= LARGEST else stage.keep(artifact_id(branch.id, key), value)
        for key, value in sorted(new.items())
        if key not in OWN_KEYS and not key.startswith(OWN_PREFIXES)
    }
    score = state.context.get("score", 0)
    return {
        "status": status,
        "score": score if isinstance(score, int | float) and not isinstance(score, bool) else 0,
        "notes": last.notes[:LARGEST] if last else "",
        "failure_reason": state.failure_reason or (last.failure_reason if last else ""),
        "last_response": state.context.get("last_response", "") if "last_response" in new else "",
        "context_updates": updates,
    }


def succeeded(row: Mapping[str, Any]) -> bool:
    """True if a branch succeeded; a skipped branch did not."""
    return row.get("status") in ("success", "partial_success")


def join_status(policy: str, rows: Sequence[Mapping[str, Any]], stage: Stage) -> StageStatus:
    """Compute the status of a parallel stage from the results of its branches."""
    if stage.node.text("error_policy") == "ignore":
        rows = [row for row in rows if row["status"] != "fail"]
    good, bad = sum(map(succeeded, rows)), sum(row["status"] == "fail" for row in rows)
    if policy == "wait_all" and bad and good:
        return StageStatus.PARTIAL_SUCCESS
    if policy in ("wait_all", "all_success"):
        met = not bad
    else:
        met = policy == "ignore" or good >= required_successes(policy, len(rows), stage)
    return StageStatus.SUCCESS if met else StageStatus.FAIL


def required_successes(policy: str, count: int, stage: Stage) -> int:
    """Number of branches that must succeed under a policy."""
    node = stage.node
    if policy in ("any_success", "first_success"):
        return 1
    if policy == "k_of_n":
        return node.whole("k") or node.whole("min_success") or 1
    wanted = node.whole("quorum_count")
    if wanted is not None:
        return min(max(wanted, 1), max(count, 1))
    fraction = node.number("quorum_fraction")
    fraction = node.number("quorum_ratio") if fraction is None else fraction
    return max(1, math.ceil(count * (0.5 if fraction is None else fraction)))


def _failure_reason(policy: str, rows: Sequence[Mapping[str, Any]]) -> str:
    summary = "no branch succeeded" if policy == "wait_all" else f"{policy} is not met"
    failed = [row for row in rows if row["status"] == "fail"]
    reasons = [f"{row['branch_id']}: {row.get('failure_reason') or 'failed'}" for row in failed]
    return "; ".join((summary, *reasons))[:2_000]
