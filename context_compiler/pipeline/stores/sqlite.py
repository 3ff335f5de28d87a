"""Run storage in one SQLite file, for all processes of one machine."""

from __future__ import annotations

import logging
import os
import re
import sqlite3
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any
from weakref import finalize

from context_compiler.errors import PipelineError, RunOwnedError
from context_compiler.paths import make_private
from context_compiler.pipeline.stores import Lost, RunStore, is_owned, own_run
from context_compiler.pipeline.stores.sql import STATEMENTS, VERSION, SQLRuns, Statement
from context_compiler.record.files import File, FileDatabase
from context_compiler.record.rows import days_ago, transaction
from context_compiler.record.sqlite import decode_leniently

log = logging.getLogger("context_compiler.pipeline")

APPLICATION_ID = 0x63747872  # "ctxr"
NOW = "((julianday('now') - 2440587.5) * 86400.0)"
"""Seconds since 1970, by the clock of this machine."""


class SQLiteDatabase(File):
    """Transactions on one SQLite file, which several processes may use at once; opened at first use."""

    def __init__(self, path: Path, *, busy_timeout: float) -> None:
        super().__init__(path, read_only=False, busy_timeout_ms=round(1_000 * busy_timeout))

    @property
    def name(self) -> str:
        """Path of the file."""
        return str(self.path)

    def locate(self) -> Path:
        """Return the path of the file."""
        return self.path

    def connect(self, path: Path) -> FileDatabase:
        """Open the file, and create its tables if it is new."""
        return _open(path, self.busy_timeout_ms)

    async def transact(self, *statements: Statement) -> list[Sequence[Sequence[Any]]]:
        """Execute statements in one transaction."""

        def work(db: sqlite3.Connection) -> list[Sequence[Sequence[Any]]]:
            with transaction(db):
                return [_execute(db, statement) for statement in statements]

        try:
            return await self.perform(work)
        except (sqlite3.Error, OSError, ValueError) as error:  # ValueError: the file name is invalid
            damaged = getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
            advice = "restore a backup" if damaged else "what was saved before is intact"
            raise PipelineError(f"{self.path}: {error}; {advice}") from error

    async def empty_log(self) -> bool:
        """Rewrite the file without deleted rows, and empty SQLite's log; False while another process uses the file.

        This is needed because secure deletion does not overwrite the copies that SQLite leaves when it moves a row.
        """

        def work(db: sqlite3.Connection) -> bool:
            db.execute("VACUUM")
            return not db.execute("PRAGMA wal_checkpoint (TRUNCATE)").fetchone()[0]

        try:
            return await self.perform(work)
        except sqlite3.OperationalError:  # another process is writing
            return False


def _execute(db: sqlite3.Connection, statement: Statement) -> Sequence[Sequence[Any]]:
    text = re.sub(r"\bNOW\b", NOW, statement.text)
    if statement.rows is not None:
        db.executemany(text, statement.rows)
        return ()
    rows = db.execute(text, statement.args).fetchall()
    if statement.missing is not None and not rows:
        raise statement.missing
    return rows


class SQLiteRuns(SQLRuns):
    """Stores runs in one file. The owner of a run holds a file lock, which is released if its process dies."""

    def __init__(self, path: str | Path, *, busy_timeout: float = 5.0) -> None:
        self.path = Path(path).expanduser().absolute()
        self._file = SQLiteDatabase(self.path, busy_timeout=busy_timeout)
        finalize(self, self._file.release).atexit = False  # the background loop closes all files at exit
        super().__init__(self._file)

    @asynccontextmanager
    async def own(self, run_id: str) -> AsyncGenerator[Lost]:
        """Own a run until the context exits."""
        with own_run(self._lock_path(run_id), run_id):
            self.forget(run_id)
            try:
                yield None
            finally:
                self.forget(run_id)

    async def delete(self, run_id: str) -> bool:
        """Delete a run and its children, and erase their bytes from the file."""
        removed = await self.remove(run_id)
        if removed:
            await self.overwrite()
        return removed

    async def remove(self, run_id: str) -> bool:
        """Delete a run and its children; their bytes may remain in the file until `overwrite`."""
        return await super().delete(run_id)

    async def overwrite(self) -> None:
        """Rewrite the file without the deleted runs."""
        if not await self._file.empty_log():
            log.warning("deleted runs can only be erased from %s when no other process reads or writes it", self.path)

    async def owned(self, run_ids: Sequence[str]) -> frozenset[str]:
        """Return which of these runs a live process owns."""
        return frozenset(run_id for run_id in run_ids if is_owned(self._lock_path(run_id)))

    def _lock_path(self, run_id: str) -> Path:
        mark = blake2b(run_id.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        return self.path.with_name(f"{self.path.name}-{mark}.lock")


async def prune_runs(store: RunStore, *, older_than_days: float) -> list[str]:
    """Delete runs that ended more than `older_than_days` ago, with their children.

    Returns:
        Ids of the deleted runs, without the ids of their children.
    """
    before, infos = days_ago(older_than_days), await store.runs()
    run_ids = {info.run_id for info in infos}
    old = [info for info in infos if info.status in ("success", "fail") and info.updated_at < before]
    delete = store.remove if isinstance(store, SQLiteRuns) else store.delete
    removed: list[str] = []
    try:
        for name in [info.run_id for info in old if info.parent not in run_ids]:
            with suppress(RunOwnedError):  # its owner is still finishing it
                removed += [name] if await delete(name) else []
    finally:
        if removed and isinstance(store, SQLiteRuns):
            await store.overwrite()  # once for all of them
    return removed


def _open(path: Path, busy_timeout_ms: int) -> FileDatabase:
    """Open a file that only its owner may read, and create or upgrade its tables."""
    make_private(path.parent)
    with suppress(FileExistsError):  # SQLite gives -wal and -shm files the same mode
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    db = sqlite3.connect(path, timeout=busy_timeout_ms / 1_000, isolation_level=None, factory=FileDatabase)
    db.text_factory = decode_leniently  # one damaged row does not hide the others; its reader finds the damage
    with ExitStack() as undo:
        undo.callback(db.close)
        _prepare(db, path)
        undo.pop_all()
    return db


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    """Configure a connection, and create the tables of a new file.

    Raises:
        PipelineError: the file belongs to another application, or was written by another version.
    """
    owner, version = db.execute("PRAGMA application_id").fetchone()[0], db.execute("PRAGMA user_version").fetchone()[0]
    tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if tables and owner != APPLICATION_ID:
        raise PipelineError(f"{path}: the database belongs to another application; give runs a separate file")
    if version not in (0, VERSION):
        raise PipelineError(
            f"{path}: the runs were written by another version of context-compiler (schema {version}, this one knows"
            f" {VERSION}); move it away or give another file to begin a new one"
        )
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute("PRAGMA secure_delete = ON")
    if version == 0:
        with transaction(db):
            if db.execute("PRAGMA user_version").fetchone()[0] == 0:  # no other process has created them meanwhile
                for statement in STATEMENTS:
                    db.execute(statement)
                db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                db.execute(f"PRAGMA user_version = {VERSION}")
