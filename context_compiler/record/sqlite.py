"""The record in one SQLite file.

A request that was recorded survives the death of the process at any moment: each save is one transaction
of a write-ahead log that the operating system holds. It does not wait for the disk (`synchronous =
NORMAL`), so a power failure may take the last moments with it, and nothing else.
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
from context_compiler.record import layers, maintenance, read, write
from context_compiler.record.files import FAILURES, File, explained, hold_at_fork, locate, open_memory
from context_compiler.record.schema import version_of
from context_compiler.record.values import Chain, Compile, Cycle, Entry, Record, SessionInfo
from context_compiler.record.verify import verify

T = TypeVar("T")
DEFAULT_PATH = "system/context.db"
PAGE = 500
"""Rows an export fetches at once."""


class SQLStore(Protocol):
    """The methods of a store, each a function on an SQLite connection; `perform` says on which."""

    async def perform(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a function on the connection, whole."""
        ...

    async def close(self) -> None:
        """Let go of the connection, if there is anything to let go of."""
        ...

    async def save(self, entry: Entry) -> Record:
        """Keep an entry in one transaction and give back its record with `id` and `summary_id`."""
        return await self.perform(partial(write.save, entry=entry))

    async def archive(self, session_id: str, vault_name: str, raw: Chain) -> None:
        """Keep a raw history without a request, as the newest of its conversation."""
        await self.perform(partial(write.archive, session_id=session_id, vault_name=vault_name, raw=raw))

    async def find_compile(self, cache_key: str) -> tuple[int, Compile] | None:
        """The reusable compile with that cache key and its row number."""
        return await self.perform(partial(read.find_compile, cache_key=cache_key))

    async def find_cycle(self, tips: Sequence[str], config: str) -> Cycle | None:
        """The newest cycle of the last of `tips` that has one of this `config`."""
        return await self.perform(partial(read.find_cycle, tips=tips, config=config))

    async def chain(self, tip: str) -> list[bytes]:
        """The message bodies of the chain that ends in `tip`, oldest first."""
        return await self.perform(partial(read.chain, tip=tip))

    async def view(self, view_id: int) -> Record | None:
        """One request with its compile."""
        return await self.perform(partial(read.view, view_id=view_id))

    async def views(self, session_id: str | None = None, *, limit: int | None = None) -> list[Record]:
        """Requests, newest first; each with its compile."""
        return await self.perform(partial(read.views, session_id=session_id, limit=limit))

    async def summaries(self, session_id: str, *, limit: int | None = None) -> list[Compile]:
        """Compiles of a session, newest first."""
        return await self.perform(partial(read.summaries, session_id=session_id, limit=limit))

    async def sessions(self) -> list[SessionInfo]:
        """Every conversation, the one used last first."""
        return await self.perform(read.sessions)

    async def transcript(self, session_id: str) -> list[bytes]:
        """The bodies of a session's raw history as last seen; empty when it is unknown."""
        return await self.perform(partial(read.transcript, session_id=session_id))

    async def layers(self, session_id: str, vault_name: str = "") -> tuple[str, int] | None:
        """The newest state of a session's layers and its version; None where it has none."""
        return await self.perform(partial(layers.load, session_id=session_id, vault_name=vault_name))

    async def save_layers(self, session_id: str, vault_name: str, state: str, *, after: int) -> int:
        """Keep a state of a session's layers in place of version `after`; its own version."""
        given = {"session_id": session_id, "vault_name": vault_name, "state": state, "after": after}
        return await self.perform(partial(layers.keep, **given))

    async def delete(self, session_id: str) -> int:
        """Remove a conversation and everything only it used; the number of requests removed."""
        return await self.perform(partial(maintenance.delete, session_id=session_id))

    async def prune(self, *, older_than_days: float | None = None, keep_last: int | None = None) -> int:
        """Remove old requests; no kept chain is ever broken."""
        return await self.perform(partial(maintenance.prune, older_than_days=older_than_days, keep_last=keep_last))

    async def verify(self) -> tuple[str, ...]:
        """Every defect found by deriving each name again from what reading returns; empty when sound."""
        return await self.perform(verify)


class SQLiteStore(SQLStore):
    """A store in one file, for many tasks, event loops and processes at once.

    The file is opened at first use and made if need be; `close` lets go of it, and the next use opens it
    again. A program that never closes its store ends all the same.

    Args:
        path: the file. Where `context.db` is absent and `context_compiler.db` stands beside it, that one is used.
        read_only: look only; nothing is made, and a missing file is an error.
        busy_timeout_ms: how long a save waits for another process that is writing, in milliseconds.

    Raises:
        StoreError: from every method, with the path and what to do, when the file cannot be used.
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
        """Run a function on the file, whole: one of this store, or of another room that keeps its tables here."""
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
        """Let go of the file; the store opens it again when it is used again."""
        with self._explaining():
            await self._file.close()

    @contextmanager
    def _explaining(self) -> Generator[None]:
        try:
            yield
        except FAILURES as error:
            raise explained(error, locate(self.path)) from error


class MemoryStore(SQLStore):
    """A store without a file: for tests, for trials, and where nothing may be left behind.

    It holds what it is given until it is pruned or dropped. Its work is done where it is asked for, because there is
    no disk to wait for: it has no thread and needs no closing.
    """

    def __init__(self) -> None:
        self._db = open_memory()
        self._lock = RLock()
        finalize(self, self._db.close)
        hold_at_fork(self._lock)

    def __repr__(self) -> str:
        return "MemoryStore()"

    async def perform(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a function on the connection, whole."""
        with self._lock:
            try:
                return work(self._db)
            except FAILURES as error:
                raise explained(error, "the record in memory") from error

    async def export(self) -> AsyncGenerator[Mapping[str, object]]:
        """Every row as it stood when this began, ready for JSON."""
        for row in await self.perform(lambda db: list(read.export(db))):
            yield row

    async def close(self) -> None:
        """Nothing to let go of: what is remembered stays."""
