"""What a crash, a full disk or a hand left of a run is read as far as it is whole, or refused in plain words."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from context_compiler.errors import PipelineError
from context_compiler.pipeline import (
    FileRuns,
    MemoryRuns,
    RunConfig,
    RunQueue,
    SQLiteRuns,
    SQLRuns,
    Worker,
    in_folder,
    prune_runs,
    resume_pipeline,
    run_pipeline,
)
from context_compiler.pipeline.artifacts import ArtifactStore
from context_compiler.pipeline.interviewers import Option, Question
from context_compiler.pipeline.stores.sql import Statement
from context_compiler.pipeline.stores.sqlite import APPLICATION_ID
from tests.pipeline.conftest import Open
from tests.pipeline.playing import Heard, Script, graph
from tests.pipeline.resuming import half

TEXT = graph("a [prompt=a fidelity=full thread_id=t]; b [prompt=b fidelity=full thread_id=t]; start->a->b->done")


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("next_node",), ["b"]),
        (("current_node",), {}),
        (("edge",), "0"),
        (("lineage",), None),
        (("lineage", "attempt"), "2"),
        (("terminal_status",), "nearly"),
        (("completed_nodes",), [["a"]]),
        (("node_visits",), {"a": "1"}),
        (("node_visits", "b"), None),
        (("artifacts",), {"one": None}),
        (("artifacts",), {"one": {"name": "one"}}),
        (("attempts",), {"r/b/1": "two"}),
        (("threads", "t", "messages"), "hello"),
        (("threads", "t", "messages"), [{"kind": "letter"}]),
        (("threads", "t", "marks"), [["a", 99]]),
        (("context",), None),
        (("logs",), "a line"),
    ],
)
async def test_a_checkpoint_with_a_field_of_the_wrong_kind_is_refused(
    tmp_path: Path, keys: tuple[str, ...], value: Any
) -> None:
    heard = Heard()
    await half(TEXT, None, "b", model=heard.model, logs_root=tmp_path)
    path = tmp_path / "checkpoint.json"
    document = json.loads(path.read_bytes())
    inner = document
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    path.write_text(json.dumps(document))
    with pytest.raises(PipelineError, match="damaged"):
        await resume_pipeline(tmp_path, model=heard.model, resume_threads="restore")


async def test_a_truncated_event_is_skipped_and_later_ones_are_intact(tmp_path: Path) -> None:
    await half(TEXT, None, "b", handlers={"codergen": Script()}, logs_root=tmp_path)
    path = tmp_path / "events.jsonl"
    path.write_bytes(path.read_bytes()[:-30])
    assert (await resume_pipeline(tmp_path, handlers={"codergen": Script()})).ok
    events = await in_folder(tmp_path).events("r")
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert events[-1].kind == "run_finalized" and "run_resumed" in [event.kind for event in events]


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
async def test_an_unusable_location_is_refused_in_plain_words(tmp_path: Path, name: str) -> None:
    with pytest.raises(PipelineError, match="what was saved before is intact"):
        await SQLiteRuns(tmp_path / name / "runs.db").runs()
    if "\0" in name:
        assert await FileRuns(tmp_path / name).runs() == []
    else:
        with pytest.raises(PipelineError, match="give a folder that may be read"):
            await FileRuns(tmp_path / name).runs()


def test_an_endlessly_nested_artifact_is_refused(tmp_path: Path) -> None:
    (tmp_path / "artifacts").mkdir()
    (tmp_path / "artifacts" / "a.json").write_text("[" * 200_000)
    with pytest.raises(PipelineError, match="a.json"):
        ArtifactStore(tmp_path)


NAMELESS = json.dumps({"run_id": "two", "name": "g", "goal": "", "started_at": None, "updated_at": "", "status": ""})


@pytest.mark.parametrize("body", ["[" * 200_000, '{"run_id": 5}', NAMELESS, "{}", "[]", "no JSON"])
async def test_a_run_with_damaged_metadata_is_listed_as_damaged_among_the_others(
    open_store: Open, tmp_path: Path, body: str
) -> None:
    store = open_store()
    if isinstance(store, MemoryRuns):
        pytest.skip("nothing is written down")
    for name in ("one", "two", "three"):
        await run_pipeline(graph("a; start->a->done"), runs=store, run_id=name, simulate=True)
    if isinstance(store, SQLRuns):
        await store.database.transact(Statement("UPDATE runs SET info = ? WHERE run = ?", (body, "two")))
    else:
        (tmp_path / "runs" / "two" / "manifest.json").write_text(body)
    again = open_store()
    infos = {info.run_id: info for info in await again.runs()}
    assert {info.run_id: info.status for info in infos.values()} == {
        "one": "success",
        "two": "damaged",
        "three": "success",
    }
    assert "damaged" in infos["two"].failure_reason or "manifest.json" in infos["two"].failure_reason
    assert await again.delete("one") and await again.delete("two")
    assert [info.run_id for info in await again.runs()] == ["three"]
    await again.close()
    await store.close()


ONE_STAGE = graph("a; start->a->done")


async def break_bytes(store: SQLRuns, table: str, column: str, where: str = "run = 'bad'") -> None:
    """Write a byte that is not UTF-8 over the second one of a stored text."""
    broken = f"CAST(X'7bff' || substr(CAST({column} AS BLOB), 3) AS TEXT)"
    await store.database.transact(Statement(f"UPDATE {table} SET {column} = {broken} WHERE {where}"))


async def work(store: SQLRuns) -> dict[str, tuple[str, str]]:
    """Let a worker run everything, and return the last change of each run with its reason."""
    changes: dict[str, tuple[str, str]] = {}
    worker = Worker(
        runs=store,
        configure=lambda _: RunConfig(simulate=True),
        poll=0.01,
        on_change=lambda run_id, change, reason: changes.update({run_id: (change, reason)}),
    )
    async with asyncio.timeout(20):  # a run that is taken for ever
        await worker.run(until_empty=True)
    return changes


@pytest.mark.parametrize(
    ("table", "column", "where", "status", "reason"),
    [
        ("cells", "body", "run = 'bad' AND section = 'head'", "fail", "character 2 is not UTF-8"),
        ("runs", "info", "run = 'bad'", "damaged", "character 2 is not UTF-8"),
        ("queue", "options", "run = 'bad'", "fail", "its options are damaged"),
    ],
)
async def test_a_submitted_run_with_damaged_bytes_fails_once_and_the_others_go_on(
    tmp_path: Path, table: str, column: str, where: str, status: str, reason: str
) -> None:
    store = SQLiteRuns(tmp_path / "runs.db")
    queue = RunQueue(store)
    for name in ("bad", "good"):
        await queue.submit(ONE_STAGE, run_id=name)
    await break_bytes(store, table, column, where)
    assert {submission.run_id for submission in await queue.open()} == {"bad", "good"} and len(await store.runs()) == 2
    changes = await work(store)
    assert changes["good"] == ("success", "") and changes["bad"][0] == "fail" and reason in changes["bad"][1]
    infos = {info.run_id: info for info in await store.runs()}
    assert infos["bad"].status == status and reason in infos["bad"].failure_reason
    assert "intact" not in infos["bad"].failure_reason
    assert await queue.open() == []
    assert await prune_runs(store, older_than_days=-1) == (["good", "bad"] if status == "fail" else ["good"])
    assert await store.delete("bad") == (status == "damaged")
    await store.close()


@pytest.mark.parametrize(("table", "column"), [("cells", "body"), ("runs", "info"), ("queue", "options")])
async def test_a_run_with_damaged_bytes_can_be_cancelled_and_deleted(tmp_path: Path, table: str, column: str) -> None:
    store = SQLiteRuns(tmp_path / "runs.db")
    queue = RunQueue(store)
    await queue.submit(ONE_STAGE, run_id="bad")
    await break_bytes(store, table, column)
    await queue.cancel("bad")
    assert await queue.end_cancelled("bad") and await queue.open() == []
    assert await store.delete("bad") and await store.runs() == []
    await store.close()


async def test_a_damaged_question_does_not_hide_the_others(tmp_path: Path) -> None:
    store = SQLiteRuns(tmp_path / "runs.db")
    queue = RunQueue(store)
    for name in ("bad", "good"):
        await queue.submit(ONE_STAGE, run_id=name)
        await queue.ask(name, "k", Question(text="?", options=(Option(key="Y", label="Yes", target="a"),)))
    await break_bytes(store, "questions", "body")
    assert [question.run_id for question in await queue.questions()] == ["good"]
    await store.close()


async def test_a_damaged_source_is_not_run_and_the_normal_form_is(tmp_path: Path) -> None:
    store = SQLiteRuns(tmp_path / "runs.db")
    await half(ONE_STAGE, store, "a", handlers={"codergen": Script()})
    (info,) = await store.runs()
    await break_bytes(store, "contents", "body", f"hash = '{info.source}'")
    await store.close()
    again = SQLiteRuns(tmp_path / "runs.db")
    assert info.source is not None and await again.content(info.source) is None
    assert (await resume_pipeline("r", runs=again, handlers={"codergen": Script()})).ok
    await again.close()


async def test_a_damaged_file_is_not_called_intact(tmp_path: Path) -> None:
    store = SQLiteRuns(tmp_path / "runs.db")
    await run_pipeline(ONE_STAGE, runs=store, simulate=True)
    await store.close()
    path = tmp_path / "runs.db"
    page = path.read_bytes()
    path.write_bytes(page[:4096] + b"\xff" * (len(page) - 4096))
    with pytest.raises(PipelineError, match="restore a backup") as caught:
        await SQLiteRuns(path).runs()
    assert "intact" not in str(caught.value)


async def test_a_damaged_event_hides_no_other_and_a_run_goes_on(tmp_path: Path) -> None:
    store = SQLiteRuns(tmp_path / "runs.db")
    await run_pipeline(ONE_STAGE, RunConfig(simulate=True, runs=store), run_id="r")
    events = await store.events("r")
    await break_bytes(store, "events", "body", "run = 'r' AND sequence = 2")
    assert await store.events("r") == [event for event in events if event.sequence != 2]
    assert (await resume_pipeline("r", RunConfig(simulate=True, runs=store))).status == "success"
    await store.close()


async def test_runs_of_another_version_are_refused_with_the_file_and_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with closing(sqlite3.connect(path)) as db:
        db.executescript("CREATE TABLE runs (run, info)")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute("PRAGMA user_version = 1")
    with pytest.raises(PipelineError, match=r"runs\.db: .*schema 1, this one knows 2\); move it away"):
        await SQLiteRuns(path).runs()
