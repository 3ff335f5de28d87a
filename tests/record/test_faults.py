"""What can happen to a file: a fault is a StoreError that says where and what to do, and nothing is half kept."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random

import pytest

from context_compiler.errors import StoreError
from context_compiler.record.store import SQLiteStore
from tests.record.entries import Talk, request, talk
from tests.support.warm import python


async def test_a_lock_held_elsewhere_is_reported(impatient: None, file: SQLiteStore):
    await file.save(request(talk(1)))
    other = sqlite3.connect(file.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for store in (file, SQLiteStore(file.path)):
        with pytest.raises(StoreError, match=r"context\.db: database is locked; another process is writing"):
            await store.save(request(talk(2)))
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


async def test_a_full_disk_is_reported_and_nothing_is_stored_partially(file: SQLiteStore):
    await file.save(request(talk(1)))
    await file.perform(lambda db: db.execute("PRAGMA max_page_count = 60"))
    noise = Talk(*(str(Random(n).random()) for n in range(2_000)))
    with pytest.raises(StoreError, match="full; make room on the disk, or prune"):
        await file.save(request(noise))
    assert await file.verify() == ()
    assert len(await file.views()) == 1
    await file.save(request(talk(2)))


async def test_a_save_that_fails_halfway_stores_nothing(file: SQLiteStore):
    await file.save(request(talk(1)))
    before = [row async for row in file.export()]
    refusal = "CREATE TRIGGER refusal BEFORE INSERT ON views BEGIN SELECT RAISE(ABORT, 'refused'); END"
    await file.perform(lambda db: db.execute(refusal))
    with pytest.raises(StoreError, match="refused"):
        await file.save(request(talk(2)))  # its messages were written
    await file.perform(lambda db: db.execute("DROP TRIGGER refusal"))
    assert [row async for row in file.export()] == before
    await file.save(request(talk(2)))
    assert len(await file.views()) == 2 and await file.verify() == ()


def test_a_process_at_its_file_size_limit_continues(tmp_path: Path):
    script = """
import asyncio, resource, sys
from context_compiler.errors import StoreError
from context_compiler import MemoryStore, SQLiteStore
from tests.record.entries import Talk, request, talk
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
        [python(), "-c", script, tmp_path / "context.db"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    error, rest = done.stdout.splitlines()
    assert error.startswith(f"{tmp_path}/context.db: ") and "disk" in error
    assert rest == "1 ()"


@pytest.mark.parametrize("content", [b"not a database at all " * 100, b"SQLite format 3\x00" + b"\xff" * 5_000])
async def test_a_file_that_is_not_a_database_is_refused_and_unchanged(tmp_path: Path, content: bytes):
    path = tmp_path / "context.db"
    path.write_bytes(content)
    for store in (SQLiteStore(path), SQLiteStore(path, read_only=True)):
        with pytest.raises(StoreError, match=r"context\.db: .*(move it away|give another path)"):
            await store.save(request(talk(1)))
    assert path.read_bytes() == content


async def test_an_overwritten_page_is_an_error_and_is_detected(full: SQLiteStore):
    db = sqlite3.connect(full.path)
    (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'contents'").fetchone()
    db.close()
    with full.path.open("r+b") as file:
        file.seek(4096 * (page - 1))
        file.write(os.urandom(4096))
    with pytest.raises(StoreError, match="damaged: move it away"):
        await full.transcript("s")
    assert await full.verify() != ()


async def test_a_truncated_file_is_an_error(full: SQLiteStore):
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


async def test_a_reader_of_a_deleted_file_raises_an_error(file: SQLiteStore):
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
        with pytest.raises(StoreError, match="give another path|is a folder"):
            await SQLiteStore(path).save(request(talk(1)))


UNPRIVILEGED = """
import asyncio, os, sys
from context_compiler.errors import StoreError
from context_compiler import MemoryStore, SQLiteStore
from tests.record.entries import request, talk
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


async def test_a_read_only_folder_can_be_read_and_refuses_writes(full: SQLiteStore):
    with tempfile.TemporaryDirectory() as name:  # below `tmp_path` nobody else may look
        folder = Path(name)
        shutil.copyfile(full.path, folder / "context.db")
        (folder / "context.db").chmod(0o444)
        folder.chmod(0o555)
        command = [python(), "-c", UNPRIVILEGED, name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        folder.chmod(0o755)
        lines = done.stdout.splitlines()
        assert len(lines) == 4 and lines[0] == "2", (done.returncode, done.stdout, done.stderr)
        assert all(line.startswith(name) and "check" in line for line in lines[1:]), lines
        assert [path.name for path in folder.iterdir()] == ["context.db"]


async def test_a_path_that_no_file_can_have_is_an_error():
    for path in (f"/tmp/{'x' * 300}/context.db", "/tmp/\0/context.db"):
        with pytest.raises(StoreError):
            await SQLiteStore(path).views()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
async def test_a_full_disk_is_named_whatever_finds_it(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    store = SQLiteStore(tmp_path / "new" / "context.db")
    monkeypatch.setattr("context_compiler.paths.os.open", full)
    with pytest.raises(StoreError, match="make room on the disk"):
        await store.save(request(talk(1)))
