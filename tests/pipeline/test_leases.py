"""A run has one owner on many machines: one that is dead is followed, one that is slow writes nothing more."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler import pipeline
from context_compiler.errors import PipelineError, RunOwnedError
from context_compiler.pipeline import Event, Outcome, RunConfig, RunQueue, SQLRuns, Stage, Worker, run_pipeline
from context_compiler.pipeline.stores.sql import Statement
from tests.pipeline.conftest import opened
from tests.pipeline.playing import graph, no_wait
from tests.pipeline.resuming import LONG, scripted, told
from tests.pipeline.test_kept import INFO, STATE
from tests.pipeline.test_killed import kill_workers
from tests.support.postgres import Cluster, programs

SLOW = graph("a; b; start->a->b->done")


async def expire(runs: SQLRuns, run_id: str) -> None:
    """Let the lease of a run end, as if its owner had not been heard of for long."""
    await runs.database.transact(Statement("UPDATE leases SET until = NOW - 1 WHERE run = ?", (run_id,)))


async def test_an_owner_with_an_expired_lease_writes_nothing_more(postgres_url: str) -> None:
    slow, other = opened(postgres_url), opened(postgres_url)
    event = Event(kind="model_requested", run_id="r", sequence=1, at="now")
    async with slow.own("r"):
        await slow.begin(INFO, {})
        await slow.save(STATE)
        await expire(slow, "r")
        await slow.save(replace(STATE, context={"late": 1}))  # nobody has followed yet
        async with other.own("r"):
            for write in (slow.save(STATE), slow.add("r", event), slow.begin(replace(INFO, goal="x"), {})):
                with pytest.raises(RunOwnedError, match="taken over"):
                    await write
            await slow.add("r", replace(event, kind="stage_started", sequence=2))  # which would be written later
            assert await slow.events("r") == []
            await other.save(replace(STATE, context={"mine": 1}))
            await other.add("r", event)
            await slow.add("r", replace(event, kind="stage_started", sequence=3))
        with pytest.raises(RunOwnedError, match="taken over"):
            await slow.save(STATE)
    state = await other.load("r")
    assert state is not None and state.context == {"mine": 1}
    assert [stored.sequence for stored in await other.events("r")] == [1]
    await slow.close()
    await other.close()


async def test_events_are_written_with_a_state_soon_and_at_the_end(postgres_url: str) -> None:
    runs, other = opened(postgres_url), opened(postgres_url)

    async def seen() -> list[int]:
        return [stored.sequence for stored in await other.events("r")]

    def event(number: int) -> Event:
        return Event(kind="stage_started", run_id="r", sequence=number, at="now")

    async with runs.own("r"):
        await runs.begin(INFO, {})
        for number in (1, 2):
            await runs.add("r", event(number))
        await runs.save(STATE)
        assert await seen() == [1, 2]
        await runs.add("r", event(3))
        async with asyncio.timeout(30):
            while await seen() != [1, 2, 3]:
                await asyncio.sleep(0.02)
        await runs.add("r", event(4))
    assert await seen() == [1, 2, 3, 4]
    await runs.close()
    await other.close()


async def test_an_owner_with_an_expired_lease_changes_nothing_in_the_queue(postgres_url: str) -> None:
    slow, other = opened(postgres_url), opened(postgres_url)
    late, queue = RunQueue(slow), RunQueue(other)
    await queue.submit(SLOW, run_id="r")
    async with slow.own("r"):
        await expire(slow, "r")
        async with other.own("r"):
            for write in (late.end("r"), late.take("r", "slow", 0), late.put_back("r", "late", 1.0)):
                with pytest.raises(RunOwnedError, match="taken over"):
                    await write
            entry = await queue.find("r")
            assert entry is not None and (entry.state, entry.worker, entry.trouble) == ("queued", None, None)
            taken = await queue.take("r", "other", 0)
            assert taken is not None and (taken.state, taken.worker, taken.takes) == ("running", "other", 1)
    await slow.close()
    await other.close()


async def test_the_work_of_a_run_stops_when_the_run_is_taken_over(postgres_url: str) -> None:
    slow, other = pipeline.PostgresRuns(postgres_url, lease=1.5), opened(postgres_url)
    there, ended = asyncio.Event(), False

    async def work(stage: Stage) -> Outcome:
        nonlocal ended
        there.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended = True
        return Outcome()

    running = asyncio.create_task(run_pipeline(SLOW, runs=slow, run_id="r", handlers={"codergen": work}))
    await asyncio.wait({running, asyncio.ensure_future(there.wait())}, return_when=asyncio.FIRST_COMPLETED)
    assert there.is_set()
    while True:
        await expire(other, "r")
        try:
            async with other.own("r"):
                with pytest.raises(RunOwnedError, match="taken over"):
                    await running
            break
        except RunOwnedError:  # it renewed its lease in between
            await asyncio.sleep(0)
    assert ended
    await slow.close()
    await other.close()


class Gated:
    """A database whose renewals of leases end when they are let to."""

    name = "gated"

    def __init__(self) -> None:
        self.asked, self.gate = asyncio.Event(), asyncio.Event()

    async def transact(self, *statements: Statement) -> list[Sequence[Sequence[Any]]]:
        if statements[0].text.startswith("UPDATE leases SET until = NOW"):
            self.asked.set()
            await self.gate.wait()
        return [[(1,)]]

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("steps", range(6))
async def test_a_run_can_be_released_at_any_step_of_a_renewal(steps: int) -> None:
    pytest.importorskip("asyncpg")
    runs, database = pipeline.PostgresRuns("postgresql://nobody@localhost/none", lease=0.01), Gated()
    runs.database = database
    async with asyncio.timeout(10):
        async with runs.own("r"):
            await database.asked.wait()
            database.gate.set()
            for _ in range(steps):
                await asyncio.sleep(0)


async def test_the_clock_of_a_worker_does_not_end_a_lease(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = opened(postgres_url), opened(postgres_url)
    clock = time.time
    async with first.own("r"):
        monkeypatch.setattr(time, "time", lambda: clock() + 86_400)
        with pytest.raises(RunOwnedError, match="under way elsewhere"):
            async with second.own("r"):
                pass
        assert await second.owned(["r", "other"]) == {"r"}
    await first.close()
    await second.close()


async def test_events_in_the_course_of_writing_survive_the_loss_of_a_lease(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, asked, gate = opened(postgres_url), asyncio.Event(), asyncio.Event()
    transact = runs.database.transact

    async def slow(*statements: Statement) -> list[Sequence[Sequence[Any]]]:
        if "unnest" in statements[0].text and not asked.is_set():
            asked.set()
            await gate.wait()
        return await transact(*statements)

    monkeypatch.setattr(runs.database, "transact", slow)
    async with runs.own("r"):
        await runs.begin(INFO, {})
        await runs.add("r", Event(kind="stage_started", run_id="r", sequence=1, at="now"))
        await asked.wait()
        asyncio.get_running_loop().call_later(0.3, gate.set)
    await gate.wait()
    other = opened(postgres_url)
    assert [event.sequence for event in await other.events("r")] == [1]
    await runs.close()
    await other.close()


INNER = graph("x; start->x->done")
OUTER = 'm [shape=house stack.child_dotfile="%s" "manager.poll_interval"="10ms"]; a; start->m->a->done'


async def stopped_in_its_child(address: str, folder: Path) -> list[str]:
    """Submit the run `r`, and stop its worker while it supervises the child `r.m.1`; the keys of stages so far."""
    (folder / "child.dot").write_text(INNER)
    runs, there, seen = opened(address), asyncio.Event(), list[str]()
    await RunQueue(runs).submit(graph(OUTER % (folder / "child.dot")), run_id="r")

    async def work(stage: Stage) -> Outcome:
        seen.append(stage.key)
        there.set()
        await asyncio.Event().wait()
        return Outcome()

    worker = Worker(runs=runs, configure=lambda taken: RunConfig(handlers={"codergen": work}), poll=0.02)
    running = asyncio.create_task(worker.run())
    await asyncio.wait_for(there.wait(), 30)
    worker.stop()
    await running
    await runs.close()
    return seen


async def lease(runs: SQLRuns, run_id: str, seconds: float) -> None:
    """Let a run be owned for some more seconds, as if its owner had died just now."""
    held = Statement("INSERT INTO leases VALUES (?, 1, 'dead', NOW + ?)", (run_id, seconds))
    await runs.database.transact(held)


async def test_taking_a_run_over_waits_for_the_lease_of_its_child(postgres_url: str, tmp_path: Path) -> None:
    seen = await stopped_in_its_child(postgres_url, tmp_path)
    runs = opened(postgres_url)
    await lease(runs, "r.m.1", 1.0)

    async def work(stage: Stage) -> Outcome:
        seen.append(stage.key)
        return Outcome()

    configure = lambda taken: RunConfig(handlers={"codergen": work})  # noqa: E731
    await Worker(runs=runs, configure=configure, poll=0.02).run(until_empty=True)
    state = await runs.load("r")
    assert state is not None and (state.status, state.failure_reason) == ("success", "")
    assert seen == ["r.m.1/x/1/1", "r.m.1/x/1/1", "r/a/1/1"]
    await runs.close()


async def test_a_worker_opens_at_most_eight_connections_at_any_concurrency(postgres_url: str) -> None:
    asyncpg = pytest.importorskip("asyncpg")
    places, asked, full = 20, 0, asyncio.Event()
    runs, looking = opened(postgres_url), await asyncpg.connect(postgres_url)

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        nonlocal asked
        asked += 1
        if asked == places:
            full.set()
        await full.wait()  # until each run has recorded a request
        return ModelResponse(parts=[TextPart("ok")])

    for number in range(places):
        await RunQueue(runs).submit(graph("a [prompt=x]; b [prompt=y]; start->a->b->done"), run_id=f"r{number}")
    configure = lambda taken: RunConfig(model=FunctionModel(answer), store=postgres_url)  # noqa: E731
    worker = asyncio.create_task(
        Worker(runs=runs, configure=configure, poll=0.05, concurrency=places).run(until_empty=True)
    )
    counts: list[int] = []
    while not worker.done():
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        counts.append(await looking.fetchval(query))
        await asyncio.sleep(0.02)
    await worker
    assert full.is_set() and 0 < max(counts) <= 8
    assert {info.status for info in await runs.runs()} == {"success"}
    await looking.close()
    await runs.close()


async def test_a_process_cannot_write_to_a_run_that_another_owns(postgres_url: str) -> None:
    owner, other = opened(postgres_url), opened(postgres_url)
    async with owner.own("r"):
        await owner.begin(INFO, {})
        with pytest.raises(PipelineError, match="taken over"):
            await other.save(STATE)
    await other.save(STATE)
    await owner.close()
    await other.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_runs_with_killed_workers_end_as_if_undisturbed(postgres_url: str) -> None:
    said = kill_workers(postgres_url)
    assert said["kills"] == 4 and said["wrong"] == [] and said["ok"]


@pytest.mark.skipif(programs() is None, reason="PostgreSQL is not installed")
async def test_a_database_that_restarts_delays_runs_and_loses_none() -> None:
    pytest.importorskip("asyncpg")
    cluster = Cluster(synchronous_commit="on")
    await asyncio.to_thread(cluster.start)
    restarts = iter((40, 90))
    left = next(restarts)

    async def listen(event: Event) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            left = next(restarts, 0)
            await asyncio.to_thread(cluster.kill)
            await asyncio.to_thread(cluster.start)

    try:
        runs = opened(cluster.url())
        names = ["r0", "r1", "r2"]
        for name in names:
            await RunQueue(runs).submit(LONG, run_id=name, options={"auto_approve": True})
        config = RunConfig(handlers=scripted(), sleep=no_wait, on_event=listen)
        await Worker(runs=runs, configure=lambda taken: config, poll=0.02).run(until_empty=True)
        for name in names:
            state, whole = (
                await runs.load(name),
                await run_pipeline(LONG, run_id=name, handlers=scripted(), sleep=no_wait),
            )
            assert state is not None and told(state) == told(whole)
        await runs.close()
    finally:
        await asyncio.to_thread(cluster.remove)
