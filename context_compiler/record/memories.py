"""What a session remembers, one question a function: memories, commits, and the state that is current.

A memory is named as reached by all that was remembered before it, so a state of the memory is one name, and two
states differ by what lies between them: a commit costs one row, and a checkout what it changes.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from context_compiler import ids
from context_compiler.errors import ContextMemoryError
from context_compiler.record import rows
from context_compiler.record.read import ALL
from context_compiler.record.schema import transaction
from context_compiler.record.values import Chain
from context_compiler.record.write import archive, keep_body

Indexed = Callable[[str], str]
"""The terms by which a text is found."""

HELD = ("parent", "memory_tip", "turns_tip", "state", "memories", "turns", "author", "message", "created_at")
"""The columns that name a commit, after the name of its session."""
TEXTS = "SELECT m.id, m.created_at, t.body FROM memories m JOIN contents t ON t.hash = m.content WHERE m.id = ?"


class _Nothing:
    """No turns at all."""

    ids: Sequence[str] = ()

    def body(self, index: int) -> bytes:
        raise IndexError(index)

    def text(self, index: int) -> str:
        raise IndexError(index)


NOTHING = _Nothing()


def remember(db: sqlite3.Connection, name: str, text: str, indexed: Indexed, newest: str = "") -> str:
    """Keep a text as the newest of a session's memories; one that is there already keeps its name.

    Of texts that begin with `newest`, such as versions of one summary, only the one remembered last can be found.
    """
    session = session_of(db, name, NOTHING)
    body = rows.to_bytes(text)
    content, terms = ids.blob_id(body), indexed(text)
    with transaction(db):
        known = db.execute(
            "SELECT m.id FROM memories m JOIN live_memories l ON l.memory = m.id WHERE m.content = ? AND l.session = ?",
            (content, session),
        ).fetchone()
        if known is not None:
            _index_only(db, session, known["id"], text, indexed, newest)
            return known["id"]
        tip = space_of(db, session)["memory_tip"]
        memory = ids.chained(tip, content)
        keep_body(db, body)
        row = (memory, tip, content, _position(db, tip) + 1, rows.stamp(datetime.now(UTC)))
        db.execute("INSERT OR IGNORE INTO memories VALUES (?, ?, ?, ?, ?)", row)
        _enliven(db, session, memory, terms)
        db.execute("UPDATE spaces SET memory_tip = ? WHERE session = ?", (memory, session))
        _index_only(db, session, memory, text, indexed, newest)
        return memory


def search(db: sqlite3.Connection, name: str, match: str, limit: int) -> list[tuple[str, str, datetime]]:
    """The memories that a full-text query matches best, by BM25: id, text and time, in the order of remembering."""
    found = db.execute(
        "SELECT m.id, m.created_at, m.position, t.body FROM memories_fts f JOIN live_memories l ON l.id = f.rowid"
        " JOIN sessions s ON s.id = l.session JOIN memories m ON m.id = l.memory JOIN contents t ON t.hash = m.content"
        " WHERE memories_fts MATCH ? AND s.session_id = ? AND s.vault_name = '' ORDER BY f.rank LIMIT ?",
        (match, name, limit),
    ).fetchall()
    return [_memory(row) for row in sorted(found, key=lambda row: row["position"])]


def commit(
    db: sqlite3.Connection, name: str, message: str, author: str, turns: Chain | None, count: int, facts: str | None
) -> str:
    """Keep the state of a memory, and a session with it; of its messages only the new ones are written."""
    session = session_of(db, name, turns or NOTHING)
    with transaction(db):
        space = space_of(db, session)
        state = None if facts is None else keep_body(db, rows.to_bytes(facts))
        held = {
            "parent": space["head"],
            "memory_tip": space["memory_tip"],
            "turns_tip": tip_of(turns),
            "state": state,
            "memories": _position(db, space["memory_tip"]) + 1,
            "turns": count,
            "author": author,
            "message": message,
            "created_at": rows.stamp(datetime.now(UTC)),
        }
        named = commit_id(name, [held[column] for column in HELD])
        db.execute(
            f"INSERT INTO commits (id, session, {', '.join(HELD)}) VALUES (?, ?{', ?' * len(HELD)})",
            (named, session, *(held[column] for column in HELD)),
        )
        db.execute("UPDATE spaces SET head = ? WHERE session = ?", (named, session))
        return named


def commit_id(name: str, held: Sequence[object]) -> str:
    """The name of a commit by all that it holds."""
    return ids.blob_id(json.dumps([name, *held], separators=(",", ":")).encode())


def checkout(db: sqlite3.Connection, name: str, commit: str, indexed: Indexed, newest: str = "") -> None:
    """Let a memory be as it was at a commit, in one transaction; `newest` is as for `remember`."""
    with transaction(db):
        row = known(db, name, commit)
        session = row["session"]
        gone, new = between(db, space_of(db, session)["memory_tip"], row["memory_tip"])
        for memory in gone:
            live = db.execute("SELECT id FROM live_memories WHERE session = ? AND memory = ?", (session, memory))
            for (number,) in live.fetchall():
                db.execute("DELETE FROM memories_fts WHERE rowid = ?", (number,))
                db.execute("DELETE FROM live_memories WHERE id = ?", (number,))
        for memory, text, _ in read(db, new):
            _enliven(db, session, memory, indexed(text))
        if newest:
            live = "SELECT m.id, m.created_at, t.body FROM live_memories l JOIN memories m ON m.id = l.memory"
            texts = f"{live} JOIN contents t ON t.hash = m.content WHERE l.session = ? ORDER BY m.position DESC"
            found = (_memory(one) for one in db.execute(texts, (session,)).fetchall())
            last = next((one for one in found if one[1].startswith(newest)), None)
            if last is not None:
                _index_only(db, session, last[0], last[1], indexed, newest)
        db.execute("UPDATE spaces SET memory_tip = ?, head = ? WHERE session = ?", (row["memory_tip"], commit, session))


def log(db: sqlite3.Connection, name: str, limit: int | None) -> list[rows.Row]:
    """The commit that a memory is at and those before it, newest first."""
    found = db.execute(
        "WITH RECURSIVE up (id, parent, at) AS ("
        " SELECT c.id, c.parent, 0 FROM sessions s JOIN spaces p ON p.session = s.id JOIN commits c ON c.id = p.head"
        " WHERE s.session_id = ? AND s.vault_name = ''"
        " UNION ALL SELECT c.id, c.parent, up.at + 1 FROM up JOIN commits c ON c.id = up.parent)"
        " SELECT c.* FROM up JOIN commits c ON c.id = up.id ORDER BY up.at LIMIT ?",
        (name, ALL if limit is None else max(limit, 0)),
    )
    return [rows.named(row) for row in found]


def known(db: sqlite3.Connection, name: str, commit: str) -> rows.Row:
    """A commit of a session.

    Raises:
        ContextMemoryError: the session has none of that name.
    """
    row = db.execute(
        "SELECT c.* FROM commits c JOIN sessions s ON s.id = c.session"
        " WHERE c.id = ? AND s.session_id = ? AND s.vault_name = ''",
        (str(commit), name),
    ).fetchone()
    if row is None:
        raise ContextMemoryError(f"session {name!r} has no commit {commit!r}; `log` names those that there are")
    return rows.named(row)


def between(db: sqlite3.Connection, old: str | None, new: str | None) -> tuple[list[str], list[str]]:
    """What is to be forgotten and what to be remembered from one state to another, oldest first."""
    gone: list[str] = []
    added: list[str] = []
    while old != new:
        if _position(db, old) >= _position(db, new) and old is not None:
            gone.append(old)
            old = _parent(db, old)
        elif new is not None:
            added.append(new)
            new = _parent(db, new)
    return gone[::-1], added[::-1]


def read(db: sqlite3.Connection, memories: Sequence[str]) -> list[tuple[str, str, datetime]]:
    """Memories by name: id, text and time."""
    return [_memory(db.execute(TEXTS, (memory,)).fetchone()) for memory in memories]


def session_of(db: sqlite3.Connection, name: str, turns: Chain) -> int:
    """The row of a session, with these messages."""
    archive(db, name, "", turns)
    found = db.execute("SELECT id FROM sessions WHERE session_id = ? AND vault_name = ''", (name,)).fetchone()
    return found["id"]


def space_of(db: sqlite3.Connection, session: int) -> sqlite3.Row:
    """Where the memory of a session is now."""
    db.execute("INSERT OR IGNORE INTO spaces (session) VALUES (?)", (session,))
    return db.execute("SELECT * FROM spaces WHERE session = ?", (session,)).fetchone()


def _enliven(db: sqlite3.Connection, session: int, memory: str, terms: str) -> None:
    db.execute("INSERT INTO live_memories (session, memory) VALUES (?, ?)", (session, memory))
    db.execute("INSERT INTO memories_fts (rowid, terms) VALUES (last_insert_rowid(), ?)", (terms,))


def _index_only(db: sqlite3.Connection, session: int, memory: str, text: str, indexed: Indexed, prefix: str) -> None:
    """Take other texts with a prefix out of the index, and put this one in; nothing if it does not begin so itself."""
    if not prefix or not text.startswith(prefix):
        return
    others = db.execute(
        "SELECT l.id AS number, l.memory, m.id, m.created_at, t.body FROM memories_fts f"
        " JOIN live_memories l ON l.id = f.rowid JOIN memories m ON m.id = l.memory"
        " JOIN contents t ON t.hash = m.content WHERE memories_fts MATCH ? AND l.session = ?",
        (f'"{indexed(prefix)}"', session),
    ).fetchall()
    for row in others:
        if row["memory"] != memory and _memory(row)[1].startswith(prefix):
            db.execute("DELETE FROM memories_fts WHERE rowid = ?", (row["number"],))
    if all(row["memory"] != memory for row in others):
        query = "SELECT id FROM live_memories WHERE session = ? AND memory = ?"
        (number,) = db.execute(query, (session, memory)).fetchone()
        db.execute("INSERT INTO memories_fts (rowid, terms) VALUES (?, ?)", (number, indexed(text)))


def _position(db: sqlite3.Connection, memory: str | None) -> int:
    found = db.execute("SELECT position FROM memories WHERE id = ?", (memory,)).fetchone()
    return -1 if found is None else found["position"]


def _parent(db: sqlite3.Connection, memory: str) -> str | None:
    found = db.execute("SELECT parent FROM memories WHERE id = ?", (memory,)).fetchone()
    return None if found is None else found["parent"]


def _memory(row: sqlite3.Row) -> tuple[str, str, datetime]:
    return row["id"], rows.to_text(rows.unpack(row["body"])), rows.moment(row["created_at"])


def tip_of(turns: Chain | None) -> str | None:
    """The name of the last message."""
    return turns.ids[-1] if turns is not None and turns.ids else None
