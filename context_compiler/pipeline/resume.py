"""Resume pipelines: find a run, check that its graph and its state belong together, and execute the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from context_compiler.errors import GraphError, PipelineError
from context_compiler.pipeline.checkpoint import FILE, read_checkpoint
from context_compiler.pipeline.config import RunConfig
from context_compiler.pipeline.dot import parse_dot
from context_compiler.pipeline.graph import Graph
from context_compiler.pipeline.run import execute, load_graph, open_runs, prepare, while_owned
from context_compiler.pipeline.state import GRAPH_PATH, RunState, Thread, graph_hashes
from context_compiler.pipeline.stores import RunStore
from context_compiler.pipeline.stores.files import in_folder
from context_compiler.pipeline.threads import load_session
from context_compiler.resilience import attempt


async def resume_pipeline(
    run: str | Path, config: RunConfig | None = None, *, pipeline: Graph | str | Path | None = None, **options: Any
) -> RunState:
    """Resume a run, and return its final state. A run that has already ended is returned unchanged.

    Like a new run, it stops at a human gate at which nobody can be asked.

    Args:
        run: The folder of a run, or its id in `config.runs`.
        config: Configuration of the run. Parts that are not saved, such as agents, must be passed again.
        pipeline: The graph; None uses the graph saved with the run.
        options: Fields of `RunConfig` that override those of `config`.

    Raises:
        GraphError: the graph cannot be read, has errors, or is not the graph of the run.
        PipelineError: the run does not exist, is running elsewhere, or has a damaged or newer checkpoint.
    """
    config = replace(config or RunConfig(), **options)
    store, run_id, config = _locate(run, config)
    try:
        async with store.own(run_id) as lost:
            return await while_owned(lost, continue_run(store, run_id, config, pipeline))
    finally:
        if store is not config.runs:
            await store.close()


async def continue_run(
    store: RunStore,
    run_id: str,
    config: RunConfig,
    pipeline: Graph | str | Path | None = None,
    *,
    state: RunState | None = None,
) -> RunState:
    """Execute a run that the caller owns to the end, from `state` or, if that is None, from the last saved state."""
    state = state or await store.load(run_id)
    if state is None:
        raise PipelineError(_missing_run(run_id, [info.run_id for info in await store.runs()]))
    if config.run_id is not None and config.run_id != state.lineage.root_run_id:
        raise PipelineError(f"resume run_id mismatch: {config.run_id!r} is not {state.lineage.root_run_id!r}")
    if state.ended:
        return state
    prepared = prepare(await _load_graph(store, state, pipeline), config)
    return await execute(prepared, config, store, resume_state(prepared, state, config), resumed=True)


def _missing_run(run_id: str, run_ids: Sequence[str]) -> str:
    """Error text for a run without a state, given the ids of all known runs."""
    if run_id in run_ids:
        return f"run {run_id!r} was stopped before its state was saved: start it under another id"
    return f"there is no run {run_id!r}" + (f"; there are {', '.join(map(repr, run_ids[:3]))}" if run_ids else "")


def _locate(run: str | Path, config: RunConfig) -> tuple[RunStore, str, RunConfig]:
    """Find a run: its store, its id in that store, and the config with the folder of the run."""
    folder = Path(run)
    if attempt((folder / FILE).is_file).value:  # `is_file` raises if an id is too long for a path
        state = read_checkpoint(folder)
        if state is not None and config.runs is None:
            return in_folder(folder), state.lineage.root_run_id, replace(config, logs_root=folder)
        if state is not None:
            return open_runs(config), state.lineage.root_run_id, config
    if isinstance(run, Path) and config.runs is None:
        raise PipelineError(f"{folder}: there is no {FILE}; give the folder of a run")
    return open_runs(config), str(run), config


async def _load_graph(store: RunStore, state: RunState, pipeline: Graph | str | Path | None) -> Graph:
    """Load the graph of a run: the given one, after checking that it is the same, or else the saved one."""
    if pipeline is not None:
        graph = load_graph(pipeline)
    else:
        text = None
        for hash in (state.graph.source, state.graph.snapshot):
            text = text or (await store.content(hash) if hash else None)
        if text is None:
            fault = f"run {state.run_id!r} was saved without its graph"
            raise PipelineError(f"{fault}; give the graph, or the store that contains it")
        path = state.context.get(GRAPH_PATH)
        graph = _parse(text, path if isinstance(path, str) else None)
    if graph_hashes(graph).snapshot != state.graph.snapshot:
        fault = f"run {state.run_id!r} belongs to another graph"
        raise GraphError(f"{fault}; resume it with the graph it was started with, or start a new run", path=graph.path)
    return graph


_parse = lru_cache(maxsize=32)(parse_dot)
"""Parses DOT text; cached, because the runs of a worker often share a graph."""


def resume_state(graph: Graph, state: RunState, config: RunConfig) -> RunState:
    """Prepare a saved state for resuming.

    Raises:
        PipelineError: the state does not match the graph, or a conversation in it is damaged.
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
            load_session(key, thread)
        except ValueError as error:
            fault = f"run {state.run_id!r}: the conversation {key!r} is damaged"
            raise PipelineError(f"{fault}; resume without restoring conversations") from error
    return replace(state, resumed=True, threads=threads)
