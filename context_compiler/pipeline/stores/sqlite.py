"""Runs in one SQLite file: saving a state writes only its changes, so that long runs save as fast as short ones."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from context_compiler.errors import PipelineError
from context_compiler.paths import make_private
from context_compiler.pipeline.checkpoint import assemble, parse_checkpoint, state_changes
from context_compiler.pipeline.state import RunState
from context_compiler.pipeline.stores import (
    Event,
    RunInfo,
    info_document,
    is_owned,
    newest_first,
    own_run,
    parse_event,
    parse_info,
    stopped_unless,
    update_info,
)
from context_compiler.record.files import hold_at_fork
from context_compiler.record.rows import transaction

T = TypeVar("T")
APPLICATION_ID, VERSION = 0x63747872, 1  # "ctxr"

TABLES = """
CREATE TABLE runs (run TEXT PRIMARY KEY, info TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE cells (                   -- a state in pieces: what changes alone is written alone
    run TEXT NOT NULL, section TEXT NOT NULL, name TEXT NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (run, section, name)
) WITHOUT ROWID;
CREATE TABLE events (
    run TEXT NOT NULL, sequence INTEGER NOT NULL, body TEXT NOT NULL, PRIMARY KEY (run, sequence)
) WITHOUT ROWID;
CREATE TABLE contents (hash TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;
"""


class SQLiteRuns:
    """Runs in one file, for several processes at once; opened at first use."""

    def __init__(self, path: str | Path, *, busy_timeout: float = 5.0) -> None:
        self.path = Path(path).expanduser().absolute()
        self._timeout = busy_timeout
        self._lock = Lock()
        hold_at_fork(self._lock, self, SQLiteRuns._disconnect)
        self._db: sqlite3.Connection | None = None
        self._saved: dict[str, RunState] = {}

    @asynccontextmanager
    async def own(self, run_id: str) -> AsyncGenerator[None]:
        """Own a run."""
        with own_run(self._lock_path(run_id), run_id):
            self._saved.pop(run_id, None)
            try:
                yield
            finally:
                self._saved.pop(run_id, None)

    async def begin(self, info: RunInfo, contents: Mapping[str, str]) -> None:
        """Create a run."""
        await self._run(partial(_begin, info=info, contents=contents))

    async def save(self, state: RunState) -> None:
        """Save the changes since the former state."""
        root = state.lineage.root_run_id
        former = self._saved.pop(root, None)  # if this fails or is cancelled, what is stored is unknown
        await self._run(partial(_save, state=state, former=former))
        self._saved[root] = state

    async def add(self, run_id: str, event: Event) -> None:
        """Append an event."""
        row = (run_id, event.sequence, json.dumps(event.document()))
        await self._run(lambda db: db.execute("INSERT OR REPLACE INTO events VALUES (?, ?, ?)", row))

    async def load(self, run_id: str) -> RunState | None:
        """The last saved state."""
        query = "SELECT section, name, body FROM cells WHERE run = ? ORDER BY section, name"
        rows: Sequence[Any] = await self._run(lambda db: db.execute(query, (run_id,)).fetchall())
        if not rows:
            return None
        where = f"{self.path}, run {run_id!r}"
        try:
            found = assemble((section, name, json.loads(body)) for section, name, body in rows)
        except (ValueError, RecursionError, LookupError, TypeError) as error:
            raise PipelineError(f"{where}: the checkpoint is damaged ({error}); it cannot be resumed from") from error
        return parse_checkpoint(found, where=where)

    async def events(self, run_id: str, after: int = 0) -> list[Event]:
        """Events in order."""
        query = "SELECT body FROM events WHERE run = ? AND sequence > ? ORDER BY sequence"
        rows: Sequence[Any] = await self._run(lambda db: db.execute(query, (run_id, after)).fetchall())
        return [self._parse(parse_event, body) for (body,) in rows]

    async def runs(self) -> list[RunInfo]:
        """Metadata of all runs, newest first."""
        rows: Sequence[Any] = await self._run(lambda db: db.execute("SELECT info FROM runs").fetchall())
        infos = [self._parse(parse_info, body) for (body,) in rows]
        return newest_first([stopped_unless(lambda run_id: is_owned(self._lock_path(run_id)), info) for info in infos])

    def _lock_path(self, run_id: str) -> Path:
        mark = blake2b(run_id.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        return self.path.with_name(f"{self.path.name}-{mark}.lock")

    def _parse(self, made: Callable[[Any], T], body: str) -> T:
        try:
            return made(json.loads(body))
        except (ValueError, TypeError, RecursionError) as error:
            raise PipelineError(f"{self.path}: a row in it is damaged ({error})") from error

    async def content(self, hash: str) -> str | None:
        """The text with a hash."""
        query = "SELECT body FROM contents WHERE hash = ?"
        row: Any = await self._run(lambda db: db.execute(query, (hash,)).fetchone())
        return None if row is None else row[0]

    async def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._disconnect()

    def _disconnect(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close()

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        # On a thread, because another process may be writing. A cancelled caller waits for it, because nothing may
        # be written once the run is somebody else's, or the file closed.
        working = asyncio.create_task(asyncio.to_thread(self._call, work))
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            await asyncio.gather(working, return_exceptions=True)
            raise

    def _call(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            try:
                if self._db is None:
                    self._db = _open(self.path, self._timeout)
                with transaction(self._db):
                    return work(self._db)
            except (sqlite3.Error, OSError) as error:
                raise PipelineError(f"{self.path}: {error}; what was saved before is intact") from error


def _open(path: Path, timeout: float) -> sqlite3.Connection:
    make_private(path.parent)
    with suppress(FileExistsError):  # nobody else may read it; SQLite gives its -wal and -shm the same mode
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    db = sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)
    with ExitStack() as undo:
        undo.callback(db.close)
        _prepare(db, path)
        undo.pop_all()
    return db


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    owner, version = db.execute("PRAGMA application_id").fetchone()[0], db.execute("PRAGMA user_version").fetchone()[0]
    there = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if there and owner != APPLICATION_ID:
        raise PipelineError(f"{path}: the database belongs to something else; give runs a file of their own")
    if version > VERSION:
        raise PipelineError(f"{path}: written by a newer version; upgrade context-compiler")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    if not there:
        with transaction(db):
            if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                for statement in TABLES.split(";")[:-1]:
                    db.execute(statement)
                db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                db.execute(f"PRAGMA user_version = {VERSION}")


def _begin(db: sqlite3.Connection, *, info: RunInfo, contents: Mapping[str, str]) -> None:
    if db.execute("SELECT 1 FROM runs WHERE run = ?", (info.run_id,)).fetchone():
        raise PipelineError(f"there is a run {info.run_id!r} already: resume it, or give another id")
    db.execute("INSERT INTO runs VALUES (?, ?)", (info.run_id, json.dumps(info_document(info))))
    db.executemany("INSERT OR IGNORE INTO contents VALUES (?, ?)", list(contents.items()))


def _save(db: sqlite3.Connection, *, state: RunState, former: RunState | None) -> None:
    root = state.lineage.root_run_id
    if former is None:
        db.execute("DELETE FROM cells WHERE run = ?", (root,))
    gone, new = state_changes(former, state)
    db.executemany("DELETE FROM cells WHERE run = ? AND section = ? AND name = ?", [(root, *one) for one in gone])
    rows = [(root, *cell[:2], json.dumps(cell[2])) for cell in new]
    db.executemany("INSERT OR REPLACE INTO cells VALUES (?, ?, ?, ?)", rows)
    row = db.execute("SELECT info FROM runs WHERE run = ?", (root,)).fetchone()
    if row is None:
        raise PipelineError(f"there is no run {root!r} to save a state of")
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    info = update_info(parse_info(json.loads(row[0])), state, at)
    db.execute("UPDATE runs SET info = ? WHERE run = ?", (json.dumps(info_document(info)), root))
