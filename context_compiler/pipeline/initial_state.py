"""The states in which something begins: a run, its next attempt, a branch of a parallel stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from context_compiler.errors import PipelineError
from context_compiler.ids import text_hash
from context_compiler.pipeline.attributes import as_text
from context_compiler.pipeline.context import ContextStore, checked_key, plain, segment
from context_compiler.pipeline.graph import Graph
from context_compiler.pipeline.state import Hashes, Lineage, RunState
from context_compiler.pipeline.writing import to_dot

OWN = ("outcome", "preferred_label", "current_node")
"""What a branch does not take over: it is about the stage before the branch."""
GRAPH_PATH = "internal.graph_path"
"""The key of the file that the graph of a run is from: what it names is looked for beside it, also after a resume."""


def hashes(graph: Graph) -> Hashes:
    """What a graph is known by."""
    return Hashes(source=text_hash(graph.source) if graph.source else None, snapshot=text_hash(to_dot(graph)))


def begun(graph: Graph, names: Hashes, run_id: str, given: Mapping[str, Any]) -> RunState:
    """The state before the first stage; `graph` is as it runs, `names` are of the graph as it was given.

    Raises:
        PipelineError: a value that the run is given is none, or the graph has no start.
    """
    try:
        kept = {checked_key(key): plain(value) for key, value in given.items()}
    except ValueError as error:
        raise PipelineError(f"context: {error}") from None
    starts = graph.starts
    if not starts:
        raise PipelineError("the graph has no stage to start at")
    lineage = Lineage(root_run_id=run_id)
    return RunState(
        lineage=lineage,
        graph=names,
        next_node=starts[0].name,
        given=kept,
        context=_context(graph, lineage, kept),
    )


def restarted(graph: Graph, state: RunState) -> RunState:
    """The state before the first stage of the next attempt: only the way there is kept, and what every attempt has."""
    lineage = state.lineage.following()
    return RunState(
        lineage=lineage,
        graph=state.graph,
        next_node=state.next_node,
        how="restart",
        edge=state.edge,
        given=state.given,
        context=_context(graph, lineage, state.given),
        sequence=state.sequence,
    )


def branched(state: RunState, context: ContextStore, *, target: str, place: int, branch_id: str) -> RunState:
    """The state before the first stage of a branch, with the values that the parallel stage had."""
    values = {key: value for key, value in context.values().items() if key not in OWN}
    values |= {"work.branch_id": branch_id, "work.branch_target": target}
    here = context.get("current_node")
    return replace(
        state,
        next_node=target,
        how="edge",
        edge=place,
        current_node=here,
        context=values,
        logs=tuple(context.logs()),
        branches={},
    )


def lineage_facts(state: RunState) -> dict[str, Any]:
    """What events say of an attempt."""
    return {
        "root_run_id": state.lineage.root_run_id,
        "attempt": state.lineage.attempt,
        "parent_run_id": state.lineage.parent_run_id,
    }


def _context(graph: Graph, lineage: Lineage, given: Mapping[str, Any]) -> dict[str, Any]:
    """Values that an attempt begins with."""
    context = ContextStore({"graph.goal": graph.goal})
    for key, value in graph.attrs.items():
        context.set("graph." + ".".join(map(segment, key.split("."))), as_text(value))
    facts: dict[str, Any] = {"internal.run_id": lineage.run_id, "internal.lineage.root_run_id": lineage.root_run_id}
    facts["internal.lineage.attempt"] = lineage.attempt
    facts |= {"internal.lineage.parent_run_id": lineage.parent_run_id} if lineage.parent_run_id else {}
    facts |= {GRAPH_PATH: str(Path(graph.path).absolute())} if graph.path else {}
    context.apply_updates({**given, **facts})
    return context.values()
