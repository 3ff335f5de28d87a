"""The layers of a session: its newest state alone, kept only where nobody has kept another meanwhile."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime

from context_compiler.record import rows
from context_compiler.record.schema import transaction
from context_compiler.record.write import insert, session_row


def load(db: sqlite3.Connection, session_id: str, vault_name: str) -> tuple[str, int] | None:
    """The newest state of a session as JSON text, and its version from 1; None where it has none."""
    found = db.execute(
        "SELECT l.state, l.version FROM layers l JOIN sessions s ON s.id = l.session"
        " WHERE s.session_id = ? AND s.vault_name = ?",
        (session_id, vault_name),
    ).fetchone()
    return None if found is None else (found["state"], found["version"])


def keep(db: sqlite3.Connection, session_id: str, vault_name: str, state: str, after: int) -> int:
    """Keep a state in place of the version that it follows; its own version."""
    with transaction(db):
        found = load(db, session_id, vault_name)
        rows.follows(session_id, found, after)
        session = session_row(db, (session_id, vault_name), datetime.now(UTC))
        db.execute("DELETE FROM layers WHERE session = ?", (session,))
        insert(db, "layers", (session, after + 1, rows.to_bytes(state).decode("utf-8", "backslashreplace")))
    return after + 1
