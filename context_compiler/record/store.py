"""The `Store` protocol, and its SQLite implementations: a file and an in-memory database.

The conformance suite in `tests/record` defines how a store behaves. A saved request survives if the process dies at
any moment, because each save is one transaction in a write-ahead log. A save does not wait for the disk
(`synchronous = NORMAL`), so a power failure may lose the most recent saves, but nothing else.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial, wraps
from importlib import import_module
from itertools import islice
from pathlib import Path
from threading import RLock
from types import CoroutineType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, runtime_checkable
from weakref import finalize

from context_compiler.errors import StoreError
from context_compiler.lazy import require_extra
from context_compiler.paths import check_place, is_address
from context_compiler.record import conversations, maintenance, queries, removal
from context_compiler.record import sessions as of_sessions
from context_compiler.record.background import hold_at_fork, result_at_once
from context_compiler.record.database import PAGE, Database, Moment
from context_compiler.record.files import BUSY_TIMEOUT_MS, DEFAULT_PATH, FAILURES, File, explain, locate
from context_compiler.record.maintenance import Damaged
from context_compiler.record.schema import version_of
from context_compiler.record.sqlite import open_memory
from context_compiler.record.values import (
    Action,
    Chain,
    Compile,
    Cycle,
    Entry,
    OwnerInfo,
    Record,
    SessionInfo,
    check_owner,
)

T = TypeVar("T")
P = ParamSpec("P")


@runtime_checkable
class Store(Protocol):
    """A store of the record: the protocol that every store implements.

    Append-only: saving the same entry again changes nothing.
    """

    async def save(self, entry: Entry) -> Record:
        """Save an entry in one transaction and return its record with `id` and `summary_id`.

        Of the two chains, only messages that are not stored yet are read and written. A request is identified by its
        session, run, request index, raw tip and view tip; saving it twice creates one row. `summary_id` is the one
        already set on the record, or else the row of the entry's compile; if a compile with the same answer is already
        stored under the same cache key, its row is used. Only the first compile with status ok keeps a given cache
        key. Row numbers increase with each save, possibly with gaps.

        Raises:
            StoreError: Saving failed; nothing was written.
        """
        ...

    async def archive(self, session_id: str, vault_name: str, raw: Chain) -> None:
        """Save a raw history without a request, as the newest history of its conversation.

        Raises:
            StoreError: Saving failed; nothing was written.
        """
        ...

    async def find_compile(self, cache_key: str) -> tuple[int, Compile] | None:
        """Find a reusable compile by cache key; return its row number and the compile, or None."""
        ...

    async def find_cycle(self, tips: Sequence[str], config: str) -> Cycle | None:
        """Find the newest cycle of `config` for the last of `tips` that has one: the longest ancestor with a cycle."""
        ...

    async def close(self) -> None:
        """Close all connections; the next use opens them again."""
        ...

    async def chain(self, tip: str) -> list[bytes]:
        """Message bodies of the chain that ends at `tip`, oldest first; StoreError if `tip` is unknown."""
        ...

    async def view(self, view_id: int) -> Record | None:
        """A request with its compile, by row number; None if there is no such row."""
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
        """Message bodies of a session's newest raw history; empty if the session is unknown.

        Without `vault_name`, the most recently used session of that name in any vault is taken.
        """
        ...

    async def layers(self, session_id: str, vault_name: str = "") -> tuple[str, int] | None:
        """The newest layers of a session as JSON text, with their version; None if the session has no layers."""
        ...

    async def save_layers(self, session_id: str, vault_name: str, state: str, *, after: int) -> int:
        """Replace version `after` of a session's layers and return the new version; `after` is 0 for the first.

        Raises:
            StoreError: The newest version is not `after`, or saving failed; nothing was changed.
        """
        ...

    async def delete(self, session_id: str) -> int:
        """Remove a conversation and all data that only it used; return the number of requests removed.

        Messages and compiles that another conversation uses are kept; such a compile moves to that conversation.
        """
        ...

    async def prune(self, *, older_than_days: float | None = None, keep_last: int | None = None) -> int:
        """Remove old requests and all data that no remaining request needs; return the number of requests removed.

        A request is removed if it is older than `older_than_days` *and* not among the newest `keep_last` of its
        session. A limit of None protects nothing; if both are None, only unreferenced rows are removed. A session
        keeps its raw history, its newest cycle and the compiles of its remaining requests and turns. A session whose
        requests are all removed is removed too. No remaining chain is ever broken.
        """
        ...

    async def verify(self, *, newer_than_days: float | None = None) -> tuple[str, ...]:
        """Recompute every name and checksum from the stored data; return all defects, none if the record is sound.

        With `newer_than_days`, only rows that are so new are checked, and the messages of the requests among them.
        """
        ...

    def export(self) -> AsyncIterator[Mapping[str, object]]:
        """Yield every row as a JSON-ready mapping: its `table`, its columns, and contents as text.

        A row comes after the rows that it refers to. The search indexes are left out, because they repeat the messages.
        """
        ...


@runtime_checkable
class Steered(Protocol):
    """Optional methods for manual actions of users, such as compile, undo and pin. Other stores save no actions."""

    async def actions(self, session_id: str, vault_name: str = "") -> list[Action]:
        """Manual actions on a conversation, oldest first."""
        ...

    async def save_action(
        self, session_id: str, vault_name: str, action: Action, *, after: int, compile: Compile | None = None
    ) -> Action:
        """Save an action, with the compile that it made, and return it with `number` and `summary_id`.

        Once an `undo` names a compile in `summary_id`, `find_compile` no longer returns that compile.

        Raises:
            StoreError: The number of the newest action is not `after`, or saving failed; nothing was written.
        """
        ...

    async def save_compile(self, compile: Compile) -> int:
        """Save a compile that belongs to no request and no action, and return its row number.

        Raises:
            StoreError: Saving failed; nothing was written.
        """
        ...

    async def session_cycles(self, session_id: str, vault_name: str = "") -> list[Cycle]:
        """All cycles of a conversation, oldest first."""
        ...


@runtime_checkable
class Tenants(Store, Protocol):
    """A store shared by many owners, each of whom reads, reuses and removes only their own data.

    A new store works for the owner ``""``, who owns everything that belongs to no other owner.
    """

    owner: str | None
    """Owner that this store works for; None is for operators: it sees every owner, and cannot save."""

    def scoped(self, owner: str | None) -> Tenants:
        """Return the same store for another owner; None is every owner.

        Raises:
            SettingsError: The name is not valid; see `check_owner`.
        """
        ...

    async def owners(self) -> list[OwnerInfo]:
        """All owners that this store sees, sorted by name."""
        ...

    async def erase(self) -> int:
        """Remove all data of the owner; return the number of requests removed.

        Raises:
            StoreError: This store works for every owner, or removing failed; nothing was removed.
        """
        ...


def open_store(store: str | Path | Store | None, *, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> Store:
    """Return a store for an argument: a place, a store (returned unchanged), or None for a new one in memory.

    A place is the path of an SQLite file or the address of a PostgreSQL database. Nothing is opened yet.

    Raises:
        SettingsError: The place is an address, and the packages for PostgreSQL are not installed.
    """
    if store is None:
        return MemoryStore()
    return open_place(store, busy_timeout_ms=busy_timeout_ms) if isinstance(store, str | Path) else store


def open_place(location: str | Path, *, read_only: bool = False, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> SQLStore:
    """Return the store at a place; one in an SQLite file waits `busy_timeout_ms` while another process writes."""
    if not is_address(location):
        return SQLiteStore(location, read_only=read_only, busy_timeout_ms=busy_timeout_ms)
    require_extra("postgres")
    return import_module("context_compiler.record.postgres").PostgresStore(location, read_only=read_only)


def _run_for_owner(owner: str | None, tried: Moment | None, work: Callable[[Database], T], db: Database) -> T:
    """Run a function on a connection that has been set to the owner and the first attempt of a store."""
    db.owner, db.tried = owner, tried
    return work(db)


async def _perform_at_once(db: Database, work: Callable[[Database], T]) -> T:
    return work(db)


def _method(
    work: Callable[Concatenate[Database, P], T], *, takes_long: bool = False
) -> Callable[Concatenate[SQLStore, P], CoroutineType[Any, Any, T]]:
    """Make a method of a store from a function on a connection; `takes_long` runs it with `maintain`."""

    @wraps(work)
    async def method(self: SQLStore, *args: P.args, **kwargs: P.kwargs) -> T:
        perform = self.maintain if takes_long else self.perform
        return await perform(lambda db: work(db, *args, **kwargs))

    return method


@runtime_checkable
class SQLStore(Protocol):
    """A store whose methods are functions that `perform` runs on a connection."""

    owner: str | None = ""
    """Owner that this store works for; None is every owner."""
    tried: Moment | None = None  # when its writes were first attempted; None is now
    _origin: object = None  # the store that this one was scoped from, which owns the connection

    @property
    def origin(self) -> object:
        """The store that was opened; stores scoped from it to other owners share it."""
        return self._origin or self

    @property
    def place(self) -> str:
        """Place of the record, for messages to users: a path, or an address without its password."""
        ...

    def writer(self) -> SQLStore:
        """Return a writable store of the same record, for the owner ``""``."""
        ...

    async def perform(self, work: Callable[[Database], T]) -> T:
        """Run a function on the connection, uninterrupted, for the owner of this store."""
        ...

    async def perform_together(self, reads: Callable[[Self], Coroutine[Any, Any, T]]) -> T:
        """Run several methods that read as one job; `reads` calls them on the given store, and awaits nothing else."""

        def work(db: Database) -> T:
            here = copy(self)
            here.perform = partial(_perform_at_once, db)
            return result_at_once(reads(here))

        return await self.perform(work)

    async def maintain(self, work: Callable[[Database], T]) -> T:
        """Run a function that may take long, because it reads or removes much of the record."""
        return await self.perform(work)

    def scoped(self, owner: str | None) -> Self:
        """Return the same store for another owner; None is every owner."""
        other = copy(self)
        other.owner, other._origin = check_owner(owner), self._origin or self
        return other

    def late(self, tried: Moment) -> Self:
        """Return the same store for a retried write; it is refused if anything was removed since the moment `tried`."""
        other = self.scoped(self.owner)
        other.tried = tried
        return other

    async def close(self) -> None:
        """Close the connection, if it is open; the next use opens it again."""
        ...

    save = _method(queries.save)
    archive = _method(queries.archive)
    find_compile = _method(queries.find_compile)
    find_cycle = _method(queries.find_cycle)
    chain = _method(queries.chain)
    view = _method(queries.view)
    tools = _method(queries.tools)
    views = _method(queries.views)
    summaries = _method(queries.summaries)
    sessions = _method(queries.sessions)
    owners = _method(queries.owners)
    transcript = _method(queries.transcript)
    conversation = _method(conversations.whole_history)
    layers = _method(of_sessions.load_layers)
    save_layers = _method(of_sessions.save_layers)
    actions = _method(of_sessions.actions)
    save_action = _method(of_sessions.save_action)
    save_compile = _method(of_sessions.save_compile)
    session_cycles = _method(of_sessions.session_cycles)
    announce_compile = _method(of_sessions.announce_compile)
    withdraw_compile = _method(of_sessions.withdraw_compile)
    delete = _method(removal.delete, takes_long=True)
    prune = _method(removal.prune, takes_long=True)
    erase = _method(removal.erase, takes_long=True)
    verify = _method(maintenance.verify, takes_long=True)

    def export(self, damaged: Damaged | None = None) -> AsyncGenerator[Mapping[str, object]]:
        """Yield every row of one snapshot; with `damaged`, leave out unreadable ones, and call it for each."""
        ...


class SQLiteStore(SQLStore):
    """A store in one SQLite file, safe to use from many tasks, event loops and processes at once.

    The file is opened, and created if needed, on use, and closed by `close` or when nobody has used it for two seconds.
    A store that is never closed does not keep a program alive.

    Args:
        path: The file. If `context.db` does not exist but `context_compiler.db` does, that file is used instead.
        read_only: Never write; a missing file is an error.
        busy_timeout_ms: Milliseconds that a save waits while another process writes. On a busy disk, a commit of
            another process can hold the lock for seconds.

    Raises:
        StoreError: Any method raises it, with the path and a remedy, if the file cannot be used.
    """

    def __init__(
        self, path: str | Path = DEFAULT_PATH, *, read_only: bool = False, busy_timeout_ms: int = BUSY_TIMEOUT_MS
    ) -> None:
        if str(path) == ":memory:":
            raise StoreError("':memory:' is not a file; use MemoryStore()")
        check_place(path)
        if is_address(str(path)):
            raise StoreError("an address is not a file; use PostgresStore(address), or give it as store=")
        self.path = Path(os.path.abspath(Path(path).expanduser()))
        self.read_only = read_only
        self.busy_timeout_ms = busy_timeout_ms
        self._file = File(self.path, read_only=read_only, busy_timeout_ms=busy_timeout_ms)
        finalize(self, self._file.release).atexit = False  # the background loop closes all files at exit

    def __repr__(self) -> str:
        owner = "" if self.owner == "" else f", owner={self.owner!r}"
        return f"SQLiteStore({str(self.path)!r}{', read_only=True' if self.read_only else ''}{owner})"

    @property
    def place(self) -> str:
        """The path of the file."""
        return str(self.path)

    def writer(self) -> SQLiteStore:
        """Return a writable store of the same file."""
        return SQLiteStore(self.path)

    async def perform(self, work: Callable[[Database], T]) -> T:
        """Run a function on the connection, uninterrupted."""
        with _explained_errors(self.path):
            return await self._file.perform(partial(_run_for_owner, self.owner, self.tried, work))

    async def export(self, damaged: Damaged | None = None) -> AsyncGenerator[Mapping[str, object]]:
        """Yield every row of one snapshot, read on a second connection so that saving continues meanwhile."""
        file = File(self.path, read_only=True, busy_timeout_ms=self.busy_timeout_ms, stays_open=True)
        with _explained_errors(self.path):
            await self._file.perform(version_of)
            try:
                export = partial(maintenance.export, damaged=damaged)
                exported = await file.perform(partial(_run_for_owner, self.owner, self.tried, export))
                try:
                    while page := await file.perform(lambda _: list(islice(exported, PAGE))):
                        for row in page:
                            yield row
                finally:
                    await file.perform(lambda _: exported.close())
            finally:
                await file.close()

    async def close(self) -> None:
        """Close the file; the next use opens it again."""
        with _explained_errors(self.path):
            await self._file.close()


@contextmanager
def _explained_errors(location: Path | str) -> Generator[None]:
    """Raise a StoreError with the place and a remedy for any error of a record; a path is located first."""
    try:
        yield
    except FAILURES as error:
        raise explain(error, locate(location) if isinstance(location, Path) else location) from error


class MemoryStore(SQLStore):
    """A store in memory: for tests, trials, and data that must not be left on disk.

    It grows until it is pruned. It has no thread and need not be closed: its methods run on the caller's event loop
    and block it for the few milliseconds that they take.
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
        """A name of the record, for messages to users."""
        return "the record in memory"

    def writer(self) -> MemoryStore:
        """Return this store."""
        return self

    async def perform(self, work: Callable[[Database], T]) -> T:
        """Run a function on the connection, uninterrupted."""
        with self._lock, _explained_errors(self.place):
            return _run_for_owner(self.owner, self.tried, work, self._db)

    async def export(self, damaged: Damaged | None = None) -> AsyncGenerator[Mapping[str, object]]:
        """Yield every row of one snapshot as a JSON-ready mapping."""
        for row in await self.perform(lambda db: list(maintenance.export(db, damaged))):
            yield row

    async def close(self) -> None:
        """Do nothing: the record stays in memory."""
