"""The SQLite file of a record: its location, its connection and its errors.

All event loops of a process share one connection per store. The connection belongs to the background loop, and
aiosqlite runs its work on a separate thread. Connections are closed before a fork and at exit.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sqlite3
import time
import zlib
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import aiosqlite

from context_compiler.errors import ContextCompilerError, StoreError
from context_compiler.paths import OpenDatabase, file_identity, make_private, write_ahead_log
from context_compiler.record.background import Background, current, retrieve_error, submit
from context_compiler.record.rows import BrokenReference
from context_compiler.record.schema import create, version_of
from context_compiler.record.sqlite import SQLiteDatabase, decode_leniently

T = TypeVar("T")
log = logging.getLogger("context_compiler.store")

NAME, OTHER_NAME = "context.db", "context_compiler.db"
DEFAULT_PATH = "system/context.db"
BUSY_TIMEOUT_MS = 5_000
"""Default milliseconds that a save waits while another process writes; the same as for PostgreSQL."""
IDLE_S = 2.0
"""Seconds after which a file that nobody uses is closed. Opening and closing one for every run would take half of the
time that recording a short request takes."""
GRACE_S = 1.0
"""Seconds that opening waits while another process creates the same file."""
FAILURES = (StoreError, sqlite3.Error, OSError, ValueError, OverflowError, zlib.error)
"""Errors that work on a file may raise, from a full disk to a damaged row."""

REMEDIES = {
    sqlite3.SQLITE_BUSY: "another process is writing to it: try again, or give this process a file of its own",
    sqlite3.SQLITE_LOCKED: "another process is writing to it: try again, or give this process a file of its own",
    sqlite3.SQLITE_FULL: "make room on the disk, or prune the record",
    sqlite3.SQLITE_IOERR: "check the space, quota and state of the disk",
    sqlite3.SQLITE_READONLY: "open it without read_only, and check the permissions of the file and its folder",
    sqlite3.SQLITE_PERM: "check the permissions of the file and its folder",
    sqlite3.SQLITE_CANTOPEN: "check that the path is a file in a writable folder",
    sqlite3.SQLITE_NOTADB: "it is not a record: move it away, or give another path",
    sqlite3.SQLITE_CORRUPT: "it is damaged: move it away to start over; `sqlite3 FILE .recover` may rescue most of it",
}


def locate(path: Path) -> Path:
    """Return the file to use: `path`, or for `context.db` the `context_compiler.db` beside it if only that exists."""
    other = path.with_name(OTHER_NAME)
    return other if path.name == NAME and file_identity(path) is None and file_identity(other) is not None else path


def other_records(path: Path) -> list[str]:
    """Records that may be meant, in case a path is mistyped: the default one, and those in the same folder."""
    default = Path(DEFAULT_PATH)
    others = [default, *sorted(path.parent.glob("*.db"))]
    records = (file for file in dict.fromkeys(others) if file.absolute() != path.absolute() and _is_record(file))
    return [str(file) for file in islice(records, 3)]


def _is_record(path: Path) -> bool:
    try:
        open_file(path.absolute(), read_only=True, busy_timeout_ms=0).close()
    except FAILURES:
        return False
    return True


def explain(error: Exception, path: Path | str) -> StoreError:
    """Convert an error to a StoreError that names the place and a remedy."""
    if isinstance(error, StoreError):
        return type(error)(f"{path}: {error}")
    if isinstance(error, FileExistsError | NotADirectoryError):
        return StoreError(f"{path}: a folder of this path is a file; give another path")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreError(f"{path}: {error.strerror}; {REMEDIES[sqlite3.SQLITE_FULL]}")
    if isinstance(error, OSError):
        return StoreError(f"{path}: {error.strerror or error}; check that its folder exists and may be written")
    if isinstance(error, OverflowError):
        return StoreError(f"{path}: a number is larger than any row or count can be; give a smaller one")
    if isinstance(error, sqlite3.IntegrityError):
        return BrokenReference(f"{path}: {error}; verify the record")
    code = getattr(error, "sqlite_errorcode", None)
    remedy = "verify the record" if code is None else REMEDIES.get(code & 0xFF, "verify the record")
    return StoreError(f"{path}: {error}; {remedy}")


class Job(str, Generic[T]):
    """A function in the guise of an SQL script, because aiosqlite passes a script to its connection unchanged."""

    work: Callable[[FileDatabase], T]
    value: T

    def __new__(cls, work: Callable[[FileDatabase], T]) -> Job[T]:
        """Wrap a function that `FileDatabase` will run."""
        job = super().__new__(cls)
        job.work = work
        return job


class FileDatabase(SQLiteDatabase):
    """A connection that runs a `Job` like a script: uninterrupted, on the connection's own thread."""

    def executescript(self, sql_script: str, /) -> sqlite3.Cursor:
        """Run a script, or run a `Job` and store its result in the job."""
        if not isinstance(sql_script, Job):
            return super().executescript(sql_script)
        job = cast("Job[Any]", sql_script)
        job.value = job.work(self)
        return self.cursor()


class File:
    """A file with one connection that runs one job at a time, and is closed when idle; `SQLiteStore` has the arguments.

    If it `stays_open`, as an open cursor needs it, it is closed by `close` alone.
    """

    def __init__(self, path: Path, *, read_only: bool, busy_timeout_ms: int, stays_open: bool = False) -> None:
        self.path = path
        self.read_only = read_only
        self.busy_timeout_ms = busy_timeout_ms
        self._home: Background | None = None
        self._lock = asyncio.Lock()
        self._connection: aiosqlite.Connection | None = None
        self._opened: OpenDatabase | None = None
        self._stays_open = stays_open
        self._used = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None

    def locate(self) -> Path:
        """Return the path of the file to use."""
        return locate(self.path)

    def connect(self, path: Path) -> FileDatabase:
        """Open the file, and create it first if needed."""
        return open_file(path, read_only=self.read_only, busy_timeout_ms=self.busy_timeout_ms)

    async def perform(self, work: Callable[[FileDatabase], T]) -> T:
        """Run a function on the connection; a cancelled caller still waits until it ends."""
        return await submit(partial(self._perform, work))

    async def close(self) -> None:
        """Close the file; the next use opens it again."""
        if current() is not None:
            await submit(self._close)

    def release(self) -> None:
        """Close the file once the work in progress has ended, without waiting for that."""
        home = current()
        if home is not None and self in home.open:
            with suppress(RuntimeError):  # the loop has just ended and closed every file
                home.start(self._close, retrieve_error)

    async def _perform(self, work: Callable[[FileDatabase], T], home: Background) -> T:
        async with self._locked(home):
            connection = await self._connected(home)
            job = Job(work)
            try:
                await connection.executescript(job)
            except sqlite3.Error:
                with suppress(sqlite3.Error):
                    await self._disconnect(home)  # never reuse a connection that failed
                raise
            loop = asyncio.get_running_loop()
            self._used = loop.time()
            if self._idle_timer is None and not self._stays_open:  # one timer serves many uses
                self._idle_timer = loop.call_later(IDLE_S, self._close_idle, home)
            return job.value

    def _close_idle(self, home: Background) -> None:
        """Close the file once nobody has used it for `IDLE_S`."""
        if self._home is not home:
            return
        loop = asyncio.get_running_loop()
        due = self._used + IDLE_S
        if self._lock.locked() or due > loop.time():
            self._idle_timer = loop.call_later(max(due - loop.time(), IDLE_S / 2), self._close_idle, home)
        else:
            self._idle_timer = None
            home.start(self._close, retrieve_error)

    async def leave(self, home: Background) -> None:
        """Close the file, because the background loop is ending."""
        with suppress(sqlite3.Error):
            await self._close(home)

    async def _close(self, home: Background) -> None:
        async with self._locked(home):
            await self._disconnect(home)

    def _locked(self, home: Background) -> asyncio.Lock:
        """Return the lock of this file; a new one if the background loop has been replaced."""
        if self._home is not home:
            self._home, self._lock, self._connection, self._idle_timer = home, asyncio.Lock(), None, None
        return self._lock

    async def _connected(self, home: Background) -> aiosqlite.Connection:
        """Return the connection; reopen it if the file has been removed or replaced."""
        if self._connection is not None and self._opened is not None:
            if not self._opened.gone():
                return self._connection
            await self._disconnect(home)
            if not self.read_only:
                self._opened.remove_log()
        path, failures = self.locate(), list[Exception]()
        self._connection = await aiosqlite.Connection(partial(self._open, path, failures), 64)
        home.open.add(self)
        if failures:
            await self._disconnect(home)
            raise failures[0]
        self._opened = OpenDatabase.at(path)
        return self._connection

    def _open(self, path: Path, failures: list[Exception]) -> FileDatabase:
        """Open the file, or an empty database if that fails, because aiosqlite ends its thread only for an open one."""
        try:
            return self.connect(path)
        except (ContextCompilerError, *FAILURES) as error:
            failures.append(error)
            return sqlite3.connect(":memory:", factory=FileDatabase)

    async def _disconnect(self, home: Background) -> None:
        connection, self._connection = self._connection, None
        home.open.discard(self)
        if connection is not None:
            await connection.close()


def open_file(path: Path, *, read_only: bool, busy_timeout_ms: int) -> FileDatabase:
    """Open a record; unless `read_only`, create it first if there is none."""
    if path.is_dir():
        raise StoreError("is a folder; give the path of a file in it")
    with ExitStack() as undo:
        db = _reader(path) if read_only else _writer(path)
        undo.callback(db.close)
        db.execute(f"PRAGMA busy_timeout = {busy_timeout_ms:d}")
        if version_of(db) == 0 and read_only:
            raise StoreError("it contains no record yet; open it once for writing")
        db.row_factory = sqlite3.Row
        if read_only:
            db.text_factory = decode_leniently  # a damaged text then spoils only the values that contain it
        else:
            _prepare(db)
        undo.pop_all()
        return db


def _reader(path: Path) -> FileDatabase:
    if not path.exists():
        others = f", such as {' or '.join(paths)}" if (paths := other_records(path)) else ""
        raise StoreError(f"there is no record here; name one with --db{others}, or run `context-compiler demo`")
    # SQLite creates -wal and -shm beside a file even to read it; if the folder is read-only, nobody writes the file.
    is_read_only = not os.access(path.parent, os.W_OK) and not write_ahead_log(path).exists()
    uri = path.as_uri() + ("?mode=ro&immutable=1" if is_read_only else "?mode=ro")
    return sqlite3.connect(uri, uri=True, isolation_level=None, factory=FileDatabase)


def _writer(path: Path) -> FileDatabase:
    make_private(path.parent)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        pass
    else:
        log.info("recording requests in %s", path)
    return sqlite3.connect(path, isolation_level=None, factory=FileDatabase)


def _prepare(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA foreign_keys = ON")
    db.execute("PRAGMA secure_delete = ON")  # in every write: SQLite leaves copies of rows that are deleted later
    patience = time.monotonic() + GRACE_S
    while True:
        try:
            if version_of(db) == 0:  # it raises for a file of another program, before anything is changed
                db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            create(db)
        except sqlite3.OperationalError as error:
            # If two processes create a file at the same time, SQLite may refuse both without waiting for the timeout.
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > patience:
                raise
            time.sleep(0.01)
        else:
            return
