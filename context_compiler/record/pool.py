"""Access to a PostgreSQL database: connection pools, errors, and tables that are created under a lock.

A pool belongs to one event loop, and all its work runs on that loop, whichever loop or thread submits it. Our own pools
belong to the background loop, and a caller's pool to the loop on which it was passed in or first used.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, TypeVar, cast
from weakref import WeakValueDictionary, finalize

from context_compiler.errors import StoreError
from context_compiler.paths import install_command, place_name
from context_compiler.record.background import Background, Outcome, current, hold_at_fork, retrieve_error, submit
from context_compiler.record.rows import BrokenReference
from context_compiler.record.schema import APPLICATION_ID

try:
    import asyncpg  # pyright: ignore[reportMissingTypeStubs]
except ImportError as missing:
    raise ImportError(f"PostgreSQL needs more: {install_command('postgres')}") from missing

T = TypeVar("T")

SCHEMA = "context_compiler"
SIZE = 8
"""Maximum connections of a pool of our own."""
PATIENCE_S = 5.0
"""Seconds to wait for a connection, and for the answer to one statement."""
CLOSE_S = 1.0
"""Seconds to wait for a connection to close before it is terminated."""
IDLE_S = 300.0
"""Seconds that a pool of our own keeps an idle connection."""

TORN = asyncpg.InternalClientError
"""Error of a connection that the server closed in the middle of an answer; it cannot be used again."""

FAILURES = (asyncpg.PostgresError, asyncpg.InterfaceError, TORN, OSError, TimeoutError, ValueError, OverflowError)
"""Errors that work on a database may raise, from an unreachable server to a value that is too large."""

LOST = (ConnectionError, asyncpg.PostgresConnectionError, asyncpg.AdminShutdownError, asyncpg.CrashShutdownError)
"""Errors of a connection to a server that has gone away; a new connection may succeed."""

CONFLICTS = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError, asyncpg.UniqueViolationError)
"""Errors of a transaction that conflicts with a concurrent one; a retry sees the other's writes."""

ATTEMPTS = 5
"""Maximum attempts of a transaction that conflicts with others."""

REMEDIES = {
    "08": "check that the server runs",
    "25": "use a database that can be written",
    "28": "check the user and the password",
    "3D": "create the database first",
    "42": "check the rights of the user, or open it once as the owner of its tables",
    "53": "free space on the server, or use fewer processes or smaller pools",
    "55": "another transaction holds it: try again",
    "57": "the server was stopped, or cancelled it: try again",
}
"""Remedies by SQLSTATE class."""


class Connection(Protocol):
    """The part of asyncpg's connection interface that is used here."""

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:
        """Run statements and return the status of the last one."""
        ...

    async def executemany(self, command: str, args: Iterable[Sequence[Any]], *, timeout: float | None = None) -> None:
        """Run a statement once for each tuple of arguments."""
        ...

    async def fetch(self, query: str, *args: Any, timeout: float | None = None) -> list[Any]:
        """Run a query and return its rows."""
        ...

    async def fetchval(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        """Run a query and return the first value of its first row."""
        ...

    def cursor(self, query: str, *args: Any, timeout: float | None = None) -> Awaitable[Any]:
        """Open a cursor; call it within a transaction."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Begin a transaction, for `async with`."""
        ...

    def is_closed(self) -> bool:
        """True if the connection is closed."""
        ...

    def terminate(self) -> None:
        """Close the connection immediately, without waiting for the server."""
        ...


class Pool(Protocol):
    """The part of asyncpg's pool interface that is used here."""

    def acquire(self, *, timeout: float | None = None) -> AbstractAsyncContextManager[Any]:
        """Borrow a connection, for `async with`."""
        ...


Work = Callable[[Connection], Awaitable[T]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A group of tables, with a version that each change of them raises.

    Its statements are SQL texts and SQL files. In them, `{schema}` is replaced by the name of the schema, and `{lock}`
    by the number of the record's advisory lock.
    """

    name: str
    version: int
    statements: Sequence[str | Path]

    def script(self, schema: str) -> str:
        """Return the script that creates the tables."""
        text = ";".join(
            statement if isinstance(statement, str) else statement.read_text(encoding="utf-8")
            for statement in self.statements
        )
        return text.replace("{schema}", schema).replace("{lock}", str(APPLICATION_ID))


class Postgres:
    """A database, safe to use from many tasks, event loops and threads at once; nothing is opened before first use.

    Args:
        source: A pool with asyncpg's interface, which the caller must close, or an address (`postgresql://…`), for
            which all its users in the process share one pool.
        schema: The schema of all tables.
        size: Maximum connections of the pool of an address.
        patience_s: Seconds to wait for a connection, and for the answer to one statement.

    Raises:
        StoreError: Any method raises it, with the place and a remedy, if the database cannot be used.
    """

    def __init__(
        self, source: Pool | str, *, schema: str = SCHEMA, size: int = SIZE, patience_s: float = PATIENCE_S
    ) -> None:
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema):
            raise StoreError(f"schema={schema!r}: give a name of lower-case letters, digits and underscores")
        self.schema = schema
        self.patience_s = patience_s
        self.place = place_name(source) if isinstance(source, str) else "the database of the pool"
        self._own = _pool_of(source, size, patience_s) if isinstance(source, str) else None
        self._user = object()
        self._pool = None if isinstance(source, str) else source
        self._loop = _running_loop()
        self._known: set[str] = set()
        if self._own is not None:
            finalize(self, self._own.release, self._user).atexit = False  # the background loop closes all pools at exit

    def __repr__(self) -> str:
        return f"Postgres({self.place!r})"

    async def run(self, work: Work[T], *, needs: Component | None = None, read_only: bool = False) -> T:
        """Run work on a connection; a cancelled caller still waits until it ends.

        Args:
            work: A function that takes a connection and returns an awaitable; it runs on the loop of the pool.
            needs: Tables that are created first, unless `read_only`.
            read_only: Treat missing or outdated tables as an error.
        """
        call = partial(self._perform, work, needs, read_only)
        try:
            if self._own is not None:
                return await submit(partial(self._own.lend, self._user, call))
            assert self._pool is not None
            return await self._on_loop(partial(self._acquire, self._pool, call))
        except (StoreError, *FAILURES) as error:
            raise explain(error, self.place) from error

    async def close(self) -> None:
        """Close our own pool, unless others still use it; the next use opens it again."""
        if self._own is not None and current() is not None:
            await submit(partial(self._own.close, self._user))

    async def _perform(self, work: Work[T], needs: Component | None, read_only: bool, connection: Connection) -> T:
        try:
            if needs is not None and needs.name not in self._known:
                await create(connection, needs, self.schema, read_only=read_only)
                self._known.add(needs.name)
            return await work(connection)
        except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
            self._known.clear()  # the database was recreated, so check its tables again
            raise
        except (TimeoutError, OSError):
            connection.terminate()  # a regular close would have to wait for the server again
            raise
        except TORN as error:
            connection.terminate()
            raise ConnectionResetError(str(error)) from error

    async def _acquire(self, pool: Pool, call: Work[T]) -> T:
        async with pool.acquire(timeout=self.patience_s) as connection:
            return await call(connection)

    async def _on_loop(self, work: Callable[[], Any]) -> Any:
        """Run work on the event loop of the caller's pool."""
        here = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = here
        outcome = Outcome[Any]()
        if self._loop is here:
            task = here.create_task(outcome.run(work()))
        elif self._loop.is_running():
            task = asyncio.run_coroutine_threadsafe(outcome.run(work()), self._loop)
        else:
            raise StoreError("the event loop of the pool has ended; give the address of the database instead")
        task.add_done_callback(outcome.check_failure)
        return await outcome.wait()


class _OwnPool:
    """Connections on the background loop, shared by all users of one address.

    Unlike in asyncpg's pool, borrowing and returning a connection takes no round trip and no task, because no work
    changes the state of its session.
    """

    def __init__(self, url: str, size: int, patience_s: float) -> None:
        self._url, self._size, self._patience_s = url, size, patience_s
        self._home: Background | None = None
        self._places = asyncio.Semaphore(size)
        self._idle: list[tuple[Any, float]] = []
        """Idle connections with the times when they became idle, newest last."""
        self._idle_timer: asyncio.TimerHandle | None = None
        self._users = set[object]()
        """Users that have used the pool and not closed it since."""

    async def lend(self, user: object, call: Work[T], home: Background) -> T:
        """Run work on a connection of the pool, for a user."""
        if self._home is not home:
            self._home, self._places, self._idle, self._idle_timer = home, asyncio.Semaphore(self._size), [], None
            self._users = set[object]()
        home.open.add(self)
        self._users.add(user)
        places, idle = self._places, self._idle
        if places.locked():
            await asyncio.wait_for(places.acquire(), self._patience_s)
        else:
            await places.acquire()
        try:
            connection = await self._take(idle)
            try:
                return await call(connection)
            finally:
                await self._give_back(connection, idle)
        finally:
            places.release()

    async def _take(self, idle: list[tuple[Any, float]]) -> Any:
        """Take an idle connection, or open a new one."""
        while idle:
            connection, _ = idle.pop()
            if not connection.is_closed():
                return connection
        connect = partial(cast(Any, asyncpg).connect, self._url, timeout=self._patience_s)
        named = {"application_name": "context-compiler"}
        try:
            return await connect(server_settings={**named, "jit": "off"})
        except asyncpg.ProtocolViolationError:  # poolers such as PgBouncer accept few settings in the handshake
            connection = await connect(server_settings=named)
            await connection.execute("SET jit = off")
            return connection

    async def _give_back(self, connection: Any, idle: list[tuple[Any, float]]) -> None:
        """Return a connection to the pool, or close it if it cannot be reused."""
        if connection.is_closed():
            return
        if connection.is_in_transaction():  # its work failed to end the transaction
            connection.terminate()
        elif idle is not self._idle:  # the pool was closed meanwhile
            await _close_connection(connection)
        else:
            loop = asyncio.get_running_loop()
            idle.append((connection, loop.time()))
            if self._idle_timer is None:
                self._idle_timer = loop.call_later(IDLE_S, self._close_idle)

    def _close_idle(self) -> None:
        """Close the connections that have been idle for `IDLE_S`."""
        loop, self._idle_timer = asyncio.get_running_loop(), None
        while self._idle and self._idle[0][1] <= loop.time() - IDLE_S:
            self._idle.pop(0)[0].terminate()
        if self._idle:
            self._idle_timer = loop.call_at(self._idle[0][1] + IDLE_S, self._close_idle)

    def release(self, user: object) -> None:
        """Close the pool for a user once the work in progress has ended, without waiting for that."""
        home = current()
        if home is not None and self in home.open:
            with suppress(RuntimeError):  # the loop has just ended and closed everything
                home.start(partial(self.close, user), retrieve_error)

    async def close(self, user: object, home: Background) -> None:
        """Unregister a user; with the last one, close all connections."""
        self._users.discard(user)
        if not self._users:
            await self.leave(home)

    async def leave(self, home: Background) -> None:
        """Close all idle connections now, and borrowed ones when they are given back."""
        home.open.discard(self)
        if self._home is home:
            idle, self._idle = self._idle, []
            await asyncio.gather(*(_close_connection(connection) for connection, _ in idle))


_pools: WeakValueDictionary[tuple[str, int, float], _OwnPool] = WeakValueDictionary()
"""Pools by address, size and patience, so that all stores with the same ones share a pool."""
_pools_lock = Lock()
hold_at_fork(_pools_lock)


def _pool_of(url: str, size: int, patience_s: float) -> _OwnPool:
    with _pools_lock:
        return _pools.setdefault((url, size, patience_s), _OwnPool(url, size, patience_s))


async def _close_connection(connection: Any) -> None:
    """Close a connection; terminate it if that takes longer than `CLOSE_S`."""
    try:
        await connection.close(timeout=CLOSE_S)
    except FAILURES:
        connection.terminate()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def explain(error: Exception, location: str) -> StoreError:
    """Convert an error to a StoreError that names the place and a remedy."""
    if isinstance(error, StoreError):
        return error if str(error).startswith(location) else type(error)(f"{location}: {error}")
    if isinstance(error, asyncpg.ForeignKeyViolationError):
        return BrokenReference(f"{location}: {error}; verify the record")
    if isinstance(error, TimeoutError):
        return StoreError(f"{location}: no connection or no answer in time; check the server, its load and the pool")
    if isinstance(error, OSError):
        return StoreError(f"{location}: {error.strerror or error}; check that the server runs and can be reached")
    if isinstance(error, asyncpg.DataError | OverflowError):
        return StoreError(f"{location}: {error}; a number or text is larger than any row can hold")
    remedy = REMEDIES.get((getattr(error, "sqlstate", None) or "")[:2], "verify the record")
    return StoreError(f"{location}: {error or type(error).__name__}; {remedy}")


async def create(connection: Connection, component: Component, schema: str, *, read_only: bool) -> None:
    """Create the tables if the database lacks them, under a lock, so that several processes may do so at once.

    Raises:
        StoreError: The tables were written by another version, or they are missing and `read_only` is set.
    """
    version = await _version(connection, component, schema)
    if version == 0 and read_only:
        raise StoreError("it contains no record yet; open it once for writing")
    if version == 0:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", APPLICATION_ID)
            if await connection.fetchval("SELECT to_regnamespace($1)", schema) is None:
                await connection.execute(f"CREATE SCHEMA {schema}")
            await connection.execute(
                f"CREATE TABLE IF NOT EXISTS {schema}.components (name TEXT PRIMARY KEY, version BIGINT NOT NULL)"
            )
            version = await _version(connection, component, schema)
            if version == 0:
                await connection.execute(component.script(schema))
                query = f"INSERT INTO {schema}.components VALUES ($1, $2)"
                await connection.execute(query, component.name, component.version)
                return
    if version != component.version:
        raise StoreError(
            f"the {component.name} was written by another version of context-compiler (schema {version}, this one knows"
            f" {component.version}); give it another database or schema to begin a new one"
        )


async def _version(connection: Connection, component: Component, schema: str) -> int:
    if await connection.fetchval("SELECT to_regclass($1)", f"{schema}.components") is None:
        return 0
    query = f"SELECT version FROM {schema}.components WHERE name = $1"
    return await connection.fetchval(query, component.name) or 0
