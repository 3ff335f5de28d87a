"""Removing: what nothing else needs is gone for good, and what anything else needs is untouched."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import pytest

from context_compiler.errors import StoreError
from context_compiler.record.rows import BrokenReference
from context_compiler.record.store import SQLiteStore, Store
from tests.record.entries import Talk, ask, compiled, cycle, days_ago, request, talk
from tests.support.postgres import Cluster


async def rows(store: Store) -> list[str]:
    return sorted([str(dict(row)) async for row in store.export()])


async def test_deleting_the_only_conversation_leaves_nothing(store: Store):
    raw = talk(3)
    await store.save(request(raw, Talk("a summary"), compile=compiled(raw.ids[0], cache_key="k"), cycle=cycle(raw.tip)))
    assert await store.delete("s") == 1
    assert await rows(store) == []
    assert await store.find_compile("k") is None
    assert await store.find_cycle(raw.ids, "c") is None
    with pytest.raises(StoreError):
        await store.chain(raw.tip)


async def test_pruning_with_an_unlimited_age_removes_nothing(store: Store):
    await store.save(request(talk(3), Talk("a summary")))
    assert await store.prune(older_than_days=1e12) == 0
    assert await rows(store)


async def test_deleting_a_fork_keeps_the_trunk_unchanged(store: Store):
    trunk = talk(3)
    await store.save(request(trunk, Talk("a summary", "of the trunk")))
    before = await rows(store)
    await store.save(request(trunk.then("yes", "and then"), session_id="fork", compile=compiled(trunk.ids[2])))
    await store.delete("fork")
    assert await rows(store) == before


async def test_deleting_the_trunk_leaves_the_fork_whole(store: Store):
    trunk = talk(3)
    fork = trunk.then("yes", "and then")
    await store.save(request(trunk.then("no")))
    await store.save(request(fork, session_id="fork"))
    await store.delete("s")
    assert await store.transcript("fork") == fork.bodies
    assert [info.session_id for info in await store.sessions()] == ["fork"]


async def test_messages_that_many_conversations_share_go_with_the_last_of_them(store: Store):
    random, chains = Random(7), [talk(2), Talk("a summary")]
    for number in range(12):
        raw = random.choice(chains).then(*random.sample(["yes", "no", "go on", "and then"], random.randint(1, 3)))
        view, compile = random.choice([None, *chains]), random.choice([None, compiled(raw.ids[0])])
        name = f"s{number % 6}"
        compile = compile and dataclasses.replace(compile, session_id=name)
        await store.save(request(raw, view, session_id=name, compile=compile, cycle=cycle(raw.tip, f"state {number}")))
        chains.append(raw)
    for number in range(6):
        assert await store.delete(f"s{number}") == 2
        left = await rows(store)
        await store.prune()  # looks at everything
        assert await rows(store) == left and await store.verify() == ()
    assert await rows(store) == []


async def test_deleting_a_conversation_leaves_no_branch_that_it_had_left(store: Store):
    asked = Talk("a question")
    await store.save(request(asked))
    for answer in ("a secret answer", "another answer"):
        await store.archive("s", "", asked.then(answer))
    assert await store.delete("s") == 1
    assert await rows(store) == []


async def test_deleting_a_conversation_without_requests_leaves_no_history_that_it_had_left(store: Store):
    for history in (talk(9), talk(2).then("another answer"), Talk("another beginning", "and more"), Talk("a third")):
        await store.archive("s", "", history)
    await store.archive("other", "", talk(4))
    assert await store.delete("s") == 0
    assert [row["table"] async for row in store.export()].count("nodes") == len(talk(4).ids)
    assert await store.transcript("other") == talk(4).bodies
    assert await store.delete("other") == 0
    assert await rows(store) == []


async def test_deleting_a_conversation_leaves_no_long_branch_that_it_had_left(store: Store):
    await store.save(request(talk(2)))
    for history in (talk(9), talk(2).then("another answer")):
        await store.archive("s", "", history)
    assert await store.delete("s") == 1
    assert await rows(store) == []


async def test_deleting_a_conversation_keeps_the_branch_in_which_another_goes_on(store: Store):
    asked = talk(2)
    left = asked.then("an answer", "and more", "and again")
    await store.save(request(asked))
    await store.archive("s", "", left)
    await store.archive("fork", "", left)
    await store.archive("s", "", asked.then("another answer"))
    await store.delete("s")
    assert await store.transcript("fork") == left.bodies
    assert [row["table"] async for row in store.export()].count("nodes") == len(left.ids)
    await store.delete("fork")
    assert await rows(store) == []


async def test_deleting_a_conversation_leaves_no_state_that_a_later_one_replaced(store: Store):
    raw = talk(2)
    for index, state in enumerate("ABC"):
        await store.save(request(raw, request_index=index, cycle=cycle(raw.tip, state)))
    await store.save(request(raw, session_id="other", cycle=cycle(raw.tip, "A")))
    await store.delete("s")
    assert await store.find_cycle(raw.ids, "c") == cycle(raw.tip, "A")
    contents = [row["body"] async for row in store.export() if row["table"] == "contents"]
    assert "A" in contents and "B" not in contents and "C" not in contents
    await store.delete("other")
    assert await rows(store) == []


async def test_messages_that_only_a_view_needs_are_kept(store: Store):
    view = Talk("a summary", "and", "then")
    await store.save(request(talk(2), view))
    await store.save(request(talk(2), session_id="gone"))
    await store.delete("gone")
    assert await store.chain(view.tip) == view.bodies


async def test_a_compile_that_another_conversation_uses_becomes_its_own(store: Store):
    raw = talk(2)
    made = await store.save(request(raw, compile=compiled(raw.ids[0], cache_key="k")))
    await store.save(request(raw, session_id="heir", summary_id=made.summary_id))
    await store.delete("s")
    (view,) = await store.views()
    assert view.compile is not None and view.compile.session_id == "heir"
    assert await store.find_compile("k") == (1, view.compile)
    assert await store.summaries("heir") == [view.compile]


async def test_a_deleted_history_can_be_recorded_again(store: Store):
    raw = talk(3)
    await store.save(request(raw))
    await store.delete("s")
    await store.save(request(raw))
    assert await store.transcript("s") == raw.bodies


async def test_a_number_is_never_reused(store: Store):
    gone = await store.save(request(talk(3), compile=compiled(talk(3).ids[0], cache_key="k")))
    assert await store.delete("s") == 1
    ships = talk(3, about="ships")
    other = await store.save(request(ships, compile=compiled(ships.ids[0]), session_id="other"))
    assert other.id and gone.id and other.id > gone.id and other.summary_id != gone.summary_id
    with pytest.raises(BrokenReference):
        await store.save(request(talk(4), summary_id=gone.summary_id))
    assert [view.session_id for view in await store.views()] == ["other"] and await store.verify() == ()


async def test_pruning_by_age_keeps_newer_requests(store: Store):
    for turn, age in ((1, 40), (2, 20), (3, 0)):
        await store.save(request(talk(turn), created_at=days_ago(age)))
    assert await store.prune(older_than_days=30) == 1
    assert [record.turn_index for record in await store.views()] == [2, 1]


async def test_pruning_by_number_keeps_the_newest_of_each_session(store: Store):
    for session in ("a", "b"):
        for turn in range(1, 5):
            await store.save(request(talk(turn, about=session), session_id=session))
    assert await store.prune(keep_last=2) == 4
    assert [record.turn_index for record in await store.views("a")] == [3, 2]
    assert [record.turn_index for record in await store.views("b")] == [3, 2]


async def test_pruning_by_age_and_number_keeps_requests_that_are_new_by_either(store: Store):
    for turn in range(1, 5):
        await store.save(request(talk(turn), created_at=days_ago(50 - 10 * turn)))
    assert await store.prune(older_than_days=15, keep_last=2) == 2
    assert [record.turn_index for record in await store.views()] == [3, 2]


async def test_pruning_nothing_removes_nothing_that_is_needed(store: Store):
    raw = talk(2)
    await store.save(request(raw, compile=compiled(raw.ids[0]), cycle=cycle(raw.ids[1])))
    before = await rows(store)
    assert await store.prune() == 0
    assert await rows(store) == before


async def test_pruning_keeps_the_raw_history_and_drops_old_views(store: Store):
    first, last = Talk("first summary"), Talk("last summary")
    await store.save(request(talk(2), first))
    await store.save(request(talk(3), last))
    assert await store.prune(keep_last=1) == 1
    assert await store.transcript("s") == talk(3).bodies
    assert await store.chain(last.tip) == last.bodies
    with pytest.raises(StoreError):
        await store.chain(first.tip)


async def test_pruning_keeps_the_compiles_that_remaining_requests_use(store: Store):
    raw = talk(4)
    made = await store.save(request(talk(1), compile=compiled(raw.ids[0], cache_key="used")))
    await store.save(request(talk(2), compile=compiled(raw.ids[0], cache_key="idle", turn_index=1)))
    failed = compiled(raw.ids[0], status="failed", turn_index=3)
    await store.save(request(raw, summary_id=made.summary_id, compile=failed))
    assert await store.prune(keep_last=1) == 2
    assert [summary.cache_key for summary in await store.summaries("s")] == [None, "used"]


async def test_pruning_keeps_the_newest_cycle(store: Store):
    raw = talk(4)
    for position in (2, 4):
        await store.save(request(raw, request_index=position, cycle=cycle(raw.ids[position], str(position))))
    await store.prune(keep_last=5)
    assert await store.find_cycle(raw.ids, "c") == cycle(raw.ids[4], "4")
    assert await store.find_cycle(raw.ids[:4], "c") is None


async def test_pruning_only_cycles_removes_their_contents_and_no_other(store: Store):
    raw = talk(4)
    for position in (2, 4):
        await store.save(request(raw, request_index=position, cycle=cycle(raw.ids[position], str(position))))
    before = await rows(store)
    assert await store.prune(older_than_days=30) == 0  # no request is so old
    gone = sorted(set(before) - set(await rows(store)))
    assert ["'table': 'contents'" in gone[0], "'table': 'cycles'" in gone[1], len(gone)] == [True, True, 2]
    assert await store.find_cycle(raw.ids, "c") == cycle(raw.ids[4], "4")
    assert await store.transcript("s") == raw.bodies and await store.verify() == ()


async def test_a_conversation_without_remaining_requests_is_removed(store: Store):
    await store.save(request(talk(3), session_id="old", created_at=days_ago(90)))
    await store.save(request(talk(2)))
    await store.prune(older_than_days=30)
    assert [info.session_id for info in await store.sessions()] == ["s"]
    assert await store.transcript("old") == []


async def test_a_history_saved_without_requests_is_never_pruned(store: Store):
    await store.archive("kept", "", talk(2))
    await store.save(request(talk(3), session_id="old", created_at=days_ago(90)))
    assert await store.prune(older_than_days=30, keep_last=0) == 1
    assert await store.transcript("kept") == talk(2).bodies
    assert await store.delete("kept") == 0
    assert await rows(store) == []


async def test_rows_deleted_elsewhere_during_a_save_are_saved_again(file: SQLiteStore):
    class Slow(Talk):
        """While its first new body is read, another connection deletes what it builds on."""

        def body(self, index: int) -> bytes:
            if not self.read:
                asyncio.run(SQLiteStore(file.path).delete("s"))
            return super().body(index)

    await file.save(request(talk(3)))
    longer = Slow(*talk(4).texts)
    await file.save(request(longer))
    assert await file.transcript("s") == longer.bodies
    assert await file.verify() == ()


async def test_a_deleted_text_is_nowhere_in_the_files(file: SQLiteStore, tmp_path: Path):
    await file.save(request(talk(20)))
    await file.save(request(Talk("the password is swordfish"), session_id="secret"))
    assert b"swordfish" in everything(tmp_path)
    await file.delete("secret")
    assert b"swordfish" not in everything(tmp_path)


async def test_a_text_that_sqlite_moved_before_its_deletion_is_nowhere_in_the_files(file: SQLiteStore, tmp_path: Path):
    await file.save(request(Talk("the password is swordfish"), session_id="secret"))
    for number in range(100):
        await file.delete("nobody")
        await file.save(request(Talk(f"question {number}"), session_id="other", run_id=str(number)))
    await file.delete("secret")
    assert b"swordfish" not in everything(tmp_path)


async def test_a_text_that_others_read_during_its_deletion_is_overwritten_when_any_process_saves(tmp_path: Path):
    agent = SQLiteStore(tmp_path / "context.db")
    await agent.save(request(Talk("the password is swordfish"), session_id="secret"))
    reader = sqlite3.connect(agent.path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM views").fetchone()
    other = SQLiteStore(agent.path, busy_timeout_ms=10)
    assert await other.delete("secret") == 1
    await other.close()
    reader.close()
    assert b"swordfish" in everything(tmp_path)
    await agent.save(request(talk(2)))
    assert b"swordfish" not in everything(tmp_path)
    assert ask(agent.path, "SELECT name FROM counters") == [("removals",)]
    await agent.close()


async def test_a_deleted_text_is_not_found_by_searching(file: SQLiteStore):
    await file.save(request(talk(2, about="sailing")))
    await file.save(request(talk(2, about="chess"), session_id="secret"))
    await file.delete("secret")
    assert search(file.path, "chess") == []
    assert len(search(file.path, "sailing")) == 3


async def test_deleting_frees_the_space(file: SQLiteStore, tmp_path: Path):
    await file.save(request(talk(2)))
    small = len(everything(tmp_path))
    await file.save(request(Talk(*(str(Random(n).random()) * 100 for n in range(500))), session_id="large"))
    await file.delete("large")
    assert len(everything(tmp_path)) < small + 20_000


def everything(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir() if not path.name.endswith("-shm"))


def search(path: Path, words: str) -> list[str]:
    db = sqlite3.connect(path)
    found = db.execute("SELECT node FROM messages_fts WHERE messages_fts MATCH ?", (words,)).fetchall()
    db.close()
    return [row[0] for row in found]


class Counted:
    """A connection that counts the rows which the database handles to remove some."""

    def __init__(self, pool: CountedPool, connection: Any) -> None:
        self._pool, self._connection = pool, connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:
        if "DELETE FROM" not in query:
            return await self._connection.execute(query, *args, timeout=timeout)
        explain = f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {query}"
        (plan,) = json.loads(await self._connection.fetchval(explain, *args, timeout=timeout))
        steps = list(steps_of(plan["Plan"]))
        self._pool.handled += sum(map(rows_of, steps))
        return f"DELETE {round(steps[1]['Actual Rows'])}"


class CountedPool:
    """A caller's pool with such connections."""

    def __init__(self, pool: Any) -> None:
        self._pool, self.handled = pool, 0.0

    @asynccontextmanager
    async def acquire(self, *, timeout: float | None = None) -> AsyncIterator[Any]:
        async with self._pool.acquire(timeout=timeout) as connection:
            yield Counted(self, connection)


def steps_of(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for step in plan.get("Plans", ()):
        yield from steps_of(step)


def rows_of(step: dict[str, Any]) -> float:
    removed = sum(value for name, value in step.items() if name.startswith("Rows Removed by"))
    return (step["Actual Rows"] + removed) * step["Actual Loops"]


REMOVALS: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "delete": (5, lambda store: store.delete("s")),
    "prune": (8, lambda store: store.prune(keep_last=1)),
    "erase": (8, lambda store: store.erase()),
}


@pytest.mark.slow
@pytest.mark.parametrize(("most", "removal"), REMOVALS.values(), ids=REMOVALS)
async def test_statements_that_remove_from_a_record_six_times_as_large_handle_few_more_rows(
    most: int, removal: Any, postgres: Cluster, postgres_url: str
):
    asyncpg = pytest.importorskip("asyncpg")
    from context_compiler.record.postgres import PostgresStore

    name = urlsplit(postgres_url).path[1:]
    postgres.run(f"ALTER DATABASE {name} SET work_mem = '64kB'")  # a small record is as a large one to the planner
    async with asyncpg.create_pool(postgres_url, min_size=0, max_size=2) as made:
        pool = CountedPool(made)
        operator = PostgresStore(pool)
        handled = list[float]()
        for size in (200, 1_000):
            for session in range(4):
                await operator.archive(f"{session} of {size}", "", talk(size // 8, about=f"{session} of {size}"))
            store = operator.scoped("ann")
            for turn in range(1, 4):
                await store.save(request(talk(turn), Talk("a summary", f"of {turn}")))
            pool.handled = 0
            assert await removal(store)
            handled.append(pool.handled)
        assert handled[1] < most * handled[0]
        assert await operator.verify() == ()
