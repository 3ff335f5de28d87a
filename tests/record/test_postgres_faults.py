"""PostgreSQL killed, cut off and fully used: runs go on, and what was acknowledged is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler import ContextCompiler
from context_compiler.errors import StoreError
from context_compiler.record.values import Entry, Record
from tests.record.entries import compiled, request, talk
from tests.support.line import Line
from tests.support.postgres import Cluster

asyncpg = pytest.importorskip("asyncpg")
pool_module = pytest.importorskip("context_compiler.record.pool", exc_type=ImportError)
postgres_module = pytest.importorskip("context_compiler.record.postgres", exc_type=ImportError)
Postgres, PostgresStore = pool_module.Postgres, postgres_module.PostgresStore


class Heard(PostgresStore):
    """A store that remembers what it acknowledged."""

    saved: list[int]

    async def save(self, entry: Entry) -> Record:
        kept = await super().save(entry)
        self.saved.append(kept.id or 0)
        return kept


@pytest.fixture
def cluster(postgres: Cluster) -> Iterator[Cluster]:
    """A cluster that a test may kill."""
    own = Cluster(fsync="on", synchronous_commit="on", full_page_writes="on")
    own.start()
    yield own
    own.remove()


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return ModelResponse(parts=[TextPart(f"answer {len(messages)}")])


async def talk_on(compiler: ContextCompiler, name: str, turns: int) -> None:
    """A conversation whose runs all have to succeed."""
    agent = Agent(FunctionModel(answer), capabilities=[compiler])
    history: list[ModelMessage] = []
    for turn in range(turns):
        done = await agent.run(f"question {turn}", message_history=history, conversation_id=name)
        history = done.all_messages()
    assert len(history) == 2 * turns


async def test_a_server_killed_under_load_loses_nothing_acknowledged(cluster: Cluster):
    store = Heard(cluster.url())
    store.saved = []
    compilers = [ContextCompiler(store=store, system=None) for _ in range(4)]
    load = [asyncio.create_task(talk_on(each, f"talk {number}", 25)) for number, each in enumerate(compilers)]
    while len(store.saved) < 12:
        await asyncio.sleep(0.001)
    await asyncio.to_thread(cluster.kill)
    before = list(store.saved)
    await asyncio.to_thread(cluster.start)
    await asyncio.gather(*load)
    await talk_on(ContextCompiler(store=store, system=None), "later", 2)
    recorded = {record.id for record in await store.views()}
    assert before and set(store.saved) <= recorded
    assert {record.session_id for record in await store.views("later")} == {"later"}
    assert await store.verify() == ()
    await store.close()


DROP = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND state <> ''"


async def test_no_request_is_lost_to_dropped_connections_and_a_restart(cluster: Cluster):
    store, errors = PostgresStore(cluster.url()), list[Exception]()
    compilers = [ContextCompiler(store=store, system=None, on_error=errors.append) for _ in range(3)]
    load = [asyncio.create_task(talk_on(each, f"talk {number}", 20)) for number, each in enumerate(compilers)]
    for _ in range(3):
        await asyncio.sleep(0.1)
        await asyncio.to_thread(cluster.run, DROP)
    await asyncio.to_thread(cluster.kill)
    await asyncio.sleep(0.1)
    await asyncio.to_thread(cluster.start)
    await asyncio.gather(*load)
    for each in compilers:
        await each.aclose()
    turns = [(record.session_id, record.turn_index) for record in await store.views()]
    assert errors and sorted(turns) == [(f"talk {number}", turn) for number in range(3) for turn in range(20)]
    assert await store.verify() == ()
    await store.close()


class Tearing:
    """A pool whose connections break in the middle of an answer, as often as they are told."""

    def __init__(self, pool: Any) -> None:
        self.pool, self.left = pool, 0

    @asynccontextmanager
    async def acquire(self, *, timeout: float | None = None) -> AsyncGenerator[Any]:
        async with self.pool.acquire(timeout=timeout) as connection:
            yield Torn(self, connection)


class Torn:
    def __init__(self, pool: Tearing, connection: Any) -> None:
        self._pool, self._connection = pool, connection

    def __getattr__(self, name: str) -> Any:
        if name in ("fetch", "execute") and self._pool.left:
            self._pool.left -= 1
            raise asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress")
        return getattr(self._connection, name)


@pytest.mark.parametrize("times", [1, 2])
async def test_a_connection_that_breaks_in_the_middle_of_an_answer_keeps_no_request_off_the_record(
    record_url: str, times: int
):
    errors: list[Exception] = []
    async with asyncpg.create_pool(record_url, min_size=0, max_size=2) as pool:
        tearing = Tearing(pool)
        store = PostgresStore(tearing)
        compiler = ContextCompiler(store=store, system=None, on_error=errors.append)
        await talk_on(compiler, "talk", 1)
        for name in ("talk", "another"):
            tearing.left = times
            await talk_on(compiler, name, 2)
            assert tearing.left == 0
        await compiler.aclose()
        assert all(type(error) is StoreError for error in errors)
        assert len(await store.views("talk")) == 3 and len(await store.views("another")) == 2
        assert await store.verify() == ()


async def test_an_exhausted_pool_stops_no_run(record_url: str):
    errors: list[Exception] = []
    async with asyncpg.create_pool(record_url, min_size=0, max_size=1) as pool:
        database = Postgres(pool, patience_s=0.1)
        store = PostgresStore(database)
        compiler = ContextCompiler(store=store, system=None, on_error=errors.append)
        async with pool.acquire():
            await talk_on(compiler, "talk", 1)
        assert errors and all(isinstance(error, StoreError) for error in errors)
        database.patience_s = 600.0
        assert await store.views() == []
        await talk_on(ContextCompiler(store=store, system=None), "talk", 2)
        assert len(await store.views()) == 2


async def test_a_network_that_is_cut_stops_no_run(postgres: Cluster, record_url: str):
    name = record_url.partition("?")[0].rpartition("/")[2]
    line, errors = Line(), list[Exception]()
    async with line.to(postgres.port) as port:
        store = PostgresStore(Postgres(postgres.url(name, port=port), patience_s=0.5))
        compiler = ContextCompiler(store=store, system=None, on_error=errors.append)
        await talk_on(compiler, "before", 1)
        line.whole.clear()
        await talk_on(compiler, "meanwhile", 2)
        assert errors and all(isinstance(error, StoreError) for error in errors)
        line.whole.set()
        await talk_on(ContextCompiler(store=store, system=None), "after", 1)
        sessions = {info.session_id for info in await store.sessions()}
        assert sessions >= {"before", "after"}
        assert await store.verify() == ()
        await store.close()


async def test_two_processes_that_compile_the_same_span_share_the_first_result(record_url: str):
    stores = [PostgresStore(record_url) for _ in range(6)]
    raw = talk(3)
    entries = [
        request(
            raw, session_id="s", run_id=str(number), compile=compiled(raw.ids[0], cache_key="k", summary=f"by {number}")
        )
        for number in range(6)
    ]
    saved = await asyncio.gather(*(store.save(entry) for store, entry in zip(stores, entries, strict=True)))
    assert {record.summary_id for record in saved} == {saved[0].summary_id}
    assert len(await stores[0].summaries("s")) == 1
    assert await stores[0].verify() == ()
    await asyncio.gather(*(store.close() for store in stores))
