"""A database for many tasks, loops and threads: one pool of its own or the caller's, and tables made under a lock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from context_compiler.errors import StoreError
from tests.support.line import Line
from tests.support.postgres import Cluster

pool = pytest.importorskip("context_compiler.record.pool", exc_type=ImportError)
asyncpg = pytest.importorskip("asyncpg")

THINGS = pool.Component(name="things", version=1, statements=("CREATE TABLE {schema}.things (n BIGINT)",))
NAMED = pool.Component(
    name="things",
    version=2,
    statements=("CREATE TABLE {schema}.things (n BIGINT, name TEXT)", "INSERT INTO {schema}.things VALUES (1, 'one')"),
)


async def count(connection: pool.Connection) -> int:
    return await connection.fetchval("SELECT count(*) FROM context_compiler.things")


async def one(connection: pool.Connection) -> int:
    return await connection.fetchval("SELECT 1")


async def jit(connection: pool.Connection) -> str:
    return await connection.fetchval("SHOW jit")


async def test_concurrent_first_uses_create_the_tables_once(postgres_url: str):
    several = [pool.Postgres(postgres_url, size=1 + number) for number in range(6)]  # a pool for each
    assert await asyncio.gather(*(each.run(count, needs=NAMED) for each in several)) == [1] * 6
    await asyncio.gather(*(each.close() for each in several))


async def test_a_pooler_that_refuses_connection_settings_is_accepted(postgres: Cluster, postgres_url: str):
    name = postgres_url.partition("?")[0].rpartition("/")[2]
    async with Line(refused="jit").to(postgres.port) as port:
        database = pool.Postgres(postgres.url(name, port=port))
        assert await database.run(jit) == "off"
        await database.close()


async def test_tables_of_another_version_are_refused_with_a_remedy(postgres_url: str):
    old, new = pool.Postgres(postgres_url), pool.Postgres(postgres_url)
    with pytest.raises(StoreError, match="open it once for writing"):
        await new.run(count, needs=NAMED, read_only=True)
    assert await old.run(count, needs=THINGS) == 0
    with pytest.raises(StoreError, match=r"another version .*\(schema 1, this one knows 2\); give it another database"):
        await new.run(count, needs=NAMED)
    for each in (old, new):
        await each.close()


def test_one_pool_works_in_several_threads_with_their_own_loops(postgres_url: str):
    database = pool.Postgres(postgres_url, size=2)
    results: list[int] = []

    def work() -> None:
        results.append(asyncio.run(database.run(one)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asyncio.run(database.close())
    assert asyncio.run(database.run(one)) == 1
    assert results == [1] * 4
    asyncio.run(database.close())


async def test_a_pool_of_the_caller_is_used_on_its_own_loop_and_stays_open(postgres_url: str):
    async with asyncpg.create_pool(postgres_url, min_size=0, max_size=2) as asyncpg_pool:
        database = pool.Postgres(asyncpg_pool)
        assert await database.run(one) == 1
        assert await asyncio.to_thread(lambda: asyncio.run(database.run(one))) == 1
        await database.close()
        assert await asyncpg_pool.fetchval("SELECT 2") == 2
    with pytest.raises(StoreError, match="pool is closed"):
        await database.run(one)


def test_a_pool_whose_loop_has_ended_raises_an_error(postgres_url: str):
    async def made() -> pool.Postgres:
        asyncpg_pool = asyncpg.create_pool(postgres_url, min_size=0)
        database = pool.Postgres(asyncpg_pool)
        await asyncpg_pool
        await database.run(one)
        await asyncpg_pool.close()
        return database

    database = asyncio.run(made())
    with pytest.raises(StoreError, match="the event loop of the pool has ended"):
        asyncio.run(database.run(one))


async def test_a_cancelled_caller_waits_for_the_end_of_its_work(postgres_url: str):
    database = pool.Postgres(postgres_url)
    steps: list[str] = []
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def work(connection: pool.Connection) -> None:
        loop.call_soon_threadsafe(begun.set)
        await connection.fetchval("SELECT pg_sleep(0.05)")
        steps.append("done")

    task = asyncio.create_task(database.run(work))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps == ["done"]
    await database.close()


def test_a_loop_that_ends_does_not_wait_for_cancelled_work():
    class Lender:
        @asynccontextmanager
        async def acquire(self, *, timeout: float | None = None) -> AsyncIterator[object]:
            yield object()

    ends: list[str] = []

    async def main() -> None:
        begun = asyncio.Event()

        async def work(connection: pool.Connection) -> None:
            begun.set()
            await asyncio.Event().wait()

        async def ask() -> None:
            try:
                await pool.Postgres(Lender()).run(work)
            finally:
                ends.append("asked")

        asking.append(asyncio.create_task(ask()))
        await begun.wait()

    asking: list[asyncio.Task[None]] = []
    thread = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
    thread.start()
    thread.join(30)
    assert ends == ["asked"] and asking[0].cancelled()


async def test_an_exhausted_pool_raises_an_error_in_time(postgres_url: str):
    database = pool.Postgres(postgres_url, size=1, patience_s=0.05)
    release, loop, begun = threading.Event(), asyncio.get_running_loop(), asyncio.Event()

    async def hold(connection: pool.Connection) -> None:
        loop.call_soon_threadsafe(begun.set)
        await asyncio.to_thread(release.wait)

    async def patiently(work: Callable[[pool.Connection], Awaitable[Any]]) -> Any:
        while True:
            with suppress(StoreError):  # on a busy machine connecting takes longer than this pool waits
                return await database.run(work)

    holder = asyncio.create_task(patiently(hold))
    await begun.wait()
    with pytest.raises(StoreError, match="no connection or no answer in time"):
        await database.run(one)
    release.set()
    await holder
    assert await patiently(one) == 1
    await database.close()


async def test_a_closed_pool_finishes_its_work_and_keeps_no_connection(postgres_url: str):
    database, begun, loop = pool.Postgres(postgres_url), asyncio.Event(), asyncio.get_running_loop()

    async def work(connection: pool.Connection) -> int:
        loop.call_soon_threadsafe(begun.set)
        return await connection.fetchval("SELECT 1 FROM pg_sleep(1.2)", timeout=60)

    task = asyncio.create_task(database.run(work))
    await begun.wait()
    await database.close()
    assert await task == 1
    assert await others(postgres_url) == 0
    assert await database.run(one) == 1
    await database.close()


async def test_stores_with_one_address_share_connections_until_the_last_one_closes(postgres_url: str):
    several = [pool.Postgres(postgres_url, size=2, patience_s=60.0) for _ in range(5)]
    slowly = lambda connection: connection.fetchval("SELECT 1 FROM pg_sleep(0.05)", timeout=60)  # noqa: E731
    assert await asyncio.gather(*(each.run(slowly) for each in several)) == [1] * 5
    assert await others(postgres_url) == 2
    first, *rest = several
    await first.close()
    assert await others(postgres_url) == 2
    assert await first.run(one) == 1
    for each in several:
        assert await others(postgres_url) == 2
        await each.close()
    assert await others(postgres_url) == 0


async def test_a_connection_with_an_open_transaction_is_not_reused(postgres_url: str):
    database = pool.Postgres(postgres_url, size=1)

    async def leave(connection: pool.Connection) -> None:
        await connection.execute("BEGIN; CREATE TABLE left_open (n BIGINT)")

    async def find(connection: pool.Connection) -> str | None:
        return await connection.fetchval("SELECT to_regclass('left_open')")

    await database.run(leave)
    assert await database.run(find) is None
    await database.close()


async def test_an_idle_connection_is_closed(postgres_url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pool, "IDLE_S", 0.05)
    database = pool.Postgres(postgres_url)
    await asyncio.gather(*(database.run(one) for _ in range(3)))
    while await others(postgres_url):
        await asyncio.sleep(0.02)
    assert await database.run(one) == 1
    await database.close()


async def others(url: str) -> int:
    """The connections of a database but this one."""
    connection = await asyncpg.connect(url)
    try:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        return await connection.fetchval(query)
    finally:
        await connection.close()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("postgresql://someone:secret@127.0.0.1:1/x", "check that the server runs"),
        ("postgresql://someone:secret@127.0.0.1:port/x", "verify|invalid|check"),
        ("{}_no_such", "create the database first"),
    ],
)
async def test_an_unreachable_address_is_reported_without_its_password(postgres_url: str, url: str, why: str):
    name, _, rest = postgres_url.partition("?")
    database = pool.Postgres(f"{url.format(name)}?{rest}" if "{}" in url else url)
    with pytest.raises(StoreError, match=why) as told:
        await database.run(one)
    assert str(told.value).startswith("postgresql://") and "secret" not in str(told.value)
    await database.close()
