"""Conversations share what they say and keep what is theirs: times, run ids, and how their views are written."""

from __future__ import annotations

from datetime import datetime, timedelta

from pydantic_ai.messages import ModelRequest, UserPromptPart

from context_compiler.messages.history import Reader
from context_compiler.record.conversations import LogEntry, StoredConversation, write_conversation
from context_compiler.record.store import SQLStore, Store
from context_compiler.record.values import Chain
from context_compiler.tokens import TokenCounter
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


async def bodies(store: Store) -> set[object]:
    return {row["body"] async for row in store.export() if row["table"] == "contents"}


async def test_a_message_is_kept_as_the_remaining_conversation_has_it(store: Store):
    ours, theirs = Talk(*"abcd"), Talk(*"abcd", when=LATER)
    await store.save(request(ours.then("e"), session_id="ours"))
    await store.archive("ours", "", ours.then("e", "another answer"))
    await store.save(request(theirs.then("e", "another answer", "and more"), session_id="theirs", tools=None))
    await store.archive("ours", "", ours.then("e", "an answer"))
    await store.delete("ours")
    whole = theirs.then("e", "another answer", "and more")
    assert await store.transcript("theirs") == await store.chain(whole.tip) == whole.bodies
    assert await bodies(store) == {body.decode() for body in whole.bodies}
    assert "copies" not in [row["table"] async for row in store.export()]


async def test_a_message_is_kept_as_it_is_while_a_conversation_without_a_copy_reads_it(store: Store):
    ours, theirs, latest = (Talk(*"abcd", when=NOW + timedelta(hours=hours)) for hours in range(3))
    for session, history in (("ours", ours), ("theirs", theirs), ("latest", latest), ("third", ours)):
        await store.save(request(history, session_id=session, tools=None))
    await store.delete("ours")
    assert await store.transcript("third") == ours.bodies
    await store.delete("third")
    assert await bodies(store) == {body.decode() for body in (*theirs.bodies, *latest.bodies)}
    assert await store.transcript("theirs") == theirs.bodies
    assert await store.transcript("latest") == latest.bodies
    await store.delete("theirs")
    assert await store.transcript("latest") == await store.chain(latest.tip) == latest.bodies
    assert await bodies(store) == {body.decode() for body in latest.bodies}


async def test_a_message_is_kept_as_the_log_of_a_conversation_has_it(store: Store):
    assert isinstance(store, SQLStore)
    ours, theirs = exact("hello", NOW), exact("hello", LATER)
    entries = [LogEntry(id="1", parent=None, body=ours.body(0))]
    conversation = StoredConversation(
        conversation_id="host", scope=None, head="1", branches=(), state="{}", revision="1", updated_at=NOW
    )
    await store.perform(lambda db: write_conversation(db, conversation, entries, None, lambda body: "hello"))
    await store.archive("host", "", Talk("another beginning"))
    await store.archive("ours", "", ours)
    await store.archive("theirs", "", theirs)
    await store.delete("ours")
    assert await store.conversation("host") == [ours.body(0)]
    assert await store.transcript("theirs") == [theirs.body(0)]


def exact(text: str, when: datetime) -> Chain:
    message = ModelRequest(parts=[UserPromptPart(content=text, timestamp=when)])
    return Reader(TokenCounter()).read([message]).chain


async def test_a_chain_is_read_as_a_conversation_has_it(store: Store):
    assert isinstance(store, SQLStore)
    ours, theirs = Talk(*"abcd"), Talk(*"abcd", when=LATER)
    await store.save(request(ours, session_id="ours"))
    await store.save(request(theirs, session_id="theirs", vault_name="vault"))
    assert await store.chain(theirs.tip) == ours.bodies
    assert await store.chain(theirs.tip, "theirs", "vault") == theirs.bodies
    assert await store.chain(theirs.ids[1], "theirs", "vault") == theirs.bodies[:2]
    assert await store.chain(theirs.tip, "theirs") == await store.chain(theirs.tip, "ours") == ours.bodies


async def test_deleting_a_conversation_leaves_no_copy_that_a_later_one_replaced(store: Store):
    ours, theirs, latest = (Talk(*"abcd", when=NOW + timedelta(hours=hours)) for hours in range(3))
    await store.save(request(ours, session_id="ours"))
    before = [row async for row in store.export()]
    for history in (theirs, Talk("another beginning"), latest, Talk("another beginning"), ours):
        await store.archive("theirs", "", history)
        assert await store.transcript("theirs") == history.bodies
    await store.delete("theirs")
    assert [row async for row in store.export()] == before


async def test_a_copy_that_its_conversation_no_longer_leads_to_is_removed_with_the_message(store: Store):
    ours, theirs = Talk("the password"), Talk("the password", when=LATER)
    await store.save(request(ours, session_id="ours"))
    await store.save(request(theirs, session_id="theirs"))
    await store.save(request(Talk("another beginning"), session_id="theirs"))
    assert await store.prune(keep_last=1) == 1
    await store.delete("ours")
    await store.delete("theirs")
    assert await bodies(store) == set()


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
