"""The tables of the record in PostgreSQL, with the same columns, values and seals as in SQLite.

References between rows that are named by their content are not foreign keys, because deleting a row would then search
for all rows that may refer to it; `verify` checks them. Names are compared byte by byte (`COLLATE "C"`).
"""

from __future__ import annotations

import re
from pathlib import Path

from context_compiler.record.pool import Component
from context_compiler.record.tables import COLUMNS, NUMBERED, STATEMENTS, UNNAMED_NUMBERS, VERSION, without_comments

_WORDS = (
    (r"\bNAME\b", 'TEXT COLLATE "C"'),
    (r"\bBYTES\b", "BYTEA"),
    (r"\bINTEGER\b", "BIGINT"),
    (r"\bREAL\b", "DOUBLE PRECISION"),
    (r"\bifnull\(", "coalesce("),
    (r" WITHOUT ROWID$", ""),
    (r" REFERENCES (?:contents|nodes|memories|commits)\(\w+\)", ""),
    (rf'CREATE TABLE "?({"|".join(UNNAMED_NUMBERS)})"? \(', r"CREATE TABLE \1 (rowid BIGINT NOT NULL UNIQUE,"),
    (r'(CREATE TABLE|REFERENCES| ON) "?(\w+)"?', r"\1 {schema}.\2"),
    # Sessions are found by owner with this key; SQLite has an index for that.
    (r"UNIQUE \(session_id, vault_name, owner\)", "UNIQUE (owner, session_id, vault_name)"),
)


def _translate(statement: str) -> str:
    """Translate a statement of `tables` to PostgreSQL."""
    for pattern, word in _WORDS:
        statement = re.sub(pattern, word, statement)
    return statement


CREATE = (
    *(_translate(without_comments(statement)) for statement in STATEMENTS),
    "ALTER TABLE {schema}.contents ALTER body SET STORAGE EXTERNAL",  # bodies are already compressed
    "CREATE INDEX cycles_of_session ON {schema}.cycles (session)",
    "CREATE INDEX views_of_session ON {schema}.views (session, id)",
    "CREATE INDEX commits_of_session ON {schema}.commits (session)",
    """CREATE TABLE {schema}.messages_fts (
        number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        node TEXT COLLATE "C" NOT NULL,
        text TEXT,
        words TSVECTOR                  -- NULL until the text is indexed; a search reads such texts one by one
    )""",
    "CREATE INDEX messages_by_word ON {schema}.messages_fts USING gin (words) WHERE words IS NOT NULL",
    "CREATE INDEX messages_by_node ON {schema}.messages_fts (node)",
    "CREATE INDEX messages_waiting ON {schema}.messages_fts (number) WHERE words IS NULL",
    "CREATE TABLE {schema}.memories_fts (id BIGINT PRIMARY KEY, terms TEXT[] NOT NULL)",
    "CREATE INDEX memories_by_term ON {schema}.memories_fts USING gin (terms)",
)

TABLES = (*COLUMNS, "messages_fts", "memories_fts")

SAVE = Path(__file__).with_name("save_request.sql")
"""File with the SQL function that saves a request."""

RECORD = Component(
    name="record",
    version=VERSION,
    statements=(*CREATE, *(f"CREATE SEQUENCE {{schema}}.{table}_numbers" for table in NUMBERED), SAVE),
)
