"""Export and verify records.

Verification recomputes every name and seal from the stored data; each check yields the defects that it finds, as
sentences.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from context_compiler import ids
from context_compiler.errors import StoreError
from context_compiler.record import rows
from context_compiler.record.database import Database
from context_compiler.record.rows import prefix, prefix_of, without_prefix
from context_compiler.record.sessions import commit_id, memory_diff
from context_compiler.record.tables import COLUMNS, SEALED
from context_compiler.record.values import list_of, parse_json, parse_tools

OF_THIS_RECORD = ("live_memories", "under_way", "counters", "claims")
"""Tables that are no part of an export or a copy."""

EXPORTED = tuple(table for table in COLUMNS if table not in OF_THIS_RECORD)
"""All exported tables, each after the tables that it refers to."""

NAMED = {"contents": "hash", "nodes": "id", "memories": "id"}
"""Tables whose rows belong to the owner in the prefix of a name, and the column with that name."""

KEYS = {"copies": ("session", "node")}
"""Columns that name a row of the table without a hash or number."""

Damaged = Callable[[str], object]
"""Function that receives the place of a row that cannot be read, and what is wrong."""

ORDERS = {
    "nodes": "position, id",
    "copies": "session, node",
    "memories": "position, id",
    "commits": "created_at, id",
    "entries": "owner, id",
}
"""Sort keys of the tables without row numbers."""


def export(db: Database, damaged: Damaged | None = None) -> Generator[Mapping[str, object]]:
    """Yield every row of one snapshot as a JSON-ready mapping, with contents as text.

    With `damaged`, a row that cannot be read is left out, and `damaged` is called with its place and what is wrong.

    Raises:
        ValueError: a row cannot be read, and there is no `damaged`.
    """
    owner = db.owner
    with db.lenient(), db.snapshot():
        for table in EXPORTED:
            columns = f"rowid AS id, {', '.join((*SEALED[table], 'seal'))}" if table in SEALED else "*"
            order = ORDERS.get(table, "rowid")
            query = f"SELECT {columns} FROM {table} WHERE {_owned(table)} ORDER BY {order}"
            value = owner if owner is None or table not in NAMED else prefix(owner)
            try:
                with db.lenient():
                    yield from _exported_rows(table, db.scan(query, (value,)), damaged)
            except db.damage as error:
                if damaged is None:
                    raise
                damaged(f"{table}: the rest of the table cannot be read ({error})")


def _exported_rows(table: str, table_rows: Iterable[Any], damaged: Damaged | None) -> Generator[Mapping[str, object]]:
    for row in table_rows:
        try:
            exported = _exported(table, row)
        except (ValueError, zlib.error) as error:
            defect = f"{_place(table, row)}: {error}"
            if damaged is None:
                raise ValueError(defect) from error
            damaged(defect)
        else:
            yield exported


def _exported(table: str, row: Any) -> Mapping[str, object]:
    """Convert a row for an export; ValueError or zlib.error if it cannot be read."""
    fields = rows.mapping(row)
    for column, value in fields.items():
        if isinstance(value, str) and not rows.is_text(value):
            raise ValueError(f"{column} is not valid UTF-8")
    body = {"body": rows.to_text(rows.unpack(row["body"]))} if table == "contents" else {}
    return {"table": table, **fields, **body}


def _place(table: str, row: Any) -> str:
    """Name a row for people: its table, and its name or number."""
    fields = rows.mapping(row)
    keys = [name for name in ("hash", "id") if name in fields] or KEYS.get(table, ())
    names = (fields[key] for key in keys)
    return " ".join([table, *(ascii(name)[1:-1] if isinstance(name, str) else str(name) for name in names)])


def _owned(table: str) -> str:
    """SQL condition for the rows of the owner `?1`, or of the prefix `?1` in `NAMED` tables; NULL matches every row."""
    if table in NAMED:
        name = NAMED[table]
        return f"?1 IS NULL OR substr({name}, 1, instr({name}, '/')) = ?1"
    if table in ("sessions", "entries"):
        return "?1 IS NULL OR owner = ?1"
    return "?1 IS NULL OR session IN (SELECT id FROM sessions WHERE owner = ?1)"


RECENT = """
WITH RECURSIVE recent (id) AS (
    SELECT raw_tip FROM views WHERE created_at >= ?1 UNION SELECT view_tip FROM views WHERE created_at >= ?1
    UNION SELECT (SELECT n.parent FROM nodes n WHERE n.id = recent.id) FROM recent
)
"""
"""Names of the messages of the requests since `?1`, raw and sent."""


def check_messages(db: Database, since: str | None = None) -> Iterator[str]:
    """Check that contents match their hashes, and that nodes match their names, content and parents.

    With `since`, only the messages of the requests from then on are checked.
    """
    facts: dict[str, ids.IdentityFacts] = {}
    texts: dict[str, str] = {}
    if since is None:
        query = "SELECT content FROM nodes UNION SELECT content FROM copies UNION SELECT content FROM entries"
        named = {row[0] for row in db.execute(query)}
        instructions = {row[0] for row in db.execute("SELECT DISTINCT instructions FROM nodes")}
        contents, missing = db.scan("SELECT hash, body FROM contents"), set[str]()
    else:
        recent = db.execute(
            f"{RECENT} SELECT content, instructions FROM recent r JOIN nodes n ON n.id = r.id", (since,)
        )
        pairs = [(row[0], row[1]) for row in recent]
        named, instructions = {content for content, _ in pairs}, {instruction for _, instruction in pairs}
        missing = {name for name in named | instructions if name}
        parameters = (json.dumps(sorted(missing)),)
        contents = db.scan("SELECT hash, body FROM contents WHERE hash IN (SELECT value FROM json_each(?))", parameters)
    for row in contents:
        missing.discard(row["hash"])
        try:
            body = rows.unpack(row["body"])
            if row["hash"] in named:
                facts[row["hash"]] = ids.identity_facts(body)
            if row["hash"] in instructions:
                texts[row["hash"]] = rows.to_text(body)
        except UNREADABLE as error:
            yield f"contents {row['hash']}: cannot be read ({error})"
            continue
        if ids.blob_id(body) != without_prefix(row["hash"]):
            yield f"contents {row['hash']}: the body does not match its hash"
    yield from (f"contents {name}: is missing" for name in sorted(missing))
    yield from _check_nodes(db, facts, texts, since)


def _check_nodes(
    db: Database, facts: Mapping[str, ids.IdentityFacts], texts: Mapping[str, str], since: str | None
) -> Iterator[str]:
    def check_node(row: Any) -> Iterator[str]:
        if not _matches_name(row["id"], row, facts, texts):
            yield f"nodes {row['id']}: the name does not match the content and parent"
        if row["parent"] is not None and row["found"] is None:
            yield f"nodes {row['id']}: the parent {row['parent']} is missing"
        elif row["position"] != (0 if row["parent"] is None else row["before"] + 1):
            yield f"nodes {row['id']}: position {row['position']} is not its parent's plus one"

    def check_copy(row: Any) -> Iterator[str]:
        if not _matches_name(row["node"], row, facts, texts):
            yield f"{row['place']}: the name does not match the content and parent"

    columns, parents = "SELECT n.*, p.id AS found, p.position AS before", "LEFT JOIN nodes p ON p.id = n.parent"
    if since is not None:
        query = f"{RECENT} {columns} FROM recent r JOIN nodes n ON n.id = r.id {parents}"
        yield from _each("nodes {id}", db.scan(query, (since,)), check_node)
        return
    yield from _each("nodes {id}", db.scan(f"{columns} FROM nodes n {parents}"), check_node)
    copies = db.execute(
        "SELECT 'copies ' || c.session || ' ' || c.node AS place, c.node, c.content, n.parent, n.instructions"
        " FROM copies c JOIN nodes n ON n.id = c.node UNION ALL"
        " SELECT 'entries ' || e.id, e.node, e.content, n.parent, n.instructions"
        " FROM entries e JOIN nodes n ON n.id = e.node WHERE e.content NOT NULL"
    )
    yield from _each("{place}", copies, check_copy)


def _each(label: str, table_rows: Iterable[Any], check: Callable[[Any], Iterator[str]]) -> Iterator[str]:
    """Check rows one by one; a row that stops its check is a defect, and does not stop those of the others."""
    for row in table_rows:
        try:
            yield from check(row)
        except UNREADABLE as error:
            yield f"{label.format_map(rows.mapping(row))}: cannot be read ({error})"


def _matches_name(name: str, row: Any, facts: Mapping[str, ids.IdentityFacts], texts: Mapping[str, str]) -> bool:
    """True if a message's name matches its content and parent, or if its content cannot be read."""
    content = facts.get(row["content"])
    if content is None:
        return True
    if any(
        row[column] and prefix_of(row[column]) != prefix_of(name) for column in ("content", "parent", "instructions")
    ):
        return False
    name, parent = without_prefix(name), without_prefix(row["parent"])
    if not name.startswith(ids.RECORDED):
        return row["instructions"] is None and ids.chain_id(parent, content.identity) == name
    if row["instructions"] is not None:
        content = replace(content, instructions=texts.get(row["instructions"]))
    rendering = content.rendering if name.startswith(ids.RENDERED) else ""
    return ids.view_message_id(parent, content.exact, rendering) == name


def check_tips(db: Database) -> Iterator[str]:
    """Check that every message that a row refers to exists and belongs to the same owner."""
    for table, column in (*rows.TIPS, *rows.TURN_TIPS):
        for row in db.execute(
            f"SELECT t.{'id' if table == 'commits' else 'rowid'} AS id, t.{column} AS tip FROM {table} t"
            f" LEFT JOIN nodes n ON n.id = t.{column} WHERE t.{column} <> '' AND n.id IS NULL"
        ):
            yield f"{table} {row['id']}: {column} {row['tip']} is not a known message"
        joined = f"{table} t JOIN sessions s ON s.id = t.{'id' if table == 'sessions' else 'session'}"
        for row in db.execute(
            f"SELECT s.owner, substr(t.{column}, 1, instr(t.{column}, '/')) AS found, min(s.id) AS id FROM {joined}"
            f" WHERE t.{column} <> '' GROUP BY 1, 2"
        ):
            if row["found"] != prefix(row["owner"]):
                yield f"{table}: {column} of session {row['id']} is a message of another owner"


def check_seals(db: Database, since: str | None = None) -> Iterator[str]:
    """Check the seals of all sealed rows, or of those since a time; of a table without times, of all rows."""
    for table, columns in SEALED.items():
        yield from _defects(db, table, _check_seals_of(db, table, columns, since))


def _check_seals_of(db: Database, table: str, columns: Sequence[str], since: str | None) -> Iterator[str]:
    recent, parameters = (" WHERE created_at >= ?", (since,)) if since and "created_at" in columns else ("", ())
    for row in db.scan(f"SELECT rowid, seal, {', '.join(columns)} FROM {table}{recent}", parameters):
        number, seal, *values = row
        if not rows.is_sealed(number, values, seal):
            unread = [name for name, value in zip(columns, values, strict=True) if not rows.is_text(value)]
            note = f"; {', '.join(unread)}: not valid UTF-8" if unread else ""
            yield f"{table} {number}: changed since it was written{note}"


def check_cache_keys(db: Database) -> Iterator[str]:
    """Check that only compiles with status ok have a cache key."""
    for row in db.execute("SELECT id, status FROM context_summaries WHERE cache_key NOT NULL"):
        if str(row["status"]).split(";")[0].strip() != "ok":
            yield f"context_summaries {row['id']}: has a cache key with status {row['status']!r}"


def check_memories(db: Database) -> Iterator[str]:
    """Check that memories and commits match their names, and that live memories match the state of their session."""

    def check_memory(row: Any) -> Iterator[str]:
        name = ids.chain_id(without_prefix(row["parent"]), without_prefix(row["content"]))
        if prefix_of(row["content"]) + name != row["id"]:
            yield f"memories {row['id']}: the name does not match the content and parent"
        if row["position"] != row["due"]:
            yield f"memories {row['id']}: position {row['position']} is not its parent's plus one"

    def check_commit(row: Any) -> Iterator[str]:
        if commit_id(row["session_id"], rows.mapping(row)) != without_prefix(row["id"]):
            yield f"commits {row['id']}: the name does not match the columns"

    def check_space(row: Any) -> Iterator[str]:
        live = db.execute("SELECT memory FROM live_memories WHERE session = ?", (row["session"],)).fetchall()
        if {memory["memory"] for memory in live} != set(memory_diff(db, None, row["memory_tip"])[1]):
            yield f"live_memories {row['session']}: they do not match the memory of the session"

    query = "SELECT m.*, ifnull(p.position, -1) + 1 AS due FROM memories m LEFT JOIN memories p ON p.id = m.parent"
    yield from _each("memories {id}", db.execute(query), check_memory)
    commits = db.execute("SELECT c.*, s.session_id FROM commits c JOIN sessions s ON s.id = c.session")
    yield from _each("commits {id}", commits, check_commit)
    yield from _each("spaces {session}", db.execute("SELECT session, memory_tip FROM spaces"), check_space)


def check_tools(db: Database) -> Iterator[str]:
    """Check that the tools of each session can be read and belong to its owner."""

    def check(row: Any) -> Iterator[str]:
        if prefix_of(row["content"]) != prefix(row["owner"]):
            yield f"toolsets {row['id']}: the tools belong to another owner"
        parse_tools(rows.to_text(rows.unpack(row["body"])))

    toolsets = db.execute(
        "SELECT t.id, t.content, s.owner, c.body FROM toolsets t JOIN sessions s ON s.id = t.session"
        " LEFT JOIN contents c ON c.hash = t.content"
    )
    yield from _each("toolsets {id}", toolsets, check)


def check_conversations(db: Database) -> Iterator[str]:
    """Check that logs of conversations are complete, and that each message follows the one before it."""
    reached: dict[tuple[str, str], str] = {}

    def check_entry(row: Any) -> Iterator[str]:
        reached[row["owner"], row["id"]] = row["node"]
        if row["before"] != row["found"] or (row["parent"] is None) != (row["found"] is None):
            yield f"entries {row['id']}: the message does not follow the message of the parent entry"
        if prefix_of(row["node"]) != prefix(row["owner"]):
            yield f"entries {row['id']}: the message belongs to another owner"

    def check_conversation(row: Any) -> Iterator[str]:
        tips = list_of(row["tips"])
        if not isinstance(parse_json(row["tips"]), list):
            yield f"conversations {row['session']}: the list of its ends is damaged"
        elif any((row["owner"], tip) not in reached for tip in tips) or row["head"] not in (None, *tips[:1]):
            yield f"conversations {row['session']}: an end of its log is missing"

    entries = db.execute(
        "SELECT e.owner, e.id, e.parent, e.node, n.parent AS before, p.node AS found FROM entries e"
        " LEFT JOIN nodes n ON n.id = e.node LEFT JOIN entries p ON p.owner = e.owner AND p.id = e.parent"
    )
    yield from _each("entries {id}", entries, check_entry)
    query = "SELECT c.session, c.head, c.tips, s.owner FROM conversations c JOIN sessions s ON s.id = c.session"
    yield from _each("conversations {session}", db.execute(query), check_conversation)


CHECKS: tuple[Callable[[Database], Iterator[str]], ...] = (
    check_messages,
    check_tips,
    check_seals,
    check_cache_keys,
    check_memories,
    check_conversations,
    check_tools,
)


def verify(db: Database, *, newer_than_days: float | None = None) -> tuple[str, ...]:
    """Run all checks on one snapshot of the record; return the defects, none if it is sound.

    With `newer_than_days`, only rows and messages that are so new are checked, whose number does not grow.
    """
    with db.lenient():
        with db.snapshot():
            if newer_than_days is None:
                report = _defects(db, "structure", db.check_structure())
                checks = {check.__name__.removeprefix("check_"): check(db) for check in CHECKS}
            else:
                report, since = list[str](), rows.days_ago(newer_than_days)
                checks = {"messages": check_messages(db, since), "seals": check_seals(db, since)}
            report += [defect for name, defects in checks.items() for defect in _defects(db, name, defects)]
        if newer_than_days is None:
            for name, defects in (("schema", db.check_schema()), ("search index", db.check_search_index())):
                report += _defects(db, name, defects)
    return tuple(defect if rows.is_text(defect) else ascii(defect)[1:-1] for defect in report)


UNREADABLE = (ValueError, TypeError, AttributeError, LookupError, zlib.error, StoreError)
"""Errors of a row that is too damaged to be checked."""

STOPPED = "the rest was not checked"
"""Words of a defect that stopped a check."""


def checked_to_the_end(defects: Iterable[str]) -> bool:
    """True if the defects that `verify` returned are all there are, because none of them stopped a check."""
    return not any(STOPPED in defect or defect.startswith("database: ") for defect in defects)


def _defects(db: Database, check: str, results: Iterator[str]) -> list[str]:
    """Collect the defects of a check; an error that stops the check is one too, and does not stop other checks."""
    defects: list[str] = []
    try:
        with db.lenient():
            for defect in results:
                defects.append(defect)
    except (*db.damage, *UNREADABLE) as error:
        defects.append(f"{check}: {error}; {STOPPED}")
    return defects
