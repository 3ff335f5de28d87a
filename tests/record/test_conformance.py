"""The contract of a store: what is read is what was saved, saving again changes nothing, and prefixes are shared."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from functools import cache
from typing import TypeVar

import pytest

from context_compiler.errors import StoreError
from context_compiler.record import browse
from context_compiler.record.database import Database
from context_compiler.record.store import SQLStore, Store
from tests.record.entries import NOW, Talk, compiled, cycle, request, talk

T = TypeVar("T")


async def test_a_saved_request_is_read_back_unchanged(store: Store):
    raw = talk(2)
    entry = request(raw, Talk("a summary", "and"), compile=compiled(raw.ids[0], cache_key="k"))
    saved = await store.save(entry)
    assert saved == replace(entry.record, id=1, summary_id=1, compile=entry.compile)
    assert await store.view(1) == saved
    assert await store.views() == [saved]
    assert await store.summaries("s") == [entry.compile]


async def test_saving_twice_is_one_row(store: Store):
    entry = request(talk(2), compile=compiled(status="failed", cache_key=None), cycle=cycle(talk(2).tip))
    assert await store.save(entry) == await store.save(entry)
    assert len(await store.views()) == 1
    assert len(await store.summaries("s")) == 1


@pytest.mark.parametrize("other", [{"run_id": "b"}, {"request_index": 1}, {"session_id": "t"}, {"vault_name": "v"}])
async def test_requests_that_differ_in_one_identifier_are_separate(store: Store, other: dict[str, object]):
    await store.save(request(talk(1)))
    await store.save(request(talk(1), **other))
    assert len(await store.views()) == 2


async def test_requests_without_run_and_chains_are_one_row_too(store: Store):
    entry = request(None, run_id=None)
    assert await store.save(entry) == await store.save(entry)
    assert len(await store.views()) == 1


async def test_saving_an_old_request_again_does_not_move_the_conversation_back(store: Store):
    old, new = talk(1), talk(3)
    for entry in (request(old), request(new), request(old)):
        await store.save(entry)
    assert await store.transcript("s") == new.bodies


async def test_only_the_new_part_of_a_growing_history_is_read(store: Store):
    await store.save(request(talk(50)))
    longer = talk(51)
    await store.save(request(longer))
    assert longer.read == [99, 100]


async def test_a_view_that_is_the_raw_history_is_read_once(store: Store):
    raw = talk(3)
    await store.save(request(raw))
    assert raw.read == [0, 1, 2, 3, 4]


async def test_a_fork_shares_its_beginning(store: Store):
    trunk = talk(3)
    left, right = trunk.then("yes", "left"), trunk.then("no", "right")
    await store.save(request(left))
    await store.save(request(right, session_id="fork"))
    assert await store.transcript("s") == left.bodies
    assert await store.transcript("fork") == right.bodies
    assert [row["table"] async for row in store.export()].count("nodes") == 5 + 2 + 2


async def test_only_the_new_part_of_a_fork_of_the_same_conversation_is_read(store: Store):
    trunk = talk(3)
    left, right = trunk.then("yes", "left"), trunk.then("no", "right")
    await store.save(request(left))
    await store.save(request(right))
    assert right.read == [5, 6]


async def test_every_tip_returns_its_chain(store: Store):
    raw = talk(3)
    await store.save(request(raw, Talk("a summary", "and", "then")))
    for at, tip in enumerate(raw.ids):
        assert await store.chain(tip) == raw.bodies[: at + 1]


async def test_an_unknown_tip_is_an_error(store: Store):
    with pytest.raises(StoreError, match="no message 'c1:unknown'"):
        await store.chain("c1:unknown")


async def test_an_unknown_session_is_empty(store: Store):
    assert await store.transcript("nobody") == []
    assert await store.views("nobody") == []
    assert await store.summaries("nobody") == []
    assert await store.view(1) is None
    assert await store.delete("nobody") == 0
    assert await store.sessions() == []


async def test_an_empty_history_can_be_recorded(store: Store):
    saved = await store.save(request(Talk(), Talk()))
    assert (saved.raw_tip, saved.view_tip) == (None, None)
    assert await store.transcript("s") == []


async def test_tips_that_were_not_given_are_those_of_the_chains(store: Store):
    raw = talk(2)
    saved = await store.save(request(raw, raw_tip=None, view_tip=None))
    assert (saved.raw_tip, saved.view_tip) == (raw.tip, raw.tip)


async def test_a_request_without_content_can_be_stored(store: Store):
    entry = request(None, status="compiled; content: record is metadata", compile=compiled("", compiled_prompt=None))
    saved = await store.save(entry)
    assert saved.raw_tip is None
    assert await store.view(1) == saved


@cache
def long_talk() -> Talk:
    """The same for each store; hashing so many messages takes as long as saving them."""
    return Talk(*(f"message {n}" for n in range(20_000)))


async def test_twenty_thousand_messages_are_kept(store: Store):
    raw = long_talk()
    await store.save(request(raw))
    assert await store.chain(raw.tip) == raw.bodies
    await store.save(request(raw, request_index=1, cycle=cycle(raw.ids[10], "here")))
    assert await store.find_cycle(raw.ids, "c") == cycle(raw.ids[10], "here")


async def test_a_large_and_an_odd_body_survive(store: Store):
    raw = Talk("x" * 1_000_000, "漢字 \x00 \u2028 😀", "{{ no template }}")
    await store.save(request(raw))
    assert await store.transcript("s") == raw.bodies


async def test_requests_and_compiles_are_listed_newest_first(store: Store):
    saved = [await store.save(request(talk(turn), compile=compiled(cache_key=str(turn)))) for turn in range(1, 5)]
    saved.append(await store.save(request(talk(1), session_id="t")))
    numbers = [record.id or 0 for record in saved]
    assert numbers == sorted(set(numbers)) and numbers[0] > 0  # they rise, and may leave some out
    assert [record.id for record in await store.views()] == numbers[::-1]
    assert [record.id for record in await store.views("s", limit=2)] == [numbers[3], numbers[2]]
    assert [summary.cache_key for summary in await store.summaries("s", limit=3)] == ["4", "3", "2"]
    assert await store.views(limit=0) == []


async def test_a_session_adds_up_its_requests(store: Store):
    await store.save(request(talk(1), compile=compiled(), created_at=NOW - timedelta(hours=1)))
    await store.save(request(talk(2), tokens_raw=200, tokens_sent=50))
    await store.save(request(talk(1), session_id="t"))
    recent, first = await store.sessions()
    assert recent.session_id == "t"
    assert (first.requests, first.compiles, first.tokens_raw, first.tokens_sent) == (2, 1, 300, 90)
    assert (first.created_at, first.last_at, first.raw_tip) == (NOW - timedelta(hours=1), NOW, talk(2).tip)


async def test_two_vaults_have_sessions_of_one_name(store: Store):
    await store.save(request(talk(1), vault_name="notes"))
    await store.save(request(talk(2), vault_name="work"))
    assert [session.vault_name for session in await store.sessions()] == ["work", "notes"]
    assert await store.transcript("s") == talk(2).bodies
    assert await store.delete("s") == 2


async def test_times_are_kept_in_utc(store: Store):
    berlin = timezone(timedelta(hours=2))
    saved = await store.save(request(talk(1), created_at=datetime(2025, 7, 1, 2, 0, tzinfo=berlin)))
    view = await store.view(saved.id or 0)
    assert view is not None and view.created_at.isoformat() == "2025-07-01T00:00:00+00:00"
    await store.save(request(talk(2), created_at=datetime(2025, 7, 1, 3, 0)))
    assert (await store.views(limit=1))[0].created_at == datetime(2025, 7, 1, 3, 0, tzinfo=UTC)


async def test_lone_surrogates_and_values_outside_json_do_not_lose_the_record(store: Store):
    lone = "half a pair \ud800"
    made = compiled(summary=lone, error=lone, survival=math.nan, usage={"x": 1}, input_payload={"at": NOW})
    await store.save(request(talk(1), error=lone, ledger={"at": NOW}, ratio=math.nan, compile=made))
    view = await store.view(1)
    assert view is not None and view.compile is not None
    assert view.compile.summary == "half a pair \\ud800"
    assert view.error == "half a pair \\ud800"
    assert view.ledger == {"at": str(NOW)}


async def test_many_tasks_save_at_once(store: Store):
    entries = [request(talk(turn), session_id=f"s{turn % 3}") for turn in range(1, 31)]
    saved = await asyncio.gather(*(store.save(entry) for entry in entries))
    assert len({record.id for record in saved}) == 30
    assert await store.verify() == ()


async def test_a_store_can_be_used_again_after_it_was_closed(store: Store):
    await store.save(request(talk(1)))
    await store.close()
    await store.close()
    await store.save(request(talk(2)))
    assert len(await store.views()) == 2


async def test_an_unreadable_history_leaves_nothing_behind(store: Store):
    class Broken(Talk):
        def body(self, index: int) -> bytes:
            if index == 2:
                raise LookupError("no such part")
            return super().body(index)

    with pytest.raises(LookupError):
        await store.save(request(Broken("a", "b", "c")))
    assert [row async for row in store.export()] == []


async def test_an_export_has_each_row_after_the_rows_it_refers_to(store: Store):
    raw = talk(2)
    await store.save(request(raw, compile=compiled(raw.ids[0]), cycle=cycle(raw.ids[0], '{"kept": []}')))
    exported = [row async for row in store.export()]
    assert json.loads(json.dumps(exported)) == exported
    tables = list(dict.fromkeys(row["table"] for row in exported))
    assert tables == ["contents", "nodes", "sessions", "context_summaries", "cycles", "views", "toolsets"]
    bodies = {row["hash"]: row["body"] for row in exported if row["table"] == "contents"}
    nodes = [row for row in exported if row["table"] == "nodes"]
    assert [bodies[row["content"]].encode() for row in nodes] == raw.bodies
    assert [row["parent"] for row in nodes] == [None, *raw.ids[:-1]]
    (made,) = (row for row in exported if row["table"] == "context_summaries")
    assert made["summary"] == "They spoke of the weather."


async def test_a_history_can_be_kept_without_a_request(store: Store):
    raw = talk(3)
    await store.archive("s", "", raw)
    assert await store.transcript("s") == raw.bodies
    assert await store.views() == []
    (info,) = await store.sessions()
    assert (info.requests, info.raw_tip, info.last_at) == (0, raw.tip, None)


async def test_the_answer_to_the_last_request_is_added_to_its_conversation(store: Store):
    await store.save(request(talk(3)))
    answered = talk(3).then("the last answer")
    await store.archive("s", "", answered)
    await store.archive("s", "", answered)
    assert answered.read == [5]
    assert await store.transcript("s") == answered.bodies
    assert len(await store.views()) == 1


async def test_saving_an_empty_history_removes_nothing(store: Store):
    await store.save(request(talk(2)))
    await store.archive("s", "", Talk())
    assert await store.transcript("s") == talk(2).bodies


async def test_a_session_may_have_any_name(store: Store):
    name, vault = "caf\ud800 \x00", "vault \udfff"
    raw = talk(2)
    made = compiled(session_id=name, run_id="\ud800")
    await store.save(request(raw, session_id=name, vault_name=vault, run_id="\ud800", compile=made))
    await store.save(request(raw, session_id=name, vault_name=vault, run_id="\ud800"))
    await store.archive(name, vault, raw.then("more"))
    assert len(await store.views(name)) == 1 and len(await store.summaries(name)) == 1
    assert await store.transcript(name) == raw.then("more").bodies
    assert await store.save_layers(name, vault, "{}", after=0) == 1
    assert await store.layers(name, vault) == ("{}", 1)
    assert [info.session_id for info in await store.sessions()] == ["caf\\ud800 \x00"]
    assert await store.delete(name) == 1
    assert await store.sessions() == []


async def test_the_messages_of_a_session_are_found_however_long_it_is(store: Store):
    raw, view = talk(40), Talk("a summary", "and", "then")
    await store.save(request(raw, view, session_id="long"))
    for number in range(3):
        await store.save(request(talk(2 + number), session_id="other"))
    assert isinstance(store, SQLStore)
    nodes = await store.perform(lambda db: browse.session_nodes(db, 1, browse.request_tips(db, 1)))
    assert set(nodes) == {*raw.ids, *view.ids}
    assert [row[3] for row in nodes.values()] == sorted(row[3] for row in nodes.values())


async def test_several_reads_are_one_job(store: SQLStore):
    raw, jobs, watched = talk(2), list[object](), store.scoped("")
    saved = await store.save(request(raw, cycle=cycle(raw.tip)))

    async def counted(work: Callable[[Database], T]) -> T:
        jobs.append(work)
        return await store.perform(work)

    async def read(store: SQLStore) -> tuple[object, ...]:
        return await store.find_cycle(raw.ids, "c"), await store.views("s"), await store.transcript("s")

    watched.perform = counted
    assert await watched.perform_together(read) == (cycle(raw.tip), [saved], raw.bodies) and len(jobs) == 1
    assert await read(watched) == (cycle(raw.tip), [saved], raw.bodies) and len(jobs) == 4


async def test_a_job_of_several_reads_fails_like_one_read_and_does_not_wait_for_other_jobs(store: SQLStore):
    await store.save(request(talk(1)))
    with pytest.raises(StoreError, match="never recorded"):
        await store.perform_together(lambda store: store.chain("unknown"))
    with pytest.raises(RuntimeError, match="wait for something else"):
        await store.perform_together(lambda _: asyncio.sleep(0))
    assert len(await store.views()) == 1
