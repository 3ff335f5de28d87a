"""The `Store` protocol in four parts, and the record in SQLite: in a file, and in memory.

The conformance suite in `tests/record` defines what a store is; `SQLiteStore` and `MemoryStore` pass it. A saved
request survives the death of the process at any moment: each save is one transaction in a write-ahead log. It does not
wait for the disk (`synchronous = NORMAL`), so a power failure may lose the last moments, and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from datetime import datetime
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Protocol, Self, TypeVar, runtime_checkable
from weakref import finalize

from context_compiler.errors import StoreError
from context_compiler.paths import is_address, require_postgres
from context_compiler.record import conversations, maintenance, queries, sessions
from context_compiler.record.background import hold_at_fork
from context_compiler.record.database import Database, Moment
from context_compiler.record.files import BUSY_TIMEOUT_MS, FAILURES, File, explain, locate
from context_compiler.record.schema import version_of
from context_compiler.record.sqlite import open_memory
from context_compiler.record.values import (
    Action,
    Chain,
    Compile,
    Cycle,
    Entry,
    LayerPages,
    OwnerInfo,
    Record,
    SessionInfo,
    Tool,
    check_owner,
)

if TYPE_CHECKING:
    from context_compiler.record.postgres import PostgresStore

__all__ = [
    "Keeper",
    "Layered",
    "MemoryStore",
    "PagedLayers",
    "Reader",
    "Recorder",
    "SQLiteStore",
    "Steered",
    "Store",
    "Tenants",
    "open_store",
]


T = TypeVar("T")
DEFAULT_PATH = "system/context.db"
PAGE = 500
"""Rows that an export fetches at once."""


class Recorder(Protocol):
    """Methods on the path of a request. Append-only: saving an entry again is a no-op."""

    async def save(self, entry: Entry) -> Record:
        """Save an entry in one transaction and return its record with `id` and `summary_id`.

        Only messages of the two chains that are not stored yet are read and written. The same request (session, run,
        request index, raw tip and view tip) saved twice is one row. `summary_id` is the record's own, else the row of
        the entry's compile, or of a compile with the same answer that is stored under the same cache key already. Only
        a compile with status ok keeps its cache key, and only the first one under it. Row numbers rise from save to
        save, possibly with gaps.

        Raises:
            StoreError: It could not be saved; nothing of it was.
        """
        ...

    async def archive(self, session_id: str, vault_name: str, raw: Chain) -> None:
        """Save a raw history without a request, as the newest of its conversation.

        Raises:
            StoreError: It could not be saved; nothing of it was.
        """
        ...

    async def find_compile(self, cache_key: str) -> tuple[int, Compile] | None:
        """The reusable compile with that cache key and its row number."""
        ...

    async def find_cycle(self, tips: Sequence[str], config: str) -> Cycle | None:
        """The newest cycle of this `config` for the last of `tips` that has one: the longest known ancestor."""
        ...

    async def close(self) -> None:
        """Close connections; they open again on use."""
        ...


class Reader(Protocol):
    """Methods that read the record."""

    async def chain(self, tip: str) -> list[bytes]:
        """Message bodies of the chain that ends in `tip`, oldest first; StoreError if `tip` is unknown."""
        ...

    async def view(self, view_id: int) -> Record | None:
        """One request with its compile."""
        ...

    async def views(self, session_id: str | None = None, *, limit: int | None = None) -> list[Record]:
        """Requests with their compiles, newest first."""
        ...

    async def summaries(self, session_id: str, *, limit: int | None = None) -> list[Compile]:
        """Compiles of a session, newest first."""
        ...

    async def sessions(self) -> list[SessionInfo]:
        """Every conversation, most recently used first."""
        ...

    async def transcript(self, session_id: str, vault_name: str | None = None) -> list[bytes]:
        """Message bodies of a session's raw history as last seen; empty if unknown.

        If no vault is named and several have a session of that name, the most recently used one counts.
        """
        ...


class Layered(Protocol):
    """Methods for the layers of a session: entities, conversation and reasoning."""

    async def layers(self, session_id: str, vault_name: str = "") -> tuple[str, int] | None:
        """The newest layers of a session as JSON text, and their version; None if it has none."""
        ...

    async def save_layers(self, session_id: str, vault_name: str, state: str, *, after: int) -> int:
        """Replace version `after` (0 for none) of a session's layers and return the new version.

        Raises:
            StoreError: The newest version is another one, or saving failed; nothing has changed.
        """
        ...


@runtime_checkable
class PagedLayers(Protocol):
    """Methods for layers in parts, so that a turn reads and writes only what changed; a store may do without."""

    async def layer_pages(
        self, session_id: str, vault_name: str = "", *, known: LayerPages | None = None
    ) -> LayerPages | None:
        """The newest layers of a session in parts; None if it has none. What is as `known` is not read again."""
        ...

    async def save_layer_pages(
        self, session_id: str, vault_name: str, state: str, pages: Mapping[str, str], *, after: int
    ) -> int:
        """Replace version `after` (0 for none) of a session's layers and return the new version.

        Args:
            session_id: The session.
            vault_name: Its vault.
            state: JSON text that lists the names of the pages in `id_registry.pages`.
            pages: Text of every page by its name.
            after: The version that is replaced.

        Raises:
            StoreError: The newest version is another one, or saving failed; nothing has changed.
        """
        ...


@runtime_checkable
class Steered(Protocol):
    """Methods for what users do by hand: compile, undo, pin and unpin. A store without them keeps none of it."""

    async def actions(self, session_id: str, vault_name: str = "") -> list[Action]:
        """The actions on a conversation, oldest first."""
        ...

    async def save_action(
        self, session_id: str, vault_name: str, action: Action, *, after: int, compile: Compile | None = None
    ) -> Action:
        """Save an action, with the compile that it made, and return it with `number` and `summary_id`.

        A compile that an `undo` names by its `summary_id` is not found by `find_compile` any more.

        Raises:
            StoreError: The newest action has another number than `after`, or saving failed; nothing was saved.
        """
        ...

    async def save_compile(self, compile: Compile) -> int:
        """Save a compile that no request carries and no action made, and return its row number.

        Raises:
            StoreError: It could not be saved.
        """
        ...

    async def session_cycles(self, session_id: str, vault_name: str = "") -> list[Cycle]:
        """Every cycle of a conversation, oldest first."""
        ...


class Keeper(Protocol):
    """Methods that keep the record small and sound."""

    async def delete(self, session_id: str) -> int:
        """Remove a conversation and everything only it used; the number of requests removed.

        Messages and compiles that another conversation uses pass to that one.
        """
        ...

    async def prune(self, *, older_than_days: float | None = None, keep_last: int | None = None) -> int:
        """Remove old requests and everything that no remaining one needs; the number of requests removed.

        A request is removed if it is older than `older_than_days` *and* not among the newest `keep_last` of its
        session. A limit of None protects nothing; with neither limit, only unreferenced rows are removed. A session
        keeps its raw history, its newest cycle and the compiles of its remaining requests and turns; a session without
        remaining requests is removed too. No remaining chain is ever broken.
        """
        ...

    async def verify(self) -> tuple[str, ...]:
        """Every defect found by deriving each name again from what reading returns; empty if sound."""
        ...

    def export(self) -> AsyncIterator[Mapping[str, object]]:
        """Every row as a JSON-ready mapping: its `table`, its columns, contents as text.

        A row comes after the rows it refers to. The search indexes are left out: they repeat the messages.
        """
        ...


@runtime_checkable
class Store(Recorder, Reader, Layered, Keeper, Protocol):
    """A store of the record."""


@runtime_checkable
class Tenants(Store, Protocol):
    """A store of many owners, each of whom sees, shares and removes only what is their own.

    A store is made for the owner ``""``, who has what nobody else has.
    """

    owner: str | None
    """Owner whose store this is; None is every owner, for those who operate it: such a store does not save."""

    def scoped(self, owner: str | None) -> Tenants:
        """The same store for another owner.

        Raises:
            SettingsError: No store can keep an owner of that name.
        """
        ...

    async def owners(self) -> list[OwnerInfo]:
        """Every owner that this store sees, by name."""
        ...

    async def erase(self) -> int:
        """Remove everything of the owner; the number of requests removed.

        Raises:
            StoreError: This store is of every owner, or removing failed; nothing was removed.
        """
        ...


def open_store(store: str | Path | Store | None, *, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> Store:
    """The store itself, or the one at a place, or one in memory for None; nothing is opened yet.

    A place is the path of an SQLite file, or the address of a PostgreSQL database (`postgresql://…`).

    Raises:
        SettingsError: It is an address, and what is needed for it is not installed.
    """
    if store is None:
        return MemoryStore()
    return open_place(store, busy_timeout_ms=busy_timeout_ms) if isinstance(store, str | Path) else store


def open_place(
    place: str | Path, *, read_only: bool = False, busy_timeout_ms: int = BUSY_TIMEOUT_MS
) -> SQLiteStore | PostgresStore:
    """The store at a place; an SQLite file waits `busy_timeout_ms` for another process that is writing."""
    if not is_address(place):
        return SQLiteStore(place, read_only=read_only, busy_timeout_ms=busy_timeout_ms)
    require_postgres()
    return import_module("context_compiler.record.postgres").PostgresStore(place, read_only=read_only)


def _for_owner(owner: str | None, tried: Moment | None, work: Callable[[Database], T], db: Database) -> T:
    """Run a function on a connection that belongs to one job at a time, for a store."""
    db.owner, db.tried = owner, tried
    return work(db)


@runtime_checkable
class SQLStore(Protocol):
    """The methods of a store as functions on the connection that `perform` gives them."""

    owner: str | None = ""
    """Owner whose store this is; None is every owner."""
    tried: Moment | None = None  # when its writes were; None is now
    _origin: object = None  # the store that this one was scoped from, which closes the connection of both

    @property
    def origin(self) -> object:
        """The store that was opened: the same for every owner."""
        return self._origin or self

    @property
    def place(self) -> str:
        """Place of the record, for messages: a path, or an address without its password."""
        ...

    def writer(self) -> SQLStore:
        """A store of the same record that writes, for the owner ``""``."""
        ...

    async def perform(self, work: Callable[[Database], T]) -> T:
        """Run a function on the connection, for the owner of this store and without interruption."""
        ...

    def scoped(self, owner: str | None) -> Self:
        """The same store for another owner; None is every owner."""
        other = copy(self)
        other.owner, other._origin = check_owner(owner), self._origin or self
        return other

    def late(self, tried: Moment) -> Self:
        """The same store for a write that was first tried then: refused if anything was removed from it since."""
        other = self.scoped(self.owner)
        other.tried = tried
        return other

    async def owners(self) -> list[OwnerInfo]:
        """Every owner that this store sees, by name."""
        return await self.perform(queries.owners)

    async def erase(self) -> int:
        """Remove everything of the owner; the number of requests removed."""
        return await self.perform(maintenance.erase)

    async def close(self) -> None:
        """Close the connection, if there is one; it opens again on use."""
        ...

    async def save(self, entry: Entry) -> Record:
        """Save an entry in one transaction and return its record with `id` and `summary_id`."""
        return await self.perform(partial(queries.save, entry=entry))

    async def archive(self, session_id: str, vault_name: str, raw: Chain) -> None:
        """Save a raw history without a request, as the newest of its conversation."""
        await self.perform(partial(queries.archive, session_id=session_id, vault_name=vault_name, raw=raw))

    async def find_compile(self, cache_key: str) -> tuple[int, Compile] | None:
        """The reusable compile with that cache key and its row number."""
        return await self.perform(partial(queries.find_compile, cache_key=cache_key))

    async def find_cycle(self, tips: Sequence[str], config: str) -> Cycle | None:
        """The newest cycle of the last of `tips` that has one of this `config`."""
        return await self.perform(partial(queries.find_cycle, tips=tips, config=config))

    async def chain(self, tip: str) -> list[bytes]:
        """Message bodies of the chain that ends in `tip`, oldest first."""
        return await self.perform(partial(queries.chain, tip=tip))

    async def view(self, view_id: int) -> Record | None:
        """One request with its compile."""
        return await self.perform(partial(queries.view, view_id=view_id))

    async def tools(self, view_id: int) -> tuple[Tool, ...] | None:
        """Tools and output schemas that a request was sent with; None if they are not on the record."""
        return await self.perform(partial(queries.tools, view_id=view_id))

    async def views(self, session_id: str | None = None, *, limit: int | None = None) -> list[Record]:
        """Requests with their compiles, newest first."""
        return await self.perform(partial(queries.views, session_id=session_id, limit=limit))

    async def summaries(self, session_id: str, *, limit: int | None = None) -> list[Compile]:
        """Compiles of a session, newest first."""
        return await self.perform(partial(queries.summaries, session_id=session_id, limit=limit))

    async def sessions(self) -> list[SessionInfo]:
        """Every conversation, most recently used first."""
        return await self.perform(queries.sessions)

    async def transcript(self, session_id: str, vault_name: str | None = None) -> list[bytes]:
        """Message bodies of a session's raw history as last seen; empty if unknown."""
        return await self.perform(partial(queries.transcript, session_id=session_id, vault_name=vault_name))

    async def layers(self, session_id: str, vault_name: str = "") -> tuple[str, int] | None:
        """The newest layers of a session as JSON text, and their version; None if it has none."""
        return await self.perform(partial(sessions.load_layers, session_id=session_id, vault_name=vault_name))

    async def save_layers(self, session_id: str, vault_name: str, state: str, *, after: int) -> int:
        """Replace version `after` of a session's layers and return the new version."""
        given = {"session_id": session_id, "vault_name": vault_name, "state": state, "after": after}
        return await self.perform(partial(sessions.save_layers, **given))

    async def layer_pages(
        self, session_id: str, vault_name: str = "", *, known: LayerPages | None = None
    ) -> LayerPages | None:
        """The newest layers of a session in parts; None if it has none. What is as `known` is not read again."""
        given = {"session_id": session_id, "vault_name": vault_name, "known": known}
        return await self.perform(partial(sessions.load_layer_pages, **given))

    async def save_layer_pages(
        self, session_id: str, vault_name: str, state: str, pages: Mapping[str, str], *, after: int
    ) -> int:
        """Replace version `after` of a session's layers and return the new version."""
        given = {"session_id": session_id, "vault_name": vault_name, "state": state, "pages": pages, "after": after}
        return await self.perform(partial(sessions.save_layers, **given))

    async def actions(self, session_id: str, vault_name: str = "") -> list[Action]:
        """The actions on a conversation, oldest first."""
        return await self.perform(partial(sessions.actions, session_id=session_id, vault_name=vault_name))

    async def announce_compile(
        self, session_id: str, vault_name: str, model: str, seconds: float
    ) -> tuple[int, datetime] | None:
        """Show that a model writes a summary, for at most that long; what `withdraw_compile` takes.

        None for a conversation without a record.
        """
        given = {"session_id": session_id, "vault_name": vault_name, "model": model, "seconds": seconds}
        return await self.perform(partial(sessions.announce_compile, **given))

    async def withdraw_compile(self, session: int, started_at: datetime) -> None:
        """Show a call of a model no longer; a later one of the session stays."""
        await self.perform(partial(sessions.withdraw_compile, session=session, started_at=started_at))

    async def save_action(
        self, session_id: str, vault_name: str, action: Action, *, after: int, compile: Compile | None = None
    ) -> Action:
        """Save an action, with the compile that it made, and return it with `number` and `summary_id`."""
        given = {"session_id": session_id, "vault_name": vault_name, "action": action}
        return await self.perform(partial(sessions.save_action, **given, after=after, compile=compile))

    async def save_compile(self, compile: Compile) -> int:
        """Save a compile that no request carries and no action made, and return its row number."""
        return await self.perform(partial(sessions.save_compile, compile=compile))

    async def session_cycles(self, session_id: str, vault_name: str = "") -> list[Cycle]:
        """Every cycle of a conversation, oldest first."""
        return await self.perform(partial(sessions.session_cycles, session_id=session_id, vault_name=vault_name))

    async def conversation(self, session_id: str) -> list[bytes] | None:
        """Message bodies of a conversation of the host's store; None if it has none of that name."""
        return await self.perform(partial(conversations.whole_history, conversation_id=session_id))

    def export(self) -> AsyncGenerator[Mapping[str, object]]:
        """Every row as of now, ready for JSON."""
        ...

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
        busy_timeout_ms: Milliseconds that a save waits for another process that is writing. A disk that many use may
            keep a commit of another process, and the lock with it, for seconds.

    Raises:
        StoreError: From every method, with path and remedy, if the file cannot be used.
    """

    def __init__(
        self, path: str | Path = DEFAULT_PATH, *, read_only: bool = False, busy_timeout_ms: int = BUSY_TIMEOUT_MS
    ) -> None:
        if str(path) == ":memory:":
            raise StoreError("':memory:' is not a file; use MemoryStore()")
        if is_address(str(path)):
            raise StoreError("an address is not a file; use PostgresStore(address), or give it as store=")
        self.path = Path(os.path.abspath(Path(path).expanduser()))
        self.read_only = read_only
        self.busy_timeout_ms = busy_timeout_ms
        self._file = File(self.path, read_only=read_only, busy_timeout_ms=busy_timeout_ms)
        finalize(self, self._file.release).atexit = False  # every file is closed at exit

    def __repr__(self) -> str:
        owner = "" if self.owner == "" else f", owner={self.owner!r}"
        return f"SQLiteStore({str(self.path)!r}{', read_only=True' if self.read_only else ''}{owner})"

    @property
    def place(self) -> str:
        """The path."""
        return str(self.path)

    def writer(self) -> SQLiteStore:
        """A store of the same file that writes."""
        return SQLiteStore(self.path)

    async def perform(self, work: Callable[[Database], T]) -> T:
        """Run a function on the connection, without interruption; memories of the same file use it too."""
        with self._explaining():
            return await self._file.perform(partial(_for_owner, self.owner, self.tried, work))

    async def export(self) -> AsyncGenerator[Mapping[str, object]]:
        """Every row as of now, read on a second connection, so that saving goes on meanwhile."""
        file = File(self.path, read_only=True, busy_timeout_ms=self.busy_timeout_ms)
        with self._explaining():
            await self._file.perform(version_of)
            try:
                found = await file.perform(partial(_for_owner, self.owner, self.tried, maintenance.export))
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

    @property
    def place(self) -> str:
        """A name for messages."""
        return "the record in memory"

    def writer(self) -> MemoryStore:
        """This store."""
        return self

    async def perform(self, work: Callable[[Database], T]) -> T:
        """Run a function on the connection, without interruption."""
        with self._lock:
            try:
                return _for_owner(self.owner, self.tried, work, self._db)
            except FAILURES as error:
                raise explain(error, "the record in memory") from error

    async def export(self) -> AsyncGenerator[Mapping[str, object]]:
        """Every row as of now, ready for JSON."""
        for row in await self.perform(lambda db: list(maintenance.export(db))):
            yield row

    async def close(self) -> None:
        """Do nothing: the record stays in memory."""
