"""A request saved in PostgreSQL: two round trips for the usual one, and the same rows as in a file for any."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from context_compiler.record.store import MemoryStore, Store
from context_compiler.record.values import Entry
from tests.record.entries import NOW, Talk, compiled, cycle, request, talk
from tests.support.postgres import Cluster

asyncpg = pytest.importorskip("asyncpg")
postgres_module = pytest.importorskip("context_compiler.record.postgres", exc_type=ImportError)
PostgresStore = postgres_module.PostgresStore

pytestmark = pytest.mark.slow


class Watched:
    """A connection that lists its statements, and does something before one."""

    def __init__(self, pool: WatchedPool, connection: Any) -> None:
        self._pool, self._connection = pool, connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def fetch(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        return await self._see("fetch", query, *args, timeout=timeout)

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        return await self._see("execute", query, *args, timeout=timeout)

    async def _see(self, how: str, query: str, *args: Any, timeout: float | None) -> Any:
        self._pool.statements.append(query)
        if "save_request" in query and (before := self._pool.before_write):
            self._pool.before_write = None
            await before()
        return await getattr(self._connection, how)(query, *args, timeout=timeout)


class WatchedPool:
    """A caller's pool with such connections."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self.statements: list[str] = []
        self.before_write: Callable[[], Awaitable[object]] | None = None

    @asynccontextmanager
    async def acquire(self, *, timeout: float | None = None) -> AsyncIterator[Any]:
        async with self._pool.acquire(timeout=timeout) as connection:
            yield Watched(self, connection)


@pytest.fixture
async def pool(record_url: str) -> AsyncIterator[WatchedPool]:
    async with asyncpg.create_pool(record_url, min_size=0, max_size=2) as made:
        yield WatchedPool(made)


async def rows(store: Store) -> list[str]:
    """The rows of a store, with the ranks of their numbers in place of these, and without the seals that cover them."""
    found = [dict(row) async for row in store.export()]
    ranks: dict[tuple[object, object], int] = {}
    for row in found:
        if isinstance(row.get("id"), int):
            ranks[row["table"], row["id"]] = sum(table == row["table"] for table, _ in ranks)
    for row in found:
        row.pop("seal", None)
        row["id"] = ranks.get((row["table"], row.get("id")), row.get("id"))
        row["session"] = ranks.get(("sessions", row.get("session")))
        row["summary"] = ranks.get(("context_summaries", row.get("summary")), row.get("summary"))
    return sorted(map(repr, (sorted(row.items(), key=str) for row in found)))


def entries() -> list[Entry]:
    """Requests of every kind."""
    long, odd = talk(30), Talk("nul \0 and \ufdd0", "é, 世界")
    made = compiled(long.ids[2], cache_key="k", survival=float("inf"))
    grown = talk(31)
    return [
        request(talk(1)),
        request(talk(2), compile=compiled(talk(2).ids[0], cache_key="first")),
        request(long, talk(3, about="a summary"), compile=made, cycle=cycle(long.ids[2], "state")),
        request(grown, talk(3, about="a summary").then("more", "and more"), cycle=cycle(long.ids[2], "state")),
        request(grown, request_index=1, compile=made),
        request(grown),
        request(talk(4), session_id="another"),
        request(Talk(*talk(4).texts, when=NOW.replace(year=2020)), session_id="with other times"),
        request(talk(2).then("another way", "to go on")),
        request(odd, session_id="od\0d"),
        request(None, session_id="nothing"),
    ]


async def test_any_request_is_the_same_rows_as_elsewhere(pool: WatchedPool):
    store, other = PostgresStore(pool), MemoryStore()
    for entry in entries():
        saved, expected = await store.save(entry), await other.save(entry)
        assert (saved.summary_id is None) == (expected.summary_id is None)
    assert await rows(store) == await rows(other)
    assert await store.verify() == ()
    owned = store.scoped("ann")
    for entry in entries():
        await owned.save(entry)
    assert await store.verify() == ()


async def test_a_usual_request_takes_two_round_trips(pool: WatchedPool):
    store, before = PostgresStore(pool), talk(20)
    await store.save(request(before, compile=compiled(before.ids[3], cache_key="k"), cycle=cycle(before.ids[3], "x")))
    for turn in (21, 22):
        pool.statements.clear()
        await store.save(request(talk(turn), cycle=cycle(before.ids[3], "x")))
        assert len(pool.statements) == 2


@pytest.mark.parametrize("others", ["delete", "the same request", "a later one", "another with its compile"])
async def test_what_others_do_meanwhile_is_seen(pool: WatchedPool, record_url: str, others: str):
    store, other = PostgresStore(pool), PostgresStore(record_url)
    raw = talk(3)
    await store.save(request(talk(2)))
    mine = request(raw, compile=compiled(raw.ids[1], cache_key="k"))
    work = {
        "delete": lambda: other.delete("s"),
        "the same request": lambda: other.save(mine),
        "a later one": lambda: other.save(request(talk(4))),
        "another with its compile": lambda: other.save(request(raw, session_id="t", compile=mine.compile)),
    }
    pool.before_write = work[others]
    saved = await store.save(mine)
    assert pool.before_write is None
    found = await store.view(saved.id or 0)
    assert found is not None and found.summary_id == saved.summary_id is not None
    assert await store.chain(raw.tip) == raw.bodies
    assert len(await store.summaries("s")) + len(await store.summaries("t")) == 1
    assert await store.verify() == ()
    await other.close()


async def test_a_function_that_was_changed_is_found(postgres: Cluster, postgres_url: str):
    store = PostgresStore(postgres_url)
    assert await store.verify() == ()
    name = postgres_url.partition("?")[0].rpartition("/")[2]
    (definition,) = postgres.run("SELECT pg_get_functiondef('context_compiler.save_request'::regproc)", name)
    postgres.execute(definition[0].replace("BEGIN", "BEGIN PERFORM 1;", 1), name)
    assert any("save_request" in defect for defect in await store.verify())
    await store.close()
