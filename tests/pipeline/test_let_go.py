"""What has ended, in whatever way, leaves nothing behind: no write, no open file, no state in memory."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sqlite3
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from context_compiler.pipeline import RunState, SQLiteRuns, run_pipeline
from context_compiler.pipeline.shell import run_shell
from tests.pipeline.playing import graph
from tests.pipeline.test_handlers import shell
from tests.pipeline.test_kept import INFO, STATE

TEXT = graph("start->done")
OPEN = Path("/proc/self/fd")


@contextmanager
def locked(file: Path) -> Generator[None]:
    """Let whatever writes to a file wait for a tenth of a second."""
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        release = asyncio.get_running_loop().call_later(0.1, other.rollback)
        yield
        release.cancel()


async def test_a_cancelled_run_writes_nothing_after_its_release(tmp_path: Path) -> None:
    file = tmp_path / "r.db"
    store = SQLiteRuns(file)
    assert await store.runs() == []
    await store.close()
    with locked(file):
        task = asyncio.create_task(run_pipeline(TEXT, runs=file))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}
    there = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    await asyncio.sleep(0.2)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == there and "r.db-wal" not in there


async def test_a_state_whose_save_was_cancelled_does_not_leak_into_the_next(tmp_path: Path) -> None:
    store = SQLiteRuns(tmp_path / "r.db")
    async with store.own("r"):
        await store.begin(INFO, {})
        await store.save(STATE)
        with locked(store.path):
            task = asyncio.create_task(store.save(replace(STATE, branches={"p.1:x": {}})))
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await store.save(STATE)
            assert await store.load("r") == STATE
    await store.close()


async def test_a_store_keeps_no_state_of_ended_runs(tmp_path: Path) -> None:
    store = SQLiteRuns(tmp_path / "r.db")
    gc.freeze()  # what was there before need not be looked through
    for number in range(3):
        await run_pipeline(TEXT, runs=store, run_id=f"let-go-{number}")
    held: list[RunState] = []
    for _ in range(500):  # the thread of the database may still be letting go of what it did last
        gc.collect()
        held = [item for item in gc.get_objects() if isinstance(item, RunState) and item.run_id.startswith("let-go-")]
        if not held:
            break
        await asyncio.sleep(0.02)
    assert not held
    await store.close()


@pytest.mark.skipif(not OPEN.is_dir() or not hasattr(os, "setsid"), reason="open files cannot be counted here")
async def test_a_command_that_leaves_a_background_process_is_not_waited_for_and_leaks_no_pipe(tmp_path: Path) -> None:
    left = tmp_path / "left"
    before = len(list(OPEN.iterdir()))
    command = f"setsid sh -c 'echo $$ > {left}; sleep 300; rm {left}' & sleep 600"
    ends = asyncio.create_task(run_pipeline(shell(command)))
    while not left.is_file() or not left.read_text():
        await asyncio.sleep(0.02)
    ends.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ends
    assert left.exists(), "it was waited for"
    while len(list(OPEN.iterdir())) > before:
        assert left.exists(), "a pipe stays open"
        await asyncio.sleep(0.02)
    os.killpg(int(left.read_text()), signal.SIGKILL)


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
async def test_a_command_that_is_cancelled_while_it_starts_is_not_waited_for(steps: int, tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    ends = asyncio.create_task(run_shell(f"sleep 20; touch {ended}"))
    for _ in range(steps):
        await asyncio.sleep(0)
    time.sleep(0.05)  # the command is under way before the loop hears of it
    ends.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ends
    assert not ended.exists(), "it was waited for"
