"""A session is continued where its file has it: nothing is saved over what a manager has not read."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import ModelMessage

from context_compiler.errors import ContextMemoryError, StoreError
from context_compiler.manager import ContextManager, SQLiteMemory
from tests.manager.conftest import AnyMemory
from tests.manager.fakes import Fragile, managed, said, talk
from tests.support.agents import Talker


async def test_a_new_manager_continues_the_session_of_its_memory(memory: AnyMemory) -> None:
    await talk(managed("none", memory), 3)
    again = managed("none", memory)
    result = await again.process_turn("after a restart")
    assert again.turn_count == 4 and result.trouble == ()
    assert said(again.transcript())[0].startswith("question 0") and said(again.transcript())[-1] == "after a restart"


async def test_an_agent_is_sent_the_session_of_the_process_before(memory: AnyMemory) -> None:
    first = managed("none", memory)
    await first.process_turn("My name is Ada.")
    first.add_response("Noted.")
    await first.checkpoint()
    talker = Talker("ok.")
    await Agent(talker.model, capabilities=[managed("none", memory).as_capability()]).run("What is my name?")
    assert "My name is Ada." in talker.last.text


@pytest.mark.parametrize("step", ["summarize", "checkpoint", "rollback"])
async def test_every_step_reads_the_session_first(memory: AnyMemory, step: str) -> None:
    first = managed("none", memory)
    await talk(first, 5)
    await first.checkpoint("good")
    again = managed("none", memory)
    await getattr(again, step)()
    assert again.turn_count == 5


async def test_the_second_of_two_managers_that_start_together_is_refused(tmp_path: Path) -> None:
    memories = [SQLiteMemory("s", tmp_path / "context.db") for _ in range(3)]
    first, second, third = (managed("none", memory) for memory in memories)
    assert not await first.resume() and not await second.resume()
    assert (await first.process_turn("from the first")).trouble == ()
    late = await second.process_turn("from the second")
    assert "another manager has kept it meanwhile" in late.trouble[0] and second.turn_count == 1
    assert await third.resume() and said(third.transcript()) == ["from the first"]
    for memory in memories:
        await memory.close()


async def test_a_refused_manager_keeps_its_turns_when_it_resumes(tmp_path: Path) -> None:
    memories = [SQLiteMemory("s", tmp_path / "context.db") for _ in range(3)]
    first, second, third = (managed("none", memory) for memory in memories)
    await first.resume()
    assert (await second.process_turn("from both")).trouble == ()
    await first.resume()
    assert second.add_response("answered late")
    assert (await first.process_turn("from the first")).trouble == ()
    for text in ("from the second", "from the second"):
        assert (await second.process_turn(text)).trouble
    told = ["from both", "answered late", "from the first", "from the second", "from the second"]
    for _ in range(2):
        assert await second.resume() and said(second.transcript()) == told
    assert second.add_response("still open")
    assert (await second.process_turn("saved")).trouble == ()
    assert await third.resume() and said(third.transcript()) == [*told, "still open", "saved"]
    for memory in memories:
        await memory.close()


async def test_answers_of_two_agents_that_take_turns_stay_with_their_questions(tmp_path: Path) -> None:
    memories = [SQLiteMemory("s", tmp_path / "context.db") for _ in range(2)]
    managers = [managed("none", memory) for memory in memories]
    agents = [
        Agent(Talker(f"{name} says so.").model, capabilities=[ProcessHistory(manager.as_history_processor())])
        for name, manager in zip("ab", managers, strict=True)
    ]
    for manager in managers:
        await manager.resume()
    first = (await agents[0].run("a asks")).all_messages()
    second = (await agents[1].run("b asks")).all_messages()
    for index, prompt, history in ((1, "b asks more", second), (0, "a asks more", first)):
        assert await managers[index].resume()
        await agents[index].run(prompt, message_history=history)
    told = ["a asks", "b asks", "b says so.", "b asks more", "a asks more"]
    assert said(managers[0].transcript()) == told
    for memory in memories:
        await memory.close()


async def test_a_refused_save_does_not_move_the_transcript(tmp_path: Path) -> None:
    memories = [SQLiteMemory("s", tmp_path / "context.db") for _ in range(2)]
    first, second = (managed("none", memory) for memory in memories)
    assert not await first.resume() and not await second.resume()
    await talk(first, 3)
    before = await memories[0].store.transcript("s")
    assert (await second.process_turn("from the second")).trouble
    assert await memories[0].store.transcript("s") == before
    assert await memories[0].store.verify() == ()
    for memory in memories:
        await memory.close()


@pytest.mark.parametrize("step", ["checkpoint", "rollback"])
async def test_a_manager_that_another_one_has_overtaken_changes_nothing(tmp_path: Path, step: str) -> None:
    memories = [SQLiteMemory("s", tmp_path / "context.db") for _ in range(3)]
    first, second, third = (managed("none", memory) for memory in memories)
    await talk(first, 1)
    await first.checkpoint("good")
    await second.resume()
    await memories[1].remember("The harbour is called Sund.")
    assert (await second.process_turn("from the second")).trouble == ()
    before, log = first.to_json(), await memories[2].log()
    with pytest.raises(StoreError, match="another manager has kept it meanwhile"):
        await getattr(first, step)()
    assert first.to_json() == before and await memories[2].log() == log
    assert await third.resume() and third.turn_count == 2
    assert await memories[2].search("harbour", 1)
    await first.resume()
    await getattr(first, step)()
    for memory in memories:
        await memory.close()


async def test_a_turn_does_not_roll_back_the_memory_of_another_manager(tmp_path: Path) -> None:
    memories = [SQLiteMemory("s", tmp_path / "context.db") for _ in range(2)]
    first = managed("none", memories[0], quality_threshold=1.0, auto_rollback=True)
    second = managed("none", memories[1])
    await talk(first, 1)
    await first.checkpoint("good")
    await second.resume()
    await memories[1].remember("The harbour is called Sund.")
    await second.process_turn("from the second")
    result = await first.process_turn("from the first")
    assert not result.rollback_triggered and "another manager has kept it meanwhile" in result.trouble[0]
    assert await memories[1].search("harbour", 1)
    for memory in memories:
        await memory.close()


async def test_a_failed_rollback_leaves_no_session_behind(memory: AnyMemory) -> None:
    with pytest.raises(ContextMemoryError, match="No checkpoint"):
        await managed("none", memory).rollback()
    assert not await managed("none", memory).resume()


async def test_a_turn_rolled_back_by_another_manager_does_not_return(tmp_path: Path) -> None:
    memories = [SQLiteMemory("s", tmp_path / "context.db") for _ in range(2)]
    first, second = (managed("none", memory, checkpoint_interval=99) for memory in memories)
    await talk(first, 1)
    await first.checkpoint("good")
    await talk(first, 1, start=1)
    await first.checkpoint("late")
    await second.rollback()
    await second.rollback()
    assert second.turn_count == 1
    assert (await first.process_turn("from the first")).trouble
    assert await first.resume()
    assert [text.split(" why")[0] for text in said(first.transcript())[::2]] == ["question 0", "from the first"]
    for memory in memories:
        await memory.close()


async def test_a_run_that_resumes_the_session_keeps_its_turn(memory: AnyMemory) -> None:
    manager = managed("none", memory)
    await talk(manager, 1)
    agent, talker = agent_that_calls(manager.resume, manager)
    await agent.run("Look again, please.")
    assert talker.last.text.count("Look again, please.") == 1 and "went back" in talker.last.text
    assert manager.turn_count == 2 and said(manager.transcript())[-1] == "done."


async def test_an_unreadable_session_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "context.db"
    memory = SQLiteMemory("s", path)
    await talk(managed("none", memory), 2)
    await memory.close()

    def state(change: str | None = None) -> str:
        with closing(sqlite3.connect(path)) as db, db:
            if change is not None:
                db.execute("UPDATE spaces SET state = ?", (change,))
            return db.execute("SELECT state FROM spaces").fetchone()[0]

    whole = state()
    state("{}")
    manager = managed("none", memory)
    result = await manager.process_turn("while it is damaged")
    assert "damaged" in result.trouble[0] and "nothing is saved" in result.trouble[1]
    with pytest.raises(ContextMemoryError, match="damaged"):
        await manager.checkpoint()
    await memory.close()
    assert state() == "{}"
    state(whole)
    assert (await manager.process_turn("when it is mended")).trouble == ()
    texts = said(manager.transcript())
    assert len(texts) == 5 and texts[-2:] == ["while it is damaged", "when it is mended"]
    await memory.close()


async def test_a_damaged_session_can_be_rolled_back_to_a_commit(tmp_path: Path) -> None:
    path = tmp_path / "context.db"
    memory = SQLiteMemory("s", path)
    first = managed("none", memory)
    await talk(first, 2)
    commit = await first.checkpoint("good")
    await memory.close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE spaces SET state = '{}'")
    again = managed("none", memory)
    with pytest.raises(ContextMemoryError, match=r"rollback\(commit\)"):
        await again.rollback()
    await again.rollback(commit)
    assert again.turn_count == 2 and (await again.process_turn("go on")).trouble == ()
    await memory.close()


async def test_the_system_prompt_of_the_new_manager_counts(memory: AnyMemory) -> None:
    await talk(managed("none", memory, system_prompt="You are a clerk."), 1)
    for prompt, sent in ((None, "You are a clerk."), ("You are a captain.", "You are a captain.")):
        again = managed("none", memory, system_prompt=prompt)
        await again.process_turn("Hello.")
        assert said(again.get_context_messages())[0] == sent


async def test_a_session_given_as_json_is_not_replaced(memory: AnyMemory) -> None:
    other = managed("none")
    await other.process_turn("from elsewhere")
    manager = managed("none", memory)
    manager.load_json(other.to_json())
    await manager.process_turn("and now?")
    assert said(manager.transcript()) == ["from elsewhere", "and now?"]


async def test_a_rollback_restores_the_named_commit(memory: AnyMemory) -> None:
    manager = managed("none", memory, checkpoint_interval=99)
    await talk(manager, 1)
    early = await manager.checkpoint("early")
    for number in range(1, 4):
        await talk(manager, 1, start=number)
        await manager.checkpoint(f"late {number}")
    done = await manager.rollback(early)
    assert (done.commit_restored, done.turns_lost, manager.turn_count) == (early, 3, 1)
    with pytest.raises(ContextMemoryError, match="no commit"):
        await manager.rollback("nonsense")
    assert manager.turn_count == 1


def agent_that_calls(step: Any, manager: ContextManager) -> tuple[Agent[None, str], Talker]:
    talker = Talker([[("go_back", {})], "done.", "bye."])

    async def go_back() -> str:
        await step()
        return "went back"

    return Agent(talker.model, tools=[go_back], capabilities=[manager.as_capability()]), talker


async def test_a_rollback_during_a_run_keeps_the_turn_of_that_run(memory: AnyMemory) -> None:
    manager = managed("none", memory, checkpoint_interval=99)
    await talk(manager, 1)
    await manager.checkpoint("good")
    await talk(manager, 2, start=1)
    agent, talker = agent_that_calls(manager.rollback, manager)
    await agent.run("Go back, please.")
    assert talker.last.text.count("Go back, please.") == 1 and "went back" in talker.last.text
    assert "question 0" in talker.last.text and "question 1" not in talker.last.text
    assert manager.turn_count == 2 and said(manager.transcript())[-1] == "done."
    await agent.run("Bye.")
    assert "went back" in talker.last.text


async def test_a_checkpoint_and_a_rollback_in_one_run_leave_its_turn_once(memory: AnyMemory) -> None:
    manager = managed("none", memory, checkpoint_interval=99)
    await talk(manager, 1)

    async def there_and_back() -> None:
        await manager.checkpoint("within")
        assert (await manager.rollback()).turns_lost == 0

    agent, talker = agent_that_calls(there_and_back, manager)
    await agent.run("Go back, please.")
    assert talker.last.text.count("Go back, please.") == 1 and manager.turn_count == 2


async def test_a_memory_that_keeps_no_session_starts_a_new_one() -> None:
    class Bare:
        def __init__(self) -> None:
            self.inner = Fragile()

        async def search(self, query: str, limit: int) -> Any:
            return await self.inner.search(query, limit)

        async def remember(self, text: str) -> str:
            return await self.inner.remember(text)

    memory = Bare()
    await talk(managed("none", memory, versioned=False), 2)
    manager = managed("none", memory, versioned=False)
    assert (await manager.process_turn("Hello.")).trouble == () and manager.turn_count == 1


async def test_two_managers_of_one_memory_do_not_overwrite_each_other(memory: AnyMemory) -> None:
    manager, other = managed("none", memory), managed("none", memory)
    await manager.process_turn("one says this")
    await other.process_turn("the other says that")
    result = await manager.process_turn("one goes on")
    assert "another manager of the same memory has saved its session" in result.trouble[0]
    assert said((await resumed(memory)).transcript())[-1] == "the other says that"
    assert await manager.resume()
    assert (await manager.process_turn("one follows the other")).trouble == ()
    assert said((await resumed(memory)).transcript()) == [
        *("one says this", "the other says that", "one goes on", "one follows the other"),
    ]


async def resumed(memory: Any) -> ContextManager:
    manager = managed("none", memory)
    await manager.resume()
    return manager


async def test_an_answer_is_saved_by_a_checkpoint_without_versions_too(memory: AnyMemory) -> None:
    first = managed("none", memory, versioned=False)
    await first.process_turn("My name is Ada.")
    assert first.add_response("Noted.")
    assert await first.checkpoint() is None
    assert said((await resumed(memory)).transcript()) == ["My name is Ada.", "Noted."]


async def test_an_answer_after_tool_calls_stays_with_its_question_when_a_new_process_takes_over(tmp_path: Path) -> None:
    def look(path: str) -> str:
        return f"{path} is empty"

    steps = iter([[("look", {"path": "a"})], [("look", {"path": "b"})], "Both are empty.", "Nothing."])
    model = Talker(lambda messages, info: next(steps)).model
    history: list[ModelMessage] = []
    told: list[str] = []
    for question in ("What is in a and b?", "And now?"):
        memory = SQLiteMemory("s", tmp_path / "context.db")
        manager = managed("none", memory, system_prompt="Be brief.")
        agent = Agent(model, tools=[look], capabilities=[ProcessHistory(manager.as_history_processor())])
        history = (await agent.run(question, message_history=history)).all_messages()
        told = said(manager.transcript())
        await memory.close()
    used = ['{"path": "a"} look', "a is empty look", '{"path": "b"} look', "b is empty look"]
    assert told == ["What is in a and b?", *used, "Both are empty.", "And now?"]


@pytest.mark.parametrize("runs", [1, 2, 3])
@pytest.mark.parametrize("marked", [True, False])
async def test_an_answer_that_only_the_history_has_stays_with_its_question(
    tmp_path: Path, runs: int, marked: bool
) -> None:
    history: list[ModelMessage] = []
    told: list[str] = []
    for numbers in (range(runs), range(runs, runs + 1)):
        memory = SQLiteMemory("s", tmp_path / "context.db")
        manager = managed("none", memory, system_prompt="Be brief." if marked else None)
        agent = Agent(Talker("Noted.").model, capabilities=[ProcessHistory(manager.as_history_processor())])
        for number in numbers:
            history = (await agent.run(f"question {number}", message_history=history)).all_messages()
        told = said(manager.transcript())
        await memory.close()
    answered = [text for number in range(runs) for text in (f"question {number}", "Noted.")]
    assert told == [*answered, f"question {runs}"]
