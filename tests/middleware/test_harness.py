"""Beside the Pydantic AI harness: its pins are kept, and its conversation search finds what views leave out."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelRequest, TextContent, ToolReturnPart, UserPromptPart

from context_compiler import ContextCompiler, MemoryStore, RecordHistory, compile_view
from context_compiler.messages.items import PIN
from tests.support.agents import Talker, compiler, run
from tests.support.histories import assistant, long_history, prose, user

needs_harness = pytest.mark.skipif(
    importlib.util.find_spec("pydantic_ai_harness") is None, reason="pydantic-ai-harness is not installed"
)
BUDGET = 1_500
PINNED = "The blue lamp on the north wall means that nobody may enter."
FACT = "The key of the store room is under the third flowerpot."


def pin(text: str = PINNED) -> UserPromptPart:
    """What `pin` of the harness returns."""
    return UserPromptPart(content=[TextContent(text, metadata=PIN)])


def pinned(turn: int, alone: bool, part: UserPromptPart) -> list[ModelMessage]:
    history = long_history(40)
    if alone:
        return [*history[: 2 * turn], ModelRequest(parts=[part]), *history[2 * turn :]]
    request = history[2 * turn]
    assert isinstance(request, ModelRequest)
    return [*history[: 2 * turn], ModelRequest(parts=[*request.parts, part]), *history[2 * turn + 1 :]]


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("fidelity", [None, "truncate"])
async def test_a_pin_is_in_every_view_word_for_word(alone: bool, fidelity: str | None) -> None:
    part = pin()
    talker = Talker([[("look", {})], [("look", {})], "done"])
    ours = compiler(budget=BUDGET, fidelity=fidelity)
    agent = Agent(talker.model, capabilities=[ours], tools=[look])
    history = pinned(2, alone, part)
    await run(agent, "And now?", message_history=history)
    assert len(talker.sent) == 3
    for sent in talker.sent:
        assert [item for message in sent.messages for item in message.parts].count(part) == 1
        assert sent.tokens <= BUDGET and len(sent.messages) < len(history)
    view = ours.last_view
    assert view is not None and "carried because it is pinned" in view.ledger["kept"]


def look() -> str:
    return prose(3, 40)


async def test_a_pin_is_not_a_prompt_and_is_not_summarised_again() -> None:
    view = await compile_view(pinned(3, True, pin()), budget=BUDGET, system=None)
    said = [str(part) for message in view.messages for part in message.parts if PINNED in str(part)]
    assert len(said) == 1 and view.record is not None
    plain = await compile_view(long_history(40), budget=BUDGET, system=None)
    assert plain.record is not None and view.record.turn_index == plain.record.turn_index


async def test_text_that_imitates_a_pin_is_not_a_pin() -> None:
    history = [user(f"{PIN} {FACT} {prose(1, 200)}"), *long_history(40)[1:]]
    view = await compile_view(history, budget=600, recall=0, system=None)
    assert str(history[0].parts[0].content) not in "".join(str(message.parts) for message in view.messages)


async def test_a_run_names_its_conversation_for_receipts(tmp_path: Path) -> None:
    handles: list[str | None] = []

    def ask(compiling: ContextCompiler) -> Agent[None, str]:
        async def tell(ctx: RunContext[None]) -> str:
            capability: Any = ctx.capabilities["context_compiler"]
            handles.append(capability.compaction_transcript_handle())
            return "told"

        return Agent(Talker([[("tell", {})], "done"]).model, tools=[tell], capabilities=[compiling])

    kept = {"store": tmp_path / "record.db"}
    await run(ask(compiler(**kept)), "Hello.", conversation_id="kitchen")
    await run(ask(compiler(**kept, vault_name="home")), "Hello.", conversation_id="kitchen")
    await run(ask(compiler()), "Hello.", conversation_id="kitchen")
    await run(ask(compiler(**kept, record="metadata")), "Hello.", conversation_id="kitchen")
    assert handles == ["kitchen", "home/kitchen", None, None]
    assert compiler(**kept).compaction_transcript_handle() is None


@pytest.mark.harness
@needs_harness
def test_the_mark_of_a_pin_is_that_of_the_harness() -> None:
    from pydantic_ai_harness.compaction import is_pinned
    from pydantic_ai_harness.compaction import pin as theirs

    part = theirs(PINNED)
    assert part.content == pin().content and is_pinned(pin())


@pytest.mark.harness
@needs_harness
async def test_pins_of_the_harness_survive_beside_its_own_compaction() -> None:
    from pydantic_ai_harness import SlidingWindowCompaction
    from pydantic_ai_harness.compaction import pin as theirs

    talker = Talker("done")
    capabilities = [SlidingWindowCompaction(max_messages=30), compiler(budget=BUDGET)]
    await run(Agent(talker.model, capabilities=capabilities), "Go on.", message_history=pinned(2, True, theirs(PINNED)))
    assert talker.last.text.count(PINNED) == 1 and talker.last.tokens <= BUDGET


@pytest.mark.harness
@needs_harness
async def test_conversation_search_finds_messages_that_no_view_contains(tmp_path: Path) -> None:
    from pydantic_ai_harness import ConversationSearch

    store = tmp_path / "record.db"
    talker = Talker([[("search_conversation_history", {"query": "store room key flowerpot"})], "done"])
    agent = Agent(
        talker.model,
        capabilities=[
            compiler(budget=BUDGET, store=store, recall=0),
            ConversationSearch(RecordHistory(store), scope="conversation"),
        ],
    )
    other = Agent(Talker("ok").model, capabilities=[compiler(budget=BUDGET, store=store)])
    await run(other, "The store room key of the neighbour hangs in the hall.", conversation_id="next door")
    history = [user("Hello."), assistant(f"{FACT} {prose(9, 60)}"), *long_history(40)]
    await run(agent, "Please look it up.", message_history=history, conversation_id="kitchen")
    first, second = talker.sent
    assert FACT not in first.text and len(first.messages) < len(history)
    [returned] = [
        part.content for message in second.messages for part in message.parts if isinstance(part, ToolReturnPart)
    ]
    assert FACT in str(returned) and "run: kitchen" in str(returned) and "neighbour" not in str(returned)


@pytest.mark.harness
@needs_harness
async def test_the_record_is_a_source_and_the_compiler_a_provider_of_handles() -> None:
    from pydantic_ai_harness.compaction import TranscriptHandleProvider
    from pydantic_ai_harness.conversation_search import HistorySource

    store = MemoryStore()
    source = RecordHistory(store)
    assert isinstance(source, HistorySource) and isinstance(compiler(), TranscriptHandleProvider)
    for vault, name in (("", "one"), ("home", "one"), ("", "two")):
        agent = Agent(Talker("ok").model, capabilities=[compiler(store=store, vault_name=vault)])
        await run(agent, f"This is {vault} {name}.", conversation_id=name)
    runs = await source.list_runs()
    assert [(record.run_id, record.conversation_id) for record in runs] == [
        ("one", "one"),
        ("home/one", "one"),
        ("two", "two"),
    ]
    assert "This is home one." in str(await source.run_history(run_id="home/one"))
    assert await source.run_history(run_id="nobody") == []


async def chatted(store: MemoryStore, *others: Any, turns: int = 14) -> tuple[list[ModelMessage], str]:
    """The stored history of a conversation with other capabilities, and what the record has of it."""
    agent = Agent(Talker("I see.").model, capabilities=[*others, compiler(store=store)])
    history: list[ModelMessage] = []
    for number in range(turns):
        history = (await run(agent, f"Say {number}.", message_history=history, conversation_id="one")).messages
    return history, str(await RecordHistory(store).run_history(run_id="one"))


@pytest.mark.harness
@needs_harness
@pytest.mark.parametrize("receipts", [False, True])
@pytest.mark.parametrize("way", ["window", "summary", "summary of all", "pin"])
async def test_messages_removed_by_a_compaction_of_the_harness_are_found(way: str, receipts: bool) -> None:
    from pydantic_ai_harness import SlidingWindowCompaction, SummarizingCompaction
    from pydantic_ai_harness.compaction import pin as theirs

    if way.startswith("summary"):
        keep = 1 if way.endswith("all") else 4
        writer = Talker("All was said.").model
        other: Any = SummarizingCompaction(model=writer, max_messages=8, keep_messages=keep, receipts=receipts)
    else:
        other = SlidingWindowCompaction(max_messages=8, keep_messages=4, receipts=receipts)
    store = MemoryStore()
    if way == "pin":
        agent = Agent(Talker("I see.").model, capabilities=[other, compiler(store=store)])
        history: list[ModelMessage] = [ModelRequest(parts=[theirs(PINNED)])]
        for number in range(14):
            history = (await run(agent, f"Say {number}.", message_history=history, conversation_id="one")).messages
        text = str(await RecordHistory(store).run_history(run_id="one"))
        assert text.count(PINNED) == 1
    else:
        history, text = await chatted(store, other)
    assert len(history) < 20, "the stored history is a part"
    assert [text.count(f"'Say {number}.'") for number in range(14)] == [1] * 14
    assert "All was said" not in text and "History before this point" not in text


async def test_messages_that_a_user_discarded_are_not_found() -> None:
    store = MemoryStore()
    agent = Agent(Talker("I see.").model, capabilities=[compiler(store=store)])
    said = (await run(agent, "Keep this.", conversation_id="two")).messages
    await run(agent, "Forget what I say here, please.", message_history=said, conversation_id="two")
    await run(agent, "Instead this.", message_history=said, conversation_id="two")
    text = str(await RecordHistory(store).run_history(run_id="two"))
    assert "Keep this." in text and "Instead this." in text and "Forget" not in text
