"""The tables of the record, and how an older file becomes a current one.

`MIGRATIONS` is a list of functions; `PRAGMA user_version` counts how many of them a file has seen, and
`PRAGMA application_id` says that the file is ours. Each column that ends in `_tip` names a node; the
texts and payloads of a compile and the state of a cycle are hashes into `contents`. A `seal` is a
checksum of the other columns of its row: messages prove themselves by their names, counters cannot.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager

from context_compiler.errors import StoreError
from context_compiler.record import memory_tables

APPLICATION_ID = 0x63747863  # "ctxc"

TABLES = (
    """CREATE TABLE contents (
        hash TEXT PRIMARY KEY,
        body NOT NULL                   -- text as it is; a blob is compressed with zlib
    )""",
    """CREATE TABLE nodes (
        id TEXT PRIMARY KEY,
        parent TEXT REFERENCES nodes(id),
        content TEXT NOT NULL REFERENCES contents(hash),
        position INTEGER NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE sessions (
        id INTEGER PRIMARY KEY,
        session_id TEXT NOT NULL,
        vault_name TEXT NOT NULL,
        raw_tip TEXT,
        created_at TEXT NOT NULL,
        seal TEXT NOT NULL,
        UNIQUE (session_id, vault_name)
    )""",
    """CREATE TABLE copies (             -- a message whose times and run ids are another conversation's in `nodes`
        session INTEGER NOT NULL REFERENCES sessions(id),
        node TEXT NOT NULL REFERENCES nodes(id),
        content TEXT NOT NULL REFERENCES contents(hash),
        PRIMARY KEY (session, node)
    ) WITHOUT ROWID""",
    """CREATE TABLE context_summaries (
        id INTEGER PRIMARY KEY,
        session INTEGER NOT NULL REFERENCES sessions(id),
        turn_index INTEGER NOT NULL,
        run_id TEXT,
        covered_tip TEXT NOT NULL,
        cache_key TEXT UNIQUE,          -- NULL unless status is ok
        template_name TEXT NOT NULL,
        template_source TEXT NOT NULL,
        template_path TEXT,
        template_hash TEXT NOT NULL,
        fidelity TEXT NOT NULL,
        model_alias TEXT NOT NULL,
        compiled_prompt TEXT REFERENCES contents(hash),
        raw_output TEXT REFERENCES contents(hash),
        summary TEXT REFERENCES contents(hash),
        summary_json TEXT,
        input_payload TEXT REFERENCES contents(hash),
        sections_included TEXT NOT NULL,
        sections_dropped TEXT NOT NULL,
        budget_used INTEGER NOT NULL,
        survival REAL,
        latency_ms REAL NOT NULL,
        usage TEXT NOT NULL,
        status TEXT NOT NULL,
        error TEXT,
        created_at TEXT NOT NULL,
        seal TEXT NOT NULL
    )""",
    "CREATE INDEX summaries_of_session ON context_summaries (session)",
    """CREATE TABLE cycles (
        session INTEGER NOT NULL REFERENCES sessions(id),
        raw_tip TEXT NOT NULL,
        config TEXT NOT NULL,           -- how its views are written: another way has cycles of its own
        state TEXT NOT NULL REFERENCES contents(hash),
        seal TEXT NOT NULL,
        PRIMARY KEY (raw_tip, config, session)
    )""",
    """CREATE TABLE views (
        id INTEGER PRIMARY KEY,
        session INTEGER NOT NULL REFERENCES sessions(id),
        turn_index INTEGER NOT NULL,
        run_id TEXT,
        request_index INTEGER NOT NULL,
        raw_tip TEXT,
        view_tip TEXT,
        summary INTEGER REFERENCES context_summaries(id),
        status TEXT NOT NULL,
        error TEXT,
        budget INTEGER,
        tokens_raw INTEGER NOT NULL,
        tokens_sent INTEGER NOT NULL,
        tokens_exact INTEGER NOT NULL,
        ratio REAL NOT NULL,
        ledger TEXT NOT NULL,
        request_hash TEXT,
        latency_ms REAL NOT NULL,
        created_at TEXT NOT NULL,
        seal TEXT NOT NULL
    )""",
    """CREATE UNIQUE INDEX views_once ON views (
        session, ifnull(run_id, ''), request_index, ifnull(raw_tip, ''), ifnull(view_tip, '')
    )""",
    "CREATE VIRTUAL TABLE messages_fts USING fts5(text, node UNINDEXED)",
)


def first(db: sqlite3.Connection) -> None:
    """The tables as they were first published."""
    for statement in TABLES:
        db.execute(statement)
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def memories(db: sqlite3.Connection) -> None:
    """What sessions remember, the commits that they can go back to, and how their turns were scored."""
    for statement in memory_tables.TABLES:
        db.execute(statement)


def layers(db: sqlite3.Connection) -> None:
    """What sessions know of entities, conversation and reasoning: the newest state of each."""
    db.execute(
        """CREATE TABLE layers (
        session INTEGER NOT NULL UNIQUE REFERENCES sessions(id),
        version INTEGER NOT NULL,
        state TEXT NOT NULL,
        seal TEXT NOT NULL
    )"""
    )


MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (first, memories, layers)
"""In order; only ever appended to."""


@contextmanager
def transaction(db: sqlite3.Connection) -> Generator[None]:
    """Writing: all of it or nothing of it."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


@contextmanager
def snapshot(db: sqlite3.Connection) -> Generator[None]:
    """Reading: one picture of the file, whatever others write meanwhile."""
    db.execute("BEGIN DEFERRED")
    try:
        yield
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def version_of(db: sqlite3.Connection) -> int:
    """How many migrations the file has seen; 0 for a new one.

    Raises:
        StoreError: the file belongs to another program, or to a newer version of this one.
    """
    with snapshot(db):
        return _version(db)


def migrate(db: sqlite3.Connection) -> None:
    """Bring a file up to date; two processes may do so at once, and doing it again changes nothing."""
    if version_of(db) == len(MIGRATIONS):
        return
    with transaction(db):
        for step in MIGRATIONS[_version(db) :]:
            step(db)
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def _version(db: sqlite3.Connection) -> int:
    """What the file says of itself; three questions, to be asked of one picture of it."""
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    owner = int(db.execute("PRAGMA application_id").fetchone()[0])
    tables = int(db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
    if owner != APPLICATION_ID and (owner or version or tables):
        raise StoreError("the database belongs to another program; give the record a file of its own")
    if version > len(MIGRATIONS):
        raise StoreError(
            f"the record was written by a newer version (schema {version}, this one knows {len(MIGRATIONS)});"
            " upgrade context-compiler, or give it another file"
        )
    return version
