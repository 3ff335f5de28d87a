"""The record in SQLite, in a file or in memory.

A saved request survives the death of the process at any moment: each save is one transaction in a write-ahead log.
It does not wait for the disk (`synchronous = NORMAL`), so a power failure may lose the last moments, and nothing else.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from threading import RLock
from typing import Protocol, TypeVar
from weakref import finalize

from context_compiler.errors import StoreError
from context_compiler.record import maintenance, read, sessions, write
from context_compiler.record.files import FAILURES, File, explain, hold_at_fork, locate, open_memory
from context_compiler.record.schema import version_of
from context_compiler.record.values import Chain, Compile, Cycle, Entry, Record, SessionInfo

T = TypeVar("T")
DEFAULT_PATH = "system/context.db"
PAGE = 500
"""Rows that an export fetches at once."""


class SQLStore(Protocol):
    """The methods of a store as functions on the connection that `perform` gives them."""

    async def perform(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a function on the connection, without interruption."""
        ...

    async def close(self) -> None:
        """Close the connection, if there is one; it opens again on use."""
        ...

    async def save(self, entry: Entry) -> Record:
        """Save an entry in one transaction and return its record with `id` and `summary_id`."""
        return await self.perform(partial(write.save, entry=entry))

    async def archive(self, session_id: str, vault_name: str, raw: Chain) -> None:
        """Save a raw history without a request, as the newest of its conversation."""
        await self.perform(partial(write.archive, session_id=session_id, vault_name=vault_name, raw=raw))

    async def find_compile(self, cache_key: str) -> tuple[int, Compile] | None:
        """The reusable compile with that cache key and its row number."""
        return await self.perform(partial(read.find_compile, cache_key=cache_key))

    async def find_cycle(self, tips: Sequence[str], config: str) -> Cycle | None:
        """The newest cycle of the last of `tips` that has one of this `config`."""
        return await self.perform(partial(read.find_cycle, tips=tips, config=config))

    async def chain(self, tip: str) -> list[bytes]:
        """Message bodies of the chain that ends in `tip`, oldest first."""
        return await self.perform(partial(read.chain, tip=tip))

    async def view(self, view_id: int) -> Record | None:
        """One request with its compile."""
        return await self.perform(partial(read.view, view_id=view_id))

    async def views(self, session_id: str | None = None, *, limit: int | None = None) -> list[Record]:
        """Requests with their compiles, newest first."""
        return await self.perform(partial(read.views, session_id=session_id, limit=limit))

    async def summaries(self, session_id: str, *, limit: int | None = None) -> list[Compile]:
        """Compiles of a session, newest first."""
        return await self.perform(partial(read.summaries, session_id=session_id, limit=limit))

    async def sessions(self) -> list[SessionInfo]:
        """Every conversation, most recently used first."""
        return await self.perform(read.sessions)

    async def transcript(self, session_id: str) -> list[bytes]:
        """Message bodies of a session's raw history as last seen; empty if unknown."""
        return await self.perform(partial(read.transcript, session_id=session_id))

    async def layers(self, session_id: str, vault_name: str = "") -> tuple[str, int] | None:
        """The newest layers of a session as JSON text, and their version; None if it has none."""
        return await self.perform(partial(sessions.load_layers, session_id=session_id, vault_name=vault_name))

    async def save_layers(self, session_id: str, vault_name: str, state: str, *, after: int) -> int:
        """Replace version `after` of a session's layers and return the new version."""
        given = {"session_id": session_id, "vault_name": vault_name, "state": state, "after": after}
        return await self.perform(partial(sessions.save_layers, **given))

    async def delete(self, session_id: str) -> int:
        """Remove a conversation and everything only it used; the number of requests removed."""
        return await self.perform(partial(maintenance.delete, session_id=session_id))

    async def prune(self, *, older_than_days: float | None = None, keep_last: int | None = None) -> int:
        """Remove old requests; no kept chain is ever broken."""
        return await self.perform(partial(maintenance.prune, older_than_days=older_than_days, keep_last=keep_last))

    async def verify(self) -> tuple[str, ...]:
        """Every defect found by deriving each name again from what reading returns; empty if sound."""
        return await self.perform(maintenance.verify)


class SQLiteStore(SQLStore):
    """A store in one file, for many tasks, event loops and processes at once.

    The file is opened, and made if need be, on first use, and again on the first use after `close`. A store that is
    never closed does not keep a program alive.

    Args:
        path: The file. If it is an absent `context.db`, `context_compiler.db` beside it is used if that exists.
        read_only: Never write; a missing file is an error.
        busy_timeout_ms: Milliseconds that a save waits for another process that is writing.

    Raises:
        StoreError: From every method, with path and remedy, if the file cannot be used.
    """

    def __init__(self, path: str | Path = DEFAULT_PATH, *, read_only: bool = False, busy_timeout_ms: int = 250) -> None:
        if str(path) == ":memory:":
            raise StoreError("':memory:' is no file; use MemoryStore()")
        self.path = Path(os.path.abspath(Path(path).expanduser()))
        self.read_only = read_only
        self.busy_timeout_ms = busy_timeout_ms
        self._file = File(self.path, read_only=read_only, busy_timeout_ms=busy_timeout_ms)
        finalize(self, self._file.release).atexit = False  # every file is closed at exit

    def __repr__(self) -> str:
        return f"SQLiteStore({str(self.path)!r}{', read_only=True' if self.read_only else ''})"

    async def perform(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a function on the connection, without interruption; memories of the same file use it too."""
        with self._explaining():
            return await self._file.perform(work)

    async def export(self) -> AsyncGenerator[Mapping[str, object]]:
        """Every row as of now, read on a second connection, so that saving goes on meanwhile."""
        await self.perform(version_of)
        file = File(self.path, read_only=True, busy_timeout_ms=self.busy_timeout_ms)
        with self._explaining():
            try:
                found = await file.perform(read.export)
                try:
                    while page := await file.perform(lambda _: list(islice(found, PAGE))):
                        for row in page:
                            yield row
                finally:
                    await file.perform(lambda _: found.close())
            finally:
                await file.close()

    async def close(self) -> None:
        """Close the file; it opens again on use."""
        with self._explaining():
            await self._file.close()

    @contextmanager
    def _explaining(self) -> Generator[None]:
        try:
            yield
        except FAILURES as error:
            raise explain(error, locate(self.path)) from error


class MemoryStore(SQLStore):
    """A store without a file: for tests, trials, and data that may not be left behind.

    It grows until it is pruned. Its methods block their event loop for the milliseconds they take, as there is no disk
    to wait for; so it has no thread and needs no closing.
    """

    def __init__(self) -> None:
        self._db = open_memory()
        self._lock = RLock()
        finalize(self, self._db.close)
        hold_at_fork(self._lock)

    def __repr__(self) -> str:
        return "MemoryStore()"

    async def perform(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a function on the connection, without interruption."""
        with self._lock:
            try:
                return work(self._db)
            except FAILURES as error:
                raise explain(error, "the record in memory") from error

    async def export(self) -> AsyncGenerator[Mapping[str, object]]:
        """Every row as of now, ready for JSON."""
        for row in await self.perform(lambda db: list(read.export(db))):
            yield row

    async def close(self) -> None:
        """Do nothing: the record stays in memory."""
