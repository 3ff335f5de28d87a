"""The regression suite of state: what is kept comes back, and a run that is taken up ends as if it had not stopped."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from context_compiler.errors import GraphError, PipelineError
from context_compiler.ids import text_hash
from context_compiler.pipeline import (
    ArtifactStore,
    ContextStore,
    FileRuns,
    MemoryRuns,
    Outcome,
    RunState,
    RunStore,
    SQLiteRuns,
    Stage,
    read_checkpoint,
    resume_pipeline,
    run_pipeline,
)
from context_compiler.pipeline.checkpoint import checkpoint_document, state_of, write_checkpoint
from context_compiler.pipeline.events import Event
from context_compiler.pipeline.runs import RunInfo
from context_compiler.pipeline.state import Hashes, Lineage, Thread
from tests.pipeline.playing import Heard, Script, graph, no_wait

FAIL = Outcome(status="fail", failure_reason="broken")
RETRY = Outcome(status="retry")

Open = Callable[[], RunStore]


@pytest.fixture(params=["memory", "files", "sqlite"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the same store again and again; in memory it is one and the same object."""
    memory = MemoryRuns()
    stores: dict[str, Open] = {
        "memory": lambda: memory,
        "files": lambda: FileRuns(tmp_path / "runs"),
        "sqlite": lambda: SQLiteRuns(tmp_path / "runs.db"),
    }
    return stores[request.param]


STATE = RunState(
    lineage=Lineage(root_run_id="r", attempt=2, parent_run_id="r"),
    graph=Hashes(source="aa", snapshot="bb"),
    next_node="b",
    how="edge",
    edge=3,
    current_node="a",
    completed=("start", "a", "a"),
    outcomes={"a": Outcome(status="partial_success", preferred_label="x", suggested_next_ids=("b",), notes="ok")},
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


# Checkpoint round-trip.


def test_checkpoint_round_trip() -> None:
    assert state_of(json.loads(json.dumps(checkpoint_document(STATE))), where="here") == STATE


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
    (found,) = await store.runs()
    assert (found.run_id, found.current_node, found.completed, found.attempt) == ("r", "a", 7, 2)
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


async def test_a_run_is_begun_once(open_store: Open) -> None:
    store = open_store()
    await store.begin(INFO, {})
    with pytest.raises(PipelineError, match="already"):
        await store.begin(INFO, {})
    await store.close()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("{", "damaged"),
        ("[]", "no checkpoint"),
        ("{}", "damaged"),
        (json.dumps({**checkpoint_document(STATE), "metadata": {"schema_version": 2}}), "newer version"),
        (json.dumps({**checkpoint_document(STATE), "metadata": {"schema_version": "x"}}), "unknown version"),
        (json.dumps({**checkpoint_document(STATE), "context": []}), "damaged"),
        (json.dumps({**checkpoint_document(STATE), "node_outcomes": {"a": {}}}), "damaged"),
        ("[" * 100_000, "damaged"),
    ],
)
def test_a_checkpoint_that_cannot_be_read_says_why(tmp_path: Path, body: str, why: str) -> None:
    (tmp_path / "checkpoint.json").write_text(body)
    with pytest.raises(PipelineError, match=why):
        read_checkpoint(tmp_path)


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file may grow beyond so many bytes."""
    resource, signal = pytest.importorskip("resource"), pytest.importorskip("signal")
    former, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, former)


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, STATE)
    with full_disk(2_000), pytest.raises(PipelineError, match="the checkpoint before it is intact"):
        write_checkpoint(tmp_path, replace(STATE, context={"big": "x" * 10_000}))
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


# Resume parity.

LONG = graph(
    "a [max_retries=2]; b [fidelity=full thread_id=t]; c; g [goal_gate=true retry_target=c]; p [shape=component];"
    "x; y; j [shape=tripleoctagon]; h [shape=hexagon]; z;"
    'start->a->b->c->g->p; p->x->j; p->y->j; j->h; h->z [label="[Y] go"]; h->a [label="[N] back"];'
    'z->a [condition="outcome=fail" loop_restart=true]; z->done [condition="outcome!=fail"];'
    'b->b [condition="outcome=retry"]'
)


def scripted() -> dict[str, Any]:
    """Handlers whose answers follow from the state of the run alone, as those of a resumed process must."""

    async def work(stage: Stage) -> Outcome:
        visit, attempt = stage.visit, stage.context.get("internal.lineage.attempt")
        stage.keep("out", f"{stage.node.name} {visit} {attempt}")
        if stage.node.name == "g" and visit == 1:
            return FAIL
        if stage.node.name == "z" and attempt == 1:
            return FAIL
        return Outcome(context_updates={f"seen.{stage.node.name}": visit}, notes=f"visit {visit}")

    return {"codergen": work}


def told(state: RunState) -> dict[str, Any]:
    """What has to be the same; durations and times are not."""
    said = checkpoint_document(state)
    said["metadata"] = {key: value for key, value in said["metadata"].items() if key != "timestamp"}
    said["logs"] = [{**entry, "duration": 0} for entry in said["logs"]]
    said["artifacts"] = {id: entry["data"] for id, entry in said["artifacts"].items()}
    return said


class Stopping(MemoryRuns):
    """Dies after so many saves."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    async def save(self, state: RunState) -> None:
        if self.left == 0:
            raise KeyError("killed")
        self.left -= 1
        written = json.dumps(checkpoint_document(state))
        await super().save(state_of(json.loads(written), where="memory"))


async def test_resume_parity_after_every_single_checkpoint() -> None:
    whole = await run_pipeline(LONG, handlers=scripted(), run_id="r", sleep=no_wait)
    assert whole.ok and whole.state.lineage.attempt == 2
    points = 0
    for after in range(1, 60):
        runs = Stopping(after)
        try:
            result = await run_pipeline(LONG, handlers=scripted(), run_id="r", runs=runs, sleep=no_wait)
        except KeyError:
            points += 1
            runs.left = -1
            result = await resume_pipeline("r", handlers=scripted(), runs=runs, sleep=no_wait)
        assert told(result.state) == told(whole.state), f"stopped after {after} checkpoints"
    assert points > 20


async def test_completed_stages_do_not_run_again(open_store: Open) -> None:
    text = graph("a; b; c; start->a->b->c->done")
    script, store = Script(), open_store()
    await half(text, store, "b", handlers={"codergen": script})
    await store.close()
    again, store = Script(), open_store()
    result = await resume_pipeline("r", handlers={"codergen": again}, runs=store)
    assert result.ok and again.seen == ["b", "c"] and script.seen == ["a"]
    kinds = [event.kind for event in await store.events("r")]
    assert "run_resumed" in kinds
    numbers = [event.sequence for event in await store.events("r")]
    assert numbers == sorted(set(numbers))
    ended = await resume_pipeline("r", runs=store)
    assert ended.state == result.state
    await store.close()


async def half(text: str, store: Any, at: str, **options: Any) -> None:
    """Run up to a stage, and die there."""

    async def stop(event: Event) -> None:
        if event.kind == "stage_started" and event.node == at:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    task = asyncio.create_task(run_pipeline(text, runs=store, run_id="r", on_event=stop, **options))
    with pytest.raises(asyncio.CancelledError):
        await task


# Fidelity degrade-on-resume.

FULL = graph(
    "node [fidelity=full thread_id=t]; a [prompt=a]; b [prompt=b]; c [prompt=c]; start->a->b->c->done",
)


async def test_fidelity_degrades_on_resume_exactly_once() -> None:
    store, heard = MemoryRuns(), Heard()
    await half(FULL, store, "b", model=heard.model)
    events: list[Event] = []
    result = await resume_pipeline("r", runs=store, model=heard.model, on_event=events.append)
    modes = {event.node: event.data["fidelity"] for event in events if event.kind == "stage_started"}
    assert (modes["b"], modes["c"]) == ("summary:high", "full")
    assert heard.prompts[-2].startswith("## Pipeline State (Comprehensive)") and heard.prompts[-2].endswith("\n\nb")
    assert heard.prompts[-1] == "c" and len(heard.requests[-1]) == 1
    assert "internal.resume.fidelity_override_once" not in result.context


async def test_the_marker_is_there_for_one_stage_and_in_no_checkpoint() -> None:
    store = MemoryRuns()
    await half(FULL, store, "b", handlers={"codergen": Script()})
    seen: dict[str, Any] = {}

    def look(stage: Stage) -> str:
        seen[stage.node.name] = stage.context.get("internal.resume.fidelity_override_once")
        return "ok"

    script = Script({"b": [look], "c": [look]})
    result = await resume_pipeline("r", runs=store, handlers={"codergen": script})
    assert seen == {"b": "summary:high", "c": None}
    assert "internal.resume.fidelity_override_once" not in result.context


async def test_other_modes_do_not_degrade() -> None:
    text = graph("node [fidelity=truncate]; a; b; start->a->b->done")
    store = MemoryRuns()
    await half(text, store, "b", handlers={"codergen": Script()})
    script = Script()
    await resume_pipeline("r", runs=store, handlers={"codergen": script})
    assert script.stages[0].fidelity == "truncate"


async def test_threads_can_be_restored_instead(open_store: Open) -> None:
    store, heard = open_store(), Heard({"a": "first"})
    await half(FULL, store, "c", model=heard.model)
    await store.close()
    store = open_store()
    await resume_pipeline("r", runs=store, model=heard.model, resume_threads="restore")
    last = heard.requests[-1]
    assert len(last) == 5 and heard.prompts[-1] == "c"
    assert str(last[1].parts[0].content) == "first"
    await store.close()


# What is refused.


async def test_what_cannot_be_resumed_says_why(tmp_path: Path) -> None:
    store, script = MemoryRuns(), {"codergen": Script()}
    with pytest.raises(PipelineError, match="there is no run 'r'"):
        await resume_pipeline("r", runs=store)
    await half(graph("a; b; start->a->b->done"), store, "b", handlers=script)
    with pytest.raises(GraphError, match="of another graph"):
        await resume_pipeline("r", runs=store, pipeline=graph("a; b; start->b->a->done"), handlers=script)
    with pytest.raises(PipelineError, match="run_id mismatch"):
        await resume_pipeline("r", runs=store, run_id="s", handlers=script)
    state = await store.load("r")
    assert state is not None
    await store.save(replace(state, next_node="gone"))
    with pytest.raises(PipelineError, match="no stage 'gone'"):
        await resume_pipeline("r", runs=store, handlers=script)
    await store.save(replace(state, next_node=None))
    with pytest.raises(PipelineError, match="names no next stage"):
        await resume_pipeline("r", runs=store, handlers=script)
    with pytest.raises(PipelineError, match=r"there is no checkpoint\.json"):
        await resume_pipeline(tmp_path)


async def test_a_run_is_taken_up_from_its_folder(tmp_path: Path) -> None:
    await half(graph("a; b; start->a->b->done"), None, "b", handlers={"codergen": Script()}, logs_root=tmp_path)
    script = Script()
    result = await resume_pipeline(tmp_path, handlers={"codergen": script})
    assert result.ok and script.seen == ["b"] and result.run_id == "r"


async def test_a_damaged_database_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "runs.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(PipelineError, match=r"runs\.db"):
        await resume_pipeline("r", runs=tmp_path / "runs.db")


# Context and artifacts.


def test_context_takes_dotted_names_and_json() -> None:
    store = ContextStore({"a": 1})
    store.apply_updates({"b.c-d_e": [1, {"x": None}]})
    assert store.get("b.c-d_e") == [1, {"x": None}]
    assert (store.get_string("a"), store.get_string("none", "-")) == ("1", "-")
    for key in ("", ".", "a.", "a b", "1a", "a..b", "a" * 257):
        with pytest.raises(ValueError, match="no key"):
            store.set(key, 1)
    for value in (object(), {1, 2}, float("inf"), b"x"):
        with pytest.raises(ValueError, match="cannot be kept"):
            store.set("k", value)


def test_updates_are_applied_all_or_none() -> None:
    store = ContextStore()
    with pytest.raises(ValueError, match="no key"):
        store.apply_updates({"good": 1, "not good": 2})
    assert store.values() == {}


def test_a_snapshot_and_a_clone_share_nothing() -> None:
    store = ContextStore({"deep": {"list": [1]}}, logs=[{"x": [1]}])
    clone, snapshot = store.clone_isolated(), store.snapshot()
    inner = clone.get("deep")
    inner["list"].append(2)
    clone.set("deep", inner)
    clone.append_log("more")
    snapshot["values"]["deep"]["list"].append(3)
    assert store.snapshot() == {"values": {"deep": {"list": [1]}}, "logs": [{"x": [1]}]}
    assert json.loads(json.dumps(store.snapshot())) == store.snapshot()
    given = {"list": [1]}
    store.set("given", given)
    given["list"].append(2)
    assert store.get("given") == {"list": [1]}


def test_artifact_threshold(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path, threshold=10)
    at, above = "x" * 8, "x" * 9
    assert not store.store("at", "At", at).is_file_backed
    info = store.store("above", "Above", above)
    assert info.is_file_backed and info.reference == "artifact://above" and info.size_bytes == 11
    assert (tmp_path / "artifacts" / "above.json").is_file()
    assert store.retrieve("artifact://above") == store.retrieve("above") == above
    assert ArtifactStore(tmp_path).retrieve("above") == above
    store.store("above", "Above", "s")
    assert not (tmp_path / "artifacts" / "above.json").exists() and store.retrieve("above") == "s"
    assert not ArtifactStore(threshold=10).store("big", "Big", "x" * 1_000).is_file_backed
    assert not ArtifactStore(tmp_path).store("usual", "Usual", "x" * (100 * 1024 - 2)).is_file_backed
    assert ArtifactStore(tmp_path).store("usual", "Usual", "x" * (100 * 1024 - 1)).is_file_backed


def test_artifacts_are_listed_and_removed_and_refuse_bad_names(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path, threshold=1)
    store.store("b", "B", [1])
    store.store("a", "A", [2])
    assert [info.id for info in store.list()] == ["a", "b"] and store.has("artifact://a")
    store.remove("a")
    assert not store.has("a") and not (tmp_path / "artifacts" / "a.json").exists()
    store.clear()
    assert store.list() == []
    for id in ("", "../x", "a/b", "..", "a b"):
        with pytest.raises(PipelineError):
            store.store(id, "name", 1)
    with pytest.raises(PipelineError, match="name"):
        store.store("a", " ", 1)
    for reference in ("gone", "artifact://gone", "file://gone"):
        with pytest.raises(PipelineError):
            store.retrieve(reference)
