"""A session on a live agent: it says what is sent, and the agent's own history stays as it is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, Tool, ToolReturn
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart, ToolReturnPart

from context_compiler.manager import ContextManager, SQLiteMemory, VolatileMemory
from context_compiler.manager.session import make_turn, safe_boundary
from context_compiler.messages.history import Reader
from context_compiler.messages.turns import pair
from context_compiler.tokens import as_counter
from tests.manager.fakes import Fragile, Scribe, managed, said
from tests.support.agents import WAYS, Talker, compiler, unstamped
from tests.support.builders import assistant, user


def attached(way: str, manager: ContextManager, talker: Talker, **more: Any) -> Agent[None, Any]:
    part: Any = manager.as_capability() if way == "capability" else ProcessHistory(manager.as_history_processor())
    return Agent(talker.model, capabilities=[part], **more)


BOTH = pytest.mark.parametrize("way", ["capability", "processor"])


@BOTH
async def test_a_short_session_is_sent_as_it_is(way: str) -> None:
    manager, talker = managed(), Talker("ok.")
    agent = attached(way, manager, talker)
    first = await agent.run("Hello.")
    await agent.run("And now?", message_history=first.all_messages())
    assert [message.kind for message in talker.last.messages] == ["request", "response", "request"]
    assert manager.turn_count == 2


@BOTH
async def test_summarised_turns_are_not_sent(way: str) -> None:
    scribe, talker = Scribe("The plan was made."), Talker("Noted. " + "word " * 60)
    manager = managed(scribe, max_tokens=600, recent_turns_to_keep=2)
    agent = attached(way, manager, talker)
    history: list[ModelMessage] = []
    for number in range(12):
        history = (await agent.run(f"step {number}: go on", message_history=history)).all_messages()
    assert scribe.asked
    assert "The plan was made." in talker.last.text and "step 11: go on" in talker.last.text
    assert "step 2: go on" not in talker.last.text
    assert manager.turn_count == 12
    assert talker.last.text.count("step 11: go on") == 1
    assert all(sent.tokens <= 600 for sent in talker.sent)


@BOTH
async def test_the_session_supplies_the_history_of_an_agent_that_gives_none(way: str) -> None:
    manager, talker = managed(), Talker("ok.")
    agent = attached(way, manager, talker)
    await agent.run("My name is Ada.")
    await agent.run("What is my name?")
    assert "My name is Ada." in talker.last.text


async def test_the_given_history_is_not_changed() -> None:
    manager = managed(Scribe(), max_tokens=200, recent_turns_to_keep=1)
    managed_agent = attached("capability", manager, Talker("Noted. " + "word " * 30))
    plain = Agent(Talker("Noted. " + "word " * 30).model)
    history: list[ModelMessage] = []
    other: list[ModelMessage] = []
    for number in range(6):
        history = (await managed_agent.run(f"step {number}", message_history=history)).all_messages()
        other = (await plain.run(f"step {number}", message_history=other)).all_messages()
    assert unstamped(history) == unstamped(other)
    assert unstamped(manager.transcript()) == unstamped(history)


@BOTH
async def test_text_that_a_tool_returns_begins_no_turn(way: str) -> None:
    def look() -> ToolReturn:
        return ToolReturn("a page", content="What else is on the page?")

    manager, talker = managed("none"), Talker([[("look", {})], "It is blank."])
    done = await attached(way, manager, talker, tools=[look]).run("Look at the page.")
    assert manager.turn_count == 1 and "Look at the page." in talker.last.text
    restored, adopting = managed("none"), managed("none")
    restored.load_json(manager.to_json())
    await attached(way, adopting, Talker(), tools=[look]).run("And now?", message_history=done.all_messages())
    assert (restored.turn_count, adopting.turn_count) == (1, 2)


@BOTH
async def test_calls_and_their_answers_stay_together(way: str) -> None:
    talker = Talker(lambda messages, info: [("look", {"at": "a"})] if asks_now(messages) else "done. " + "word " * 40)

    def look(at: str) -> str:
        return f"{at} is there. " + "word " * 40

    manager = managed(Scribe(), max_tokens=500, recent_turns_to_keep=2)
    agent = attached(way, manager, talker, tools=[look])
    history: list[ModelMessage] = []
    for number in range(8):
        history = (await agent.run(f"step {number}", message_history=history)).all_messages()
    reader = Reader(as_counter(None))
    for sent in talker.sent:
        assert not pair(reader.read(sent.messages)).broken
    assert any(isinstance(part, ToolReturnPart) for message in talker.last.messages for part in message.parts)
    assert manager.turn_count == 8


def asks_now(messages: list[ModelMessage]) -> bool:
    return messages[-1].parts[-1].part_kind == "user-prompt"


@BOTH
async def test_system_text_of_the_agent_is_sent_once_and_stays(way: str) -> None:
    manager, talker = managed(Scribe(), max_tokens=300, recent_turns_to_keep=1), Talker("ok. " + "word " * 40)
    agent = attached(way, manager, talker, system_prompt="You are a clerk.")
    history: list[ModelMessage] = []
    for number in range(6):
        history = (await agent.run(f"step {number}", message_history=history)).all_messages()
    assert talker.last.text.count("You are a clerk.") == 1


@BOTH
@pytest.mark.parametrize("beside", [True, False])
async def test_an_agent_is_not_sent_the_instructions_of_another_whose_run_failed(way: str, beside: bool) -> None:
    manager, planner, worker = managed(), Talker(ConnectionError("provider is down")), Talker("ok.")
    part: Any = manager.as_capability() if way == "capability" else ProcessHistory(manager.as_history_processor())
    parts: list[Any] = [part, compiler(budget=8_000)] if beside else [part]
    with pytest.raises(ConnectionError):
        await Agent(planner.model, instructions="You are the planner.", capabilities=parts).run("Plan it.")
    await Agent(worker.model, capabilities=parts).run("Do it.")
    assert planner.last.instructions == "You are the planner."
    assert "Plan it." in worker.last.text and not worker.last.instructions
    assert [getattr(message, "instructions", None) for message in manager.get_context_messages()][0] is None


@BOTH
async def test_a_failing_memory_does_not_stop_a_run(way: str) -> None:
    manager, talker = managed(memory=Fragile("search", "remember", "commit")), Talker("ok.")
    agent = attached(way, manager, talker)
    assert (await agent.run("Hello.")).output == "ok."


async def test_memories_that_match_are_sent() -> None:
    memory, talker = VolatileMemory(), Talker("ok.")
    await memory.remember("The staging database is called heron.")
    agent = attached("capability", managed(memory=memory), talker)
    await agent.run("What is the staging database called?")
    assert "heron" in talker.last.text


@pytest.mark.parametrize("compiler_first", [True, False])
async def test_a_compiler_next_to_a_manager_records_what_the_session_sends(compiler_first: bool) -> None:
    scribe, talker, compiling = Scribe("The plan was made."), Talker("Noted. " + "word " * 60), compiler(budget=2_000)
    parts: list[Any] = [managed(scribe, max_tokens=600, recent_turns_to_keep=1).as_capability(), compiling]
    agent = Agent(talker.model, capabilities=parts[::-1] if compiler_first else parts)
    history: list[ModelMessage] = []
    for number in range(9):
        history = (await agent.run(f"step {number}: go on", message_history=history)).all_messages()
    assert len(history) == 18 and scribe.asked
    assert compiling.last_view is not None
    sent = str(compiling.last_view.messages)
    assert "The plan was made." in sent and "step 8: go on" in sent and "step 1: go on" not in sent


async def test_summaries_are_charged_to_the_run() -> None:
    notes = Talker("A plan was made.", usage=100)
    manager, talker = managed(notes.model, max_tokens=300, recent_turns_to_keep=1), Talker("word " * 60, usage=1)
    agent = attached("capability", manager, talker)
    spent = [(await agent.run(f"step {number}: {'go on ' * 20}")).usage.input_tokens for number in range(4)]
    assert len(notes.sent) == sum(tokens > 100 for tokens in spent) > 0


@pytest.mark.parametrize("name", WAYS)
async def test_every_way_to_run_ends_with_an_answered_turn(name: str) -> None:
    manager, talker = managed(), Talker("ok.")
    agent = attached("capability", manager, talker)
    await WAYS[name](agent, "Hello.")
    assert manager.turn_count == 1
    assert isinstance(manager.transcript()[-1], ModelResponse)
    assert not manager.add_response("late")


async def test_a_failed_run_leaves_a_usable_session() -> None:
    talker = Talker([[("look", {})], "ok."])

    def look() -> str:
        raise RuntimeError("the tool is broken")

    manager = managed()
    agent = attached("capability", manager, talker, tools=[look])
    with pytest.raises(RuntimeError):
        await agent.run("Look.")
    await agent.run("Never mind.")
    assert not any(isinstance(part, ToolCallPart) for message in talker.last.messages for part in message.parts)


async def test_an_existing_history_is_taken_over() -> None:
    talker = Talker("ok.")
    plain = Agent(talker.model)
    history = (await plain.run("My name is Ada.")).all_messages()
    manager = managed()
    await attached("capability", manager, talker).run("What is my name?", message_history=history)
    assert manager.turn_count == 2 and "My name is Ada." in talker.last.text


async def test_a_rolled_back_turn_does_not_return_with_the_history() -> None:
    manager, talker = managed(), Talker("ok.")
    agent = attached("capability", manager, talker)
    history = (await agent.run("Keep this.")).all_messages()
    await manager.checkpoint("good")
    history = (await agent.run("Forget that.", message_history=history)).all_messages()
    await manager.rollback()
    await agent.run("Go on.", message_history=history)
    assert "Keep this." in talker.last.text and "Forget that." not in talker.last.text


async def test_one_huge_turn_is_cut_to_the_limit() -> None:
    manager, talker = managed(max_tokens=1_000), Talker("ok.")
    agent = attached("capability", manager, talker)
    await agent.run("word " * 5_000)
    assert talker.last.tokens <= 1_000


async def test_two_runs_at_once_do_not_mix() -> None:
    manager = managed()
    talker = Talker(lambda messages, info: [("look", {})] if asks_now(messages) else "done.")

    looking, both = list[str](), asyncio.Event()

    async def look() -> str:
        looking.append("there")
        if len(looking) > 1:
            both.set()
        await both.wait()
        return "there"

    agent = attached("capability", manager, talker, tools=[look])
    await asyncio.gather(agent.run("One."), agent.run("Two."))
    reader = Reader(as_counter(None))
    for sent in talker.sent:
        assert not pair(reader.read(sent.messages)).broken
        assert not ("One." in sent.text and "Two." in sent.text)
    assert manager.turn_count == 2
    assert not pair(reader.read(manager.transcript())).broken
    await agent.run("Three.")
    assert "One." in talker.last.text and "Two." in talker.last.text


@BOTH
async def test_an_unanswered_call_is_not_taken_over(way: str) -> None:
    call = ToolCallPart(tool_name="look", args={}, tool_call_id="lost")
    history = [user("Look."), assistant(call), user("Never mind."), assistant("Fine.")]
    manager, talker = managed(), Talker("ok.")
    await attached(way, manager, talker).run("Go on.", message_history=history)
    assert not pair(Reader(as_counter(None)).read(talker.last.messages)).broken
    assert "Never mind." in talker.last.text and manager.turn_count == 3


@BOTH
@pytest.mark.parametrize("handed_over", [True, False])
async def test_a_deferred_call_resumes_where_it_stopped(way: str, handed_over: bool) -> None:
    talker = Talker([[("pay", {"amount": 5})], "paid.", "bye."])

    def pay(amount: int) -> str:
        return f"{amount} paid"

    manager = managed()
    tool: Any = Tool(pay, requires_approval=True)
    agent: Any = attached(way, manager, talker, tools=[tool], output_type=[str, DeferredToolRequests])
    first = await agent.run("Pay five.")
    [call] = first.output.approvals
    second = await agent.run(
        message_history=first.all_messages(),
        deferred_tool_results=DeferredToolResults(approvals={call.tool_call_id: True}),
    )
    assert second.output == "paid."
    assert not pair(Reader(as_counter(None)).read(talker.last.messages)).broken
    assert "5 paid" in talker.last.text and talker.last.text.count("Pay five.") == 1
    history = second.all_messages() if handed_over or way == "processor" else None
    await agent.run("Bye.", message_history=history)
    assert "5 paid" in talker.last.text and manager.turn_count == 2


async def test_a_deferred_call_never_answered_is_not_sent_without_a_result() -> None:
    talker = Talker([[("pay", {})], "never mind then."])

    def pay() -> str:
        return "paid"

    manager = managed()
    tool: Any = Tool(pay, requires_approval=True)
    agent: Any = attached("capability", manager, talker, tools=[tool], output_type=[str, DeferredToolRequests])
    await agent.run("Pay five.")
    await agent.run("Never mind.")
    assert not pair(Reader(as_counter(None)).read(talker.last.messages)).broken
    assert "Pay five." in talker.last.text


@pytest.mark.parametrize(("answered", "stop"), [(1, 2), (2, 0), (3, 0), (None, 2)])
def test_turns_are_not_split_between_a_call_and_its_result(answered: int | None, stop: int) -> None:
    reader, answer = Reader(as_counter(None)), ToolReturnPart(tool_name="pay", content="paid", tool_call_id="c")
    said: list[list[ModelMessage]] = [[user(f"turn {number}")] for number in range(4)]
    said[0].append(assistant(ToolCallPart(tool_name="pay", args={}, tool_call_id="c")))
    if answered is not None:
        said[answered].insert(0, user(answer))
    turns = [make_turn(messages, reader, open=False) for messages in said]
    assert safe_boundary(turns, 0, 2, reader) == stop


@BOTH
@pytest.mark.parametrize("budget", [1_200, 2_000])
async def test_a_compiler_beside_a_manager_quotes_no_turn_twice(way: str, budget: int) -> None:
    manager, talker = managed(Scribe("The plan was made."), max_tokens=2_000), Talker("Noted. " + "word " * 60)
    part: Any = manager.as_capability() if way == "capability" else ProcessHistory(manager.as_history_processor())
    agent = Agent(talker.model, capabilities=[part, compiler(budget=budget)])
    facts = [f"The pump of hall {number} is called zebra{number}x." for number in range(30)]
    history: list[ModelMessage] = []
    for number, fact in enumerate(facts):
        prompt = fact if number % 5 else f"{fact} What is the pump of hall {max(0, number - 4)} called?"
        options: Any = {"conversation_id": "halls", "message_history": history}
        history = (await agent.run(prompt, **options)).all_messages()
    assert max(sent.text.count(fact) for sent in talker.sent for fact in facts) == 1
    assert facts[0] not in talker.last.text and max(sent.tokens for sent in talker.sent) <= budget


@BOTH
@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("again", ["after a failure", "from an older history"])
async def test_a_run_that_is_made_again_gives_no_answer_to_a_wrong_question(way: str, marked: bool, again: str) -> None:
    manager, talker = managed(system_prompt="Be brief." if marked else None), Talker("first")
    agent = attached(way, manager, talker)
    history = (await agent.run("one")).all_messages()
    talker.say(ConnectionError("provider is down") if again == "after a failure" else "second")
    try:
        await agent.run("two", message_history=history)
    except ConnectionError:
        pass
    talker.say("third")
    await agent.run("two again", message_history=history)
    told = said(manager.transcript())
    assert told.count("first") == 1 and told[:3] == ["one", "first", "two"]
    assert talker.last.text.count("first") == 1


async def test_an_answer_that_was_rolled_back_with_its_question_does_not_return() -> None:
    manager, talker = managed(system_prompt="Be brief.", checkpoint_interval=99), Talker("first")
    agent = attached("processor", manager, talker)
    history = (await agent.run("one")).all_messages()
    talker.say("second")
    await manager.checkpoint("good")
    history = (await agent.run("two", message_history=history)).all_messages()
    await manager.rollback()
    talker.say("third")
    await agent.run("three", message_history=history)
    assert "second" not in said(manager.transcript()) and "three" in said(manager.transcript())


@BOTH
async def test_two_first_runs_at_once_take_the_history_in_once(way: str, tmp_path: Path) -> None:
    memory = SQLiteMemory("s", tmp_path / "context.db")
    manager, talker = managed("none", memory), Talker("ok.")
    agent = attached(way, manager, talker)
    history: list[ModelMessage] = [user("earlier"), assistant("noted")]
    await asyncio.gather(*(agent.run(text, message_history=history) for text in ("plan", "work")))
    told = said(manager.transcript())
    assert told.count("earlier") == 1 and told.count("plan") == told.count("work") == 1
    await memory.close()
