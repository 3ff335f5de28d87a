"""Where the record's file is, how it is opened, and what its errors mean to the person who meets them."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
import zlib
from contextlib import ExitStack
from pathlib import Path

from context_compiler.errors import StoreError
from context_compiler.paths import made
from context_compiler.record.schema import MIGRATIONS, migrate, version_of

log = logging.getLogger("context_compiler.store")

NAME, FORMER_NAME = "context.db", "context_compiler.db"
GRACE_S = 1.0
"""How long opening waits for another process that is creating the same file."""

FAILURES = (StoreError, sqlite3.Error, OSError, ValueError, OverflowError, zlib.error)
"""What may go wrong with a file, from a full disk to a damaged row."""

REMEDIES = {
    sqlite3.SQLITE_BUSY: "another process is writing to it: try again, or give this process a file of its own",
    sqlite3.SQLITE_LOCKED: "another process is writing to it: try again, or give this process a file of its own",
    sqlite3.SQLITE_FULL: "make room on the disk, or prune the record",
    sqlite3.SQLITE_IOERR: "check the space, quota and state of the disk",
    sqlite3.SQLITE_READONLY: "open it without read_only, and check the permissions of the file and its folder",
    sqlite3.SQLITE_PERM: "check the permissions of the file and its folder",
    sqlite3.SQLITE_CANTOPEN: "check that the path is a file in a folder that may be written",
    sqlite3.SQLITE_NOTADB: "it is no record: move it away, or give another path",
    sqlite3.SQLITE_CORRUPT: "it is damaged: move it away, and a new one is made; `sqlite3 FILE .recover` may save much",
}


def locate(path: Path) -> Path:
    """The file to use: `path`, or beside it the one that bears the record's other name, if only that exists."""
    former = path.with_name(FORMER_NAME)
    return former if path.name == NAME and not path.exists() and former.exists() else path


def identity(path: Path) -> tuple[int, int] | None:
    """Which file it is that the path leads to now; None when there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def open_file(path: Path, *, read_only: bool, busy_timeout_ms: int) -> sqlite3.Connection:
    """Open a current record, making or bringing it up to date first unless `read_only`."""
    if path.is_dir():
        raise StoreError("is a folder; give the path of a file in it")
    with ExitStack() as undo:
        db = _reader(path) if read_only else _writer(path)
        undo.callback(db.close)
        db.row_factory = sqlite3.Row
        db.execute(f"PRAGMA busy_timeout = {busy_timeout_ms:d}")
        if read_only and version_of(db) < len(MIGRATIONS):
            raise StoreError("it holds no current record; open it once for writing")
        if not read_only:
            _prepare(db)
        undo.pop_all()
        return db


def open_memory() -> sqlite3.Connection:
    """A new record in this process alone, for any thread that takes its turn."""
    db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    db.row_factory = sqlite3.Row
    db.execute("PRAGMA foreign_keys = ON")
    db.execute("PRAGMA auto_vacuum = INCREMENTAL")
    migrate(db)
    return db


def explained(error: Exception, path: Path | str) -> StoreError:
    """What went wrong, where, and what to do about it."""
    if isinstance(error, StoreError):
        return StoreError(f"{path}: {error}")
    if isinstance(error, OSError):
        return StoreError(f"{path}: {error.strerror or error}; check that its folder exists and may be written")
    if isinstance(error, OverflowError):
        return StoreError(f"{path}: a number is larger than any row or count can be; give a smaller one")
    code = getattr(error, "sqlite_errorcode", None)
    remedy = "verify the record" if code is None else REMEDIES.get(code & 0xFF, "verify the record")
    return StoreError(f"{path}: {error}; {remedy}")


def _reader(path: Path) -> sqlite3.Connection:
    if not path.exists():
        raise StoreError("there is no record here; give the path of one, or run something that is recorded first")
    # SQLite puts its -wal and -shm beside a file even to read it; where it may not, nobody is writing either.
    sealed = not os.access(path.parent, os.W_OK) and not path.with_name(path.name + "-wal").exists()
    uri = path.as_uri() + ("?mode=ro&immutable=1" if sealed else "?mode=ro")
    return sqlite3.connect(uri, uri=True, isolation_level=None)


def _writer(path: Path) -> sqlite3.Connection:
    made(path.parent)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        pass
    else:
        log.info("recording requests in %s", path)
    return sqlite3.connect(path, isolation_level=None)


def _prepare(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA foreign_keys = ON")
    patience = time.monotonic() + GRACE_S
    while True:
        try:
            if version_of(db) == 0:  # which refuses what is not ours before anything is changed
                db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            migrate(db)
        except sqlite3.OperationalError as error:
            # Two processes that create one file at once can both be refused without any waiting.
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > patience:
                raise
            time.sleep(0.01)
        else:
            return
