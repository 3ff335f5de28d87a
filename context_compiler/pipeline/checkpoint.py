"""Checkpoints: write the state of a run as JSON, read it back, and compute what changed between two states.

Changes are expressed in cells: the plain data of one entry of the state, addressed by its section and name.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import compress, islice
from operator import is_, is_not
from pathlib import Path
from typing import Any, TypeAlias, cast, get_args
from uuid import uuid4

from context_compiler.errors import CheckpointError, PipelineError
from context_compiler.pipeline.artifacts import os_errors, write_atomically
from context_compiler.pipeline.state import SCHEMA_VERSION, Hashes, How, Lineage, Outcome, RunState, Thread

FILE, STEPS = "checkpoint.json", "steps"
STEPS_NAME = re.compile(r"steps-[0-9a-f]{1,32}\.jsonl")
SMALL = 64 * 1024
"""Maximum size in bytes of a checkpoint that is rewritten at each step; a larger one gets a file of changes."""
_NONE = type(None)
_FIELD_TYPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("next_node", "current_node", "current_node_fidelity", "current_node_thread"), (str, _NONE)),
    **dict.fromkeys(("terminal_failure_reason", "pending_restart", "graph_dot_source_hash"), (str, _NONE)),
    **dict.fromkeys(("context", "given", "lineage", "node_outcomes", "threads"), (dict,)),
    **dict.fromkeys(("node_retries", "node_visits", "artifacts"), (dict,)),
    **dict.fromkeys(("completed_nodes", "logs", "recheck"), (list,)),
    "graph_snapshot_hash": (str,),
    "edge": (int, _NONE),
}
"""Allowed types of each field of a document."""
_ELEMENT_TYPES: Mapping[str, type] = {
    **{"node_retries": int, "node_visits": int, "completed_nodes": str, "recheck": str},
    **{"artifacts": dict, "node_outcomes": dict, "threads": dict},
}
"""Element types of the fields that are collections."""


def head(state: RunState) -> dict[str, Any]:
    """Serialize the part of a state that does not grow with the run."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return {
        "metadata": {
            "schema_version": SCHEMA_VERSION,
            "run_id": state.run_id,
            "checkpoint_id": f"cp-{state.sequence}",
            "sequence_no": state.sequence,
            "timestamp": now,
        },
        "timestamp": now,
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
        "lineage": asdict(state.lineage),
        "graph_dot_source_hash": state.graph.source,
        "graph_dot_source_ref": None if state.graph.source is None else f"store://{state.graph.source}",
        "graph_dot_source_size": state.graph.source_size,
        "graph_snapshot_hash": state.graph.snapshot,
        "graph_snapshot_ref": f"store://{state.graph.snapshot}",
        "graph_snapshot_size": state.graph.snapshot_size,
    }


def checkpoint_document(state: RunState) -> dict[str, Any]:
    """Serialize the complete state to plain data."""
    return {
        **head(state),
        "completed_nodes": list(state.completed),
        "node_outcomes": {name: outcome.document() for name, outcome in state.outcomes.items()},
        "node_retries": dict(state.retries),
        "node_visits": dict(state.visits),
        "context": dict(state.context),
        "logs": list(state.logs),
        "artifacts": dict(state.artifacts),
        "threads": {
            key: {"messages": list(thread.messages), "marks": [list(mark) for mark in thread.marks]}
            for key, thread in state.threads.items()
        },
        "branches": dict(state.branches),
        "attempts": dict(state.attempts),
    }


def parse_checkpoint(document: object, *, where: str) -> RunState:
    """Parse a state from plain data; `where` names it in errors.

    Raises:
        CheckpointError: the data is not a checkpoint, is damaged, or has a newer version.
    """
    if not isinstance(document, Mapping):
        raise CheckpointError(f"{where}: this is not a checkpoint")
    data = cast("Mapping[str, Any]", document)
    try:
        version = data["metadata"]["schema_version"]
        if version != SCHEMA_VERSION:
            newer = isinstance(version, int) and version > SCHEMA_VERSION
            problem = "was written by a newer version; upgrade context-compiler" if newer else "has an unknown version"
            versions = f"(schema {version!r}; this version reads schema {SCHEMA_VERSION})"
            raise CheckpointError(f"{where}: the checkpoint {problem} {versions}", newer=newer)
        return _build_state(data)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise CheckpointError(f"{where}: the checkpoint is damaged ({type(error).__name__}: {error})") from error


def _build_state(data: Mapping[str, Any]) -> RunState:
    """Build the state; invalid fields raise one of the exceptions that `parse_checkpoint` catches."""
    _check_types(data)
    restart = data["pending_restart"]
    return RunState(
        lineage=Lineage(**data["lineage"]),
        graph=Hashes(
            source=data["graph_dot_source_hash"],
            snapshot=data["graph_snapshot_hash"],
            source_size=_size(data, "graph_dot_source_size"),
            snapshot_size=_size(data, "graph_snapshot_size"),
        ),
        next_node=data["next_node"],
        how=data["how"],
        edge=data["edge"],
        current_node=data["current_node"],
        completed=tuple(data["completed_nodes"]),
        outcomes={name: Outcome.parse(outcome) for name, outcome in data["node_outcomes"].items()},
        retries=dict(data["node_retries"]),
        visits=dict(data["node_visits"]),
        recheck=tuple(data["recheck"]),
        fidelity=data["current_node_fidelity"] or "",
        thread=data["current_node_thread"],
        given=dict(data["given"]),
        context=dict(data["context"]),
        logs=tuple(data["logs"]),
        artifacts=dict(data["artifacts"]),
        threads={key: parse_thread(thread) for key, thread in data["threads"].items()},
        branches=dict(data.get("branches") or {}),
        attempts={str(key): int(number) for key, number in dict(data.get("attempts") or {}).items()},
        status=data["terminal_status"] or ("restarted" if restart else ""),
        failure_reason=data["terminal_failure_reason"] or "",
        sequence=int(data["metadata"]["sequence_no"]),
    )


def _check_types(data: Mapping[str, Any]) -> None:
    """Check the type of every field.

    Raises:
        ValueError: a field has the wrong type.
    """
    wrong = {name for name, kinds in _FIELD_TYPES.items() if type(data[name]) not in kinds}
    wrong |= {"how"} if data["how"] not in get_args(How) else set()
    wrong |= {"terminal_status"} if data["terminal_status"] not in (None, "success", "fail") else set()
    for name in _ELEMENT_TYPES.keys() - wrong:
        value = data[name]
        members: list[object] = list(value.values() if isinstance(value, dict) else value)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]  # plain data
        wrong |= {name} if any(type(member) is not _ELEMENT_TYPES[name] for member in members) else set()
    lineage = data["lineage"]
    if "lineage" not in wrong and (type(lineage.get("root_run_id")), type(lineage.get("attempt"))) != (str, int):
        wrong.add("lineage")
    if wrong:
        raise ValueError(f"fields of the wrong type: {', '.join(sorted(wrong))}")


def parse_thread(data: Mapping[str, Any]) -> Thread:
    """Parse a conversation from plain data.

    Raises:
        ValueError: a part of it has the wrong type.
    """
    messages: list[Any] = data["messages"]
    marks = tuple((str(name), int(position)) for name, position in data["marks"])
    if type(messages) is not list or not all(0 <= position <= len(messages) for _, position in marks):
        raise ValueError("a conversation has the wrong type")
    return Thread(messages=tuple(messages), marks=marks)


class CheckpointFolder:
    """Writer of the states of one run to `checkpoint.json`, in time proportional to what changes.

    A checkpoint of up to `SMALL` bytes is rewritten at each step. A larger one names a steps file, to which the changes
    of each step are appended; the checkpoint is rewritten once that file is larger than the checkpoint itself.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._saved: RunState | None = None
        self._steps = ""
        self._size = self._appended = 0

    def save(self, state: RunState) -> None:
        """Save a state; if that fails or the process crashes, the previous state remains.

        Raises:
            PipelineError: the state could not be written.
        """
        former, self._saved = self._saved, None  # unknown until this save has succeeded
        with os_errors(self.folder / FILE, "the previous checkpoint is intact"):
            if former is None or self._size <= SMALL or self._appended > self._size:
                self._write(state)
            else:
                self._append(former, state)
        self._saved = state

    def _write(self, state: RunState) -> None:
        document = checkpoint_document(state)
        steps = ""
        if self._size > SMALL:
            document["metadata"]["steps"] = steps = f"{STEPS}-{uuid4().hex[:12]}.jsonl"
        body = json.dumps(document, indent=None if steps else 1).encode()
        write_atomically(self.folder / FILE, body, durable=True)
        for path in self.folder.glob(f"{STEPS}-*.jsonl"):
            path.unlink(missing_ok=True)
        self._steps, self._appended = steps, 0
        grown = self._size <= SMALL < len(body)
        self._size = len(body)
        if grown:
            self._write(state)  # again, because the next steps need the name of a steps file

    def _append(self, former: RunState, state: RunState) -> None:
        line = json.dumps(state_changes(former, state)).encode() + b"\n"
        with open(self.folder / self._steps, "ab", opener=open_private) as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._appended += len(line)


def read_checkpoint(folder: Path) -> RunState | None:
    """Read the last saved state from a folder; None if there is none.

    Raises:
        CheckpointError: the checkpoint is damaged or has a newer version.
        PipelineError: a file cannot be read.
    """
    path = folder / FILE
    try:
        document: Any = json.loads(path.read_bytes())
        state = parse_checkpoint(document, where=str(path))
        steps: object = document["metadata"].get("steps")
        file = folder / steps if isinstance(steps, str) and STEPS_NAME.fullmatch(steps) else None
        return state if file is None or not file.exists() else _apply_steps(state, file, str(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PipelineError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: the checkpoint is damaged ({error}); the run cannot be resumed") from error


def _apply_steps(state: RunState, steps: Path, where: str) -> RunState:
    """Apply the steps appended since a checkpoint, without a last line that a crash cut short."""
    cells = {(section, name): body for section, name, body in state_changes(None, state)[1]}
    for line in steps.read_bytes().split(b"\n")[:-1]:
        gone, new = json.loads(line)
        for section, name in gone:
            cells.pop((section, name), None)
        cells |= {(section, name): body for section, name, body in new}
    document = assemble((*key, cells[key]) for key in sorted(cells))
    return parse_checkpoint(json.loads(json.dumps(document)), where=where)


def open_private(path: str, flags: int) -> int:
    """Open a file that only its owner may read and write; an `opener` for `open`."""
    return os.open(path, flags, 0o600)


def _size(data: Mapping[str, Any], key: str) -> int | None:
    size = data.get(key)
    return size if type(size) is int else None


Name: TypeAlias = tuple[str, str]
"""Address of a cell: its section, and its name in that section."""
Cell: TypeAlias = tuple[str, str, Any]
"""A cell: section, name, plain data."""

HEAD = "head"
MAPPINGS = {
    "node_outcomes": "outcomes",
    "node_retries": "retries",
    "node_visits": "visits",
    "context": "context",
    "artifacts": "artifacts",
    "branches": "branches",
    "attempts": "attempts",
}
"""Sections that are mappings, with the field of `RunState` that each contains."""
UNTRACKED = ("artifacts", "branches", "attempts")
"""Fields whose changes the stages do not track, so that all their entries are compared."""
SEQUENCES = {"completed_nodes": "completed", "logs": "logs"}
THREADS, MARKS = "threads", "marks"


def state_changes(former: RunState | None, state: RunState) -> tuple[list[Name], list[Cell]]:
    """Return the cells deleted, and those added or changed, between two states; without a former one, all cells."""
    gone: list[Name] = []
    new: list[Cell] = [(HEAD, "", head(state))]
    names, keys = _changed_names(former, state)
    for section, field in MAPPINGS.items():
        tracked = keys if field == "context" else names
        candidates = None if field in UNTRACKED else tracked
        _compare_mappings(section, getattr(former, field, {}), getattr(state, field), candidates, gone, new)
    for section, field in SEQUENCES.items():
        _compare_sequences(section, getattr(former, field, ()), getattr(state, field), gone, new)
    before: Mapping[str, Thread] = former.threads if former is not None else {}
    for key in before.keys() | state.threads.keys():
        old, now = before.get(key, Thread()), state.threads.get(key, Thread())
        if old is not now:
            _compare_sequences(f"{THREADS}:{key}", old.messages, now.messages, gone, new)
            _compare_sequences(f"{MARKS}:{key}", old.marks, now.marks, gone, new)
    return gone, new


def _changed_names(former: RunState | None, state: RunState) -> tuple[Collection[str] | None, Collection[str] | None]:
    """Return the stages and context keys that the last stage may have changed; None means any."""
    touched = state.changes
    if former is None or touched is None or former.lineage != state.lineage or former.sequence < touched.since:
        return None, None
    return touched.names, touched.keys


def _compare_mappings(
    section: str,
    old: Mapping[str, Any],
    now: Mapping[str, Any],
    candidates: Collection[str] | None,
    gone: list[Name],
    new: list[Cell],
) -> None:
    if old is now:
        return
    if candidates is not None:
        gone += [(section, name) for name in sorted(candidates) if name in old and name not in now]
        changed = [(name, now[name]) for name in sorted(candidates) if name in now and old.get(name) is not now[name]]
    elif len(old) <= len(now) and all(map(is_, old, now)):  # the usual case, fast: nothing was removed
        other = compress(now.items(), map(is_not, old.values(), now.values()))
        changed = [*other, *islice(now.items(), len(old), None)]
    else:
        gone += [(section, name) for name in old.keys() - now.keys()]
        changed = [(name, value) for name, value in now.items() if name not in old or old[name] is not value]
    new += [(section, name, value.document() if isinstance(value, Outcome) else value) for name, value in changed]


def _compare_sequences(section: str, old: Sequence[Any], now: Sequence[Any], gone: list[Name], new: list[Cell]) -> None:
    same = min(len(old), len(now))
    while same and old[same - 1] is not now[same - 1]:  # sequences change only at their end
        same -= 1
    gone += [(section, _position_name(index)) for index in range(len(now), len(old))]
    new += [(section, _position_name(index), now[index]) for index in range(same, len(now))]


def _position_name(position: int) -> str:
    return f"{position:09d}"


def assemble(cells: Iterable[Cell]) -> dict[str, Any]:
    """Assemble a document from cells sorted by section and name.

    Raises:
        LookupError: the head cell is missing.
    """
    sections: dict[str, dict[str, Any]] = {}
    for section, name, body in cells:
        sections.setdefault(section, {})[name] = body
    document: dict[str, Any] = dict(next(iter(sections[HEAD].values())))
    document |= {section: sections.get(section, {}) for section in MAPPINGS}
    document |= {section: [*sections.get(section, {}).values()] for section in SEQUENCES}
    keys = [section.removeprefix(f"{THREADS}:") for section in sections if section.startswith(f"{THREADS}:")]
    document[THREADS] = {
        key: {
            "messages": [*sections[f"{THREADS}:{key}"].values()],
            MARKS: [*sections.get(f"{MARKS}:{key}", {}).values()],
        }
        for key in keys
    }
    return document
