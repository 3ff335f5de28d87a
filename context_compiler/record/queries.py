"""Reading and saving, one function each; an entry is saved in one transaction, and only rows that are new."""

from __future__ import annotations

import json
import sqlite3
from bisect import bisect_left
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from context_compiler import ids
from context_compiler.errors import StoreError
from context_compiler.record import rows
from context_compiler.record.rows import snapshot, transaction
from context_compiler.record.values import Chain, Compile, Cycle, Entry, Record, SessionInfo

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
    return None if row is None else (row["id"], rows.to_compile(rows.mapping(row)))


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
        "WITH RECURSIVE up (id, parent, content, position, instructions) AS ("
        " SELECT id, parent, content, position, instructions FROM nodes WHERE id = ?"
        " UNION ALL SELECT n.id, n.parent, n.content, n.position, n.instructions"
        " FROM up JOIN nodes n ON n.id = up.parent)"
        " SELECT up.position, up.instructions, t.body FROM up LEFT JOIN copies c ON c.node = up.id AND c.session = ?"
        " JOIN contents t ON t.hash = ifnull(c.content, up.content) ORDER BY up.position",
        (tip, session),
    ).fetchall()
    if not found:
        raise StoreError(f"no message {tip!r}; it was never recorded, or has been deleted or pruned")
    if [row["position"] for row in found] != list(range(len(found))):
        raise StoreError(f"the chain of message {tip!r} is broken; verify the record")
    texts = {name: _instructions(db, name) for name in {row["instructions"] for row in found} if name is not None}
    bodies = ((rows.unpack(row["body"]), texts.get(row["instructions"])) for row in found)
    return [body if text is None else rows.join_instructions(body, text) for body, text in bodies]


def _instructions(db: sqlite3.Connection, name: str) -> str:
    row = db.execute("SELECT body FROM contents WHERE hash = ?", (name,)).fetchone()
    return rows.to_text(rows.unpack(row["body"]))


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
        return [rows.to_compile(rows.mapping(row)) for row in found]


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


def transcript(db: sqlite3.Connection, session_id: str, vault_name: str | None = None) -> list[bytes]:
    """The raw history of a conversation as last seen; of several vaults, if none is named, the most recently used."""
    with snapshot(db):
        row = db.execute(
            "SELECT s.id, s.raw_tip FROM sessions s LEFT JOIN views v ON v.session = s.id"
            " WHERE s.session_id = ? AND s.vault_name = ifnull(?, s.vault_name) AND s.raw_tip NOT NULL"
            " GROUP BY s.id ORDER BY max(v.id) DESC LIMIT 1",
            (rows.plain(session_id), None if vault_name is None else rows.plain(vault_name)),
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


def record_of(db: sqlite3.Connection, row: sqlite3.Row) -> Record:
    """The record of one row of `VIEWS`, with its compile."""
    return _records(db, [row])[0]


def _records(db: sqlite3.Connection, found: Sequence[sqlite3.Row]) -> list[Record]:
    numbers = json.dumps(sorted({row["summary"] for row in found if isinstance(row["summary"], int)}))
    made = db.execute(f"{SUMMARIES} WHERE c.id IN (SELECT value FROM json_each(?))", (numbers,))
    compiles = compiles_of(db, made.fetchall())
    return [rows.to_record(rows.mapping(row), compiles.get(row["summary"])) for row in found]


def compiles_of(db: sqlite3.Connection, found: Iterable[sqlite3.Row]) -> dict[int, Compile]:
    """Compiles of rows of `SUMMARIES`, by row number."""
    return {row["id"]: rows.to_compile(rows.mapping(row)) for row in found}


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


Owner = tuple[str, str]
"""Session id and vault name of a conversation."""

COMPARED = 8
"""Messages at the end of a known prefix that are compared; after a fork, a repeated prompt may differ in its times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMessage:
    """A message that is not in the file yet."""

    id: str
    parent: str | None
    position: int
    content: str
    body: bytes | str
    """In stored form, without instructions; see `rows.pack`."""
    instructions: str | None
    raw: bool
    """Part of a raw history, which is returned exactly and can be searched."""
    text: str
    """Text for the search index; empty for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Additions:
    """New messages of an entry's chains, and the known messages they start from."""

    messages: list[NewMessage] = field(default_factory=list[NewMessage])
    anchors: list[str] = field(default_factory=list[str])


def save(db: sqlite3.Connection, entry: Entry) -> Record:
    """Save an entry and return its record with `id` and `summary_id`; an entry saved before is only looked up.

    Bodies are read and compressed before the transaction begins, to keep the write lock short.
    """
    owner = (rows.plain(entry.record.session_id), rows.plain(entry.record.vault_name))
    additions = _additions(db, owner, entry.raw, entry.view)
    with transaction(db):
        session = session_row(db, owner, entry.record.created_at)
        _write_messages(db, additions, owner, session, entry.raw, entry.view)
        record = rows.complete_record(entry)
        if entry.compile is not None and rows.reusable_key(entry.compile):
            compile_row(db, entry.compile, session)  # can be reused even if the request is known already
        return _find_view(db, record, session) or _insert_view(db, record, session, entry)


def archive(db: sqlite3.Connection, session_id: str, vault_name: str, raw: Chain) -> None:
    """Save a raw history without a request, as the newest of its conversation."""
    owner = (rows.plain(session_id), rows.plain(vault_name))
    additions = _additions(db, owner, raw, None)
    with transaction(db):
        session = session_row(db, owner, datetime.now(UTC))
        _write_messages(db, additions, owner, session, raw, None)
        if raw.ids:
            advance(db, session, raw.ids[-1])


def _additions(db: sqlite3.Connection, owner: Owner, raw: Chain | None, view: Chain | None) -> Additions:
    additions = Additions()
    fresh: set[str] = set()
    for chain, is_raw in ((raw, True), (view, False)):
        if chain is None:
            continue
        names = chain.ids
        known = _known_prefix(db, names, fresh)
        start = _own_prefix(db, owner, chain, known) if is_raw else known
        if start and names[start - 1] not in fresh:
            additions.anchors.append(names[start - 1])
        for index in range(start, len(names)):
            body, instructions = _body(chain, index)
            additions.messages.append(
                NewMessage(
                    id=names[index],
                    parent=names[index - 1] if index else None,
                    position=index,
                    content=ids.blob_id(body),
                    body=rows.pack(body),
                    instructions=instructions,
                    raw=is_raw,
                    text=chain.text(index) if is_raw else "",
                )
            )
        fresh.update(names[known:])
    return additions


def _body(chain: Chain, index: int) -> tuple[bytes, str | None]:
    """A message and its instructions; under another name than an exact one they are a part of it."""
    body = chain.body(index)
    return rows.split_instructions(body) if chain.ids[index].startswith(ids.RECORDED) else (body, None)


def _own_prefix(db: sqlite3.Connection, owner: Owner, raw: Chain, known: int) -> int:
    """Length of the known prefix whose stored messages have this conversation's times and run ids.

    Another conversation's messages may have others. If one of the last `COMPARED` is the same, so is all before it.
    """
    held = _saved_prefix(db, owner, raw.ids)
    if held >= known:
        return known
    if db.execute(
        "SELECT 1 FROM copies c JOIN sessions s ON s.id = c.session WHERE s.session_id = ? AND s.vault_name = ?", owner
    ).fetchone():
        return held
    for index in range(known - 1, max(held, known - COMPARED) - 1, -1):
        stored = db.execute("SELECT content FROM nodes WHERE id = ?", (raw.ids[index],)).fetchone()
        if stored is not None and stored["content"] == ids.blob_id(_body(raw, index)[0]):
            return index + 1
    return held


def _saved_prefix(db: sqlite3.Connection, owner: Owner, names: Sequence[str]) -> int:
    """Length of the prefix that the conversation has saved before."""
    found = db.execute("SELECT raw_tip FROM sessions WHERE session_id = ? AND vault_name = ?", owner).fetchone()
    tip = found["raw_tip"] if found else None
    while tip is not None:
        node = db.execute("SELECT parent, position FROM nodes WHERE id = ?", (tip,)).fetchone()
        if node is None or (node["position"] < len(names) and names[node["position"]] == tip):
            return node["position"] + 1 if node else 0
        tip = node["parent"]
    return 0


def _write_messages(
    db: sqlite3.Connection, additions: Additions, owner: Owner, session: int, raw: Chain | None, view: Chain | None
) -> None:
    """Write new messages; they are collected again if another process has removed what they start from."""
    if not all(_is_known(db, anchor) for anchor in additions.anchors):
        additions = _additions(db, owner, raw, view)
    for message in additions.messages:
        _write_message(db, message, session)


def _known_prefix(db: sqlite3.Connection, names: Sequence[str], fresh: set[str]) -> int:
    """Length of the known prefix; bisected, because a message is never known without all before it."""
    return bisect_left(range(len(names)), True, key=lambda i: names[i] not in fresh and not _is_known(db, names[i]))


def _is_known(db: sqlite3.Connection, name: str) -> bool:
    return db.execute("SELECT 1 FROM nodes WHERE id = ?", (name,)).fetchone() is not None


def _write_message(db: sqlite3.Connection, message: NewMessage, session: int) -> None:
    """Write a message, or this conversation's copy of one that another wrote with other times or run ids."""
    known = db.execute("SELECT content FROM nodes WHERE id = ?", (message.id,)).fetchone()
    if known is not None and not message.raw:
        return
    if known is not None and known["content"] == message.content:
        db.execute("DELETE FROM copies WHERE session = ? AND node = ?", (session, message.id))
        return
    db.execute("INSERT OR IGNORE INTO contents VALUES (?, ?)", (message.content, message.body))
    if known is not None:
        db.execute("INSERT OR REPLACE INTO copies VALUES (?, ?, ?)", (session, message.id, message.content))
        return
    said = None if message.instructions is None else keep_body(db, rows.to_bytes(message.instructions))
    db.execute(
        "INSERT INTO nodes VALUES (?, ?, ?, ?, ?)",
        (message.id, message.parent, message.content, message.position, said),
    )
    if message.text.strip():
        text = message.text.encode("utf-8", "replace").decode()
        db.execute("INSERT INTO messages_fts (text, node) VALUES (?, ?)", (text, message.id))


def session_row(db: sqlite3.Connection, owner: Owner, created_at: datetime) -> int:
    """The row of a conversation, made at first use."""
    found = db.execute("SELECT id FROM sessions WHERE session_id = ? AND vault_name = ?", owner).fetchone()
    return found["id"] if found else insert(db, "sessions", (*owner, None, rows.stamp(created_at)))


def _find_view(db: sqlite3.Connection, record: Record, session: int) -> Record | None:
    run_id = None if record.run_id is None else rows.plain(record.run_id)
    key = (session, run_id, record.request_index, record.raw_tip, record.view_tip)
    found = db.execute(
        "SELECT id, summary FROM views WHERE session = ? AND ifnull(run_id, '') = ifnull(?, '') AND request_index = ?"
        " AND ifnull(raw_tip, '') = ifnull(?, '') AND ifnull(view_tip, '') = ifnull(?, '')",
        key,
    ).fetchone()
    return replace(record, id=found["id"], summary_id=found["summary"]) if found else None


def _insert_view(db: sqlite3.Connection, record: Record, session: int, entry: Entry) -> Record:
    made = None if entry.compile is None else compile_row(db, entry.compile, session)
    record = replace(record, summary_id=made if record.summary_id is None else record.summary_id)
    for cycle in filter(None, (entry.cycle, entry.blocks)):
        _save_cycle(db, cycle, session)
    if entry.raw is not None and entry.raw.ids:
        advance(db, session, entry.raw.ids[-1])
    return replace(record, id=insert(db, "views", rows.view_row(record, session)))


def compile_row(db: sqlite3.Connection, compile: Compile, session: int) -> int:
    """The row of a compile: one stored under its cache key before, else a new one."""
    found = db.execute("SELECT id FROM context_summaries WHERE cache_key = ?", (rows.reusable_key(compile),)).fetchone()
    if found:
        return found["id"]
    return insert(db, "context_summaries", rows.summary_row(compile, session))


def _save_cycle(db: sqlite3.Connection, cycle: Cycle, session: int) -> None:
    state = keep_body(db, rows.to_bytes(cycle.state))
    db.execute(
        "DELETE FROM cycles WHERE raw_tip = ? AND config = ? AND session = ?", (cycle.tip, cycle.config, session)
    )
    insert(db, "cycles", (session, cycle.tip, cycle.config, state))


def keep_body(db: sqlite3.Connection, body: bytes) -> str:
    """Store a text or payload and return its hash."""
    name = ids.blob_id(body)
    if db.execute("SELECT 1 FROM contents WHERE hash = ?", (name,)).fetchone() is None:
        db.execute("INSERT INTO contents VALUES (?, ?)", (name, rows.pack(body)))
    return name


def insert(db: sqlite3.Connection, table: str, values: Sequence[rows.Column]) -> int:
    """Add a sealed row to `table` and return its number."""
    row: int = db.execute(f"SELECT ifnull(max(rowid), 0) + 1 FROM {table}").fetchone()[0]
    columns = ("rowid", *rows.SEALED[table], "seal")
    marks = ", ".join("?" * len(columns))
    sealed = (row, *values, rows.seal(row, values))
    db.execute(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", sealed)
    return row


def reseal(db: sqlite3.Connection, table: str, row: int) -> None:
    """Renew the seal of a row after a change."""
    columns = rows.SEALED[table]
    values = db.execute(f"SELECT {', '.join(columns)} FROM {table} WHERE rowid = ?", (row,)).fetchone()
    db.execute(f"UPDATE {table} SET seal = ? WHERE rowid = ?", (rows.seal(row, tuple(values)), row))


def advance(db: sqlite3.Connection, session: int, tip: str) -> None:
    """Set the tip of a conversation's raw history."""
    db.execute("UPDATE sessions SET raw_tip = ? WHERE id = ?", (tip, session))
    reseal(db, "sessions", session)
