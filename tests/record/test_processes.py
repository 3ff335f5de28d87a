"""Several processes and sudden death: no acknowledged row is ever lost, and the file stays sound."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from context_compiler.record.store import SQLiteStore

WRITER = """
import asyncio, os, random, signal, sys, time
from context_compiler.store import SQLiteStore
from tests.record.entries import Talk, compiled, cycle, request

async def write(path, name, count):
    store = SQLiteStore(path, busy_timeout_ms=5_000)
    raw = Talk(f"{name} begins")
    for at in range(count):
        raw = Talk(*raw.texts[-9:], f"{name} asks {at}", f"{name} is told {at}")
        view = Talk("a summary", *raw.texts[-3:])
        made = compiled(raw.ids[0], cache_key=f"{at}", summary=f"summary {at}", session_id=name)
        saved = await store.save(
            request(raw, view, session_id=name, run_id=f"{name} {at}", compile=made, cycle=cycle(raw.tip, str(at)))
        )
        os.write(1, f"{saved.id} {name} {at}\\n".encode())
"""

ONE = (
    WRITER
    + """
sys.stdin.readline()
asyncio.run(write(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""
)

KILLED = (
    WRITER
    + """
draw = random.Random(11)
for round in range(int(sys.argv[2])):
    child = os.fork()
    if child == 0:
        asyncio.run(write(sys.argv[1], f"w{round}", 100_000))
    time.sleep(draw.uniform(0.0, 0.4))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""
)


def writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    """A process that is ready to write; it begins when it is told to."""
    command = [sys.executable, "-c", ONE, str(path), name, str(count)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def begin(*writers: subprocess.Popen[str]) -> None:
    for one in writers:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()


async def acknowledged_are_there(path: Path, lines: list[str]) -> None:
    store = SQLiteStore(path)
    views = {record.id: record for record in await store.views()}
    for line in lines:
        number, name, at = line.split()
        record = views[int(number)]
        assert (record.session_id, record.run_id) == (name, f"{name} {at}")
        assert record.compile is not None and record.compile.summary == f"summary {at}"
        assert record.raw_tip is not None and len(await store.chain(record.raw_tip)) > 0
    assert await store.verify() == ()
    await store.close()


async def test_two_processes_lose_no_rows_and_share_what_they_compile(tmp_path: Path):
    path = tmp_path / "system" / "context.db"
    both = writer(path, "left", 150), writer(path, "right", 150)
    time.sleep(2)
    begin(*both)  # the file does not exist yet: both try to create it
    outputs = [one.communicate(timeout=60) for one in both]
    assert [errors for _, errors in outputs] == ["", ""]
    lines = [line for output, _ in outputs for line in output.splitlines()]
    assert len({line.split()[0] for line in lines}) == 300
    await acknowledged_are_there(path, lines)
    store = SQLiteStore(path, read_only=True)
    rows = [row async for row in store.export() if row["table"] == "context_summaries"]
    assert len(rows) == 150
    await store.close()


async def test_a_process_killed_at_any_moment_loses_nothing_acknowledged(tmp_path: Path):
    path = tmp_path / "context.db"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(path), "50"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len({line.split()[1] for line in lines}) > 20, "most lived long enough to write"
    await acknowledged_are_there(path, lines)
