"""What was changed behind the store's back is found, and never brings a reader down."""

from __future__ import annotations

import sqlite3
import zlib
from pathlib import Path
from random import Random
from typing import Any

import pytest

from context_compiler.errors import StoreError
from context_compiler.record import rows
from context_compiler.record.store import MemoryStore, SQLiteStore, open_place
from tests.record import entries
from tests.record.entries import compiled, request, talk


def tamper(path: Path, statement: str, *values: object) -> None:
    """Change the file behind the store's back."""
    db = sqlite3.connect(path)
    assert db.execute(statement, values).rowcount != 0
    db.commit()
    db.close()


async def test_malformed_json_in_a_row_is_read_as_nothing(full: SQLiteStore):
    tamper(full.path, "UPDATE views SET ledger = '{broken'")
    tamper(full.path, "UPDATE context_summaries SET summary_json = '[1', sections_dropped = '', usage = 'null'")
    tamper(full.path, "UPDATE context_summaries SET sections_included = '{}', input_payload = summary")
    view = await full.view(1)
    assert view is not None and view.compile is not None
    assert view.ledger == {}
    assert (view.compile.summary_json, view.compile.input_payload, view.compile.usage) == (None, None, {})
    assert (view.compile.sections_included, view.compile.sections_dropped) == ((), ())


async def test_a_damaged_row_is_an_error_and_not_a_crash(full: SQLiteStore):
    tamper(full.path, "UPDATE views SET created_at = 'yesterday' WHERE id = 2")
    with pytest.raises(StoreError, match="verify the record"):
        await full.view(2)
    tamper(full.path, "UPDATE contents SET body = x'00'")
    with pytest.raises(StoreError, match="verify the record"):
        await full.transcript("s")


NODE = "(SELECT id FROM nodes ORDER BY position DESC LIMIT 1)"


TAMPERING = {
    "a body": "UPDATE contents SET body = body || ' ' WHERE typeof(body) = 'text'",
    "a compressed body": "UPDATE contents SET body = substr(body, 1, 40) || x'00' || substr(body, 42)"
    " WHERE typeof(body) = 'blob'",
    "a hash": "UPDATE contents SET hash = upper(hash)",
    "a missing body": "DELETE FROM contents WHERE hash = (SELECT content FROM nodes LIMIT 1)",
    "a node's content": "UPDATE nodes SET content = (SELECT content FROM nodes WHERE position = 1) WHERE position = 0",
    "a node's parent": "UPDATE nodes SET parent = NULL WHERE position = 2",
    "a node's position": f"UPDATE nodes SET position = 7 WHERE id = {NODE}",
    "a node's name": f"UPDATE nodes SET id = 'c1:x' WHERE id = {NODE}",
    "a missing node": "DELETE FROM nodes WHERE position = 1",
    "a request's tools": "UPDATE toolsets SET content = (SELECT max(content) FROM nodes)",
    "missing tools": "DELETE FROM contents WHERE hash = (SELECT content FROM toolsets LIMIT 1)",
    "a missing tip": "UPDATE views SET view_tip = 'c1:x' WHERE id = 1",
    "a covered tip": "UPDATE context_summaries SET covered_tip = 'c1:x'",
    "a raw tip": "UPDATE sessions SET raw_tip = 'c1:x'",
    "a cycle's tip": "UPDATE cycles SET raw_tip = 'c1:x'",
    "a cycle's state": "UPDATE cycles SET state = (SELECT min(hash) FROM contents)",
    "a cycle's session": "UPDATE cycles SET session = 9",
    "a payload": "UPDATE context_summaries SET input_payload = 'x'",
    "a summary": "UPDATE context_summaries SET summary = compiled_prompt",
    "a status": "UPDATE context_summaries SET status = 'failed'",
    "a count": "UPDATE views SET tokens_sent = tokens_sent + 1 WHERE id = 2",
    "a ratio": "UPDATE views SET ratio = 1.2500001 WHERE id = 2",
    "a time": "UPDATE views SET created_at = replace(created_at, '+00', '+01') WHERE id = 2",
    "a row number": "UPDATE views SET id = 3 WHERE id = 2",
    "a session's name": "UPDATE sessions SET session_id = 'z'",
    "a summary of another": "UPDATE views SET summary = 1 WHERE id = 2",
    "a table": "CREATE TRIGGER t AFTER INSERT ON views BEGIN DELETE FROM views; END",
    "a parent that is no text": "UPDATE nodes SET parent = x'ff' WHERE position = 2",
    "instructions that are no text": "UPDATE nodes SET instructions = x'ff' WHERE position = 2",
    "a position that is no number": "UPDATE nodes SET position = 'x' WHERE position = 1",
    "tools that are no text": "UPDATE toolsets SET content = x'ff'",
    "an owner that is no text": "UPDATE sessions SET owner = x'ff'",
    "an indexed text": "UPDATE messages_fts_content SET c0 = 'something else' WHERE id = 1",
    "an indexed node": "UPDATE messages_fts_content SET c1 = 'c1:x' WHERE id = 1",
}


@pytest.mark.parametrize("statement", TAMPERING.values(), ids=TAMPERING)
async def test_tampering_is_found(full: SQLiteStore, statement: str):
    tamper(full.path, statement)
    assert await full.verify() != ()


async def test_a_check_of_recent_requests_reads_them_and_their_messages_alone(full: SQLiteStore):
    old = talk(3, about="an old matter")
    await full.save(request(old, session_id="old", created_at=entries.days_ago(30)))
    assert await full.verify(newer_than_days=7) == ()
    tamper(full.path, "UPDATE views SET status = 'x' WHERE created_at = (SELECT min(created_at) FROM views)")
    tamper(full.path, "UPDATE nodes SET position = 7 WHERE id = ?", old.tip)
    assert await full.verify(newer_than_days=7) == () and len(await full.verify(newer_than_days=31)) > 1


@pytest.mark.parametrize(
    "statement",
    [
        *(TAMPERING[name] for name in ("a hash", "a missing body", "a node's parent", "a node's position")),
        "UPDATE contents SET body = (SELECT min(body) FROM contents) WHERE hash IN (SELECT content FROM nodes)",
        "UPDATE views SET status = 'x'",
    ],
)
async def test_tampering_with_recent_requests_is_found_by_a_check_of_them(full: SQLiteStore, statement: str):
    tamper(full.path, statement)
    assert await full.verify(newer_than_days=1)


async def test_a_row_that_cannot_be_checked_hides_no_other(full: SQLiteStore):
    tamper(full.path, "UPDATE nodes SET parent = x'ff' WHERE position = 2")
    tamper(full.path, "UPDATE nodes SET content = (SELECT content FROM nodes WHERE position = 0) WHERE position = 3")
    tamper(full.path, "UPDATE toolsets SET content = x'ff'")
    defects = " ".join(await full.verify())
    assert defects.count("the name does not match the content and parent") >= 1
    assert "toolsets 1: cannot be read" in defects and "not checked" not in defects


async def test_a_damaged_row_is_named_by_an_export(full: SQLiteStore):
    tamper(full.path, "UPDATE views SET status = CAST(x'ff' AS TEXT) WHERE id = 2")
    with pytest.raises(StoreError, match="views 2: status is not valid UTF-8"):
        [row async for row in full.export()]
    damaged = list[str]()
    assert [row["id"] async for row in full.export(damaged.append) if row["table"] == "views"] == [1]
    assert damaged == ["views 2: status is not valid UTF-8"]


async def test_both_stores_detect_a_tip_that_was_never_recorded(file: SQLiteStore):
    for store in (file, MemoryStore()):
        await store.save(request(talk(1), view_tip="c1:x"))
        (defect,) = await store.verify()
        assert "c1:x is not a known message" in defect


async def test_both_stores_detect_a_compile_of_messages_that_were_never_recorded(file: SQLiteStore):
    for store in (file, MemoryStore()):
        await store.save(request(talk(1), compile=compiled("c1:x")))
        (row,) = await store.summaries("s")
        assert (row.covered_tip, row.summary) == ("", compiled("c1:x").summary) and await store.verify() == ()


async def test_a_cache_key_on_a_failure_is_found_even_when_it_is_sealed(full: SQLiteStore):
    await full.save(request(talk(6), compile=compiled(talk(6).tip, status="failed")))
    tamper(full.path, "UPDATE context_summaries SET cache_key = 'x' WHERE id = 2")
    found = await full.verify()
    assert "context_summaries 2: has a cache key with status 'failed'" in found


async def test_any_tampered_byte_is_detected(full: SQLiteStore):
    """Whatever byte is flipped: either nothing that is read changes, or verifying finds it."""
    sound, honest = full.path.read_bytes(), await dump(full)
    draw = Random(7)
    missed: list[int] = []
    for offset in draw.sample(range(100, len(sound)), 400):
        changed = bytearray(sound)
        changed[offset] ^= 1 << draw.randrange(8)
        full.path.write_bytes(changed)
        try:
            if await dump(full) != honest and not await full.verify():
                missed.append(offset)
        except StoreError:
            pass
        await full.close()
    assert missed == []


async def dump(store: SQLiteStore) -> str:
    try:
        return repr([row async for row in store.export()])
    except StoreError as error:
        return str(error)


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
async def test_a_body_that_unpacks_to_gigabytes_is_named_and_can_be_removed(
    database: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "LARGEST", 1_000_000)
    location = tmp_path / "context.db" if database == "sqlite" else request.getfixturevalue("postgres_url")
    store: Any = open_place(location)
    said = talk(1)
    await store.save(entries.request(said))
    bomb = zlib.compress(bytes(50_000_000))

    def replace_bodies(db: Any) -> None:
        with db.transaction():
            db.execute("UPDATE contents SET body = ?", (bomb,))

    await store.perform(replace_bodies)
    assert any("unpacks to more than 1,000,000 bytes" in defect for defect in await store.verify())
    with pytest.raises(StoreError, match="unpacks to more than"):
        await store.chain(said.tip)
    assert await store.delete((await store.sessions())[0].session_id) == 1
    assert await store.verify() == ()
    await store.close()
