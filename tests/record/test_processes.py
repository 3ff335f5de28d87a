"""Several processes and sudden death: no acknowledged row is ever lost, and the file stays sound."""

from __future__ import annotations

import subprocess
from datetime import timedelta
from pathlib import Path

from context_compiler.record.store import SQLiteStore
from tests.record.entries import NOW, Talk, request
from tests.support.warm import python

WRITER = """
import asyncio, os, random, signal, sys, time
from context_compiler import MemoryStore, SQLiteStore
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
print("ready", flush=True)
sys.stdin.readline()
asyncio.run(write(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""
)

KILLED = (
    WRITER
    + """
draw = random.Random(11)
for round in range(int(sys.argv[2])):
    heard, said = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(said, 1)
        asyncio.run(write(sys.argv[1], f"w{round}", 100_000))
    os.close(said)
    lines, enough = b"", draw.randint(0, 30)
    while lines.count(b"\\n") < enough:
        lines += os.read(heard, 1 if lines.count(b"\\n") == enough - 1 else 4096)
    time.sleep(draw.uniform(0.0, 0.01))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(heard, 4096):
        lines += more
    os.close(heard)
    os.write(1, lines)
"""
)


def writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    """A process that is ready to write; it begins when it is told to."""
    command = [python(), "-c", ONE, str(path), name, str(count)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(*writers: subprocess.Popen[str]) -> None:
    for one in writers:
        assert one.stdout is not None and one.stdout.readline() == "ready\n"


def begin(*writers: subprocess.Popen[str]) -> None:
    for one in writers:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()


async def acknowledged_are_there(path: Path, lines: list[str]) -> None:
    store = SQLiteStore(path)
    views = {record.id: record for record in await store.views()}
    for line in lines:
        number, name, index = line.split()
        record = views[int(number)]
        assert (record.session_id, record.run_id) == (name, f"{name} {index}")
        assert record.compile is not None and record.compile.summary == f"summary {index}"
        assert record.raw_tip is not None and len(await store.chain(record.raw_tip)) > 0
    assert await store.verify() == ()
    await store.close()


async def test_two_processes_lose_no_rows_and_share_what_they_compile(tmp_path: Path):
    path = tmp_path / "system" / "context.db"
    both = writer(path, "left", 60), writer(path, "right", 60)
    wait_for(*both)
    begin(*both)  # the file does not exist yet: both try to create it
    outputs = [process.communicate(timeout=800) for process in both]
    assert [errors for _, errors in outputs] == ["", ""]
    lines = [line for output, _ in outputs for line in output.splitlines()]
    assert len({line.split()[0] for line in lines}) == 120
    await acknowledged_are_there(path, lines)
    store = SQLiteStore(path, read_only=True)
    rows = [row async for row in store.export() if row["table"] == "context_summaries"]
    assert len(rows) == 60
    await store.close()


async def test_a_process_killed_at_any_moment_loses_nothing_acknowledged(tmp_path: Path):
    path = tmp_path / "context.db"
    done = subprocess.run(
        [python(), "-c", KILLED, str(path), "30"], capture_output=True, text=True, timeout=800, check=True
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len({line.split()[1] for line in lines}) > 24, "most are killed after they have written"
    await acknowledged_are_there(path, lines)


FORKED = (
    WRITER
    + """
import threading
path = sys.argv[1]
store, memory = SQLiteStore(path, busy_timeout_ms=5_000), MemoryStore()

async def some(name, count):
    for at in range(count):
        raw = Talk(f"{name} asks {at}", f"{name} is told {at}")
        for place in (store, memory):
            await place.save(request(raw, session_id=name, run_id=f"{name} {at}"))
    await store.prune(keep_last=1_000)

asyncio.run(some("before", 3))
beside = threading.Thread(target=lambda: asyncio.run(some("beside", 60)))
beside.start()
children = []
for number in range(4):
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(some(f"child {number}", 15))
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    children.append(child)
    asyncio.run(some(f"parent {number}", 5))
beside.join()
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
print(codes, len(asyncio.run(store.views())), asyncio.run(store.verify()), len(asyncio.run(memory.views())))
"""
)


def test_a_process_that_forks_while_it_saves_loses_nothing(tmp_path: Path):
    command = [python(), "-W", "error", "-c", FORKED, str(tmp_path / "context.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert (done.stdout, done.stderr) == (f"[0, 0, 0, 0] {3 + 60 + 60 + 20} () {3 + 60 + 20}\n", "")


SHARED_LOOP = """
import asyncio, os, signal, sys
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel
from context_compiler import ContextCompiler

signal.alarm(200)
compiler = ContextCompiler(budget=4_000, model="none", store=sys.argv[1], system=None)
agent, loop = Agent(TestModel(), capabilities=[compiler]), asyncio.new_event_loop()
loop.run_until_complete(agent.run("hello", conversation_id="one"))
child = os.fork()
if child == 0:
    os.close(1), os.close(2), signal.alarm(400)
    loop.run_until_complete(asyncio.sleep(3_600))
for _ in range(40):
    loop.run_until_complete(agent.run("hello", conversation_id="one"))
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
print(len(loop.run_until_complete(compiler.views("one"))))
"""


def test_a_forked_child_that_inherits_a_loop_does_not_wait_for_ever(tmp_path: Path):
    command = [python(), "-c", SHARED_LOOP, str(tmp_path / "context.db")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("41\n", "", 0)


class Interrupted(Talk):
    """A chain beside which another process deletes the conversation `ours`, once its first body is read."""

    path: Path

    def body(self, index: int) -> bytes:
        if not self.read:
            delete = "import asyncio, sys; from context_compiler import SQLiteStore"
            delete += "; asyncio.run(SQLiteStore(sys.argv[1]).delete('ours'))"
            subprocess.run([python(), "-c", delete, self.path], check=True)
        return super().body(index)


async def test_rows_deleted_by_another_process_during_a_copy_are_written_once(tmp_path: Path):
    store, later = SQLiteStore(tmp_path / "context.db"), NOW + timedelta(hours=1)
    await store.save(request(Talk(*"abcd"), session_id="ours"))
    raw = Interrupted(*"abcd", when=later)
    raw.path = store.path
    await store.save(request(raw, Talk(*"abcd", when=later), session_id="theirs"))
    assert await store.transcript("theirs") == raw.bodies
    assert await store.verify() == ()
