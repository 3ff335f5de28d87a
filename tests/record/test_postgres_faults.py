"""PostgreSQL killed, cut off and fully used: runs go on, and what was acknowledged is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

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


@asynccontextmanager
async def interrupted(url: str, setting: str) -> AsyncGenerator[Any]:
    """A sound record whose server cancels each statement that waits for a lock, while a table is locked."""
    created = PostgresStore(url)
    await created.save(request(talk(3)))
    await created.close()
    other = await asyncpg.connect(url)
    async with asyncpg.create_pool(url, min_size=0, max_size=2, server_settings={setting: "200"}) as pool:
        async with other.transaction():
            await other.execute("LOCK TABLE context_compiler.cycles IN ACCESS EXCLUSIVE MODE")
            yield PostgresStore(pool)
    await other.close()


@pytest.mark.parametrize("setting", ["statement_timeout", "lock_timeout"])
async def test_a_check_that_the_server_cancels_says_nothing_about_the_record(record_url: str, setting: str):
    async with interrupted(record_url, setting) as store:
        with pytest.raises(StoreError, match="canceling statement due to .* timeout; .*try again"):
            await store.verify()
        with pytest.raises(StoreError, match="canceling statement due to .* timeout; .*try again"):
            await store.verify(newer_than_days=1)


@pytest.mark.parametrize("setting", ["statement_timeout", "lock_timeout"])
async def test_an_export_that_the_server_cancels_is_not_said_to_be_complete(record_url: str, setting: str):
    async with interrupted(record_url, setting) as store:
        damaged = list[str]()
        with pytest.raises(StoreError, match="canceling statement due to .* timeout; .*try again"):
            [row async for row in store.export(damaged.append)]
        assert damaged == []


async def test_a_damaged_table_hides_no_other(postgres: Cluster, postgres_url: str):
    store, damaged = PostgresStore(postgres_url), list[str]()
    await store.save(request(talk(3)))
    postgres.execute("ALTER TABLE context_compiler.cycles DROP COLUMN config CASCADE", urlsplit(postgres_url).path[1:])
    tables = {row["table"] async for row in store.export(damaged.append)}
    assert tables == {"contents", "nodes", "sessions", "views", "toolsets"}
    assert [defect.partition(" (")[0] for defect in damaged] == ["cycles: the rest of the table cannot be read"]
    defects = await store.verify()
    assert [defect for defect in defects if "aborted" in defect] == []
    assert [defect.partition(":")[0] for defect in defects if "not checked" in defect] == ["cycles"]
    await store.close()


@pytest.mark.parametrize("keeps_defects", [False, True])
async def test_no_row_is_exported_twice_when_the_connection_is_lost(
    postgres: Cluster, record_url: str, keeps_defects: bool
):
    store, rows, damaged = PostgresStore(record_url), list[str](), list[str]()
    await store.save(request(talk(700)))
    ended = False
    with pytest.raises(StoreError):
        async for row in store.export(damaged.append) if keeps_defects else store.export():
            rows.append(repr(row))
            if not ended:
                statement = f"{DROP} AND datname = current_database()"  # not those of other tests
                ended = bool(await asyncio.to_thread(postgres.run, statement, urlsplit(record_url).path[1:]))
    assert 500 <= len(rows) == len(set(rows)) and damaged == []
    assert len([row async for row in store.export()]) > len(rows)
    await store.close()


class Interrupting(Tearing):
    """A pool whose connections raise an error once, when a table is read after others."""

    def __init__(self, pool: Any, error: Exception) -> None:
        super().__init__(pool)
        self.error, self.left = error, 1

    @asynccontextmanager
    async def acquire(self, *, timeout: float | None = None) -> AsyncGenerator[Any]:
        async with self.pool.acquire(timeout=timeout) as connection:
            yield Interrupted(self, connection)


class Interrupted:
    def __init__(self, pool: Interrupting, connection: Any) -> None:
        self._pool, self._connection = pool, connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def cursor(self, query: str, *values: Any) -> Any:
        if ".views" in query and self._pool.left:
            self._pool.left -= 1
            raise self._pool.error
        return self._connection.cursor(query, *values)


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.SerializationError("canceling statement due to conflict with recovery"),
        asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation"),
        asyncpg.AdminShutdownError("terminating connection due to administrator command"),
    ],
    ids=["conflict", "lost", "shutdown"],
)
@pytest.mark.parametrize("turns", [2, 700])
async def test_an_export_that_is_interrupted_begins_again_only_if_no_row_was_read(
    record_url: str, error: Exception, turns: int
):
    async with asyncpg.create_pool(record_url, min_size=0, max_size=2) as pool:
        store = PostgresStore(Interrupting(pool, error))
        await store.save(request(talk(turns)))
        rows = list[str]()
        if turns == 2:
            rows = [repr(row) async for row in store.export()]
            assert any("'views'" in row for row in rows)
        else:
            with pytest.raises(StoreError, match="interrupted the export after some of its rows: begin it again"):
                async for row in store.export():
                    rows.append(repr(row))
        assert rows and len(rows) == len(set(rows))
        assert await store.verify() == ()
