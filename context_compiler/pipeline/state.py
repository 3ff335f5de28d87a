"""State of a run: one frozen value that contains everything the main loop reads.

A checkpoint is this value as JSON, so resuming a run means starting the loop with a loaded value. The context values
that stages share are JSON with dotted keys. They are never modified once set, so snapshots need not copy them.

A stage reports its result as an `Outcome`: its status, the next stage it asks for, and its context updates. Outcomes
are also parsed here from text. A word that is not a status means success and asks for the edge with that label.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
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
from context_compiler.pipeline.dot_text import to_dot
from context_compiler.pipeline.graph import Graph

STATUS_KEYS = ("outcome", "status")
LABEL_KEYS = ("preferred_label", "preferred_next_label")


class StageStatus(StrEnum):
    """Status of a completed stage."""

    SUCCESS = "success"
    PARTIAL_SUCCESS = "partial_success"
    RETRY = "retry"
    FAIL = "fail"
    SKIPPED = "skipped"

    @property
    def good(self) -> bool:
        """True if the status satisfies a goal gate."""
        return self in (StageStatus.SUCCESS, StageStatus.PARTIAL_SUCCESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of a stage. The status may be given as text, and None in any other field means empty.

    Raises:
        ValueError: the status is unknown, the updates are not a mapping, or a list of names is invalid.
    """

    status: StageStatus = StageStatus.SUCCESS
    preferred_label: str = ""
    """Label of the edge that the stage asks for."""
    suggested_next_ids: tuple[str, ...] = ()
    """Next stages that the stage asks for; the first one that an edge leads to is taken."""
    context_updates: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Values to set in the context."""
    notes: str = ""
    failure_reason: str = ""
    raw: str = ""
    """The word that the stage gave as its status, if that is not a status."""
    tools: tuple[str, ...] = ()
    """Names of the tools that the stage called, in order."""
    error: str = ""
    """Type of the exception that ended the stage, such as `ModelHTTPError`."""

    def __post_init__(self) -> None:
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        updates = fields["context_updates"]
        if not isinstance(updates, Mapping | None):
            raise ValueError("context_updates is not a mapping")
        clean: dict[str, Any] = {name: "" if fields[name] is None else str(fields[name]) for name in _TEXTS}
        clean |= {"status": StageStatus(fields["status"]), "context_updates": updates or {}}
        clean |= {name: _parse_names(fields[name]) for name in ("suggested_next_ids", "tools")}
        for name, value in clean.items():
            object.__setattr__(self, name, value)

    def document(self) -> dict[str, Any]:
        """Convert to plain data with the keys of a status file, without empty values."""
        fields = {name: getattr(self, name) for name in Outcome.__dataclass_fields__}
        facts: dict[str, Any] = {"outcome": self.status.value, **fields, "status": self.status.value}
        facts |= {"suggested_next_ids": list(self.suggested_next_ids), "tools": list(self.tools)}
        facts["context_updates"] = dict(self.context_updates)
        return {key: value for key, value in facts.items() if value not in ("", [], {})}

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Outcome:
        """Parse an outcome from plain data: a status file, an agent's answer, or the result of `document`.

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
        return cls(
            status=status,
            preferred_label=label or raw,
            suggested_next_ids=_parse_names(document.get("suggested_next_ids")),
            context_updates=dict(cast("Mapping[str, Any]", updates)),
            notes=_text(document, "notes"),
            failure_reason=_text(document, "failure_reason"),
            raw=_text(document, "raw") or raw,
            tools=_parse_names(document.get("tools")),
            error=_text(document, "error"),
        )


MAX_STARTS = 8
"""Maximum number of opening braces in the last line that are tried as the start of the final JSON object."""
_TEXTS = ("preferred_label", "notes", "failure_reason", "raw", "error")


def failure(reason: str, *, updates: Mapping[str, Any] | None = None) -> Outcome:
    """Build the outcome of a failed stage."""
    return Outcome(status=StageStatus.FAIL, failure_reason=reason, context_updates=updates or {})


def parse_status(word: str) -> tuple[StageStatus, str]:
    """Parse a word as a status; any other word is returned as a label, with the status success."""
    status = word.strip().lower()
    status = STATUSES.get(status, status)
    return (StageStatus(status), "") if status in tuple(StageStatus) else (StageStatus.SUCCESS, word.strip())


def find_outcome(text: str) -> Outcome | None:
    """Parse the outcome from the JSON object that a text consists of or ends with; None if there is none.

    The object needs text as its `outcome` or `status`. If other text precedes it in the last line, it needs an
    `outcome`. The object may be in a fenced block.
    """
    body = text.strip()
    if body.endswith("```"):
        start = body.rfind("\n```", 0, len(body) - 3)
        fence = body[start + 1 :] if start >= 0 else body
        body = fence.partition("\n")[2].removesuffix("```").strip() if fence.startswith("```") else body
    document = _read_object(body if body.startswith("{") else body[body.rfind("\n{") + 1 :])
    if document is None:
        line = body[body.rfind("\n") + 1 :]
        starts = islice((position for position, sign in enumerate(line) if sign == "{"), MAX_STARTS)
        objects = (_read_object(line[position:]) for position in starts)
        document = next((parsed for parsed in objects if parsed and "outcome" in parsed), None)
    if document is None:
        return None
    texts = {key: document[key] for key in (*STATUS_KEYS, *LABEL_KEYS, *_TEXTS) if isinstance(document.get(key), str)}
    for fields in (document, texts):  # a detail of the wrong type must not turn a failure into a success
        with suppress(ValueError):
            return Outcome.parse(fields)
    return None


def _read_object(text: str) -> Mapping[str, Any] | None:
    try:
        value: Any = json.loads(text) if text.startswith("{") and text.endswith("}") else None
    except (ValueError, RecursionError):
        return None
    return cast("Mapping[str, Any] | None", value)


def _parse_names(value: object) -> tuple[str, ...]:
    """Parse one name, a list of names, or None.

    Raises:
        ValueError: the value is something else.
    """
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Iterable):
        raise ValueError("a list of names is expected")
    names = list(cast("Iterable[object]", value))
    if any(isinstance(name, bool) or not isinstance(name, str | int) for name in names):
        raise ValueError("a list of names contains something else")
    return tuple(map(str, names))


def _text(document: Mapping[str, Any], key: str) -> str:
    """Text at a key; empty if it is missing.

    Raises:
        ValueError: the value is not text.
    """
    value = document.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{key} is not text")
    return value


MAX_KEY = 256
"""Maximum length of a context key, in characters."""

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(?:\.[A-Za-z_][A-Za-z0-9_-]*)*")
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


def check_key(key: object) -> str:
    """Check a context key and return it.

    Raises:
        ValueError: the key is empty, too long, or not a dotted name.
    """
    if not isinstance(key, str) or len(key) > MAX_KEY or not _KEY.fullmatch(key):
        raise ValueError(f"{str(key)[:80]!r} is not a key: give dotted names of at most {MAX_KEY} characters")
    return key


def segment(name: str) -> str:
    """Convert a name to a valid segment of a context key."""
    safe = _UNSAFE.sub("_", name)[:100]
    return safe if safe[:1].isalpha() or safe[:1] == "_" else f"_{safe}"


def to_json(value: Any) -> Any:
    """Copy a value as independent JSON data.

    Raises:
        ValueError: the value cannot be written as JSON.
    """
    if value is None or isinstance(value, str | bool | int) and not hasattr(value, "__dict__"):
        return value
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{type(value).__name__} cannot be stored as JSON: {error}") from None


class ContextStore:
    """Context values and log of a run; thread-safe.

    Every method raises `ValueError` for an invalid key and for a value that is not JSON.
    """

    def __init__(self, values: Mapping[str, Any] | None = None, logs: Iterable[Any] = ()) -> None:
        self._lock = RLock()
        self._values: dict[str, Any] = {}
        self._logs: list[Any] = [to_json(entry) for entry in logs]
        self._changed: set[str] = set()
        self.apply_updates(values or {})

    @classmethod
    def sharing(cls, values: Mapping[str, Any], logs: Iterable[Any] = ()) -> ContextStore:
        """Create a store that shares values known to be JSON, such as the values of a checkpoint."""
        store = cls()
        store._values, store._logs = dict(values), list(logs)
        return store

    def set(self, key: str, value: Any) -> None:
        """Set a value."""
        self.apply_updates({key: value})

    def get(self, key: str, default: Any = None) -> Any:
        """Return a copy of a value."""
        with self._lock:
            return deepcopy(self._values.get(check_key(key), default))

    def get_string(self, key: str, default: str = "") -> str:
        """Return a value as text; anything other than text is written as JSON."""
        value = self.get(key)
        if value is None:
            return default
        return value if isinstance(value, str) else json.dumps(value)

    def remove(self, key: str) -> None:
        """Delete a value if it is set."""
        with self._lock:
            self._values.pop(check_key(key), None)
            self._changed.add(key)

    def apply_updates(self, updates: Mapping[str, Any]) -> None:
        """Set several values, or none of them if one is invalid."""
        values = {check_key(key): to_json(value) for key, value in updates.items()}
        with self._lock:
            self._values.update(values)
            self._changed.update(values)

    def append_log(self, entry: Any) -> None:
        """Append an entry to the log."""
        kept = to_json(entry)
        with self._lock:
            self._logs.append(kept)

    def changed_keys(self) -> frozenset[str]:
        """Keys that were set or removed since the store was created."""
        with self._lock:
            return frozenset(self._changed)

    def keys(self) -> list[str]:
        """Keys, in the order in which they were first set."""
        with self._lock:
            return list(self._values)

    def logs(self) -> list[Any]:
        """Entries of the log, not copied: do not modify them."""
        with self._lock:
            return list(self._logs)

    def values(self) -> dict[str, Any]:
        """Values by key, not copied: do not modify them."""
        with self._lock:
            return dict(self._values)

    def snapshot(self) -> dict[str, Any]:
        """Return an independent copy of `values` and `logs`."""
        with self._lock:
            return cast("dict[str, Any]", deepcopy({"values": self._values, "logs": self._logs}))

    def clone_isolated(self) -> ContextStore:
        """Return an independent store with the same content."""
        with self._lock:
            return ContextStore.sharing(self._values, self._logs)


SCHEMA_VERSION = 1

How: TypeAlias = Literal["start", "edge", "jump", "join", "restart"]
"""Way in which a run reaches its next stage; a `jump` leads to a retry target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """A conversation shared by several stages, as JSON."""

    messages: tuple[Any, ...] = ()
    """One plain value per message, oldest first."""
    marks: tuple[tuple[str, int], ...] = ()
    """Stages that took part, each with the number of messages before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """Identity of one attempt of a run. Each restart of the run begins another attempt."""

    root_run_id: str
    attempt: int = 1
    parent_run_id: str | None = None

    @property
    def run_id(self) -> str:
        """Id of the attempt: the root's id, followed by the attempt number from the second attempt on."""
        return self.root_run_id if self.attempt == 1 else f"{self.root_run_id}:attempt:{self.attempt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hashes:
    """Content hashes of a graph: its source, which is None if it was built in Python, and its normal form."""

    source: str | None = None
    snapshot: str
    source_size: int | None = None
    """Size in bytes of UTF-8."""
    snapshot_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Changes made by the last stage, so that saving the state needs no comparison of complete states."""

    since: int
    """Value of `RunState.sequence` before the stage."""
    names: frozenset[str]
    """Names of the stages with changes."""
    keys: frozenset[str]
    """Context keys with changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The state of a run between two stages."""

    lineage: Lineage
    graph: Hashes
    next_node: str | None
    """The next stage; None after the end."""
    how: How = "start"
    edge: int | None = None
    """Index of the edge taken to the next stage; None if no edge was taken."""
    current_node: str | None = None
    """The last completed stage."""
    completed: tuple[str, ...] = ()
    """Completed stages in order; a repeated stage is listed each time."""
    outcomes: Mapping[str, Outcome] = field(default_factory=dict[str, Outcome])
    """The last outcome of each stage."""
    retries: Mapping[str, int] = field(default_factory=dict[str, int])
    """Retries of the last visit to each stage; a stage that never needed one is missing."""
    visits: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of visits to each stage."""
    recheck: tuple[str, ...] = ()
    """Goal gates that sent the run back and must run again before the run may end."""
    fidelity: str = ""
    """Fidelity of the last completed stage."""
    thread: str | None = None
    """Key of the conversation of the last completed stage."""
    given: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Initial context values of every attempt, in addition to the values from the graph."""
    context: Mapping[str, Any] = field(default_factory=dict[str, Any])
    logs: tuple[Any, ...] = ()
    artifacts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Artifacts that are not stored as files."""
    threads: Mapping[str, Thread] = field(default_factory=dict[str, Thread])
    branches: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Finished branches of the unfinished parallel stage `next_node`."""
    attempts: Mapping[str, int] = field(default_factory=dict[str, int])
    """Attempts in progress in the unfinished stage `next_node`, by visit; first attempts are not listed."""
    status: str = ""
    """Empty while the run is in progress; `success` or `fail` after its end; `restarted` before the next attempt."""
    failure_reason: str = ""
    sequence: int = 0
    """Number of completed stages, over all attempts."""
    resumed: bool = field(default=False, compare=False)
    """True after a resume, until a stage uses a preamble or runs branches; not part of checkpoints."""

    changes: Changes | None = field(default=None, compare=False, repr=False)
    """Changes of the last stage; None if unknown. Not part of checkpoints."""

    @property
    def run_id(self) -> str:
        """Id of the attempt."""
        return self.lineage.run_id

    @property
    def ended(self) -> bool:
        """True if the run has ended."""
        return self.status in ("success", "fail")

    @property
    def ok(self) -> bool:
        """True if the run has ended successfully."""
        return self.status == "success"

    @property
    def state(self) -> RunState:
        """The state itself, for callers that expect a wrapped result."""
        return self

    @property
    def last(self) -> Outcome | None:
        """Outcome of the last completed stage."""
        return self.outcomes.get(self.current_node) if self.current_node is not None else None

    def next_attempt(self, graph: Graph) -> RunState:
        """Build the state before the next attempt's first stage; it keeps only the edge taken and initial values."""
        lineage = replace(self.lineage, attempt=self.lineage.attempt + 1, parent_run_id=self.run_id)
        return RunState(
            lineage=lineage,
            graph=self.graph,
            next_node=self.next_node,
            how="restart",
            edge=self.edge,
            given=self.given,
            context=_initial_context(graph, lineage, self.given),
            sequence=self.sequence,
        )


RunResult: TypeAlias = RunState
"""Result of a run: its final state."""


STAGE_KEYS = ("outcome", "preferred_label", "current_node")
"""Context keys about the previous stage, which a branch does not inherit."""
GRAPH_PATH = "internal.graph_path"
"""Context key of the graph's file. Paths in the graph are relative to its folder, even after a resume."""


def graph_hashes(graph: Graph) -> Hashes:
    """Compute the content hashes and sizes of a graph."""
    source, snapshot = graph.source or None, to_dot(graph)
    return Hashes(
        source=text_hash(source) if source else None,
        snapshot=text_hash(snapshot),
        source_size=_utf8_size(source) if source else None,
        snapshot_size=_utf8_size(snapshot),
    )


def _utf8_size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def initial_state(graph: Graph, names: Hashes, run_id: str, values: Mapping[str, Any]) -> RunState:
    """Build the state of a run before its first stage.

    Args:
        graph: The prepared graph.
        names: Hashes of the graph before it was prepared.
        run_id: Id of the run.
        values: Initial context values.

    Raises:
        PipelineError: an initial value is invalid, or the graph has no start.
    """
    try:
        kept = {check_key(key): to_json(value) for key, value in values.items()}
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


def branch_state(state: RunState, context: ContextStore, *, target: str, edge: int, branch_id: str) -> RunState:
    """Build the state before the first stage of a branch, with the context values of the parallel stage.

    `edge` is the index of the edge to the stage `target`. An outcome of the parallel stage is of an earlier round.
    """
    source = context.get("current_node")
    values = {key: value for key, value in context.values().items() if key not in STAGE_KEYS}
    values |= {"work.branch_id": branch_id, "work.branch_target": target}
    return replace(
        state,
        next_node=target,
        how="edge",
        edge=edge,
        current_node=source,
        outcomes={name: outcome for name, outcome in state.outcomes.items() if name != source},
        context=values,
        logs=tuple(context.logs()),
        branches={},
    )


def _initial_context(graph: Graph, lineage: Lineage, values: Mapping[str, Any]) -> dict[str, Any]:
    """Build the initial context of an attempt from the graph, its lineage and the initial values."""
    context = ContextStore({"graph.goal": graph.goal})
    for key, value in graph.attrs.items():
        context.set("graph." + ".".join(map(segment, key.split("."))), as_text(value))
    facts: dict[str, Any] = {"internal.run_id": lineage.run_id, "internal.lineage.root_run_id": lineage.root_run_id}
    facts["internal.lineage.attempt"] = lineage.attempt
    facts |= {"internal.lineage.parent_run_id": lineage.parent_run_id} if lineage.parent_run_id else {}
    facts |= {GRAPH_PATH: str(Path(graph.path).absolute())} if graph.path else {}
    context.apply_updates({**values, **facts})
    return context.values()
