"""Queries, one function each."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Generator, Iterable, Mapping, Sequence

from context_compiler.errors import StoreError
from context_compiler.record import rows
from context_compiler.record.schema import snapshot
from context_compiler.record.values import Compile, Cycle, Record, SessionInfo

SUMMARIES = "SELECT c.*, s.session_id, s.vault_name FROM context_summaries c JOIN sessions s ON s.id = c.session"
VIEWS = "SELECT v.*, s.session_id, s.vault_name FROM views v JOIN sessions s ON s.id = v.session"
ALL = -1
"""No limit, in SQLite."""

MEMORIES = ("memories", "commits", "spaces", "scores")
EXPORTED = ("contents", "nodes", "sessions", "copies", "context_summaries", "cycles", "views", "layers", *MEMORIES)
"""Every table but the search indexes, each after those it refers to."""

ORDERS = {
    "nodes": "position, id",
    "copies": "session, node",
    "memories": "position, id",
    "commits": "created_at, id",
}
"""Sort keys of the tables without row numbers."""


def find_compile(db: sqlite3.Connection, cache_key: str) -> tuple[int, Compile] | None:
    """The reusable compile with that cache key and its row number."""
    row = db.execute(f"{SUMMARIES} WHERE c.cache_key = ?", (cache_key,)).fetchone()
    return None if row is None else (row["id"], _compiles(db, [row])[row["id"]])


def find_cycle(db: sqlite3.Connection, tips: Sequence[str], config: str) -> Cycle | None:
    """The newest cycle of the last of `tips` that has one of this `config`."""
    row = db.execute(
        "SELECT c.raw_tip, t.body FROM json_each(?) AS tip JOIN cycles c ON c.raw_tip = tip.value AND c.config = ?"
        " JOIN contents t ON t.hash = c.state ORDER BY tip.key DESC, c.rowid DESC LIMIT 1",
        (json.dumps(list(tips)), config),
    ).fetchone()
    if row is None:
        return None
    return Cycle(tip=row["raw_tip"], config=config, state=rows.to_text(rows.unpack(row["body"])))


def chain(db: sqlite3.Connection, tip: str, session: int | None = None) -> list[bytes]:
    """Bodies of the chain that ends in `tip`, oldest first; `session` selects a conversation's own copies."""
    found = db.execute(
        "WITH RECURSIVE up (id, parent, content, position) AS ("
        " SELECT id, parent, content, position FROM nodes WHERE id = ?"
        " UNION ALL SELECT n.id, n.parent, n.content, n.position FROM up JOIN nodes n ON n.id = up.parent)"
        " SELECT up.position, t.body FROM up LEFT JOIN copies c ON c.node = up.id AND c.session = ?"
        " JOIN contents t ON t.hash = ifnull(c.content, up.content) ORDER BY up.position",
        (tip, session),
    ).fetchall()
    if not found:
        raise StoreError(f"no message {tip!r}; it was never recorded, or has been deleted or pruned")
    if [row["position"] for row in found] != list(range(len(found))):
        raise StoreError(f"the chain of message {tip!r} is broken; verify the record")
    return [rows.unpack(row["body"]) for row in found]


def view(db: sqlite3.Connection, view_id: int) -> Record | None:
    """One request with its compile."""
    with snapshot(db):
        found = _records(db, db.execute(f"{VIEWS} WHERE v.id = ?", (view_id,)).fetchall())
    return found[0] if found else None


def views(db: sqlite3.Connection, session_id: str | None, limit: int | None) -> list[Record]:
    """Requests with their compiles, newest first."""
    with snapshot(db):
        found = db.execute(
            f"{VIEWS} WHERE ?1 IS NULL OR s.session_id = ?1 ORDER BY v.id DESC LIMIT ?2",
            (None if session_id is None else rows.plain(session_id), ALL if limit is None else max(limit, 0)),
        )
        return _records(db, found.fetchall())


def summaries(db: sqlite3.Connection, session_id: str, limit: int | None) -> list[Compile]:
    """Compiles of a session, newest first."""
    with snapshot(db):
        found = db.execute(
            f"{SUMMARIES} WHERE s.session_id = ? ORDER BY c.id DESC LIMIT ?",
            (rows.plain(session_id), ALL if limit is None else max(limit, 0)),
        )
        return list(_compiles(db, found.fetchall()).values())


def sessions(db: sqlite3.Connection) -> list[SessionInfo]:
    """Every conversation, most recently used first."""
    found = db.execute(
        "SELECT s.session_id, s.vault_name, s.raw_tip, s.created_at, max(v.created_at) AS last_at,"
        " count(v.id) AS requests, ifnull(sum(v.tokens_raw), 0) AS tokens_raw,"
        " ifnull(sum(v.tokens_sent), 0) AS tokens_sent,"
        " (SELECT count(*) FROM context_summaries c WHERE c.session = s.id) AS compiles"
        " FROM sessions s LEFT JOIN views v ON v.session = s.id GROUP BY s.id ORDER BY max(v.id) DESC, s.id DESC"
    )
    return [_session(row) for row in found]


def transcript(db: sqlite3.Connection, session_id: str) -> list[bytes]:
    """The raw history of a conversation as last seen; of several vaults, the most recently used."""
    with snapshot(db):
        row = db.execute(
            "SELECT s.id, s.raw_tip FROM sessions s LEFT JOIN views v ON v.session = s.id"
            " WHERE s.session_id = ? AND s.raw_tip NOT NULL GROUP BY s.id ORDER BY max(v.id) DESC LIMIT 1",
            (rows.plain(session_id),),
        ).fetchone()
        return [] if row is None else chain(db, row["raw_tip"], row["id"])


def export(db: sqlite3.Connection) -> Generator[Mapping[str, object]]:
    """Every row of one snapshot, ready for JSON; contents as text."""
    with snapshot(db):
        for table in EXPORTED:
            columns = f"rowid AS id, {', '.join((*rows.SEALED[table], 'seal'))}" if table in rows.SEALED else "*"
            order = ORDERS.get(table, "rowid")
            for row in db.execute(f"SELECT {columns} FROM {table} ORDER BY {order}"):
                body = {"body": rows.to_text(rows.unpack(row["body"]))} if table == "contents" else {}
                yield {"table": table, **rows.mapping(row), **body}


def _records(db: sqlite3.Connection, found: Sequence[sqlite3.Row]) -> list[Record]:
    numbers = json.dumps(sorted({row["summary"] for row in found if isinstance(row["summary"], int)}))
    found_compiles = db.execute(f"{SUMMARIES} WHERE c.id IN (SELECT value FROM json_each(?))", (numbers,)).fetchall()
    compiles = _compiles(db, found_compiles)
    return [rows.to_record(rows.mapping(row), compiles.get(row["summary"])) for row in found]


def _compiles(db: sqlite3.Connection, found: Iterable[sqlite3.Row]) -> dict[int, Compile]:
    mappings = [rows.mapping(row) for row in found]
    hashes = {row[column] for row in mappings for column in rows.TEXTS if isinstance(row[column], str)}
    bodies = db.execute(
        "SELECT hash, body FROM contents WHERE hash IN (SELECT value FROM json_each(?))", (json.dumps(sorted(hashes)),)
    )
    texts = {row["hash"]: rows.to_text(rows.unpack(row["body"])) for row in bodies}
    return {row["id"]: rows.to_compile(row, texts) for row in mappings}


def _session(row: sqlite3.Row) -> SessionInfo:
    return SessionInfo(
        session_id=row["session_id"],
        vault_name=row["vault_name"],
        created_at=rows.parse_stamp(row["created_at"]),
        last_at=None if row["last_at"] is None else rows.parse_stamp(row["last_at"]),
        requests=row["requests"],
        compiles=row["compiles"],
        tokens_raw=row["tokens_raw"],
        tokens_sent=row["tokens_sent"],
        raw_tip=row["raw_tip"],
    )
