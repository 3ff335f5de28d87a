"""The host's conversation store over the record: the contract of the host's own, durable, and joined with views."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic_ai.conversation_store")

from pydantic_ai import Agent, DeferredToolRequests, ToolDefinition
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
    InMemoryConversationStore,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.test import TestModel

from context_compiler import MemoryStore, RecordConversationStore, SQLiteStore
from context_compiler.errors import SettingsError
from tests.record.entries import Talk, request
from tests.support.agents import Talker, compiler
from tests.support.histories import long_history


@pytest.fixture(params=["host", "memory", "sqlite", "owned", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path):
    """The host's own store, which says what the contract is, and ours."""
    made: ConversationStore = {
        "host": InMemoryConversationStore,
        "memory": lambda: RecordConversationStore(MemoryStore()),
        "sqlite": lambda: RecordConversationStore(tmp_path / "context.db"),
        "owned": lambda: RecordConversationStore(tmp_path / "context.db", owner="ann"),
        "postgres": lambda: RecordConversationStore(request.getfixturevalue("postgres_url")),
    }[request.param]()
    yield made
    if isinstance(made, RecordConversationStore):
        assert await made.store.verify() == ()
        await made.close()


def said(*texts: str) -> list[ModelMessage]:
    return [
        ModelRequest(parts=[UserPromptPart(text)]) if at % 2 == 0 else ModelResponse(parts=[TextPart(text)])
        for at, text in enumerate(texts)
    ]


def texts(messages: Any) -> list[str]:
    return [str(one.parts[-1].content) for one in messages]


async def begin(store: ConversationStore, *words: str, id: str = "c", scope: str | None = None) -> Conversation:
    conversation = Conversation(messages=said(*words), conversation_id=id)
    await store.save(conversation, scope=scope)
    return conversation


async def test_a_run_is_stored_and_can_be_continued(store: ConversationStore) -> None:
    agent = Agent(TestModel())
    conversation = Conversation(conversation_id="c")
    for turn in range(3):
        result = await agent.run(f"turn {turn}", conversation=conversation)
        assert len(await store.save(result)) == 2
        loaded = await store.load("c")
        assert loaded is not None and loaded == result.conversation
        conversation = loaded
    assert conversation.usage.requests == 3 and len(conversation.messages) == 6


async def test_an_unknown_conversation_is_none(store: ConversationStore) -> None:
    assert await store.load("nothing") is None and await store.load_entries("nothing") is None
    assert await store.list_conversations() == [] and await store.read_record("nothing") is None
    with pytest.raises(LookupError):
        await store.read_entry("nothing")
    await store.delete("nothing")
    with pytest.raises(UserError, match="not in the store"):
        await store.fork("nothing")


async def test_windows_are_the_last_messages(store: ConversationStore) -> None:
    await begin(store, *"abcdef")
    for limit, expected in ((0, ""), (1, "f"), (4, "cdef"), (6, "abcdef"), (99, "abcdef")):
        loaded = await store.load("c", limit=limit)
        assert loaded is not None and texts(loaded.messages) == list(expected)
    with pytest.raises(UserError, match="negative"):
        await store.load("c", limit=-1)


async def test_a_window_is_saved_after_the_whole(store: ConversationStore) -> None:
    await begin(store, *"abcdef")
    window = await store.load("c", limit=2)
    assert window is not None
    window.messages += said("g", "h")
    assert texts([entry.message for entry in await store.save(window)]) == ["g", "h"]
    loaded = await store.load("c")
    assert loaded is not None and texts(loaded.messages) == list("abcdefgh")


async def test_each_message_is_stored_once(store: ConversationStore) -> None:
    conversation = await begin(store, *"abcd")
    assert await store.save(conversation) == []
    entries = await store.load_entries("c")
    assert entries is not None and [entry.parent_id for entry in entries] == [
        None,
        *[entry.id for entry in entries[:-1]],
    ]
    assert await store.read_entry(entries[2].id) == entries[2]
    conversation.messages += said("e")
    [new] = await store.save(conversation)
    assert new.parent_id == entries[-1].id


async def test_a_stale_copy_is_refused(store: ConversationStore) -> None:
    await begin(store, *"ab")
    conversation, other = await store.load("c"), await store.load("c")
    assert conversation is not None and other is not None
    conversation.messages += said("c")
    await store.save(conversation)
    other.messages += said("d")
    with pytest.raises(ConversationConflict):
        await store.save(other)
    with pytest.raises(ConversationConflict):
        await begin(store, "x")
    loaded = await store.load("c")
    assert loaded is not None and texts(loaded.messages) == list("abc")


async def test_only_one_of_two_concurrent_writers_succeeds(store: ConversationStore) -> None:
    await begin(store, *"ab")
    copies = [await store.load("c") for _ in range(5)]
    for number, conversation in enumerate(copies):
        assert conversation is not None
        conversation.messages += said(f"writer {number}")
    done = await asyncio.gather(*(store.save(copy) for copy in copies if copy), return_exceptions=True)
    assert sorted(isinstance(result, ConversationConflict) for result in done) == [False, True, True, True, True]


async def test_a_branch_leaves_the_old_history_stored(store: ConversationStore) -> None:
    conversation = await begin(store, *"abcdef")
    old = await store.load_entries("c")
    branched = await store.branch("c", at=2, expected_revision=conversation.revision)
    branched.messages += said("x", "y")
    await store.save(branched)
    record = await store.read_record("c")
    assert record is not None and old is not None and record.branches == [old[-1].id]
    back = await store.branch("c", from_entry=old[3].id, expected_revision=branched.revision)
    assert texts(back.messages) == list("abcd")
    with pytest.raises(ConversationConflict):
        await store.branch("c", at=0, expected_revision=conversation.revision)
    with pytest.raises(UserError, match="not in the history"):
        await store.branch("c", from_entry="nothing", expected_revision=back.revision)


async def test_a_rewritten_history_branches_off(store: ConversationStore) -> None:
    conversation = await begin(store, *"abcd")
    await store.save(replace(conversation, messages=[*conversation.messages[:2], *said("x")], new_message_index=None))
    loaded, record = await store.load("c"), await store.read_record("c")
    assert loaded is not None and texts(loaded.messages) == list("abx")
    assert record is not None and len(record.branches) == 1


async def test_a_fork_shares_its_entries(store: ConversationStore) -> None:
    await begin(store, *"abcd")
    forked = await store.fork("c", at=2, new_conversation_id="f")
    forked.messages += said("x")
    await store.save(forked)
    trunk, fork = await store.load_entries("c"), await store.load_entries("f")
    assert trunk is not None and fork is not None
    assert fork[:2] == trunk[:2] and texts([entry.message for entry in fork]) == list("abx")
    record = await store.read_record("f")
    assert record is not None and (record.forked_from, record.forked_at) == ("c", trunk[1].id)
    with pytest.raises(ConversationConflict):
        await store.fork("c", new_conversation_id="f")


async def test_deleting_keeps_entries_that_a_fork_needs(store: ConversationStore) -> None:
    await begin(store, *"abcd")
    forked = await store.fork("c", at=2, new_conversation_id="f")
    await store.delete("c")
    assert await store.load("c") is None
    loaded = await store.load("f")
    assert loaded is not None and texts(loaded.messages) == list("ab")
    with pytest.raises(ConversationConflict):
        await store.delete_record("f", expected_revision="another")
    again = Conversation(messages=said("new"), conversation_id="c")
    await store.save(again)
    with pytest.raises(ConversationConflict):
        await store.save(Conversation(messages=said("old"), conversation_id="c", revision=forked.revision))


async def test_a_head_that_is_gone_is_a_conflict(store: ConversationStore) -> None:
    record = ConversationRecord(conversation_id="c", head_id="gone")
    with pytest.raises(ConversationConflict):
        await store.write_record(record, expected_revision=None)
    entry = ConversationEntry(parent_id=None, message=said("a")[0])
    await store.write_record(replace(record, head_id=entry.id), new_entries=[entry], expected_revision=None)
    assert await store.read_history(entry.id) == [entry]


async def test_lists_are_newest_first(store: ConversationStore) -> None:
    for name in "abc":
        await begin(store, "x", id=name)
    first = await store.load("a")
    assert first is not None
    await store.save(first)
    assert [conversation.conversation_id for conversation in await store.list_conversations()] == ["a", "c", "b"]
    assert [conversation.conversation_id for conversation in await store.list_conversations(limit=1)] == ["a"]


async def test_a_scope_restricts_the_conversations(store: ConversationStore) -> None:
    for name, scope in (("a", "ann"), ("b", "bob"), ("c", None)):
        await begin(store, "x", id=name, scope=scope)
    assert [conversation.conversation_id for conversation in await store.list_conversations(scope="ann")] == ["a"]
    assert await store.load("a", scope="bob") is None and await store.load("a", scope="ann") is not None
    await store.delete("a", scope="bob")
    assert await store.load("a") is not None
    with pytest.raises(ConversationConflict):
        await begin(store, "y", id="a", scope="bob")
    forked = await store.fork("a", scope="bob", new_conversation_id="f")
    record = await store.read_record("f")
    assert record is not None and record.scope == "bob" and texts(forked.messages) == ["x"]
    assert await store.load_entries("f") == await store.load_entries("a")


async def test_a_paused_run_comes_back_whole(store: ConversationStore) -> None:
    agent = Agent(TestModel(), output_type=[str, DeferredToolRequests])

    async def prepared(ctx: Any, tool: ToolDefinition) -> ToolDefinition:
        return replace(tool, kind="external")

    @agent.tool_plain(prepare=prepared)
    def look(path: str) -> str:
        raise AssertionError(path)

    result = await agent.run("look", conversation=Conversation(conversation_id="c"))
    await store.save(result)
    loaded = await store.load("c")
    assert loaded is not None and loaded.deferred_tool_requests == result.output and loaded == result.conversation


async def test_changing_a_saved_conversation_does_not_change_the_store(store: ConversationStore) -> None:
    conversation = await begin(store, *"ab")
    conversation.messages[0].parts[0].content = "changed"  # pyright: ignore
    loaded, record = await store.load("c"), await store.read_record("c")
    assert loaded is not None and record is not None and texts(loaded.messages) == list("ab")
    record.branches.append("changed")
    again = await store.read_record("c")
    assert again is not None and again.branches == []


# Ours beyond the host's contract.


async def test_another_process_continues_a_conversation(tmp_path: Path) -> None:
    for turn in range(3):
        store = RecordConversationStore(tmp_path / "context.db")
        conversation = await store.load("c") or Conversation(conversation_id="c")
        assert len(conversation.messages) == 2 * turn
        await store.save(await Agent(TestModel()).run(f"turn {turn}", conversation=conversation))
        await store.close()


@pytest.mark.parametrize("name", ["named", None])
async def test_a_fact_of_the_first_turn_is_recalled_through_a_window(tmp_path: Path, name: str | None) -> None:
    path = tmp_path / "context.db"
    conversation = Conversation(conversation_id=name) if name else Conversation()
    conversation.messages += [*said("My badge has the number ZX-47110815.", "Noted."), *long_history(28)]
    while not isinstance(conversation.messages[-1], ModelResponse):
        conversation.messages.pop()
    store = RecordConversationStore(path)
    await store.save(conversation)
    for process in range(2):
        window = await store.load(conversation.conversation_id, limit=8)
        assert window is not None and len(window.messages) == 8
        talker = Talker()
        capability = compiler(store=path, budget=2_000)
        result = await Agent(talker.model, capabilities=[capability]).run(
            "What number has my badge?", conversation=window
        )
        assert "ZX-47110815" in talker.last.text and talker.last.tokens <= 2_000
        assert len(result.all_messages()) <= 10  # the host drops a result whose call is outside of the window
        await store.save(result)
        whole = await capability.transcript(conversation.conversation_id)
        assert len(whole) == len(conversation.messages) + 2 * (process + 1)
    bodies = [row["body"] async for row in store.store.scoped("").export() if row["table"] == "contents"]
    assert sum('"content":"My badge has the number ZX-47110815."' in str(body) for body in bodies) == 1
    assert await store.store.verify() == ()
    await store.close()


@pytest.mark.parametrize("location", ["context.db", "postgres"])
async def test_a_fact_of_the_first_turn_is_recalled_at_the_thirtieth(
    request: pytest.FixtureRequest, tmp_path: Path, location: str
) -> None:
    path = request.getfixturevalue("postgres_url") if location == "postgres" else tmp_path / location
    store, talker = RecordConversationStore(path), Talker()
    agent = Agent(talker.model, capabilities=[compiler(store=path, budget=1_000)])
    window = Conversation(conversation_id="c")
    for turn in range(1, 31):
        asked = {1: "My badge has the number ZX-47110815.", 30: "What number has my badge?"}.get(turn)
        asked = asked or f"Tell me about plant {turn}: {'it grows by the water. ' * 40}"
        await store.save(await agent.run(asked, conversation=window))
        loaded = await store.load("c", limit=8)
        assert loaded is not None and len(loaded.messages) == min(8, 2 * turn)
        window = loaded
    assert "ZX-47110815" in talker.last.text and talker.last.tokens <= 1_000
    assert "plant 5:" not in talker.last.text
    whole = await store.load("c")
    assert whole is not None and len(whole.messages) == 60
    assert await store.store.verify() == ()
    await store.close()


async def test_a_fork_has_its_own_past_in_a_window(tmp_path: Path) -> None:
    store = RecordConversationStore(tmp_path / "context.db")
    await begin(store, "the code is RED-1", "ok", *"abcdefgh")
    await store.fork("c", at=6, new_conversation_id="f")
    forked = await store.load("f", limit=2)
    talker = Talker()
    agent = Agent(talker.model, capabilities=[compiler(store=tmp_path / "context.db", budget=8_000)])
    await agent.run("and now?", conversation=forked)
    assert texts(talker.last.messages) == ["the code is RED-1", "ok", *"abcd", "and now?"]
    await store.close()


async def test_a_repeated_window_is_the_end_of_the_conversation(tmp_path: Path) -> None:
    store = RecordConversationStore(tmp_path / "context.db")
    await begin(store, "first", "ok", *["again", "ok"] * 6)
    for limit in (0, 1, 2, 5, 8):
        talker = Talker()
        window = await store.load("c", limit=limit)
        agent = Agent(talker.model, capabilities=[compiler(store=tmp_path / "context.db", budget=8_000)])
        await agent.run("and now?", conversation=window)
        assert len(talker.last.messages) == 15, limit
    await store.close()


async def test_scopes_are_owners(tmp_path: Path) -> None:
    path = tmp_path / "context.db"
    store = RecordConversationStore(path)
    await begin(store, "a secret of Ann: 47110815", "ok", *"abcdef", id="a", scope="ann")
    await store.fork("a", scope="bob", new_conversation_id="f")
    talker = Talker()
    capability = compiler(store=path, owner=lambda ctx: ctx.deps, budget=8_000)
    agent = Agent(talker.model, deps_type=str, capabilities=[capability])
    await agent.run("now?", deps="ann", conversation=await store.load("a", limit=2, scope="ann"))
    assert "47110815" in talker.last.text
    await agent.run("now?", deps="bob", conversation=await store.load("a", limit=2, scope="ann"))
    assert "47110815" not in talker.last.text  # this conversation is not his
    await store.store.scoped("ann").erase()
    assert await store.load("a") is None
    kept = await store.load("f", scope="bob")
    assert kept is not None and len(kept.messages) == 8
    await store.store.scoped("bob").erase()
    await store.close()
    assert b"47110815" not in b"".join(file.read_bytes() for file in tmp_path.iterdir())


async def test_two_owners_use_one_id(tmp_path: Path) -> None:
    ann, bob = (RecordConversationStore(tmp_path / "context.db", owner=name) for name in ("ann", "bob"))
    await begin(ann, "of ann")
    await begin(bob, "of bob")
    for store, name in ((ann, "ann"), (bob, "bob")):
        loaded = await store.load("c")
        assert loaded is not None and texts(loaded.messages) == [f"of {name}"]
        assert len(await store.list_conversations()) == 1
    entries = await ann.load_entries("c")
    assert entries is not None
    with pytest.raises(LookupError):
        await bob.read_entry(entries[0].id)
    await bob.delete("c")
    assert await ann.load("c") is not None and await ann.store.verify() == ()
    await ann.close()
    await bob.close()


async def test_deleting_removes_the_requests_too(tmp_path: Path) -> None:
    path = tmp_path / "context.db"
    store = RecordConversationStore(path)
    agent = Agent(Talker("An answer about 47110815.").model, capabilities=[compiler(store=path)])
    result = await agent.run("My secret is 47110815.", conversation=Conversation(conversation_id="c"))
    await store.save(result)
    await store.delete("c")
    await store.close()
    assert b"47110815" not in b"".join(file.read_bytes() for file in tmp_path.iterdir())


async def test_pruning_keeps_conversations(tmp_path: Path) -> None:
    store = RecordConversationStore(SQLiteStore(tmp_path / "context.db"))
    await begin(store, *"abcd")
    await store.store.scoped("").save(request(Talk("other"), session_id="other"))
    assert await store.store.prune(keep_last=0) == 1
    loaded = await store.load("c")
    assert loaded is not None and len(loaded.messages) == 4
    await store.close()


async def test_a_store_of_other_kinds_is_refused() -> None:
    with pytest.raises(SettingsError, match="keeps no conversations"):
        RecordConversationStore(object())  # pyright: ignore[reportArgumentType]


async def test_a_window_keeps_its_beginning_even_if_the_record_is_slow_at_first(tmp_path: Path) -> None:
    class Slow(SQLiteStore):
        wait_s = 0.0

        async def transcript(self, session_id: str, vault_name: str | None = None) -> list[bytes]:
            await asyncio.sleep(self.wait_s)
            return await super().transcript(session_id, vault_name)

    def process(store: Slow) -> tuple[Agent[None, str], Talker]:
        ours, talker = compiler(store=store, budget=8_000, record_timeout=0.05), Talker("noted")
        return Agent(talker.model, capabilities=[ours]), talker

    history = list[ModelMessage]()
    agent, _ = process(Slow(tmp_path / "context.db"))
    for prompt in ("The gate code is 7741.", *(f"Note {number}: the weather is fine." for number in range(12))):
        history = (await agent.run(prompt, message_history=history, conversation_id="talk")).all_messages()
    store = Slow(tmp_path / "context.db")
    agent, talker = process(store)
    store.wait_s = 0.3
    done = await agent.run("Hello again.", message_history=history[-6:], conversation_id="talk")
    store.wait_s = 0.0
    history += done.new_messages()
    await agent.run("What is the gate code?", message_history=history[-6:], conversation_id="talk")
    assert "7741" in talker.last.text
