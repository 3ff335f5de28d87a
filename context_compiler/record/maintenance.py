"""Keeping the record small.

Whatever a remaining request, conversation, compile or cycle points to stays, with everything before it;
the rest is removed, overwritten on disk, and taken out of the search index.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress

from context_compiler.errors import StoreError
from context_compiler.record import rows
from context_compiler.record.schema import transaction
from context_compiler.record.write import reseal

DROP_NODES = f"""
WITH RECURSIVE kept (id) AS (
    {" UNION ".join(f"SELECT {column} FROM {table}" for table, column in (*rows.TIPS, *rows.TURN_TIPS))}
    UNION SELECT n.parent FROM kept JOIN nodes n ON n.id = kept.id
)
DELETE FROM nodes WHERE id NOT IN (SELECT id FROM kept WHERE id NOT NULL)
"""
DROP_CONTENTS = f"""
DELETE FROM contents WHERE hash NOT IN (
    SELECT content FROM nodes UNION SELECT content FROM copies UNION SELECT state FROM cycles
    UNION SELECT content FROM memories UNION SELECT state FROM commits WHERE state NOT NULL
    {" ".join(f"UNION SELECT {text} FROM context_summaries WHERE {text} NOT NULL" for text in rows.TEXTS)}
)
"""
DROP_COPIES = "DELETE FROM copies WHERE node NOT IN (SELECT id FROM nodes)"
DROP_TEXTS = "DELETE FROM messages_fts WHERE node NOT IN (SELECT id FROM nodes)"
DROP_MEMORIES = """
WITH RECURSIVE kept (id) AS (
    SELECT memory_tip FROM spaces UNION SELECT memory_tip FROM commits
    UNION SELECT m.parent FROM kept JOIN memories m ON m.id = kept.id
)
DELETE FROM memories WHERE id NOT IN (SELECT id FROM kept WHERE id NOT NULL)
"""
DROP_TERMS = "DELETE FROM memories_fts WHERE rowid NOT IN (SELECT id FROM live_memories)"

OLD_VIEWS = """
SELECT id FROM (SELECT id, created_at, row_number() OVER (PARTITION BY session ORDER BY id DESC) AS rank FROM views)
WHERE created_at < ifnull(?, '~') AND rank > ifnull(?, 0)
"""
UNUSED_SUMMARIES = """
SELECT id FROM context_summaries
WHERE id NOT IN (SELECT summary FROM views WHERE summary NOT NULL)
AND (session, turn_index) NOT IN (SELECT session, turn_index FROM views)
"""
OLD_CYCLES = "SELECT rowid FROM cycles WHERE rowid NOT IN (SELECT max(rowid) FROM cycles GROUP BY session, config)"


def delete(db: sqlite3.Connection, session_id: str) -> int:
    """Remove a conversation and everything only it used; the number of requests removed."""
    with _upkeep(db):
        found = db.execute("SELECT id FROM sessions WHERE session_id = ?", (session_id,)).fetchall()
        gone = [row["id"] for row in found]
        removed = _remove(db, "views", "session", gone)
        _forget(db, gone)
    return removed


def prune(db: sqlite3.Connection, older_than_days: float | None, keep_last: int | None) -> int:
    """Remove the requests that are both old and beyond the newest; the number of requests removed."""
    asked = older_than_days is not None or keep_last is not None
    age = None if older_than_days is None else rows.days_ago(older_than_days)
    with _upkeep(db):
        old = _found(db, OLD_VIEWS, (age, keep_last)) if asked else []
        before = _sessions(db)
        removed = _remove(db, "views", "id", old)
        if asked:
            _remove(db, "cycles", "rowid", _found(db, OLD_CYCLES))
            held = set(_found(db, "SELECT session FROM spaces UNION SELECT session FROM layers"))
            _forget(db, sorted(before - _sessions(db) - held))
            _remove(db, "context_summaries", "id", _found(db, UNUSED_SUMMARIES))
    return removed


def _sessions(db: sqlite3.Connection) -> set[int]:
    """Conversations with requests."""
    return set(_found(db, "SELECT DISTINCT session FROM views"))


@contextmanager
def _upkeep(db: sqlite3.Connection) -> Generator[None]:
    """A transaction that ends by removing what nothing points to any more.

    Foreign keys are checked once at its end: row by row, each would search whole tables.
    """
    db.execute("PRAGMA foreign_keys = OFF")
    db.execute("PRAGMA secure_delete = ON")
    try:
        with transaction(db):
            broken = len(db.execute("PRAGMA foreign_key_check").fetchall())
            yield
            db.execute(DROP_NODES)
            db.execute(DROP_COPIES)
            if db.execute(DROP_TEXTS).rowcount:
                db.execute("INSERT INTO messages_fts (messages_fts) VALUES ('optimize')")
            if db.execute(DROP_TERMS).rowcount:
                db.execute("INSERT INTO memories_fts (memories_fts) VALUES ('optimize')")
            db.execute(DROP_MEMORIES)
            db.execute(DROP_CONTENTS)
            if len(db.execute("PRAGMA foreign_key_check").fetchall()) > broken:
                raise StoreError("removing this would break what is kept, so nothing was removed; verify the record")
    finally:
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA secure_delete = OFF")
    with suppress(sqlite3.OperationalError):  # somebody else is writing: the space is given back another time
        db.executescript("PRAGMA incremental_vacuum")  # `execute` would stop after the first page
        db.execute("PRAGMA wal_checkpoint (TRUNCATE)").fetchall()


def _forget(db: sqlite3.Connection, sessions: Sequence[int]) -> None:
    """Remove conversations without requests; a compile that another one uses becomes that one's."""
    shared = db.execute(
        "SELECT c.id, min(v.session) AS heir FROM context_summaries c JOIN views v ON v.summary = c.id"
        " WHERE c.session IN (SELECT value FROM json_each(?)) GROUP BY c.id",
        (json.dumps(sessions),),
    ).fetchall()
    for row in shared:
        db.execute("UPDATE context_summaries SET session = ? WHERE id = ?", (row["heir"], row["id"]))
        reseal(db, "context_summaries", row["id"])
    _remove(db, "context_summaries", "session", sessions)
    for table in ("cycles", "copies", "layers", "scores", "live_memories", "spaces", "commits"):
        _remove(db, table, "session", sessions)
    _remove(db, "sessions", "id", sessions)


def _found(db: sqlite3.Connection, query: str, arguments: Sequence[object] = ()) -> list[int]:
    return [row[0] for row in db.execute(query, tuple(arguments))]


def _remove(db: sqlite3.Connection, table: str, column: str, values: Sequence[int]) -> int:
    condition = f"{column} IN (SELECT value FROM json_each(?))"
    return db.execute(f"DELETE FROM {table} WHERE {condition}", (json.dumps(values),)).rowcount
