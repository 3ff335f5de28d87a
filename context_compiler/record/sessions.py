"""Session data other than requests: layers, manual actions, memories, commits, and the state of managed sessions.

The name of a memory is a hash of its text and of the memory before it, so one name identifies a whole state of the
memory. A commit therefore costs one row, and a checkout costs only the difference between two states.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from context_compiler import ids
from context_compiler.errors import ContextMemoryError, StoreError
from context_compiler.record import rows
from context_compiler.record.database import Database
from context_compiler.record.queries import (
    KEY,
    NO_LIMIT,
    OWNED,
    archiving,
    compile_row,
    insert,
    keep_body,
    read_chain,
    reseal,
    session_key,
    session_row,
)
from context_compiler.record.rows import stored_name, without_prefix, writer_of
from context_compiler.record.values import Action, Chain, Compile, Cycle, MessageChain

IndexTerms = Callable[[str], str]
"""A function that returns the search terms of a string, separated by spaces."""

SessionState = tuple[str | None, str]
"""State of a managed session: the stored name of its last message, and everything else as JSON text."""

COMMIT = ("parent", "memory_tip", "turns_tip", "state", "memories", "turns", "author", "message", "created_at")
"""Columns that are hashed, after the name of the session, into the id of a commit."""

NAMES = ("parent", "memory_tip", "turns_tip", "state")
"""Columns of `COMMIT` that contain stored names."""

NO_TURNS = MessageChain()

MAX_CALL_S = 3_600.0
"""Maximum seconds for which a model call is announced or claimed."""


def load_layers(db: Database, session_id: str, vault_name: str = "") -> tuple[str, int] | None:
    """Return the newest layers of a session as JSON text, with their version, from 1; None if it has no layers."""
    row = db.execute(
        "SELECT l.state, l.version FROM layers l JOIN sessions s ON s.id = l.session"
        " WHERE s.session_id = ? AND s.vault_name = ? AND s.owner = ?",
        session_key(db, session_id, vault_name),
    ).fetchone()
    return None if row is None else (row["state"], row["version"])


def save_layers(db: Database, session_id: str, vault_name: str, state: str, *, after: int) -> int:
    """Replace version `after` of a session's layers and return the new version.

    Raises:
        StoreError: The newest version is not `after`.
    """
    with db.transaction():
        db.lock_name(rows.escape_surrogates(session_id))
        newest = load_layers(db, session_id, vault_name)
        version = 0 if newest is None else newest[1]
        if version != after:
            raise StoreError(
                f"session {session_id!r}: its layers were changed meanwhile (version {version}, expected {after});"
                " read them again and repeat the turn"
            )
        session = session_row(db, session_key(db, session_id, vault_name), datetime.now(UTC))
        db.execute("DELETE FROM layers WHERE session = ?", (session,))
        insert(db, "layers", (session, after + 1, rows.to_bytes(state).decode("utf-8", "backslashreplace")))
    return after + 1


def actions(db: Database, session_id: str, vault_name: str = "") -> list[Action]:
    """Manual actions on a conversation, oldest first."""
    key = session_key(db, session_id, vault_name)
    return _actions(db, "s.session_id = ? AND s.vault_name = ? AND s.owner = ?", key)


def actions_of(db: Database, session: int) -> list[Action]:
    """Manual actions on the conversation with a row number, oldest first."""
    return _actions(db, "s.id = ?", (session,))


def _actions(db: Database, condition: str, values: Sequence[object]) -> list[Action]:
    stored = db.execute(
        f"SELECT a.* FROM actions a JOIN sessions s ON s.id = a.session WHERE {condition} ORDER BY a.number", values
    ).fetchall()
    return [
        Action(
            **{name: row[name] for name in ("number", "kind", "tip", "state")},
            summary_id=row["summary"],
            created_at=rows.parse_stamp(row["created_at"]),
        )
        for row in stored
    ]


def answers_by_turn(db: Database, session_id: str, vault_name: str) -> dict[int, int]:
    """Row number of the newest request of each turn of a session, by turn index from 0."""
    answers = db.execute(
        "SELECT v.turn_index, max(v.id) FROM views v JOIN sessions s ON s.id = v.session"
        f" WHERE s.session_id = ?1 AND s.vault_name = ?2 AND {OWNED.format(3)} GROUP BY v.turn_index",
        (rows.escape_surrogates(session_id), rows.escape_surrogates(vault_name), db.owner),
    )
    return {row[0]: row[1] for row in answers}


def save_action(
    db: Database, session_id: str, vault_name: str, action: Action, *, after: int, compile: Compile | None = None
) -> Action:
    """Save an action with the compile that it made, if any, and return it with `number` and `summary_id`.

    Raises:
        StoreError: The number of the newest action is not `after`.
    """
    with db.transaction():
        earlier = actions(db, session_id, vault_name)
        newest = earlier[-1].number if earlier else 0
        if newest != after:
            raise StoreError(
                f"session {session_id!r}: somebody compiled, undid or pinned in it meanwhile"
                f" (action {newest}, expected {after}); look at it and try again"
            )
        session = session_row(db, session_key(db, session_id, vault_name), action.created_at)
        made = action.summary_id if compile is None else compile_row(db, compile, session)
        saved = replace(action, number=after + 1, summary_id=made)
        columns = (session, saved.number, action.kind, action.tip, rows.escape_surrogates(action.state), made)
        insert(db, "actions", (*columns, rows.stamp(action.created_at)))
        return saved


def announce_compile(
    db: Database, session_id: str, vault_name: str, model: str, seconds: float
) -> tuple[int, datetime] | None:
    """Announce that a model is writing a summary, for at most `seconds`; return arguments for `withdraw_compile`.

    Returns None if the conversation is not on the record.
    """
    now = datetime.now(UTC)
    until = now + timedelta(seconds=min(seconds, MAX_CALL_S))
    call = (rows.escape_surrogates(model), rows.stamp(now), rows.stamp(until))
    with db.transaction():
        session = db.execute(f"SELECT id FROM sessions WHERE {KEY}", session_key(db, session_id, vault_name)).fetchone()
        if session is not None:
            db.execute(
                "INSERT INTO under_way (session, model, started_at, expires_at) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (session) DO UPDATE SET model = excluded.model, started_at = excluded.started_at,"
                " expires_at = excluded.expires_at",
                (session["id"], *call),
            )
    return None if session is None else (session["id"], now)


def withdraw_compile(db: Database, session: int, started_at: datetime) -> None:
    """Remove the announcement of a model call; one that replaced it stays."""
    with db.transaction():
        db.execute("DELETE FROM under_way WHERE session = ? AND started_at = ?", (session, rows.stamp(started_at)))


def claim_compile(db: Database, cache_key: str, holder: str, seconds: float) -> bool:
    """Claim a model call for a summary, for at most `seconds`; False while another holder has the claim.

    The claim is advisory: nothing is locked, and a process that does not ask can call the model anyway.
    """
    name = stored_name(db, cache_key)
    with db.transaction():
        now = db.clock()
        db.execute("DELETE FROM claims WHERE until <= ?", (now,))
        db.execute("INSERT OR IGNORE INTO claims VALUES (?, ?, ?)", (name, holder, now + min(seconds, MAX_CALL_S)))
        claim = db.execute("SELECT holder FROM claims WHERE name = ?", (name,)).fetchone()
    return claim is not None and claim["holder"] == holder


def renew_claim(db: Database, cache_key: str, holder: str, seconds: float) -> None:
    """Extend a claim by `seconds` from now, if the holder still has it; others may make the call once it expires."""
    with db.transaction():
        query = "UPDATE claims SET until = ? WHERE name = ? AND holder = ?"
        db.execute(query, (db.clock() + seconds, stored_name(db, cache_key), holder))


def save_compile(db: Database, compile: Compile) -> int:
    """Save a compile that belongs to no request, and return its row number."""
    with db.transaction():
        session = session_row(db, session_key(db, compile.session_id, compile.vault_name), compile.created_at)
        return compile_row(db, compile, session)


def session_cycles(db: Database, session_id: str, vault_name: str = "") -> list[Cycle]:
    """All cycles of a conversation, oldest first."""
    cycles = db.execute(
        "SELECT c.raw_tip, c.config, t.body FROM cycles c JOIN sessions s ON s.id = c.session"
        " JOIN contents t ON t.hash = c.state WHERE s.session_id = ? AND s.vault_name = ? AND s.owner = ?"
        " ORDER BY c.rowid",
        session_key(db, session_id, vault_name),
    )
    return [
        Cycle(tip=row["raw_tip"], config=row["config"], state=rows.to_text(rows.unpack(row["body"])))
        for row in cycles
        if isinstance(row["config"], str)  # otherwise the row is damaged
    ]


def remember(db: Database, name: str, text: str, index_terms: IndexTerms, newest: str = "") -> str:
    """Add a text to a session's memory and return its id; a text that is already there keeps its id.

    Of the texts that start with `newest`, such as versions of one summary, search finds only the last one added.
    """
    body = rows.to_bytes(text)
    content, terms = stored_name(db, ids.blob_id(body)), index_terms(text)
    with archiving(db, name, "", NO_TURNS) as session:
        space = _space(db, session)
        existing = db.execute(
            "SELECT m.id FROM memories m JOIN live_memories l ON l.memory = m.id WHERE m.content = ? AND l.session = ?",
            (content, session),
        ).fetchone()
        if existing is not None:
            _index_newest(db, session, existing["id"], text, index_terms, newest)
            return without_prefix(existing["id"])
        tip = space["memory_tip"]
        memory = stored_name(db, ids.chain_id(without_prefix(tip), without_prefix(content)))
        keep_body(db, body)
        row = (memory, tip, content, _position(db, tip) + 1, rows.stamp(datetime.now(UTC)))
        db.execute("INSERT OR IGNORE INTO memories VALUES (?, ?, ?, ?, ?)", row)
        make_live(db, session, memory, terms)
        _update_space(db, space, memory_tip=memory)
        _index_newest(db, session, memory, text, index_terms, newest)
        return without_prefix(memory)


def search_memories(db: Database, name: str, terms: Sequence[str], limit: int) -> list[tuple[str, str, datetime]]:
    """Find the best matches for any of these terms by BM25; return them oldest first, as `(id, text, time)`."""
    session = db.execute(f"SELECT id FROM sessions WHERE {KEY}", session_key(db, name, "")).fetchone()
    matches = [] if session is None else db.find_memories(session["id"], terms, limit)
    return [_memory(row) for row in sorted(matches, key=lambda row: row["position"])]


def commit(
    db: Database, name: str, message: str, author: str, turns: Chain | None, count: int, state: str | None
) -> str:
    """Commit a session's memory, and the session itself if `turns` and `state` are given; return the commit's id."""
    with archiving(db, name, "", turns or NO_TURNS) as session:
        space = _space(db, session)
        columns = {
            "parent": space["head"],
            "memory_tip": space["memory_tip"],
            "turns_tip": stored_name(db, rows.tip_of(turns)),
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
        _update_space(db, space, head=commit)
        return without_prefix(commit)


def commit_id(name: str, columns: rows.Row) -> str:
    """Compute the id of a commit: a hash of the session's name and of the columns `COMMIT`."""
    values = [without_prefix(columns[column]) if column in NAMES else columns[column] for column in COMMIT]
    return ids.blob_id(json.dumps([name, *values], separators=(",", ":")).encode())


def checkout(db: Database, name: str, commit: str, index_terms: IndexTerms, newest: str = "") -> None:
    """Restore a session's memory to a commit, in one transaction; for `newest`, see `remember`."""
    with db.transaction():
        row = find_commit(db, name, commit)
        session = row["session"]
        space = _space(db, session)
        removed, added = memory_diff(db, space["memory_tip"], row["memory_tip"])
        for memory in removed:
            unindex(db, "session = ? AND memory = ?", session, memory)
            db.execute("DELETE FROM live_memories WHERE session = ? AND memory = ?", (session, memory))
        for memory, (_, text, _) in zip(added, read_memories(db, added), strict=True):
            make_live(db, session, memory, index_terms(text))
        if newest:
            memories = db.execute(
                "SELECT m.id, m.created_at, t.body FROM live_memories l JOIN memories m ON m.id = l.memory"
                " JOIN contents t ON t.hash = m.content WHERE l.session = ? ORDER BY m.position DESC",
                (session,),
            ).fetchall()
            texts = ((entry["id"], _memory(entry)[1]) for entry in memories)
            last = next((entry for entry in texts if entry[1].startswith(newest)), None)
            if last is not None:
                _index_newest(db, session, *last, index_terms, newest)
        _update_space(db, space, memory_tip=row["memory_tip"], head=row["id"])


def commit_log(db: Database, name: str, limit: int | None) -> list[rows.Row]:
    """The current commit of a session and its ancestors, newest first, at most `limit` of them."""
    commits = db.execute(
        "WITH RECURSIVE up (id, parent, at) AS ("
        " SELECT c.id, c.parent, 0 FROM sessions s JOIN spaces p ON p.session = s.id JOIN commits c ON c.id = p.head"
        " WHERE s.session_id = ? AND s.vault_name = '' AND s.owner = ?"
        " UNION ALL SELECT c.id, c.parent, up.at + 1 FROM up JOIN commits c ON c.id = up.parent)"
        " SELECT c.* FROM up JOIN commits c ON c.id = up.id ORDER BY up.at LIMIT ?",
        (name, writer_of(db), NO_LIMIT if limit is None else max(limit, 0)),
    )
    return [
        {**rows.mapping(row), "id": without_prefix(row["id"]), "parent": without_prefix(row["parent"])}
        for row in commits
    ]


def find_commit(db: Database, name: str, commit: str) -> rows.Row:
    """Find a commit of a session by its id; columns keep their stored names.

    Raises:
        ContextMemoryError: The session has no such commit.
    """
    row = db.execute(
        "SELECT c.* FROM commits c JOIN sessions s ON s.id = c.session"
        " WHERE c.id = ? AND s.session_id = ? AND s.vault_name = '' AND s.owner = ?",
        (stored_name(db, str(commit)), name, writer_of(db)),
    ).fetchone()
    if row is None:
        raise ContextMemoryError(f"session {name!r} has no commit {commit!r}; `log` lists its commits")
    return rows.mapping(row)


def memory_diff(db: Database, old: str | None, new: str | None) -> tuple[list[str], list[str]]:
    """Compute which memories to remove and which to add to get from one state to another, oldest first.

    A state is the stored name of its last memory, or None if it is empty; the results are stored names.
    """
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
    """Read memories by stored name, as `(id, text, time)`."""
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
    """Save a managed session, the score of its last turn, and the compile of its summary, in one transaction.

    Returns:
        The new state, to pass as `after` to the next save.

    Raises:
        StoreError: The stored state is not `after`; nothing was saved. A session that was never saved is accepted.
    """
    tip = stored_name(db, rows.tip_of(turns))
    with archiving(db, name, "", turns) as session:
        space = _space(db, session)
        if session_state(db, name) not in (None, after):
            raise StoreError(
                f"session {name!r}: another manager has kept it meanwhile; call `resume` to continue from that state"
            )
        _update_space(db, space, turns_tip=tip, state=state)
        if compile is not None:
            compile_row(db, compile, session)
        if score is not None:
            insert(db, "scores", (session, score[0], tip, *score[1:]))
    return tip, state


def session_state(db: Database, name: str) -> SessionState | None:
    """Return the state of a session as last saved; None if it was never saved."""
    row = _saved_space(db, name)
    return None if row is None else (row["turns_tip"], row["state"])


def latest_session(db: Database, name: str) -> tuple[str, list[bytes]] | None:
    """State and messages of a session as last saved; None if it was never saved."""
    with db.snapshot():
        row = _saved_space(db, name)
        return None if row is None else (row["state"], _bodies(db, rows.mapping(row)))


def session_at(db: Database, name: str, commit: str) -> tuple[str, list[bytes]] | None:
    """State and messages of a session as of a commit; None if the commit contains only the memory."""
    with db.snapshot():
        row = find_commit(db, name, commit)
        if row["state"] is None:
            return None
        body = db.execute("SELECT body FROM contents WHERE hash = ?", (row["state"],)).fetchone()["body"]
        return rows.to_text(rows.unpack(body)), _bodies(db, row)


def scores(db: Database, name: str | None) -> list[rows.Row]:
    """Scores of a session, or of all if `name` is None, oldest first; each row contains its `session_id`."""
    stored = db.execute(
        "SELECT c.*, s.session_id FROM scores c JOIN sessions s ON s.id = c.session"
        f" WHERE (?1 IS NULL OR s.session_id = ?1) AND {OWNED.format(2)} ORDER BY c.id",
        (name, db.owner),
    )
    return [rows.mapping(row) for row in stored]


def _space(db: Database, session: int) -> Any:
    """Return the `spaces` row of a session, inserting it on first use, and lock it until the transaction ends."""
    if not db.execute("UPDATE spaces SET session = session WHERE session = ?", (session,)).rowcount:
        insert(db, "spaces", (session, None, None, None, None))
    return db.execute("SELECT rowid AS number, memory_tip, head FROM spaces WHERE session = ?", (session,)).fetchone()


def _update_space(db: Database, space: Any, **values: rows.Column) -> None:
    """Change columns of a `spaces` row that `_space` returned."""
    settings = ", ".join(f"{column} = ?" for column in values)
    db.execute(f"UPDATE spaces SET {settings} WHERE rowid = ?", (*values.values(), space["number"]))
    reseal(db, "spaces", space["number"])


def _saved_space(db: Database, name: str) -> Any:
    return db.execute(
        "SELECT p.* FROM spaces p JOIN sessions s ON s.id = p.session"
        " WHERE s.session_id = ? AND s.vault_name = '' AND s.owner = ? AND p.state NOT NULL",
        (name, writer_of(db)),
    ).fetchone()


def _bodies(db: Database, row: rows.Row) -> list[bytes]:
    return [] if row["turns_tip"] is None else read_chain(db, row["turns_tip"], row["session"])


def make_live(db: Database, session: int, memory: str, terms: str | None) -> None:
    """Add a memory to the live memories of a session; without `terms`, search does not find it."""
    number = db.next_number("live_memories")
    db.execute("INSERT INTO live_memories (id, session, memory) VALUES (?, ?, ?)", (number, session, memory))
    if terms is not None:
        db.index_memory(number, terms)


def unindex(db: Database, condition: str, *values: object) -> None:
    """Remove the live memories that meet a condition from the search index."""
    db.execute(f"DELETE FROM memories_fts WHERE rowid IN (SELECT id FROM live_memories WHERE {condition})", values)


def _index_newest(db: Database, session: int, memory: str, text: str, index_terms: IndexTerms, prefix: str) -> None:
    """Make a text the only indexed one that starts with `prefix`; do nothing if it does not start with it."""
    if not prefix or not text.startswith(prefix):
        return
    others = db.memories_with(session, index_terms(prefix))
    for row in others:
        if row["memory"] != memory and _memory(row)[1].startswith(prefix):
            unindex(db, "id = ?", row["number"])
    if all(row["memory"] != memory for row in others):
        query = "SELECT id FROM live_memories WHERE session = ? AND memory = ?"
        (number,) = db.execute(query, (session, memory)).fetchone()
        db.index_memory(number, index_terms(text))


def _position(db: Database, memory: str | None) -> int:
    row = db.execute("SELECT position FROM memories WHERE id = ?", (memory,)).fetchone()
    return -1 if row is None else row["position"]


def _parent(db: Database, memory: str) -> str | None:
    row = db.execute("SELECT parent FROM memories WHERE id = ?", (memory,)).fetchone()
    return None if row is None else row["parent"]


def _memory(row: Any) -> tuple[str, str, datetime]:
    return without_prefix(row["id"]), rows.to_text(rows.unpack(row["body"])), rows.parse_stamp(row["created_at"])
