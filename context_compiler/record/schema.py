"""The tables of the record in SQLite.

`PRAGMA user_version` is the version of the tables; `PRAGMA application_id` marks a file as a record. A `_tip` column
contains the id of a node, except in `cycles`, where it is a chain id. A `seal` is a checksum of the other columns of a
row; rows that are named by their content have none. `verify` compares the SQL text of each table with that of a new
file, comments included. Each change of a table raises `VERSION`: a file of another version is refused.
"""

from __future__ import annotations

import sqlite3

from context_compiler.errors import StoreError
from context_compiler.record.rows import snapshot, transaction

APPLICATION_ID = 0x63747863  # "ctxc"

VERSION = 13
"""Version of the tables, in SQLite and in PostgreSQL."""

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
    , instructions TEXT REFERENCES contents(hash)) WITHOUT ROWID""",
    """CREATE TABLE copies (             -- a message whose times and run ids are another conversation's in `nodes`
        session INTEGER NOT NULL REFERENCES sessions(id),
        node TEXT NOT NULL REFERENCES nodes(id),
        content TEXT NOT NULL REFERENCES contents(hash),
        PRIMARY KEY (session, node)
    ) WITHOUT ROWID""",
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
        model TEXT NOT NULL,            -- this and the next four repeat values of the ledger
        provider TEXT,
        cached INTEGER NOT NULL,
        cached_raw INTEGER NOT NULL,
        tokens_recall INTEGER NOT NULL,
        seal TEXT NOT NULL
    )""",
    """CREATE UNIQUE INDEX views_once ON views (
        session, ifnull(run_id, ''), request_index, ifnull(raw_tip, ''), ifnull(view_tip, '')
    )""",
    "CREATE INDEX views_of_session ON views (session)",
    "CREATE INDEX views_of_summary ON views (summary, session)",
    """CREATE INDEX views_summed ON views ( -- so that sums read no rows
        session, model, provider, tokens_raw, tokens_sent, cached, cached_raw, tokens_recall, status, latency_ms,
        created_at
    )""",
    "CREATE VIRTUAL TABLE messages_fts USING fts5(text, node UNINDEXED)",
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
    """CREATE TABLE layers (
        session INTEGER NOT NULL UNIQUE REFERENCES sessions(id),
        version INTEGER NOT NULL,
        state TEXT NOT NULL,
        seal TEXT NOT NULL
    )""",
    """CREATE TABLE "context_summaries" (
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
        compiled_prompt TEXT,
        raw_output TEXT,
        summary TEXT,
        summary_json TEXT,
        input_payload TEXT,
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
    """CREATE INDEX summaries_of_session ON context_summaries (
        session, template_name, model_alias, usage, latency_ms
    )""",
    """CREATE TABLE "sessions" (
        id INTEGER PRIMARY KEY,
        session_id TEXT NOT NULL,
        vault_name TEXT NOT NULL,
        raw_tip TEXT,
        created_at TEXT NOT NULL,
        owner TEXT NOT NULL,
        seal TEXT NOT NULL,
        UNIQUE (session_id, vault_name, owner)
    )""",
    "CREATE INDEX sessions_of_owner ON sessions (owner)",
    """CREATE TABLE conversations (      -- conversations of the host's store, each of which is a session too
        session INTEGER NOT NULL UNIQUE REFERENCES sessions(id),
        scope TEXT,
        head TEXT,                      -- the newest entry
        tips TEXT NOT NULL,             -- JSON: entries at the end of it and of every branch that it left
        state TEXT NOT NULL,            -- JSON: usage, deferred requests, forks
        revision TEXT NOT NULL,
        updated_at TEXT NOT NULL,
        seal TEXT NOT NULL
    )""",
    """CREATE TABLE entries (            -- messages of a conversation's log
        owner TEXT NOT NULL,
        id TEXT NOT NULL,
        parent TEXT,
        node TEXT NOT NULL REFERENCES nodes(id),
        content TEXT REFERENCES contents(hash),     -- NULL where it is the node's
        PRIMARY KEY (owner, id)
    ) WITHOUT ROWID""",
    "CREATE INDEX entries_by_id ON entries (id)",
    """CREATE TABLE actions (
        session INTEGER NOT NULL REFERENCES sessions(id),
        number INTEGER NOT NULL,
        kind TEXT NOT NULL,
        tip TEXT NOT NULL,              -- a chain id, as that of a cycle
        state TEXT NOT NULL,
        summary INTEGER REFERENCES context_summaries(id),
        created_at TEXT NOT NULL,
        seal TEXT NOT NULL,
        UNIQUE (session, number)
    )""",
    "CREATE INDEX actions_of_summary ON actions (summary)",
    """CREATE TABLE toolsets (           -- tools of the requests of a session with that hash
        id INTEGER PRIMARY KEY,
        session INTEGER NOT NULL REFERENCES sessions(id),
        request_hash TEXT NOT NULL,
        content TEXT NOT NULL REFERENCES contents(hash),
        seal TEXT NOT NULL,
        UNIQUE (session, request_hash)
    )""",
    """CREATE TABLE under_way (          -- the newest call of a model for a summary; no part of a copy
        session INTEGER PRIMARY KEY REFERENCES sessions(id),
        model TEXT NOT NULL,
        started_at TEXT NOT NULL,
        expires_at TEXT NOT NULL            -- the call has ended by then, whatever became of its process
    )""",
    """CREATE TABLE layer_pages (
        session INTEGER NOT NULL REFERENCES sessions(id),
        name TEXT NOT NULL,                 -- the hash of the body; the session's layers list it
        body TEXT NOT NULL,
        UNIQUE (session, name)
    )""",
    """CREATE TABLE counters (           -- no part of a copy
        name TEXT PRIMARY KEY,
        number INTEGER NOT NULL,
        at REAL NOT NULL                    -- last change, in seconds since 1970
    ) WITHOUT ROWID""",
    """CREATE TABLE numbers (            -- highest of tables from which rows were removed; no part of a copy
        name TEXT PRIMARY KEY,
        highest INTEGER NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE claims (             -- others wait for the answer until then; no part of a copy
        name TEXT PRIMARY KEY,              -- the cache key of the compile
        holder TEXT NOT NULL,
        until REAL NOT NULL                 -- seconds since 1970
    ) WITHOUT ROWID""",
)
"""The statements that create the tables and indexes, in order."""


def other_version(version: int, what: str) -> StoreError:
    """The error for a record of another version; `what` it is kept in: a file or a database."""
    return StoreError(
        f"the record was written by another version of context-compiler (schema {version}, this one knows {VERSION});"
        f" move it away or give another {what} to begin a new one"
    )


def version_of(db: sqlite3.Connection) -> int:
    """Return the version of the tables of a file; 0 for a new one.

    Raises:
        StoreError: The file belongs to another program, or to another version of this one.
    """
    with snapshot(db):
        return _version(db)


def create(db: sqlite3.Connection) -> None:
    """Create the tables of a new file; safe if several processes do so at once."""
    if version_of(db):
        return
    with transaction(db):
        if _version(db) == 0:
            for statement in TABLES:
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {VERSION}")


def _version(db: sqlite3.Connection) -> int:
    """Read the version of the file with three queries; call it in a transaction, so that they see one state."""
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    owner = int(db.execute("PRAGMA application_id").fetchone()[0])
    tables = int(db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
    if owner != APPLICATION_ID and (owner or version or tables):
        raise StoreError("the database belongs to another program; give the record a file of its own")
    if version not in (0, VERSION):
        raise other_version(version, "file")
    return version
