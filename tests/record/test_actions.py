"""Actions of users on the views of a conversation: append-only, in order, one after the other."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from context_compiler.errors import StoreError
from context_compiler.record.costs import sizes_of
from context_compiler.record.store import Steered, Store
from context_compiler.record.totals import sums_of
from context_compiler.record.values import Action
from tests.record.entries import NOW, compiled, cycle, request, talk


def action(kind: str = "pin", **given: Any) -> Action:
    return Action(**{"kind": kind, "tip": "c1:7", "state": '{"a": "ä"}', "created_at": NOW, **given})


async def test_actions_are_kept_in_order(store: Any):
    assert isinstance(store, Steered) and isinstance(store, Store)
    assert await store.actions("s") == []
    first = await store.save_action("s", "", action(), after=0)
    second = await store.save_action("s", "", action("unpin"), after=1)
    assert await store.actions("s") == [first, second] and [first.number, second.number] == [1, 2]
    assert first == replace(action(), number=1)
    assert await store.actions("s", "vault") == [] and await store.actions("t") == []
    assert [row["kind"] async for row in store.export() if row["table"] == "actions"] == ["pin", "unpin"]


async def test_an_action_based_on_an_outdated_one_is_refused(store: Any):
    await store.save_action("s", "", action(), after=0)
    for after in (0, 2):
        with pytest.raises(StoreError, match="somebody compiled, undid or pinned in it meanwhile"):
            await store.save_action("s", "", action(), after=after, compile=compiled())
    assert len(await store.actions("s")) == 1 and await store.summaries("s") == []
    attempts = [store.save_action("s", "", action(state=str(number)), after=1) for number in range(5)]
    results = await asyncio.gather(*attempts, return_exceptions=True)
    assert sum(isinstance(result, Action) for result in results) == 1


async def test_an_undone_compile_is_not_found_again(store: Any):
    done = await store.save_action("s", "", action("compile"), after=0, compile=compiled(cache_key="k"))
    assert done.summary_id == 1 and (await store.find_compile("k"))[0] == 1
    await store.save_action("s", "", action("undo", summary_id=1), after=1)
    assert await store.find_compile("k") is None
    again = await store.save(request(talk(1), compile=compiled(cache_key="k", summary="another")))
    assert (again.summary_id or 0) > 1 and await store.find_compile("k") is None
    assert [made.cache_key for made in await store.summaries("s")] == [None, "k"]


async def test_a_compile_that_no_request_carries_counts_in_its_session(store: Any):
    paid = {"input_tokens": 10}
    unknown = talk(3).ids[-1]
    skipped = compiled(usage=paid, cache_key=None, status="skipped; cache_key: none came")
    alone = await store.save_compile(replace(skipped, covered_tip=unknown))
    carried = await store.save(request(talk(1), compile=compiled(usage=paid)))
    bare = (await store.summaries("s"))[-1]
    assert not bare.compiled_prompt and bare.usage == paid and "what it covers is not on the record" in bare.status
    assert alone != carried.summary_id and len(await store.summaries("s")) == 2
    assert not await store.verify()
    for session, count in ((None, 1), ("s", 1), ("t", 0)):
        sums = await store.perform(partial(sums_of, session_id=session, sizes_of=sizes_of))
        assert (
            sorted((compile.id, compile.sent) for compile in sums.compiles)
            == [(alone, False), (carried.summary_id, True)] * count
        )
    nothing = await store.scoped("bob").perform(partial(sums_of, session_id=None, sizes_of=sizes_of))
    assert (nothing.requests, nothing.compiles, nothing.names) == ([], [], {})


async def test_the_cycles_of_a_conversation_are_listed_oldest_first(store: Any):
    raw = talk(4)
    for position in (2, 4):
        await store.save(request(raw, request_index=position, cycle=cycle(raw.ids[position], f"at {position}")))
    assert await store.session_cycles("s") == [cycle(raw.ids[2], "at 2"), cycle(raw.ids[4], "at 4")]
    assert await store.session_cycles("t") == []


async def test_actions_go_with_their_conversation_and_hold_their_compile(store: Any):
    await store.save(request(talk(1)))
    await store.save_action("s", "", action("compile"), after=0, compile=compiled(turn_index=7))
    await store.prune(keep_last=1)
    assert len(await store.summaries("s")) == 1
    await store.delete("s")
    assert await store.actions("s") == [] and await store.summaries("s") == []


async def test_an_owner_does_not_see_actions_of_another(store: Any):
    ann, bob = store.scoped("ann"), store.scoped("bob")
    await ann.save_action("s", "", action(), after=0)
    assert await bob.actions("s") == [] and await store.actions("s") == []
    await bob.save_action("s", "", action("unpin"), after=0)
    assert [recorded.kind for recorded in await ann.actions("s")] == ["pin"]
