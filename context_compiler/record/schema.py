"""The tables of the record and their migrations.

`PRAGMA user_version` counts the `MIGRATIONS` applied to a file, and `PRAGMA application_id` marks it as a record. A
column that ends in `_tip` names a node; texts and payloads of a compile and the state of a cycle are hashes into
`contents`. A `seal` is a checksum of the other columns of its row, for rows that are not named by their content.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager

from context_compiler.errors import StoreError

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

MEMORY_TABLES = (
    """CREATE TABLE memories (           -- named as reached by all that was remembered before
        id TEXT PRIMARY KEY,
        parent TEXT REFERENCES memories(id),
        content TEXT NOT NULL REFERENCES contents(hash),
        position INTEGER NOT NULL,
        created_at TEXT NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE commits (            -- named by all its other columns
        id TEXT PRIMARY KEY,
        session INTEGER NOT NULL REFERENCES sessions(id),
        parent TEXT REFERENCES commits(id),
        memory_tip TEXT REFERENCES memories(id),
        turns_tip TEXT,
        state TEXT REFERENCES contents(hash),
        memories INTEGER NOT NULL,
        turns INTEGER NOT NULL,
        author TEXT NOT NULL,
        message TEXT NOT NULL,
        created_at TEXT NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE spaces (             -- where a session's memory and turns are now
        session INTEGER PRIMARY KEY REFERENCES sessions(id),
        memory_tip TEXT REFERENCES memories(id),
        head TEXT REFERENCES commits(id),
        turns_tip TEXT,
        state TEXT
    )""",
    """CREATE TABLE scores (
        id INTEGER PRIMARY KEY,
        session INTEGER NOT NULL REFERENCES sessions(id),
        turn_index INTEGER NOT NULL,
        turns_tip TEXT,
        quality REAL NOT NULL,
        health REAL NOT NULL,
        tokens INTEGER NOT NULL,
        summarized INTEGER NOT NULL,
        checkpoint TEXT,
        rolled_back INTEGER NOT NULL,
        trouble TEXT,
        created_at TEXT NOT NULL,
        seal TEXT NOT NULL
    )""",
    "CREATE INDEX scores_of_session ON scores (session)",
    """CREATE TABLE live_memories (      -- what the memory of a session holds now; the rest of `memories` was before
        id INTEGER PRIMARY KEY,
        session INTEGER NOT NULL REFERENCES sessions(id),
        memory TEXT NOT NULL REFERENCES memories(id),
        UNIQUE (session, memory)
    )""",
    "CREATE INDEX memories_by_content ON memories (content)",
    "CREATE VIRTUAL TABLE memories_fts USING fts5(terms)",
)


def create_record(db: sqlite3.Connection) -> None:
    """Create the tables of schema 1."""
    for statement in TABLES:
        db.execute(statement)
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def create_memories(db: sqlite3.Connection) -> None:
    """Create the tables of managed sessions: memories, commits and scores."""
    for statement in MEMORY_TABLES:
        db.execute(statement)


def create_layers(db: sqlite3.Connection) -> None:
    """Create the table of layers: the newest state of each session."""
    db.execute(
        """CREATE TABLE layers (
        session INTEGER NOT NULL UNIQUE REFERENCES sessions(id),
        version INTEGER NOT NULL,
        state TEXT NOT NULL,
        seal TEXT NOT NULL
    )"""
    )


MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (create_record, create_memories, create_layers)
"""In order; append only."""


@contextmanager
def transaction(db: sqlite3.Connection) -> Generator[None]:
    """A write transaction, rolled back on an error."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


@contextmanager
def snapshot(db: sqlite3.Connection) -> Generator[None]:
    """A read transaction: one state of the file, whatever others write meanwhile."""
    db.execute("BEGIN DEFERRED")
    try:
        yield
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def version_of(db: sqlite3.Connection) -> int:
    """Number of migrations applied to the file; 0 for a new one.

    Raises:
        StoreError: the file belongs to another program, or to a newer version of this one.
    """
    with snapshot(db):
        return _version(db)


def migrate(db: sqlite3.Connection) -> None:
    """Apply the migrations that the file lacks; two processes may do so at once."""
    if version_of(db) == len(MIGRATIONS):
        return
    with transaction(db):
        for step in MIGRATIONS[_version(db) :]:
            step(db)
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def _version(db: sqlite3.Connection) -> int:
    """The version of the file; three queries, which must see one state of it."""
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
