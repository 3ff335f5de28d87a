"""Remove conversations and requests, with everything that only they used.

What a remaining request, conversation, compile or cycle refers to stays, with all its ancestors. The rest is deleted,
overwritten on disk, and removed from the search index. A removal of sessions looks at what these led to, and at what
they had left without a row that names it: branches of their histories, and contents that others replaced. One of cycles
and compiles alone looks at what these led to. One of requests, which may be most of the record, looks at everything.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from string import hexdigits

from context_compiler import ids
from context_compiler.record import rows
from context_compiler.record.conversations import CONVERSATIONS
from context_compiler.record.database import Database
from context_compiler.record.queries import OWNED, reseal
from context_compiler.record.rows import writer_of
from context_compiler.record.sessions import unindex
from context_compiler.record.tables import COLUMNS, REFERENCES

LAST = "\U0010ffff"
"""The last character: with it, a prefix comes after all names that begin with the prefix."""

NODE_COLUMNS = (*rows.TIPS, *rows.TURN_TIPS, ("entries", "node"))
"""Columns that keep a message, with its ancestors."""

CONTENT_COLUMNS = tuple((used[0], used[1]) for used in REFERENCES if used[2] == "contents")
"""Columns that keep a content."""

STATES = (("cycles", "state"),)
"""The column whose values a session replaces, so that no row names the former content.

It replaces its copies too, but has copies only of messages that it shares with others.
"""

STEPS = 3
"""Scans for messages after others. A run ends with few messages after those of its last request. But a session may have
no requests, or be followed by many messages of one that has none; then all messages of the owner are looked at."""

PARTS = {"nodes": "id", "contents": "hash"}
"""Large tables, which are read in parts, and their keys."""

STARTS = ["", *sorted(kind + digit for kind in ("", ids.CHAIN, *ids.RECORDED) for digit in hexdigits.lower()), LAST]
"""The first letters with which the parts begin, after the prefix of an owner; the last part ends with the last."""

DROP_NODES = f"""
WITH RECURSIVE kept (id) AS (
    {" UNION ".join(f"SELECT {column} FROM {table}" for table, column in NODE_COLUMNS)}
    UNION SELECT (SELECT n.parent FROM nodes n WHERE n.id = kept.id) FROM kept
)
DELETE FROM nodes WHERE id IN (SELECT id FROM nodes EXCEPT SELECT id FROM kept)
"""
"""Remove messages that no remaining row refers to, directly or through later messages.

Here and below, `EXCEPT` replaces `NOT IN`: both databases sort or hash an `EXCEPT` list once, but PostgreSQL rescans a
`NOT IN` list for each row if it expects the list to be large. Parents are looked up by key, one at a time, because a
join may be planned as a scan of all messages for each step of a chain.
"""
DROP_CONTENTS = f"""
DELETE FROM contents WHERE hash IN (SELECT hash FROM contents EXCEPT SELECT * FROM (
    {" UNION ALL ".join(f"SELECT {column} FROM {table}" for table, column in CONTENT_COLUMNS)}
) AS used)
"""
KEPT_ENTRIES = """
WITH RECURSIVE kept (owner, id) AS (
    SELECT s.owner, e.value FROM conversations c JOIN sessions s ON s.id = c.session, json_each(c.tips) e
    UNION SELECT k.owner, (SELECT e.parent FROM entries e WHERE e.owner = k.owner AND e.id = k.id) FROM kept k
)
"""
UNUSED_ENTRIES = "FROM entries WHERE (owner, id) IN (SELECT owner, id FROM entries EXCEPT SELECT owner, id FROM kept)"
"""Log entries that neither the end of a conversation nor an abandoned branch leads back to."""
UNUSED_TOOLS = """
FROM toolsets WHERE (session, request_hash) IN (
    SELECT session, request_hash FROM toolsets EXCEPT SELECT session, request_hash FROM views
)
"""
DROP_COPIES = "DELETE FROM copies WHERE node IN (SELECT node FROM copies EXCEPT SELECT id FROM nodes)"

ANCESTORS = """
WITH RECURSIVE led (id) AS (
    SELECT id FROM nodes WHERE id IN (SELECT value FROM json_each(?))
    UNION SELECT (SELECT n.parent FROM nodes n WHERE n.id = led.id) FROM led
)
SELECT n.id, n.parent, n.content, n.instructions FROM led JOIN nodes n ON n.id = led.id
"""
"""Messages with one of these names, and all their ancestors."""

RANGE = "id >= ? AND id < ?"
"""Messages of some owners, by their prefix: one owner of many need not wait until all of theirs are read."""

FOLLOWING = f"SELECT id, parent FROM nodes WHERE {RANGE} AND parent IN (SELECT value FROM json_each(?))"
IN_ORDER = f"SELECT id, parent FROM nodes WHERE {RANGE} ORDER BY position"
"""Messages of some owners, each after its parent."""

KEPT_MEMORIES = """
WITH RECURSIVE kept (id) AS (
    SELECT memory_tip FROM spaces UNION SELECT memory_tip FROM commits
    UNION SELECT (SELECT m.parent FROM memories m WHERE m.id = kept.id) FROM kept
)
"""
UNUSED_MEMORIES = "FROM memories WHERE id IN (SELECT id FROM memories EXCEPT SELECT id FROM kept)"

RETRY_AGE_DAYS = 1
"""Maximum age in days of data in a retried write; removing only older data does not conflict with one."""

LASTING_SESSIONS = "SELECT session FROM spaces UNION SELECT session FROM layers UNION SELECT session FROM conversations"
"""Sessions that are kept even without requests."""

SESSION_TABLES = tuple(table for table, columns in COLUMNS.items() if "session" in columns)
"""Tables whose rows are removed with their session."""

SESSIONS = f"SELECT s.id FROM sessions s WHERE {OWNED.format(1)}"
"""Sessions of the owner `?1`; NULL is every owner."""

OLD_VIEWS = f"""
SELECT id FROM (
    SELECT id, created_at, row_number() OVER (PARTITION BY session ORDER BY id DESC) AS rank FROM views
    WHERE session IN ({SESSIONS})
) AS ranked
WHERE created_at < ifnull(?2, '~') AND rank > ifnull(?3, 0)
"""
AGED = f"SELECT v.id FROM views v WHERE v.created_at < ifnull(?2, '~') AND v.session IN ({SESSIONS})"
"""Requests of the owner `?1` that were sent before `?2`."""

UNUSED_SUMMARIES = f"""
SELECT c.id FROM context_summaries c WHERE c.session IN ({SESSIONS})
AND NOT EXISTS (SELECT 1 FROM views v WHERE v.summary = c.id)
AND NOT EXISTS (SELECT 1 FROM actions a WHERE a.summary = c.id)
AND NOT EXISTS (SELECT 1 FROM views v WHERE v.session = c.session AND v.turn_index = c.turn_index)
AND (c.created_at < ?2 OR NOT EXISTS (SELECT 1 FROM spaces p WHERE p.session = c.session))
"""
"""Compiles that nothing uses; of a managed session, whose summaries no request names, those made before `?2`."""
OLD_CYCLES = f"""
SELECT rowid FROM cycles
WHERE rowid IN (SELECT rowid FROM cycles EXCEPT SELECT max(rowid) FROM cycles GROUP BY session, config)
AND session IN ({SESSIONS})
"""


def delete(db: Database, session_id: str) -> int:
    """Remove a conversation and all data that only it used; return the number of requests removed."""
    with db.sweep():
        return _delete(db, _named(db, session_id))


def _named(db: Database, session_id: str) -> list[int]:
    """Row numbers of the sessions with a name, which may be damaged."""
    numbers = _numbers(db, f"{SESSIONS} AND s.session_id = ?2", (db.owner, rows.escape_surrogates(session_id)))
    if numbers or rows.is_text(session_id):
        return numbers
    query = f"SELECT s.id, s.session_id FROM sessions s WHERE {OWNED.format(1)}"
    return [row["id"] for row in db.execute(query, (db.owner,)) if row["session_id"] == session_id]


def erase(db: Database) -> int:
    """Remove all conversations of the owner with their data; return the number of requests removed."""
    owner = writer_of(db)
    with db.sweep():
        doomed = _numbers(db, SESSIONS, (owner,))
        removed = _remove(db, "views", "session", doomed)
        _remove_sessions(db, doomed)
        _remove_unreferenced(db)
        rows.note_removal(db)
    return removed


def delete_conversation(db: Database, conversation_id: str, expected: str) -> bool:
    """Remove a conversation of the host, with its requests and all data that only it used.

    Returns:
        False, with nothing removed, if the stored revision is not `expected`.
    """
    query = (
        "SELECT o.id FROM sessions o JOIN sessions k ON k.session_id = o.session_id AND k.owner = o.owner"
        f" JOIN ({CONVERSATIONS}) f ON f.session = k.id WHERE k.session_id = ?2 AND f.revision = ?3"
    )
    parameters = (db.owner, rows.escape_surrogates(conversation_id), expected)
    if not _numbers(db, query, parameters):
        return False
    with db.sweep():
        doomed = _numbers(db, query, parameters)
        _delete(db, doomed)
    return bool(doomed)


def _delete(db: Database, doomed: Sequence[int]) -> int:
    """Remove sessions, and what only they used; return the number of requests removed."""
    keys = {"sessions": "id", **dict.fromkeys(SESSION_TABLES, "session")}
    nodes, contents = (_referred(db, columns, keys, doomed) for columns in (NODE_COLUMNS, CONTENT_COLUMNS))
    states = _referred(db, STATES, keys, doomed)
    owners = _owners(db, doomed)
    copied = _copied(db, nodes, doomed)
    removed = _remove(db, "views", "session", doomed)
    _remove_sessions(db, doomed)
    for row in db.execute(f"{KEPT_ENTRIES} SELECT node, content {UNUSED_ENTRIES}").fetchall():
        nodes.add(row["node"])
        contents.add(row["content"])
    contents.update(row[0] for row in db.execute(f"{KEPT_MEMORIES} SELECT content {UNUSED_MEMORIES}").fetchall())
    db.execute(f"{KEPT_ENTRIES} DELETE {UNUSED_ENTRIES}")
    db.execute(f"{KEPT_MEMORIES} DELETE {UNUSED_MEMORIES}")
    if copied:
        _pass_on(db, copied)
    led = {row["id"] for row in db.execute(ANCESTORS, (_json(nodes),))}
    left, followed = _unused_after(db, led) if removed else (set[str](), None)
    for owner in owners if followed is None else ():
        left |= _unused(db, "nodes", "id", (("nodes", "parent"), *NODE_COLUMNS), owner)
    db.clean_indexes(_remove_messages(db, nodes | left, contents, followed))
    db.execute("DELETE FROM claims")
    if states or _in_use(db, (("nodes", "id"),), led):  # there may be contents that were replaced
        for owner in owners:
            _remove(db, "contents", "hash", _unused(db, "contents", "hash", CONTENT_COLUMNS, owner))
    else:
        _remove(db, "contents", "hash", contents - _in_use(db, CONTENT_COLUMNS, contents))
    rows.note_removal(db)
    return removed


def _copied(db: Database, tips: set[str], doomed: Sequence[int]) -> dict[str, str | None]:
    """Those of some messages and their ancestors of which only other sessions have copies, with their parents."""
    led = {row["id"]: row["parent"] for row in db.execute(ANCESTORS, (_json(tips),))}
    return {name: led[name] for name, copies in _copies(db, led).items() if copies.keys().isdisjoint(doomed)}


def _pass_on(db: Database, copied: Mapping[str, str | None]) -> None:
    """Store a copy in place of each of these and later messages that every remaining session reads from a copy."""
    parents = dict(copied)
    for row in db.scan(IN_ORDER, _range(copied)):
        if row["parent"] in parents:
            parents[row["id"]] = row["parent"]
    readers = _readers(db, parents)
    query = "SELECT node FROM entries WHERE content IS NULL AND node IN (SELECT value FROM json_each(?))"
    logged = {row[0] for row in db.execute(query, (_json(parents),))}
    for name, copies in _copies(db, parents).items():
        if name not in logged and readers[name] and readers[name] <= copies.keys():
            content = copies[min(readers[name])]
            db.execute("UPDATE nodes SET content = ? WHERE id = ?", (content, name))
            db.execute("DELETE FROM copies WHERE node = ? AND content = ?", (name, content))


def _copies(db: Database, names: Iterable[str]) -> dict[str, dict[int, str]]:
    """Contents of the copies of messages, by message and by session."""
    query = "SELECT node, session, content FROM copies WHERE node IN (SELECT value FROM json_each(?))"
    copies = defaultdict[str, dict[int, str]](dict)
    for name, session, content in db.execute(query, (_json(names),)):
        copies[name][session] = content
    return copies


def _readers(db: Database, parents: Mapping[str, str | None]) -> dict[str, set[int]]:
    """Sessions that lead to each of some messages, which have all later messages with them."""
    readers, names = defaultdict[str, set[int]](set), _json(parents)
    for table, column in NODE_COLUMNS:
        if table == "entries":
            continue  # an entry leads to no other message
        key = "id" if table == "sessions" else "session"
        query = f"SELECT DISTINCT {column}, {key} FROM {table} WHERE {column} IN (SELECT value FROM json_each(?))"
        for tip, session in db.execute(query, (names,)):
            name: str | None = tip
            while name is not None and name in parents and session not in readers[name]:
                readers[name].add(session)
                name = parents[name]
    return readers


def _owners(db: Database, sessions: Sequence[int]) -> list[str]:
    """Owners of some sessions."""
    query = "SELECT DISTINCT owner FROM sessions WHERE id IN (SELECT value FROM json_each(?))"
    return [row[0] for row in db.execute(query, (_json(sessions),))]


def _unused_after(db: Database, led: set[str]) -> tuple[set[str], set[str] | None]:
    """Messages after some others that no row refers to, and those of all these that others follow.

    The latter are None if there may be more than a few scans can find.
    """
    unused, followed, latest = set[str](), set[str](), led
    for _ in range(STEPS):
        rows_after = db.execute(FOLLOWING, (*_range(latest), _json(latest)))
        parents = {row["id"]: row["parent"] for row in rows_after if row["id"] not in led}
        used = _in_use(db, NODE_COLUMNS, parents)
        followed.update(parents[name] for name in used)
        latest = parents.keys() - used
        if not latest:
            return unused, followed
        unused |= latest
    return unused, None


def _unused(db: Database, table: str, key: str, columns: Iterable[tuple[str, str]], owner: str) -> set[str]:
    """Names of an owner's rows of a table that are in none of these columns; of every owner if the name is damaged."""
    own = rows.prefix(owner) if rows.is_text(owner) else ""
    unused = set(_names(db, table, key, own))
    for column in columns:
        unused.difference_update(_names(db, *column, own))
    return {name for name in unused if rows.prefix_of(name) == own or not rows.is_text(owner)}


def _names(db: Database, table: str, column: str, prefix: str) -> Iterator[str]:
    """Yield the names in a column that begin with a prefix; read many in one row, because each row takes time."""
    key = PARTS.get(table, column)
    bounds = [prefix + start for start in STARTS] if table in PARTS else [prefix, prefix + LAST]
    query = f"SELECT json_group_array({column}) FROM {table} WHERE {key} >= ? AND {key} < ? AND {column} NOT NULL"
    for limits in pairwise(bounds):
        yield from json.loads(db.execute(query, limits).fetchone()[0] or "[]")


def _remove_messages(db: Database, tips: set[str], contents: set[str], followed: set[str] | None = None) -> list[str]:
    """Remove the unused ones of messages and their ancestors, add their contents to a set; return their names.

    `followed` are those of them that other messages follow, if they are known.
    """
    led = {row["id"]: row for row in db.execute(ANCESTORS, (_json(tips),))}
    contents.update(name for row in led.values() for name in (row["content"], row["instructions"]))
    contents.discard(None)
    kept = _in_use(db, NODE_COLUMNS, led)
    if followed is None:
        following = db.execute(FOLLOWING, (*_range(led), _json(led)))
        followed = {row["parent"] for row in following if row["id"] not in led}
    kept |= followed
    for name in list(kept):
        while name in led and (name := led[name]["parent"]) is not None and name not in kept:
            kept.add(name)
    gone = [name for name in led if name not in kept]
    contents.update(content for copies in _copies(db, gone).values() for content in copies.values())
    _remove(db, "nodes", "id", gone)
    _remove(db, "copies", "node", gone)
    return gone


def _referred(
    db: Database, columns: Iterable[tuple[str, str]], keys: Mapping[str, str], values: Sequence[int]
) -> set[str]:
    """Names in these columns of the rows with one of some values in the key of their table, as `keys` names it."""
    names = set[str]()
    for table, column in columns:
        if table in keys:
            query = f"SELECT DISTINCT {column} FROM {table} WHERE {keys[table]} IN (SELECT value FROM json_each(?))"
            names.update(row[0] for row in db.execute(query, (_json(values),)) if row[0])
    return names


def _in_use(db: Database, columns: Iterable[tuple[str, str]], names: Iterable[str]) -> set[str]:
    """Those of some names that are in these columns."""
    names, used = list(names), set[str]()
    for table, column in columns if names else ():
        where, limits = (f"{RANGE} AND ", _range(names)) if table == "nodes" else ("", ())
        query = f"SELECT DISTINCT {column} FROM {table} WHERE {where}{column} IN (SELECT value FROM json_each(?))"
        used.update(row[0] for row in db.execute(query, (*limits, _json(names))))
    return used


def _range(names: Iterable[str]) -> tuple[str, str]:
    """The first name that a message of the owners of some names may have, and one after all of them."""
    prefixes = [rows.prefix_of(name) for name in names]
    return min(prefixes, default=""), max(prefixes, default="") + LAST


def _json(values: Iterable[object]) -> str:
    return json.dumps(list(values))


def prune(db: Database, *, older_than_days: float | None = None, keep_last: int | None = None) -> int:
    """Remove requests that are both too old and not among the newest; return the number of requests removed."""
    limited, owner = older_than_days is not None or keep_last is not None, db.owner
    age = None if older_than_days is None else rows.days_ago(older_than_days)
    is_recent = limited and (older_than_days is None or older_than_days < RETRY_AGE_DAYS)

    query, arguments = (OLD_VIEWS, (owner, age, keep_last)) if keep_last else (AGED, (owner, age))
    old_views = partial(_numbers, db, query, arguments)
    old_cycles = partial(_numbers, db, OLD_CYCLES, (owner,))
    unused = partial(_numbers, db, UNUSED_SUMMARIES, (owner, age))
    with db.snapshot():
        if limited and not is_recent and not (old_views() or old_cycles() or unused()):
            return 0
    with db.sweep():
        old = old_views() if limited else []
        if limited and not old:
            _remove_rows(db, "cycles", "rowid", old_cycles())
            _remove_rows(db, "context_summaries", "id", unused())
        elif limited:
            before = _sessions_with_requests(db)
            _remove(db, "views", "id", old)
            _remove(db, "cycles", "rowid", old_cycles())
            lasting = set(_numbers(db, LASTING_SESSIONS))
            _remove_sessions(db, sorted(before - _sessions_with_requests(db) - lasting))
            _remove(db, "context_summaries", "id", unused())
        if old or not limited:
            _remove_unreferenced(db)
        if is_recent:
            rows.note_removal(db)
    return len(old)


def _remove_rows(db: Database, table: str, key: str, doomed: Sequence[int]) -> None:
    """Remove rows, and the messages and contents that only they used."""
    nodes, contents = (_referred(db, columns, {table: key}, doomed) for columns in (NODE_COLUMNS, CONTENT_COLUMNS))
    _remove(db, table, key, doomed)
    db.clean_indexes(_remove_messages(db, nodes, contents))
    db.execute("DELETE FROM claims")
    _remove(db, "contents", "hash", contents - _in_use(db, CONTENT_COLUMNS, contents))


def _sessions_with_requests(db: Database) -> set[int]:
    return set(_numbers(db, "SELECT DISTINCT session FROM views"))


def _remove_unreferenced(db: Database) -> None:
    for statement in (f"{KEPT_ENTRIES} DELETE {UNUSED_ENTRIES}", DROP_NODES, DROP_COPIES, f"DELETE {UNUSED_TOOLS}"):
        db.execute(statement)
    db.clean_indexes()
    db.execute("DELETE FROM claims")
    db.execute(f"{KEPT_MEMORIES} DELETE {UNUSED_MEMORIES}")
    db.execute(DROP_CONTENTS)


def _remove_sessions(db: Database, sessions: Sequence[int]) -> None:
    """Remove sessions that have no requests; a compile that another session uses moves to that session."""
    _remove(db, "actions", "session", sessions)
    shared = db.execute(
        "SELECT c.id, min(v.session) AS heir FROM context_summaries c JOIN"
        " (SELECT session, summary FROM views UNION SELECT session, summary FROM actions) v ON v.summary = c.id"
        " WHERE c.session IN (SELECT value FROM json_each(?)) GROUP BY c.id",
        (json.dumps(sessions),),
    ).fetchall()
    for row in shared:
        db.execute("UPDATE context_summaries SET session = ? WHERE id = ?", (row["heir"], row["id"]))
        reseal(db, "context_summaries", row["id"])
    _remove(db, "context_summaries", "session", sessions)
    unindex(db, "session IN (SELECT value FROM json_each(?))", json.dumps(sessions))
    for table in SESSION_TABLES:
        _remove(db, table, "session", sessions)
    _remove(db, "sessions", "id", sessions)


def _numbers(db: Database, query: str, arguments: Sequence[object] = ()) -> list[int]:
    """First column of the rows of a query."""
    return [row[0] for row in db.execute(query, tuple(arguments))]


def _remove(db: Database, table: str, column: str, values: Iterable[int | str]) -> int:
    """Delete the rows with one of these values in a column; return their number."""
    condition = f"{column} IN (SELECT value FROM json_each(?))"
    return db.execute(f"DELETE FROM {table} WHERE {condition}", (_json(values),)).rowcount
