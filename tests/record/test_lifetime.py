"""A connection serves one event loop, its tasks share it, and no program is kept from ending by it."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from weakref import WeakSet

import pytest

from context_compiler.errors import StoreError
from context_compiler.record.store import MemoryStore, SQLiteStore
from tests.record.entries import Talk, ask, compiled, cycle, request, talk


def alone(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own that must end by itself."""
    command = [sys.executable, "-W", "error", "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_a_store_outlives_the_event_loop_that_opened_it(tmp_path: Path):
    store = SQLiteStore(tmp_path / "context.db")
    for turn in range(1, 4):
        asyncio.run(store.save(request(talk(turn))))
    asyncio.run(store.close())
    assert ask(store.path, "SELECT count(*) FROM views") == [(3,)]
    assert [path.name for path in tmp_path.iterdir()] == ["context.db"]
    assert no_threads()


def test_several_threads_with_loops_of_their_own_share_one_connection(tmp_path: Path):
    class Watched(Talk):
        def body(self, index: int) -> bytes:
            seen.append(len(threads()))
            return super().body(index)

    async def some(name: str) -> None:
        for turn in range(12):
            await store.save(request(Watched(f"{name} {turn}"), session_id=name, run_id=str(turn)))

    seen: list[int] = []
    store = SQLiteStore(tmp_path / "context.db", busy_timeout_ms=0)
    workers = [threading.Thread(target=lambda name=name: asyncio.run(some(name))) for name in "abcdefgh"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    asyncio.run(store.close())
    assert seen == [1] * 96
    assert ask(store.path, "SELECT count(*) FROM views") == [(96,)]


@pytest.fixture(autouse=True)
def earlier() -> Iterator[None]:
    """Threads of tests before this one, which left stores to the garbage collector."""
    EARLIER.update(threading.enumerate())
    yield
    EARLIER.clear()


EARLIER: WeakSet[threading.Thread] = WeakSet()


def threads() -> list[str]:
    """Threads that sit on a connection of this test."""
    return [one.name for one in threading.enumerate() if "connection_worker" in one.name and one not in EARLIER]


def no_threads() -> bool:
    """Whether they end; a thread answers before it does."""
    for _ in range(500):
        if not threads():
            return True
        time.sleep(0.01)
    return False


async def test_a_deleted_store_closes_its_file(tmp_path: Path):
    store = SQLiteStore(tmp_path / "context.db")
    await store.save(request(talk(1)))
    assert len(threads()) == 1
    del store
    gc.collect()
    assert no_threads()
    assert [path.name for path in tmp_path.iterdir()] == ["context.db"]


async def test_concurrent_tasks_share_one_connection(file: SQLiteStore):
    class Watched(Talk):
        def body(self, index: int) -> bytes:
            seen.append(len(threads()))
            return super().body(index)

    seen: list[int] = []
    await asyncio.gather(*(file.save(request(Watched(f"task {number}"), run_id=str(number))) for number in range(8)))
    assert seen == [1] * 8


async def test_closing_waits_for_the_saves_before_it(file: SQLiteStore):
    await asyncio.gather(file.save(request(talk(1))), file.close(), file.save(request(talk(2))), file.close())
    assert len(await file.views()) == 2


def test_a_loop_may_end_in_the_middle_of_a_save(tmp_path: Path):
    store = SQLiteStore(tmp_path / "context.db", busy_timeout_ms=500)
    asyncio.run(store.save(request(talk(1))))
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    async def leave_in_the_middle() -> None:
        pending.append(asyncio.ensure_future(store.save(request(talk(2)))))
        await asyncio.sleep(0.1)

    pending: list[asyncio.Future[object]] = []
    asyncio.run(leave_in_the_middle())
    assert pending[0].cancelled()
    other.close()
    asyncio.run(store.save(request(talk(3))))
    assert len(asyncio.run(store.views())) == 2
    asyncio.run(store.close())
    assert no_threads()


def test_a_loop_may_end_right_after_a_failure(tmp_path: Path):
    for _ in range(20):
        with pytest.raises(StoreError):
            asyncio.run(SQLiteStore(tmp_path).save(request(talk(1))))
    assert no_threads()


async def test_a_cancelled_save_is_complete_or_absent(file: SQLiteStore):
    for turn in range(1, 30):
        task = asyncio.ensure_future(file.save(request(talk(turn), compile=compiled(), cycle=cycle(talk(turn).tip))))
        await asyncio.sleep(turn * 0.0001)
        task.cancel()
        await asyncio.wait([task])
    assert await file.verify() == ()
    await file.save(request(talk(30)))
    assert (await file.views(limit=1))[0].turn_index == 29


async def test_an_export_is_a_snapshot_and_does_not_block_saving(file: SQLiteStore):
    for turn in range(1, 4):
        await file.save(request(talk(turn)))
    seen: list[object] = []
    async for row in file.export():
        if not seen:
            await file.save(request(talk(9), session_id="meanwhile"))
        seen.append(row["table"])
    assert seen.count("views") == 3
    assert len(await file.views()) == 4


async def test_an_export_can_be_left_halfway(file: SQLiteStore):
    await file.save(request(talk(3)))
    rows = file.export()
    await anext(rows)
    await rows.aclose()
    assert await file.delete("s") == 1


SCRIPT = """
import asyncio, sys
from context_compiler import SQLiteStore
from tests.record.entries import ask, request, talk
store = SQLiteStore(sys.argv[1])
asyncio.run(store.save(request(talk(2))))
print("saved", flush=True)
"""


def test_a_program_ends_without_closing_its_store(tmp_path: Path):
    done = alone(SCRIPT, tmp_path / "context.db")
    assert (done.returncode, done.stdout, done.stderr) == (0, "saved\n", "")
    assert [path.name for path in tmp_path.iterdir()] == ["context.db"], "closed at exit"


def test_a_program_that_raises_ends(tmp_path: Path):
    done = alone(SCRIPT + "raise SystemExit(3)", tmp_path / "context.db")
    assert (done.returncode, done.stderr) == (3, "")


def test_a_program_with_an_open_loop_ends(tmp_path: Path):
    script = SCRIPT.replace("asyncio.run(", "loop = asyncio.new_event_loop(); loop.run_until_complete(")
    done = alone(
        "import warnings; warnings.simplefilter('ignore', ResourceWarning)\n" + script, tmp_path / "context.db"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "saved\n", "")


IN_MEMORY = """
import asyncio, gc, threading
from context_compiler import MemoryStore
from tests.record.entries import request, talk
store, dropped = MemoryStore(), MemoryStore()
asyncio.run(store.save(request(talk(2))))
asyncio.run(dropped.save(request(talk(2))))
del dropped
gc.collect()
print(threading.active_count())
"""


def test_a_store_in_memory_has_no_thread_and_needs_no_closing():
    done = alone(IN_MEMORY)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_several_threads_use_one_store_in_memory():
    store = MemoryStore()

    async def some(name: str) -> None:
        for turn in range(1, 11):
            await store.save(request(talk(turn), session_id=name))

    workers = [threading.Thread(target=lambda name=name: asyncio.run(some(name))) for name in ("a", "b", "c")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(len(asyncio.run(store.views(name))) for name in ("a", "b", "c")) == [10, 10, 10]
    assert asyncio.run(store.verify()) == ()


async def test_a_store_in_memory_frees_the_space_of_deleted_data():
    store = MemoryStore()
    await store.save(request(talk(2)))
    small = await store.perform(pages)
    await store.save(request(Talk(*(str(Random(n).random()) * 100 for n in range(500))), session_id="large"))
    assert await store.perform(pages) > 3 * small
    await store.delete("large")
    assert await store.perform(pages) <= small + 5


def pages(db: sqlite3.Connection) -> int:
    return db.execute("PRAGMA page_count").fetchone()[0]
