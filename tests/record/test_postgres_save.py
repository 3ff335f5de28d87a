"""A request saved in PostgreSQL: one round trip for the usual one, and the same rows as in a file for any."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.test import TestModel

from context_compiler import ContextCompiler
from context_compiler.errors import StoreError
from context_compiler.ids import blob_id
from context_compiler.messages.bodies import load_messages
from context_compiler.messages.history import Reader
from context_compiler.record.browse import matching_nodes
from context_compiler.record.copying import copy_record
from context_compiler.record.database import Moment
from context_compiler.record.store import MemoryStore, Store
from context_compiler.record.values import Entry, parse_tools
from context_compiler.tokens import TokenCounter
from tests.record.entries import NOW, TOOLS, Talk, compiled, cycle, request, talk
from tests.support.postgres import Cluster

asyncpg = pytest.importorskip("asyncpg")
pool_module = pytest.importorskip("context_compiler.record.pool", exc_type=ImportError)
postgres_module = pytest.importorskip("context_compiler.record.postgres", exc_type=ImportError)
PostgresStore = postgres_module.PostgresStore
RECORD = postgres_module.RECORD

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
        self._pool.arguments.append(args)
        if "save_request" in query and (before := self._pool.before_write):
            self._pool.before_write = None
            await before()
        return await getattr(self._connection, how)(query, *args, timeout=timeout)


class WatchedPool:
    """A caller's pool with such connections."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self.statements: list[str] = []
        self.arguments: list[tuple[Any, ...]] = []
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
    exported = [dict(row) async for row in store.export()]
    ranks: dict[tuple[object, object], int] = {}
    for row in exported:
        if isinstance(row.get("id"), int):
            ranks[row["table"], row["id"]] = sum(table == row["table"] for table, _ in ranks)
    for row in exported:
        row.pop("seal", None)
        row["id"] = ranks.get((row["table"], row.get("id")), row.get("id"))
        row["session"] = ranks.get(("sessions", row.get("session")))
        row["summary"] = ranks.get(("context_summaries", row.get("summary")), row.get("summary"))
    return sorted(map(repr, (sorted(row.items(), key=str) for row in exported)))


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
        request(talk(5), session_id='"(a, \\"b")\n', error="", compile=compiled(raw_output='\\ "x", (y)')),
        request(None, session_id="nothing"),
    ]


async def test_any_request_is_stored_as_the_same_rows_as_in_other_stores(pool: WatchedPool):
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


def usual(turn: int, **facts: Any) -> Entry:
    """A request with tools, a state and blocks, which goes on with a conversation."""
    entry = request(talk(turn), cycle=cycle(talk(20).ids[3], "x"), **facts)
    return replace(entry, blocks=cycle(talk(turn).tip, f"blocks {turn}", config="blocks"))


async def test_a_usual_request_takes_one_round_trip(pool: WatchedPool):
    store, before = PostgresStore(pool), talk(20)
    await store.save(request(before, compile=compiled(before.ids[3], cache_key="k"), cycle=cycle(before.ids[3], "x")))
    await store.close()  # which waits for the search index
    for turn, index in ((21, 0), (22, 0), (22, 1), (23, 0)):
        pool.statements.clear()
        saved = await store.save(usual(turn, request_index=index))
        assert len(pool.statements) == 1
        view = await store.view(saved.id or 0)
        assert view is not None and view.raw_tip == talk(turn).tip
        assert await store.tools(saved.id or 0) == parse_tools(TOOLS)
    newcomer = PostgresStore(pool)
    await newcomer.sessions()
    for turn, trips in ((25, 2), (26, 1)):
        pool.statements.clear()
        await newcomer.save(usual(turn))
        assert [turn, len(pool.statements)] == [turn, trips]
        await newcomer.close()
    assert await store.verify() == ()


async def test_a_turn_of_an_agent_is_two_writes_of_one_round_trip_each(pool: WatchedPool):
    """One before its request goes out, and one for the answer."""
    store = PostgresStore(pool)
    agent = Agent(TestModel(custom_output_text="an answer"), capabilities=[ContextCompiler(store=store)])
    history = list[ModelMessage]()
    for turn in range(4):
        pool.statements.clear()
        result = await agent.run(f"question {turn}", message_history=history, conversation_id="talk")
        history = result.all_messages()
        await store.close()  # which waits for the search index
        writes = [
            statement for statement in pool.statements if "save_request($1" in statement or "lock_shared" in statement
        ]
        looks = [statement for statement in pool.statements if " AS is_known" in statement]
        assert turn == 0 or [len(writes), len(looks)] == [2, 0]
        assert load_messages(await store.transcript("talk")) == history
    assert await store.verify() == ()


async def test_a_history_without_a_request_is_stored_as_the_same_rows_as_in_other_stores(pool: WatchedPool):
    stores, other = [PostgresStore(pool), PostgresStore(pool)], MemoryStore()

    async def both(turn: int, what: Callable[[Store], Awaitable[object]]) -> None:
        await what(stores[turn // 3 % 2])
        await what(other)

    histories = [*map(talk, (3, 4, 4, 6, 5, 40, 41, 60)), talk(2).then("another way"), Talk()]
    for turn, history in enumerate(histories):
        await both(turn, lambda store, raw=history: store.archive("s", "", raw))
        await both(turn, lambda store, raw=history, turn=turn: store.save(request(raw, talk(turn + 1, about="a view"))))
        await both(turn, lambda store, raw=history: store.archive("s", "", raw.then("an answer")))
        await both(turn, lambda store, raw=history: store.archive("t", "vault", raw))
    recorded, expected = [
        [re.sub(r"'created_at', '.*?'", "", row) for row in await rows(source)] for source in (stores[0], other)
    ]
    assert recorded == expected
    assert await stores[0].transcript("s") == await other.transcript("s")
    owned = stores[0].scoped("ann")
    await owned.archive("s", "", talk(2))
    assert await owned.transcript("s") == talk(2).bodies
    assert await stores[0].verify() == ()


@pytest.mark.parametrize("others", ["delete", "a request", "the same", "later", "message"])
async def test_changes_by_others_before_an_answer_is_saved_are_noticed(pool: WatchedPool, record_url: str, others: str):
    store, other = PostgresStore(pool), PostgresStore(record_url)
    await store.save(usual(3))

    async def remove() -> None:
        async with asyncpg.create_pool(record_url, min_size=0, max_size=1) as made:
            await made.execute(f"DELETE FROM context_compiler.nodes WHERE id = '{talk(3).tip}'")

    work: dict[str, Callable[[], Awaitable[object]]] = {
        "delete": lambda: other.delete("s"),
        "a request": lambda: other.save(usual(4)),
        "the same": lambda: other.archive("s", "", talk(4)),
        "later": lambda: other.archive("s", "", talk(5)),
        "message": remove,
    }
    pool.before_write = work[others]
    await store.archive("s", "", talk(4))
    assert pool.before_write is None
    assert await store.transcript("s") == talk(4).bodies
    await store.save(usual(4))
    if others != "message":  # its request is damaged, and is said to be
        assert await store.verify() == ()
    await other.close()


async def test_a_late_answer_does_not_restore_deleted_data(pool: WatchedPool):
    store = PostgresStore(pool)
    await store.save(usual(3))
    tried = Moment()
    await store.delete("s")
    with pytest.raises(StoreError, match="removed"):
        await store.late(tried).archive("s", "", talk(4))
    assert await store.sessions() == []


async def test_instructions_are_sent_once_in_a_conversation(pool: WatchedPool):
    store, reader, sent = PostgresStore(pool), Reader(TokenCounter()), list[ModelMessage]()
    for turn in range(4):
        sent.append(ModelRequest(parts=[UserPromptPart(content=f"question {turn}")], instructions="Be kind. " * 50))
        chain = reader.read(sent).chain
        pool.statements.clear()
        pool.arguments.clear()
        saved = await store.save(request(chain, run_id=f"run-{turn}"))
        seen = zip(pool.statements, pool.arguments, strict=True)
        (values,) = [arguments for query, arguments in seen if "save_request($1" in query]
        assert (blob_id(b"Be kind. " * 50) in values[4]) == (turn == 0)
        assert await store.chain(saved.raw_tip or "") == [chain.body(position) for position in range(len(sent))]
        sent.append(ModelResponse(parts=[TextPart(content=f"answer {turn}")]))
    assert await store.verify() == ()


async def test_stores_that_take_turns_with_a_conversation_save_the_same_as_one(pool: WatchedPool):
    stores, other = [PostgresStore(pool), PostgresStore(pool)], MemoryStore()
    for turn in (1, 2, 3, 4, 6, 5, 7, 8, 8, 40, 41):
        for entry in (usual(turn), usual(turn, request_index=turn % 2)):
            await stores[turn // 2 % 2].save(entry)
            await other.save(entry)
    assert await rows(stores[0]) == await rows(other)
    assert await stores[0].verify() == ()


@pytest.mark.parametrize(
    "others", ["delete", "delete and begin anew", "restore", "tools", "message", "state", "the same", "later"]
)
async def test_a_remembered_conversation_may_have_been_deleted(pool: WatchedPool, record_url: str, others: str):
    store, other = PostgresStore(pool), PostgresStore(record_url)
    await store.save(usual(2))
    await store.save(usual(3))

    async def begin_anew() -> None:
        await other.delete("s")
        await other.save(request(talk(1)))

    async def restore() -> None:
        await other.delete("s")
        await remove("ALTER SEQUENCE context_compiler.sessions_numbers RESTART")
        await other.save(usual(3, session_id="t"))  # which gets the number that the other one had

    async def remove(statement: str) -> None:
        async with asyncpg.create_pool(record_url, min_size=0, max_size=1) as made:
            await made.execute(statement.replace("FROM ", "FROM context_compiler."))

    state = blob_id(b"x")
    work: dict[str, Callable[[], Awaitable[object]]] = {
        "delete": lambda: other.delete("s"),
        "delete and begin anew": begin_anew,
        "restore": restore,
        "tools": lambda: remove("DELETE FROM toolsets"),
        "message": lambda: remove(f"DELETE FROM nodes WHERE id = '{talk(3).tip}'"),
        "state": lambda: remove(f"DELETE FROM contents WHERE hash = '{state}'"),
        "the same": lambda: other.save(usual(4)),
        "later": lambda: other.save(usual(5)),
    }
    pool.before_write = work[others]
    saved = await store.save(usual(4))
    assert pool.before_write is None
    view = await store.view(saved.id or 0)
    assert view is not None and (view.session_id, view.raw_tip) == ("s", talk(4).tip)
    assert await store.chain(talk(4).tip) == talk(4).bodies
    assert await store.tools(saved.id or 0) == parse_tools(TOOLS)
    assert await store.find_cycle([talk(20).ids[3]], cycle("", "").config) is not None
    if others != "message":  # its requests are damaged, and are said to be
        assert await store.verify() == ()
    await other.close()


@pytest.mark.parametrize("others", ["delete", "the same request", "a later one", "another with its compile"])
async def test_concurrent_changes_by_others_are_noticed(pool: WatchedPool, record_url: str, others: str):
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
    view = await store.view(saved.id or 0)
    assert view is not None and view.summary_id == saved.summary_id is not None
    assert await store.chain(raw.tip) == raw.bodies
    assert len(await store.summaries("s")) + len(await store.summaries("t")) == 1
    assert await store.verify() == ()
    await other.close()


@pytest.mark.parametrize(
    "change",
    ["views SET tokens_sent = 1", "views SET id = id + 9", "cycles SET rowid = rowid + 9", "toolsets SET id = id + 9"],
)
async def test_a_row_that_the_database_numbered_is_sealed(pool: WatchedPool, record_url: str, change: str):
    store = PostgresStore(pool)
    for turn in (2, 3):
        await store.save(usual(turn))
    copied = await copy_record(store, MemoryStore(), lambda table: None)
    assert copied.defects == await store.verify() == ()
    async with asyncpg.create_pool(record_url, min_size=0, max_size=1) as made:
        await made.execute(f"UPDATE context_compiler.{change}")
    with pytest.raises(StoreError, match="changed since"):
        await copy_record(store, MemoryStore(), lambda table: None)
    assert any(f"{change.split()[0]} " in defect and "changed since" in defect for defect in await store.verify())


async def test_a_changed_database_function_is_detected(postgres: Cluster, postgres_url: str):
    store = PostgresStore(postgres_url)
    assert await store.verify() == ()
    name = postgres_url.partition("?")[0].rpartition("/")[2]
    (definition,) = postgres.run("SELECT pg_get_functiondef('context_compiler.save_request'::regproc)", name)
    postgres.execute(definition[0].replace("BEGIN", "BEGIN PERFORM 1;", 1), name)
    assert any("save_request" in defect for defect in await store.verify())
    await store.close()


async def test_text_is_found_at_once_and_alike_after_indexing(pool: WatchedPool):
    """Words of the index are written after some saves, in the background; until then a search reads the text itself."""
    store, other = PostgresStore(pool), MemoryStore()
    filling = " ".join(f"word{number}" for number in range(2_500))  # which takes several rows of the index
    entries = [
        request(Talk("we sailed to Oslo", f"long {filling} end of Oslo"), session_id="one"),
        request(Talk("Ist die Größe nul\0l?", "OSLO fjords, and Oslo's fjord"), session_id="two"),
        request(Talk("and then to Rome", "by way of oslo fj\u00f6rd"), session_id="three"),
    ]
    queries = (
        "oslo",
        "OSLO FJ",
        "s fjord",
        "word998 word999 word1000 word1001",
        "of oslo",
        "größe nul",
        "then to",
    )

    async def search(source: Any) -> list[list[tuple[str, str]]]:
        return [await source.perform(lambda db, words=words: matching_nodes(db, words, 10)) for words in queries]

    async def waiting() -> int:
        count = "SELECT count(*) FROM context_compiler.messages_fts WHERE words IS NULL"
        return (await store.perform(lambda db: db.run(count).fetchone()))[0]

    await store.save(request(talk(1)))
    await store.close()
    assert await waiting() == 0
    for entry in entries:
        await store.save(entry)
        await other.save(entry)
    assert await waiting() == 6
    before = await search(store)
    assert before == await search(other)
    assert await search(store.scoped("ann")) == [[]] * len(queries)
    newcomer = PostgresStore(pool)
    await newcomer.save(request(talk(2)))
    await newcomer.close()
    assert await waiting() == 0
    assert await search(store) == before
    assert await store.verify() == ()
    for name in ("one", "two", "three"):
        await store.delete(name)
    assert not any(await search(store))
