"""What can happen to a file: a fault is a StoreError that says where and what to do, and nothing is half kept."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from context_compiler.errors import StoreError
from context_compiler.store import SQLiteStore
from tests.store.entries import Talk, compiled, cycle, request, talk


@pytest.fixture
async def full(file: SQLiteStore) -> AsyncIterator[SQLiteStore]:
    """A closed record with a row in every table."""
    raw = talk(4)
    made = compiled(raw.ids[2], cache_key="k")
    await file.save(request(raw, Talk("a summary", "and", "then"), compile=made, cycle=cycle(raw.ids[2], '{"a": 1}')))
    await file.save(request(raw.then("more", "words"), run_id=None))
    assert await file.verify() == ()
    await file.close()
    yield file


def tamper(path: Path, statement: str, *values: object) -> None:
    """Change the file behind the store's back."""
    db = sqlite3.connect(path)
    assert db.execute(statement, values).rowcount != 0
    db.commit()
    db.close()


async def test_a_lock_held_elsewhere_is_reported_within_half_a_second(file: SQLiteStore):
    await file.save(request(talk(1)))
    other = sqlite3.connect(file.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for store in (file, SQLiteStore(file.path)):
        start = time.monotonic()
        with pytest.raises(StoreError, match=r"context\.db: database is locked; another process is writing"):
            await store.save(request(talk(2)))
        assert time.monotonic() - start < 0.5
        assert len(await store.views()) == 1
        await store.close()
    other.execute("ROLLBACK")
    other.close()
    await file.save(request(talk(2)))
    assert await file.verify() == ()


async def test_a_short_lock_is_waited_for(file: SQLiteStore):
    await file.sessions()
    script = (
        "import sqlite3, sys, time; db = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "db.execute('BEGIN IMMEDIATE'); print('locked', flush=True); time.sleep(0.1)"
    )
    with subprocess.Popen([sys.executable, "-c", script, file.path], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline()
        await file.save(request(talk(1)))
    assert len(await file.views()) == 1


async def test_a_full_disk_is_reported_and_nothing_is_half_kept(file: SQLiteStore):
    await file.save(request(talk(1)))
    await file._run(lambda db: db.execute("PRAGMA max_page_count = 60"))  # pyright: ignore[reportPrivateUsage]
    noise = Talk(*(str(Random(n).random()) for n in range(2_000)))
    with pytest.raises(StoreError, match="full; make room on the disk, or prune"):
        await file.save(request(noise))
    assert await file.verify() == ()
    assert len(await file.views()) == 1
    await file.save(request(talk(2)))


def test_a_process_that_may_write_no_more_goes_on(tmp_path: Path):
    script = """
import asyncio, resource, sys
from context_compiler.errors import StoreError
from context_compiler.store import SQLiteStore
from tests.store.entries import Talk, request, talk
async def main():
    store = SQLiteStore(sys.argv[1])
    await store.save(request(talk(1)))
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
    try:
        await store.save(request(Talk(*(f"{n:032x}" * 5 for n in range(3_000)))))
    except StoreError as error:
        print(error)
    print(len(await store.views()), await store.verify())
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "context.db"], capture_output=True, text=True, timeout=60, check=False
    )
    error, rest = done.stdout.splitlines()
    assert error.startswith(f"{tmp_path}/context.db: ") and "disk" in error
    assert rest == "1 ()"


@pytest.mark.parametrize("content", [b"not a database at all " * 100, b"SQLite format 3\x00" + b"\xff" * 5_000])
async def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes):
    path = tmp_path / "context.db"
    path.write_bytes(content)
    for store in (SQLiteStore(path), SQLiteStore(path, read_only=True)):
        with pytest.raises(StoreError, match=r"context\.db: .*(move it away|give another path)"):
            await store.save(request(talk(1)))
    assert path.read_bytes() == content


async def test_a_page_that_is_overwritten_is_an_error_and_is_found(full: SQLiteStore):
    db = sqlite3.connect(full.path)
    (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'contents'").fetchone()
    db.close()
    with full.path.open("r+b") as file:
        file.seek(4096 * (page - 1))
        file.write(os.urandom(4096))
    with pytest.raises(StoreError, match="damaged: move it away"):
        await full.transcript("s")
    assert await full.verify() != ()


async def test_a_file_cut_short_is_an_error(full: SQLiteStore):
    os.truncate(full.path, 4096 * 3)
    with pytest.raises(StoreError, match="damaged: move it away"):
        await full.save(request(talk(9)))


@pytest.mark.parametrize("side", [True, False])
async def test_a_file_that_is_deleted_while_open_is_made_again(file: SQLiteStore, side: bool):
    await file.save(request(talk(1)))
    for path in file.path.parent.glob("context.db*" if side else "context.db"):
        path.unlink()
    await file.save(request(talk(3)))
    assert [record.turn_index for record in await file.views()] == [2]
    assert await file.transcript("s") == talk(3).bodies
    assert await file.verify() == ()


async def test_a_file_that_is_replaced_while_open_is_followed(file: SQLiteStore, tmp_path: Path):
    other = SQLiteStore(tmp_path / "other.db")
    await other.save(request(talk(2), session_id="other"))
    await other.close()
    await file.save(request(talk(1)))
    os.replace(other.path, file.path)
    await file.save(request(talk(3)))
    assert {info.session_id for info in await file.sessions()} == {"s", "other"}
    assert await file.verify() == ()


async def test_a_reader_whose_file_is_deleted_says_so(file: SQLiteStore):
    await file.save(request(talk(1)))
    reader = SQLiteStore(file.path, read_only=True)
    await reader.views()
    await file.close()
    file.path.unlink()
    with pytest.raises(StoreError, match="there is no record here"):
        await reader.views()


async def test_a_path_that_cannot_be_a_file_is_an_error(tmp_path: Path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "context.db", tmp_path):
        with pytest.raises(StoreError, match="check that"):
            await SQLiteStore(path).save(request(talk(1)))


UNPRIVILEGED = """
import asyncio, os, sys
from context_compiler.errors import StoreError
from context_compiler.store import SQLiteStore
from tests.store.entries import request, talk
if os.getuid() == 0:
    os.setuid(65534)
async def main():
    reader = SQLiteStore(sys.argv[1] + "/context.db", read_only=True)
    print(len(await reader.views()))
    for name in ("context.db", "new.db", "folder/new.db"):
        try:
            await SQLiteStore(sys.argv[1] + "/" + name).save(request(talk(2)))
        except StoreError as error:
            print(error)
asyncio.run(main())
"""


async def test_a_folder_that_may_not_be_written_can_be_read_and_refuses_the_rest(full: SQLiteStore, tmp_path: Path):
    full.path.chmod(0o444)
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o755)
    tmp_path.chmod(0o555)
    command = [sys.executable, "-c", UNPRIVILEGED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    tmp_path.chmod(0o755)
    lines = done.stdout.splitlines()
    assert (lines[0], len(lines)) == ("2", 4), done.stderr
    assert all(line.startswith(str(tmp_path)) and "check" in line for line in lines[1:]), lines
    assert [path.name for path in tmp_path.iterdir()] == ["context.db"]


async def test_malformed_json_in_a_row_is_read_as_nothing(full: SQLiteStore):
    tamper(full.path, "UPDATE views SET ledger = '{broken'")
    tamper(full.path, "UPDATE context_summaries SET summary_json = '[1', sections_dropped = '', usage = 'null'")
    tamper(full.path, "UPDATE context_summaries SET sections_included = '{}', input_payload = summary")
    found = await full.view(1)
    assert found is not None and found.compile is not None
    assert found.ledger == {}
    assert (found.compile.summary_json, found.compile.input_payload, found.compile.usage) == (None, None, {})
    assert (found.compile.sections_included, found.compile.sections_dropped) == ((), ())


async def test_a_damaged_row_is_an_error_and_not_a_crash(full: SQLiteStore):
    tamper(full.path, "UPDATE views SET created_at = 'yesterday' WHERE id = 2")
    with pytest.raises(StoreError, match="verify the record"):
        await full.view(2)
    tamper(full.path, "UPDATE contents SET body = x'00'")
    with pytest.raises(StoreError, match="verify the record"):
        await full.transcript("s")


NODE = "(SELECT id FROM nodes ORDER BY position DESC LIMIT 1)"

TAMPERING = {
    "a body": "UPDATE contents SET body = replace(body, 'weather', 'wheather') WHERE body LIKE 'They%'",
    "a compressed body": "UPDATE contents SET body = substr(body, 1, 40) || x'00' || substr(body, 42)"
    " WHERE typeof(body) = 'blob'",
    "a hash": "UPDATE contents SET hash = upper(hash)",
    "a missing body": "DELETE FROM contents WHERE hash = (SELECT content FROM nodes LIMIT 1)",
    "a node's content": "UPDATE nodes SET content = (SELECT max(content) FROM nodes) WHERE position = 0",
    "a node's parent": "UPDATE nodes SET parent = NULL WHERE position = 2",
    "a node's position": f"UPDATE nodes SET position = 7 WHERE id = {NODE}",
    "a node's name": f"UPDATE nodes SET id = 'c1:x' WHERE id = {NODE}",
    "a missing node": "DELETE FROM nodes WHERE position = 1",
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
    "an indexed text": "UPDATE messages_fts_content SET c0 = 'something else' WHERE id = 1",
    "an indexed node": "UPDATE messages_fts_content SET c1 = 'c1:x' WHERE id = 1",
}


@pytest.mark.parametrize("statement", TAMPERING.values(), ids=TAMPERING)
async def test_tampering_is_found(full: SQLiteStore, statement: str):
    tamper(full.path, statement)
    assert await full.verify() != ()


async def test_a_cache_key_on_a_failure_is_found_even_when_it_is_sealed(full: SQLiteStore):
    await full.save(request(talk(6), compile=compiled(talk(6).tip, status="failed")))
    tamper(full.path, "UPDATE context_summaries SET cache_key = 'x' WHERE id = 2")
    found = await full.verify()
    assert "context_summaries 2: has a cache key with status 'failed'" in found


async def test_a_tampered_byte_anywhere_is_found(full: SQLiteStore):
    """Whatever byte is flipped: either nothing that is read changes, or verifying finds it."""
    sound, honest = full.path.read_bytes(), await dump(full)
    draw = Random(7)
    missed: list[int] = []
    for at in draw.sample(range(100, len(sound)), 400):
        changed = bytearray(sound)
        changed[at] ^= 1 << draw.randrange(8)
        full.path.write_bytes(changed)
        try:
            if await dump(full) != honest and not await full.verify():
                missed.append(at)
        except StoreError:
            pass
        await full.close()
    assert missed == []


async def dump(store: SQLiteStore) -> str:
    try:
        return repr([row async for row in store.export()])
    except StoreError as error:
        return str(error)
