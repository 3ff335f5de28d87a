"""The tables of the record in SQLite.

`PRAGMA user_version` is the version of the tables; `PRAGMA application_id` marks a file as a record. `verify` compares
the SQL text of each table with that of a new file, comments included. A file of another version is refused.
"""

from __future__ import annotations

import re
import sqlite3

from context_compiler.errors import StoreError
from context_compiler.record import tables
from context_compiler.record.rows import snapshot, transaction
from context_compiler.record.tables import VERSION

APPLICATION_ID = 0x63747863  # "ctxc"

TABLES = (
    *(re.sub(r"\bNAME\b", "TEXT", statement.replace(" BYTES", "")) for statement in tables.STATEMENTS),
    "CREATE INDEX sessions_of_owner ON sessions (owner)",
    "CREATE INDEX views_of_session ON views (session)",
    "CREATE VIRTUAL TABLE messages_fts USING fts5(text, node UNINDEXED)",
    "CREATE VIRTUAL TABLE memories_fts USING fts5(terms)",
    """CREATE TABLE numbers (            -- highest of tables from which rows were removed; no part of a copy
        name TEXT PRIMARY KEY,
        highest INTEGER NOT NULL
    ) WITHOUT ROWID""",
)
"""The statements that create the tables and indexes."""


def version_of(db: sqlite3.Connection) -> int:
    """Return the version of the tables of a file; 0 for a new one.

    Raises:
        StoreError: The file belongs to another program, or to another version of this one.
    """
    with snapshot(db):
        return _version(db)


def create(db: sqlite3.Connection) -> None:
    """Create the tables of a new file; safe if several processes do so at once."""
    if version_of(db):
        return
    with transaction(db):
        if _version(db) == 0:
            for statement in TABLES:
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {VERSION}")


def _version(db: sqlite3.Connection) -> int:
    """Read the version of the file with three queries; call it in a transaction, so that they see one state."""
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    owner = int(db.execute("PRAGMA application_id").fetchone()[0])
    tables = int(db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
    if owner != APPLICATION_ID and (owner or version or tables):
        raise StoreError("the database belongs to another program; give the record a file of its own")
    if version not in (0, VERSION):
        raise StoreError(
            f"the record was written by another version of context-compiler (schema {version}, this one knows"
            f" {VERSION}); move it away or give another file to begin a new one"
        )
    return version
