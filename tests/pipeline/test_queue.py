"""Submitted runs: any worker takes them, people answer from elsewhere, none is lost, and none runs for ever."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from context_compiler.errors import GraphError, PipelineError
from context_compiler.pipeline import (
    AnswerValue,
    CallbackInterviewer,
    Event,
    Outcome,
    Reply,
    RunConfig,
    RunQueue,
    SQLiteRuns,
    SQLRuns,
    Stage,
    StageStatus,
    Submission,
    Worker,
    run_pipeline,
)
from context_compiler.pipeline.stores.sql import Statement
from tests.pipeline.conftest import OpenSQL
from tests.pipeline.playing import graph, no_wait
from tests.pipeline.resuming import LONG, scripted, told

GATE = graph('a; h [shape=hexagon]; b; start->a->h; h->b [label="[Y] go"]; h->a [label="[N] back"]; b->done')


def worker(runs: SQLRuns, **overrides: Any) -> tuple[Worker, list[tuple[str, str]]]:
    """A worker that looks often, and what it said of which run."""
    said: list[tuple[str, str]] = []
    options: dict[str, Any] = {"configure": lambda taken: RunConfig(simulate=True), "poll": 0.01, "patience": 0.0}
    listen = lambda run_id, change, reason: said.append((run_id, change))  # noqa: E731
    return Worker(runs=runs, on_change=listen, **{**options, **overrides}), said


async def test_a_submitted_run_is_queued_until_a_worker_has_run_it(open_runs: OpenSQL) -> None:
    runs = open_runs()
    name = await RunQueue(runs).submit(graph("a; start->a->done"), context={"k": 1}, options={"model": "x"})
    assert [info.status for info in await runs.runs()] == ["queued"]
    seen: list[Submission] = []

    def configure(taken: Submission) -> RunConfig:
        seen.append(taken)
        return RunConfig(simulate=True)

    runner, said = worker(runs, configure=configure)
    await runner.run(until_empty=True)
    state = await runs.load(name)
    assert state is not None and state.completed == ("start", "a", "done") and state.context["k"] == 1
    assert said == [(name, "taken"), (name, "success")]
    assert [(taken.run_id, taken.options, taken.worker) for taken in seen] == [(name, {"model": "x"}, runner.name)]
    assert await RunQueue(runs).open() == []
    await runs.close()


async def test_a_graph_with_errors_is_not_submitted(open_runs: OpenSQL) -> None:
    runs = open_runs()
    with pytest.raises(GraphError):
        await RunQueue(runs).submit("digraph g { a -> b }", run_id="r")
    assert await runs.runs() == []
    await RunQueue(runs).submit(GATE, run_id="r")
    with pytest.raises(PipelineError, match="already"):
        await RunQueue(runs).submit(GATE, run_id="r")
    await runs.close()


async def test_several_workers_run_every_run_once(open_runs: OpenSQL) -> None:
    runs = open_runs()
    names = [await RunQueue(runs).submit(graph("a; start->a->done"), run_id=f"r{n}") for n in range(12)]
    counts: list[str] = []

    async def work(stage: Stage) -> Outcome:
        counts.append(stage.run_id)
        await asyncio.sleep(0)
        return Outcome()

    stores = [open_runs() for _ in range(3)]
    workers = [
        worker(store, configure=lambda taken: RunConfig(handlers={"codergen": work}), concurrency=2) for store in stores
    ]
    await asyncio.gather(*(runner.run(until_empty=True) for runner, _ in workers))
    assert sorted(counts) == sorted(names)
    assert {info.status for info in await runs.runs()} == {"success"}
    for store in (runs, *stores):
        await store.close()


async def test_a_run_that_waits_for_a_person_frees_its_slot_and_continues_after_the_answer(
    open_runs: OpenSQL,
) -> None:
    first, second, desk = open_runs(), open_runs(), RunQueue(open_runs())
    await desk.submit(GATE, run_id="r")
    runner, said = worker(first)
    await runner.run(until_empty=True)
    assert said == [("r", "taken"), ("r", "waiting")]
    assert [info.status for info in await desk.runs.runs()] == ["waiting"]
    (question,) = await desk.questions()
    assert (question.run_id, question.stage, [choice.key for choice in question.choices]) == ("r", "h", ["Y", "N"])
    with pytest.raises(PipelineError, match=r"none of the choices: \[Y\] go, \[N\] back"):
        await desk.answer("r", "perhaps")
    with pytest.raises(PipelineError, match="no question is waiting"):
        await desk.answer("r", "go", stage="a")
    await desk.answer("r", "go")
    with pytest.raises(PipelineError, match="no question is waiting"):
        await desk.answer("r", "back")
    other, said = worker(second)
    await other.run(until_empty=True)
    state = await second.load("r")
    assert said == [("r", "taken"), ("r", "success")]
    assert state is not None and state.completed == ("start", "a", "h", "b", "done")
    for store in (first, second, desk.runs):
        await store.close()


async def test_an_answer_reaches_a_run_that_kept_its_slot(open_runs: OpenSQL) -> None:
    runs, desk = open_runs(), RunQueue(open_runs())
    await desk.submit(GATE, run_id="r")
    runner, said = worker(runs, patience=60.0)

    async def answer() -> None:
        while not await desk.questions("r"):
            await asyncio.sleep(0.01)
        await desk.answer("r", "y")

    await asyncio.gather(runner.run(until_empty=True), answer())
    assert said == [("r", "taken"), ("r", "success")]
    await runs.close()
    await desk.runs.close()


async def test_a_run_whose_own_interviewer_can_ask_nobody_is_put_back(open_runs: OpenSQL) -> None:
    runs = open_runs()
    await RunQueue(runs).submit(GATE, run_id="r", options={"auto_approve": True})
    nobody = CallbackInterviewer(lambda question: Reply(value=AnswerValue.UNAVAILABLE))
    runner, said = worker(runs, configure=lambda taken: RunConfig(simulate=True, interviewer=nobody))
    await runner.run(until_empty=True)
    (submission,) = await RunQueue(runs).open()
    assert said == [("r", "taken"), ("r", "put back")] and submission.trouble == "h: nobody is there to answer"
    await runs.close()


class Away:
    """A database that is away for some looks at questions."""

    def __init__(self, database: Any, looks: int) -> None:
        self._database, self.looks = database, looks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def transact(self, *statements: Statement) -> Any:
        if self.looks and "INSERT INTO questions" in statements[0].text:
            self.looks -= 1
            raise PipelineError("the database is away")
        return await self._database.transact(*statements)


async def test_a_gate_waits_on_while_the_store_is_away(open_runs: OpenSQL) -> None:
    runs, desk = open_runs(), RunQueue(open_runs())
    away: Any = Away(runs.database, looks=2)
    runs.database = away
    await desk.submit(GATE, run_id="r")
    runner, said = worker(runs)
    await runner.run(until_empty=True)
    assert said == [("r", "taken"), ("r", "waiting")] and not away.looks
    away.looks = 2
    await desk.answer("r", "go")
    await runner.run(until_empty=True)
    assert said[2:] == [("r", "taken"), ("r", "success")]
    await runs.close()
    await desk.runs.close()


async def test_a_gate_without_a_worker_times_out_by_the_clock_of_the_store(open_runs: OpenSQL) -> None:
    runs, name, said = open_runs(), "", list[tuple[str, str]]()
    for name in ("200ms", "5s", "200s"):  # on a busy machine the first may be over before anybody looks
        text = GATE.replace("shape=hexagon", f'shape=hexagon human.timeout={name} human.default_choice="b"')
        await RunQueue(runs).submit(text, run_id=name)
        runner, said = worker(runs)
        while (submission := await RunQueue(runs).find(name)) is None or submission.state != "ended":
            await runner.run(until_empty=True)
        if said[1] == (name, "waiting"):
            break
    state = await runs.load(name)
    assert said[:2] == [(name, "taken"), (name, "waiting")] and said[-1] == (name, "success")
    assert state is not None and state.completed == ("start", "a", "h", "b", "done")
    await runs.close()


async def test_a_working_branch_keeps_the_slot_of_a_waiting_one(open_runs: OpenSQL) -> None:
    runs, desk = open_runs(), RunQueue(open_runs())
    text = graph(
        "p [shape=component]; h [shape=hexagon]; x; j [shape=tripleoctagon]; start->p; p->h; p->x; h->j; x->j; j->done"
    )
    await desk.submit(text, run_id="r")
    ready = asyncio.Event()

    async def work(stage: Stage) -> Outcome:
        await ready.wait()
        return Outcome()

    runner, said = worker(runs, configure=lambda taken: RunConfig(handlers={"codergen": work}))
    running = asyncio.create_task(runner.run(until_empty=True))
    while not await desk.questions("r"):
        await asyncio.sleep(0.01)
    for _ in range(20):
        await asyncio.sleep(0.01)
    assert said == [("r", "taken")]
    ready.set()
    await running
    assert said == [("r", "taken"), ("r", "waiting")]
    await desk.answer("r", "j")
    await runner.run(until_empty=True)
    assert said[2:] == [("r", "taken"), ("r", "success")]
    await runs.close()
    await desk.runs.close()


async def test_text_that_databases_reject_is_refused(open_runs: OpenSQL) -> None:
    queue = RunQueue(open_runs())
    await queue.submit(GATE, run_id="r")
    for work in (queue.cancel("r", "half \ud800"), queue.submit(GATE, run_id="half \ud800")):
        with pytest.raises(PipelineError, match="what was saved before is intact"):
            await work
    assert [(submission.run_id, submission.cancelled) for submission in await queue.open()] == [("r", None)]
    await queue.runs.close()


@pytest.mark.parametrize("child", [False, True])
async def test_a_branch_no_longer_needed_keeps_no_slot_and_asks_no_question(
    open_runs: OpenSQL, tmp_path: Path, child: bool
) -> None:
    runs, desk = open_runs(), RunQueue(open_runs())
    inner = tmp_path / "inner.dot"
    inner.write_text(graph("slow; start->slow->done"))
    slow = f'slow [shape=house stack.child_dotfile="{inner}"]' if child else "slow"
    text = graph(
        f"p [shape=component join_policy=first_success]; {slow}; ask [shape=hexagon]; quick; j [shape=tripleoctagon];"
        "h [shape=hexagon]; start->p; p->slow; p->ask; p->quick; slow->j; ask->j; quick->j; j->h; h->done"
    )
    await desk.submit(text, run_id="r")
    begun = asyncio.Event()

    async def work(stage: Stage) -> Outcome:
        if stage.node.name == "slow":
            begun.set()
            await asyncio.Event().wait()
        await begun.wait()
        while not await desk.questions("r"):
            await asyncio.sleep(0.01)
        return Outcome()

    runner, said = worker(runs, configure=lambda taken: RunConfig(handlers={"codergen": work}))
    try:
        async with asyncio.timeout(60):
            await runner.run(until_empty=True)
    finally:
        assert said == [("r", "taken"), ("r", "waiting")]
    assert [question.stage for question in await desk.questions("r")] == ["h"]
    await desk.answer("r", "done")
    await runner.run(until_empty=True)
    assert said[2:] == [("r", "taken"), ("r", "success")]
    await runs.close()
    await desk.runs.close()


async def test_a_later_round_asks_again_what_a_cancelled_branch_had_asked(open_runs: OpenSQL) -> None:
    runs, desk, begun = open_runs(), RunQueue(open_runs()), asyncio.Event()
    text = graph(
        "p [shape=component error_policy=fail_fast retry_target=p]; h [shape=hexagon]; slow; check;"
        "j [shape=tripleoctagon]; start->p; p->h->slow->j; p->check->j; j->done"
    )
    await desk.submit(text, run_id="r")

    async def work(stage: Stage) -> Outcome:
        if stage.node.name == "slow" and not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        if stage.node.name == "check" and stage.visit == 1:
            await begun.wait()
            return Outcome(status=StageStatus.FAIL)
        return Outcome()

    async def answer() -> None:
        while not await desk.questions("r"):
            await asyncio.sleep(0.01)
        await desk.answer("r", "slow")

    runner, said = worker(runs, configure=lambda taken: RunConfig(handlers={"codergen": work}))
    await asyncio.gather(runner.run(until_empty=True), answer())
    assert said == [("r", "taken"), ("r", "waiting")]
    assert [question.key for question in await desk.questions("r")] == ["r/h@2/h/1/1"]
    await desk.answer("r", "slow")
    await runner.run(until_empty=True)
    assert said[2:] == [("r", "taken"), ("r", "success")]
    await runs.close()
    await desk.runs.close()


async def test_a_run_can_be_cancelled_in_any_state(open_runs: OpenSQL) -> None:
    runs, desk = open_runs(), RunQueue(open_runs())
    for name in ("waits", "works", "queued"):
        await desk.submit(GATE, run_id=name)

    async def work(stage: Stage) -> Outcome:
        if stage.run_id == "works":
            await asyncio.Event().wait()
        return Outcome()

    runner, said = worker(runs, configure=lambda taken: RunConfig(handlers={"codergen": work}), concurrency=2)
    await desk.cancel("queued", "not needed")
    running = asyncio.create_task(runner.run(until_empty=True))
    while ("works", "taken") not in said or ("waits", "waiting") not in said:
        await asyncio.sleep(0.01)
    for name in ("waits", "works"):
        await desk.cancel(name, "not needed")
    await running
    for name in ("waits", "works", "queued"):
        state = await runs.load(name)
        assert state is not None and (state.status, state.failure_reason) == ("fail", "not needed")
        assert (await runs.events(name))[-1].kind == "run_finalized"
    with pytest.raises(PipelineError, match="has ended"):
        await desk.cancel("waits")
    await runs.close()
    await desk.runs.close()


async def test_a_cancelled_run_without_a_worker_ends_at_once(open_runs: OpenSQL) -> None:
    queue = RunQueue(open_runs())
    await queue.submit(GATE, run_id="r")
    await queue.cancel("r", "no")
    assert await queue.end_cancelled("r")
    state = await queue.runs.load("r")
    assert state is not None and state.failure_reason == "no" and await queue.open() == []
    await queue.runs.close()


async def test_a_run_without_progress_is_given_up(open_runs: OpenSQL) -> None:
    runs = open_runs()
    await RunQueue(runs).submit(graph("a; b; start->a->b->done"), run_id="r")
    takes = 0

    def configure(taken: Submission) -> RunConfig:
        nonlocal takes
        takes += 1
        raise PipelineError("no such template") if takes < 3 else RuntimeError("no such key")

    runner, said = worker(runs, configure=configure, max_takes=3)
    while await RunQueue(runs).open():
        await runner.run(until_empty=True)
        await runs.database.transact(_now("r"))
    state = await runs.load("r")
    assert state is not None and state.failure_reason.startswith(
        "taken 3 times without completing a stage: RuntimeError"
    )
    assert [change for _, change in said] == ["taken", "put back"] * 3 + ["fail"]
    await runs.close()


async def _broken(runs: SQLRuns, body: str, *, head: bool = False) -> None:
    """Submit a run whose state cannot be read, and one beside it."""
    for name in ("broken", "whole"):
        await RunQueue(runs).submit(graph("a; start->a->done"), run_id=name)
    where = "AND section = 'head'" if head else ""
    await runs.database.transact(Statement(f"UPDATE cells SET body = ? WHERE run = 'broken' {where}", (body,)))


async def test_a_run_with_damaged_state_is_set_aside_at_once(
    open_runs: OpenSQL, caplog: pytest.LogCaptureFixture
) -> None:
    runs = open_runs()
    await _broken(runs, "{")
    runner, said = worker(runs)
    async with asyncio.timeout(60):
        await runner.run(until_empty=True)
    assert sorted(said) == [("broken", "fail"), ("whole", "success"), ("whole", "taken")]
    info = next(info for info in await runs.runs() if info.run_id == "broken")
    assert info.status == "fail" and "the checkpoint is damaged" in info.failure_reason
    submission = await RunQueue(runs).find("broken")
    assert submission is not None and (submission.state, submission.takes) == ("ended", 1) and not caplog.records
    await runs.close()


async def test_a_run_that_a_newer_version_has_saved_is_left_to_it_for_a_while(open_runs: OpenSQL) -> None:
    runs = open_runs()
    await _broken(runs, '{"metadata": {"schema_version": 99}}', head=True)
    runner, said = worker(runs, max_takes=2)
    async with asyncio.timeout(60):
        await runner.run(until_empty=True)
        submission = await RunQueue(runs).find("broken")
        assert submission is not None and (submission.state, submission.takes) == ("queued", 1)
        assert submission.trouble is not None and "written by a newer version" in submission.trouble
        while await RunQueue(runs).open():
            await runs.database.transact(_now("broken"))
            await runner.run(until_empty=True)
    assert [change for run, change in said if run == "broken"] == ["put back", "put back", "fail"]
    info = next(info for info in await runs.runs() if info.run_id == "broken")
    assert info.status == "fail" and info.failure_reason.startswith("taken 2 times without completing a stage: ")
    assert info.failure_reason.count("newer version") == 1
    await runs.close()


async def test_a_run_with_unreadable_state_can_be_cancelled(open_runs: OpenSQL) -> None:
    runs = open_runs()
    await _broken(runs, "{")
    queue = RunQueue(runs)
    await queue.cancel("broken", "not needed")
    assert await queue.end_cancelled("broken")
    info = next(info for info in await runs.runs() if info.run_id == "broken")
    assert info.status == "fail" and info.failure_reason.startswith("not needed: ")
    assert [submission.run_id for submission in await queue.open()] == ["whole"]
    await runs.close()


async def test_a_worker_does_not_spin_on_a_run_that_it_cannot_even_take(
    open_runs: OpenSQL, caplog: pytest.LogCaptureFixture
) -> None:
    runs = open_runs()
    await RunQueue(runs).submit(GATE, run_id="r")
    await runs.database.transact(Statement("ALTER TABLE cells RENAME TO away"))
    runner, said = worker(runs, poll=30.0)
    running = asyncio.create_task(runner.run())
    while not caplog.records:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.3)
    runner.stop()
    await running
    assert len(caplog.records) == 1 and said == []
    await runs.close()


def _now(run_id: str) -> Statement:
    """Ends the pause of a run."""
    return Statement("UPDATE queue SET due = NULL WHERE run = ? AND state = 'queued'", (run_id,))


async def test_a_listener_that_fails_stops_no_run(open_runs: OpenSQL, caplog: pytest.LogCaptureFixture) -> None:
    runs = open_runs()
    await RunQueue(runs).submit(graph("a; start->a->done"), run_id="r")

    async def listen(run_id: str, change: str, reason: str) -> None:
        raise ConnectionError("at https://example.org/secret")

    runner, _ = worker(runs)
    runner.on_change = listen
    await runner.run(until_empty=True)
    state = await runs.load("r")
    assert state is not None and state.status == "success"
    assert caplog.text.count("on_change failed: ConnectionError") == 2 and "secret" not in caplog.text
    await runs.close()


def test_a_worker_rests_between_polls_in_every_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = SQLiteRuns(tmp_path / "runs.db")
    transactions, transact = list[int](), runs.database.transact

    async def counted(*statements: Statement) -> Any:
        transactions[-1] += 1
        return await transact(*statements)

    async def slow(stage: Stage) -> str:
        await asyncio.sleep(0.3)
        return "done"

    async def submit_and_work() -> None:
        await RunQueue(runs).submit(graph("a; start->a->done"))
        await runner.run(until_empty=True)

    monkeypatch.setattr(runs.database, "transact", counted)
    runner, _ = worker(runs, configure=lambda taken: RunConfig(handlers={"codergen": slow}), poll=30.0)
    for _ in range(2):
        transactions.append(0)
        asyncio.run(submit_and_work())
    assert transactions[1] < 2 * transactions[0]
    runner.stop()
    asyncio.run(runner.run())  # ends at once
    asyncio.run(runs.close())


async def test_a_stopped_worker_returns_its_runs_in_their_last_states(open_runs: OpenSQL) -> None:
    runs = open_runs()
    await RunQueue(runs).submit(LONG, run_id="r")
    runner, said = worker(runs, configure=lambda taken: RunConfig(handlers=scripted(), sleep=no_wait, on_event=stop))

    async def stop(event: Event) -> None:
        if event.kind == "stage_started" and event.node == "p":
            runner.stop()
            await asyncio.Event().wait()  # until it is cancelled: the run must not get any further meanwhile

    await runner.run()
    assert (await RunQueue(runs).questions(), said) == ([], [("r", "taken")])
    again, _ = worker(runs, configure=lambda taken: RunConfig(handlers=scripted(), sleep=no_wait), patience=60.0)
    running = asyncio.create_task(again.run(until_empty=True))
    while not running.done():
        for question in await RunQueue(runs).questions():
            await RunQueue(runs).answer("r", question.choices[0].key)
        await asyncio.sleep(0.01)
    state = await runs.load("r")
    whole = await run_pipeline(LONG, run_id="r", handlers=scripted(), sleep=no_wait)
    assert state is not None and told(state) == told(whole)
    await runs.close()
