"""Copying a record to another store: rows keep their names and values, but get new numbers and seals.

Rows are written in pages, one transaction each, after the rows that they refer to. A row that never changes is skipped
if the target has it, so an interrupted copy is finished by repeating it. A row that can change, such as the tip of a
session, is updated from the source, unless it was continued in the target: then it is kept and reported. Where the
target has a message with other times, run ids or renderings, each copied conversation gets a copy of its own message.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from context_compiler import ids
from context_compiler.errors import StoreError
from context_compiler.record import rows
from context_compiler.record.database import PAGE, Database
from context_compiler.record.maintenance import EXPORTED
from context_compiler.record.queries import insert, reseal
from context_compiler.record.sessions import make_live, memory_diff, unindex
from context_compiler.record.store import SQLStore
from context_compiler.record.tables import SEALED

Row = Mapping[str, Any]
Numbers = dict[str, dict[int, int]]
"""Row numbers in the target, by table and by row number in the source."""

REFERENCES = {"session": "sessions", "summary": "context_summaries"}
"""Columns that contain a row number, and the tables that they refer to."""

KEYS = {
    "sessions": ("session_id", "vault_name", "owner"),
    "context_summaries": ("session", "turn_index", "run_id", "covered_tip", "raw_output", "created_at"),
    "cycles": ("raw_tip", "config", "session"),
    "views": ("session", "run_id", "request_index", "raw_tip", "view_tip"),
    "layers": ("session",),
    "spaces": ("session",),
    "scores": ("session", "turn_index", "created_at"),
    "conversations": ("session",),
    "actions": ("session", "number"),
    "toolsets": ("session", "request_hash"),
}
"""Columns that identify a numbered row, by which it is found in the target."""

CHANGING = {
    "sessions": ("raw_tip",),
    "cycles": ("state",),
    "layers": ("version", "state"),
    "actions": ("kind", "tip", "state", "summary", "created_at"),
    "spaces": ("memory_tip", "head", "turns_tip", "state"),
    "conversations": ("head", "tips", "state", "revision", "updated_at"),
}
"""Columns that can change after an earlier copy, by table."""

ENDS = {
    "sessions": (("raw_tip", "nodes"),),
    "spaces": (("memory_tip", "memories"), ("head", "commits"), ("turns_tip", "nodes")),
}
"""Columns that name the newest state of a session, and the tables that they refer to."""

NUMERIC = frozenset({"session", "turn_index", "request_index", "number"})


LOG = """
WITH RECURSIVE kept (id) AS (
    SELECT tip.value FROM json_each(?1) AS tip
    UNION SELECT (SELECT e.parent FROM entries e WHERE e.owner = ?2 AND e.id = kept.id) FROM kept
)
SELECT id FROM kept
"""
"""The entries of the JSON list `?1`, and all their ancestors, in the log of the owner `?2`."""


RAW_TIPS = (("views", "raw_tip"), *rows.TURN_TIPS)
"""Columns that contain the stored name of a message of an earlier raw history of a session."""

SAID = f"""
WITH RECURSIVE up (id) AS (
    SELECT raw_tip FROM sessions WHERE id = ?1
    {" ".join(f"UNION SELECT {column} FROM {table} WHERE session = ?1" for table, column in RAW_TIPS)}
    UNION SELECT (SELECT n.parent FROM nodes n WHERE n.id = up.id) FROM up
)
SELECT id FROM up
"""
"""All messages of the raw histories of the session `?1`."""

IF_PRESENT = {
    "copies": "ON CONFLICT (session, node) DO UPDATE SET content = excluded.content",
    "entries": (
        "ON CONFLICT (owner, id) DO UPDATE SET content = excluded.content"
        " WHERE entries.node = excluded.node AND ifnull(entries.content, '') <> ifnull(excluded.content, '')"
    ),
}
"""Change of a row that the target has already, by table; rows of all other tables stay as they are."""


@dataclass(frozen=True, slots=True)
class Versions:
    """The messages that the target has with another content, because names do not depend on times and run ids."""

    contents: dict[str, str] = field(default_factory=dict[str, str])
    """Names of their contents in the source, by message id."""
    own: set[tuple[int, str]] = field(default_factory=set[tuple[int, str]])
    """Those of which a session has a copy in the source too, as `(session in the target, message id)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyResult:
    """The outcome of a copy."""

    copied: Mapping[str, int]
    """Number of rows added or updated, by table."""
    present: Mapping[str, int]
    """Number of rows that the target already had, by table."""
    defects: tuple[str, ...]
    """Defects of the target, and rows in which it differs from the source; empty if the copy is sound and complete."""


async def copy_record(source: SQLStore, target: SQLStore, progress: Callable[[str], object]) -> CopyResult:
    """Copy the rows of all owners and verify the target; `progress` is called with the table of each row.

    Raises:
        StoreError: A row of the source does not match its seal, or one of the stores cannot be used.
    """
    numbers: Numbers = {"sessions": {}, "context_summaries": {}}
    copied, present, versions = Counter[str](), Counter[str](), Versions()
    changed, defects, continued = list[tuple[str, Row]](), list[str](), set[int]()
    await source.perform(_count)  # raises if there is no source, before the target is created
    before = await target.perform(_count)
    async with aclosing(source.scoped(None).export()) as exported:
        async for table, page in _pages(exported):
            write = partial(_write_page, table=table, page=page, numbers=numbers, versions=versions)
            added, mapped, unequal = await target.perform(write)
            if table in numbers:
                numbers[table] |= mapped
            changed += [(table, row) for row in unequal]
            copied[table] += added
            present[table] += len(page) - added
            for _ in page:
                progress(table)
    for table, number in (await target.perform(_count)).items():
        if table in present:
            copied[table] = min(number - before[table], present[table])  # a copied cycle may add a content of its own
            present[table] -= copied[table]
    for table, row in changed:
        kept = await _update_or_keep(source, target, table, row)
        if kept is None:
            copied[table] += 1
            present[table] -= 1
        else:
            owner = f" of {kept['owner']!r}" if kept["owner"] else ""
            name = f"session {kept['session_id']!r}{owner}"
            defects.append(f"{table}: {name} was changed in the target, so it is not as in the source")
            continued |= {kept["id"]} if table == "sessions" else set()
    sessions = numbers["sessions"]
    await _write_versions(target, versions, [number for number in sessions.values() if number not in continued])
    for session, memory, terms in await source.perform(lambda db: db.live_memories()):
        if session in sessions:
            await target.perform(partial(_add_live_memory, session=sessions[session], memory=memory, terms=terms))
    await _index(source, target, progress)
    return CopyResult(copied=dict(copied), present=dict(present), defects=(*defects, *await target.verify()))


async def _update_or_keep(source: SQLStore, target: SQLStore, table: str, row: Row) -> Row | None:
    """Update the target's row from the source; if it was continued in the target, keep and return it."""
    current = await target.perform(partial(_target_row, table=table, row=row))
    has_diverged = await source.perform(partial(_has_diverged, table=table, current=current, row=row))
    change = _keep_reachable if has_diverged else _update
    await target.perform(partial(change, table=table, current=current, row=row))
    return current if has_diverged else None


async def _pages(exported: AsyncIterator[Row]) -> AsyncIterator[tuple[str, list[Row]]]:
    """Group rows into pages of at most `PAGE` rows, each page from one table."""
    table, page = "", list[Row]()
    async for row in exported:
        if page and (row["table"] != table or len(page) == PAGE):
            yield table, page
            page = []
        table = row["table"]
        page.append({name: value for name, value in row.items() if name != "table"})
    if page:
        yield table, page


Written = tuple[int, dict[int, int], Sequence[Row]]
"""Number of added numbered rows; row numbers in the target by number in the source; rows that differ in the target."""


def _write_page(db: Database, table: str, page: Sequence[Row], numbers: Numbers, versions: Versions) -> Written:
    """Write the rows of a table that the target does not have, and add the messages that differ to `versions`."""
    with db.transaction():
        if table in SEALED:
            return _write_sealed(db, table, page, numbers)
        new_rows = [_renumber(row, numbers) for row in page]
        if table == "contents":
            new_rows = [{"hash": row["hash"], "body": rows.pack(rows.to_bytes(row["body"]))} for row in page]
        if table == "entries":
            new_rows = [{**row, "content": row["content"] or versions.contents.get(row["node"])} for row in page]
        columns = list(new_rows[0])
        verb = "INSERT" if table in IF_PRESENT else "INSERT OR IGNORE"
        values = f"({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))}) {IF_PRESENT.get(table, '')}"
        db.executemany(f"{verb} INTO {table} {values}", [[row[column] for column in columns] for row in new_rows])
        _note_versions(db, table, new_rows, versions)
        return 0, {}, []


def _note_versions(db: Database, table: str, new_rows: Sequence[Row], versions: Versions) -> None:
    """Add the messages of a page that the target has with another content, and the copies of such messages."""
    if table == "nodes":
        query = "SELECT id, content FROM nodes WHERE id IN (SELECT value FROM json_each(?))"
        stored = {row[0]: row[1] for row in db.execute(query, (json.dumps([row["id"] for row in new_rows]),))}
        differing = (row for row in new_rows if stored.get(row["id"]) not in (None, row["content"]))
        versions.contents.update((row["id"], row["content"]) for row in differing)
    elif table == "copies":
        versions.own.update((row["session"], row["node"]) for row in new_rows if row["node"] in versions.contents)


async def _write_versions(target: SQLStore, versions: Versions, sessions: Sequence[int]) -> None:
    """Give sessions of the target copies of the messages that the target has with another content."""
    for session in sessions if versions.contents else ():
        await target.perform(partial(_write_copies, session=session, versions=versions))


def _write_copies(db: Database, session: int, versions: Versions) -> None:
    """Write copies for a session, except those that the source has too: they are written with their table."""
    differing = [row[0] for row in db.execute(SAID, (session,)) if row[0] in versions.contents]
    copies = [(session, node, versions.contents[node]) for node in differing if (session, node) not in versions.own]
    if copies:
        with db.transaction():
            query = f"INSERT INTO copies (session, node, content) VALUES (?, ?, ?) {IF_PRESENT['copies']}"
            db.executemany(query, copies)


def _target_row(db: Database, table: str, row: Row) -> Row:
    """Read the target's row with the same key as a source row, joined with the name and owner of its session."""
    if table == "sessions":
        query, key = "SELECT * FROM sessions WHERE id = ?", [row["id"]]
    else:
        query = (
            f"SELECT t.rowid AS id, t.*, s.session_id, s.owner FROM {table} t JOIN sessions s ON s.id = t.session"
            f" WHERE {' AND '.join(f't.{name} = ?' for name in KEYS[table])}"
        )
        key = [row[name] for name in KEYS[table]]
    return rows.mapping(db.execute(query, key).fetchone())


def _differs(db: Database, table: str, row: Row) -> bool:
    current = _target_row(db, table, row)
    return any(row[column] != current[column] for column in CHANGING[table])


def _has_diverged(db: Database, table: str, current: Row, row: Row) -> bool:
    """True if the target's row has a state that the source never had, because it was continued in the target."""
    if table == "layers":
        return current["version"] >= row["version"]
    if table == "conversations":
        query = "SELECT 1 FROM entries WHERE owner = ? AND id = ?"
        return current["updated_at"] > row["updated_at"] or any(
            db.execute(query, (current["owner"], tip)).fetchone() is None for tip in json.loads(current["tips"])
        )
    reachable = (
        current[column] is None or db.execute(f"SELECT 1 FROM {named} WHERE id = ?", (current[column],)).fetchone()
        for column, named in ENDS.get(table, ())
    )
    return table == "actions" or not all(reachable)


def _update(db: Database, table: str, current: Row, row: Row) -> None:
    values = {column: row[column] for column in CHANGING[table]}
    new = {**current, **values}
    values["seal"] = rows.seal(current["id"], [new[column] for column in SEALED[table]])
    with db.transaction():
        if table == "cycles":  # insert it again, because the newest cycle must have the highest number
            db.execute("DELETE FROM cycles WHERE rowid = ?", (current["id"],))
            insert(db, "cycles", [row[column] for column in SEALED["cycles"]])
            return
        if table == "spaces":
            unindex(db, "session = ?", current["session"])
            db.execute("DELETE FROM live_memories WHERE session = ?", (current["session"],))
        settings = ", ".join(f"{column} = ?" for column in values)
        db.execute(f"UPDATE {table} SET {settings} WHERE rowid = ?", (*values.values(), current["id"]))


def _keep_reachable(db: Database, table: str, current: Row, row: Row) -> None:
    """Keep a row of the target, but make everything copied for it reachable, so that pruning does not remove it."""
    with db.transaction():
        if table == "conversations":
            tips: list[str] = json.loads(current["tips"])
            entries = db.execute(LOG, (json.dumps(tips), current["owner"])).fetchall()
            reachable = {entry[0] for entry in entries}
            further = [tip for tip in json.loads(row["tips"]) if tip not in reachable]
            if further:
                query = "UPDATE conversations SET tips = ? WHERE session = ?"
                db.execute(query, (json.dumps([*tips, *further]), current["session"]))
                reseal(db, "conversations", current["id"])


def _count(db: Database) -> dict[str, int]:
    """Count the rows of each table without row numbers."""
    named = [table for table in EXPORTED if table not in SEALED]
    return {table: int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]) for table in named}


def _renumber(row: Row, numbers: Numbers) -> dict[str, Any]:
    """Return a row whose references contain the row numbers of the target."""
    new = {
        column: numbers[table][row[column]] for column, table in REFERENCES.items() if isinstance(row.get(column), int)
    }
    return {**row, **new}


def _write_sealed(db: Database, table: str, page: Sequence[Row], numbers: Numbers) -> Written:
    """Write the sealed rows of a table that the target does not have, with new numbers and seals."""
    columns, added, new_numbers, unequal = SEALED[table], 0, dict[int, int](), list[Row]()
    for row in page:
        if not rows.is_sealed(row["id"], [row[column] for column in columns], row["seal"]):
            raise StoreError(f"{table} {row['id']} of the source was changed since it was written; verify it")
        new = _renumber_compile(db, table, _renumber(row, numbers), numbers)
        number = _number_of(db, table, new)
        if number is None:
            if table == "context_summaries":
                new = _without_used_key(db, new)
            number, added = insert(db, table, [new[column] for column in columns]), added + 1
        elif table in CHANGING:
            new = {**new, "id": number}
            unequal += [new] if _differs(db, table, new) else []
        new_numbers[row["id"]] = number
    return added, new_numbers, unequal


def _without_used_key(db: Database, row: Row) -> Row:
    """Return the row of a compile, without its cache key if another compile in the target has the same key."""
    other = db.execute("SELECT 1 FROM context_summaries WHERE cache_key = ?", (row["cache_key"],)).fetchone()
    if other is None:
        return row
    return {**row, "cache_key": None, "status": f"{row['status']}; cache_key: of another answer"}


def _renumber_compile(db: Database, table: str, row: Row, numbers: Numbers) -> dict[str, Any]:
    """Return a row whose state, if it is an action or a cycle, contains the target's row number of its compile."""
    if table == "actions":
        return {**row, "state": _renumber_state(row["state"], numbers)}
    if table != "cycles":
        return {**row}
    stored = db.execute("SELECT body FROM contents WHERE hash = ?", (row["state"],)).fetchone()
    before = "" if stored is None else rows.to_text(rows.unpack(stored["body"]))
    state = _renumber_state(before, numbers)
    if state == before:
        return {**row}
    body = rows.to_bytes(state)
    name = rows.prefix_of(row["state"]) + ids.blob_id(body)
    db.execute("INSERT OR IGNORE INTO contents VALUES (?, ?)", (name, rows.pack(body)))
    return {**row, "state": name}


def _renumber_state(state: str, numbers: Numbers) -> str:
    """Replace the row number of the compile in the state of a cycle, or of an action that contains a cycle."""
    try:
        parsed: Any = json.loads(state)
    except ValueError:
        return state
    if not isinstance(parsed, dict):
        return state
    data, number = cast("dict[str, Any]", parsed), cast("dict[str, Any]", parsed).get("summary_id")
    if isinstance(data.get("cycle"), str):
        new = {"cycle": _renumber_state(data["cycle"], numbers)}
    elif isinstance(number, int):
        new = {"summary_id": numbers["context_summaries"].get(number)}
    else:
        return state
    same = all(data[name] == value for name, value in new.items())
    return state if same else json.dumps({**data, **new}, ensure_ascii=False, separators=(",", ":"))


def _number_of(db: Database, table: str, row: Row) -> int | None:
    """Find the number of a row in the target by its key; None if it is not there."""
    if row.get("cache_key") is not None:
        query = "SELECT id FROM context_summaries WHERE cache_key = ? AND raw_output = ?"
        if (stored := db.execute(query, (row["cache_key"], row["raw_output"])).fetchone()) is not None:
            return int(stored["id"])
    names = KEYS[table]
    same = (f"{name} = ?" if name in NUMERIC else f"ifnull({name}, '') = ifnull(?, '')" for name in names)
    query = f"SELECT rowid AS id FROM {table} WHERE {' AND '.join(same)}"
    stored = db.execute(query, [row[name] for name in names]).fetchone()
    return None if stored is None else int(stored["id"])


def _add_live_memory(db: Database, session: int, memory: str, terms: str | None) -> None:
    """Add a memory to the live memories of a session, if the session's current state in the target contains it."""
    with db.transaction():
        tip = db.execute("SELECT memory_tip FROM spaces WHERE session = ?", (session,)).fetchone()
        query = "SELECT 1 FROM live_memories WHERE session = ? AND memory = ?"
        if db.execute(query, (session, memory)).fetchone() or tip is None:
            return
        if memory in memory_diff(db, None, tip[0])[1]:
            make_live(db, session, memory, terms)


async def _index(source: SQLStore, target: SQLStore, progress: Callable[[str], object]) -> None:
    """Add the texts that the search index of the target lacks."""
    indexed = await target.perform(lambda db: {row[0] for row in db.execute("SELECT DISTINCT node FROM messages_fts")})
    query = "SELECT rowid, node, text FROM messages_fts WHERE rowid > ? AND text NOT NULL ORDER BY rowid LIMIT ?"
    after = 0
    while page := await source.perform(lambda db, after=after: db.execute(query, (after, PAGE)).fetchall()):
        after = page[-1][0]
        texts = [(node, text) for _, node, text in page if node not in indexed]
        await target.perform(partial(_index_page, texts=texts))
        for _ in page:
            progress("messages_fts")
    while await target.perform(lambda db: db.index_waiting()):
        pass


def _index_page(db: Database, texts: Sequence[tuple[str, str]]) -> None:
    with db.transaction():
        query = "SELECT id FROM nodes WHERE id IN (SELECT value FROM json_each(?))"
        nodes = {row[0] for row in db.execute(query, (json.dumps([node for node, _ in texts]),))}
        db.index_messages([(node, text) for node, text in texts if node in nodes])
