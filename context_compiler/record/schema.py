"""The tables of the record in SQLite, and their migrations.

`PRAGMA user_version` counts the `MIGRATIONS` applied to a file, and `PRAGMA application_id` marks it as a record. A
`_tip` column contains the id of a node, except in `cycles`, where it is a chain id. A `seal` is a checksum of the other
columns of a row; rows that are named by their content have none. `verify` compares the SQL text of each table with that
of a new file, comments included, so the text of an existing statement must not change. A migration runs on files of the
schema before it, so it names the columns of that schema, not those of `rows`.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Callable

from context_compiler import ids
from context_compiler.errors import StoreError
from context_compiler.record.rows import (
    NOT_RECORDED,
    Column,
    escape_surrogates,
    seal,
    snapshot,
    to_text,
    transaction,
    unpack,
)

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
    """Create the table of layers, which contains the newest state of each session."""
    db.execute(
        """CREATE TABLE layers (
        session INTEGER NOT NULL UNIQUE REFERENCES sessions(id),
        version INTEGER NOT NULL,
        state TEXT NOT NULL,
        seal TEXT NOT NULL
    )"""
    )


VIEW_3 = (
    *("session", "turn_index", "run_id", "request_index", "raw_tip", "view_tip", "summary", "status", "error"),
    *("budget", "tokens_raw", "tokens_sent", "tokens_exact", "ratio", "ledger", "request_hash"),
    *("latency_ms", "created_at"),
)
"""Sealed columns of a view in schema 3."""
SUMMARY_3 = (
    *("session", "turn_index", "run_id", "covered_tip", "cache_key"),
    *("template_name", "template_source", "template_path", "template_hash", "fidelity", "model_alias"),
    *("compiled_prompt", "raw_output", "summary", "summary_json", "input_payload"),
    *("sections_included", "sections_dropped", "budget_used", "survival", "latency_ms", "usage"),
    *("status", "error", "created_at"),
)
"""Sealed columns of a compile in schema 3."""
TEXTS_3 = ("compiled_prompt", "raw_output", "summary", "input_payload")
"""Columns of a compile in schema 3 that name a text in `contents`."""
SESSION_4 = ("session_id", "vault_name", "raw_tip", "created_at")
"""Sealed columns of a session in schema 4."""


def record_exactly(db: sqlite3.Connection) -> None:
    """Add instructions to messages, store texts of compiles as plain text, and mark earlier requests as inexact."""
    db.execute("ALTER TABLE nodes ADD COLUMN instructions TEXT REFERENCES contents(hash)")
    for number, *values, old in db.execute(f"SELECT id, {', '.join(VIEW_3)}, seal FROM views").fetchall():
        given = dict(zip(VIEW_3, values, strict=True))
        if given["view_tip"] is not None and seal(number, values) == old:
            given["status"] = f"{given['status']}; {NOT_RECORDED}"
            row = (given["status"], seal(number, tuple(given.values())), number)
            db.execute("UPDATE views SET status = ?, seal = ? WHERE id = ?", row)
    _keep_texts(db)


def _keep_texts(db: sqlite3.Connection) -> None:
    """Move the texts of compiles from `contents` into their columns; a damaged row keeps its wrong seal."""
    table = next(statement for statement in TABLES if "TABLE context_summaries" in statement)
    table = table.replace(" REFERENCES contents(hash)", "").replace("context_summaries", "summaries_with_texts")
    db.execute(table)
    columns = ("id", *SUMMARY_3, "seal")
    named: set[str] = set()
    for number, *values, old in db.execute(f"SELECT {', '.join(columns)} FROM context_summaries ORDER BY id"):
        given = dict(zip(SUMMARY_3, values, strict=True))
        texts = {name: _text(db, given[name]) for name in TEXTS_3}
        named |= {given[name] for name in TEXTS_3 if isinstance(given[name], str)}
        is_intact = seal(number, values) == old and all(texts[name] is not None for name in TEXTS_3 if given[name])
        row = tuple((given | texts).values())
        marks = ", ".join("?" * len(columns))
        kept = (number, *row, seal(number, row) if is_intact else old)
        db.execute(f"INSERT INTO summaries_with_texts ({', '.join(columns)}) VALUES ({marks})", kept)
    db.execute("DROP TABLE context_summaries")
    db.execute("ALTER TABLE summaries_with_texts RENAME TO context_summaries")
    db.execute("CREATE INDEX summaries_of_session ON context_summaries (session)")
    used = (("nodes", "content"), ("copies", "content"), ("cycles", "state"), ("memories", "content"))
    held = " UNION ".join(f"SELECT {column} FROM {name}" for name, column in used)
    db.execute(
        f"DELETE FROM contents WHERE hash IN (SELECT value FROM json_each(?)) AND hash NOT IN ({held}"
        " UNION SELECT state FROM commits WHERE state NOT NULL)",
        (json.dumps(sorted(named)),),
    )


def _text(db: sqlite3.Connection, name: Column) -> str | None:
    """Read a text from `contents`; None if it is missing or damaged."""
    found = db.execute("SELECT body FROM contents WHERE hash = ?", (name,)).fetchone()
    try:
        body = None if found is None else unpack(found[0])
    except (ValueError, zlib.error):
        return None
    return None if body is None or ids.blob_id(body) != name else escape_surrogates(to_text(body))


def separate_owners(db: sqlite3.Connection) -> None:
    """Add an owner to sessions, and create the tables of the host's conversations.

    All existing rows belong to the owner ``""``, whose names have no prefix, so only sessions are rewritten.
    """
    db.execute(
        """CREATE TABLE owned_sessions (
        id INTEGER PRIMARY KEY,
        session_id TEXT NOT NULL,
        vault_name TEXT NOT NULL,
        raw_tip TEXT,
        created_at TEXT NOT NULL,
        owner TEXT NOT NULL,
        seal TEXT NOT NULL,
        UNIQUE (session_id, vault_name, owner)
    )"""
    )
    columns = ", ".join(SESSION_4)
    marks = ", ".join("?" * (len(SESSION_4) + 3))
    for number, *values, old in db.execute(f"SELECT id, {columns}, seal FROM sessions").fetchall():
        row = (*values, "")
        kept = seal(number, row) if seal(number, values) == old else old
        db.execute(f"INSERT INTO owned_sessions (id, {columns}, owner, seal) VALUES ({marks})", (number, *row, kept))
    db.execute("DROP TABLE sessions")
    db.execute("ALTER TABLE owned_sessions RENAME TO sessions")
    db.execute("CREATE INDEX sessions_of_owner ON sessions (owner)")
    for statement in CONVERSATION_TABLES:
        db.execute(statement)


CONVERSATION_TABLES = (
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
)


def create_actions(db: sqlite3.Connection) -> None:
    """Create the table of manual actions."""
    db.execute(
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
    )"""
    )


def create_tools(db: sqlite3.Connection) -> None:
    """Create the tables of tools sent with requests and of compiles in progress."""
    db.execute(
        """CREATE TABLE toolsets (           -- tools of the requests of a session with that hash
        id INTEGER PRIMARY KEY,
        session INTEGER NOT NULL REFERENCES sessions(id),
        request_hash TEXT NOT NULL,
        content TEXT NOT NULL REFERENCES contents(hash),
        seal TEXT NOT NULL,
        UNIQUE (session, request_hash)
    )"""
    )
    db.execute(
        """CREATE TABLE under_way (          -- the newest call of a model for a summary; no part of a copy
        session INTEGER PRIMARY KEY REFERENCES sessions(id),
        model TEXT NOT NULL,
        started_at TEXT NOT NULL,
        expires_at TEXT NOT NULL            -- the call has ended by then, whatever became of its process
    )"""
    )


def create_layer_pages(db: sqlite3.Connection) -> None:
    """Create the table of layer pages; a state saved before contains its entities itself until its next save."""
    db.execute(
        """CREATE TABLE layer_pages (
        session INTEGER NOT NULL REFERENCES sessions(id),
        name TEXT NOT NULL,                 -- the hash of the body; the session's layers list it
        body TEXT NOT NULL,
        UNIQUE (session, name)
    )"""
    )


def create_counters(db: sqlite3.Connection) -> None:
    """Create the table of counters: of removals, and of lost writes."""
    db.execute(
        """CREATE TABLE counters (           -- no part of a copy
        name TEXT PRIMARY KEY,
        number INTEGER NOT NULL,
        at REAL NOT NULL                    -- last change, in seconds since 1970
    ) WITHOUT ROWID"""
    )


def create_numbers(db: sqlite3.Connection) -> None:
    """Create the table of the highest row numbers ever used, so that the numbers of removed rows are not reused."""
    db.execute(
        """CREATE TABLE numbers (            -- highest of tables from which rows were removed; no part of a copy
        name TEXT PRIMARY KEY,
        highest INTEGER NOT NULL
    ) WITHOUT ROWID"""
    )


def create_claims(db: sqlite3.Connection) -> None:
    """Create the table of claims: summaries that some process is requesting from a model."""
    db.execute(
        """CREATE TABLE claims (             -- others wait for the answer until then; no part of a copy
        name TEXT PRIMARY KEY,              -- the cache key of the compile
        holder TEXT NOT NULL,
        until REAL NOT NULL                 -- seconds since 1970
    ) WITHOUT ROWID"""
    )


MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (
    create_record,
    create_memories,
    create_layers,
    record_exactly,
    separate_owners,
    create_actions,
    create_tools,
    create_layer_pages,
    create_counters,
    create_numbers,
    create_claims,
)
"""All migrations in order; append only."""


def version_of(db: sqlite3.Connection) -> int:
    """Return the number of migrations applied to the file; 0 for a new one.

    Raises:
        StoreError: The file belongs to another program, or was written by a newer version of this one.
    """
    with snapshot(db):
        return _version(db)


def migrate(db: sqlite3.Connection) -> None:
    """Apply the migrations that the file lacks; safe if several processes do so at once."""
    if version_of(db) == len(MIGRATIONS):
        return
    checked = db.execute("PRAGMA foreign_keys").fetchone()[0]
    db.execute("PRAGMA foreign_keys = OFF")  # a migration replaces a table that others refer to
    try:
        with transaction(db):
            for step in MIGRATIONS[_version(db) :]:
                step(db)
            db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
    finally:
        db.execute(f"PRAGMA foreign_keys = {checked:d}")


def _version(db: sqlite3.Connection) -> int:
    """Read the version of the file with three queries; call it in a transaction, so that they see one state."""
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
