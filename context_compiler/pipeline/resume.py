"""A run goes on from its last checkpoint as if nothing had happened: the same graph, the same way, one owner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from context_compiler.errors import GraphError, PipelineError
from context_compiler.pipeline.checkpoint import FILE, read_checkpoint
from context_compiler.pipeline.config import RunConfig
from context_compiler.pipeline.dot import parse_dot
from context_compiler.pipeline.graph import Graph
from context_compiler.pipeline.initial_state import GRAPH_PATH, hashes
from context_compiler.pipeline.prepare import graph_of, open_runs, prepare
from context_compiler.pipeline.result import RunResult
from context_compiler.pipeline.run import go_through
from context_compiler.pipeline.state import RunState, Thread
from context_compiler.pipeline.stores import RunStore
from context_compiler.pipeline.stores.files import in_folder
from context_compiler.pipeline.threads import session_of
from context_compiler.resilience import attempt


async def resume_pipeline(
    run: str | Path, config: RunConfig | None = None, *, pipeline: Graph | str | Path | None = None, **options: Any
) -> RunResult:
    """Go on with a run; one that has ended is given back as it is.

    Args:
        run: The folder of a run, or its id in `config.runs`.
        config: How to run it: what was not written down, such as agents, must be given again.
        pipeline: The graph; None takes the one that was kept with the run.
        options: Fields of `RunConfig`, in place of those of `config`.

    Raises:
        GraphError: the graph cannot be read, or has errors.
        PipelineError: there is no such run, its checkpoint is damaged or newer, its graph is another one, or
            somebody else is running it.
    """
    config = replace(config or RunConfig(), **options)
    store, run_id, config = _found(run, config)
    try:
        async with store.own(run_id):
            state = await store.load(run_id)
            if state is None:
                raise PipelineError(_missing(run_id, [info.run_id for info in await store.runs()]))
            if config.run_id is not None and config.run_id != state.lineage.root_run_id:
                raise PipelineError(f"resume run_id mismatch: {config.run_id!r} is not {state.lineage.root_run_id!r}")
            if state.ended:
                return RunResult(state=state)
            graph = await _graph(store, state, pipeline)
            prepared = prepare(graph, config)
            return await go_through(prepared, config, store, resumable(prepared, state, config), resumed=True)
    finally:
        if store is not config.runs:
            await store.close()


def _missing(run_id: str, known: Sequence[str]) -> str:
    if run_id in known:
        return f"run {run_id!r} was stopped before anything of it was kept: begin it under another id"
    return f"there is no run {run_id!r}" + (f"; there is {', '.join(known[:3])}" if known else "")


def _found(run: str | Path, config: RunConfig) -> tuple[RunStore, str, RunConfig]:
    """The store that holds a run, its id there, and the config with its folder."""
    folder = Path(run)
    if attempt((folder / FILE).is_file).value:  # an id may be longer than a path can be
        state = read_checkpoint(folder)
        if state is not None and config.runs is None:
            root = state.lineage.root_run_id
            return in_folder(folder), root, replace(config, logs_root=folder)
        if state is not None:
            return open_runs(config), state.lineage.root_run_id, config
    if isinstance(run, Path) and config.runs is None:
        raise PipelineError(f"{folder}: there is no {FILE}; give the folder of a run")
    return open_runs(config), str(run), config


async def _graph(store: RunStore, state: RunState, pipeline: Graph | str | Path | None) -> Graph:
    """The graph of a run: the one that is given, if it is the same, or the one that was kept."""
    if pipeline is not None:
        graph = graph_of(pipeline)
    else:
        text = None
        for hash in (state.graph.source, state.graph.snapshot):
            text = text or (await store.content(hash) if hash else None)
        if text is None:
            raise PipelineError(f"run {state.run_id!r} was kept without its graph; give it")
        path = state.context.get(GRAPH_PATH)
        graph = parse_dot(text, path=path if isinstance(path, str) else None)
    if hashes(graph).snapshot != state.graph.snapshot:
        what = f"run {state.run_id!r} is of another graph"
        raise GraphError(f"{what}; resume it with the one it began with, or begin a new run", path=graph.path)
    return graph


def resumable(graph: Graph, state: RunState, config: RunConfig) -> RunState:
    """The state to go on from.

    Raises:
        PipelineError: it leads nowhere.
    """
    if state.next_node is None:
        raise PipelineError(f"run {state.run_id!r}: its checkpoint names no next stage, and it has not ended")
    if state.next_node not in graph.nodes:
        raise PipelineError(f"run {state.run_id!r}: there is no stage {state.next_node!r} in the graph")
    if state.edge is not None and not 0 <= state.edge < len(graph.edges):
        raise PipelineError(f"run {state.run_id!r}: its checkpoint names an edge that is not in the graph")
    threads: Mapping[str, Thread] = state.threads if config.resume_threads == "restore" else {}
    for key, thread in threads.items():
        try:
            session_of(key, thread)
        except ValueError as error:
            what = f"run {state.run_id!r}: the conversation {key!r} is damaged"
            raise PipelineError(f"{what}; resume without restoring conversations") from error
    return replace(state, resumed=True, threads=threads)
