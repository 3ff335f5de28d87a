"""What a run leaves in its folder is there from the beginning, at each step, and grows with what changes alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from context_compiler.errors import PipelineError
from context_compiler.pipeline import (
    Event,
    Outcome,
    RunConfig,
    RunState,
    Stage,
    open_runs,
    read_checkpoint,
    run_pipeline,
)
from context_compiler.pipeline.checkpoint import CheckpointFolder
from context_compiler.pipeline.state import Hashes, Lineage
from context_compiler.pipeline.stores.files import FileRuns
from tests.pipeline.conftest import Open
from tests.pipeline.playing import graph, play
from tests.pipeline.test_kept import INFO, full_disk
from tests.support.warm import python

STATE = RunState(lineage=Lineage(root_run_id="r"), graph=Hashes(snapshot="x"), next_node="a")


def grown(state: RunState) -> RunState:
    """A state after one more stage."""
    step = state.sequence + 1
    name = f"s{step % 7}"
    return replace(
        state,
        sequence=step,
        current_node=name,
        completed=(*state.completed, name),
        outcomes={**state.outcomes, name: Outcome(notes=f"step {step}")},
        context={**{key: value for key, value in state.context.items() if key != f"k{step - 5}"}, f"k{step}": step},
        logs=(*state.logs, {"node": name, "notes": "x" * 1_000}),
    )


def test_a_long_run_is_saved_in_time_proportional_to_what_changes(tmp_path: Path) -> None:
    folder, state, written = CheckpointFolder(tmp_path), STATE, set[int]()
    for step in range(500):
        state = grown(state)
        folder.save(state)
        checkpoint = (tmp_path / "checkpoint.json").stat()
        written.add(checkpoint.st_mtime_ns)
        appended = sum(path.stat().st_size for path in tmp_path.glob("steps-*.jsonl"))
        assert appended < 2 * checkpoint.st_size + 10_000  # what is read and replayed does not grow with all steps
        if step in (3, 63, 64, 65, 66, 200, 499):
            assert read_checkpoint(tmp_path) == state
    assert len(written) < 80  # each step while it is small, and then whenever it has doubled
    assert len(list(tmp_path.iterdir())) == 2


def appending(tmp_path: Path) -> tuple[CheckpointFolder, RunState, Path]:
    """A folder whose last step was appended, its state, and the file of its steps."""
    folder, state = CheckpointFolder(tmp_path), STATE
    while not (steps := list(tmp_path.glob("steps-*.jsonl"))):
        state = grown(state)
        folder.save(state)
    return folder, state, steps[0]


def test_a_step_truncated_by_a_crash_is_skipped(tmp_path: Path) -> None:
    folder, state, steps = appending(tmp_path)
    folder.save(later := grown(state))
    whole = steps.read_bytes()
    steps.write_bytes(whole[:-5])
    assert read_checkpoint(tmp_path) == state
    steps.write_bytes(whole)
    CheckpointFolder(tmp_path).save(grown(later))  # another process goes on
    assert read_checkpoint(tmp_path) == grown(later)


def test_a_full_disk_leaves_the_steps_before(tmp_path: Path) -> None:
    folder, state, steps = appending(tmp_path)
    with full_disk(steps.stat().st_size + 100), pytest.raises(PipelineError, match="is intact"):
        folder.save(grown(state))
    assert read_checkpoint(tmp_path) == state
    folder.save(state := grown(state))  # not after the part of a line
    assert read_checkpoint(tmp_path) == state
    folder.save(state := grown(state))
    with full_disk(2_000), pytest.raises(PipelineError, match="is intact"):
        CheckpointFolder(tmp_path).save(grown(state))
    assert read_checkpoint(tmp_path) == state


def test_steps_left_of_an_earlier_checkpoint_by_a_crash_are_ignored(tmp_path: Path) -> None:
    folder, state, steps = appending(tmp_path)
    checkpoint, earlier = (tmp_path / "checkpoint.json").read_bytes(), b""
    while checkpoint == (tmp_path / "checkpoint.json").read_bytes():
        earlier = steps.read_bytes()
        folder.save(state := grown(state))
    steps.write_bytes(earlier)  # as if the process had died before it was removed
    assert read_checkpoint(tmp_path) == state


async def test_a_store_that_owns_a_run_again_continues_from_what_another_saved(tmp_path: Path) -> None:
    here, there, state = FileRuns(tmp_path), FileRuns(tmp_path), STATE
    async with here.own("r"):
        while not list(tmp_path.rglob("steps-*.jsonl")):
            await here.save(state := grown(state))
    for store in (there, here):
        async with store.own("r"):
            await store.save(state := grown(state))
            assert await store.load("r") == state


async def test_the_folder_of_an_attempt_is_there_before_its_first_stage(tmp_path: Path) -> None:
    seen: list[bool] = []

    def work(stage: Stage) -> Outcome:
        attempt = stage.context.get("internal.lineage.attempt")
        root = tmp_path / "logs" if attempt == 1 else tmp_path / "logs" / "attempt-2"
        seen.append((root / "artifacts").is_dir())
        return Outcome(status="fail" if attempt == 1 else "success")  # type: ignore[arg-type]

    text = graph(
        'a; start->a; a->done [condition="outcome=success"]; a->a [condition="outcome=fail" loop_restart=true]'
    )
    result = await run_pipeline(text, handlers={"codergen": work}, logs_root=tmp_path / "logs")
    assert result.ok and seen == [True, True]


async def test_a_checkpoint_is_written_at_each_step_with_a_database_too(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    def listen(event: Event) -> None:
        state = read_checkpoint(tmp_path / "logs")
        if event.kind == "checkpoint_saved" and state is not None:
            seen.append((event.data["number"], state.sequence))

    options = {"runs": tmp_path / "runs.db", "logs_root": tmp_path / "logs"}
    await run_pipeline(graph("a; b; start->a->b->done"), simulate=True, on_event=listen, **options)
    assert seen == [(1, 1), (2, 2), (3, 3), (4, 4)]


async def test_the_manifest_has_name_hash_and_size_of_the_graph(tmp_path: Path) -> None:
    text = graph("a; start->a->done", attrs='label="A fine label";')
    result, _ = await play(text, runs=tmp_path, run_id="r")
    document = json.loads((tmp_path / "r" / "checkpoint.json").read_text())
    manifest = json.loads((tmp_path / "r" / "manifest.json").read_text())
    assert document["graph_dot_source_size"] == manifest["source_size"] == len(text)
    assert document["graph_snapshot_size"] == (tmp_path / "r" / "graph.normal.dot").stat().st_size
    assert document["timestamp"] == document["metadata"]["timestamp"] and manifest["name"] == "g"
    assert read_checkpoint(tmp_path / "r") == result


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        (0, {"outcome": "success", "preferred_label": "mend"}, "b"),
        (0, {"outcome": "fail", "failure_reason": "no"}, "t: no"),
        (3, {"outcome": "success"}, "t: exit code 3"),
        (0, {"outcome": "success", "context_updates": {"graph.goal": "x", "found": 1}}, "c"),
    ],
)
async def test_a_tool_can_write_its_status_file_into_its_stage_folder(
    code: int, status: dict[str, str], said: str, tmp_path: Path
) -> None:
    (tmp_path / "status.json").write_text(json.dumps(status))
    command = f"cp {tmp_path}/status.json $STAGE_FOLDER/status.json; exit {code}"
    text = graph(
        f't [shape=parallelogram tool_command="{command}"]; b; c; start->t; t->b [label=mend]; t->c [weight=1]; '
        "b->done; c->done"
    )
    result, script = await play(text, logs_root=tmp_path / "logs")
    assert (script.seen[0] if script.seen else result.failure_reason) == said
    assert result.context["graph.goal"] == "Ship it" and "tool.exit_code" in result.context


async def test_a_run_without_an_owner_is_stopped(open_store: Open) -> None:
    store = open_store()
    async with store.own("r"):
        await store.begin(INFO, {})
        await store.save(STATE)
        assert [info.status for info in await store.runs()] == ["running"]
    assert [info.status for info in await store.runs()] == ["stopped"]
    await store.save(replace(STATE, status="success", next_node=None))
    assert [info.status for info in await store.runs()] == ["success"]


KILLED = """
import sys
from context_compiler.pipeline import run_pipeline
import asyncio
asyncio.run(run_pipeline(sys.argv[1], runs=sys.argv[2], run_id="r"))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="process groups are of POSIX")
async def test_processes_of_a_killed_engine_are_killed_too(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ready")
    os.mkfifo(tmp_path / "held")
    # whoever opens `held` holds it until it dies; its own child too
    command = f"exec 8>{tmp_path}/held; sleep 600 & echo $$ > {tmp_path}/ready; wait; sleep 600"
    text = graph(f't [shape=parallelogram tool_command="{command}"]; start->t->done')
    with subprocess.Popen([sys.executable, "-c", KILLED, text, tmp_path / "runs.db"]) as engine:
        with open(tmp_path / "held", "rb") as held:
            with open(tmp_path / "ready") as ready:
                assert int(ready.read())
            engine.send_signal(signal.SIGKILL)
            engine.wait()
            assert held.read() == b""  # comes back when nobody holds it any more
    store = open_runs(RunConfig(runs=tmp_path / "runs.db"))
    assert [info.status for info in await store.runs()] == ["stopped"]
    await store.close()


ONE_CONVERSATION = """
import asyncio, sys
from pathlib import Path
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart
from context_compiler.pipeline import Outcome, run_pipeline

GRAPH = '''digraph g { default_fidelity=full; default_thread_id=one
start [shape=Mdiamond]; done [shape=Msquare]; work [prompt="Do it"]
start -> work; work -> work [condition="context.left!=0"]; work -> done [condition="context.left=0"] }'''
folder, visits = Path(sys.argv[1]), int(sys.argv[3])
where = {"logs_root": folder} if sys.argv[2] == "folder" else {"runs": folder / "runs.db"}

def work(stage):
    if stage.node.name == "work":
        said = ModelRequest(parts=[UserPromptPart("Do it. " * 20)]), ModelResponse(parts=[TextPart("Done. " * 60)])
        stage.session.add("work", said)
    return Outcome(context_updates={"left": visits - stage.visit}, notes="word " * 60)

def written():
    return int(Path("/proc/self/io").read_text().partition("wchar: ")[2].split()[0])

before = written()
state = asyncio.run(run_pipeline(GRAPH, handlers={"codergen": work}, max_visits=visits, max_steps=9 * visits, **where))
assert state.ok and len(state.threads["one"].messages) == 2 * visits, state.failure_reason
print(written() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="no /proc/self/io, which counts what a process writes")
@pytest.mark.parametrize("where", ["folder", "sqlite"])
def test_saving_a_loop_in_one_conversation_costs_in_proportion_to_what_it_adds(tmp_path: Path, where: str) -> None:
    written: list[int] = []
    for visits in (25, 100):
        folder = tmp_path / str(visits)
        folder.mkdir()
        command = [python(), "-c", ONE_CONVERSATION, str(folder), where, str(visits)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        written.append(int(done.stdout))
    assert written[1] < 5 * written[0], written  # 4 if linear, 16 if each visit wrote the conversation again
