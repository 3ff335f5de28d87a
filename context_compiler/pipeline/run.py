"""Run pipelines: prepare the graph, acquire the run, execute it, and clean up."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from opentelemetry.metrics import get_meter

from context_compiler.errors import GraphError, PipelineError, RunOwnedError, SettingsError
from context_compiler.lazy import require_extra
from context_compiler.middleware.reports import log_text
from context_compiler.paths import check_place, is_address, make_private
from context_compiler.pipeline.check import validate_or_raise
from context_compiler.pipeline.checkpoint import CheckpointFolder
from context_compiler.pipeline.config import RequestMeter, RunConfig, advance_plainly
from context_compiler.pipeline.dot import load_dot, parse_dot
from context_compiler.pipeline.dot_text import to_dot
from context_compiler.pipeline.engine import Engine, EngineIO
from context_compiler.pipeline.graph import Graph
from context_compiler.pipeline.handlers import build_handlers
from context_compiler.pipeline.routing import fail_run
from context_compiler.pipeline.stage import Child, Unanswered, folder_name
from context_compiler.pipeline.state import RunState, graph_hashes, initial_state
from context_compiler.pipeline.stores import Event, Lost, MemoryRuns, RunInfo, RunStore
from context_compiler.pipeline.stores.files import FileRuns, in_folder
from context_compiler.pipeline.stores.sqlite import SQLiteRuns
from context_compiler.pipeline.stylesheet import PROPERTIES, StylesheetError, apply_stylesheet
from context_compiler.pipeline.workflow import SUFFIXES, apply_directives, load_workflow
from context_compiler.resilience import attempt, call, cancel_and_wait, try_await

T = TypeVar("T")

DATABASES = (".db", ".sqlite", ".sqlite3")
"""Endings of SQLite files; any other path of runs is a folder."""
MAX_DEPTH = 16
"""Maximum nesting of child pipelines."""
RETRY_S = 0.2
"""Seconds between two attempts to acquire a child run."""
TIMED = ("checkpoint_saved", "run_finalized")
"""Kinds of events that contain the time worked on a run."""

_METER = get_meter("context_compiler")
_RUNS = _METER.create_counter("context_compiler.runs", "{run}", "Pipeline runs that ended, by status")
_STAGES = _METER.create_counter("context_compiler.stages", "{stage}", "Visits to stages, by status")
_STAGE_TIME = _METER.create_histogram("context_compiler.stage.duration", "s", "Time of a visit to a stage")

log = logging.getLogger("context_compiler.pipeline")


async def run_pipeline(pipeline: Graph | str | Path, config: RunConfig | None = None, **options: Any) -> RunState:
    """Run a pipeline to its end, and return its final state, even after a failure.

    If nobody can be asked at a human gate, the run stops there: the state has not `ended`, and its `failure_reason`
    names the gate. `resume_pipeline` asks again.

    Args:
        pipeline: A graph, DOT text, or the path of a DOT file or workflow.
        config: Configuration of the run.
        options: Fields of `RunConfig` that override those of `config`.

    Raises:
        GraphError: the graph cannot be read or has errors.
        PipelineError: the run could not be started or saved.
    """
    config = replace(config or RunConfig(), **options)
    graph = load_graph(pipeline)
    prepared = prepare(graph, config)
    run_id = config.run_id or f"{graph.name or 'run'}-{uuid4().hex[:8]}"
    store = open_runs(config)
    try:
        async with store.own(run_id) as lost:
            state = await begin_run(graph, prepared, store, run_id, config)
            return await while_owned(lost, execute(prepared, config, store, state))
    finally:
        if store is not config.runs:
            await store.close()


async def begin_run(
    graph: Graph, prepared: Graph, store: RunStore, run_id: str, config: RunConfig, parent: str | None = None
) -> RunState:
    """Create and save a run that the caller owns, and return its state before the first stage."""
    state = initial_state(prepared, graph_hashes(graph), run_id, config.context)
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    info = RunInfo(
        run_id=state.lineage.root_run_id,
        name=graph.name or graph.label,
        goal=graph.goal,
        started_at=now,
        updated_at=now,
        status="running",
        next_node=state.next_node,
        parent=parent,
        owner=config.owner,
        **asdict(state.graph),
    )
    source = {state.graph.source: graph.source} if state.graph.source else {}
    await store.begin(info, {**source, state.graph.snapshot: to_dot(graph)})
    await store.save(state)
    return state


async def while_owned(lost: Lost, work: Coroutine[Any, Any, T]) -> T:
    """Do work on a run, and cancel it if the ownership of the run is lost.

    Raises:
        RunOwnedError: the ownership was lost, and the work was cancelled.
    """
    if lost is None:
        return await work
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task, lost}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise RunOwnedError(lost.result())
        return task.result()
    finally:
        await cancel_and_wait(task)


async def execute(
    graph: Graph, config: RunConfig, store: RunStore, state: RunState, *, resumed: bool = False
) -> RunState:
    """Execute a run that the caller owns from a state to the end, or to a gate at which nobody can be asked.

    If cancelled, its last checkpoint remains.
    """
    running = ActiveRun(graph, config, store, state)
    await running.open()
    kind = "run_resumed" if resumed else "run_initialized"
    await running.emit(kind, run_id=state.run_id, **asdict(state.lineage), next_node=state.next_node)
    left = None if config.max_duration is None else max(0.0, config.max_duration - running.worked)
    timeout = asyncio.timeout(left)
    try:
        async with timeout:
            await asyncio.sleep(0)  # lets the timeout expire before the first stage if no time is left
            state = await running.engine.run(state)
    except TimeoutError:
        if not timeout.expired():
            raise
        reason = f"the run took longer than {config.max_duration:g} s, which is the limit (max_duration)"
        state = fail_run(running.state, reason)
        await running.save(state)
    except Unanswered as error:
        facts: dict[str, Any] = {"status": "stopped", "reason": f"{error}", "worked": running.worked}
        await running.emit("run_finalized", run_id=running.state.run_id, **facts)
        return replace(running.state, failure_reason=f"{error}")
    except asyncio.CancelledError:
        await running.emit("run_finalized", run_id=running.state.run_id, status="cancelled", worked=running.worked)
        raise
    finally:
        await running.stop_children()
    await running.finish(state)
    return state


async def abandon_run(store: RunStore, state: RunState, reason: str) -> RunState:
    """End a run that the caller owns as failed, and save that."""
    ended = fail_run(state, reason)
    await store.save(ended)
    events = await store.events(state.lineage.root_run_id)
    facts = {"status": ended.status, "reason": reason, "completed": ended.sequence}
    number, now = (events[-1].sequence if events else 0) + 1, datetime.now(UTC).isoformat(timespec="milliseconds")
    final = Event(kind="run_finalized", run_id=ended.run_id, sequence=number, at=now, data=facts)
    await store.add(ended.lineage.root_run_id, final)
    return ended


class ActiveRun:
    """A run in progress: its engine, events, and children."""

    def __init__(
        self,
        graph: Graph,
        config: RunConfig,
        store: RunStore,
        state: RunState,
        *,
        requests: RequestMeter | None = None,
        depth: int = 0,
    ) -> None:
        """`requests` is the meter of the parent run, and `depth` the number of its ancestors."""
        self._depth = depth
        self.requests = requests or RequestMeter(limit=config.max_requests, max_cost=config.max_cost)
        self.config, self.store, self.state = config, store, state
        folder = store.folder(state.lineage.root_run_id) if isinstance(store, FileRuns) else None
        self.root = folder if config.logs_root is None else Path(config.logs_root)
        """Folder of the files of the run; None if no files are written."""
        # `FileRuns` saves checkpoints itself.
        self._checkpoints = None if self.root is None or isinstance(store, FileRuns) else CheckpointFolder(self.root)
        io = EngineIO(
            config=config,
            handlers=build_handlers(config),
            save=self.save,
            emit=self.emit,
            start=self.start,
            root=self.root,
            requests=self.requests,
        )
        self.engine = Engine(graph, io)
        self._sequence, self._began, self._worked = 0, config.clock(), 0.0
        self._running: set[Child] = set()

    async def open(self) -> None:
        """Create the folder for files, and take over event number, time and requests from the events stored so far."""
        if self.root is not None:
            with suppress(OSError):  # the first write to the folder reports the error
                make_private(self.root)
        events = await self.store.events(self.state.lineage.root_run_id)
        self._sequence = events[-1].sequence if events else 0
        times = (event.data.get("worked") for event in reversed(events) if event.kind in TIMED)
        self._worked = next((float(time) for time in times if isinstance(time, int | float)), 0.0)
        await self._count_requests(self.store, self.state.lineage.root_run_id, events)

    async def _count_requests(self, store: RunStore, run_id: str, events: Sequence[Event]) -> None:
        """Add the requests that earlier processes made for a run and its children; each run is counted once."""
        if run_id in self.requests.counted:
            return
        self.requests.counted.add(run_id)
        for event in events:
            if event.kind in ("model_requested", "context_compiled"):  # `agent_answered` repeats both
                self.requests.add(event.data)
        for child in (str(event.data.get("child")) for event in events if event.kind == "child_started"):
            below = _child_store(store, child)
            await self._count_requests(below, child, await below.events(child))

    @property
    def worked(self) -> float:
        """Seconds that all processes together have worked on the run."""
        return self._worked + self._duration

    @property
    def _duration(self) -> float:
        """Seconds that this process has worked on the run."""
        return max(0.0, self.config.clock() - self._began)

    async def save(self, state: RunState) -> None:
        """Save a state, and emit an event about it."""
        await self.store.save(state)
        if self._checkpoints is not None:
            self._checkpoints.save(state)
        self.state = state
        facts: dict[str, Any] = {"number": state.sequence, "worked": self.worked}
        await self.emit("checkpoint_saved", run_id=state.run_id, node=state.current_node, **facts)

    async def emit(self, kind: str, *, run_id: str, node: str | None = None, branch: str = "", **facts: Any) -> None:
        """Store an event and pass it to the listener; errors of the listener are logged."""
        self._sequence += 1
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        data = {key: value for key, value in facts.items() if value not in (None, "")}
        event = Event(kind=kind, run_id=run_id, sequence=self._sequence, at=now, node=node, branch=branch, data=data)
        await self.store.add(self.state.lineage.root_run_id, event)
        _count_ended(event)
        if self.config.on_event is not None:
            notified = await try_await(call(self.config.on_event, event))
            if notified.error is not None:
                log.warning("on_event failed: %s", log_text(notified.error))

    async def finish(self, state: RunState) -> None:
        """Emit the final event of the run, with its costs and times."""
        facts: dict[str, Any] = {"status": state.status, "reason": state.failure_reason, "completed": state.sequence}
        facts |= self.requests.report()
        facts |= {"duration": self._duration, "worked": self.worked, "artifact_count": self.engine.artifact_count}
        await self.emit("run_finalized", run_id=state.run_id, **facts)

    async def start(self, graph: Graph, run_id: str) -> Child:
        """Start a graph as a child of this run, or resume that child.

        Raises:
            PipelineError: the child has another graph, is running elsewhere, could not be saved, or is nested too deep.
        """
        if self._depth >= MAX_DEPTH:
            raise PipelineError(f"child pipelines are nested more than {MAX_DEPTH} deep; does one supervise itself?")
        store = _child_store(self.store, run_id)
        folder = None  # no files, or `FileRuns` chooses the folder
        if self.root is not None and not isinstance(self.store, FileRuns):
            folder = self.root / "children" / folder_name(run_id)
        config = replace(self.config, run_id=run_id, runs=store, context={}, logs_root=folder, journal=advance_plainly)
        prepared, parent = prepare(graph, config), self.state.lineage.root_run_id
        async with AsyncExitStack() as owned:
            lost = await _acquire_child(store, run_id, owned)
            state = await store.load(run_id)
            if state is None:
                state = await begin_run(graph, prepared, store, run_id, config, parent)
            elif state.graph.snapshot != graph_hashes(graph).snapshot:
                raise PipelineError(f"run {run_id!r} belongs to another graph; give the graph that it was started with")
            elif config.resume_threads == "degrade":
                state = replace(state, threads={}, resumed=True)
            active = ActiveRun(prepared, config, store, state, requests=self.requests, depth=self._depth + 1)
            kept = owned.pop_all()
            child = Child(active.run_as_child(kept, lost), kept, lambda: active.state, active.engine.inbox.append)
        self._running.add(child)
        child.task.add_done_callback(lambda _: self._running.discard(child))
        return child

    async def run_as_child(self, owned: AsyncExitStack, lost: Lost) -> None:
        """Execute the run while it is owned; an error becomes a failure of the run, for its parent stage to see."""
        async with owned:
            done = await try_await(while_owned(lost, self._run_to_end()))
            if done.error is not None:
                log.warning("%s failed: %s", self.state.run_id, log_text(done.error))
                self.state = fail_run(self.state, f"{done.error}")

    async def _run_to_end(self) -> None:
        await self.open()
        if not self.state.ended:
            try:
                await self.engine.run(self.state)
            finally:
                await self.stop_children()
        await self.finish(self.state)

    async def stop_children(self) -> None:
        """Stop the children that are still running."""
        for child in list(self._running):
            await child.stop()


async def _acquire_child(store: RunStore, run_id: str, owned: AsyncExitStack) -> Lost:
    """Own a child until `owned` exits, after waiting for the lease of a dead owner to expire.

    Raises:
        RunOwnedError: a live process owns the child.
    """
    deadline: float | None = None
    while True:
        try:
            return await owned.enter_async_context(store.own(run_id))
        except RunOwnedError as error:
            deadline = time.monotonic() + error.patience if deadline is None else deadline
            if time.monotonic() >= deadline:
                raise
        await asyncio.sleep(RETRY_S)


def _child_store(store: RunStore, run_id: str) -> RunStore:
    return store.below(run_id) if isinstance(store, FileRuns) else store


def _count_ended(event: Event) -> None:
    """Record metrics if an event ends a run or a stage."""
    if event.kind == "run_finalized":
        _RUNS.add(1, {"status": str(event.data.get("status"))})
    elif event.kind in ("stage_completed", "stage_failed"):
        status = {"status": str(event.data.get("status"))}
        _STAGES.add(1, status)
        _STAGE_TIME.record(float(event.data.get("duration", 0.0)), status)


def load_graph(pipeline: Graph | str | Path) -> Graph:
    """Load a graph from DOT text or the path of a DOT file or workflow; return a `Graph` as it is.

    Raises:
        GraphError: the graph cannot be read.
    """
    if isinstance(pipeline, Graph):
        return pipeline
    if isinstance(pipeline, str) and "{" in pipeline:
        return parse_dot(pipeline)
    path = Path(pipeline)
    if path.suffix.lower() in SUFFIXES:
        return load_workflow(path)
    try:
        return load_dot(path)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise GraphError(
            f"{why or error}; give DOT text, or the path of a DOT file or workflow", path=str(path)
        ) from error


def prepare(graph: Graph, config: RunConfig) -> Graph:
    """Apply directives, stylesheet and transforms to a graph, and validate it.

    Raises:
        GraphError: the graph has errors after the transforms.
    """
    handlers = tuple(build_handlers(config))
    styled = apply_directives(graph.with_ends())
    if any(styled.text(name) for name in ("model_stylesheet", *PROPERTIES)):
        with suppress(StylesheetError):  # the validation below reports it with its place
            styled = apply_stylesheet(styled)
    for transform in config.transforms:
        styled = transform(styled)
    validate_or_raise(styled, config.rules, handlers=handlers)
    return styled


def open_runs(config: RunConfig) -> RunStore:
    """Open the run store of a config.

    Raises:
        SettingsError: it is the address of a database, and the packages for PostgreSQL are not installed; or it is
            another URL, or a file that is no database.
    """
    if isinstance(config.runs, RunStore):
        return config.runs
    if config.runs is not None:
        check_place(config.runs)
        if is_address(config.runs):
            require_extra("postgres")
            return import_module("context_compiler.pipeline.stores.postgres").PostgresRuns(config.runs)
        path = Path(config.runs)
        is_database = path.suffix in DATABASES
        if attempt(path.exists).value and not (path.is_file() if is_database else path.is_dir()):
            kind = "database" if is_database else "folder"
            raise SettingsError(f"{path}: this is no {kind}; give a folder of runs, or a file named *.db")
        return SQLiteRuns(path) if is_database else FileRuns(path)
    return MemoryRuns() if config.logs_root is None else in_folder(config.logs_root)
