"""A copy of a record in another store: rows keep names and values, and get numbers and seals of their new place.

Rows are written in pages, each in one transaction, after the rows that they refer to. A row that never changes is
skipped if the target has it, so repeating an interrupted copy finishes it. A row that can change, such as the end of a
conversation, is updated from the source, unless the target has continued on its own: then it stays and is reported.
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
from context_compiler.record.maintenance import EXPORTED
from context_compiler.record.queries import insert, reseal
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
    "context_summaries": ("session", "turn_index", "run_id", "covered_tip", "raw_output", "created_at"),
    "cycles": ("raw_tip", "config", "session"),
    "views": ("session", "run_id", "request_index", "raw_tip", "view_tip"),
    "layers": ("session",),
    "scores": ("session", "turn_index", "created_at"),
    "conversations": ("session",),
    "actions": ("session", "number"),
    "toolsets": ("session", "request_hash"),
}
"""Columns by which a numbered row is found in the copy."""

CHANGING = {
    "sessions": ("raw_tip",),
    "cycles": ("state",),
    "layers": ("version", "state"),
    "actions": ("kind", "tip", "state", "summary", "created_at"),
    "spaces": ("memory_tip", "head", "turns_tip", "state"),
    "conversations": ("head", "tips", "state", "revision", "updated_at"),
}
"""Columns that may differ from those of an earlier copy."""

ENDS = {
    "sessions": (("raw_tip", "nodes"),),
    "spaces": (("memory_tip", "memories"), ("head", "commits"), ("turns_tip", "nodes")),
}
"""Columns that hold the newest state of a session, and the tables that they refer to."""

NUMERIC = frozenset({"session", "turn_index", "request_index", "number"})


LOG = """
WITH RECURSIVE kept (id) AS (
    SELECT tip.value FROM json_each(?1) AS tip
    UNION SELECT (SELECT e.parent FROM entries e WHERE e.owner = ?2 AND e.id = kept.id) FROM kept
)
SELECT id FROM kept
"""
"""Entries and all their ancestors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyResult:
    """Outcome of a copy."""

    copied: Mapping[str, int]
    """Rows added or updated, by table."""
    present: Mapping[str, int]
    """Rows that were there already, by table."""
    defects: tuple[str, ...]
    """Defects of the copy, and rows where the target differs from the source; empty if it is sound and complete."""


async def copy_record(source: SQLStore, target: SQLStore, progress: Callable[[str], object]) -> CopyResult:
    """Copy every row of every owner, and verify the copy; `progress` is called for each row, with its table.

    Raises:
        StoreError: a row of the source was changed since it was written, or one of the stores cannot be used.
    """
    numbers: Numbers = {"sessions": {}, "context_summaries": {}}
    copied, present = Counter[str](), Counter[str]()
    changed, defects = list[tuple[str, Row]](), list[str]()
    before = await target.perform(_count)
    async with aclosing(source.scoped(None).export()) as found:
        async for table, page in _pages(found):
            added, known, unlike = await target.perform(partial(_write_page, table=table, page=page, numbers=numbers))
            if table in numbers:
                numbers[table] |= known
            changed += [(table, row) for row in unlike]
            copied[table] += added
            present[table] += len(page) - added
            for _ in page:
                progress(table)
    for table, number in (await target.perform(_count)).items():
        if table in present:
            copied[table] = number - before[table]
            present[table] -= copied[table]
    for table, row in changed:
        held = await target.perform(partial(_held, table=table, row=row))
        if await source.perform(partial(_has_gone_on, table=table, held=held, row=row)):
            await target.perform(partial(_keep, table=table, held=held, row=row))
            name = f"session {held['session_id']!r}" + (f" of {held['owner']!r}" if held["owner"] else "")
            defects.append(f"{table}: {name} was changed in the target, so it is not as in the source")
        else:
            await target.perform(partial(_update, table=table, held=held, row=row))
            copied[table] += 1
            present[table] -= 1
    sessions = numbers["sessions"]
    for session, memory, terms in await source.perform(lambda db: db.live_memories()):
        if session in sessions:
            await target.perform(partial(_revive, session=sessions[session], memory=memory, terms=terms))
    await _index(source, target, progress)
    return CopyResult(copied=dict(copied), present=dict(present), defects=(*defects, *await target.verify()))


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


Written = tuple[int, dict[int, int], Sequence[Row]]
"""Count of added numbered rows, the new numbers of all of them, and rows that the target has with other values."""


def _write_page(db: Database, table: str, page: Sequence[Row], numbers: Numbers) -> Written:
    """Write the rows of a table that the target does not have."""
    with db.transaction():
        if table in rows.SEALED:
            return _write_sealed(db, table, page, numbers)
        given = [_renumber(row, numbers) for row in page]
        if table == "contents":
            given = [{"hash": row["hash"], "body": rows.pack(rows.to_bytes(row["body"]))} for row in page]
        columns = list(given[0])
        query = f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
        if table == "copies":
            query = (
                "INSERT INTO copies (session, node, content) VALUES (?, ?, ?)"
                " ON CONFLICT (session, node) DO UPDATE SET content = excluded.content"
            )
            columns = ["session", "node", "content"]
        db.executemany(query, [[row[column] for column in columns] for row in given])
        unlike = [row for row in given if _is_unlike(row, _held(db, table, row), table)] if table in CHANGING else []
        return 0, {}, unlike


def _held(db: Database, table: str, row: Row) -> Row:
    """The target's row with the key of a source row, and the names of its session."""
    if table == "sessions":
        query, given = "SELECT * FROM sessions WHERE id = ?", [row["id"]]
    else:
        names = KEYS.get(table, ("session",))
        query = (
            f"SELECT t.{'rowid' if table in rows.SEALED else 'session'} AS id, t.*, s.session_id, s.owner"
            f" FROM {table} t JOIN sessions s ON s.id = t.session"
            f" WHERE {' AND '.join(f't.{name} = ?' for name in names)}"
        )
        given = [row[name] for name in names]
    return rows.mapping(db.execute(query, given).fetchone())


def _is_unlike(row: Row, held: Row, table: str) -> bool:
    return any(row[column] != held[column] for column in CHANGING[table])


def _has_gone_on(db: Database, table: str, held: Row, row: Row) -> bool:
    """True if the target holds a state that the source never had, because somebody has continued it."""
    if table == "layers":
        return held["version"] >= row["version"]
    if table == "conversations":
        query = "SELECT 1 FROM entries WHERE owner = ? AND id = ?"
        return held["updated_at"] > row["updated_at"] or any(
            db.execute(query, (held["owner"], tip)).fetchone() is None for tip in json.loads(held["tips"])
        )
    known = (
        held[column] is None or db.execute(f"SELECT 1 FROM {named} WHERE id = ?", (held[column],)).fetchone()
        for column, named in ENDS.get(table, ())
    )
    return table == "actions" or not all(known)


def _update(db: Database, table: str, held: Row, row: Row) -> None:
    """Update a row of the target from the source."""
    values = {column: row[column] for column in CHANGING[table]}
    if table in rows.SEALED:
        new = {**held, **values}
        values["seal"] = rows.seal(held["id"], [new[column] for column in rows.SEALED[table]])
    key = "rowid" if table in rows.SEALED else "session"
    with db.transaction():
        if table == "cycles":  # written anew: the highest number is the newest cycle
            db.execute("DELETE FROM cycles WHERE rowid = ?", (held["id"],))
            insert(db, "cycles", [row[column] for column in rows.CYCLE])
            return
        if table == "spaces":
            live = db.execute("SELECT id FROM live_memories WHERE session = ?", (held["id"],)).fetchall()
            for (number,) in live:
                db.unindex_memory(number)
            db.execute("DELETE FROM live_memories WHERE session = ?", (held["id"],))
        settings = ", ".join(f"{column} = ?" for column in values)
        db.execute(f"UPDATE {table} SET {settings} WHERE {key} = ?", (*values.values(), held["id"]))
        if table == "layers":
            _keep_pages(db, row)


def _keep(db: Database, table: str, held: Row, row: Row) -> None:
    """Keep a row of the target as it is, but let everything that was copied be reachable from it."""
    with db.transaction():
        if table == "layers":
            _keep_pages(db, held)
        if table == "conversations":
            tips: list[str] = json.loads(held["tips"])
            found = db.execute(LOG, (json.dumps(tips), held["owner"])).fetchall()
            known = {one[0] for one in found}
            further = [tip for tip in json.loads(row["tips"]) if tip not in known]
            if further:
                query = "UPDATE conversations SET tips = ? WHERE session = ?"
                db.execute(query, (json.dumps([*tips, *further]), held["session"]))
                reseal(db, "conversations", held["id"])


def _keep_pages(db: Database, layers: Row) -> None:
    """Remove pages that the layers of a session do not list."""
    query = "DELETE FROM layer_pages WHERE session = ? AND NOT name IN (SELECT value FROM json_each(?))"
    db.execute(query, (layers["session"], json.dumps(list(page_names(layers["state"])))))


def _count(db: Database) -> dict[str, int]:
    """Rows of the tables without numbers."""
    named = [table for table in EXPORTED if table not in rows.SEALED]
    return {table: int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]) for table in named}


def _renumber(row: Row, numbers: Numbers) -> dict[str, Any]:
    """A row with the numbers of the copy."""
    new = {
        column: numbers[table][row[column]] for column, table in REFERENCES.items() if isinstance(row.get(column), int)
    }
    return {**row, **new}


def _write_sealed(db: Database, table: str, page: Sequence[Row], numbers: Numbers) -> Written:
    columns, added, known, unlike = rows.SEALED[table], 0, dict[int, int](), list[Row]()
    for row in page:
        if not rows.is_sealed(row["id"], [row[column] for column in columns], row["seal"]):
            raise StoreError(f"{table} {row['id']} of the source was changed since it was written; verify it")
        new = _copied_state(db, table, _renumber(row, numbers), numbers)
        number = _number_of(db, table, new)
        if number is None:
            number, added = db.next_number(table), added + 1
            if table == "context_summaries":
                new = _with_free_key(db, new)
            values = [new[column] for column in columns]
            names = ("rowid", *columns, "seal")
            query = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
            db.execute(query, (number, *values, rows.seal(number, values)))
        elif table in CHANGING:
            new = {**new, "id": number}
            unlike += [new] if _is_unlike(new, _held(db, table, new), table) else []
        known[row["id"]] = number
    return added, known, unlike


def _with_free_key(db: Database, row: Row) -> Row:
    """The row of a compile, without its cache key if another compile of the target has that key."""
    found = db.execute("SELECT 1 FROM context_summaries WHERE cache_key = ?", (row["cache_key"],)).fetchone()
    if found is None:
        return row
    return {**row, "cache_key": None, "status": f"{row['status']}; cache_key: of another answer"}


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
        query = "SELECT id FROM context_summaries WHERE cache_key = ? AND raw_output = ?"
        if (found := db.execute(query, (row["cache_key"], row["raw_output"])).fetchone()) is not None:
            return int(found["id"])
    names = KEYS[table]
    same = (f"{name} = ?" if name in NUMERIC else f"ifnull({name}, '') = ifnull(?, '')" for name in names)
    query = f"SELECT rowid AS id FROM {table} WHERE {' AND '.join(same)}"
    found = db.execute(query, [row[name] for name in names]).fetchone()
    return None if found is None else int(found["id"])


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
    while await target.perform(lambda db: db.index_waiting()):
        pass


def _index_page(db: Database, texts: Sequence[tuple[str, str]]) -> None:
    with db.transaction():
        query = "SELECT id FROM nodes WHERE id IN (SELECT value FROM json_each(?))"
        known = {row[0] for row in db.execute(query, (json.dumps([node for node, _ in texts]),))}
        db.index_messages([one for one in texts if one[0] in known])
