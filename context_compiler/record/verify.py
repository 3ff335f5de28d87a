"""Proving a file: every name is derived again from what reading returns.

A check is a function from a database to the defects it finds, as sentences.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing

from context_compiler import ids
from context_compiler.record import memories, rows
from context_compiler.record.schema import migrate, snapshot


def structure(db: sqlite3.Connection) -> Iterator[str]:
    """Pages, indexes and foreign keys."""
    for row in db.execute("PRAGMA integrity_check"):
        if row[0] != "ok":
            yield f"database: {row[0]}"
    for row in db.execute("PRAGMA foreign_key_check"):
        yield f"{row[0]} {row[1]}: points into {row[2]} at a row that is not there"


def search_index(db: sqlite3.Connection) -> Iterator[str]:
    """The search index agrees with its texts, and each text with a message; unproven where it may not be written."""
    for row in db.execute("SELECT node FROM messages_fts WHERE node NOT IN (SELECT id FROM nodes)"):
        yield f"messages_fts: {row['node']!r} is no known message"
    try:
        for table in ("messages_fts", "memories_fts"):
            db.execute(f"INSERT INTO {table} ({table}) VALUES ('integrity-check')")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_BUSY):
            raise


def schema(db: sqlite3.Connection) -> Iterator[str]:
    """The tables are those of a new file."""
    query = "SELECT name, sql FROM sqlite_master WHERE name NOT LIKE '%!_fts!_%' ESCAPE '!'"
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as new:
        migrate(new)
        expected = dict(new.execute(query).fetchall())
    found = {row["name"]: row["sql"] for row in db.execute(query)}
    for name in sorted(expected.keys() | found.keys()):
        if found.get(name) != expected.get(name):
            yield f"schema: {name} is not as it was made"


def messages(db: sqlite3.Connection) -> Iterator[str]:
    """Contents match their hashes, and nodes the content and parent that name them."""
    identities: dict[str, str] = {}
    named = {row[0] for row in db.execute("SELECT content FROM nodes UNION SELECT content FROM copies")}
    for row in db.execute("SELECT hash, body FROM contents"):
        try:
            body = rows.unpack(row["body"])
            if row["hash"] in named:
                identities[row["hash"]] = ids.identity(body)
        except (ValueError, TypeError, AttributeError, zlib.error) as error:
            yield f"contents {row['hash']}: cannot be read ({error})"
            continue
        if ids.blob_id(body) != row["hash"]:
            yield f"contents {row['hash']}: the body is another than the one that was named"
    for row in db.execute(
        "SELECT n.*, p.id AS found, p.position AS before FROM nodes n LEFT JOIN nodes p ON p.id = n.parent"
    ):
        yield from _node(row, identities.get(row["content"]))
    for row in db.execute("SELECT c.*, n.parent FROM copies c JOIN nodes n ON n.id = c.node"):
        identity = identities.get(row["content"])
        if identity is not None and ids.chained(row["parent"], identity) != row["node"]:
            yield f"copies {row['session']} {row['node']}: the name does not follow from content and parent"


def _node(row: sqlite3.Row, identity: str | None) -> Iterator[str]:
    if identity is not None and ids.chained(row["parent"], identity) != row["id"]:
        yield f"nodes {row['id']}: the name does not follow from content and parent"
    if row["parent"] is not None and row["found"] is None:
        yield f"nodes {row['id']}: the parent {row['parent']} is not there"
    elif row["position"] != (0 if row["parent"] is None else row["before"] + 1):
        yield f"nodes {row['id']}: position {row['position']} is not its parent's plus one"


def tips(db: sqlite3.Connection) -> Iterator[str]:
    """Every chain that a row names is there."""
    for table, column in (*rows.TIPS, *rows.TURN_TIPS):
        for row in db.execute(
            f"SELECT {'id' if table == 'commits' else 'rowid'} AS id, {column} AS tip FROM {table}"
            f" WHERE {column} <> '' AND {column} NOT IN (SELECT id FROM nodes)"
        ):
            yield f"{table} {row['id']}: {column} {row['tip']} is no known message"


def seals(db: sqlite3.Connection) -> Iterator[str]:
    """Rows that do not prove themselves are as they were written."""
    for table, columns in rows.SEALED.items():
        for row in db.execute(f"SELECT rowid, seal, {', '.join(columns)} FROM {table}"):
            number, seal, *values = row
            if rows.seal(number, values) != seal:
                yield f"{table} {number}: changed since it was written"


def cache_keys(db: sqlite3.Connection) -> Iterator[str]:
    """Only a compile that went well may be used again."""
    for row in db.execute("SELECT id, status FROM context_summaries WHERE cache_key NOT NULL"):
        if str(row["status"]).split(";")[0].strip() != "ok":
            yield f"context_summaries {row['id']}: has a cache key with status {row['status']!r}"


def remembered(db: sqlite3.Connection) -> Iterator[str]:
    """Memories and commits match what names them, and what is live is what a session remembers."""
    for row in db.execute("SELECT * FROM memories"):
        if ids.chained(row["parent"], row["content"]) != row["id"]:
            yield f"memories {row['id']}: the name does not follow from content and parent"
    for row in db.execute("SELECT c.*, s.session_id FROM commits c JOIN sessions s ON s.id = c.session"):
        if memories.commit_id(row["session_id"], [row[column] for column in memories.HELD]) != row["id"]:
            yield f"commits {row['id']}: the name does not follow from what it holds"
    for row in db.execute("SELECT session, memory_tip FROM spaces"):
        live = db.execute("SELECT memory FROM live_memories WHERE session = ?", (row["session"],)).fetchall()
        if {found["memory"] for found in live} != set(memories.between(db, None, row["memory_tip"])[1]):
            yield f"live_memories {row['session']}: they are not what the session remembers"


CHECKS: tuple[Callable[[sqlite3.Connection], Iterator[str]], ...] = (
    structure,
    schema,
    messages,
    tips,
    seals,
    cache_keys,
    remembered,
)


def verify(db: sqlite3.Connection) -> tuple[str, ...]:
    """Every defect, found on one unchanging picture of the file; empty when it is sound."""
    with snapshot(db):
        found = [defect for check in CHECKS for defect in _found(check, db)]
    return (*found, *_found(search_index, db))


def _found(check: Callable[[sqlite3.Connection], Iterator[str]], db: sqlite3.Connection) -> list[str]:
    defects: list[str] = []
    try:
        for defect in check(db):
            defects.append(defect)
    except sqlite3.DatabaseError as error:  # so damaged that it cannot be read on
        defects.append(f"{check.__name__}: {error}")
    return defects
