"""Run storage in one SQLite file, for all processes of one machine."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sqlite3
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any

from context_compiler.errors import PipelineError
from context_compiler.paths import OpenDatabase, make_private
from context_compiler.pipeline.stores import Lost, is_owned, own_run
from context_compiler.pipeline.stores.sql import STATEMENTS, VERSION, SQLRuns, Statement
from context_compiler.record.background import hold_at_fork
from context_compiler.record.rows import transaction

log = logging.getLogger("context_compiler.pipeline")

APPLICATION_ID = 0x63747872  # "ctxr"
NOW = "((julianday('now') - 2440587.5) * 86400.0)"
"""Seconds since 1970, by the clock of this machine."""


class SQLiteDatabase:
    """Transactions on one SQLite file, which several processes may use at once; opened at first use."""

    def __init__(self, path: Path, *, busy_timeout: float) -> None:
        self.path, self._timeout = path, busy_timeout
        self._lock = Lock()
        hold_at_fork(self._lock, self, SQLiteDatabase._disconnect)
        self._db: sqlite3.Connection | None = None
        self._opened: OpenDatabase | None = None

    @property
    def name(self) -> str:
        """Path of the file."""
        return str(self.path)

    async def transact(self, *statements: Statement) -> list[Sequence[Sequence[Any]]]:
        """Execute statements in one transaction."""
        # In a thread, because it may have to wait for another process. A cancelled caller waits for the thread, because
        # nothing may be written after somebody else owns the run, or after the file is closed.
        working = asyncio.create_task(asyncio.to_thread(self._transact, statements))
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            await asyncio.gather(working, return_exceptions=True)
            raise

    def _transact(self, statements: Sequence[Statement]) -> list[Sequence[Sequence[Any]]]:
        with self._lock:
            try:
                db = self._connect()
                with transaction(db):
                    return [_execute(db, statement) for statement in statements]
            except (sqlite3.Error, OSError, ValueError) as error:  # ValueError: the file name is invalid
                advice = "restore a backup" if _is_damage(error) else "what was saved before is intact"
                raise PipelineError(f"{self.path}: {error}; {advice}") from error

    def _connect(self) -> sqlite3.Connection:
        """Return the connection, reopened if the file was deleted or replaced."""
        if self._db is not None and self._opened is not None and self._opened.gone():
            self._disconnect()
            self._opened.remove_log()
        if self._db is None:
            self._db = _open(self.path, self._timeout)
            self._opened = OpenDatabase.at(self.path)
        return self._db

    async def empty_log(self) -> bool:
        """Rewrite the file without deleted rows, and empty SQLite's log; False while another process uses the file.

        This is needed because secure deletion does not overwrite the copies that SQLite leaves when it moves a row.
        """
        return await asyncio.to_thread(self._empty_log)

    def _empty_log(self) -> bool:
        with self._lock:
            try:
                if self._db is not None:
                    self._db.execute("VACUUM")
                return self._db is None or not self._db.execute("PRAGMA wal_checkpoint (TRUNCATE)").fetchone()[0]
            except sqlite3.OperationalError:  # another process is writing
                return False

    async def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._disconnect()

    def _disconnect(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close()


def _is_damage(error: Exception) -> bool:
    """True if an error means that the file itself is damaged, or is no database."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _decode(text: bytes) -> str:
    """Decode stored text so that one damaged row does not hide the others; its reader finds the damage."""
    return text.decode("utf-8", "surrogateescape")


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


def _open(path: Path, timeout: float) -> sqlite3.Connection:
    """Open a file that only its owner may read, and create or upgrade its tables."""
    make_private(path.parent)
    with suppress(FileExistsError):  # SQLite gives -wal and -shm files the same mode
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    db = sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)
    db.text_factory = _decode
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
