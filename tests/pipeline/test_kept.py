"""What is kept of a run comes back as it was, from every store; what cannot be kept leaves what was there before."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from context_compiler.errors import PipelineError
from context_compiler.ids import text_hash
from context_compiler.pipeline import (
    Event,
    FileRuns,
    MemoryRuns,
    Outcome,
    RunInfo,
    RunState,
    SQLiteRuns,
    StageStatus,
    read_checkpoint,
    run_pipeline,
)
from context_compiler.pipeline.checkpoint import CheckpointFolder, checkpoint_document, parse_checkpoint
from context_compiler.pipeline.state import Hashes, Lineage, Thread
from context_compiler.pipeline.stores import own_run
from tests.pipeline.conftest import Open
from tests.pipeline.playing import graph
from tests.support.warm import kill, python

STATE = RunState(
    lineage=Lineage(root_run_id="r", attempt=2, parent_run_id="r"),
    graph=Hashes(source="aa", snapshot="bb"),
    next_node="b",
    how="edge",
    edge=3,
    current_node="a",
    completed=("start", "a", "a"),
    outcomes={
        "a": Outcome(status=StageStatus.PARTIAL_SUCCESS, preferred_label="x", suggested_next_ids=("b",), notes="ok")
    },
    retries={"a": 2},
    visits={"start": 1, "a": 2},
    recheck=("g",),
    fidelity="full",
    thread="t",
    given={"k": 1},
    context={"k": {"deep": [1, 2.5, None, True, "ü"]}},
    logs=({"node": "a", "outcome": "success"},),
    artifacts={"a.1.x": {"name": "x", "size_bytes": 3, "stored_at": "2026-01-01T00:00:00+00:00", "data": "x"}},
    threads={"t": Thread(messages=({"kind": "request"}, {"kind": "response"}), marks=(("a", 0),))},
    sequence=7,
)
INFO = RunInfo(run_id="r", name="g", goal="", started_at="2026-01-01", updated_at="2026-01-01", status="running")


def test_checkpoint_round_trip() -> None:
    assert parse_checkpoint(json.loads(json.dumps(checkpoint_document(STATE))), where="here") == STATE


async def test_checkpoint_round_trip_through_every_store(open_store: Open) -> None:
    store = open_store()
    async with store.own("r"):
        await store.begin(INFO, {})
        for state in (
            replace(STATE, completed=(), logs=(), context={}, threads={}, artifacts={}, outcomes={}),
            STATE,
            replace(STATE, completed=(*STATE.completed, "b"), context={**STATE.context, "new": 1}),
            replace(STATE, context={"other": 1}, threads={"t": Thread(messages=STATE.threads["t"].messages[:1])}),
            replace(STATE, completed=("start",), next_node=None, status="fail", failure_reason="because"),
        ):
            await store.save(state)
            other = open_store()
            assert await other.load("r") == state
            await other.close()
    await store.close()


async def test_a_store_keeps_events_graphs_and_a_list_of_runs(open_store: Open) -> None:
    store, dot = open_store(), "digraph g {}"
    info = replace(INFO, source=text_hash(dot))
    async with store.own("r"):
        await store.begin(info, {text_hash(dot): dot})
        for number in (1, 2, 3):
            await store.add("r", Event(kind="stage_started", run_id="r", sequence=number, at="now", data={"n": number}))
        await store.save(STATE)
    assert [event.sequence for event in await store.events("r", after=1)] == [2, 3]
    assert (await store.events("r"))[0].data == {"n": 1}
    assert await store.content(text_hash(dot)) == dot
    assert await store.content("unknown") is None
    assert await store.load("unknown") is None and await store.events("unknown") == []
    (listed,) = await store.runs()
    assert (listed.run_id, listed.current_node, listed.completed, listed.attempt) == ("r", "a", 7, 2)
    await store.close()


async def test_a_run_has_one_owner(open_store: Open) -> None:
    first, second = open_store(), open_store()
    async with first.own("r"):
        with pytest.raises(PipelineError, match="under way elsewhere"):
            async with second.own("r"):
                pass
        async with second.own("other"):
            pass
    async with second.own("r"):
        pass


async def test_a_run_can_begin_only_once(open_store: Open) -> None:
    store = open_store()
    await store.begin(INFO, {})
    with pytest.raises(PipelineError, match="already"):
        await store.begin(INFO, {})
    await store.close()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("{", "damaged"),
        ("[]", "not a checkpoint"),
        ("{}", "damaged"),
        (json.dumps({**checkpoint_document(STATE), "metadata": {"schema_version": 2}}), "newer version"),
        (json.dumps({**checkpoint_document(STATE), "metadata": {"schema_version": "x"}}), "unknown version"),
        (json.dumps({**checkpoint_document(STATE), "context": []}), "damaged"),
        (json.dumps({**checkpoint_document(STATE), "node_outcomes": {"a": {}}}), "damaged"),
        ("[" * 100_000, "damaged"),
    ],
    ids=["half", "a list", "empty", "newer", "version of letters", "no context", "an outcome without a status", "deep"],
)
def test_an_unreadable_checkpoint_is_refused_with_the_reason(tmp_path: Path, body: str, why: str) -> None:
    (tmp_path / "checkpoint.json").write_text(body)
    with pytest.raises(PipelineError, match=why):
        read_checkpoint(tmp_path)


@contextmanager
def full_disk(size: int) -> Generator[None]:
    """No file may grow beyond so many bytes."""
    resource, signal = pytest.importorskip("resource"), pytest.importorskip("signal")
    former, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, former)


async def test_files_of_a_run_are_readable_only_by_their_owner(open_store: Open, tmp_path: Path) -> None:
    former = os.umask(0o022)
    try:
        await run_pipeline(graph("a; start->a->done"), runs=open_store(), run_id="r", simulate=True)
    finally:
        os.umask(former)
    modes = {str(path): path.stat().st_mode & 0o077 for path in tmp_path.rglob("*") if path.is_file()}
    assert not any(modes.values()), modes


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    CheckpointFolder(tmp_path).save(STATE)
    with full_disk(2_000), pytest.raises(PipelineError, match="the previous checkpoint is intact"):
        CheckpointFolder(tmp_path).save(replace(STATE, context={"big": "x" * 10_000}))
    assert read_checkpoint(tmp_path) == STATE
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.json"]


async def test_a_full_disk_leaves_the_state_before_in_a_database(tmp_path: Path) -> None:
    store = SQLiteRuns(tmp_path / "runs.db")
    await store.begin(INFO, {})
    await store.save(STATE)
    with full_disk(1_000_000), pytest.raises(PipelineError, match="what was saved before is intact"):
        await store.save(replace(STATE, context={"big": "x" * 2_000_000}))
    assert await store.load("r") == STATE
    await store.save(replace(STATE, context={"small": 1}))
    await store.close()
    again = SQLiteRuns(tmp_path / "runs.db")
    assert await again.load("r") == replace(STATE, context={"small": 1})
    await again.close()


async def test_the_event_after_a_full_disk_is_kept_in_a_file(tmp_path: Path) -> None:
    store = FileRuns(tmp_path)
    await store.begin(INFO, {})
    events = [Event(kind="k", run_id="r", sequence=number, at="", data={"x": "y" * 99}) for number in range(1, 5)]
    await store.add("r", events[0])
    size = (store.folder("r") / "events.jsonl").stat().st_size
    with full_disk(size + 60), pytest.raises(PipelineError):
        await store.add("r", events[1])
    for event in events[2:]:
        await store.add("r", event)
    assert [event.sequence for event in await store.events("r")] == [1, 3, 4]


async def test_a_run_that_cannot_be_saved_stops_with_a_clear_error() -> None:
    class Full(MemoryRuns):
        async def save(self, state: RunState) -> None:
            if state.current_node == "b":
                raise PipelineError("runs.db: database or disk is full; what was saved before is intact")
            await super().save(state)

    runs = Full()
    with pytest.raises(PipelineError, match="disk is full"):
        await run_pipeline(graph("a; b; start->a->b->done"), runs=runs, run_id="r", simulate=True)
    state = await runs.load("r")
    assert state is not None and state.current_node == "a"


OWNING = """
import sys, time
from pathlib import Path
from context_compiler.pipeline.stores import own_run
with own_run(Path(sys.argv[1]), "r"):
    print("owned", flush=True)
    time.sleep(3_600)
"""


def test_a_process_that_is_killed_owns_no_run(tmp_path: Path) -> None:
    path = tmp_path / "runs" / ".lock"
    with subprocess.Popen([python(), "-c", OWNING, path], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline()
        with pytest.raises(PipelineError, match="under way elsewhere"), own_run(path, "r"):
            pass
        kill(other)
    with own_run(path, "r"):
        assert path.exists()
    assert not path.exists()


FORKING = """
import asyncio, os, sys
from context_compiler.pipeline import SQLiteRuns
runs = SQLiteRuns(sys.argv[1])
open_files = lambda: [name for name in map(os.readlink, (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")
    if os.path.exists(f"/proc/self/fd/{fd}"))) if "runs.db" in name]
asyncio.run(runs.runs())
assert open_files()
child = os.fork()
if child == 0:
    inherited = open_files()
    asyncio.run(runs.runs())
    os._exit(len(inherited))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), asyncio.run(runs.runs()))
asyncio.run(runs.close())
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files cannot be listed on this system")
def test_a_forked_process_has_no_run_store_open(tmp_path: Path) -> None:
    command = [python(), "-c", FORKING, str(tmp_path / "runs.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.stdout, done.stderr) == ("0 []\n", "")
