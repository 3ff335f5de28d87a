"""A copy of a record in another store: rows keep names and values, and get numbers and seals of their new place.

Rows are written in pages, each in one transaction, after those that they refer to; a row that is there already is left
alone. So a copy that was interrupted is finished by another one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from context_compiler import ids
from context_compiler.errors import StoreError
from context_compiler.record import rows
from context_compiler.record.database import Database
from context_compiler.record.sessions import memory_diff
from context_compiler.record.store import PAGE, SQLStore
from context_compiler.record.values import page_names

Row = Mapping[str, Any]
Numbers = dict[str, dict[int, int]]
"""Numbers of rows in the copy, by table and by their number in the source."""

REFERENCES = {"session": "sessions", "summary": "context_summaries"}
"""Columns that hold the number of a row, and its table."""

KEYS = {
    "sessions": ("session_id", "vault_name", "owner"),
    "context_summaries": ("session", "turn_index", "run_id", "covered_tip", "status", "created_at"),
    "cycles": ("raw_tip", "config", "session"),
    "views": ("session", "run_id", "request_index", "raw_tip", "view_tip"),
    "layers": ("session",),
    "scores": ("session", "turn_index", "created_at"),
    "conversations": ("session",),
    "actions": ("session", "number"),
    "toolsets": ("session", "request_hash"),
}
"""Columns by which a numbered row is found in the copy."""

NUMERIC = frozenset({"session", "turn_index", "request_index", "number"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyResult:
    """Outcome of a copy."""

    copied: Mapping[str, int]
    """Rows that were added, by table."""
    present: Mapping[str, int]
    """Rows that were there already, by table."""
    defects: tuple[str, ...]
    """Defects of the copy; empty if it is sound."""


async def copy_record(source: SQLStore, target: SQLStore, progress: Callable[[str], object]) -> CopyResult:
    """Copy every row of every owner, and verify the copy; `progress` is called for each row, with its table.

    Raises:
        StoreError: a row of the source was changed since it was written, or one of the stores cannot be used.
    """
    numbers: Numbers = {"sessions": {}, "context_summaries": {}}
    copied, present = Counter[str](), Counter[str]()
    async with aclosing(source.scoped(None).export()) as found:
        async for table, page in _pages(found):
            added, known = await target.perform(partial(_write_page, table=table, page=page, numbers=numbers))
            if table in numbers:
                numbers[table] |= known
            copied[table] += added
            present[table] += len(page) - added
            for _ in page:
                progress(table)
    sessions = numbers["sessions"]
    for session, memory, terms in await source.perform(lambda db: db.live_memories()):
        if session in sessions:
            await target.perform(partial(_revive, session=sessions[session], memory=memory, terms=terms))
    await _index(source, target, progress)
    return CopyResult(copied=dict(copied), present=dict(present), defects=await target.verify())


async def _pages(found: AsyncIterator[Row]) -> AsyncIterator[tuple[str, list[Row]]]:
    """Rows in pages of one table."""
    table, page = "", list[Row]()
    async for row in found:
        if page and (row["table"] != table or len(page) == PAGE):
            yield table, page
            page = []
        table = row["table"]
        page.append({name: value for name, value in row.items() if name != "table"})
    if page:
        yield table, page


def _write_page(db: Database, table: str, page: Sequence[Row], numbers: Numbers) -> tuple[int, dict[int, int]]:
    """Write rows of a table that are not there yet: how many, and the numbers of all."""
    with db.transaction():
        if table in rows.SEALED:
            return _write_sealed(db, table, page, numbers)
        before = _count(db, table)
        given = [_renumber(row, numbers) for row in page]
        if table == "layer_pages":
            given = [row for row in given if _is_wanted(db, row)]
        if table == "contents":
            given = [{"hash": row["hash"], "body": rows.pack(rows.to_bytes(row["body"]))} for row in page]
        if not given:
            return 0, {}
        columns = list(given[0])
        query = f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
        db.executemany(query, [[row[column] for column in columns] for row in given])
        return _count(db, table) - before, {}


def _is_wanted(db: Database, page: Row) -> bool:
    """True unless the copy has layers of the session already, which do not list this page."""
    found = db.execute("SELECT state FROM layers WHERE session = ?", (page["session"],)).fetchone()
    return found is None or page["name"] in page_names(found["state"])


def _count(db: Database, table: str) -> int:
    return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def _renumber(row: Row, numbers: Numbers) -> dict[str, Any]:
    """A row with the numbers of the copy."""
    new = {
        column: numbers[table][row[column]] for column, table in REFERENCES.items() if isinstance(row.get(column), int)
    }
    return {**row, **new}


def _write_sealed(db: Database, table: str, page: Sequence[Row], numbers: Numbers) -> tuple[int, dict[int, int]]:
    columns, added, known = rows.SEALED[table], 0, dict[int, int]()
    for row in page:
        if not rows.is_sealed(row["id"], [row[column] for column in columns], row["seal"]):
            raise StoreError(f"{table} {row['id']} of the source was changed since it was written; verify it")
        new = _renumber(row, numbers)
        number = _number_of(db, table, new)
        if number is None:
            number, added = db.next_number(table), added + 1
            new = _copied_state(db, table, new, numbers)
            values = [new[column] for column in columns]
            names = ("rowid", *columns, "seal")
            query = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
            db.execute(query, (number, *values, rows.seal(number, values)))
        elif table == "sessions":
            _advance(db, number, new)
        known[row["id"]] = number
    return added, known


def _copied_state(db: Database, table: str, row: Row, numbers: Numbers) -> dict[str, Any]:
    """A row whose state, if it has one, names the compile of a cycle by its number in the copy."""
    if table == "actions":
        return {**row, "state": _renumber_state(row["state"], numbers)}
    if table != "cycles":
        return {**row}
    found = db.execute("SELECT body FROM contents WHERE hash = ?", (row["state"],)).fetchone()
    before = "" if found is None else rows.to_text(rows.unpack(found["body"]))
    state = _renumber_state(before, numbers)
    if state == before:
        return {**row}
    body = rows.to_bytes(state)
    name = rows.prefix_of(row["state"]) + ids.blob_id(body)
    db.execute("INSERT OR IGNORE INTO contents VALUES (?, ?)", (name, rows.pack(body)))
    return {**row, "state": name}


def _renumber_state(state: str, numbers: Numbers) -> str:
    """The state of a cycle, or of an action that led to one, with the number of the copy."""
    try:
        given: Any = json.loads(state)
    except ValueError:
        return state
    if not isinstance(given, dict):
        return state
    data, number = cast("dict[str, Any]", given), cast("dict[str, Any]", given).get("summary_id")
    if isinstance(data.get("cycle"), str):
        new = {"cycle": _renumber_state(data["cycle"], numbers)}
    elif isinstance(number, int):
        new = {"summary_id": numbers["context_summaries"].get(number)}
    else:
        return state
    same = all(data[name] == value for name, value in new.items())
    return state if same else json.dumps({**data, **new}, ensure_ascii=False, separators=(",", ":"))


def _number_of(db: Database, table: str, row: Row) -> int | None:
    """The number of a row in the copy, by its key; None if it is not there."""
    if row.get("cache_key") is not None:
        found = db.execute("SELECT id FROM context_summaries WHERE cache_key = ?", (row["cache_key"],)).fetchone()
    else:
        names = KEYS[table]
        same = (f"{name} = ?" if name in NUMERIC else f"ifnull({name}, '') = ifnull(?, '')" for name in names)
        query = f"SELECT rowid AS id FROM {table} WHERE {' AND '.join(same)}"
        found = db.execute(query, [row[name] for name in names]).fetchone()
    return None if found is None else int(found["id"])


def _advance(db: Database, number: int, row: Row) -> None:
    """Move a session on to the raw history of the source, if that is longer."""

    def length(tip: str | None) -> int:
        found = db.execute("SELECT position FROM nodes WHERE id = ?", (tip,)).fetchone()
        return -1 if found is None else int(found["position"])

    columns = ", ".join(rows.SESSION)
    held = rows.mapping(db.execute(f"SELECT {columns} FROM sessions WHERE id = ?", (number,)).fetchone())
    if length(row["raw_tip"]) > length(held["raw_tip"]):
        values = [{**held, "raw_tip": row["raw_tip"]}[column] for column in rows.SESSION]
        query = "UPDATE sessions SET raw_tip = ?, seal = ? WHERE id = ?"
        db.execute(query, (row["raw_tip"], rows.seal(number, values), number))


def _revive(db: Database, session: int, memory: str, terms: str | None) -> None:
    """Add a memory to what a session remembers, if it belongs to the memory of the copy."""
    with db.transaction():
        tip = db.execute("SELECT memory_tip FROM spaces WHERE session = ?", (session,)).fetchone()
        query = "SELECT 1 FROM live_memories WHERE session = ? AND memory = ?"
        if db.execute(query, (session, memory)).fetchone() or tip is None:
            return
        if memory in memory_diff(db, None, tip[0])[1]:
            number = db.next_number("live_memories")
            db.execute("INSERT INTO live_memories (id, session, memory) VALUES (?, ?, ?)", (number, session, memory))
            if terms is not None:
                db.index_memory(number, terms)


async def _index(source: SQLStore, target: SQLStore, progress: Callable[[str], object]) -> None:
    """Add to the search index of the copy what it lacks."""
    indexed = await target.perform(lambda db: {row[0] for row in db.execute("SELECT DISTINCT node FROM messages_fts")})
    after = 0
    while page := await source.perform(lambda db, after=after: db.message_texts(after, PAGE)):
        after = page[-1][0]
        texts = [(node, text) for _, node, text in page if node not in indexed]
        await target.perform(partial(_index_page, texts=texts))
        for _ in page:
            progress("messages_fts")


def _index_page(db: Database, texts: Sequence[tuple[str, str]]) -> None:
    with db.transaction():
        query = "SELECT id FROM nodes WHERE id IN (SELECT value FROM json_each(?))"
        known = {row[0] for row in db.execute(query, (json.dumps([node for node, _ in texts]),))}
        db.index_messages([one for one in texts if one[0] in known])
