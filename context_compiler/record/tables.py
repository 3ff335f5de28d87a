"""The tables of the record, each described once. Both databases, seals, exports, copies and removals derive from here.

A table comes after the tables that it refers to. A `_tip` column contains the id of a node, except in `cycles`, where
it is a chain id. A `seal`, the last column because PostgreSQL saves rows by position, is a checksum of the others; rows
that are named by their content have none.
Types are those of SQLite, and two more: NAME is a text that is compared byte by byte, BYTES a text or compressed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

VERSION = 15
"""Version of the tables, in SQLite and in PostgreSQL. Each change of them raises it."""

STATEMENTS = (
    """CREATE TABLE contents (
        hash NAME PRIMARY KEY,
        body BYTES NOT NULL                   -- text as it is; a blob is compressed with zlib
    )""",
    """CREATE TABLE nodes (
        id NAME PRIMARY KEY,
        parent NAME REFERENCES nodes(id),
        content NAME NOT NULL REFERENCES contents(hash),
        position INTEGER NOT NULL
    , instructions NAME REFERENCES contents(hash)) WITHOUT ROWID""",
    """CREATE TABLE "sessions" (
        id INTEGER PRIMARY KEY,
        session_id TEXT NOT NULL,
        vault_name TEXT NOT NULL,
        raw_tip NAME,
        created_at NAME NOT NULL,
        owner TEXT NOT NULL,
        seal TEXT NOT NULL,
        UNIQUE (session_id, vault_name, owner)
    )""",
    """CREATE TABLE copies (             -- a message whose times and run ids are another conversation's in `nodes`
        session INTEGER NOT NULL REFERENCES sessions(id),
        node NAME NOT NULL REFERENCES nodes(id),
        content NAME NOT NULL REFERENCES contents(hash),
        PRIMARY KEY (session, node)
    ) WITHOUT ROWID""",
    """CREATE TABLE "context_summaries" (
        id INTEGER PRIMARY KEY,
        session INTEGER NOT NULL REFERENCES sessions(id),
        turn_index INTEGER NOT NULL,
        run_id TEXT,
        covered_tip NAME NOT NULL,
        cache_key NAME UNIQUE,          -- NULL unless status is ok
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
        created_at NAME NOT NULL,
        seal TEXT NOT NULL
    )""",
    """CREATE INDEX summaries_of_session ON context_summaries (
        session, template_name, model_alias, usage, latency_ms
    )""",
    """CREATE TABLE cycles (
        session INTEGER NOT NULL REFERENCES sessions(id),
        raw_tip NAME NOT NULL,
        config TEXT NOT NULL,           -- how its views are written: another way has cycles of its own
        state NAME NOT NULL REFERENCES contents(hash),
        seal TEXT NOT NULL,
        PRIMARY KEY (raw_tip, config, session)
    )""",
    """CREATE TABLE views (
        id INTEGER PRIMARY KEY,
        session INTEGER NOT NULL REFERENCES sessions(id),
        turn_index INTEGER NOT NULL,
        run_id TEXT,
        request_index INTEGER NOT NULL,
        raw_tip NAME,
        view_tip NAME,
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
        created_at NAME NOT NULL,
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
    "CREATE INDEX views_of_summary ON views (summary, session)",
    """CREATE INDEX views_summed ON views ( -- so that sums read no rows
        session, model, provider, tokens_raw, tokens_sent, cached, cached_raw, tokens_recall, status, latency_ms,
        created_at
    )""",
    """CREATE TABLE layers (
        session INTEGER NOT NULL UNIQUE REFERENCES sessions(id),
        version INTEGER NOT NULL,
        state TEXT NOT NULL,
        seal TEXT NOT NULL
    )""",
    """CREATE TABLE actions (
        session INTEGER NOT NULL REFERENCES sessions(id),
        number INTEGER NOT NULL,
        kind TEXT NOT NULL,
        tip NAME NOT NULL,              -- a chain id, as that of a cycle
        state TEXT NOT NULL,
        summary INTEGER REFERENCES context_summaries(id),
        created_at NAME NOT NULL,
        seal TEXT NOT NULL,
        UNIQUE (session, number)
    )""",
    "CREATE INDEX actions_of_summary ON actions (summary)",
    """CREATE TABLE toolsets (           -- tools of the requests of a session with that hash
        id INTEGER PRIMARY KEY,
        session INTEGER NOT NULL REFERENCES sessions(id),
        request_hash TEXT NOT NULL,
        content NAME NOT NULL REFERENCES contents(hash),
        seal TEXT NOT NULL,
        UNIQUE (session, request_hash)
    )""",
    """CREATE TABLE memories (           -- named as reached by all that was remembered before
        id NAME PRIMARY KEY,
        parent NAME REFERENCES memories(id),
        content NAME NOT NULL REFERENCES contents(hash),
        position INTEGER NOT NULL,
        created_at NAME NOT NULL
    ) WITHOUT ROWID""",
    "CREATE INDEX memories_by_content ON memories (content)",
    """CREATE TABLE commits (            -- named by all its other columns
        id NAME PRIMARY KEY,
        session INTEGER NOT NULL REFERENCES sessions(id),
        parent NAME REFERENCES commits(id),
        memory_tip NAME REFERENCES memories(id),
        turns_tip NAME,
        state NAME REFERENCES contents(hash),
        memories INTEGER NOT NULL,
        turns INTEGER NOT NULL,
        author TEXT NOT NULL,
        message TEXT NOT NULL,
        created_at NAME NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE spaces (             -- where a session's memory and turns are now
        session INTEGER NOT NULL UNIQUE REFERENCES sessions(id),
        memory_tip NAME REFERENCES memories(id),
        head NAME REFERENCES commits(id),
        turns_tip NAME,
        state TEXT,
        seal TEXT NOT NULL
    )""",
    """CREATE TABLE scores (
        id INTEGER PRIMARY KEY,
        session INTEGER NOT NULL REFERENCES sessions(id),
        turn_index INTEGER NOT NULL,
        turns_tip NAME,
        quality REAL NOT NULL,
        health REAL NOT NULL,
        tokens INTEGER NOT NULL,
        summarized INTEGER NOT NULL,
        checkpoint TEXT,
        rolled_back INTEGER NOT NULL,
        trouble TEXT,
        created_at NAME NOT NULL,
        seal TEXT NOT NULL
    )""",
    "CREATE INDEX scores_of_session ON scores (session)",
    """CREATE TABLE entries (            -- messages of a conversation's log
        owner TEXT NOT NULL,
        id TEXT NOT NULL,
        parent TEXT,
        node NAME NOT NULL REFERENCES nodes(id),
        content NAME REFERENCES contents(hash),     -- NULL where it is the node's
        PRIMARY KEY (owner, id)
    ) WITHOUT ROWID""",
    "CREATE INDEX entries_by_id ON entries (id)",
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
    """CREATE TABLE live_memories (      -- what the memory of a session holds now; the rest of `memories` was before
        id INTEGER PRIMARY KEY,
        session INTEGER NOT NULL REFERENCES sessions(id),
        memory NAME NOT NULL REFERENCES memories(id),
        UNIQUE (session, memory)
    )""",
    """CREATE TABLE under_way (          -- the newest call of a model for a summary; no part of a copy
        session INTEGER PRIMARY KEY REFERENCES sessions(id),
        model TEXT NOT NULL,
        started_at NAME NOT NULL,
        expires_at NAME NOT NULL            -- the call has ended by then, whatever became of its process
    )""",
    """CREATE TABLE counters (           -- no part of a copy
        name NAME PRIMARY KEY,
        number INTEGER NOT NULL,
        at REAL NOT NULL                    -- last change, in seconds since 1970
    ) WITHOUT ROWID""",
    """CREATE TABLE claims (             -- others wait for the answer until then; no part of a copy
        name NAME PRIMARY KEY,              -- the cache key of the compile
        holder TEXT NOT NULL,
        until REAL NOT NULL                 -- seconds since 1970
    ) WITHOUT ROWID""",
)
"""The statements that create the tables, and the indexes that both databases have."""

_COMMENT = re.compile(r"(?<! ) *--.*")
_TABLE = re.compile(r'CREATE TABLE "?(\w+)"?')
_COLUMN = re.compile(r"^[ \t(,]{0,20}(\w{1,40}) (?:NAME|TEXT|INTEGER|REAL|BYTES)\b", re.MULTILINE)
_REFERENCE = re.compile(r"\b(\w{1,40}) [A-Z ]{0,40}REFERENCES (\w{1,40})\((\w{1,40})\)")


def without_comments(statement: str) -> str:
    """Return a statement without its comments."""
    return _COMMENT.sub("", statement)


_PLAIN = {table[1]: text for text in map(without_comments, STATEMENTS) if (table := _TABLE.match(text))}

COLUMNS: Mapping[str, Sequence[str]] = {table: _COLUMN.findall(text) for table, text in _PLAIN.items()}
"""Columns of each table, in order."""

SEALED: Mapping[str, Sequence[str]] = {
    table: tuple(column for column in columns if column not in ("id", "seal"))
    for table, columns in COLUMNS.items()
    if "seal" in columns
}
"""Columns that the `seal` of a row covers, in order, by table. Rows of other tables are named by their content."""

NUMBERED = (*SEALED, "live_memories")
"""Tables with row numbers. A number is drawn before its row is written, because the seal covers it."""

UNNAMED_NUMBERS = tuple(table for table in NUMBERED if "id" not in COLUMNS[table])
"""Tables whose row number is in no column of its own, but in SQLite's `rowid`."""

REFERENCES = tuple(
    (table, *reference)
    for table, text in _PLAIN.items()
    for reference in _REFERENCE.findall(text)
    if reference[1] not in NUMBERED
)
"""References to rows that are named by their content, as `(table, column, referenced table, referenced column)`."""
