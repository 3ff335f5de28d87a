"""Sessions beyond their requests: their layers, what they remember and commit, and the managed sessions themselves.

A memory is named as reached by all that was remembered before it, so one name stands for a whole state of the memory,
and two states differ by what lies between them: a commit costs one row, and a checkout costs what it changes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from context_compiler import ids
from context_compiler.errors import ContextMemoryError, StoreError
from context_compiler.record import rows
from context_compiler.record.database import Database
from context_compiler.record.queries import (
    ALL,
    KEY,
    OWNED,
    archiving,
    compile_row,
    insert,
    keep_body,
    read_chain,
    session_key,
    session_row,
)
from context_compiler.record.rows import stored_name, without_prefix, writer_of
from context_compiler.record.values import Action, Chain, Compile, Cycle, LayerPages, page_name, page_names

IndexTerms = Callable[[str], str]
"""The terms by which a text is found, separated by blanks."""

SessionState = tuple[str | None, str]
"""The chain id of a session's last message, and all else about the session as JSON."""

COMMIT = ("parent", "memory_tip", "turns_tip", "state", "memories", "turns", "author", "message", "created_at")
"""The columns that name a commit, after the name of its session."""

NAMES = ("parent", "memory_tip", "turns_tip", "state")
"""Those of them that are names themselves."""


class _NoTurns:
    """An empty chain."""

    ids: Sequence[str] = ()

    def body(self, index: int) -> bytes:
        raise IndexError(index)

    def text(self, index: int) -> str:
        raise IndexError(index)


NO_TURNS = _NoTurns()

LONGEST_S = 3_600.0
"""Seconds for which a compile is shown at most."""


NEWEST_LAYERS = (
    "SELECT l.session, l.state, l.version FROM layers l JOIN sessions s ON s.id = l.session"
    " WHERE s.session_id = ? AND s.vault_name = ? AND s.owner = ?"
)


def load_layers(db: Database, session_id: str, vault_name: str) -> tuple[str, int] | None:
    """The newest layers of a session as JSON text, and their version from 1; None if it has none.

    Raises:
        StoreError: their pages are not as they were written.
    """
    found = load_layer_pages(db, session_id, vault_name, None)
    return None if found is None else (found.joined(), found.version)


def load_layer_pages(db: Database, session_id: str, vault_name: str, known: LayerPages | None) -> LayerPages | None:
    """The newest layers of a session in parts; what is as `known` is not read again.

    Raises:
        StoreError: a page is missing, or not as it was written.
    """
    key = session_key(db, session_id, vault_name)
    if known is not None:
        row = db.execute(NEWEST_LAYERS, key).fetchone()
        if row is not None and row["state"] == known.state:
            return replace(known, version=row["version"])
    with db.snapshot():
        row = db.execute(NEWEST_LAYERS, key).fetchone()
        if row is None:
            return None
        held: Mapping[str, str] = {} if known is None else known.pages
        query = "SELECT name, body FROM layer_pages WHERE session = ? AND NOT name IN (SELECT value FROM json_each(?))"
        found = dict(db.execute(query, (row["session"], json.dumps(list(held)))).fetchall())
    pages = {name: held.get(name) or found.get(name, "") for name in page_names(row["state"])}
    if any(name not in held and page_name(text) != name for name, text in pages.items()):
        raise StoreError(f"session {session_id!r}: its layers are not as they were written; verify the record")
    return LayerPages(state=row["state"], version=row["version"], pages=pages)


def save_layers(
    db: Database, session_id: str, vault_name: str, state: str, after: int, pages: Mapping[str, str] | None = None
) -> int:
    """Replace version `after` of a session's layers and return the new version; only pages that are new are written.

    Raises:
        StoreError: the newest version is another one.
    """
    with db.transaction():
        db.lock_name(rows.plain(session_id))
        found = db.execute(NEWEST_LAYERS, session_key(db, session_id, vault_name)).fetchone()
        version = 0 if found is None else found["version"]
        if version != after:
            raise StoreError(
                f"session {session_id!r}: its layers were changed meanwhile (version {version}, expected {after});"
                " read them again and repeat the turn"
            )
        session = session_row(db, session_key(db, session_id, vault_name), datetime.now(UTC))
        db.execute("DELETE FROM layers WHERE session = ?", (session,))
        insert(db, "layers", (session, after + 1, rows.to_bytes(state).decode("utf-8", "backslashreplace")))
        _save_pages(db, session, pages or {})
    return after + 1


def _save_pages(db: Database, session: int, pages: Mapping[str, str]) -> None:
    """Make these the pages of a session's layers."""
    known = {row[0] for row in db.execute("SELECT name FROM layer_pages WHERE session = ?", (session,))}
    if gone := known - pages.keys():
        query = "DELETE FROM layer_pages WHERE session = ? AND name IN (SELECT value FROM json_each(?))"
        db.execute(query, (session, json.dumps(sorted(gone))))
    new = [(session, name, pages[name]) for name in pages if name not in known]
    db.executemany("INSERT INTO layer_pages (session, name, body) VALUES (?, ?, ?)", new)


def actions(db: Database, session_id: str, vault_name: str) -> list[Action]:
    """The actions of users on a conversation, oldest first."""
    found = db.execute(
        "SELECT a.* FROM actions a JOIN sessions s ON s.id = a.session"
        " WHERE s.session_id = ? AND s.vault_name = ? AND s.owner = ? ORDER BY a.number",
        session_key(db, session_id, vault_name),
    ).fetchall()
    return [
        Action(
            **{name: row[name] for name in ("number", "kind", "tip", "state")},
            summary_id=row["summary"],
            created_at=rows.parse_stamp(row["created_at"]),
        )
        for row in found
    ]


def answers_by_turn(db: Database, session_id: str, vault_name: str) -> dict[int, int]:
    """Number of the newest request of every turn of a session, the turns from 0."""
    found = db.execute(
        "SELECT v.turn_index, max(v.id) FROM views v JOIN sessions s ON s.id = v.session"
        f" WHERE s.session_id = ?1 AND s.vault_name = ?2 AND {OWNED.format(3)} GROUP BY v.turn_index",
        (rows.plain(session_id), rows.plain(vault_name), db.owner),
    )
    return {row[0]: row[1] for row in found}


def save_action(
    db: Database, session_id: str, vault_name: str, action: Action, after: int, compile: Compile | None
) -> Action:
    """Save an action with the compile that it made, if it made one; the action as it was saved.

    Raises:
        StoreError: the newest action is another one than number `after`.
    """
    with db.transaction():
        known = actions(db, session_id, vault_name)
        newest = known[-1].number if known else 0
        if newest != after:
            raise StoreError(
                f"session {session_id!r}: somebody compiled, undid or pinned in it meanwhile"
                f" (action {newest}, expected {after}); look at it and try again"
            )
        session = session_row(db, session_key(db, session_id, vault_name), action.created_at)
        made = action.summary_id if compile is None else compile_row(db, compile, session)
        saved = replace(action, number=after + 1, summary_id=made)
        given = (session, saved.number, action.kind, action.tip, rows.plain(action.state), made)
        insert(db, "actions", (*given, rows.stamp(action.created_at)))
        return saved


def announce_compile(
    db: Database, session_id: str, vault_name: str, model: str, seconds: float
) -> tuple[int, datetime] | None:
    """Show that a model writes a summary, for at most that long; what `withdraw_compile` takes.

    None for a conversation without a record.
    """
    now = datetime.now(UTC)
    given = (rows.plain(model), rows.stamp(now), rows.stamp(now + timedelta(seconds=min(seconds, LONGEST_S))))
    with db.transaction():
        found = db.execute(f"SELECT id FROM sessions WHERE {KEY}", session_key(db, session_id, vault_name)).fetchone()
        if found is not None:
            db.execute(
                "INSERT INTO under_way (session, model, started_at, expires_at) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (session) DO UPDATE SET model = excluded.model, started_at = excluded.started_at,"
                " expires_at = excluded.expires_at",
                (found["id"], *given),
            )
    return None if found is None else (found["id"], now)


def withdraw_compile(db: Database, session: int, started_at: datetime) -> None:
    """Show a call of a model no longer; a later one of the session stays."""
    with db.transaction():
        db.execute("DELETE FROM under_way WHERE session = ? AND started_at = ?", (session, rows.stamp(started_at)))


def claim_compile(db: Database, cache_key: str, holder: str, seconds: float) -> bool:
    """Claim a model call for a summary, for this many seconds; False while another holder has it.

    The claim is advisory: nothing is locked, and a process that does not ask can call the model anyway.
    """
    name = stored_name(db, cache_key)
    with db.transaction():
        now = db.clock()
        db.execute("DELETE FROM claims WHERE until <= ?", (now,))
        db.execute("INSERT OR IGNORE INTO claims VALUES (?, ?, ?)", (name, holder, now + min(seconds, LONGEST_S)))
        found = db.execute("SELECT holder FROM claims WHERE name = ?", (name,)).fetchone()
    return found is not None and found["holder"] == holder


def hold_claim(db: Database, cache_key: str, holder: str, seconds: float) -> None:
    """Renew a claim for this many seconds, if it still exists; after that, others may make the call."""
    with db.transaction():
        query = "UPDATE claims SET until = ? WHERE name = ? AND holder = ?"
        db.execute(query, (db.clock() + seconds, stored_name(db, cache_key), holder))


def save_compile(db: Database, compile: Compile) -> int:
    """Save a compile that no request carries; its row."""
    with db.transaction():
        session = session_row(db, session_key(db, compile.session_id, compile.vault_name), compile.created_at)
        return compile_row(db, compile, session)


def session_cycles(db: Database, session_id: str, vault_name: str) -> list[Cycle]:
    """Every cycle of a conversation, oldest first."""
    found = db.execute(
        "SELECT c.raw_tip, c.config, t.body FROM cycles c JOIN sessions s ON s.id = c.session"
        " JOIN contents t ON t.hash = c.state WHERE s.session_id = ? AND s.vault_name = ? AND s.owner = ?"
        " ORDER BY c.rowid",
        session_key(db, session_id, vault_name),
    )
    return [
        Cycle(tip=row["raw_tip"], config=row["config"], state=rows.to_text(rows.unpack(row["body"])))
        for row in found
        if isinstance(row["config"], str)  # else it is damaged
    ]


def remember(db: Database, name: str, text: str, index_terms: IndexTerms, newest: str = "") -> str:
    """Add a text to a session's memory and return its id; a text that is there already keeps its id.

    Of texts that begin with `newest`, such as versions of one summary, search finds only the one remembered last.
    """
    body = rows.to_bytes(text)
    content, terms = stored_name(db, ids.blob_id(body)), index_terms(text)
    with archiving(db, name, "", NO_TURNS) as session:
        tip = _space(db, session)["memory_tip"]
        known = db.execute(
            "SELECT m.id FROM memories m JOIN live_memories l ON l.memory = m.id WHERE m.content = ? AND l.session = ?",
            (content, session),
        ).fetchone()
        if known is not None:
            _index_alone(db, session, known["id"], text, index_terms, newest)
            return without_prefix(known["id"])
        memory = stored_name(db, ids.chain_id(without_prefix(tip), without_prefix(content)))
        keep_body(db, body)
        row = (memory, tip, content, _position(db, tip) + 1, rows.stamp(datetime.now(UTC)))
        db.execute("INSERT OR IGNORE INTO memories VALUES (?, ?, ?, ?, ?)", row)
        _make_live(db, session, memory, terms)
        db.execute("UPDATE spaces SET memory_tip = ? WHERE session = ?", (memory, session))
        _index_alone(db, session, memory, text, index_terms, newest)
        return without_prefix(memory)


def search_memories(db: Database, name: str, terms: Sequence[str], limit: int) -> list[tuple[str, str, datetime]]:
    """The best matches of any of these terms by BM25, oldest first: id, text and time."""
    session = db.execute(f"SELECT id FROM sessions WHERE {KEY}", session_key(db, name, "")).fetchone()
    found = [] if session is None else db.find_memories(session["id"], terms, limit)
    return [_memory(row) for row in sorted(found, key=lambda row: row["position"])]


def commit(
    db: Database, name: str, message: str, author: str, turns: Chain | None, count: int, state: str | None
) -> str:
    """Commit a session's memory, and the session itself if its `turns` and `state` are given; the commit's id."""
    with archiving(db, name, "", turns or NO_TURNS) as session:
        space = _space(db, session)
        columns = {
            "parent": space["head"],
            "memory_tip": space["memory_tip"],
            "turns_tip": stored_name(db, _tip(turns)),
            "state": None if state is None else keep_body(db, rows.to_bytes(state)),
            "memories": _position(db, space["memory_tip"]) + 1,
            "turns": count,
            "author": author,
            "message": message,
            "created_at": rows.stamp(datetime.now(UTC)),
        }
        commit = stored_name(db, commit_id(name, columns))
        db.execute(
            f"INSERT INTO commits (id, session, {', '.join(COMMIT)}) VALUES (?, ?{', ?' * len(COMMIT)})",
            (commit, session, *(columns[column] for column in COMMIT)),
        )
        db.execute("UPDATE spaces SET head = ? WHERE session = ?", (commit, session))
        return without_prefix(commit)


def commit_id(name: str, columns: rows.Row) -> str:
    """The id of a commit: a hash of the session's name and of the columns `COMMIT`."""
    given = [without_prefix(columns[column]) if column in NAMES else columns[column] for column in COMMIT]
    return ids.blob_id(json.dumps([name, *given], separators=(",", ":")).encode())


def checkout(db: Database, name: str, commit: str, index_terms: IndexTerms, newest: str = "") -> None:
    """Restore a session's memory to a commit, in one transaction; for `newest`, see `remember`."""
    with db.transaction():
        row = find_commit(db, name, commit)
        session = row["session"]
        removed, added = memory_diff(db, _space(db, session)["memory_tip"], row["memory_tip"])
        for memory in removed:
            live = db.execute("SELECT id FROM live_memories WHERE session = ? AND memory = ?", (session, memory))
            for (number,) in live.fetchall():
                db.unindex_memory(number)
                db.execute("DELETE FROM live_memories WHERE id = ?", (number,))
        for memory, (_, text, _) in zip(added, read_memories(db, added), strict=True):
            _make_live(db, session, memory, index_terms(text))
        if newest:
            found = db.execute(
                "SELECT m.id, m.created_at, t.body FROM live_memories l JOIN memories m ON m.id = l.memory"
                " JOIN contents t ON t.hash = m.content WHERE l.session = ? ORDER BY m.position DESC",
                (session,),
            ).fetchall()
            texts = ((one["id"], _memory(one)[1]) for one in found)
            last = next((one for one in texts if one[1].startswith(newest)), None)
            if last is not None:
                _index_alone(db, session, *last, index_terms, newest)
        head = (row["memory_tip"], row["id"], session)
        db.execute("UPDATE spaces SET memory_tip = ?, head = ? WHERE session = ?", head)


def commit_log(db: Database, name: str, limit: int | None) -> list[rows.Row]:
    """The current commit of a session and its ancestors, newest first."""
    found = db.execute(
        "WITH RECURSIVE up (id, parent, at) AS ("
        " SELECT c.id, c.parent, 0 FROM sessions s JOIN spaces p ON p.session = s.id JOIN commits c ON c.id = p.head"
        " WHERE s.session_id = ? AND s.vault_name = '' AND s.owner = ?"
        " UNION ALL SELECT c.id, c.parent, up.at + 1 FROM up JOIN commits c ON c.id = up.parent)"
        " SELECT c.* FROM up JOIN commits c ON c.id = up.id ORDER BY up.at LIMIT ?",
        (name, writer_of(db), ALL if limit is None else max(limit, 0)),
    )
    return [
        {**rows.mapping(row), "id": without_prefix(row["id"]), "parent": without_prefix(row["parent"])} for row in found
    ]


def find_commit(db: Database, name: str, commit: str) -> rows.Row:
    """A commit of a session, its names as they are stored.

    Raises:
        ContextMemoryError: the session has no such commit.
    """
    row = db.execute(
        "SELECT c.* FROM commits c JOIN sessions s ON s.id = c.session"
        " WHERE c.id = ? AND s.session_id = ? AND s.vault_name = '' AND s.owner = ?",
        (stored_name(db, str(commit)), name, writer_of(db)),
    ).fetchone()
    if row is None:
        raise ContextMemoryError(f"session {name!r} has no commit {commit!r}; `log` names those that there are")
    return rows.mapping(row)


def memory_diff(db: Database, old: str | None, new: str | None) -> tuple[list[str], list[str]]:
    """Memories to remove from and to add to the state `old` for the state `new`, oldest first, by stored names."""
    removed: list[str] = []
    added: list[str] = []
    while old != new:
        if _position(db, old) >= _position(db, new) and old is not None:
            removed.append(old)
            old = _parent(db, old)
        elif new is not None:
            added.append(new)
            new = _parent(db, new)
    return removed[::-1], added[::-1]


def read_memories(db: Database, memories: Sequence[str]) -> list[tuple[str, str, datetime]]:
    """Memories by their stored names: id, text and time."""
    query = "SELECT m.id, m.created_at, t.body FROM memories m JOIN contents t ON t.hash = m.content WHERE m.id = ?"
    return [_memory(db.execute(query, (memory,)).fetchone()) for memory in memories]


def save_session(
    db: Database,
    name: str,
    turns: Chain,
    state: str,
    score: Sequence[rows.Column] | None,
    compile: Compile | None,
    after: SessionState | None,
) -> SessionState:
    """Save a session, the score of its last turn, and the compile of its summary; where it is refused, nothing.

    Returns:
        The new state, for the `after` of the next save.

    Raises:
        StoreError: the state on record is not `after`; None means none.
    """
    tip = stored_name(db, _tip(turns))
    with archiving(db, name, "", turns) as session:
        _space(db, session)
        if session_state(db, name) not in (None, after):
            raise StoreError(
                f"session {name!r}: another manager has kept it meanwhile; `resume` goes on with what that one kept"
            )
        db.execute("UPDATE spaces SET turns_tip = ?, state = ? WHERE session = ?", (tip, state, session))
        if compile is not None:
            compile_row(db, compile, session)
        if score is not None:
            insert(db, "scores", (session, score[0], tip, *score[1:]))
    return tip, state


def session_state(db: Database, name: str) -> SessionState | None:
    """The state of a session as it was saved last; None if it never was."""
    row = _saved_space(db, name)
    return None if row is None else (row["turns_tip"], row["state"])


def latest_session(db: Database, name: str) -> tuple[str, list[bytes]] | None:
    """State and messages of a session as it was saved last; None if it never was."""
    with db.snapshot():
        row = _saved_space(db, name)
        return None if row is None else (row["state"], _bodies(db, rows.mapping(row)))


def session_at(db: Database, name: str, commit: str) -> tuple[str, list[bytes]] | None:
    """State and messages of a session as of a commit; None if the commit holds the memory alone."""
    with db.snapshot():
        row = find_commit(db, name, commit)
        if row["state"] is None:
            return None
        body = db.execute("SELECT body FROM contents WHERE hash = ?", (row["state"],)).fetchone()["body"]
        return rows.to_text(rows.unpack(body)), _bodies(db, row)


def scores(db: Database, name: str | None) -> list[rows.Row]:
    """The scores of a session, or of all, oldest first; `session_id` names the session of each."""
    found = db.execute(
        "SELECT c.*, s.session_id FROM scores c JOIN sessions s ON s.id = c.session"
        f" WHERE (?1 IS NULL OR s.session_id = ?1) AND {OWNED.format(2)} ORDER BY c.id",
        (name, db.owner),
    )
    return [rows.mapping(row) for row in found]


def _space(db: Database, session: int) -> Any:
    """The row of a session's memory and turns, made at first use; nobody else writes it before the transaction ends."""
    db.execute(
        "INSERT INTO spaces (session) VALUES (?) ON CONFLICT (session) DO UPDATE SET session = excluded.session",
        (session,),
    )
    return db.execute("SELECT * FROM spaces WHERE session = ?", (session,)).fetchone()


def _saved_space(db: Database, name: str) -> Any:
    return db.execute(
        "SELECT p.* FROM spaces p JOIN sessions s ON s.id = p.session"
        " WHERE s.session_id = ? AND s.vault_name = '' AND s.owner = ? AND p.state NOT NULL",
        (name, writer_of(db)),
    ).fetchone()


def _bodies(db: Database, row: rows.Row) -> list[bytes]:
    return [] if row["turns_tip"] is None else read_chain(db, row["turns_tip"], row["session"])


def _make_live(db: Database, session: int, memory: str, terms: str) -> None:
    number = db.next_number("live_memories")
    db.execute("INSERT INTO live_memories (id, session, memory) VALUES (?, ?, ?)", (number, session, memory))
    db.index_memory(number, terms)


def _index_alone(db: Database, session: int, memory: str, text: str, index_terms: IndexTerms, prefix: str) -> None:
    """Make a text the only one with its prefix in the search index; a text without the prefix changes nothing."""
    if not prefix or not text.startswith(prefix):
        return
    others = db.memories_with(session, index_terms(prefix))
    for row in others:
        if row["memory"] != memory and _memory(row)[1].startswith(prefix):
            db.unindex_memory(row["number"])
    if all(row["memory"] != memory for row in others):
        query = "SELECT id FROM live_memories WHERE session = ? AND memory = ?"
        (number,) = db.execute(query, (session, memory)).fetchone()
        db.index_memory(number, index_terms(text))


def _position(db: Database, memory: str | None) -> int:
    found = db.execute("SELECT position FROM memories WHERE id = ?", (memory,)).fetchone()
    return -1 if found is None else found["position"]


def _parent(db: Database, memory: str) -> str | None:
    found = db.execute("SELECT parent FROM memories WHERE id = ?", (memory,)).fetchone()
    return None if found is None else found["parent"]


def _memory(row: Any) -> tuple[str, str, datetime]:
    return without_prefix(row["id"]), rows.to_text(rows.unpack(row["body"])), rows.parse_stamp(row["created_at"])


def _tip(turns: Chain | None) -> str | None:
    return turns.ids[-1] if turns is not None and turns.ids else None
