"""The main loop of a run: run a stage, apply its outcome, choose the next stage, save the state.

A step takes all its input from the state, and returns a new state with all its changes. While a stage is running, its
finished branches and the number of each further attempt are saved, so that a resumed run does not repeat them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from context_compiler.errors import PipelineError
from context_compiler.ids import text_hash
from context_compiler.middleware.reports import log_text
from context_compiler.pipeline.artifacts import ArtifactStore
from context_compiler.pipeline.config import RequestMeter, RunConfig
from context_compiler.pipeline.graph import AGENTS, DEFAULT_HANDLER, Graph, Node, shared_stages
from context_compiler.pipeline.routing import Router, complete_stage, errors_in_a_row, fail_run
from context_compiler.pipeline.stage import (
    Child,
    Emit,
    HandlerLike,
    Stage,
    StartChild,
    folder_name,
    run_attempts,
    stage_input,
    traits,
)
from context_compiler.pipeline.state import Changes, ContextStore, Outcome, RunState, StageStatus, Thread, branch_state
from context_compiler.pipeline.threads import Session, load_session

log = logging.getLogger("context_compiler.pipeline")

AGENT_IF_PROMPT = ("parallel.fan_in", "stack.manager_loop")
"""Handlers that call an agent only if the stage has a prompt."""

Save = Callable[[RunState], Awaitable[None]]

_MISSING = object()

_RESERVED = re.compile(r"artifacts|children|attempt-\d+|.+\.(?:json|jsonl|dot)", re.IGNORECASE | re.DOTALL)
"""Names that the folder of a run uses itself, so that the folder of a stage has another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineIO:
    """Side effects and settings of an engine."""

    config: RunConfig
    handlers: Mapping[str, HandlerLike]
    save: Save
    """Saves a state."""
    emit: Emit
    start: StartChild
    root: Path | None
    """Folder of the first attempt; None if no files are written."""
    requests: RequestMeter


class Engine:
    """Runs one graph. Each branch of a parallel stage has its own engine, which saves nothing."""

    def __init__(
        self,
        graph: Graph,
        io: EngineIO,
        *,
        branch_id: str = "",
        branch_key: str = "",
        shared: frozenset[str] = frozenset(),
        around: frozenset[str] = frozenset(),
    ) -> None:
        """`shared` contains the stages of the branch that other branches may also run, `around` those that run it."""
        self.graph, self.io, self._shared, self._around = graph, io, shared, around
        self.branch_id, self.branch_key = branch_id, branch_key
        self.config = io.config
        self.inbox: list[str] = []
        """Messages from a supervisor for the next stage."""
        self._thread_sessions: dict[str, Session] = {}
        self._artifacts = ArtifactStore()
        self._router = Router(graph, io.config, gates=not branch_id)
        self._exits = {node.name for node in graph.exits}
        self._branches: list[BranchResult] = []
        self._stage_log = StageLog(io.save)

    async def run(self, state: RunState) -> RunState:
        """Run to the end, saving after each step, and return the final state."""
        self.load(state)

        async def advance() -> bool:
            nonlocal state
            if not state.ended:
                state = await self.step(state)
                await self.io.save(state)
            return state.ended

        while not await self.config.journal(advance):
            pass
        return state

    def load(self, state: RunState) -> None:
        """Restore conversations and artifacts from a state."""
        self._thread_sessions = {key: load_session(key, thread) for key, thread in state.threads.items()}
        folder = self.folder(state)
        if folder is not None:
            with suppress(OSError):  # the first write to the folder reports the error
                (folder / "artifacts").mkdir(parents=True, exist_ok=True)
        self._artifacts = ArtifactStore(folder)
        self._artifacts.restore(state.artifacts)

    @property
    def artifact_count(self) -> int:
        """Number of artifacts in the current attempt."""
        return len(self._artifacts.list())

    def folder(self, state: RunState) -> Path | None:
        """Folder for the files of an attempt; None if no files are written."""
        if self.io.root is None or state.lineage.attempt == 1:
            return self.io.root
        return self.io.root / f"attempt-{state.lineage.attempt}"

    async def step(self, state: RunState) -> RunState:
        """Run one stage, or make one decision that runs no stage, such as a restart."""
        if state.status == "restarted":
            return await self._restart(state)
        node = self.graph.nodes.get(state.next_node or "")
        if node is None:
            return fail_run(state, f"there is no stage {state.next_node!r}")
        if node.name in self._exits and not self.branch_id:
            back = self._router.gate_jump(state, without=node.name)
            if back is not None:
                return await self._pause_after_errors(back, back.recheck[-1] if back.recheck else "")
        if exceeded := self._exceeded_limit(state, node):
            return fail_run(state, exceeded)
        return await self._visit(state, node)

    def _exceeded_limit(self, state: RunState, node: Node) -> str:
        """Description of the limit that another visit would exceed; empty if there is none."""
        most = node.whole("max_visits")
        most = self.config.max_visits if most is None else most
        if state.visits.get(node.name, 0) >= most:
            return f"{node.name} was visited {most} times, which is the limit (max_visits)"
        calls_agent = node.handler in AGENTS or (node.handler in AGENT_IF_PROMPT and node.prompt)
        if calls_agent and (limit := self.io.requests.refuse()):
            return limit
        steps = sum(state.visits.values()) if state.sequence >= self.config.max_steps else 0
        return f"the run took {steps} steps, which is the limit (max_steps)" if steps >= self.config.max_steps else ""

    async def _visit(self, state: RunState, node: Node) -> RunState:
        """Run a stage with its retries, apply its outcome, and choose the next stage."""
        handler = self.io.handlers.get(node.handler) or self.io.handlers[DEFAULT_HANDLER]
        needs_preamble = traits(handler).reads_past and bool(node.prompt or node.handler not in AGENT_IF_PROMPT)
        stage = self._make_stage(state, node, needs_preamble=needs_preamble)
        visits = {**state.visits, node.name: stage.visit}
        resumed = state.resumed and not needs_preamble and node.handler != "parallel"
        after = replace(state, visits=visits, resumed=resumed, fidelity=stage.fidelity, thread=stage.thread_id)
        self._branches = []
        if not self.branch_id:
            self._stage_log.begin(state, self._artifacts)
        started, refused = self.config.clock(), self.io.requests.refused
        facts = {"index": state.sequence, "visit": stage.visit, "fidelity": str(stage.fidelity)}
        await stage.emit("stage_started", **facts, thread=stage.thread_id, handler=node.handler)
        async with stage.session.lock if stage.session else nullcontext():
            if stage.session and state.how == "jump":  # the run does this stage again, so its former answer goes
                stage.session.cut_back(node.name)
            first = self._stage_log.attempt(stage.visit_key)
            begin = partial(self._stage_log.begin_attempt, stage.visit_key)
            outcome, retries = await run_attempts(handler, stage, first=first, begin=begin)
        duration = max(0.0, self.config.clock() - started)
        after = merge_branches(after, stage.context, self._branches)
        names = frozenset((node.name, *(name for branch in self._branches for name in branch.after.visits)))
        after, outcome = complete_stage(after, stage, outcome, retries, duration)
        changes = Changes(since=state.sequence, names=names, keys=stage.context.changed_keys())
        after = replace(after, threads=self._threads(state), changes=changes, branches={}, attempts={})
        if self.branch_id or node.name not in self._exits:
            stage.write_status(outcome)
        kind = "stage_failed" if outcome.status is StageStatus.FAIL else "stage_completed"
        report = {"status": str(outcome.status), "duration": duration, "retries": retries, "visit": stage.visit}
        await stage.emit(kind, **report, reason=outcome.failure_reason, notes=outcome.notes[:200])
        incomplete = node.handler == "parallel" and outcome.status is not StageStatus.SUCCESS
        if incomplete and self.io.requests.refused > refused:  # edges must not route a limit that stopped branches
            return fail_run(after, self.io.requests.reached)
        routed = self._router.route(after, node, outcome)
        if routed.how == "restart" or outcome.status.good:
            return routed
        return await self._pause_after_errors(routed, node.name)

    async def _pause_after_errors(self, state: RunState, name: str) -> RunState:
        """Wait if the run goes back or restarts after an error, longer after each consecutive error."""
        errors = 0 if state.ended else errors_in_a_row(state, name)[1]
        if errors and self._router.leads_back(state):
            earlier = state.lineage.attempt - 1 if state.how == "restart" else 0
            await self.config.sleep(self.config.backoff.delay(earlier + errors, self.config.draw))
        return state

    def _make_stage(self, state: RunState, node: Node, *, needs_preamble: bool) -> Stage:
        """Build the stage that the handler receives; its fidelity depends on the edge actually taken."""
        inbox = [self.inbox.pop(0) for _ in range(len(self.inbox))] if needs_preamble else []
        degrade = self.config.resume_threads == "degrade"
        fidelity, thread, context, preamble = stage_input(
            self.graph, state, node, needs_preamble=needs_preamble, degrade=degrade, inbox=inbox
        )
        visit = state.visits.get(node.name, 0) + 1

        async def emit(kind: str, **facts: Any) -> None:
            await self.io.emit(kind, run_id=state.run_id, node=node.name, **{"branch": self.branch_id, **facts})

        async def start(graph: Graph, run_id: str) -> Child:
            child = await self.io.start(graph, run_id)
            await emit("child_started", child=run_id)
            return child

        return Stage(
            node=node,
            graph=self.graph,
            context=context,
            artifacts=self._artifacts,
            config=self.config,
            run_id=state.run_id,
            branch_id=self.branch_id,
            branch_key=self.branch_key,
            folder=self._visit_folder(state, node, visit),
            fidelity=fidelity,
            thread_id=thread,
            session=self._get_or_create_session(thread, node) if thread is not None and needs_preamble else None,
            preamble=preamble,
            previous=state.last,
            visit=visit,
            requests=self.io.requests,
            branch=partial(self._run_branch, state, context),
            start=start,
            emit=emit,
        )

    def _visit_folder(self, state: RunState, node: Node, visit: int) -> Path | None:
        """Folder for a visit to a stage, so that no visit overwrites another's files; None if no files are written."""
        folder = self.folder(state)
        if folder is None:
            return None
        is_taken = _RESERVED.fullmatch(node.name) is not None
        parts = [folder_name(f"{node.name}/" if is_taken else node.name)]
        parts += [folder_name(f"branch-{self.branch_id}")] if node.name in self._shared else []
        return folder.joinpath(*parts, *([f"visit-{visit}"] if visit > 1 else []))

    def _get_or_create_session(self, thread_id: str, node: Node) -> Session:
        """Return the conversation with this key, which stages share until the run ends or restarts."""
        return self._thread_sessions.setdefault(thread_id, Session(key=thread_id))

    def _threads(self, state: RunState) -> dict[str, Thread]:
        sessions = self._thread_sessions.items()
        return {key: session.thread(state.threads.get(key)) for key, session in sessions if session.marks}

    async def _restart(self, state: RunState) -> RunState:
        """Start the next attempt: only the edge taken and the initial values carry over."""
        if state.lineage.attempt > self.config.max_loop_restarts:
            most = self.config.max_loop_restarts
            return fail_run(state, f"the run restarted {most} times, which is the limit (max_loop_restarts)")
        await self._pause_after_errors(state, state.current_node or "")
        facts = {"status": "restarted", "restart_target": state.next_node}
        await self.io.emit("run_finalized", run_id=state.run_id, **facts)
        fresh = state.next_attempt(self.graph)
        self.load(fresh)
        await self.io.emit("run_initialized", run_id=fresh.run_id, **asdict(fresh.lineage))
        return fresh

    async def _run_branch(
        self, state: RunState, context: ContextStore, target: str, edge: int, branch_id: str, stop: str
    ) -> RunState:
        """Run one branch of a parallel stage, on copies of everything, up to but excluding the stage `stop`."""
        source = self.graph.edges[edge].source
        visit = state.visits.get(source, 0) + 1
        name = f"{self.branch_id}.{branch_id}" if self.branch_id else branch_id
        key = f"{source}.{visit}:{name}"
        before = branch_state(state, context, target=target, edge=edge, branch_id=branch_id)
        after = self._stage_log.find(key, before)
        if after is None:
            round_id = branch_id if visit == 1 else f"{branch_id}@{visit}"  # visits of a cancelled branch do not count
            branch_key = f"{self.branch_key}.{round_id}" if self.branch_key else round_id
            shared = self._shared | shared_stages(self.graph, edge, stop)
            around = self._around | {source}
            engine = Engine(self.graph, self.io, branch_id=name, branch_key=branch_key, shared=shared, around=around)
            engine._artifacts, engine._stage_log = self._artifacts, self._stage_log
            engine._thread_sessions = {key: session.copy() for key, session in self._thread_sessions.items()}
            refused = self.io.requests.refused
            after = await engine._run_to(before, stop)
            if self.io.requests.refused == refused or _succeeded(after):  # what a limit stopped must run again
                await self._stage_log.record(key, before, after)
        self._branches.append(BranchResult(edge=edge, before=before, after=after))
        return after

    async def _run_to(self, state: RunState, stop: str) -> RunState:
        """Run until the end, or until `stop` is the next stage."""
        while not state.ended and state.next_node != stop:
            if state.next_node in self._around:  # each round would run its own branches, and these theirs
                outer = state.next_node
                return fail_run(state, f"the branch leads back to {outer}, which runs it; let {outer} go back instead")
            state = await self.step(state)
            if state.status == "restarted":
                state = fail_run(state, "loop_restart inside a branch of a parallel stage")
        return state


def _succeeded(state: RunState) -> bool:
    """True if a branch has not failed, nor has its last stage."""
    return state.status != "fail" and state.last is not None and state.last.status.good


class StageLog:
    """Progress of the running stage: its finished branches, nested ones included, and its attempts in progress."""

    def __init__(self, save: Save) -> None:
        self._save = save
        self._lock = asyncio.Lock()
        self._state: RunState | None = None
        self._artifacts = ArtifactStore()
        self._finished: dict[str, Any] = {}
        self._attempts: dict[str, int] = {}

    def begin(self, state: RunState, artifacts: ArtifactStore) -> None:
        """Start a stage. `state` is the run before it, including progress saved before an interruption."""
        self._state, self._artifacts, self._finished = state, artifacts, dict(state.branches)
        self._attempts = dict(state.attempts)

    def find(self, key: str, before: RunState) -> RunState | None:
        """Final state of a finished branch, restored on top of the state before it; None if it has not finished.

        An entry counts as missing if it is damaged, or if a stage before the branch has run again with another result.
        """
        changes = self._finished.get(key)
        try:
            if changes is None or changes["input"] != self._input_hash(before):
                return None
            return _apply_changes(before, changes)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            log.warning("the branch %s runs again, because its saved data is damaged: %s", key, log_text(error))
            return None

    async def record(self, key: str, before: RunState, after: RunState) -> None:
        """Save the changes of a finished branch. If that fails, the run continues with a warning."""
        self._finished[key] = {"input": self._input_hash(before), **_changes(before, after)}
        try:
            await self._write()
        except PipelineError as error:
            log.warning("the branch %s has finished, but its result could not be saved: %s", key, error)

    def _input_hash(self, before: RunState) -> str:
        """Hash of what a branch begins from: the values, and the results of nested stages that ran before it."""
        state = self._state
        nested = {
            name: [outcome.status, outcome.notes]
            for name, outcome in before.outcomes.items()
            if state is None or state.outcomes.get(name) is not outcome
        }
        return text_hash(json.dumps([before.context, nested], sort_keys=True))

    def attempt(self, visit_key: str) -> int:
        """Number of the visit's attempt in progress; 1 if there is none."""
        return self._attempts.get(visit_key, 1)

    async def begin_attempt(self, visit_key: str, number: int) -> None:
        """Save that an attempt of a visit is in progress.

        Raises:
            PipelineError: the state could not be saved.
        """
        self._attempts[visit_key] = number
        await self._write()

    async def _write(self) -> None:
        async with self._lock:
            if self._state is not None:
                state = replace(self._state, branches=dict(self._finished), attempts=dict(self._attempts))
                await self._save(replace(state, artifacts=self._artifacts.in_memory()))


_POSITION = ("next_node", "how", "edge", "current_node", "status", "failure_reason")
"""Fields of a state that a branch replaces as a whole."""


def _changes(before: RunState, after: RunState) -> dict[str, Any]:
    """Changes made by a branch, as plain data."""
    former, now = before.context, after.context
    return {
        **{name: getattr(after, name) for name in _POSITION},
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
        "context": {key: value for key, value in now.items() if former.get(key, _MISSING) is not value},
        "gone": [key for key in former if key not in now],
    }


def _apply_changes(before: RunState, changes: Mapping[str, Any]) -> RunState:
    """The state after a branch; it shares everything unchanged with the state before it."""
    kept = {key: value for key, value in before.context.items() if key not in changes["gone"]}
    return replace(
        before,
        **{name: changes[name] for name in _POSITION},
        sequence=before.sequence + changes["sequence"],
        completed=(*before.completed, *changes["completed"]),
        logs=(*before.logs, *changes["logs"]),
        outcomes={**before.outcomes, **{name: Outcome.parse(outcome) for name, outcome in changes["outcomes"].items()}},
        visits=dict(changes["visits"]),
        retries=dict(changes["retries"]),
        recheck=tuple(changes["recheck"]),
        context={**kept, **changes["context"]},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchResult:
    """A finished branch of a parallel stage."""

    edge: int
    """Index of its edge in the graph's edges."""
    before: RunState
    after: RunState


def merge_branches(state: RunState, context: ContextStore, branches: Sequence[BranchResult]) -> RunState:
    """Merge the progress of branches into a state, in the order of their edges; their contexts stay separate.

    Of a stage that several branches ran, the first outcome that is not good counts, else the last.
    """
    outcomes: dict[str, Outcome] = {}
    for branch in sorted(branches, key=lambda branch: branch.edge):
        before, after = branch.before, branch.after
        for entry in after.logs[len(before.logs) :]:
            context.append_log(entry)
        new = {name: outcome for name, outcome in after.outcomes.items() if before.outcomes.get(name) is not outcome}
        bad = {name: outcome for name, outcome in outcomes.items() if not outcome.status.good}
        outcomes = {**outcomes, **new, **bad}
        added = {name: count - before.visits.get(name, 0) for name, count in after.visits.items()}
        state = replace(
            state,
            completed=(*state.completed, *after.completed[len(before.completed) :]),
            visits={**state.visits, **{name: state.visits.get(name, 0) + by for name, by in added.items() if by}},
            recheck=tuple(gate for gate in state.recheck if gate not in new),
            sequence=state.sequence + after.sequence - before.sequence,
        )
    return replace(state, outcomes={**state.outcomes, **outcomes})
