"""A run that is deleted leaves nothing behind in its store; old runs that have ended are pruned."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from context_compiler.errors import CheckpointError, PipelineError, RunOwnedError
from context_compiler.ids import text_hash
from context_compiler.pipeline import (
    FileRuns,
    Outcome,
    RunConfig,
    RunQueue,
    RunStore,
    SQLiteRuns,
    SQLRuns,
    Stage,
    Worker,
    prune_runs,
    run_pipeline,
)
from context_compiler.pipeline.stores.sql import Statement
from tests.pipeline.conftest import Open, OpenSQL
from tests.pipeline.playing import Heard, graph
from tests.pipeline.test_kept import INFO, STATE

ANN = "Ann-lives-in-Oslo"
CHILD = graph(f'x [prompt="child {ANN}"]; start->x->done')
PARENT = (
    f'a [prompt="{ANN}" fidelity=full thread_id=t]; b [prompt=b fidelity=full thread_id=t];'
    'm [shape=house stack.child_dotfile="%s" "manager.poll_interval"="10ms"]; start->a->b->m->done'
)
Left = Callable[[], Awaitable[bytes]]


@pytest.fixture
def left(request: pytest.FixtureRequest, tmp_path: Path) -> Left:
    """Reads all that the stores of a test have stored: their files, or the rows of their database."""

    async def read() -> bytes:
        stored = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".dot"]
        content = b"".join(path.read_bytes() + str(path).encode() for path in stored)
        if "postgres_url" in request.fixturenames:
            asyncpg = pytest.importorskip("asyncpg")
            connection = await asyncpg.connect(request.getfixturevalue("postgres_url"))
            tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'context_compiler'")
            for (table,) in tables:
                rows = await connection.fetch(f"SELECT row::text FROM context_compiler.{table} AS row")
                content += "".join(str(row[0]) for row in rows).encode()
            await connection.close()
        return content

    return read


async def test_a_deleted_run_and_its_children_leave_nothing_behind(
    open_store: Open, left: Left, tmp_path: Path
) -> None:
    (tmp_path / "child.dot").write_text(CHILD)
    shared, store = graph("y; start->y->done"), open_store()
    text = graph(PARENT % (tmp_path / "child.dot"), goal=ANN)
    told = {f"value.n{number}": f"{ANN} {number} " * 200 for number in range(30)}

    def tell(stage: Stage) -> Outcome:
        return Outcome(notes=ANN, context_updates=told)

    options: dict[str, Any] = {"runs": store, "handlers": {"tell": tell}, "model": Heard().model}
    more = text.replace("a [", "tell [type=tell]; a [").replace("start->a", "start->tell->a")
    assert (await run_pipeline(more, run_id="ann", context={"who": ANN}, **options)).ok
    assert (await run_pipeline(shared, run_id="ann.of.another", **options)).ok
    assert (await run_pipeline(shared, run_id="bob", **options)).ok
    assert {info.run_id: info.parent for info in await store.runs()} == {
        "ann": None,
        "ann.m.1": "ann",
        "ann.of.another": None,
        "bob": None,
    }
    await store.close()
    store = open_store()
    assert await store.delete("ann") and not await store.delete("ann")
    assert await store.load("ann") is None and await store.load("ann.m.1") is None
    assert ANN.encode() not in await left() and b"ann.m" not in await left()
    assert await store.delete("ann.of.another") and b"ann" not in (await left()).replace(str(tmp_path).encode(), b"")
    assert [info.run_id for info in await store.runs()] == ["bob"]
    assert await store.content(text_hash(shared)) == shared  # which both had
    assert await store.delete("bob") and await store.content(text_hash(shared)) is None
    await store.close()


async def test_a_submitted_run_is_deleted_with_its_questions_and_answers(open_runs: OpenSQL, left: Left) -> None:
    runs = open_runs()
    queue = RunQueue(runs)
    gates = graph(
        f'h [shape=hexagon label="Is it {ANN}?"]; g [shape=hexagon label="Sure?"]; b;'
        'start->h; h->g [label="[Y] go"]; h->b [label="[N] stop"];'
        'g->b [label="[Y] go"]; g->h [label="[N] back"]; b->done'
    )
    await queue.submit(gates, run_id=f"r-{ANN}", options={"note": ANN})
    await queue.submit(gates.replace(ANN, "Bob"), run_id="bob")
    work = Worker(runs=runs, configure=lambda taken: RunConfig(simulate=True), poll=0.01, patience=0.0)
    await work.run(until_empty=True)
    await queue.answer(f"r-{ANN}", "go")
    await work.run(until_empty=True)
    assert [question.stage for question in await queue.questions(f"r-{ANN}")] == ["g"]
    assert await runs.delete(f"r-{ANN}")
    assert ANN.encode() not in await left()
    await work.run(until_empty=True)
    assert [submission.run_id for submission in await queue.open()] == ["bob"] and await queue.find(f"r-{ANN}") is None
    await runs.close()


async def test_a_damaged_run_can_be_deleted(open_runs: OpenSQL, left: Left) -> None:
    runs = open_runs()
    await run_pipeline(graph("a; start->a->done"), runs=runs, run_id="r", simulate=True, context={"who": ANN})
    await runs.database.transact(Statement("UPDATE cells SET body = '{' || body"))
    await runs.database.transact(Statement("UPDATE events SET body = '{' || body"))
    with pytest.raises(CheckpointError):
        await runs.load("r")
    assert await runs.delete("r") and ANN.encode() not in await left() and await runs.runs() == []
    await runs.close()


async def test_a_run_that_is_running_is_not_deleted(open_store: Open, tmp_path: Path) -> None:
    (tmp_path / "child.dot").write_text(CHILD)
    store, there = open_store(), asyncio.Event()

    async def work(stage: Stage) -> Outcome:
        if stage.node.name == "x":
            there.set()
            await asyncio.Event().wait()
        return Outcome()

    text = graph(PARENT % (tmp_path / "child.dot"))
    running = asyncio.create_task(run_pipeline(text, runs=store, run_id="r", handlers={"codergen": work}))
    await asyncio.wait_for(there.wait(), 30)
    other = open_store()
    for name in ("r", "r.m.1"):
        with pytest.raises(RunOwnedError, match="under way elsewhere"):
            await other.delete(name)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    async with store.own("r.m.1"):  # somebody resumes the child alone
        with pytest.raises(RunOwnedError, match="under way elsewhere"):
            await other.delete("r")
    assert await other.load("r") is not None and await other.load("r.m.1") is not None
    assert await other.delete("r")
    await store.close()
    await other.close()


async def test_runs_that_ended_before_a_time_are_pruned_and_others_stay(open_store: Open, tmp_path: Path) -> None:
    (tmp_path / "child.dot").write_text(CHILD)
    store = open_store()
    await run_pipeline(graph(PARENT % (tmp_path / "child.dot")), runs=store, run_id="ended", simulate=True)
    await run_pipeline(
        "digraph g { start [shape=Mdiamond]; done [shape=Msquare]; start->done }", runs=store, run_id="o"
    )
    async with store.own("stopped"):
        await store.begin(replace(INFO, run_id="stopped"), {})
        await store.save(replace(STATE, lineage=replace(STATE.lineage, root_run_id="stopped")))
    assert await prune_runs(store, older_than_days=1.0) == []
    assert sorted(await prune_runs(store, older_than_days=-1.0)) == ["ended", "o"]
    assert [info.run_id for info in await store.runs()] == ["stopped"]
    await store.close()


async def test_pruning_with_an_unlimited_age_deletes_no_run(open_store: Open) -> None:
    store = open_store()
    await run_pipeline(graph("start->done"), runs=store, run_id="ended")
    assert await prune_runs(store, older_than_days=1e12) == []
    assert [info.run_id for info in await store.runs()] == ["ended"]
    await store.close()


async def test_pruning_many_runs_rewrites_the_file_once(
    left: Left, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, said = sqlite3.connect, list[str]()

    def traced(*args: Any, **options: Any) -> sqlite3.Connection:
        db = connect(*args, **options)
        db.set_trace_callback(said.append)
        return db

    monkeypatch.setattr(sqlite3, "connect", traced)
    runs = SQLiteRuns(tmp_path / "runs.db")
    told = {f"value.n{number}": f"{ANN} {number} " * 200 for number in range(20)}
    for number in range(5):
        text = graph(f'a{number} [prompt="{ANN}"]; start->a{number}->done')
        assert (await run_pipeline(text, runs=runs, run_id=f"r{number}", simulate=True, context=told)).ok
    assert await prune_runs(runs, older_than_days=1.0) == [] and "VACUUM" not in said
    assert await runs.delete("r0") and said.count("VACUUM") == 1
    assert len(await prune_runs(runs, older_than_days=-1.0)) == 4 and said.count("VACUUM") == 2
    assert ANN.encode() not in await left()
    await runs.close()


async def test_deleting_a_run_keeps_the_graph_for_one_that_begins_meanwhile(open_runs: OpenSQL) -> None:
    first, other = open_runs(), open_runs()
    text = graph("a; start->a->done")

    async def begin(runs: SQLRuns, number: int) -> None:
        async with runs.own(f"r{number}"):
            await runs.begin(replace(INFO, run_id=f"r{number}", source=text_hash(text)), {text_hash(text): text})

    await begin(first, 0)
    for number in range(12):
        await asyncio.gather(first.delete(f"r{number}"), begin(other, number + 1))
        fresh = open_runs()
        assert await fresh.content(text_hash(text)) == text
        await fresh.close()
    await first.close()
    await other.close()


async def test_a_folder_that_holds_one_run_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    await run_pipeline(graph("a; start->a->done"), logs_root=tmp_path, run_id="r", simulate=True)
    store: RunStore = FileRuns(tmp_path, alone=True)
    with pytest.raises(Exception, match="remove the folder yourself"):
        await store.delete("r")
    assert (tmp_path / "mine.txt").exists() and (tmp_path / "checkpoint.json").exists()


async def test_a_file_of_runs_that_is_deleted_while_open_is_made_again(tmp_path: Path) -> None:
    path, text = tmp_path / "r.db", graph("start->done")
    worker, other = SQLiteRuns(path), SQLiteRuns(path)
    await RunQueue(worker).submit(text, run_id="before")
    path.unlink()  # and its log stays
    await RunQueue(other).submit(text, run_id="after")
    assert [info.run_id for info in await worker.runs()] == ["after"]
    await worker.close()
    await other.close()


async def test_a_run_whose_file_is_deleted_does_not_succeed(tmp_path: Path) -> None:
    path = tmp_path / "r.db"

    def delete(stage: Stage) -> Outcome:
        path.unlink()
        return Outcome()

    text = graph("t [type=delete]; start->t->done")
    with pytest.raises(PipelineError, match=r"r\.db: run 'r' does not exist"):
        await run_pipeline(text, runs=path, run_id="r", handlers={"delete": delete})
