"""The store in PostgreSQL: the same functions as for SQLite, run on a connection that translates their statements.

The functions and `PostgresDatabase` are synchronous. They run in a greenlet, which waits for each answer on the event
loop of the connection. Saving takes a shared advisory lock and removing an exclusive one, so no message is removed
while another transaction starts to use it. On a unique-key conflict, the later transaction is retried.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any, TypeVar, cast

import asyncpg  # pyright: ignore[reportMissingTypeStubs]
from greenlet import getcurrent, greenlet

from context_compiler.errors import StoreError
from context_compiler.record import maintenance, postgres_search
from context_compiler.record.database import Database, Moment
from context_compiler.record.dialect import (
    MARK,
    NO_NULLS,
    Statement,
    escape,
    translate,
    unescape,
)
from context_compiler.record.pool import ATTEMPTS, CONFLICTS, FAILURES, LOST, SCHEMA, Connection, Pool, Postgres
from context_compiler.record.postgres_save import Memory, archive, archive_fast, save, save_fast
from context_compiler.record.postgres_search import SAVES_PER_STEP, TEXTS_PER_STEP, bm25
from context_compiler.record.postgres_tables import RECORD, REFERENCES, TABLES
from context_compiler.record.rows import PLAIN, prefix, refuse_removed
from context_compiler.record.schema import APPLICATION_ID
from context_compiler.record.store import PAGE, SQLStore
from context_compiler.record.values import Chain, Entry, Record

T = TypeVar("T")


class Row:
    """A row with unescaped texts."""

    __slots__ = ("_names", "_values")

    def __init__(self, names: Sequence[str], values: Sequence[Any]) -> None:
        self._names, self._values = names, values

    def __getitem__(self, key: str | int) -> Any:
        return self._values[key if isinstance(key, int) else self._names.index(key)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def keys(self) -> Sequence[str]:
        """The names of the columns."""
        return self._names


class Answer:
    """The result of a statement."""

    def __init__(self, rows: Sequence[Any], rowcount: int) -> None:
        self._rows = iter(rows)
        self.rowcount = rowcount

    def fetchone(self) -> Any:
        """Return the next row; None after the last."""
        return next(self._rows, None)

    def fetchall(self) -> list[Any]:
        """Return all remaining rows."""
        return list(self._rows)

    def __iter__(self) -> Iterator[Any]:
        return self._rows


def _unescape_row(row: Any) -> Any:
    """Unescape the texts of a row; return it unchanged if none is escaped."""
    if any(isinstance(value, str) and MARK in value for value in row):
        values = [unescape(value) if isinstance(value, str) and MARK in value else value for value in row]
        return Row(list(row.keys()), values)
    return row


def _body_bytes(body: object) -> object:
    """Convert a stored body to bytes; see `rows.pack`."""
    return PLAIN + body.encode() if isinstance(body, str) else body


def _escape_text(value: object) -> object:
    """Escape an argument if it is a text."""
    return escape(value) if isinstance(value, str) else value


class PostgresDatabase:
    """The PostgreSQL implementation of `Database`; its methods are called within `perform`."""

    owner: str | None = ""
    tried: Moment | None = None
    damage: tuple[type[Exception], ...] = (asyncpg.PostgresError, asyncpg.InterfaceError)

    def __init__(self, connection: Connection, schema: str, timeout: float | None) -> None:
        self.connection = connection
        self.schema = schema
        self.timeout = timeout
        self.committing = False
        """True while it is unknown whether a transaction was committed."""

    async def perform(self, work: Callable[[PostgresDatabase], T]) -> T:
        """Run a synchronous function in a greenlet, and await what it waits for on the loop of the connection."""
        fiber: Any = greenlet(work)
        fiber.gr_context = copy_context()
        step = fiber.switch(self)
        while not fiber.dead:
            try:
                value = await step
            except (*FAILURES, asyncio.CancelledError, TypeError) as error:
                step = fiber.throw(error)  # so that the function rolls its transaction back
            else:
                step = fiber.switch(value)
        return cast(T, step)

    def wait(self, awaited: Awaitable[T]) -> T:
        """Wait for an awaitable on the loop of the connection, and return its result."""
        parent = getcurrent().parent
        assert parent is not None
        return cast(T, parent.switch(awaited))

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Answer:
        """Run one statement in the SQL of SQLite."""
        statement = self._statement(sql, parameters)
        return self.run(statement.text, *self._arguments(statement, parameters), returns_rows=statement.returns_rows)

    def _statement(self, sql: str, parameters: Sequence[Any]) -> Statement:
        nulls = frozenset(at for at, one in enumerate(parameters) if one is None) if " IS NULL" in sql else NO_NULLS
        return translate(sql, self.schema, nulls)

    def _arguments(self, statement: Statement, parameters: Sequence[Any]) -> list[Any]:
        given = [json.loads(value) if at in statement.lists else value for at, value in enumerate(parameters)]
        if statement.body is not None:
            given[statement.body] = _body_bytes(given[statement.body])
        return [
            [*map(_escape_text, cast("list[object]", one))] if isinstance(one, list) else _escape_text(one)
            for one in given
        ]

    def run(self, sql: str, *arguments: Any, returns_rows: bool = True) -> Answer:
        """Run one statement in the SQL of PostgreSQL."""
        if returns_rows:
            rows = self.wait(self.connection.fetch(sql, *arguments, timeout=self.timeout))
            return Answer([*map(_unescape_row, rows)], -1)
        status = self.wait(self.connection.execute(sql, *arguments, timeout=self.timeout))
        number = status.rpartition(" ")[2]
        return Answer((), int(number) if number.isdigit() else -1)

    async def commit(self, sql: str, *arguments: Any) -> Any:
        """Run one PostgreSQL statement that is a whole transaction, and return the first value of its result."""
        self.committing = True
        try:
            rows = await self.connection.fetch(sql, *arguments, timeout=self.timeout)
        except CONFLICTS:
            self.committing = False
            raise
        self.committing = False
        return rows[0][0]

    def executemany(self, sql: str, parameters: Sequence[Sequence[Any]], /) -> None:
        """Run one statement once for each sequence of parameters, in one round trip."""
        if parameters:
            statement = self._statement(sql, parameters[0])
            self._run_many(statement.text, [self._arguments(statement, one) for one in parameters])

    def _run_many(self, sql: str, arguments: Sequence[Sequence[Any]]) -> None:
        if len(arguments) == 1:
            self.run(sql, *arguments[0], returns_rows=False)
        else:
            self.wait(self.connection.executemany(sql, arguments, timeout=self.timeout))

    def scan(self, sql: str, parameters: Sequence[Any] = ()) -> Iterator[Any]:
        """Yield the rows of a query whose result may be large; call it within a transaction."""
        statement = self._statement(sql, parameters)
        cursor = self.wait(self.connection.cursor(statement.text, *self._arguments(statement, parameters)))
        while page := self.wait(cursor.fetch(PAGE)):
            yield from map(_unescape_row, page)

    @contextmanager
    def _run_transaction(self, begin: str) -> Generator[None]:
        """Run a transaction that the statements `begin` start; an error rolls it back."""
        self.wait(self.connection.execute(begin, timeout=self.timeout))
        is_open = True
        try:
            yield
            self.committing = True
            self.wait(self.connection.execute("COMMIT", timeout=self.timeout))
            self.committing = is_open = False
        finally:
            if is_open and not self.connection.is_closed():
                with suppress(*FAILURES):  # the connection may be gone, and the transaction with it
                    self.wait(self.connection.execute("ROLLBACK", timeout=self.timeout))

    @property
    def patience_ms(self) -> str | None:
        """Milliseconds to wait for a lock, as text; None to wait as long as it takes."""
        return None if self.timeout is None else f"{self.timeout * 1_000:.0f}"

    def _set_lock_timeout(self) -> str:
        """The statement that sets the lock timeout of a transaction; empty if there is no limit."""
        return "" if self.patience_ms is None else f"SET LOCAL lock_timeout = {self.patience_ms};"

    @contextmanager
    def transaction(self) -> Generator[None]:
        """Run a write transaction, concurrently with others; an error rolls it back."""
        lock = f"SELECT pg_advisory_xact_lock_shared({APPLICATION_ID}, 1)"
        with self._run_transaction(f"BEGIN; {self._set_lock_timeout()} {lock}"):
            refuse_removed(self)
            yield

    @contextmanager
    def snapshot(self) -> Generator[None]:
        """Run a read transaction, which sees one state of the record."""
        with self._run_transaction("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"):
            yield

    @contextmanager
    def sweep(self) -> Generator[None]:
        """Run a transaction that removes rows; no other transaction writes meanwhile."""
        lock = f"SELECT pg_advisory_xact_lock({APPLICATION_ID}, 1)"
        with self._run_transaction(f"BEGIN; {self._set_lock_timeout()} {lock}"):
            yield

    def lock_name(self, name: str) -> None:
        """Take a lock on a name until the transaction ends; other transactions that take it wait."""
        self.run("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", _escape_text(name))

    def clock(self) -> float:
        """Return the time in seconds, by the clock of the server."""
        return float(self.run("SELECT extract(epoch FROM clock_timestamp())").fetchone()[0])

    def next_number(self, table: str) -> int:
        """Return the number for a new row of a table."""
        return self.run(f"SELECT nextval('{self.schema}.{table}_numbers')").fetchone()[0]

    def index_messages(self, texts: Sequence[tuple[str, str]]) -> None:
        """Add texts of messages, as `(message id, text)`; they can be found at once, and are indexed later."""
        if texts:
            columns = [node for node, _ in texts], [escape(text) for _, text in texts]
            query = f"INSERT INTO {self.schema}.messages_fts (node, text) SELECT * FROM unnest($1::text[], $2::text[])"
            self.run(query, *columns, returns_rows=False)

    def index_waiting(self) -> bool:
        """Index some of the texts that are not indexed yet; True if more may be left."""
        return postgres_search.index_waiting(self, TEXTS_PER_STEP) == TEXTS_PER_STEP

    def find_messages(self, words: Sequence[str], limit: int, *, prefix: str | None) -> list[tuple[str, str]]:
        """Find messages that contain a phrase, newest first."""
        return postgres_search.find_messages(self, words, limit, prefix)

    def index_memory(self, number: int, terms: str) -> None:
        """Add the terms of a memory to the search index."""
        query = f"INSERT INTO {self.schema}.memories_fts (id, terms) VALUES ($1, string_to_array($2, ' '))"
        self.run(query, number, _escape_text(terms), returns_rows=False)

    def unindex_memory(self, number: int) -> None:
        """Remove a memory from the search index."""
        self.execute("DELETE FROM memories_fts WHERE id = ?", (number,))

    def find_memories(self, session: int, terms: Sequence[str], limit: int) -> list[Any]:
        """Find the best matches in a session by BM25."""
        found = self.run(
            "SELECT m.id, m.created_at, m.position, t.body, f.terms"
            f" FROM {self.schema}.memories_fts f JOIN {self.schema}.live_memories l ON l.id = f.id"
            f" JOIN {self.schema}.memories m ON m.id = l.memory JOIN {self.schema}.contents t ON t.hash = m.content"
            " WHERE l.session = $1 AND f.terms && $2::text[]",
            session,
            [*map(_escape_text, terms)],
        ).fetchall()
        score = bm25([row["terms"] for row in found], [*map(escape, terms)])
        return sorted(found, key=score, reverse=True)[:limit]

    def memories_with(self, session: int, phrase: str) -> list[Any]:
        """Find indexed memories that contain all terms of a phrase."""
        return self.run(
            f"SELECT l.id AS number, l.memory, m.id, m.created_at, t.body FROM {self.schema}.memories_fts f"
            f" JOIN {self.schema}.live_memories l ON l.id = f.id JOIN {self.schema}.memories m ON m.id = l.memory"
            f" JOIN {self.schema}.contents t ON t.hash = m.content"
            " WHERE l.session = $1 AND f.terms @> string_to_array($2, ' ')",
            session,
            _escape_text(phrase),
        ).fetchall()

    def message_texts(self, after: int, limit: int) -> list[tuple[int, str, str]]:
        """Search-index entries after the given row, as `(row, message id, text)`."""
        query = "SELECT number, node, text FROM messages_fts WHERE number > ? AND text NOT NULL ORDER BY number LIMIT ?"
        return [(row[0], row[1], row[2]) for row in self.execute(query, (after, limit))]

    def live_memories(self) -> list[tuple[int, str, str | None]]:
        """Live memories of all sessions in order, as `(session, memory, terms)`."""
        query = (
            "SELECT l.session, l.memory, array_to_string(f.terms, ' ') FROM live_memories l"
            " LEFT JOIN memories_fts f ON f.id = l.id ORDER BY l.id"
        )
        return [(row[0], row[1], row[2]) for row in self.execute(query)]

    def clean_indexes(self) -> None:
        """Remove search-index entries whose messages or memories no longer exist."""
        for table, key, kept in (("messages_fts", "node", "nodes"), ("memories_fts", "id", "live_memories")):
            gone = f"SELECT {key} FROM {table} EXCEPT SELECT id FROM {kept}"
            self.execute(f"DELETE FROM {table} WHERE {key} IN ({gone})")

    def check_structure(self) -> Iterator[str]:
        """Check the references that are not foreign keys; the database enforces the others."""
        for table, column, other, key in REFERENCES:
            for row in self.execute(
                f"SELECT t.{column} AS gone FROM {table} t LEFT JOIN {other} o ON o.{key} = t.{column}"
                f" WHERE t.{column} IS NOT NULL AND o.{key} IS NULL"
            ):
                yield f"{table}: points into {other} at {row['gone']!r}, which does not exist"

    def check_schema(self) -> Iterator[str]:
        """Check that columns, keys and indexes are those of a new record; skipped on a read-only server."""
        found = self._definitions(self.schema)
        try:
            with self._run_transaction("BEGIN"):
                for script in RECORD.scripts("pg_temp"):
                    self.run(script, returns_rows=False)
                expected = self._definitions("pg_temp")
                self.run("ROLLBACK", returns_rows=False)
        except (asyncpg.ReadOnlySQLTransactionError, asyncpg.InsufficientPrivilegeError):
            return
        for name in sorted(expected.keys() | found.keys()):
            if found.get(name) != expected.get(name):
                yield f"schema: {name} differs from a new record"

    def _definitions(self, schema: str) -> dict[str, str]:
        """Definitions of the columns, indexes, constraints and functions of the record in a schema, by name."""
        found = self.run(
            "WITH place AS ("
            " SELECT CASE $1::text WHEN 'pg_temp' THEN pg_my_temp_schema() ELSE to_regnamespace($1)::oid END AS number"
            "), tables AS (SELECT pg_class.oid, relname FROM pg_class, place"
            " WHERE relkind = 'r' AND relname = ANY($2) AND relnamespace = place.number)"
            " SELECT relname || '.' || attname, format_type(atttypid, atttypmod) || attnotnull"
            " FROM pg_attribute JOIN tables ON attrelid = tables.oid WHERE attnum > 0 AND NOT attisdropped"
            " UNION ALL SELECT 'index ' || indexrelid::regclass, pg_get_indexdef(indexrelid)"
            " FROM pg_index JOIN tables ON indrelid = tables.oid"
            " UNION ALL SELECT relname || ' ' || conname, pg_get_constraintdef(pg_constraint.oid)"
            " FROM pg_constraint JOIN tables ON conrelid = tables.oid"
            " UNION ALL SELECT proname || '(' || pg_get_function_arguments(oid) || ')', prosrc || prosecdef"
            " FROM pg_proc, place WHERE pronamespace = place.number",
            schema,
            [*TABLES],
        )
        place = re.compile(rf"\b({self.schema}|pg_temp(_\d+)?)\.")
        return {place.sub("", row[0]): place.sub("", row[1]) for row in found}

    def check_search_index(self) -> Iterator[str]:
        """Check that each entry of the search indexes has its message or memory."""
        for row in self.execute("SELECT node FROM messages_fts EXCEPT SELECT id FROM nodes"):
            yield f"messages_fts: {row['node']!r} is not a known message"
        for row in self.execute("SELECT id FROM memories_fts EXCEPT SELECT id FROM live_memories"):
            yield f"memories_fts: {row['id']} is not a known memory"


SETTINGS = "SELECT set_config('context_compiler.owner', $1, false), set_config('context_compiler.prefix', $2, false)"
"""Sets the owner of a connection, for the policy in `row_security.sql`."""


class PostgresStore(SQLStore):
    """A store in PostgreSQL, safe to use from many tasks, event loops, processes and machines at once.

    Its tables are created or migrated on first use. It gives the same guarantees as `SQLiteStore`: a saved request is
    committed, the same span is never compiled twice, and `verify` checks every row.

    Args:
        source: A pool with asyncpg's interface, which the caller must close, an address (`postgresql://…`), or a
            `Postgres` with either.
        schema: The schema of the tables.
        read_only: Never write; a missing record is an error.
        row_security: Set the owner for all statements of a connection, as the policy in `row_security.sql` requires.

    Raises:
        StoreError: Any method raises it, with the place and a remedy, if the database cannot be used.
    """

    def __init__(
        self,
        source: Postgres | Pool | str,
        *,
        schema: str = SCHEMA,
        read_only: bool = False,
        row_security: bool = False,
    ) -> None:
        self.database = source if isinstance(source, Postgres) else Postgres(source, schema=schema)
        self.read_only = read_only
        self.row_security = row_security
        self._memory: Memory = {}
        self._saves = count()
        self._indexing = set[asyncio.Task[None]]()

    def __repr__(self) -> str:
        owner = "" if self.owner == "" else f", owner={self.owner!r}"
        return f"PostgresStore({self.database.place!r}{', read_only=True' if self.read_only else ''}{owner})"

    @property
    def place(self) -> str:
        """The address without its password."""
        return self.database.place

    def writer(self) -> PostgresStore:
        """Return a writable store of the same database, which uses the same pool."""
        return PostgresStore(self.database, row_security=self.row_security)

    async def perform(
        self,
        work: Callable[[Database], T],
        *,
        patient: bool = False,
        first: Callable[[PostgresDatabase], Awaitable[T | None]] | None = None,
    ) -> T:
        """Run a function on a connection; retry it after a conflict with another transaction or a lost server.

        Args:
            work: The function; it may be called several times.
            patient: Wait for each answer as long as it takes.
            first: A coroutine to try before `work`, without a greenlet; it returns None if it did nothing.
        """
        timeout = None if patient else self.database.patience_s
        for is_last in (False, True):
            used: list[PostgresDatabase] = []
            try:
                return await self.database.run(
                    partial(self._attempt, work, first, timeout, used), needs=RECORD, read_only=self.read_only
                )
            except StoreError as error:
                is_lost = isinstance(error.__cause__, (*LOST, asyncpg.UndefinedTableError))
                if is_last or not is_lost or any(db.committing for db in used):
                    raise
        raise AssertionError

    async def _attempt(
        self,
        work: Callable[[Database], T],
        first: Callable[[PostgresDatabase], Awaitable[T | None]] | None,
        timeout: float | None,
        used: list[PostgresDatabase],
        connection: Connection,
    ) -> T:
        db = PostgresDatabase(connection, self.database.schema, timeout)
        db.owner, db.tried = self.owner, self.tried
        used.append(db)
        if self.row_security:
            given = ("", "") if self.owner is None else (f"o:{self.owner}", f"p:{prefix(self.owner)}")
            await connection.execute(SETTINGS, *given, timeout=timeout)
        try:
            if first is not None and (found := await first(db)) is not None:
                return found
            for _ in range(ATTEMPTS - 1):
                with suppress(*CONFLICTS):
                    return await db.perform(work)
            return await db.perform(work)
        finally:
            if self.row_security and not connection.is_closed():
                await connection.execute("RESET ALL", timeout=timeout)

    async def save(self, entry: Entry) -> Record:
        """Save an entry in one transaction and return its record with `id` and `summary_id`."""
        if self.tried is not None:  # the fast path does not check for removals
            return await super().save(entry)
        given = {"entry": entry, "memory": self._memory}
        saved = await self.perform(partial(save, **given), first=partial(save_fast, **given))
        if next(self._saves) % SAVES_PER_STEP == 0 and not self._indexing:
            task = asyncio.create_task(self._index())
            self._indexing.add(task)
            task.add_done_callback(self._indexing.discard)
        return saved

    async def archive(self, session_id: str, vault_name: str, raw: Chain) -> None:
        """Save a raw history without a request, as the newest history of its conversation."""
        if self.tried is not None:
            return await super().archive(session_id, vault_name, raw)
        given = {"session_id": session_id, "vault_name": vault_name, "raw": raw, "memory": self._memory}
        await self.perform(partial(archive, **given), first=partial(archive_fast, **given))

    async def _index(self) -> None:
        """Index the texts that are not indexed yet; if that fails, they are left for the next time."""
        with suppress(StoreError):
            while await self.perform(lambda db: db.index_waiting()):
                pass

    async def enable_row_security(self, role: str | None = None) -> None:
        """Enable row-level security: roles other than the owner of the tables see the rows of one owner only.

        Call it as the owner of the tables.

        Args:
            role: A role that is granted the rights it needs on the record, and loses its rights on other tables of the
                schema.

        Raises:
            StoreError: The connection's user may not change the tables.
        """
        policy = Path(__file__).with_name("row_security.sql").read_text(encoding="utf-8")

        async def enable(connection: Connection) -> None:
            async with connection.transaction():
                await connection.execute("SELECT set_config('context_compiler.role', $1, true)", role or "")
                await connection.execute(policy.replace("{schema}", self.database.schema))

        await self.database.run(enable, needs=RECORD)

    async def maintain(self, work: Callable[[Database], T]) -> T:
        """Run a function that may take long, and wait for each answer as long as it takes."""
        return await self.perform(work, patient=True)

    async def export(self) -> AsyncGenerator[Mapping[str, object]]:
        """Yield every row of one snapshot as a JSON-ready mapping, read page by page in one transaction."""
        loop, pages = asyncio.get_running_loop(), asyncio.Queue[list[Mapping[str, object]]](1)
        stopped = False

        def read(db: Database) -> None:
            found = maintenance.export(db)
            while not stopped and (page := list(islice(found, PAGE))):
                cast(PostgresDatabase, db).wait(
                    asyncio.wrap_future(asyncio.run_coroutine_threadsafe(pages.put(page), loop))
                )
            found.close()

        async def fill() -> None:
            try:
                await self.perform(read, patient=True)
            finally:
                if not stopped:
                    await pages.put([])

        filling = asyncio.create_task(fill())
        try:
            while page := await pages.get():
                for row in page:
                    yield row
        finally:
            stopped = True
            while not filling.done():
                while not pages.empty():
                    pages.get_nowait()
                await asyncio.wait({filling}, timeout=0.01)
        await filling

    async def close(self) -> None:
        """Close the connections of its own pool; the next use opens them again."""
        here = asyncio.get_running_loop()
        if indexing := [task for task in self._indexing if task.get_loop() is here]:
            await asyncio.wait(indexing)
        await self.database.close()
