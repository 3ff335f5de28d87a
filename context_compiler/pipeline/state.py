"""State of a run: one frozen value with everything that the loop reads, and the states in which something starts.

A checkpoint is this value as JSON, so that resuming means starting the loop with another value. The values that stages
share have dotted keys; they are JSON and never modified once set, so a snapshot needs no copy of their content.

What a stage leaves in it is an `Outcome`: its status, the next stage it asks for, and its context updates. External
text becomes one here; a word that is not a status means success and asks for that label.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice
from pathlib import Path
from threading import RLock
from typing import Any, Literal, TypeAlias, cast

from context_compiler.errors import PipelineError
from context_compiler.ids import text_hash
from context_compiler.pipeline.attributes import as_text
from context_compiler.pipeline.conditions import STATUSES
from context_compiler.pipeline.dot import to_dot
from context_compiler.pipeline.graph import Graph

STATUS_KEYS = ("outcome", "status")
LABEL_KEYS = ("preferred_label", "preferred_next_label")


class StageStatus(StrEnum):
    """Status of a stage."""

    SUCCESS = "success"
    PARTIAL_SUCCESS = "partial_success"
    RETRY = "retry"
    FAIL = "fail"
    SKIPPED = "skipped"

    @property
    def good(self) -> bool:
        """True if it satisfies a goal gate."""
        return self in (StageStatus.SUCCESS, StageStatus.PARTIAL_SUCCESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of a stage. A status may be given as text, and None means empty.

    Raises:
        ValueError: the status is unknown, the updates are not a mapping, or a list of names is not one.
    """

    status: StageStatus = StageStatus.SUCCESS
    preferred_label: str = ""
    """Label of the edge it asks for."""
    suggested_next_ids: tuple[str, ...] = ()
    """Stages it asks for; the first one that an edge leads to counts."""
    context_updates: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Values for the context."""
    notes: str = ""
    failure_reason: str = ""
    raw: str = ""
    """The stage's own word, where it is not a status."""
    tools: tuple[str, ...] = ()
    """Names of the tools used, in order."""
    error: str = ""
    """Type of the exception that ended the stage, such as `ModelHTTPError`."""

    def __post_init__(self) -> None:
        given: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        updates = given["context_updates"]
        if not isinstance(updates, Mapping | None):
            raise ValueError("context_updates is not a mapping")
        fit: dict[str, Any] = {name: "" if given[name] is None else str(given[name]) for name in _TEXTS}
        fit |= {"status": StageStatus(given["status"]), "context_updates": updates or {}}
        fit |= {name: _ids(given[name]) for name in ("suggested_next_ids", "tools")}
        for name, value in fit.items():
            object.__setattr__(self, name, value)

    def document(self) -> dict[str, Any]:
        """The outcome as plain data, with the keys of a status file, without empty values."""
        facts: dict[str, Any] = {
            "outcome": self.status.value,
            "status": self.status.value,
            "preferred_label": self.preferred_label,
            "suggested_next_ids": list(self.suggested_next_ids),
            "context_updates": dict(self.context_updates),
            "notes": self.notes,
            "failure_reason": self.failure_reason,
            "raw": self.raw,
            "tools": list(self.tools),
            "error": self.error,
        }
        return {key: value for key, value in facts.items() if value not in ("", [], {})}


TRIES = 8
"""Number of opening braces in the last line at which the final JSON object is looked for."""
_TEXTS = ("preferred_label", "notes", "failure_reason", "raw", "error")


def failure(reason: str, *, updates: Mapping[str, Any] | None = None) -> Outcome:
    """A failure with a reason."""
    return Outcome(status=StageStatus.FAIL, failure_reason=reason, context_updates=updates or {})


def parse_outcome(document: Mapping[str, Any]) -> Outcome:
    """Parse an outcome from plain data: a status file, an agent's answer, or a `document`.

    Raises:
        ValueError: the status is missing, or a field has the wrong type.
    """
    word = next((document[key] for key in STATUS_KEYS if document.get(key) not in (None, "")), None)
    if not isinstance(word, str):
        raise ValueError("it has no outcome; give one of " + ", ".join(StageStatus))
    status, raw = parse_status(word)
    label = next((_text(document, key) for key in LABEL_KEYS if document.get(key)), "")
    updates: object = document.get("context_updates") or {}
    if not isinstance(updates, Mapping):
        raise ValueError("context_updates is not an object")
    return Outcome(
        status=status,
        preferred_label=label or raw,
        suggested_next_ids=_ids(document.get("suggested_next_ids")),
        context_updates=dict(cast("Mapping[str, Any]", updates)),
        notes=_text(document, "notes"),
        failure_reason=_text(document, "failure_reason"),
        raw=_text(document, "raw") or raw,
        tools=_ids(document.get("tools")),
        error=_text(document, "error"),
    )


def parse_status(word: str) -> tuple[StageStatus, str]:
    """The status meant by a word, and the word itself if it is a label instead."""
    status = word.strip().lower()
    status = STATUSES.get(status, status)
    return (StageStatus(status), "") if status in tuple(StageStatus) else (StageStatus.SUCCESS, word.strip())


def find_outcome(text: str) -> Outcome | None:
    """The outcome in a text that is, or ends in, a JSON object with a status; None if there is none.

    Only an `outcome` or `status` of type text counts; if the last line has other text before the object, only an
    `outcome`. The object may be in a fenced block.
    """
    body = text.strip()
    if body.endswith("```"):
        start = body.rfind("\n```", 0, len(body) - 3)
        fence = body[start + 1 :] if start >= 0 else body
        body = fence.partition("\n")[2].removesuffix("```").strip() if fence.startswith("```") else body
    found = _read_object(body if body.startswith("{") else body[body.rfind("\n{") + 1 :])
    if found is None:
        line = body[body.rfind("\n") + 1 :]
        begun = islice((at for at, sign in enumerate(line) if sign == "{"), TRIES)
        found = next((one for at in begun if (one := _read_object(line[at:])) and "outcome" in one), None)
    try:
        return None if found is None else parse_outcome(found)
    except ValueError:
        return None


def _read_object(text: str) -> Mapping[str, Any] | None:
    try:
        found: Any = json.loads(text) if text.startswith("{") and text.endswith("}") else None
    except (ValueError, RecursionError):
        return None
    return cast("Mapping[str, Any] | None", found)


def _ids(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Iterable):
        raise ValueError("a list of names is expected")
    names = list(cast("Iterable[object]", value))
    if any(isinstance(one, bool) or not isinstance(one, str | int) for one in names):
        raise ValueError("a list of names holds something else")
    return tuple(map(str, names))


def _text(document: Mapping[str, Any], key: str) -> str:
    value = document.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{key} is not text")
    return value


LONGEST_KEY = 256
"""Maximum length of a key, in characters."""

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(?:\.[A-Za-z_][A-Za-z0-9_-]*)*")
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")


def check_key(key: object) -> str:
    """Check a key and return it.

    Raises:
        ValueError: it is empty, too long, or not a dotted name.
    """
    if not isinstance(key, str) or len(key) > LONGEST_KEY or not _KEY.fullmatch(key):
        raise ValueError(f"{str(key)[:80]!r} is not a key: give dotted names of at most {LONGEST_KEY} characters")
    return key


def segment(name: str) -> str:
    """A name as one segment of a key."""
    fit = _UNFIT.sub("_", name)[:100]
    return fit if fit[:1].isalpha() or fit[:1] == "_" else f"_{fit}"


def to_json(value: Any) -> Any:
    """An independent copy of a value as JSON data.

    Raises:
        ValueError: it cannot be written as JSON.
    """
    if value is None or isinstance(value, str | bool | int) and not hasattr(value, "__dict__"):
        return value
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{type(value).__name__} cannot be kept as JSON: {error}") from None


class ContextStore:
    """The values of a run; thread-safe.

    Every method raises `ValueError` for an invalid key and for a value that is not JSON.
    """

    def __init__(self, values: Mapping[str, Any] | None = None, logs: Iterable[Any] = ()) -> None:
        self._lock = RLock()
        self._values: dict[str, Any] = {}
        self._logs: list[Any] = [to_json(one) for one in logs]
        self._changed: set[str] = set()
        self.apply_updates(values or {})

    @classmethod
    def sharing(cls, values: Mapping[str, Any], logs: Iterable[Any] = ()) -> ContextStore:
        """A store of values known to be JSON, such as those of a checkpoint, without copying them."""
        store = cls()
        store._values, store._logs = dict(values), list(logs)
        return store

    def set(self, key: str, value: Any) -> None:
        """Set a value."""
        self.apply_updates({key: value})

    def get(self, key: str, default: Any = None) -> Any:
        """A copy of a value."""
        with self._lock:
            return deepcopy(self._values.get(check_key(key), default))

    def get_string(self, key: str, default: str = "") -> str:
        """A value as text; numbers and flags as JSON writes them."""
        value = self.get(key)
        if value is None:
            return default
        return value if isinstance(value, str) else json.dumps(value)

    def remove(self, key: str) -> None:
        """Delete a value, if it is set."""
        with self._lock:
            self._values.pop(check_key(key), None)
            self._changed.add(key)

    def apply_updates(self, updates: Mapping[str, Any]) -> None:
        """Set several values: all of them, or none."""
        given = {check_key(key): to_json(value) for key, value in updates.items()}
        with self._lock:
            self._values.update(given)
            self._changed.update(given)

    def append_log(self, entry: Any) -> None:
        """Add to the log."""
        kept = to_json(entry)
        with self._lock:
            self._logs.append(kept)

    def changed_keys(self) -> frozenset[str]:
        """Keys set or removed since the store was created."""
        with self._lock:
            return frozenset(self._changed)

    def keys(self) -> list[str]:
        """Keys in the order in which they were first set."""
        with self._lock:
            return list(self._values)

    def logs(self) -> list[Any]:
        """The log. Do not modify its entries."""
        with self._lock:
            return list(self._logs)

    def values(self) -> dict[str, Any]:
        """The values, shared: do not modify what is in them."""
        with self._lock:
            return dict(self._values)

    def snapshot(self) -> dict[str, Any]:
        """An independent copy of `values` and `logs`."""
        with self._lock:
            return cast("dict[str, Any]", deepcopy({"values": self._values, "logs": self._logs}))

    def clone_isolated(self) -> ContextStore:
        """An independent store with the same content."""
        with self._lock:
            return ContextStore.sharing(self._values, self._logs)


SCHEMA_VERSION = 1

How: TypeAlias = Literal["start", "edge", "jump", "join", "restart"]
"""Way that the run reached its next stage: at the start, by edge, retry target, join, or restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """A conversation shared by several stages, as JSON."""

    messages: tuple[Any, ...] = ()
    """One plain value per message, oldest first."""
    marks: tuple[tuple[str, int], ...] = ()
    """Stages that ran in it, each with the number of messages before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """Identity of an attempt of a run."""

    root_run_id: str
    attempt: int = 1
    parent_run_id: str | None = None

    @property
    def run_id(self) -> str:
        """The root's id, with the number of the attempt from the second one on."""
        return self.root_run_id if self.attempt == 1 else f"{self.root_run_id}:attempt:{self.attempt}"

    def successor(self) -> Lineage:
        """The lineage of the next attempt."""
        return Lineage(root_run_id=self.root_run_id, attempt=self.attempt + 1, parent_run_id=self.run_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hashes:
    """Content hashes of the graph; `source` is None if it was built in Python."""

    source: str | None = None
    snapshot: str
    source_size: int | None = None
    """In bytes of UTF-8."""
    snapshot_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Changes made by the last stage, so that saving need not compare the complete state."""

    since: int
    """The `sequence` before the stage."""
    names: frozenset[str]
    """Stages with changes."""
    keys: frozenset[str]
    """Changed context keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The state of a run between two stages."""

    lineage: Lineage
    graph: Hashes
    next_node: str | None
    """The next stage; None after the end."""
    how: How = "start"
    edge: int | None = None
    """Index of the edge taken to it, if any."""
    current_node: str | None = None
    """The last completed stage."""
    completed: tuple[str, ...] = ()
    """Completed stages in order, with repetitions."""
    outcomes: Mapping[str, Outcome] = field(default_factory=dict[str, Outcome])
    """The last outcome of each stage."""
    retries: Mapping[str, int] = field(default_factory=dict[str, int])
    """Retries of the last visit, where there were any."""
    visits: Mapping[str, int] = field(default_factory=dict[str, int])
    recheck: tuple[str, ...] = ()
    """Goal gates that sent the run back and must run again before it may end."""
    fidelity: str = ""
    """Fidelity of the last completed stage."""
    thread: str | None = None
    given: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Initial values of every attempt, beside those of the graph."""
    context: Mapping[str, Any] = field(default_factory=dict[str, Any])
    logs: tuple[Any, ...] = ()
    artifacts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Artifacts that are not in files."""
    threads: Mapping[str, Thread] = field(default_factory=dict[str, Thread])
    branches: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Finished branches by place, while the parallel stage `next_node` is unfinished."""
    attempts: Mapping[str, int] = field(default_factory=dict[str, int])
    """Numbers of attempts under way in the unfinished stage, by visit; first attempts are not listed."""
    status: str = ""
    """Empty while it runs; `success` or `fail` after the end; `restarted` before the next attempt."""
    failure_reason: str = ""
    sequence: int = 0
    """Number of completed stages, over all attempts."""
    resumed: bool = field(default=False, compare=False)
    """True before the first stage after a resume; not part of checkpoints."""

    changes: Changes | None = field(default=None, compare=False, repr=False)
    """None means unknown; not part of checkpoints."""

    @property
    def run_id(self) -> str:
        """Id of the attempt."""
        return self.lineage.run_id

    @property
    def ended(self) -> bool:
        """True after the end."""
        return self.status in ("success", "fail")

    @property
    def ok(self) -> bool:
        """True once the run has ended in success."""
        return self.status == "success"

    @property
    def state(self) -> RunState:
        """The state itself, for callers that expect a wrapped result."""
        return self

    @property
    def last(self) -> Outcome | None:
        """Outcome of the last completed stage."""
        return self.outcomes.get(self.current_node) if self.current_node is not None else None


RunResult: TypeAlias = RunState
"""The result of a run is the state it ended in."""


STAGE_KEYS = ("outcome", "preferred_label", "current_node")
"""Keys about the stage before a branch, which the branch does not inherit."""
GRAPH_PATH = "internal.graph_path"
"""Context key of the graph's file; names in the graph are relative to it, also after a resume."""


def graph_hashes(graph: Graph) -> Hashes:
    """Content hashes and sizes of a graph."""
    source, snapshot = graph.source or None, to_dot(graph)
    return Hashes(
        source=text_hash(source) if source else None,
        snapshot=text_hash(snapshot),
        source_size=_bytes(source) if source else None,
        snapshot_size=_bytes(snapshot),
    )


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def initial_state(graph: Graph, names: Hashes, run_id: str, given: Mapping[str, Any]) -> RunState:
    """The state before the first stage; `graph` as it runs, `names` of the graph as given.

    Raises:
        PipelineError: an initial value is invalid, or the graph has no start.
    """
    try:
        kept = {check_key(key): to_json(value) for key, value in given.items()}
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
        context=_initial_context(graph, lineage, kept),
    )


def next_attempt(graph: Graph, state: RunState) -> RunState:
    """The state before the first stage of the next attempt, with nothing but the edge taken and initial values."""
    lineage = state.lineage.successor()
    return RunState(
        lineage=lineage,
        graph=state.graph,
        next_node=state.next_node,
        how="restart",
        edge=state.edge,
        given=state.given,
        context=_initial_context(graph, lineage, state.given),
        sequence=state.sequence,
    )


def branch_state(state: RunState, context: ContextStore, *, target: str, place: int, branch_id: str) -> RunState:
    """The state before the first stage of a branch, with the values of the parallel stage."""
    values = {key: value for key, value in context.values().items() if key not in STAGE_KEYS}
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
    """Facts of an attempt for events."""
    return {
        "root_run_id": state.lineage.root_run_id,
        "attempt": state.lineage.attempt,
        "parent_run_id": state.lineage.parent_run_id,
    }


def _initial_context(graph: Graph, lineage: Lineage, given: Mapping[str, Any]) -> dict[str, Any]:
    """Initial context of an attempt."""
    context = ContextStore({"graph.goal": graph.goal})
    for key, value in graph.attrs.items():
        context.set("graph." + ".".join(map(segment, key.split("."))), as_text(value))
    facts: dict[str, Any] = {"internal.run_id": lineage.run_id, "internal.lineage.root_run_id": lineage.root_run_id}
    facts["internal.lineage.attempt"] = lineage.attempt
    facts |= {"internal.lineage.parent_run_id": lineage.parent_run_id} if lineage.parent_run_id else {}
    facts |= {GRAPH_PATH: str(Path(graph.path).absolute())} if graph.path else {}
    context.apply_updates({**given, **facts})
    return context.values()
