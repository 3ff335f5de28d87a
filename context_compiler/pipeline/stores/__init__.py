"""Storage of runs, with their states, events and graphs: the protocol, the events, and the store in memory.

A saved state survives the process, and at most one process owns a run at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, Self, TypeAlias, runtime_checkable

from filelock import FileLock, Timeout

from context_compiler.errors import PipelineError, RunOwnedError
from context_compiler.paths import is_address, make_private
from context_compiler.pipeline.state import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """Metadata of a run."""

    run_id: str
    """Id of the first attempt."""
    name: str
    """Name of the graph."""
    goal: str
    started_at: str
    """ISO 8601, UTC."""
    updated_at: str
    status: str
    """`running`, `stopped` (nobody runs it, and it can be resumed), `success` or `fail`.

    A submitted run that no worker has taken is `queued`, or `waiting` for an answer. If the metadata cannot be read,
    the status is `damaged`, and `failure_reason` contains the error.
    """
    current_node: str | None = None
    next_node: str | None = None
    completed: int = 0
    """Number of completed stages, over all attempts."""
    attempt: int = 1
    failure_reason: str = ""
    source: str | None = None
    """Hash of the graph's source."""
    snapshot: str = ""
    source_size: int | None = None
    """Size in bytes of UTF-8."""
    snapshot_size: int | None = None
    parent: str | None = None
    """The run that started this one as a child."""
    owner: str = ""
    """Owner of the run and of the requests that its stages record."""

    def document(self) -> dict[str, Any]:
        """Convert to plain data."""
        return {name: getattr(self, name) for name in RunInfo.__dataclass_fields__}

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Self:
        """Parse from plain data; fields added by a newer version are ignored.

        Raises:
            TypeError: a field is missing, or has the wrong type.
        """
        info = cls(**{name: data[name] for name in cls.__dataclass_fields__ if name in data})
        for name, value in info.document().items():
            kind = int if name in ("completed", "attempt", "source_size", "snapshot_size") else str
            if type(value) is not kind and not (value is None and name in OPTIONAL):
                raise TypeError(f"{name} is of the wrong type")
        return info

    @classmethod
    def damaged(cls, run_id: str, why: object) -> Self:
        """Build metadata for a run whose metadata cannot be read, with the reason."""
        return cls(
            run_id=run_id, name="", goal="", started_at="", updated_at="", status="damaged", failure_reason=str(why)
        )

    def with_state(self, state: RunState, time: str) -> Self:
        """Return the metadata updated for a state that is being saved."""
        return replace(
            self,
            updated_at=time,
            status=state.status if state.ended else "running",
            current_node=state.current_node,
            next_node=state.next_node,
            completed=state.sequence,
            attempt=state.lineage.attempt,
            failure_reason=state.failure_reason,
        )

    def stopped_unless(self, is_owned: Callable[[str], bool]) -> Self:
        """Return the metadata, with the status `stopped` instead of `running` if nobody owns the run."""
        return replace(self, status="stopped") if self.status == "running" and not is_owned(self.run_id) else self


OPTIONAL = ("current_node", "next_node", "source", "source_size", "snapshot_size", "parent")
"""Metadata fields that may be None."""


Lost: TypeAlias = "asyncio.Future[str] | None"
"""Future whose result is the reason why a run is no longer owned; None if ownership lasts as long as the process."""


@runtime_checkable
class RunStore(Protocol):
    """Storage of runs, each under the id of its first attempt."""

    def own(self, run_id: str) -> AbstractAsyncContextManager[Lost]:
        """Own a run until the context exits. Its value is done once the ownership is lost; None if that cannot happen.

        Raises:
            RunOwnedError: somebody else owns the run.
        """
        ...

    async def begin(self, info: RunInfo, contents: Mapping[str, str]) -> None:
        """Create a run, and store texts by hash.

        Raises:
            PipelineError: the run already exists or could not be saved.
        """
        ...

    async def save(self, state: RunState) -> None:
        """Replace the saved state of a run atomically.

        Raises:
            PipelineError: the state could not be saved, and the previous one is intact.
        """
        ...

    async def add(self, run_id: str, event: Event) -> None:
        """Append an event to a run."""
        ...

    async def load(self, run_id: str) -> RunState | None:
        """Load the last saved state; None if there is none.

        Raises:
            CheckpointError: the state is damaged, or was saved by a newer version.
        """
        ...

    async def events(self, run_id: str, after: int = 0) -> list[Event]:
        """Events of a run with a sequence number above `after`, in order."""
        ...

    async def runs(self) -> list[RunInfo]:
        """Metadata of all runs, newest first."""
        ...

    async def content(self, hash: str) -> str | None:
        """Return the text with a hash; None if there is none."""
        ...

    async def delete(self, run_id: str) -> bool:
        """Delete a run and its children with all their data; False if there is no such run.

        Raises:
            RunOwnedError: somebody owns the run or one of its children.
            PipelineError: the run could not be deleted.
        """
        ...

    async def close(self) -> None:
        """Release resources; the next use of the store acquires them again."""
        ...


def has_runs(place: str) -> bool:
    """True if `place` is an existing path, or the address of a database, which may contain runs."""
    return is_address(place) or Path(place).exists()


def newest_first(infos: Sequence[RunInfo]) -> list[RunInfo]:
    """Sort runs by start, newest first."""
    return sorted(infos, key=lambda info: (info.started_at, info.run_id), reverse=True)


def family(run_id: str, parents: Mapping[str, str | None]) -> list[str]:
    """Ids of a run and all its descendants, given the parent of each run."""
    run_ids = [run_id]
    for current in run_ids:
        run_ids += [name for name, parent in parents.items() if parent == current and name not in run_ids]
    return run_ids


class MemoryRuns:
    """Stores runs in memory."""

    def __init__(self) -> None:
        self._infos: dict[str, RunInfo] = {}
        self._states: dict[str, RunState] = {}
        self._events: dict[str, list[Event]] = {}
        self._contents: dict[str, str] = {}
        self._owned: set[str] = set()

    @asynccontextmanager
    async def own(self, run_id: str) -> AsyncGenerator[Lost]:
        """Own a run until the context exits."""
        if run_id in self._owned:
            raise RunOwnedError(f"run {run_id!r} is under way elsewhere: wait for it, or end it")
        self._owned.add(run_id)
        try:
            yield None
        finally:
            self._owned.discard(run_id)

    async def begin(self, info: RunInfo, contents: Mapping[str, str]) -> None:
        """Create a run."""
        if info.run_id in self._infos:
            raise PipelineError(f"run {info.run_id!r} already exists: resume it, or give another id")
        self._infos[info.run_id] = info
        self._contents.update(contents)

    async def save(self, state: RunState) -> None:
        """Replace the saved state."""
        root = state.lineage.root_run_id
        events, info = self._events.get(root), self._infos[root]
        self._states[root] = state
        self._infos[root] = info.with_state(state, events[-1].at if events else info.updated_at)

    async def add(self, run_id: str, event: Event) -> None:
        """Append an event."""
        self._events.setdefault(run_id, []).append(event)

    async def load(self, run_id: str) -> RunState | None:
        """Return the last saved state."""
        return self._states.get(run_id)

    async def events(self, run_id: str, after: int = 0) -> list[Event]:
        """Events in order."""
        return [event for event in self._events.get(run_id, ()) if event.sequence > after]

    async def runs(self) -> list[RunInfo]:
        """Metadata of all runs, newest first."""
        return newest_first([info.stopped_unless(self._owned.__contains__) for info in self._infos.values()])

    async def content(self, hash: str) -> str | None:
        """Return the text with a hash."""
        return self._contents.get(hash)

    async def delete(self, run_id: str) -> bool:
        """Delete a run and its children."""
        if run_id not in self._infos:
            return False
        names = family(run_id, {name: info.parent for name, info in self._infos.items()})
        async with AsyncExitStack() as owned:
            for name in names:
                await owned.enter_async_context(self.own(name))
            for name in names:
                self._infos.pop(name)
                self._states.pop(name, None)
                self._events.pop(name, None)
            used = {hash for info in self._infos.values() for hash in (info.source, info.snapshot)}
            self._contents = {hash: text for hash, text in self._contents.items() if hash in used}
        return True

    async def close(self) -> None:
        """Do nothing, because there is nothing to release."""


RUN = ("run_initialized", "run_resumed", "run_finalized")
STAGE = ("stage_started", "agent_answered", "stage_retrying", "stage_completed", "stage_failed", "checkpoint_saved")
PARALLEL = ("parallel_started", "parallel_branch_started", "parallel_branch_completed", "parallel_completed")
PEOPLE = ("interview_started", "interview_completed", "interview_timeout")
CHILD = ("child_started", "child_observed", "child_steered", "child_stopped")
ASKING = ("context_compiled", "model_requested", "tool_hook_failed")
KINDS = (*RUN, *STAGE, *ASKING, *PARALLEL, *PEOPLE, *CHILD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened in a run."""

    kind: str
    """One of `KINDS`."""
    run_id: str
    """Id of the attempt."""
    sequence: int
    """Number of the event in its run, from 1, over all attempts."""
    at: str
    """ISO 8601, UTC."""
    node: str | None = None
    """The stage; None if the event is about the run."""
    branch: str = ""
    """Branch of a parallel stage; empty outside of branches."""
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def document(self) -> dict[str, Any]:
        """Convert to plain data."""
        facts: dict[str, Any] = {"kind": self.kind, "run_id": self.run_id, "sequence": self.sequence, "at": self.at}
        facts |= {"node": self.node} if self.node is not None else {}
        facts |= {"branch": self.branch} if self.branch else {}
        return {**facts, "data": dict(self.data)} if self.data else facts

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Self:
        """Parse an event from plain data."""
        return cls(**data)


OnEvent = Callable[[Event], Any]
"""Receives every event; may be async."""


GRACE_S = 0.05
"""Seconds to wait for a previous owner to remove its lock file."""


@contextmanager
def own_run(path: Path, run_id: str) -> Generator[None]:
    """Hold the lock of a run, a file at `path`, until the context exits.

    Raises:
        RunOwnedError: somebody else holds the lock.
        PipelineError: the lock file cannot be created.
    """
    lock = FileLock(path, mode=0o600, thread_local=False)
    try:
        make_private(path.parent)
        lock.acquire(timeout=GRACE_S, poll_interval=GRACE_S / 5)
    except Timeout:
        raise RunOwnedError(f"run {run_id!r} is under way elsewhere: wait for it, or end it") from None
    except OSError as error:
        raise PipelineError(f"{path}: {error.strerror or error}; give a folder that can be written to") from error
    try:
        yield
    finally:
        _release(lock, path)


def is_owned(path: Path) -> bool:
    """True if a live process holds the lock at `path`."""
    if not path.exists():
        return False
    lock = FileLock(path, mode=0o600, thread_local=False)
    try:
        lock.acquire(timeout=0)
    except (Timeout, OSError):
        return True
    _release(lock, path)
    return False


def _release(lock: FileLock, path: Path) -> None:
    with suppress(OSError):  # on Windows, only the release can remove the file
        path.unlink()
    lock.release()
