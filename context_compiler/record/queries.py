"""Functions that read the record and save entries: one transaction for each entry, which writes only new rows."""

from __future__ import annotations

import json
import logging
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from context_compiler import ids
from context_compiler.errors import StoreError
from context_compiler.record import rows
from context_compiler.record.database import Database
from context_compiler.record.rows import Names, prefix, stored_name, without_prefix, writer_of
from context_compiler.record.tables import SEALED
from context_compiler.record.values import (
    Chain,
    Compile,
    Cycle,
    Entry,
    OwnerInfo,
    Record,
    SessionInfo,
    Tool,
    parse_tools,
    with_null_reasons,
)

T = TypeVar("T")
log = logging.getLogger("context_compiler.store")

SUMMARIES = (
    "SELECT c.*, s.session_id, s.vault_name, s.owner FROM context_summaries c JOIN sessions s ON s.id = c.session"
)
VIEWS = "SELECT v.*, s.session_id, s.vault_name, s.owner FROM views v JOIN sessions s ON s.id = v.session"
OWNED = "(?{0} IS NULL OR s.owner = ?{0})"
"""Condition for sessions of one owner; format it with the owner's parameter number. NULL matches every owner."""
NO_LIMIT = -1
"""Value of LIMIT for no limit, in SQLite."""

UNDONE = "SELECT summary FROM actions WHERE kind = 'undo' AND summary NOT NULL"
"""Row numbers of compiles that a user has undone; they are never reused."""


def find_compile(db: Database, cache_key: str) -> tuple[int, Compile] | None:
    """Find a reusable compile by cache key; return its row number and the compile, or None."""
    query = f"{SUMMARIES} WHERE c.cache_key = ? AND c.id NOT IN ({UNDONE})"
    row = db.execute(query, (stored_name(db, cache_key),)).fetchone()
    return None if row is None else (row["id"], rows.to_compile(rows.mapping(row)))


def find_cycle(db: Database, tips: Sequence[str], config: str) -> Cycle | None:
    """Find the newest cycle of `config` for the last of `tips` that has one."""
    row = db.execute(
        "SELECT c.raw_tip, t.body FROM json_each(?) AS tip JOIN cycles c ON c.raw_tip = tip.value AND c.config = ?"
        " JOIN sessions s ON s.id = c.session AND s.owner = ?"
        " JOIN contents t ON t.hash = c.state ORDER BY tip.key DESC, c.rowid DESC LIMIT 1",
        (json.dumps(list(tips)), config, writer_of(db)),
    ).fetchone()
    if row is None:
        return None
    return Cycle(tip=row["raw_tip"], config=config, state=rows.to_text(rows.unpack(row["body"])))


def chain(db: Database, tip: str, session_id: str | None = None, vault_name: str = "") -> list[bytes]:
    """Message bodies of the chain that ends at `tip`, oldest first; StoreError if it is unknown or broken.

    With `session_id`, a message of which that conversation has its own copy is read from the copy.
    """
    if session_id is None:
        return read_chain(db, stored_name(db, tip))
    key = (rows.escape_surrogates(session_id), rows.escape_surrogates(vault_name), db.owner)
    query = f"SELECT s.id FROM sessions s WHERE s.session_id = ?1 AND s.vault_name = ?2 AND {OWNED.format(3)}"
    with db.snapshot():
        row = db.execute(query, key).fetchone()
        return read_chain(db, stored_name(db, tip), row and row["id"])


def read_chain(db: Database, tip: str, session: int | None = None) -> list[bytes]:
    """Message bodies of the chain that ends at the stored name `tip`, oldest first.

    With `session`, a message of which that conversation has its own copy is read from the copy.

    Raises:
        StoreError: The chain is unknown or broken.
    """
    messages = db.execute(
        "WITH RECURSIVE up (id, parent, content, position, instructions) AS ("
        " SELECT id, parent, content, position, instructions FROM nodes WHERE id = ?"
        " UNION ALL SELECT n.id, n.parent, n.content, n.position, n.instructions"
        " FROM up JOIN nodes n ON n.id = up.parent)"
        " SELECT up.position, up.instructions, t.body FROM up LEFT JOIN copies c ON c.node = up.id AND c.session = ?"
        " JOIN contents t ON t.hash = ifnull(c.content, up.content) ORDER BY up.position",
        (tip, session),
    ).fetchall()
    if not messages:
        raise StoreError(f"no message {without_prefix(tip)!r}; it was never recorded, or has been deleted or pruned")
    if [row["position"] for row in messages] != list(range(len(messages))):
        raise StoreError(f"the chain of message {without_prefix(tip)!r} is broken; verify the record")
    texts = {name: _instructions(db, name) for name in {row["instructions"] for row in messages} if name is not None}
    bodies = ((rows.unpack(row["body"]), texts.get(row["instructions"])) for row in messages)
    return [body if text is None else rows.join_instructions(body, text) for body, text in bodies]


def _instructions(db: Database, name: str) -> str:
    row = db.execute("SELECT body FROM contents WHERE hash = ?", (name,)).fetchone()
    if row is None:
        raise StoreError("the instructions of a message are missing; verify the record")
    return rows.to_text(rows.unpack(row["body"]))


def view(db: Database, view_id: int) -> Record | None:
    """A request with its compile, by row number; None if there is no such row."""
    with db.snapshot():
        row = db.execute(f"{VIEWS} WHERE v.id = ?1 AND {OWNED.format(2)}", (view_id, db.owner)).fetchone()
        return None if row is None else record_of(db, row)


def tools(db: Database, view_id: int) -> tuple[Tool, ...] | None:
    """Tools sent with a request; None if they are not on the record."""
    row = db.execute(
        "SELECT c.body FROM views v JOIN sessions s ON s.id = v.session"
        " JOIN toolsets t ON t.session = v.session AND t.request_hash = v.request_hash"
        f" JOIN contents c ON c.hash = t.content WHERE v.id = ?1 AND {OWNED.format(2)}",
        (view_id, db.owner),
    ).fetchone()
    return None if row is None else parse_tools(rows.to_text(rows.unpack(row["body"])))


def views(db: Database, session_id: str | None = None, *, limit: int | None = None) -> list[Record]:
    """Requests with their compiles, newest first; a warning names each that cannot be read."""
    where, newest = OWNED.format(2), "ORDER BY v.id DESC LIMIT ?1"
    parameters: list[object] = [NO_LIMIT if limit is None else max(limit, 0), db.owner]
    if session_id is not None:
        parameters.append(rows.escape_surrogates(session_id))
        named = f"SELECT s.id FROM sessions s WHERE s.session_id = ?3 AND {where}"
        where = f"v.id IN (SELECT v.id FROM views v WHERE v.session IN ({named}) {newest})"
    with db.snapshot():
        requests = db.execute(f"{VIEWS} WHERE {where} {newest}", parameters).fetchall()
        compiles = _compiles(db, requests)
        return [*_readable("views", requests, lambda row: _record(row, compiles))]


def summaries(db: Database, session_id: str, *, limit: int | None = None) -> list[Compile]:
    """Compiles of a session, newest first."""
    with db.snapshot():
        compiles = db.execute(
            f"{SUMMARIES} WHERE s.session_id = ?1 AND {OWNED.format(3)} ORDER BY c.id DESC LIMIT ?2",
            (rows.escape_surrogates(session_id), NO_LIMIT if limit is None else max(limit, 0), db.owner),
        )
        return list(compiles_of(compiles).values())


def sessions(db: Database) -> list[SessionInfo]:
    """Every conversation, most recently used first."""
    conversations = db.execute(
        "SELECT s.session_id, s.vault_name, s.owner, s.raw_tip, s.created_at, max(v.created_at) AS last_at,"
        " count(v.id) AS requests, CAST(ifnull(sum(v.tokens_raw), 0) AS BIGINT) AS tokens_raw,"
        " CAST(ifnull(sum(v.tokens_sent), 0) AS BIGINT) AS tokens_sent,"
        " (SELECT count(*) FROM context_summaries c WHERE c.session = s.id) AS compiles"
        " FROM sessions s LEFT JOIN views v ON v.session = s.id"
        f" WHERE {OWNED.format(1)} GROUP BY s.id ORDER BY max(v.id) DESC NULLS LAST, s.id DESC",
        (db.owner,),
    )
    return [_session(row) for row in conversations]


def owners(db: Database) -> list[OwnerInfo]:
    """All owners that the connection sees, sorted by name."""
    totals = db.execute(
        "SELECT s.owner, count(DISTINCT s.id) AS sessions, count(v.id) AS requests, max(v.created_at) AS last_at"
        f" FROM sessions s LEFT JOIN views v ON v.session = s.id WHERE {OWNED.format(1)} GROUP BY s.owner ORDER BY 1",
        (db.owner,),
    )
    values: list[dict[str, Any]] = [
        {**rows.mapping(row), "last_at": rows.readable_stamp(row["last_at"])} for row in totals
    ]
    return [OwnerInfo(**fields) for fields in values]


def transcript(db: Database, session_id: str, vault_name: str | None = None) -> list[bytes]:
    """Message bodies of a conversation's newest raw history; without `vault_name`, of the most recently used vault."""
    vault = None if vault_name is None else rows.escape_surrogates(vault_name)
    with db.snapshot():
        row = db.execute(
            "SELECT s.id, s.raw_tip FROM sessions s LEFT JOIN views v ON v.session = s.id"
            " WHERE s.session_id = ?1 AND s.vault_name = ifnull(?2, s.vault_name) AND s.raw_tip NOT NULL"
            f" AND {OWNED.format(3)} GROUP BY s.id ORDER BY max(v.id) DESC NULLS LAST LIMIT 1",
            (rows.escape_surrogates(session_id), vault, db.owner),
        ).fetchone()
        return [] if row is None else read_chain(db, row["raw_tip"], row["id"])


def record_of(db: Database, row: Any) -> Record:
    """Convert a row of `VIEWS` to a record with its compile; ValueError if one of them is damaged."""
    return _record(row, _compiles(db, [row], strict=True))


def _record(row: Any, compiles: Mapping[int, Compile]) -> Record:
    return rows.to_record(rows.mapping(row), compiles.get(row["summary"]))


def _compiles(db: Database, requests: Sequence[Any], *, strict: bool = False) -> dict[int, Compile]:
    """Compiles of rows of `VIEWS`, by row number."""
    numbers = json.dumps(sorted({row["summary"] for row in requests if isinstance(row["summary"], int)}))
    made = db.execute(f"{SUMMARIES} WHERE c.id IN (SELECT value FROM json_each(?))", (numbers,)).fetchall()
    return {row["id"]: rows.to_compile(rows.mapping(row)) for row in made} if strict else compiles_of(made)


def compiles_of(table_rows: Iterable[Any]) -> dict[int, Compile]:
    """Convert rows of `SUMMARIES` to compiles, by row number; a warning names each that cannot be read."""
    made = _readable("context_summaries", table_rows, lambda row: (row["id"], rows.to_compile(rows.mapping(row))))
    return dict(made)


def _readable(table: str, table_rows: Iterable[Any], convert: Callable[[Any], T]) -> Iterator[T]:
    """Convert rows of a list; one that is damaged is left out with a warning, so that the others can be listed."""
    for row in table_rows:
        try:
            yield convert(row)
        except (ValueError, TypeError, AttributeError) as error:
            log.warning("%s %s cannot be read and is left out (%s); verify the record", table, row["id"], error)


def _session(row: Any) -> SessionInfo:
    fields: dict[str, Any] = {**rows.mapping(row), "created_at": rows.readable_stamp(row["created_at"]) or rows.UNKNOWN}
    fields["last_at"] = rows.readable_stamp(row["last_at"])
    fields["raw_tip"] = without_prefix(row["raw_tip"])
    return SessionInfo(**fields)


SessionKey = tuple[str, str, str]
"""Session id, vault name and owner of a conversation."""

COMPARED = 8
"""Messages compared at the end of a known prefix, because after a fork a repeated prompt may differ in its times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMessage:
    """A message that is not stored yet."""

    id: str
    parent: str | None
    position: int
    content: str
    body: bytes | str
    """The stored form of its JSON without instructions; see `rows.pack`."""
    instructions: str | None
    raw: bool
    """True if it belongs to a raw history: it can then be searched, and is returned exactly as it was saved."""
    text: str
    """Text for the search index; empty if it is not indexed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Additions:
    """New messages of an entry's chains, and the stored messages that they follow."""

    messages: list[NewMessage] = field(default_factory=list[NewMessage])
    anchors: list[str] = field(default_factory=list[str])
    packed: dict[str, bytes | str] = field(default_factory=dict[str, bytes | str])
    """Stored forms of bodies by name, so that a message of both chains is compressed once."""


def save(db: Database, entry: Entry) -> Record:
    """Save an entry and return its record with `id` and `summary_id`; an already stored entry is only looked up.

    Bodies are read and compressed before the transaction begins, to hold the write lock only briefly.
    """
    key = session_key(db, entry.record.session_id, entry.record.vault_name)
    additions = additions_of(db, key, entry.raw, entry.view)
    with db.transaction():
        session = session_row(db, key, entry.record.created_at)
        write_messages(db, additions, key, session, entry.raw, entry.view)
        record = rows.complete_record(entry, key[2])
        stored = _find_view(db, record, session)
        if stored is None:
            return _insert_view(db, record, session, entry)
        if entry.compile is not None and (key := rows.reusable_key(entry.compile)) and not _has_key(db, key):
            compile_row(db, entry.compile, session)  # it can be reused even though the request is already stored
        return stored


def archive(db: Database, session_id: str, vault_name: str, raw: Chain) -> None:
    """Save a raw history without a request, as the newest history of its conversation."""
    with archiving(db, session_id, vault_name, raw):
        pass


@contextmanager
def archiving(db: Database, session_id: str, vault_name: str, raw: Chain) -> Generator[int]:
    """Run a transaction that saves a history as the newest of its conversation; yield the session's row number."""
    key = session_key(db, session_id, vault_name)
    additions = additions_of(db, key, raw, None)
    with db.transaction():
        session = session_row(db, key, datetime.now(UTC))
        write_messages(db, additions, key, session, raw, None)
        if raw.ids:
            advance(db, session, stored_name(db, raw.ids[-1]))
        yield session


def session_key(db: Database, session_id: str, vault_name: str) -> SessionKey:
    """Return the key of a session for the owner that the connection works for."""
    return rows.escape_surrogates(session_id), rows.escape_surrogates(vault_name), writer_of(db)


def additions_of(db: Database, key: SessionKey, raw: Chain | None, view: Chain | None) -> Additions:
    """Find the messages of an entry's chains that are not stored yet."""
    additions, own = Additions(), prefix(key[2])
    fresh: set[str] = set()
    for chain, is_raw in ((raw, True), (view, False)):
        if chain is None:
            continue
        names = stored_names(chain, own)
        length = known_prefix(db, names, fresh)
        start = _own_prefix(db, key, chain, names, length) if is_raw else length
        if start and names[start - 1] not in fresh:
            additions.anchors.append(names[start - 1])
        additions.messages.extend(new_messages(chain, names, start, own, raw=is_raw, packed=additions.packed))
        fresh.update(names[start:])  # even those already stored, because another process may be removing them
    return additions


def stored_names(chain: Chain, prefix: str) -> Sequence[str]:
    """Return the stored names of a chain's messages."""
    return Names(prefix, chain.ids) if prefix else chain.ids


def new_messages(
    chain: Chain, names: Sequence[str], start: int, prefix: str, *, raw: bool, packed: dict[str, bytes | str]
) -> Iterator[NewMessage]:
    """Yield the messages of a chain from position `start` on, ready to be stored; `packed` caches stored forms."""
    for index in range(start, len(names)):
        body, instructions = _body(chain, index)
        content = prefix + ids.blob_id(body)
        yield NewMessage(
            id=names[index],
            parent=names[index - 1] if index else None,
            position=index,
            content=content,
            body=packed.get(content) or packed.setdefault(content, rows.pack(body)),
            instructions=instructions,
            raw=raw,
            text=chain.text(index) if raw else "",
        )


def _body(chain: Chain, index: int) -> tuple[bytes, str | None]:
    """Return the body of a message and its instructions; without an exact name they stay in the body."""
    body = chain.body(index)
    return rows.split_instructions(body) if chain.ids[index].startswith(ids.RECORDED) else (body, None)


def _own_prefix(db: Database, key: SessionKey, raw: Chain, names: Sequence[str], length: int) -> int:
    """Length of the known prefix whose stored messages have this conversation's times and run ids.

    Messages that another conversation stored may have different ones. If one of the last `COMPARED` messages is equal,
    all before it are taken as equal too.
    """
    saved = _saved_prefix(db, key, names)
    if saved >= length:
        return length
    if db.execute(
        "SELECT 1 FROM copies c JOIN sessions s ON s.id = c.session"
        " WHERE s.session_id = ? AND s.vault_name = ? AND s.owner = ?",
        key,
    ).fetchone():
        return saved
    for index in range(length - 1, max(saved, length - COMPARED) - 1, -1):
        node = db.execute("SELECT content FROM nodes WHERE id = ?", (names[index],)).fetchone()
        if node is not None and without_prefix(node["content"]) == ids.blob_id(_body(raw, index)[0]):
            return index + 1
    return saved


def _saved_prefix(db: Database, key: SessionKey, names: Sequence[str]) -> int:
    """Length of the prefix that this conversation has already saved."""
    session = db.execute(f"SELECT raw_tip FROM sessions WHERE {KEY}", key).fetchone()
    tip = session["raw_tip"] if session else None
    while tip is not None:
        node = db.execute("SELECT parent, position FROM nodes WHERE id = ?", (tip,)).fetchone()
        if node is None or (node["position"] < len(names) and names[node["position"]] == tip):
            return node["position"] + 1 if node else 0
        tip = node["parent"]
    return 0


def write_messages(
    db: Database, additions: Additions, key: SessionKey, session: int, raw: Chain | None, view: Chain | None
) -> None:
    """Write new messages; if another process has removed a message that they follow, find the new ones again first."""
    stored = _contents_of(db, additions)
    if not all(anchor in stored for anchor in additions.anchors):
        additions = additions_of(db, key, raw, view)
        stored = _contents_of(db, additions)
    _write(db, additions.messages, stored, session)


def write_message(db: Database, message: NewMessage, session: int) -> None:
    """Write a message whose predecessor is stored."""
    _write(db, [message], _contents_of(db, Additions(messages=[message])), session)


def _write(db: Database, messages: Sequence[NewMessage], stored: Mapping[str, str], session: int) -> None:
    """Write messages; of those stored with different times or run ids, write a copy for this conversation."""
    own, write = prefix(writer_of(db)), db.executemany
    new = [message for message in messages if message.id not in stored]
    instructions = instructions_of(new, own)
    differing = [
        message for message in messages if message.raw and stored.get(message.id, message.content) != message.content
    ]
    same = [(session, message.id) for message in messages if message.raw and stored.get(message.id) == message.content]
    contents = [(message.content, message.body) for message in (*new, *differing)] + instructions
    write("INSERT OR IGNORE INTO contents VALUES (?, ?)", contents)
    write("INSERT INTO nodes VALUES (?, ?, ?, ?, ?)", [node_row(message, own) for message in new])
    write(
        "INSERT INTO copies VALUES (?, ?, ?) ON CONFLICT (session, node) DO UPDATE SET content = excluded.content",
        [(session, message.id, message.content) for message in differing],
    )
    write("DELETE FROM copies WHERE session = ? AND node = ?", same)
    db.index_messages(searchable_texts(new))


def _contents_of(db: Database, additions: Additions) -> dict[str, str]:
    """Stored content names of the messages of `additions` that are already stored, anchors included, by message id."""
    names = [*additions.anchors, *(message.id for message in additions.messages)]
    query = "SELECT id, content FROM nodes WHERE id IN (SELECT value FROM json_each(?))"
    return dict(db.execute(query, (json.dumps(names),)).fetchall()) if names else {}


def instructions_of(messages: Iterable[NewMessage], prefix: str) -> list[tuple[str, bytes | str]]:
    """Distinct instructions of messages, as `(stored name, stored form)`."""
    texts = dict.fromkeys(message.instructions for message in messages if message.instructions is not None)
    return [(prefix + ids.blob_id(body), rows.pack(body)) for body in map(rows.to_bytes, texts)]


def node_row(message: NewMessage, prefix: str) -> tuple[str, str | None, str, int, str | None]:
    """Return the row of a message in `nodes`."""
    text = message.instructions
    instructions = None if text is None else prefix + ids.blob_id(rows.to_bytes(text))
    return message.id, message.parent, message.content, message.position, instructions


def searchable_texts(messages: Iterable[NewMessage]) -> list[tuple[str, str]]:
    """Texts of messages for the search index, as `(message id, text)`; messages without text are left out."""
    texts = ((message.id, message.text) for message in messages if message.text.strip())
    return [(name, text.encode("utf-8", "replace").decode()) for name, text in texts]


NEWEST, GROWTH = 16, 16
"""Names at the end of a history that are looked up first, and the factor by which each further lookup grows."""


def known_prefix(db: Database, names: Sequence[str], fresh: set[str]) -> int:
    """Length of the known prefix of a chain, searched from the end: if a message is stored, so are all before it."""
    high, size = len(names), NEWEST
    while high:
        low = max(0, high - size)
        part = names[low:high]
        query = "SELECT id FROM nodes WHERE id IN (SELECT value FROM json_each(?))"
        stored = {row[0] for row in db.execute(query, (json.dumps(list(part)),))} | fresh
        if length := prefix_in(part, stored):
            return low + length
        high, size = low, size * GROWTH
    return 0


def prefix_in(names: Sequence[str], present: Set[str]) -> int:
    """Length of the prefix of `names` that is `present`."""
    return bisect_left(range(len(names)), True, key=lambda index: names[index] not in present)


KEY = "session_id = ? AND vault_name = ? AND owner = ?"
"""Condition for a session, by its `SessionKey`."""


def session_row(db: Database, key: SessionKey, created_at: datetime) -> int:
    """Return the row number of a session; insert the row if it does not exist yet."""
    row = db.execute(f"SELECT id FROM sessions WHERE {KEY}", key).fetchone()
    session_id, vault_name, owner = key
    return row["id"] if row else insert(db, "sessions", (session_id, vault_name, None, rows.stamp(created_at), owner))


def _find_view(db: Database, record: Record, session: int) -> Record | None:
    run_id = None if record.run_id is None else rows.escape_surrogates(record.run_id)
    key = (session, run_id, record.request_index, stored_name(db, record.raw_tip), stored_name(db, record.view_tip))
    row = db.execute(
        "SELECT id, summary FROM views WHERE session = ? AND ifnull(run_id, '') = ifnull(?, '') AND request_index = ?"
        " AND ifnull(raw_tip, '') = ifnull(?, '') AND ifnull(view_tip, '') = ifnull(?, '')",
        key,
    ).fetchone()
    return replace(record, id=row["id"], summary_id=row["summary"]) if row else None


def _insert_view(db: Database, record: Record, session: int, entry: Entry) -> Record:
    made = None if entry.compile is None else compile_row(db, entry.compile, session)
    summary = made if record.summary_id is None else record.summary_id
    for cycle in filter(None, (entry.cycle, entry.blocks)):
        state = keep_body(db, rows.to_bytes(cycle.state))
        key = (cycle.tip, cycle.config, session)
        db.execute("DELETE FROM cycles WHERE raw_tip = ? AND config = ? AND session = ?", key)
        insert(db, "cycles", (session, cycle.tip, cycle.config, state))
    if entry.raw is not None and entry.raw.ids:
        advance(db, session, stored_name(db, entry.raw.ids[-1]))
    if entry.tools is not None and record.request_hash is not None:
        _save_tools(db, session, rows.escape_surrogates(record.request_hash), entry.tools)
    row = rows.view_row(entry, session, summary, prefix(writer_of(db)))
    return replace(record, id=insert(db, "views", row), summary_id=summary)


def _save_tools(db: Database, session: int, request_hash: str, tools: str) -> None:
    query = "SELECT 1 FROM toolsets WHERE session = ? AND request_hash = ?"
    if db.execute(query, (session, request_hash)).fetchone() is None:
        insert(db, "toolsets", (session, request_hash, keep_body(db, rows.to_bytes(tools))))


def _has_key(db: Database, cache_key: str) -> bool:
    query = "SELECT 1 FROM context_summaries WHERE cache_key = ?"
    return db.execute(query, (stored_name(db, cache_key),)).fetchone() is not None


def compile_row(db: Database, compile: Compile, session: int) -> int:
    """Return the row number of a compile: an equal one with the same cache key, or a new row.

    The new row has no cache key if another row already has it. If two processes ask a model at the same time, later
    requests reuse the first answer; the second is recorded only for the request that used it.
    """
    own, compile = prefix(writer_of(db)), rows.clear_unknown_tip(db, compile)
    row = rows.summary_row(compile, session, own)
    key, answer = (row[SEALED["context_summaries"].index(name)] for name in ("cache_key", "raw_output"))
    stored = db.execute("SELECT id, raw_output FROM context_summaries WHERE cache_key = ?", (key,)).fetchone()
    if stored:
        undone = db.execute(f"{UNDONE} AND summary = ?", (stored["id"],)).fetchone()
        if undone is None and stored["raw_output"] == answer:
            return stored["id"]
        why = "of another answer" if undone is None else "of a compile that was undone"
        compile = with_null_reasons(replace(compile, cache_key=None), {"cache_key": why})
        row = rows.summary_row(compile, session, own)
    return insert(db, "context_summaries", row)


def keep_body(db: Database, body: bytes) -> str:
    """Store a body in `contents`, unless it is there, and return its stored name."""
    name = stored_name(db, ids.blob_id(body))
    if db.execute("SELECT 1 FROM contents WHERE hash = ?", (name,)).fetchone() is None:
        db.execute("INSERT OR IGNORE INTO contents VALUES (?, ?)", (name, rows.pack(body)))
    return name


def insert(db: Database, table: str, values: Sequence[rows.Column]) -> int:
    """Insert a row with its seal into `table` and return its number."""
    row = db.next_number(table)
    columns = ("rowid", *SEALED[table], "seal")
    marks = ", ".join("?" * len(columns))
    sealed = (row, *values, rows.seal(row, values))
    db.execute(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", sealed)
    return row


def reseal(db: Database, table: str, row: int) -> None:
    """Recompute the seal of a row after a change."""
    columns = SEALED[table]
    values = db.execute(f"SELECT {', '.join(columns)} FROM {table} WHERE rowid = ?", (row,)).fetchone()
    db.execute(f"UPDATE {table} SET seal = ? WHERE rowid = ?", (rows.seal(row, tuple(values)), row))


def advance(db: Database, session: int, tip: str | None) -> None:
    """Set the tip of a session's raw history to a stored name; a retried write never moves it back."""
    columns = SEALED["sessions"]
    query = f"SELECT {', '.join(columns)} FROM sessions WHERE id = ?"
    stored = rows.mapping(db.execute(query, (session,)).fetchone())
    row = {**stored, "raw_tip": rows.newer_tip(db, stored["raw_tip"], tip)}
    seal = rows.seal(session, [row[column] for column in columns])
    db.execute("UPDATE sessions SET raw_tip = ?, seal = ? WHERE id = ?", (row["raw_tip"], seal, session))
