"""Sessions that a manager keeps, as they are now and as they were committed, and how their turns were scored."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from context_compiler.errors import StoreError
from context_compiler.record import memories, rows
from context_compiler.record.read import chain
from context_compiler.record.schema import snapshot, transaction
from context_compiler.record.values import Chain, Compile
from context_compiler.record.write import compile_row, insert

Standing = tuple[str | None, str]
"""Where a session stands: the name of its last message, and all else as JSON."""


def session_at(db: sqlite3.Connection, name: str, commit: str) -> tuple[str, list[bytes]] | None:
    """The facts and messages of the session that was committed; None where only memory was."""
    with snapshot(db):
        row = memories.known(db, name, commit)
        if row["state"] is None:
            return None
        body = db.execute("SELECT body FROM contents WHERE hash = ?", (row["state"],)).fetchone()["body"]
        return rows.to_text(rows.unpack(body)), _bodies(db, row)


def latest(db: sqlite3.Connection, name: str) -> tuple[str, list[bytes]] | None:
    """The facts and messages of the session as it was kept last."""
    with snapshot(db):
        row = _space(db, name)
        return None if row is None else (row["state"], _bodies(db, rows.named(row)))


def standing(db: sqlite3.Connection, name: str) -> Standing | None:
    """Where the session stands as it was kept last; None where it never was."""
    row = _space(db, name)
    return None if row is None else (row["turns_tip"], row["state"])


def keep(
    db: sqlite3.Connection,
    name: str,
    turns: Chain,
    facts: str,
    score: Sequence[rows.Column] | None,
    compile: Compile | None,
    after: Standing | None,
) -> Standing:
    """Keep a session as it stands, the score of its turn, and how its summary was made.

    Returns:
        Where it stands now.

    Raises:
        StoreError: it does not stand where it stood `after` it was kept or read last; None is where nothing was kept.
    """
    session = memories.session_of(db, name, turns)
    tip = memories.tip_of(turns)
    with transaction(db):
        if standing(db, name) not in (None, after):
            raise StoreError(
                f"session {name!r}: another manager has kept it meanwhile; `resume` goes on with what that one kept"
            )
        memories.space_of(db, session)
        db.execute("UPDATE spaces SET turns_tip = ?, state = ? WHERE session = ?", (tip, facts, session))
        if compile is not None:
            compile_row(db, compile, session)
        if score is not None:
            insert(db, "scores", (session, score[0], tip, *score[1:]))
    return tip, facts


def scores(db: sqlite3.Connection, name: str | None) -> list[rows.Row]:
    """Every score of a session, or of all, oldest first, each with the name of its session."""
    found = db.execute(
        "SELECT c.*, s.session_id FROM scores c JOIN sessions s ON s.id = c.session"
        " WHERE ?1 IS NULL OR s.session_id = ?1 ORDER BY c.id",
        (name,),
    )
    return [rows.named(row) for row in found]


def _space(db: sqlite3.Connection, name: str) -> sqlite3.Row | None:
    return db.execute(
        "SELECT p.* FROM spaces p JOIN sessions s ON s.id = p.session"
        " WHERE s.session_id = ? AND s.vault_name = '' AND p.state NOT NULL",
        (name,),
    ).fetchone()


def _bodies(db: sqlite3.Connection, row: rows.Row) -> list[bytes]:
    return [] if row["turns_tip"] is None else chain(db, row["turns_tip"], row["session"])
