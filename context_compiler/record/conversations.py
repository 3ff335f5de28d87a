"""Storage for the host's conversations: a log of entries, and a row with the state and the end of the log.

An entry refers to a node of a message chain, so a message that requests of the conversation also contain is stored
once. A store of one owner has only that owner's conversations. In a store of every owner, the scope of a conversation
is its owner, and a conversation id must be unique, as the host expects.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from context_compiler import ids
from context_compiler.errors import StoreError
from context_compiler.record import rows
from context_compiler.record.database import Database
from context_compiler.record.queries import (
    NO_LIMIT,
    NewMessage,
    advance,
    insert,
    session_key,
    session_row,
    write_message,
)
from context_compiler.record.rows import stored_name, without_prefix, writer_of
from context_compiler.record.values import list_of

CONVERSATIONS = (
    "SELECT c.scope, c.head, c.tips, c.state, c.revision, c.updated_at, c.session, s.session_id, s.owner, s.raw_tip"
    " FROM conversations c JOIN sessions s ON s.id = c.session WHERE s.owner = ifnull(?1, ifnull(c.scope, ''))"
)
"""Conversations of the owner `?1`; if it is NULL, all conversations whose owner equals their scope."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredConversation:
    """A conversation of the host, without its log."""

    conversation_id: str
    scope: str | None
    head: str | None
    """Id of the newest entry; None if the log is empty."""
    branches: tuple[str, ...]
    """Ids of the last entries of abandoned branches."""
    state: str
    """The host's whole record of the conversation as JSON text; the store does not parse it."""
    revision: str
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """A message of a log, with the id of the entry before it."""

    id: str
    parent: str | None
    body: bytes
    """The canonical JSON of the message."""


def find_conversation(db: Database, conversation_id: str) -> StoredConversation | None:
    """Find a conversation by its id; None if there is none.

    Raises:
        StoreError: The store works for every owner, and several owners have a conversation with that id.
    """
    key = (db.owner, rows.escape_surrogates(conversation_id))
    matches = db.execute(f"{CONVERSATIONS} AND s.session_id = ?2 AND s.vault_name = ''", key).fetchall()
    if len(matches) > 1:
        raise StoreError(f"{len(matches)} owners have a conversation {conversation_id!r}: name the owner")
    return _conversation(matches[0]) if matches else None


def conversations(db: Database, scope: str | None, limit: int | None) -> list[StoredConversation]:
    """Conversations of a scope, or of all scopes if it is None, newest first."""
    matches = db.execute(
        f"{CONVERSATIONS} AND (?2 IS NULL OR c.scope = ?2) ORDER BY c.updated_at DESC, c.session DESC LIMIT ?3",
        (db.owner, scope, NO_LIMIT if limit is None else max(limit, 0)),
    )
    return [_conversation(row) for row in matches.fetchall()]


def write_conversation(
    db: Database,
    conversation: StoredConversation,
    entries: Sequence[LogEntry],
    expected: str | None,
    text_of: Callable[[bytes], str],
) -> bool:
    """Save a conversation and the new entries of its log, in one transaction.

    Args:
        db: The record.
        conversation: The new state of the conversation.
        entries: The new entries in order, each after its parent.
        expected: The revision that is stored now; None if the conversation is new.
        text_of: A function that returns the searchable text of a message from its JSON.

    Returns:
        False, with nothing saved, if the stored revision is not `expected`, or if the entry that the log continues from
        is missing.

    Raises:
        StoreError: In a store of every owner, the conversation has a different scope; its scope cannot change.
    """
    messages = [(entry, _message(entry, text_of)) for entry in entries]
    with db.transaction():
        db.lock_name(rows.escape_surrogates(conversation.conversation_id))
        db.lock_name(conversation.conversation_id)
        stored = find_conversation(db, conversation.conversation_id)
        if (None if stored is None else stored.revision) != expected:
            return False
        if stored is not None and stored.scope != conversation.scope and db.owner is None:
            raise StoreError(f"conversation {conversation.conversation_id!r}: its scope is its owner and cannot change")
        after = entries[0].parent if entries else conversation.head
        if conversation.head not in (after, *(entry.id for entry in entries)):
            return False
        before = None if after is None else _owner_of_entry(db, after)
        if after is not None and before is None:
            return False
        with _as_owner(db, conversation.scope or ""):
            if after is not None and before is not None and _owner_of_entry(db, after) is None:
                log = _log(db, before, after, None)  # it is copied, because a fork shares no rows with another owner
                messages = [*((entry, _message(entry, text_of)) for entry in log), *messages]
            session = session_row(db, session_key(db, conversation.conversation_id, ""), datetime.now(UTC))
            for entry, message in messages:
                _write_entry(db, session, entry, message)
            _write_row(db, session, conversation)
    return True


def read_log(db: Database, head: str, limit: int | None) -> list[LogEntry]:
    """Entries of a log up to `head`, oldest first, or only the last `limit` of them; empty if `head` is unknown."""
    with db.snapshot():
        owner = _owner_of_entry(db, head)
        return [] if owner is None or limit == 0 else _log(db, owner, head, limit)


def whole_history(db: Database, session_id: str) -> list[bytes] | None:
    """Messages of a conversation, oldest first; None if there is no such conversation."""
    with db.snapshot():
        key = (db.owner, rows.escape_surrogates(session_id))
        row = db.execute(f"{CONVERSATIONS} AND s.session_id = ?2 AND s.vault_name = ''", key).fetchone()
        if row is None or row["head"] is None:
            return None if row is None else []
        return [entry.body for entry in _log(db, row["owner"], row["head"], None)]


def _log(db: Database, owner: str, head: str, limit: int | None) -> list[LogEntry]:
    """Entries of an owner's log up to `head`, oldest first, at most the last `limit`."""
    entries = db.execute(
        "WITH RECURSIVE up (id, parent, node, content, place) AS ("
        " SELECT id, parent, node, content, 1 FROM entries WHERE owner = ?1 AND id = ?2"
        " UNION ALL SELECT e.id, e.parent, e.node, e.content, up.place + 1 FROM up"
        " JOIN entries e ON e.owner = ?1 AND e.id = up.parent WHERE ?3 < 0 OR up.place < ?3)"
        " SELECT up.id, up.parent, t.body, i.body AS instructions FROM up JOIN nodes n ON n.id = up.node"
        " JOIN contents t ON t.hash = ifnull(up.content, n.content)"
        " LEFT JOIN contents i ON i.hash = n.instructions ORDER BY up.place DESC",
        (owner, head, NO_LIMIT if limit is None else limit),
    )
    return [_entry(row) for row in entries.fetchall()]


def _conversation(row: Any) -> StoredConversation:
    tips = list_of(row["tips"])
    return StoredConversation(
        conversation_id=row["session_id"],
        scope=row["scope"],
        head=row["head"],
        branches=tuple(tips[row["head"] is not None :]),
        state=row["state"],
        revision=row["revision"],
        updated_at=rows.parse_stamp(row["updated_at"]),
    )


def _entry(row: Any) -> LogEntry:
    body = rows.unpack(row["body"])
    if row["instructions"] is not None:
        body = rows.join_instructions(body, rows.to_text(rows.unpack(row["instructions"])))
    return LogEntry(id=row["id"], parent=row["parent"], body=body)


@contextmanager
def _as_owner(db: Database, scope: str) -> Generator[None]:
    """Work for the owner that a scope names, if the connection works for every owner."""
    before = db.owner
    db.owner = scope if before is None else before
    try:
        yield
    finally:
        db.owner = before


def _owner_of_entry(db: Database, entry: str) -> str | None:
    """Return the owner of an entry, the first one if several have equal copies; None if the entry is unknown."""
    query = "SELECT owner FROM entries WHERE id = ?1 AND (?2 IS NULL OR owner = ?2) ORDER BY owner LIMIT 1"
    row = db.execute(query, (entry, db.owner)).fetchone()
    return None if row is None else row["owner"]


def _message(entry: LogEntry, text_of: Callable[[bytes], str]) -> NewMessage:
    """Convert an entry to a message; writing it sets its name and parent, because they depend on the entry before."""
    body, instructions = rows.split_instructions(entry.body)
    return NewMessage(
        id=ids.identity_facts(entry.body).exact,
        parent=entry.parent,
        position=0,
        content=ids.blob_id(body),
        body=rows.pack(body),
        instructions=instructions,
        raw=True,
        text=text_of(entry.body),
    )


def _write_entry(db: Database, session: int, entry: LogEntry, message: NewMessage) -> None:
    query = "SELECT e.node, n.position FROM entries e JOIN nodes n ON n.id = e.node WHERE e.owner = ? AND e.id = ?"
    parent = db.execute(query, (writer_of(db), entry.parent)).fetchone()
    before, position = (None, 0) if parent is None else (parent["node"], parent["position"] + 1)
    name, content = stored_name(db, ids.exact_id(without_prefix(before), message.id)), stored_name(db, message.content)
    write_message(db, replace(message, id=name, parent=before, position=position, content=content), session)
    same = db.execute("SELECT content FROM nodes WHERE id = ?", (name,)).fetchone()["content"] == content
    row = (writer_of(db), entry.id, entry.parent, name, None if same else content)
    db.execute("INSERT INTO entries (owner, id, parent, node, content) VALUES (?, ?, ?, ?, ?)", row)


def _write_row(db: Database, session: int, conversation: StoredConversation) -> None:
    tips = [*(() if conversation.head is None else (conversation.head,)), *conversation.branches]
    db.execute("DELETE FROM conversations WHERE session = ?", (session,))
    values = (session, conversation.scope, conversation.head, json.dumps(tips), conversation.state)
    insert(db, "conversations", (*values, conversation.revision, rows.stamp(conversation.updated_at)))
    query = "SELECT node FROM entries WHERE owner = ? AND id = ?"
    head = db.execute(query, (writer_of(db), conversation.head)).fetchone()
    advance(db, session, None if head is None else head["node"])
