"""The layers of a session: the newest state is kept whole, and nobody's state is written over unseen."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from dataclasses import replace

import pytest

from context_compiler.errors import StoreError
from context_compiler.record.store import SQLiteStore, SQLStore, Store
from context_compiler.record.values import LayerPages, page_name
from tests.record.entries import request, talk


async def test_a_session_without_layers_has_none(store: Store) -> None:
    assert await store.layers("s") is None
    await store.save(request(talk(2), session_id="s"))
    assert await store.layers("s") is None


@pytest.mark.parametrize(
    "state", ['{"a": 1}', "", '"\u2028\\ud800 é"', "x" * 2_000_000], ids=["json", "empty", "odd", "2 MB"]
)
async def test_a_state_is_read_back_with_its_version(store: Store, state: str) -> None:
    assert await store.save_layers("s", "", state, after=0) == 1
    assert await store.layers("s") == (state, 1)
    assert await store.save_layers("s", "", "newer", after=1) == 2
    assert await store.layers("s") == ("newer", 2)


async def test_sessions_and_vaults_have_layers_of_their_own(store: Store) -> None:
    await store.save_layers("s", "", "one", after=0)
    await store.save_layers("s", "work", "two", after=0)
    await store.save_layers("other", "", "three", after=0)
    assert [await store.layers(*owner) for owner in (("s",), ("s", "work"), ("other",))] == [
        ("one", 1),
        ("two", 1),
        ("three", 1),
    ]


@pytest.mark.parametrize("after", [0, 2, -1])
async def test_a_state_that_does_not_follow_the_newest_is_refused(store: Store, after: int) -> None:
    await store.save_layers("s", "", "one", after=0)
    with pytest.raises(StoreError, match="changed meanwhile"):
        await store.save_layers("s", "", "lost", after=after)
    assert await store.layers("s") == ("one", 1)


async def test_one_of_many_concurrent_states_is_saved(store: Store) -> None:
    tries = [store.save_layers("s", "", f"state {number}", after=0) for number in range(8)]
    results = await asyncio.gather(*tries, return_exceptions=True)
    assert sorted(str(one) for one in results if not isinstance(one, Exception)) == ["1"]
    assert sum(isinstance(one, StoreError) for one in results) == 7


@pytest.fixture
def sql_store(store: Store) -> SQLStore:
    assert isinstance(store, SQLStore)
    return store


PAGES = {page_name(text): text for text in ('{"a": "é \\u0000 \ufdd0"}', '{"b": 1}', '{"c": 1}')}


def listing(*names: str) -> str:
    return json.dumps({"id_registry": {"pages": {str(number): name for number, name in enumerate(names)}}})


async def test_only_new_pages_are_read_and_written(sql_store: SQLStore) -> None:
    store, (first, second, third) = sql_store, PAGES
    assert await store.layer_pages("s") is None
    await save(store, first, second, after=0)
    found = await store.layer_pages("s")
    assert found is not None and found == LayerPages(
        state=listing(first, second), version=1, pages={n: PAGES[n] for n in (first, second)}
    )
    assert await store.layer_pages("s", known=found) == found
    await save(store, second, third, after=1)
    marked = replace(found, pages={**found.pages, second: "what is known is not read again"})
    again = await store.layer_pages("s", known=marked)
    assert again is not None and again.version == 2
    assert again.pages == {second: "what is known is not read again", third: PAGES[third]}
    assert await names(store) == {second, third}
    with pytest.raises(StoreError, match="changed meanwhile"):
        await save(store, first, after=1)
    assert await names(store) == {second, third} and await store.verify() == ()
    await store.save_layers("s", "", "whole", after=2)
    assert await names(store) == set() and await store.layers("s") == ("whole", 3)


async def save(store: SQLStore, *names: str, after: int) -> None:
    await store.save_layer_pages("s", "", listing(*names), {name: PAGES[name] for name in names}, after=after)


async def names(store: SQLStore) -> set[str]:
    return {str(row["name"]) async for row in store.export() if row["table"] == "layer_pages"}


async def test_pages_go_with_their_session_and_with_nothing_else(sql_store: SQLStore) -> None:
    name = next(iter(PAGES))
    await sql_store.save(request(talk(2), session_id="s"))
    for session in ("s", "t"):
        await sql_store.save_layer_pages(session, "", listing(name), {name: PAGES[name]}, after=0)
    await sql_store.prune(keep_last=0)
    assert len([row async for row in sql_store.export() if row["table"] == "layer_pages"]) == 2
    assert await sql_store.verify() == ()
    await sql_store.delete("s")
    assert await sql_store.layer_pages("s") is None and await sql_store.layer_pages("t") is not None
    await sql_store.erase()
    assert await names(sql_store) == set()


async def test_deleting_a_session_deletes_its_layers(store: Store) -> None:
    await store.save(request(talk(2), session_id="s"))
    await store.save_layers("s", "", "one", after=0)
    await store.save_layers("only layers", "", "two", after=0)
    await store.delete("s")
    await store.delete("only layers")
    assert await store.layers("s") is None and await store.layers("only layers") is None
    assert await store.sessions() == []
    assert await store.save_layers("s", "", "again", after=0) == 1


async def test_pruning_requests_spares_layers(store: Store) -> None:
    await store.save(request(talk(2), session_id="s"))
    await store.save_layers("s", "", "one", after=0)
    assert await store.prune(keep_last=0) == 1
    assert await store.layers("s") == ("one", 1)


async def test_layers_are_exported(store: Store) -> None:
    await store.save_layers("s", "", '{"a": 1}', after=0)
    rows = [row async for row in store.export() if row["table"] == "layers"]
    assert [(row["version"], row["state"]) for row in rows] == [(1, '{"a": 1}')] and json.dumps(rows)


async def test_a_state_edited_in_the_file_is_detected(file: SQLiteStore) -> None:
    await file.save_layers("s", "", "one", after=0)
    await file.close()
    with sqlite3.connect(file.path) as db:
        db.execute("UPDATE layers SET state = 'other'")
    db.close()
    assert any("layers" in defect for defect in await file.verify())
