"""One file, one thread: whole functions run there, so no lock is held while an event loop is busy elsewhere."""

from __future__ import annotations

import asyncio
import atexit
import sqlite3
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import aiosqlite

from context_compiler.record.files import identity, open_file

T = TypeVar("T")
PATIENCE_S = 2.0
"""How long closing waits for a thread; a transaction takes far less, and nothing is lost when it does not."""


class Connection(aiosqlite.Connection):
    """An aiosqlite connection that runs whole transactions on its thread and never keeps a process alive.

    Args:
        path: the file.
        read_only: whether it is opened for looking only.
        busy_timeout_ms: how long, in milliseconds, a statement waits for another writer.
    """

    def __init__(self, path: Path, *, read_only: bool, busy_timeout_ms: int) -> None:
        super().__init__(partial(open_file, path, read_only=read_only, busy_timeout_ms=busy_timeout_ms), 64)
        self._thread.daemon = True
        self.path = path
        self.read_only = read_only
        self._log = path.with_name(path.name + "-wal")
        self._files: tuple[tuple[int, int] | None, tuple[int, int] | None] = (None, None)

    async def open(self) -> None:
        """Open the file; StoreError, sqlite3.Error or OSError when that fails."""
        opening: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._thread.start()
        self._queue(opening, self._opened)
        try:
            await opening
            self._files = identity(self.path), identity(self._log)
        finally:
            if not opening.done() or opening.cancelled() or opening.exception() is not None:
                self.release()
                await self.ended()  # until then the thread still answers to this loop

    def _opened(self) -> None:
        """On the thread: what is opened is known at once, also when nobody waits for it any more."""
        self._connection = _open[self] = self._connector()

    def is_current(self) -> bool:
        """Whether the path still leads to the file that is open here."""
        return self._connection is not None and self._files[0] == identity(self.path)

    async def abandon(self) -> None:
        """Close a file that has been removed or replaced, and remove its log: a new file would take it for its own."""
        await self.close()
        if not self.read_only and self._files[1] is not None and self._files[1] == identity(self._log):
            self._log.unlink(missing_ok=True)

    async def perform(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` on the connection's thread. A cancelled caller leaves only when the work has ended."""
        try:
            return await self._run(work, self._conn)
        except asyncio.CancelledError:
            await self._run(_nothing)  # the queue is first in, first out
            raise

    def release(self) -> None:
        """Close the file once what is queued is done; needs no event loop and does not wait."""
        if self._thread.is_alive():
            self._queue(None, cast(Any, self).stop)  # on that thread `stop` finds no loop to answer to

    def finish(self) -> None:
        """Close the file and wait for it, but not for ever."""
        self.release()
        self._thread.join(PATIENCE_S)

    async def ended(self) -> None:
        """Wait for the thread to end, but not for ever."""
        patience = time.monotonic() + PATIENCE_S
        while self._thread.is_alive() and time.monotonic() < patience:
            await asyncio.sleep(0.001)

    def __del__(self) -> None:
        """Close what was dropped open, without a warning: closing is the store's duty, not its user's."""
        self.release()

    def _queue(self, answer: asyncio.Future[None] | None, work: Callable[[], object]) -> None:
        cast(Any, self)._tx.put_nowait((answer, work))

    async def _run(self, work: Callable[..., T], *args: Any) -> T:
        return await cast(Any, self)._execute(work, *args)  # aiosqlite leaves it untyped


_open: WeakKeyDictionary[Connection, sqlite3.Connection] = WeakKeyDictionary()
"""Holds each file a second time: else the garbage collector could find it unclosed before its owner closes it."""


def _nothing() -> None:
    return None


@atexit.register
def _close_all() -> None:
    for connection in list(_open):
        connection.finish()
