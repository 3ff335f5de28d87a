"""A checkpoint is the state of a run as JSON, written whole or not at all; reading it gives the same state back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from context_compiler.errors import PipelineError
from context_compiler.pipeline.artifacts import write_atomically
from context_compiler.pipeline.outcome import outcome_of
from context_compiler.pipeline.state import SCHEMA_VERSION, Hashes, Lineage, RunState, Thread

FILE = "checkpoint.json"
HOWS = ("start", "edge", "jump", "join", "restart")
_NONE = type(None)
_KINDS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("next_node", "current_node", "current_node_fidelity", "current_node_thread"), (str, _NONE)),
    **dict.fromkeys(("terminal_failure_reason", "pending_restart", "graph_dot_source_hash"), (str, _NONE)),
    **dict.fromkeys(("context", "given", "lineage", "node_outcomes", "threads"), (dict,)),
    **dict.fromkeys(("node_retries", "node_visits", "artifacts"), (dict,)),
    **dict.fromkeys(("completed_nodes", "logs", "recheck"), (list,)),
    "graph_snapshot_hash": (str,),
    "edge": (int, _NONE),
}
"""What the fields of a document are."""
_MEMBERS: Mapping[str, type] = {
    **{"node_retries": int, "node_visits": int, "completed_nodes": str, "recheck": str},
    **{"artifacts": dict, "node_outcomes": dict, "threads": dict},
}
"""What those fields consist of."""


def head(state: RunState) -> dict[str, Any]:
    """All of a state but what grows with a run."""
    return {
        "metadata": {
            "schema_version": SCHEMA_VERSION,
            "run_id": state.run_id,
            "checkpoint_id": f"cp-{state.sequence}",
            "sequence_no": state.sequence,
            "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
        },
        "current_node": state.current_node,
        "next_node": state.next_node,
        "how": state.how,
        "edge": state.edge,
        "recheck": list(state.recheck),
        "given": dict(state.given),
        "current_node_fidelity": state.fidelity or None,
        "current_node_thread": state.thread,
        "terminal_status": state.status if state.ended else None,
        "terminal_failure_reason": state.failure_reason or None,
        "pending_restart": state.next_node if state.status == "restarted" else None,
        "lineage": {
            "root_run_id": state.lineage.root_run_id,
            "attempt": state.lineage.attempt,
            "parent_run_id": state.lineage.parent_run_id,
        },
        "graph_dot_source_hash": state.graph.source,
        "graph_dot_source_ref": _ref(state.graph.source),
        "graph_snapshot_hash": state.graph.snapshot,
        "graph_snapshot_ref": _ref(state.graph.snapshot),
    }


def checkpoint_document(state: RunState) -> dict[str, Any]:
    """The whole of a state."""
    outcomes = {name: outcome.document() for name, outcome in state.outcomes.items()}
    threads = {key: thread_document(thread) for key, thread in state.threads.items()}
    return {
        **head(state),
        "completed_nodes": list(state.completed),
        "node_outcomes": outcomes,
        "node_retries": dict(state.retries),
        "node_visits": dict(state.visits),
        "context": dict(state.context),
        "logs": list(state.logs),
        "artifacts": dict(state.artifacts),
        "threads": threads,
        "branches": dict(state.branches),
    }


def state_of(found: object, *, where: str) -> RunState:
    """The state that a document holds.

    Raises:
        PipelineError: it is no checkpoint, a damaged one, or one of a newer version.
    """
    if not isinstance(found, Mapping):
        raise PipelineError(f"{where}: it is no checkpoint")
    data = cast("Mapping[str, Any]", found)
    try:
        version = data["metadata"]["schema_version"]
        if version != SCHEMA_VERSION:
            newer = isinstance(version, int) and version > SCHEMA_VERSION
            what = "was written by a newer version; upgrade context-compiler" if newer else "has an unknown version"
            raise PipelineError(f"{where}: the checkpoint {what} (schema {version!r}, this one knows {SCHEMA_VERSION})")
        return _state(data)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise PipelineError(f"{where}: the checkpoint is damaged ({type(error).__name__}: {error})") from error


def _state(data: Mapping[str, Any]) -> RunState:
    """A state from its document; fields of the wrong kind raise one of the errors that `state_of` names."""
    _look_through(data)
    restart = data["pending_restart"]
    return RunState(
        lineage=Lineage(**data["lineage"]),
        graph=Hashes(source=data["graph_dot_source_hash"], snapshot=data["graph_snapshot_hash"]),
        next_node=data["next_node"],
        how=data["how"],
        edge=data["edge"],
        current_node=data["current_node"],
        completed=tuple(data["completed_nodes"]),
        outcomes={name: outcome_of(one) for name, one in data["node_outcomes"].items()},
        retries=dict(data["node_retries"]),
        visits=dict(data["node_visits"]),
        recheck=tuple(data["recheck"]),
        fidelity=data["current_node_fidelity"] or "",
        thread=data["current_node_thread"],
        given=dict(data["given"]),
        context=dict(data["context"]),
        logs=tuple(data["logs"]),
        artifacts=dict(data["artifacts"]),
        threads={key: thread_of(one) for key, one in data["threads"].items()},
        branches=dict(data.get("branches") or {}),
        status=data["terminal_status"] or ("restarted" if restart else ""),
        failure_reason=data["terminal_failure_reason"] or "",
        sequence=int(data["metadata"]["sequence_no"]),
    )


def _look_through(data: Mapping[str, Any]) -> None:
    """Nothing, if every field is of its kind.

    Raises:
        ValueError: one is not.
    """
    wrong = {name for name, kinds in _KINDS.items() if type(data[name]) not in kinds}
    wrong |= {"how"} if data["how"] not in HOWS else set()
    wrong |= {"terminal_status"} if data["terminal_status"] not in (None, "success", "fail") else set()
    for name in _MEMBERS.keys() - wrong:
        found = data[name]
        members: list[object] = list(found.values() if isinstance(found, dict) else found)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]  # plain data
        wrong |= {name} if any(type(one) is not _MEMBERS[name] for one in members) else set()
    if "lineage" not in wrong and [type(data["lineage"].get(one)) for one in ("root_run_id", "attempt")] != [str, int]:
        wrong.add("lineage")
    if wrong:
        raise ValueError(f"of the wrong kind: {', '.join(sorted(wrong))}")


def thread_document(thread: Thread) -> dict[str, Any]:
    """A conversation as plain data."""
    return {"messages": list(thread.messages), "marks": [list(mark) for mark in thread.marks]}


def thread_of(data: Mapping[str, Any]) -> Thread:
    """A conversation from plain data."""
    messages, marks = data["messages"], tuple((str(name), int(at)) for name, at in data["marks"])
    if type(messages) is not list or not all(0 <= at <= len(cast("list[Any]", messages)) for _, at in marks):
        raise ValueError("a conversation is of the wrong kind")
    return Thread(messages=tuple(cast("list[Any]", messages)), marks=marks)


def write_checkpoint(folder: Path, state: RunState) -> None:
    """Write a state to a folder; a crash, or a full disk, leaves the checkpoint before it.

    Raises:
        PipelineError: it could not be written.
    """
    path = folder / FILE
    try:
        write_atomically(path, json.dumps(checkpoint_document(state), indent=1).encode(), durable=True)
    except OSError as error:
        raise PipelineError(f"{path}: {error.strerror or error}; the checkpoint before it is intact") from error


def read_checkpoint(folder: Path) -> RunState | None:
    """The state that a folder holds; None: there is none.

    Raises:
        PipelineError: it cannot be read.
    """
    path = folder / FILE
    try:
        found: Any = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PipelineError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise PipelineError(f"{path}: the checkpoint is damaged ({error}); it cannot be resumed from") from error
    return state_of(found, where=str(path))


def _ref(hash: str | None) -> str | None:
    return None if hash is None else f"store://{hash}"
