"""The layers of a session: the newest state is kept whole, and nobody's state is written over unseen."""

from __future__ import annotations

import asyncio
import json
import sqlite3

import pytest

from context_compiler.errors import StoreError
from context_compiler.record.store import SQLiteStore, Store
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
