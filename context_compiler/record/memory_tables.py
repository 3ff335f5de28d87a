"""The tables of what sessions remember: memories, commits, where each session is now, and how its turns were scored."""

from __future__ import annotations

TABLES = (
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
