"""PostgreSQL as a `Database`: translates the statements, and searches messages and memories.

Its methods are synchronous. They run in a greenlet, which waits for each answer on the event loop of the connection.
Indexing the words of a text is a third of the work of saving it, so it is done for many texts at once, after several
saves. Until then a text is in the table without its words, and a search reads the text itself.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import copy_context
from math import log
from operator import itemgetter
from typing import Any, TypeVar, cast

import asyncpg  # pyright: ignore[reportMissingTypeStubs]
from greenlet import getcurrent, greenlet

from context_compiler.record.database import PAGE, Moment
from context_compiler.record.dialect import (
    MARK,
    NO_NULLS,
    Statement,
    escape,
    has_phrase,
    indexed_words,
    translate,
    unescape,
    words_of,
)
from context_compiler.record.pool import CONFLICTS, FAILURES, Connection
from context_compiler.record.postgres_tables import RECORD, TABLES
from context_compiler.record.rows import PLAIN, refuse_removed
from context_compiler.record.schema import APPLICATION_ID
from context_compiler.record.tables import REFERENCES

T = TypeVar("T")

DAMAGE = (asyncpg.DataError, asyncpg.SyntaxOrAccessError, asyncpg.PostgresSystemError, asyncpg.InternalServerError)
"""Errors of damaged data or tables. All others, such as a query that was cancelled, say nothing about the record."""

SAVES_PER_STEP, TEXTS_PER_STEP = 32, 256
"""Saves between two indexing steps, and maximum texts that are indexed in one step."""

OF_OWNER = "($1 OR substr(node, 1, strpos(node, '/')) = $2)"
"""Condition for messages of every owner if `$1` is true, or else of the owner with the prefix `$2`."""


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


def _escape_text(value: object) -> object:
    return escape(value) if isinstance(value, str) else value


class PostgresDatabase:
    """A connection with the methods of `SQLiteDatabase`, which are called within `perform`."""

    owner: str | None = ""
    tried: Moment | None = None
    damage: tuple[type[Exception], ...] = DAMAGE

    def __init__(self, connection: Connection, schema: str, timeout: float | None) -> None:
        self.connection = connection
        self.schema = schema
        self.timeout = timeout
        self.committing = False
        """True while it is unknown whether a transaction was committed."""
        self.in_transaction = False

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
        nulls = frozenset(i for i, value in enumerate(parameters) if value is None) if " IS NULL" in sql else NO_NULLS
        return translate(sql, self.schema, nulls)

    def _arguments(self, statement: Statement, parameters: Sequence[Any]) -> list[Any]:
        arguments = [json.loads(value) if index in statement.lists else value for index, value in enumerate(parameters)]
        if statement.body is not None and isinstance(body := arguments[statement.body], str):
            arguments[statement.body] = PLAIN + body.encode()  # its stored form as bytes; see `rows.pack`
        return [
            [*map(_escape_text, cast("list[object]", value))] if isinstance(value, list) else _escape_text(value)
            for value in arguments
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
            arguments = [self._arguments(statement, row) for row in parameters]
            if len(arguments) == 1:
                self.run(statement.text, *arguments[0], returns_rows=False)
            else:
                self.wait(self.connection.executemany(statement.text, arguments, timeout=self.timeout))

    def scan(self, sql: str, parameters: Sequence[Any] = ()) -> Iterator[Any]:
        """Yield the rows of a query whose result may be large; call it within a transaction."""
        statement = self._statement(sql, parameters)
        cursor = self.wait(self.connection.cursor(statement.text, *self._arguments(statement, parameters)))
        while page := self.wait(cursor.fetch(PAGE)):
            yield from map(_unescape_row, page)

    @contextmanager
    def lenient(self) -> Generator[None]:
        """Keep an error of damaged data from ending the transaction; PostgreSQL stores only valid texts."""
        if not self.in_transaction:
            yield
            return
        self.run("SAVEPOINT undamaged", returns_rows=False)
        try:
            yield
        except DAMAGE:
            self.run("ROLLBACK TO undamaged", returns_rows=False)
            raise
        self.run("RELEASE undamaged", returns_rows=False)

    @contextmanager
    def _run_transaction(self, begin: str) -> Generator[None]:
        """Run a transaction that the statements `begin` start; an error rolls it back."""
        self.wait(self.connection.execute(begin, timeout=self.timeout))
        is_open = self.in_transaction = True
        try:
            yield
            self.committing = True
            self.wait(self.connection.execute("COMMIT", timeout=self.timeout))
            self.committing = is_open = False
        finally:
            self.in_transaction = False
            if is_open and not self.connection.is_closed():
                with suppress(*FAILURES):  # the connection may be gone, and the transaction with it
                    self.wait(self.connection.execute("ROLLBACK", timeout=self.timeout))

    @property
    def patience_ms(self) -> str | None:
        """Milliseconds to wait for a lock, as text; None to wait as long as it takes."""
        return None if self.timeout is None else f"{self.timeout * 1_000:.0f}"

    def _run_write(self, lock: str) -> AbstractContextManager[None]:
        """Run a transaction that first calls the SQL function `lock` on the record, within the lock timeout."""
        limit = "" if self.patience_ms is None else f"SET LOCAL lock_timeout = {self.patience_ms};"
        return self._run_transaction(f"BEGIN; {limit} SELECT {lock}({APPLICATION_ID}, 1)")

    @contextmanager
    def transaction(self) -> Generator[None]:
        """Run a write transaction, concurrently with others; an error rolls it back."""
        with self._run_write("pg_advisory_xact_lock_shared"):
            refuse_removed(self)
            yield

    def snapshot(self) -> AbstractContextManager[None]:
        """Run a read transaction, which sees one state of the record."""
        return self._run_transaction("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def sweep(self) -> AbstractContextManager[None]:
        """Run a transaction that removes rows; no other transaction writes meanwhile."""
        return self._run_write("pg_advisory_xact_lock")

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
        """Index up to `TEXTS_PER_STEP` texts, in rows of `ROW_WORDS` words; True if more may be left.

        The commit does not wait for the disk: if a power failure undoes it, the texts are simply not indexed yet.
        """
        with self.transaction():
            self.run("SET LOCAL synchronous_commit = off", returns_rows=False)
            waiting = self.run(
                f"SELECT number, node, text FROM {self.schema}.messages_fts WHERE words IS NULL"
                " ORDER BY number LIMIT $1 FOR UPDATE SKIP LOCKED",
                TEXTS_PER_STEP,
            ).fetchall()
            parts = [(number, node, indexed_words(text or "")) for number, node, text in waiting]
            more_rows = [(node, part) for _, node, every in parts for part in every[1:]]
            if more_rows:
                self.run(
                    f"INSERT INTO {self.schema}.messages_fts (node, words) SELECT n.node, n.words::tsvector"
                    " FROM unnest($1::text[], $2::text[]) AS n (node, words)",
                    *([row[column] for row in more_rows] for column in range(2)),
                    returns_rows=False,
                )
            if parts:
                self.run(
                    f"UPDATE {self.schema}.messages_fts f SET words = n.words::tsvector"
                    " FROM unnest($1::bigint[], $2::text[]) AS n (number, words) WHERE f.number = n.number",
                    [number for number, _, _ in parts],
                    [every[0] for _, _, every in parts],
                    returns_rows=False,
                )
        return len(waiting) == TEXTS_PER_STEP

    def find_messages(self, words: Sequence[str], limit: int | None, *, prefix: str | None) -> list[tuple[str, str]]:
        """Find messages that contain a phrase, newest first, as `(message id, text)`."""
        phrase = words_of(" ".join(words))
        if not phrase:
            return []
        query = " <-> ".join(f"'{word}'" for word in phrase) + ":*"
        owner = (prefix is None, prefix or "")
        waiting = self.run(
            f"SELECT number, node, text FROM {self.schema}.messages_fts WHERE words IS NULL AND {OF_OWNER}", *owner
        )
        matches = [row for row in waiting if has_phrase(row[2], phrase)]  # first, so that no text is indexed in between
        matches += self.run(
            f"SELECT number, node, text FROM {self.schema}.messages_fts WHERE text IS NOT NULL AND node IN ("
            f" SELECT node FROM {self.schema}.messages_fts WHERE words @@ CAST($3::text AS tsquery) AND {OF_OWNER}"
            ") ORDER BY number DESC LIMIT $4",
            *(*owner, query, limit),
        )
        newest = {row[1]: row[2] for row in sorted(matches, key=itemgetter(0), reverse=True)}
        return list(newest.items())[:limit]

    def index_memory(self, number: int, terms: str) -> None:
        """Add the terms of a memory to the search index."""
        query = f"INSERT INTO {self.schema}.memories_fts (id, terms) VALUES ($1, string_to_array($2, ' '))"
        self.run(query, number, _escape_text(terms), returns_rows=False)

    def find_memories(self, session: int, terms: Sequence[str], limit: int) -> list[Any]:
        """Find the best matches in a session by BM25."""
        matches = self.run(
            "SELECT m.id, m.created_at, m.position, t.body, f.terms"
            f" FROM {self.schema}.memories_fts f JOIN {self.schema}.live_memories l ON l.id = f.id"
            f" JOIN {self.schema}.memories m ON m.id = l.memory JOIN {self.schema}.contents t ON t.hash = m.content"
            " WHERE l.session = $1 AND f.terms && $2::text[]",
            session,
            [*map(_escape_text, terms)],
        ).fetchall()
        score = bm25([row["terms"] for row in matches], [*map(escape, terms)])
        return sorted(matches, key=score, reverse=True)[:limit]

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

    def live_memories(self) -> list[tuple[int, str, str | None]]:
        """Live memories of all sessions in order, as `(session, memory, terms)`."""
        query = (
            "SELECT l.session, l.memory, array_to_string(f.terms, ' ') FROM live_memories l"
            " LEFT JOIN memories_fts f ON f.id = l.id ORDER BY l.id"
        )
        return [(row[0], row[1], row[2]) for row in self.execute(query)]

    def clean_indexes(self, gone: Sequence[str] | None = None) -> None:
        """Remove search-index entries whose messages (all, or those with these names) or memories no longer exist."""
        removed, parameters = "SELECT node FROM messages_fts EXCEPT SELECT id FROM nodes", ()
        if gone is not None:
            removed, parameters = "SELECT value FROM json_each(?)", (json.dumps(gone),)
        self.execute(f"DELETE FROM messages_fts WHERE node IN ({removed})", parameters)
        removed = "SELECT id FROM memories_fts EXCEPT SELECT id FROM live_memories"
        self.execute(f"DELETE FROM memories_fts WHERE id IN ({removed})")

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
        actual = self._definitions(self.schema)
        try:
            with self._run_transaction("BEGIN"):
                self.run(RECORD.script("pg_temp"), returns_rows=False)
                expected = self._definitions("pg_temp")
                self.run("ROLLBACK", returns_rows=False)
        except (asyncpg.ReadOnlySQLTransactionError, asyncpg.InsufficientPrivilegeError):
            return
        for name in sorted(expected.keys() | actual.keys()):
            if actual.get(name) != expected.get(name):
                yield f"schema: {name} differs from a new record"

    def _definitions(self, schema: str) -> dict[str, str]:
        """Definitions of the columns, indexes, constraints and functions of the record in a schema, by name."""
        definitions = self.run(
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
        qualifier = re.compile(rf"\b({self.schema}|pg_temp(_\d+)?)\.")
        return {qualifier.sub("", row[0]): qualifier.sub("", row[1]) for row in definitions}

    def check_search_index(self) -> Iterator[str]:
        """Check that each entry of the search indexes has its message or memory."""
        for row in self.execute("SELECT node FROM messages_fts EXCEPT SELECT id FROM nodes"):
            yield f"messages_fts: {row['node']!r} is not a known message"
        for row in self.execute("SELECT id FROM memories_fts EXCEPT SELECT id FROM live_memories"):
            yield f"memories_fts: {row['id']} is not a known memory"


def bm25(documents: Sequence[Sequence[str]], terms: Sequence[str]) -> Callable[[Any], float]:
    """Return a function that scores a matching row by BM25; `documents` are the terms of each matching row."""
    average = sum(map(len, documents)) / max(len(documents), 1)
    frequencies = {term: sum(term in set(document) for document in documents) for term in terms}

    def score(row: Any) -> float:
        counts, length = Counter[str](row["terms"]), 0.25 + 0.75 * len(row["terms"]) / max(average, 1.0)
        return sum(
            log(1 + len(documents) / frequency) * counts[term] * 2.2 / (counts[term] + 1.2 * length)
            for term, frequency in frequencies.items()
            if counts[term]
        )

    return score
