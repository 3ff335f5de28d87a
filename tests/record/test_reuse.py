"""What a request needs from earlier ones: a compile by its key, a cycle by the longest known ancestor."""

from __future__ import annotations

import pytest

from context_compiler.record.sessions import claim_compile, renew_claim
from context_compiler.record.store import SQLStore, Store
from tests.record.entries import compiled, cycle, request, talk


async def test_a_compile_is_found_by_its_key(store: Store):
    await store.save(request(talk(1), compile=compiled(cache_key="k")))
    assert await store.find_compile("k") == (1, compiled(cache_key="k"))
    assert await store.find_compile("another") is None


@pytest.mark.parametrize("status", ["deterministic", "refused; too long", "failed", "okay"])
async def test_only_a_successful_compile_is_found_again(store: Store, status: str):
    await store.save(request(talk(1), compile=compiled(cache_key="k", status=status)))
    assert await store.find_compile("k") is None
    assert [found.cache_key for found in await store.summaries("s")] == [None]


async def test_a_compile_with_notes_on_its_status_is_found_again(store: Store):
    await store.save(request(talk(1), compile=compiled(cache_key="k", status="ok; survival: not measured")))
    assert await store.find_compile("k") is not None


async def test_a_compile_with_a_known_key_is_not_stored_again(store: Store):
    first = await store.save(request(talk(1), compile=compiled(cache_key="k")))
    second = await store.save(request(talk(2), compile=compiled(cache_key="k")))
    assert first.summary_id == second.summary_id and len(await store.summaries("s")) == 1


async def test_the_first_of_two_answers_with_one_key_is_found_and_each_request_names_its_own(store: Store):
    first = await store.save(request(talk(1), compile=compiled(cache_key="k", raw_output="first")))
    second = await store.save(request(talk(2), compile=compiled(cache_key="k", raw_output="second")))
    third = await store.save(request(talk(3), compile=compiled(cache_key="k", raw_output="first")))
    views = [await store.view(record.id or 0) for record in (first, second, third)]
    assert [view and view.compile and view.compile.raw_output for view in views] == ["first", "second", "first"]
    assert views[1] and views[1].compile and "; cache_key: of another answer" in views[1].compile.status
    assert await store.find_compile("k") == (first.summary_id, compiled(cache_key="k", raw_output="first"))


async def test_a_claimed_call_belongs_to_its_holder_until_it_ends(store: Store):
    assert isinstance(store, SQLStore)

    async def claims(key: str, holder: str, seconds: float = 3_600, owner: str = "") -> bool:
        return await store.scoped(owner).perform(lambda db: claim_compile(db, key, holder, seconds))

    assert await claims("k", "one") and await claims("k", "one") and not await claims("k", "two")
    assert await claims("l", "two") and await claims("k", "two", owner="ann")
    await store.perform(lambda db: renew_claim(db, "k", "two", 0))
    assert not await claims("k", "two")
    await store.perform(lambda db: renew_claim(db, "k", "one", 0))
    assert await claims("k", "two", 0)
    assert await claims("k", "three")  # of one that died, once its time is over
    await store.delete("s")
    assert await store.perform(lambda db: db.execute("SELECT count(*) FROM claims").fetchone()[0]) == 0


async def test_a_successful_compile_is_stored_even_if_the_request_is_known(store: Store):
    await store.save(request(talk(1)))
    await store.save(request(talk(1), compile=compiled(cache_key="k")))
    assert await store.find_compile("k") is not None


async def test_a_request_names_the_stored_compile_that_it_uses(store: Store):
    made = await store.save(request(talk(1), compile=compiled(cache_key="k")))
    failed = compiled(status="failed", summary=None, raw_output=None, summary_json=None, survival=None)
    used = await store.save(request(talk(2), summary_id=made.summary_id, compile=failed))
    view = await store.view(used.id or 0)
    assert view is not None and view.compile == made.compile
    assert len(await store.summaries("s")) == 2


async def test_the_cycle_of_the_longest_known_ancestor_is_found(store: Store):
    raw = talk(4)
    for position in (4, 2):
        await store.save(request(raw, request_index=position, cycle=cycle(raw.ids[position], f"at {position}")))
    assert await store.find_cycle(raw.then("more").ids, "c") == cycle(raw.ids[4], "at 4")
    assert await store.find_cycle(raw.ids[:4], "c") == cycle(raw.ids[2], "at 2")
    assert await store.find_cycle(raw.ids[:2], "c") is None
    assert await store.find_cycle([], "c") is None


async def test_a_cycle_that_is_saved_again_replaces_the_former(store: Store):
    raw = talk(2)
    for index, state in enumerate(["old", "new"]):
        await store.save(request(raw, request_index=index, cycle=cycle(raw.tip, state)))
    assert await store.find_cycle(raw.ids, "c") == cycle(raw.tip, "new")
    assert [row["table"] async for row in store.export()].count("cycles") == 1


async def test_the_newest_of_several_cycles_with_one_tip_is_found(store: Store):
    raw = talk(2)
    for index, session in enumerate(["a", "b", "a"]):
        newest = cycle(raw.tip, f"{session} {index}")
        await store.save(request(raw, session_id=session, request_index=index, cycle=newest))
        assert await store.find_cycle(raw.ids, "c") == newest
