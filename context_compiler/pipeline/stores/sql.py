"""Run storage in an SQL database. Saving a state writes only its changes, so long runs save as fast as short ones.

A database engine only has to implement `Database`. Statements contain `?` for arguments and `NOW` for the time of the
database.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol, TypeVar

from context_compiler.errors import CheckpointError, PipelineError
from context_compiler.ids import text_hash
from context_compiler.pipeline.checkpoint import assemble, parse_checkpoint, state_changes
from context_compiler.pipeline.state import RunState
from context_compiler.pipeline.stores import Event, Lost, RunInfo, family, newest_first
from context_compiler.resilience import attempt

T = TypeVar("T")

VERSION = 2
"""Version of the tables; each change of them raises it, and a file of another version is refused."""

SCHEMA = """
CREATE TABLE runs (run TEXT PRIMARY KEY, info TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE cells (                   -- a state in pieces: what changes alone is written alone
    run TEXT NOT NULL, section TEXT NOT NULL, name TEXT NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (run, section, name)
) WITHOUT ROWID;
CREATE TABLE events (
    run TEXT NOT NULL, sequence INTEGER NOT NULL, body TEXT NOT NULL, PRIMARY KEY (run, sequence)
) WITHOUT ROWID;
CREATE TABLE contents (hash TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE queue (                   -- runs that any worker may take
    run TEXT PRIMARY KEY, options TEXT NOT NULL, state TEXT NOT NULL, submitted DOUBLE PRECISION NOT NULL,
    due DOUBLE PRECISION,              -- not before this time: a pause, or the time-out of the question it waits for
    worker TEXT, takes INTEGER NOT NULL, progress INTEGER NOT NULL, cancelled TEXT, trouble TEXT
) WITHOUT ROWID;
CREATE INDEX queue_by_state ON queue (state, submitted);
CREATE TABLE questions (
    run TEXT NOT NULL, key TEXT NOT NULL, body TEXT NOT NULL, asked DOUBLE PRECISION NOT NULL, due DOUBLE PRECISION,
    answer TEXT, PRIMARY KEY (run, key)
) WITHOUT ROWID;
"""
STATEMENTS = [statement for statement in SCHEMA.split(";") if statement.strip()]
"""Statements that create the tables, in SQL that all engines understand."""

CONTENTS = 32
"""Maximum number of strings in the cache."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of a transaction."""

    text: str
    args: Sequence[Any] = ()
    rows: Sequence[Sequence[Any]] | None = None
    """Arguments of several executions, instead of `args`; such a statement returns no rows."""
    missing: PipelineError | None = None
    """Error to raise if the statement returns no row; the transaction is then rolled back."""


class Database(Protocol):
    """Transactions on one database."""

    @property
    def name(self) -> str:
        """Path or address of the database for error messages, without a password."""
        ...

    async def transact(self, *statements: Statement) -> list[Sequence[Sequence[Any]]]:
        """Execute statements in one transaction, and return the rows of each statement.

        Raises:
            PipelineError: the transaction failed, and was rolled back.
        """
        ...

    async def close(self) -> None:
        """Close the database; the next transaction opens it again."""
        ...


class SQLRuns(ABC):
    """Stores runs in an SQL database, together with the queue of submitted runs."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._saved: dict[str, RunState] = {}
        self._infos: dict[str, RunInfo] = {}
        self._contents: dict[str, str] = {}
        """Cache of texts by hash, because many runs share a graph."""

    @abstractmethod
    def own(self, run_id: str) -> AbstractAsyncContextManager[Lost]:
        """Own a run until the context exits."""
        ...

    @abstractmethod
    async def owned(self, run_ids: Sequence[str]) -> frozenset[str]:
        """Return which of these runs somebody owns."""
        ...

    def fence(self, run_id: str) -> Sequence[Statement]:
        """Statements at the start of each write transaction, which fail unless this store may write to the run."""
        return ()

    def lock_contents(self, hashes: Sequence[str], lock: str) -> Sequence[Statement]:
        """Statements that lock texts until the transaction ends, so that no text of a new run is deleted."""
        return ()

    def may_repeat(self, run_id: str) -> bool:
        """True if an existing run with the same metadata may come from a repeated transaction of this store."""
        return False

    async def begin(self, info: RunInfo, contents: Mapping[str, str]) -> None:
        """Create a run."""
        body = json.dumps(info.document())
        exists = PipelineError(f"run {info.run_id!r} already exists: resume it, or give another id")
        await self.database.transact(
            *self.fence(info.run_id),
            *self.lock_contents([*contents], "KEY SHARE"),
            Statement(_BEGIN, (info.run_id, body, int(self.may_repeat(info.run_id))), missing=exists),
            Statement("INSERT INTO contents VALUES (?, ?) ON CONFLICT (hash) DO NOTHING", rows=list(contents.items())),
        )

    async def save(self, state: RunState) -> None:
        """Save the changes since the state that was saved before."""
        root = state.lineage.root_run_id
        former = self._saved.pop(root, None)  # unknown if this call fails or is cancelled
        info = self._infos.get(root) or await self._load_info(root)
        info = info.with_state(state, datetime.now(UTC).isoformat(timespec="milliseconds"))
        gone, new = state_changes(former, state)
        cells = [(section, name, json.dumps(body)) for section, name, body in new]
        await self.write(root, None if former is None else gone, cells, json.dumps(info.document()))
        self._saved[root], self._infos[root] = state, info

    async def write(
        self, root: str, gone: Sequence[tuple[str, str]] | None, cells: Sequence[tuple[str, str, str]], info: str
    ) -> None:
        """Write changed cells of a state in one transaction, and remove the cells `gone`; None removes all old ones."""
        clear = [Statement("DELETE FROM cells WHERE run = ?", (root,))] if gone is None else []
        await self.database.transact(
            *self.fence(root),
            *clear,
            Statement(_REMOVE, rows=[(root, *cell) for cell in gone or ()]),
            Statement(_SAVE, rows=[(root, *cell) for cell in cells]),
            Statement(
                "UPDATE runs SET info = ? WHERE run = ? RETURNING run", (info, root), missing=self._missing(root)
            ),
        )

    def _missing(self, run_id: str) -> PipelineError:
        return PipelineError(f"{self.database.name}: run {run_id!r} does not exist; it may have been deleted")

    async def _load_info(self, run_id: str) -> RunInfo:
        ((row,),) = await self.database.transact(
            Statement("SELECT info FROM runs WHERE run = ?", (run_id,), missing=self._missing(run_id))
        )
        return self._parse(RunInfo.parse, row[0])

    async def mark_failed(self, run_id: str, reason: str) -> None:
        """Mark a run that the caller owns as failed in its metadata, without changing its state."""
        (rows,) = await self.database.transact(Statement("SELECT info FROM runs WHERE run = ?", (run_id,)))
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        for (body,) in rows:
            with suppress(ValueError, TypeError, RecursionError):  # leave damaged metadata unchanged
                info: dict[str, Any] = dict(read_body(body))  # with the fields that a newer version has added
                marked = json.dumps({**info, "status": "fail", "failure_reason": reason, "updated_at": now})
                update = Statement("UPDATE runs SET info = ? WHERE run = ?", (marked, run_id))
                await self.database.transact(*self.fence(run_id), update)

    def forget(self, run_id: str) -> None:
        """Forget the last saved state of a run, because another process may save the next one."""
        self._saved.pop(run_id, None)
        self._infos.pop(run_id, None)

    async def add(self, run_id: str, event: Event) -> None:
        """Append an event."""
        row = (run_id, event.sequence, json.dumps(event.document()))
        await self.database.transact(*self.fence(run_id), Statement(_ADD, row))

    async def load(self, run_id: str) -> RunState | None:
        """Load the last saved state."""
        query = "SELECT section, name, body FROM cells WHERE run = ? ORDER BY section, name"
        (rows,) = await self.database.transact(Statement(query, (run_id,)))
        if not rows:
            return None
        where = f"{self.database.name}, run {run_id!r}"
        try:
            document = assemble((section, name, read_body(body)) for section, name, body in rows)
        except (ValueError, RecursionError, LookupError, TypeError) as error:
            raise CheckpointError(f"{where}: the checkpoint is damaged ({error}); it cannot be resumed from") from error
        return parse_checkpoint(document, where=where)

    async def events(self, run_id: str, after: int = 0) -> list[Event]:
        """Events in order; a damaged one is left out."""
        query = "SELECT body FROM events WHERE run = ? AND sequence > ? ORDER BY sequence"
        (rows,) = await self.database.transact(Statement(query, (run_id, after)))
        parsed = (attempt(partial(self._parse, Event.parse, body)).value for (body,) in rows)
        return [event for event in parsed if event is not None]

    async def runs(self) -> list[RunInfo]:
        """Metadata of all runs, newest first."""
        rows, queued = await self.database.transact(Statement("SELECT run, info FROM runs"), Statement(_QUEUED))
        infos = [self._info_or_damaged(str(run_id), body) for run_id, body in rows]
        owned = await self.owned([info.run_id for info in infos if info.status == "running"])
        states = {str(run_id): str(state) for run_id, state in queued}
        stopped = [info for info in infos if info.stopped_unless(owned.__contains__).status == "stopped"]
        updated = {info.run_id: replace(info, status=states.get(info.run_id, "stopped")) for info in stopped}
        return newest_first([updated.get(info.run_id, info) for info in infos])

    def _info_or_damaged(self, run_id: str, body: str) -> RunInfo:
        try:
            return self._parse(RunInfo.parse, body)
        except CheckpointError as error:
            return RunInfo.damaged(run_id, error)

    async def content(self, hash: str) -> str | None:
        """Return the text with a hash; None if it is damaged."""
        if hash not in self._contents:
            (rows,) = await self.database.transact(Statement("SELECT body FROM contents WHERE hash = ?", (hash,)))
            if not rows or text_hash(rows[0][0]) != hash:
                return None
            self._contents[hash] = rows[0][0]
            if len(self._contents) > CONTENTS:
                del self._contents[next(iter(self._contents))]
        return self._contents[hash]

    async def delete(self, run_id: str) -> bool:
        """Delete a run and its children."""
        async with AsyncExitStack() as owned:
            await owned.enter_async_context(self.own(run_id))
            bodies = await self._family(run_id)
            for name in bodies.keys() - {run_id}:
                await owned.enter_async_context(self.own(name))
            infos = [info for info in map(_read_info, bodies.values()) if info is not None]
            hashes = sorted({hash for info in infos for hash in (info.source, info.snapshot) if hash})
            names = [(name,) for name in bodies]
            await self.database.transact(
                *(statement for name in bodies for statement in self.fence(name)),
                *(Statement(f"DELETE FROM {table} WHERE run = ?", rows=names) for table in TABLES),
                *self.lock_contents(hashes, "UPDATE"),
                Statement(_UNUSED, rows=[(hash, hash) for hash in hashes]),
            )
            for hash in hashes:
                self._contents.pop(hash, None)
        return bool(bodies)

    async def _family(self, run_id: str) -> dict[str, str]:
        """Stored metadata of a run and its descendants, by id; empty if there is no such run."""
        query = "SELECT run, info FROM runs WHERE substr(run, 1, ?) = ?"  # children's ids begin with the parent's id
        (rows,) = await self.database.transact(Statement(query, (len(run_id), run_id)))
        bodies = {str(name): str(body) for name, body in rows}
        parents = {name: info.parent for name, body in bodies.items() if (info := _read_info(body)) is not None}
        return {name: bodies[name] for name in family(run_id, parents) if name in bodies}

    async def close(self) -> None:
        """Close the database."""
        await self.database.close()

    def _parse(self, parse: Callable[[Any], T], body: str) -> T:
        """Parse a stored JSON body.

        Raises:
            CheckpointError: the body is damaged.
        """
        try:
            return parse(read_body(body))
        except (ValueError, TypeError, RecursionError) as error:
            raise CheckpointError(f"{self.database.name}: a row in it is damaged ({error})") from error


def read_body(body: object) -> Any:
    """Parse a stored JSON body.

    Raises:
        ValueError: the body is damaged.
    """
    try:
        return json.loads(str(body).encode())
    except UnicodeEncodeError as error:  # `SQLiteDatabase` reads bytes that are not UTF-8 as surrogates
        raise ValueError(f"character {error.start + 1} is not UTF-8") from None


def _read_info(body: str) -> RunInfo | None:
    """Parse the metadata of a run; None if it is damaged."""
    with suppress(ValueError, TypeError, RecursionError):
        return RunInfo.parse(read_body(body))
    return None


TABLES = ("cells", "events", "questions", "queue", "runs")
"""Tables with a `run` column, from which a deleted run is removed."""
_UNUSED = "DELETE FROM contents WHERE hash = ? AND NOT EXISTS (SELECT 1 FROM runs WHERE info LIKE '%' || ? || '%')"
_BEGIN = """
INSERT INTO runs AS known VALUES (?, ?) ON CONFLICT (run) DO UPDATE SET info = excluded.info
WHERE known.info = excluded.info AND ? = 1 RETURNING run
"""
_QUEUED = "SELECT run, state FROM queue WHERE state IN ('queued', 'waiting')"
_SAVE = """
INSERT INTO cells VALUES (?, ?, ?, ?) ON CONFLICT (run, section, name) DO UPDATE SET body = excluded.body
"""
_REMOVE = "DELETE FROM cells WHERE run = ? AND section = ? AND name = ?"
_ADD = "INSERT INTO events VALUES (?, ?, ?) ON CONFLICT (run, sequence) DO UPDATE SET body = excluded.body"
