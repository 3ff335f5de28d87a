"""Actions of users on the views of a conversation, and their table; append-only."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from datetime import datetime

COMPILE, UNDO, PIN, UNPIN = "compile", "undo", "pin", "unpin"
"""Kinds of actions."""

ACTION = ("session", "number", "kind", "tip", "state", "summary", "created_at")
"""Columns of an action, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One action of a user on a conversation; a row of `actions`."""

    kind: str
    """compile, undo, pin or unpin."""
    tip: str
    """Chain id: the newest message that a compile decides on, that there was at an undo, or the pinned message."""
    state: str
    """JSON text, opaque to the store."""
    created_at: datetime
    summary_id: int | None = None
    """Row number of the compile that was made or undone."""
    number: int = 0
    """Ordinal in its conversation, from 1, once stored."""


def create_actions(db: sqlite3.Connection) -> None:
    """Create the table of actions."""
    db.execute(
        """CREATE TABLE actions (
        session INTEGER NOT NULL REFERENCES sessions(id),
        number INTEGER NOT NULL,
        kind TEXT NOT NULL,
        tip TEXT NOT NULL,              -- a chain id, as that of a cycle
        state TEXT NOT NULL,
        summary INTEGER REFERENCES context_summaries(id),
        created_at TEXT NOT NULL,
        seal TEXT NOT NULL,
        UNIQUE (session, number)
    )"""
    )
