"""Conversations share what they say and keep what is theirs: times, run ids, and how their views are written."""

from __future__ import annotations

from datetime import timedelta

from context_compiler.record.store import Store
from tests.record.entries import NOW, Talk, body, cycle, request

LATER = NOW + timedelta(hours=1)


async def test_equal_conversations_keep_their_own_times(store: Store):
    ours, theirs = Talk(*"abcd"), Talk(*"abcd", when=LATER)
    await store.save(request(ours, session_id="ours"))
    await store.save(request(theirs, session_id="theirs"))
    assert ours.ids == theirs.ids
    assert await store.transcript("ours") == ours.bodies
    assert await store.transcript("theirs") == theirs.bodies
    await store.archive("theirs", "", theirs.then("more"))
    assert (await store.transcript("theirs"))[:-1] == theirs.bodies
    assert await store.verify() == ()
    tables = [row["table"] async for row in store.export()]
    assert tables.count("copies") == len(theirs.bodies)
    await store.delete("theirs")
    assert await store.transcript("ours") == ours.bodies
    assert "copies" not in [row["table"] async for row in store.export()]


async def test_a_copy_is_removed_when_the_conversation_returns_to_the_shared_part(store: Store):
    ours, theirs = Talk(*"abcd"), Talk(*"abcd", when=LATER)
    await store.save(request(ours, session_id="ours"))
    await store.save(request(theirs, session_id="theirs"))
    await store.archive("theirs", "", Talk("another beginning"))
    await store.archive("theirs", "", ours)
    assert await store.transcript("theirs") == ours.bodies
    assert await store.verify() == ()


async def test_deleting_a_conversation_leaves_no_copy_that_a_later_one_replaced(store: Store):
    ours, theirs, latest = (Talk(*"abcd", when=NOW + timedelta(hours=hours)) for hours in range(3))
    await store.save(request(ours, session_id="ours"))
    before = [row async for row in store.export()]
    for history in (theirs, Talk("another beginning"), latest, Talk("another beginning"), ours):
        await store.archive("theirs", "", history)
        assert await store.transcript("theirs") == history.bodies
    await store.delete("theirs")
    assert [row async for row in store.export()] == before


async def test_a_cycle_configuration_finds_only_its_own_cycles(store: Store):
    raw = Talk(*"abcdef")
    await store.save(request(raw, cycle=cycle(raw.ids[2], "wide", "wide")))
    await store.save(request(raw.then("g"), cycle=cycle(raw.ids[2], "narrow", "narrow"), request_index=1))
    await store.save(request(raw.then("h"), cycle=cycle(raw.ids[4], "late", "narrow"), request_index=2))
    assert await store.find_cycle(raw.ids, "wide") == cycle(raw.ids[2], "wide", "wide")
    assert await store.find_cycle(raw.ids[:3], "narrow") == cycle(raw.ids[2], "narrow", "narrow")
    assert await store.find_cycle(raw.ids, "narrow") == cycle(raw.ids[4], "late", "narrow")
    await store.prune(keep_last=1)
    assert await store.find_cycle(raw.ids, "wide") is not None
    assert await store.find_cycle(raw.ids, "narrow") == cycle(raw.ids[4], "late", "narrow")


async def test_an_adopted_history_is_not_read_again(store: Store):
    trunk = Talk(*"abcdefgh")
    await store.save(request(trunk, session_id="ours"))
    fork = trunk.then("more")
    await store.save(request(fork, session_id="theirs"))
    assert fork.read == [7, 8]
    assert await store.transcript("theirs") == fork.bodies


async def test_a_repeated_prompt_reads_only_the_last_messages(store: Store):
    trunk = Talk(*"abcdefgh")
    await store.save(request(trunk.then("again?"), session_id="ours"))
    asked = Again(*"abcdefgh", "again?")
    await store.save(request(asked, session_id="theirs"))
    assert set(asked.read) == {7, 8}
    assert await store.transcript("theirs") == asked.bodies
    assert asked.bodies != trunk.then("again?").bodies


class Again(Talk):
    """The same, the last of it later."""

    def __init__(self, *texts: str) -> None:
        super().__init__(*texts)
        self._bodies[-1] = body(texts[-1], len(texts) - 1, LATER)
