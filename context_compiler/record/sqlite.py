"""SQLite as a `Database`: transactions, search indexes and checks."""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import cache
from typing import Any

from context_compiler.errors import StoreError
from context_compiler.record import rows
from context_compiler.record.database import Moment
from context_compiler.record.schema import create
from context_compiler.record.tables import SEALED

log = logging.getLogger("context_compiler.store")


class SQLiteDatabase(sqlite3.Connection):
    """A connection that works for one owner at a time."""

    owner: str | None = ""
    """Owner whose rows are read and written; None reads the rows of every owner."""
    tried: Moment | None = None
    """When its writes were first attempted; a write is refused if anything has been removed since. None means now."""
    damage: tuple[type[Exception], ...] = (sqlite3.DatabaseError,)
    """Errors that reading a damaged record may raise."""

    def scan(self, sql: str, parameters: Sequence[Any] = ()) -> Iterator[Any]:
        """Yield the rows of a query whose result may be large; call it within `snapshot`."""
        return self.execute(sql, parameters)

    @contextmanager
    def lenient(self) -> Generator[None]:
        """Read damaged texts too, with a lone surrogate for each damaged byte; else they are an error.

        Within `snapshot`, an error in `damage` that is raised through it leaves the snapshot readable.
        """
        strict, self.text_factory = self.text_factory, decode_leniently
        try:
            yield
        finally:
            self.text_factory = strict

    @contextmanager
    def transaction(self) -> Generator[None]:
        """Run a write transaction; an error rolls it back."""
        with rows.transaction(self):
            rows.refuse_removed(self)
            unemptied, _ = rows.counter(self, rows.UNEMPTIED)
            yield
        if unemptied:
            patience: int = self.execute("PRAGMA busy_timeout").fetchone()[0]
            self.execute("PRAGMA busy_timeout = 0")
            self._empty_log()
            self.execute(f"PRAGMA busy_timeout = {patience:d}")

    def snapshot(self) -> AbstractContextManager[None]:
        """Run a read transaction, which sees one state of the file regardless of concurrent writes."""
        return rows.snapshot(self)

    @contextmanager
    def sweep(self) -> Generator[None]:
        """Run a transaction that removes rows, and overwrite their data on disk.

        If other processes read for longer than the busy timeout, the data is overwritten after the next transaction of
        any process, or when the last of them closes the file. Foreign keys are checked once at the end, because each
        check of a single row would scan whole tables; those of messages are not, because messages and contents are
        removed by a query over these very columns.
        """
        self.execute("PRAGMA foreign_keys = OFF")
        try:
            with self.lenient(), self.transaction():
                broken = self._broken_references()
                self._note_numbers()
                yield
                if self._broken_references() > broken:
                    raise StoreError("remaining rows refer to removed ones, so nothing was removed; verify the record")
                rows.add_to_counter(self, rows.UNEMPTIED, 1)
        finally:
            self.execute("PRAGMA foreign_keys = ON")
        if not self._empty_log():
            log.warning("removed data stays on disk until no other process is reading or writing this record")

    def _broken_references(self) -> int:
        """Number of foreign keys of rows, except messages, that refer to rows that do not exist."""
        tables = self.execute("SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table'").fetchall()
        checked = (f'PRAGMA foreign_key_check("{row[0]}")' for row in tables if row[0] != "nodes")
        return sum(len(self.execute(check).fetchall()) for check in checked)

    def _note_numbers(self) -> None:
        """Record the highest row numbers, so that none is reused; a request in progress may name a removed compile."""
        numbers = [(table, self.next_number(table) - 1) for table in SEALED]
        query = "INSERT INTO numbers VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET highest = excluded.highest"
        self.executemany(query, numbers)

    def _empty_log(self) -> bool:
        """Return free pages to the disk and empty the log; False if another process is reading or writing.

        A counter in the file says that removed rows may still be in the log, so that any process can empty it.
        """
        emptied = False
        with suppress(sqlite3.OperationalError):  # another writer is active
            marked = rows.counter(self, rows.UNEMPTIED)
            self.executescript("PRAGMA incremental_vacuum")  # `execute` would stop after the first page
            emptied = not self.execute("PRAGMA wal_checkpoint (TRUNCATE)").fetchone()[0]
            if emptied:  # unless another process has removed more since then
                self.execute("DELETE FROM counters WHERE name = ? AND number = ? AND at = ?", (rows.UNEMPTIED, *marked))
        return emptied

    def lock_name(self, name: str) -> None:
        """Take a lock on a name until the transaction ends: nothing to do, as SQLite allows one writer at a time."""

    def clock(self) -> float:
        """Return the time in seconds, by a clock that all writers of the record share: that of the machine."""
        return time.time()

    def next_number(self, table: str) -> int:
        """Return a number that no row of the table has ever had."""
        former = "(SELECT highest FROM numbers WHERE name = ?)"
        query = f"SELECT max(ifnull(max(rowid), 0), ifnull({former}, 0)) + 1 FROM {table}"
        return int(self.execute(query, (table,)).fetchone()[0])

    def index_messages(self, texts: Sequence[tuple[str, str]]) -> None:
        """Add texts of messages to the search index, as `(message id, text)`."""
        self.executemany("INSERT INTO messages_fts (node, text) VALUES (?, ?)", texts)

    def index_waiting(self) -> bool:
        """Index some of the texts that are not indexed yet; True if more may be left: never, as all are at once."""
        return False

    def find_messages(self, words: Sequence[str], limit: int | None, *, prefix: str | None) -> list[tuple[str, str]]:
        """Find messages that contain a phrase, newest first, as `(message id, text)`.

        Args:
            words: The words of the phrase; the last may be the beginning of a longer word.
            limit: Maximum number of messages; None finds all.
            prefix: The owner prefix of the messages; None finds those of every owner.
        """
        matches = self.execute(
            "SELECT node, text FROM messages_fts WHERE messages_fts MATCH ?1"
            " AND (?3 IS NULL OR substr(node, 1, instr(node, '/')) = ?3) ORDER BY rowid DESC LIMIT ?2",
            (f'"{" ".join(words)}"*', -1 if limit is None else limit, prefix),
        )
        return [(row[0], row[1]) for row in matches]

    def index_memory(self, number: int, terms: str) -> None:
        """Add the terms of a memory to the search index."""
        self.execute("INSERT INTO memories_fts (rowid, terms) VALUES (?, ?)", (number, terms))

    def find_memories(self, session: int, terms: Sequence[str], limit: int) -> list[Any]:
        """Find the best matches in a session for any term, by BM25, as `id`, `created_at`, `position` and `body`."""
        return self.execute(
            "SELECT m.id, m.created_at, m.position, t.body FROM memories_fts f JOIN live_memories l ON l.id = f.rowid"
            " JOIN memories m ON m.id = l.memory JOIN contents t ON t.hash = m.content"
            " WHERE memories_fts MATCH ? AND l.session = ? ORDER BY f.rank LIMIT ?",
            (" OR ".join(map(_quoted, terms)), session, limit),
        ).fetchall()

    def memories_with(self, session: int, phrase: str) -> list[Any]:
        """Find indexed memories with a phrase, as `number`, `memory`, `id`, `created_at` and `body`."""
        return self.execute(
            "SELECT l.id AS number, l.memory, m.id, m.created_at, t.body FROM memories_fts f"
            " JOIN live_memories l ON l.id = f.rowid JOIN memories m ON m.id = l.memory"
            " JOIN contents t ON t.hash = m.content WHERE memories_fts MATCH ? AND l.session = ?",
            (_quoted(phrase), session),
        ).fetchall()

    def live_memories(self) -> list[tuple[int, str, str | None]]:
        """Live memories of all sessions in order, as `(session, memory, terms)`; terms are None if not indexed."""
        query = (
            "SELECT l.session, l.memory, f.terms FROM live_memories l LEFT JOIN memories_fts f ON f.rowid = l.id"
            " ORDER BY l.id"
        )
        return [(row[0], row[1], row[2]) for row in self.execute(query)]

    def clean_indexes(self, gone: Sequence[str] | None = None) -> None:
        """Remove search-index entries whose messages (all, or those with these names) or memories no longer exist."""
        chosen = "NOT IN (SELECT id FROM nodes)" if gone is None else "IN (SELECT value FROM json_each(?1))"
        parameters = () if gone is None else (json.dumps(gone),)
        if self.execute(f"DELETE FROM messages_fts WHERE node {chosen}", parameters).rowcount:
            self.execute("INSERT INTO messages_fts (messages_fts) VALUES ('optimize')")
        self.execute("DELETE FROM memories_fts WHERE rowid NOT IN (SELECT id FROM live_memories)")
        # Entries are removed with their sessions too, and stay in the segments of the index until these are merged.
        self.execute("INSERT INTO memories_fts (memories_fts) VALUES ('optimize')")

    def check_structure(self) -> Iterator[str]:
        """Check pages, indexes and foreign keys."""
        for row in self.execute("PRAGMA integrity_check"):
            if row[0] != "ok":
                yield f"database: {row[0]}"
        for row in self.execute("PRAGMA foreign_key_check"):
            yield f"{row[0]} {row[1]}: points into {row[2]} at a row that does not exist"

    def check_schema(self) -> Iterator[str]:
        """Check that the tables are defined exactly as in a new file."""
        query = "SELECT name, sql FROM sqlite_master WHERE name NOT LIKE '%!_fts!_%' ESCAPE '!'"
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as new:
            create(new)
            expected = dict(new.execute(query).fetchall())
        actual = {row["name"]: row["sql"] for row in self.execute(query)}
        for name in sorted(expected.keys() | actual.keys()):
            if actual.get(name) != expected.get(name):
                yield f"schema: {name} differs from a new record"

    def check_search_index(self) -> Iterator[str]:
        """Check that each indexed text has a message and, unless the file is read-only, that the indexes are intact."""
        for row in self.execute("SELECT node FROM messages_fts WHERE node NOT IN (SELECT id FROM nodes)"):
            yield f"messages_fts: {row['node']!r} is not a known message"
        try:
            for table in ("messages_fts", "memories_fts"):
                self.execute(f"INSERT INTO {table} ({table}) VALUES ('integrity-check')")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_BUSY):
                raise


def decode_leniently(text: bytes) -> str:
    """Decode UTF-8; a damaged byte becomes a lone surrogate, which no sound text of a record contains."""
    return text.decode("utf-8", "surrogateescape")


def _quoted(phrase: str) -> str:
    return '"' + phrase.replace('"', '""') + '"'


def open_memory() -> SQLiteDatabase:
    """Create an empty record in memory, for use by one thread at a time."""
    db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, factory=SQLiteDatabase)
    db.row_factory = sqlite3.Row
    with closing(sqlite3.connect(":memory:")) as empty:
        empty.deserialize(_empty_record())
        empty.backup(db)  # a copy, because a deserialized database may not grow
    db.execute("PRAGMA foreign_keys = ON")
    return db


@cache
def _empty_record() -> bytes:
    """Return the bytes of an empty record; copying them takes a twentieth of the time of creating its tables."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        create(db)
        return db.serialize()
