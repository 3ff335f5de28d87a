"""Tools that requests were sent with: once for each set, with the promises of everything else on the record."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from context_compiler.record import browse, rows
from context_compiler.record.store import SQLStore, Store
from context_compiler.record.values import Tool
from tests.record.entries import NOW, compiled, request, talk

FORECAST = Tool(
    kind="function",
    name="forecast",
    description="The weather of a day.",
    parameters={"type": "object", "properties": {"day": {"type": "string"}}},
)


def sql(store: Store) -> SQLStore:
    assert isinstance(store, SQLStore)
    return store


async def tables(store: Store) -> list[str]:
    return [str(row["table"]) async for row in store.export()]


async def test_a_set_is_kept_once_and_found_for_each_of_its_requests(store: Store):
    raw = talk(3)
    first = await store.save(request(raw))
    kept = await tables(store)
    again = await store.save(request(raw.then("more", "words")))
    other = await store.save(request(talk(2), session_id="other"))
    assert kept.count("toolsets") == 1 and (await tables(store)).count("toolsets") == 2
    toolsets = [await sql(store).tools(record.id or 0) for record in (first, again, other)]
    assert toolsets == [(FORECAST,)] * 3


async def test_a_request_without_tools_differs_from_one_with_unknown_tools(store: Store):
    unknown = await store.save(request(talk(2), tools=None))
    none = await store.save(request(talk(3), tools="[]", request_hash="1" * 64))
    unhashed = await store.save(request(talk(4), request_hash=None))
    toolsets = [await sql(store).tools(record.id or 0) for record in (unknown, none, unhashed)]
    assert toolsets == [None, (), None] and await sql(store).tools(99) is None


async def test_tools_are_deleted_with_the_last_request_that_used_them(store: Store):
    await store.save(
        request(talk(2), tools='[{"kind": "function", "name": "old", "description": "d", "parameters": {}}]')
    )
    kept = await store.save(request(talk(3), request_hash="1" * 64))
    assert await store.prune(keep_last=1) == 1
    assert [row async for row in store.export() if "old" in str(row.get("body"))] == []
    assert await sql(store).tools(kept.id or 0) == (FORECAST,)
    await store.delete("s")
    assert await tables(store) == []


async def test_an_owner_does_not_see_tools_of_another(store: Store):
    ann, bob = (sql(store).scoped(owner) for owner in ("ann", "bob"))
    record = await ann.save(request(talk(2)))
    await bob.save(request(talk(2)))
    assert await ann.tools(record.id or 0) == (FORECAST,) and await bob.tools(record.id or 0) is None
    await ann.erase()
    assert (await tables(sql(store).scoped(None))).count("toolsets") == 1


async def test_a_compile_is_under_way_until_its_row_exists_or_its_time_is_over(store: Store):
    sql_store = sql(store)
    assert not await sql_store.announce_compile("s", "", "m", 60)
    record = await sql_store.save(request(talk(2), compile=compiled()))
    for model in ("m", "n"):
        assert await sql_store.announce_compile("s", "", model, 60)
    (call,) = await sql_store.perform(browse.calls_in_progress)
    assert (call.session_id, call.model) == ("s", "n")
    assert await sql_store.perform(lambda db: browse.calls_in_progress(db, call.session + 1)) == []
    assert await sql_store.scoped("ann").perform(browse.calls_in_progress) == []
    first, second = [await sql_store.announce_compile("s", "", "m", 60) for _ in range(2)]
    assert first is not None and second is not None
    await sql_store.withdraw_compile(*first)
    assert await sql_store.perform(browse.calls_in_progress)
    await sql_store.withdraw_compile(*second)
    assert not await sql_store.perform(browse.calls_in_progress) and await sql_store.announce_compile("s", "", "m", 60)
    made = replace(compiled(), created_at=NOW + timedelta(days=1), run_id="later")
    await sql_store.save(request(talk(3), compile=made))
    assert record.id and await sql_store.perform(browse.calls_in_progress) == []
    await sql_store.save(request(talk(2), session_id="other"))
    assert await sql_store.announce_compile("other", "", "m", -1)
    assert await sql_store.perform(browse.calls_in_progress) == []
    await sql_store.delete("s")
    assert await sql_store.perform(lambda db: db.execute("SELECT count(*) FROM under_way").fetchone()[0]) == 1


@pytest.mark.parametrize("seconds", [1e300, float("inf")])
async def test_a_call_under_way_expires(store: Store, seconds: float):
    await store.save(request(talk(2)))
    await sql(store).announce_compile("s", "", "m", seconds)
    ends = await sql(store).perform(lambda db: db.execute("SELECT expires_at FROM under_way").fetchone()[0])
    assert rows.parse_stamp(ends) < NOW + timedelta(hours=3)
