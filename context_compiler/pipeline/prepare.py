"""Preparation of a run: its graph, ready to run, and its storage."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from context_compiler.errors import GraphError
from context_compiler.pipeline.check import validate_or_raise
from context_compiler.pipeline.config import RunConfig
from context_compiler.pipeline.dot import load_dot, parse_dot, to_dot
from context_compiler.pipeline.graph import Graph
from context_compiler.pipeline.handlers import build_handlers
from context_compiler.pipeline.state import RunState
from context_compiler.pipeline.stores import MemoryRuns, RunInfo, RunStore
from context_compiler.pipeline.stores.files import FileRuns, in_folder
from context_compiler.pipeline.stores.sqlite import SQLiteRuns
from context_compiler.pipeline.stylesheet import StylesheetError, apply_stylesheet
from context_compiler.pipeline.workflow import SUFFIXES, apply_directives, load_workflow


def load_graph(pipeline: Graph | str | Path) -> Graph:
    """A graph from itself, DOT text, or the path of a DOT file or workflow.

    Raises:
        GraphError: it cannot be read.
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
    """The graph as it runs: with directives, stylesheet and transforms applied, and validated.

    Raises:
        GraphError: it has errors after the transforms.
    """
    known = tuple(build_handlers(config))
    lowered = apply_directives(graph.with_ends())
    try:
        styled = apply_stylesheet(lowered)
    except StylesheetError:
        styled = lowered  # the check says what is wrong with it, and where
    for transform in config.transforms:
        styled = transform(styled)
    validate_or_raise(styled, config.rules, handlers=known)
    return styled


def open_runs(config: RunConfig) -> RunStore:
    """Open the run store of a config."""
    if isinstance(config.runs, RunStore):
        return config.runs
    if config.runs is not None:
        path = Path(config.runs)
        return SQLiteRuns(path) if path.suffix in (".db", ".sqlite", ".sqlite3") else FileRuns(path)
    return MemoryRuns() if config.logs_root is None else in_folder(config.logs_root)


def run_folder(config: RunConfig, store: RunStore, run_id: str) -> Path | None:
    """Folder of a run's files; None without files."""
    if config.logs_root is not None:
        return Path(config.logs_root)
    return store.folder(run_id) if isinstance(store, FileRuns) else None


def run_info(graph: Graph, state: RunState) -> RunInfo:
    """Metadata of a new run."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return RunInfo(
        run_id=state.lineage.root_run_id,
        name=graph.name or graph.label,
        goal=graph.goal,
        started_at=now,
        updated_at=now,
        status="running",
        next_node=state.next_node,
        source=state.graph.source,
        snapshot=state.graph.snapshot,
        source_size=state.graph.source_size,
        snapshot_size=state.graph.snapshot_size,
    )


def graph_texts(graph: Graph, state: RunState) -> dict[str, str]:
    """Texts of a graph by hash: its source, and its normal form."""
    source = {state.graph.source: graph.source} if state.graph.source else {}
    return {**source, state.graph.snapshot: to_dot(graph)}
