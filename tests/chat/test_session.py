"""One conversation in two modes: what is said and kept is the same, what a model is sent is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic_ai import Agent, Tool
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from context_compiler import MemoryStore, SQLiteStore, View
from context_compiler.chat import ChatSession, ReflectionPolicy
from context_compiler.errors import SettingsError, TemplateError
from context_compiler.messages.bodies import message_body
from context_compiler.record.values import Entry, Record
from tests.chat.support import NOTES, Model, Room, texts

LONG = "Please look at the table of receipts again and tell me about the queue. " * 8


async def test_an_answer_comes_in_pieces_and_is_kept_whole(room: Room) -> None:
    pieces: list[str] = []
    chat = room.chat(Model(answer=lambda _: "one two three"))
    said = await chat.say("Count.", on_text=pieces.append)
    await chat.close()
    assert pieces == ["one ", "two ", "three "]
    assert said.text == said.output == "one two three "
    assert "**User:**\n\nCount.\n\n**Assistant:**\n\none two three \n\n" in room.transcript()


@pytest.mark.parametrize("given", ["name", None, Agent])
def test_a_first_argument_that_is_not_an_agent_is_refused(given: object) -> None:
    with pytest.raises(SettingsError, match="give the Agent first, and then the name of the session"):
        ChatSession(given, store=None)  # pyright: ignore[reportArgumentType] # wrong on purpose


async def test_the_application_hears_views_and_errors_beside_the_chat(room: Room) -> None:
    views: list[View] = []
    errors: list[Exception] = []

    async def hear(view: View) -> None:
        views.append(view)

    chat = room.chat(Model(), template="no_such_template", endless=True, on_view=hear, on_error=errors.append)
    reply = await chat.say("Hello.")
    await chat.close()
    assert views == [reply.view]
    assert [type(error) for error in errors] == [TemplateError] and len(room.notices) == 1


def test_the_name_of_a_vault_is_that_of_its_folder(room: Room) -> None:
    with pytest.raises(TypeError, match="vault_name"):
        room.chat(Model(), vault=room.path, vault_name="other")


async def test_normal_mode_sends_the_whole_history(room: Room) -> None:
    model = Model()
    chat = room.chat(model, template="no_such_template")
    for number in range(12):
        await chat.say(f"{number}: {LONG}")
    await chat.close()
    whole = list(map(message_body, chat.messages))
    assert [list(map(message_body, sent)) for sent in model.sent] == [whole[: 2 * turn + 1] for turn in range(12)]
    assert not model.compiles and not room.notices and not (room.path / "system").exists()
    store = SQLiteStore(room.path / "context.db")
    views = await store.views()
    assert [(view.turn_index, view.budget, view.summary_id) for view in views] == [
        (turn, None, None) for turn in range(12)
    ][::-1]
    assert all(view.status.startswith("raw") and view.tokens_raw == view.tokens_sent for view in views)
    assert [await store.chain(str(view.view_tip)) for view in views] == [whole[: 2 * turn + 1] for turn in range(12)][
        ::-1
    ]
    assert views[0].tokens_sent > 1_500 and not await store.verify()
    assert (await store.transcript("talk")) == whole


async def test_compiles_of_endless_mode_do_not_affect_normal_mode(room: Room) -> None:
    model = Model()
    chat = room.chat(model, endless=True)
    for number in range(6):
        await chat.say(f"{number}: {LONG}")
    assert (await chat.compact("the queue")).done
    await chat.pin("turn 1")
    chat.endless = False
    said = await chat.say("And now?")
    await chat.close()
    assert list(map(message_body, model.sent[-1])) == list(map(message_body, chat.messages[:-1]))
    assert said.view is not None and said.view.record is not None and said.view.status == "raw"
    assert said.view.record.budget is None and said.view.record.summary_id is None and said.view.record.id is not None


async def test_normal_mode_records_each_request_of_a_run_with_tools(room: Room) -> None:
    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[DeltaToolCalls | str]:
        if messages[-1].parts[-1].part_kind == "user-prompt":
            yield {0: DeltaToolCall(name="look", json_args="{}", tool_call_id="one")}
        else:
            yield "green"

    agent = Agent(FunctionModel(stream_function=stream), tools=[Tool(lambda: "fine", name="look")])
    chat = ChatSession(agent, store=room.path / "context.db", folder=room.path, system=None)
    said = await chat.say("Is the build green?")
    await chat.close()
    views = await SQLiteStore(room.path / "context.db").views()
    assert [(view.turn_index, view.request_index) for view in views] == [(0, 1), (0, 0)]
    assert said.view is not None and said.view.record is not None and said.view.record.id == views[0].id


class Late(SQLiteStore):
    """A record that keeps a request only once it may."""

    free: asyncio.Event

    async def save(self, entry: Entry) -> Record:
        await self.free.wait()
        return await super().save(entry)


@pytest.mark.parametrize("stops", [True, False])
async def test_in_normal_mode_every_answer_is_recorded_before_it_is_returned(room: Room, stops: bool) -> None:
    store, heard = Late(room.path / "context.db"), asyncio.Event()
    store.free = asyncio.Event()
    chat = room.chat(Model(answer=lambda _: "one two", pause=60 if stops else 0), store=store)
    saying = asyncio.create_task(chat.say("Count.", on_text=lambda _: heard.set()))
    await heard.wait()
    assert not stops or chat.stop()
    for _ in range(50):
        await asyncio.sleep(0)
    assert not saying.done()
    store.free.set()
    said = await saying
    assert said.stopped is stops and said.view is not None and said.view.record is not None
    (view,) = await store.views()
    assert said.view.record.id == view.id and len(await store.transcript("talk")) == 2
    await chat.close()


@pytest.mark.parametrize("endless", [True, False])
async def test_only_endless_mode_shortens_a_request_that_its_provider_refuses(room: Room, endless: bool) -> None:
    sent: list[int] = []

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        sent.append(len(messages))
        if len(messages) > 6:
            raise ModelHTTPError(400, "m", {"error": {"message": "prompt is too long: 9000 tokens > 8000 maximum"}})
        yield "yes"

    chat = room.chat(FunctionModel(stream_function=stream), endless=endless, budget=3_000, model="none")
    for number in range(3):
        await chat.say(f"{number}: {LONG}")
    if endless:
        assert (await chat.say(LONG)).text == "yes"
    else:
        with pytest.raises(ModelHTTPError):
            await chat.say(LONG)
        assert sent == [1, 3, 5, 7]
        assert chat.last is not None and chat.last.view is not None and chat.last.raw > 0
    await chat.close()


async def test_every_request_in_endless_mode_is_within_the_budget(room: Room) -> None:
    model = Model()
    chat = room.chat(model, endless=True)
    for number in range(16):
        said = await chat.say(f"{number}: {LONG}")
        assert said.view is not None and said.sent <= 1_500
    await chat.close()
    assert said.raw > 2_000 and len(chat.messages) == 32
    assert 1 <= len(model.compiles) < 16
    assert any(NOTES in text for text in texts(model.sent[-1]))


async def test_the_transcripts_of_the_two_modes_are_the_same_bytes(room: Room) -> None:
    for name, endless in (("normal", False), ("endless", True)):
        chat = room.chat(Model(), "talk", endless=endless, folder=room.path / name, store=None)
        for number in range(14):
            await chat.say(f"{number}: {LONG}")
        await chat.close()
    normal, other = ((room.path / name / "talk.md").read_bytes() for name in ("normal", "endless"))
    assert normal == other
    assert normal.count(b"**User:**") == 14


async def test_the_mode_is_switched_between_two_turns(room: Room) -> None:
    model = Model()
    chat = room.chat(model)
    for number in range(12):
        await chat.say(f"{number}: {LONG}")
    whole = len(model.sent[-1])
    chat.endless = True
    await chat.say("And now?")
    small = len(model.sent[-1])
    chat.endless = False
    await chat.say("And again?")
    await chat.close()
    assert (whole, len(model.sent[-1])) == (23, 27)
    assert small < whole


async def test_the_template_is_switched_between_two_turns(room: Room) -> None:
    chat = room.chat(Model(), endless=True, every_turn=True)
    for number in range(10):
        chat.template = "goal_oriented" if number > 7 else "chat_compiler"
        said = await chat.say(f"{number}: {LONG}")
    await chat.close()
    assert said.view is not None and said.view.record is not None and said.view.record.compile is not None
    assert said.view.record.compile.template_name == "goal_oriented"


@pytest.mark.parametrize(("model", "alias"), [(None, "told"), ("none", "none"), ("test", "test")])
async def test_the_record_names_the_model_that_writes_the_summary(model: str | None, alias: str, room: Room) -> None:
    chat = room.chat(Model(), endless=True, model=model)
    for number in range(12):
        await chat.say(f"{number}: {LONG}")
    await chat.close()
    summaries = await SQLiteStore(room.path / "context.db").summaries("talk")
    assert {row.model_alias for row in summaries} == {alias}


@pytest.mark.parametrize("endless", [False, True])
async def test_a_restarted_session_has_its_whole_history(endless: bool, room: Room) -> None:
    first = room.chat(Model(), endless=endless)
    for number in range(12):
        await first.say(f"{number}: {LONG}")
    await first.close()
    model = Model()
    second = room.chat(model, endless=endless)
    await second.open()
    assert [message_body(message) for message in second.messages] == [
        message_body(message) for message in first.messages
    ]
    await second.say("Where were we?")
    await second.close()
    assert room.transcript().count("**User:**") == 13
    assert not room.notices
    if endless:
        assert not model.compiles, "the notes of the first process are used again"
        assert any(NOTES in text for text in texts(model.sent[-1]))


async def test_a_session_of_another_vault_is_another_conversation(room: Room) -> None:
    for vault in ("work", "home"):
        chat = room.chat(Model(), vault=room.path / vault, folder=None)
        await chat.say(f"This is {vault}.")
        await chat.close()
    again = room.chat(Model(), vault=room.path / "work", folder=None)
    await again.open()
    await again.close()
    assert texts(again.messages)[0] == "This is work."
    assert (room.path / "home" / "AssistantMD" / "Chat_Sessions" / "talk.md").is_file()


async def test_a_stopped_answer_is_kept_up_to_the_stop_and_the_chat_goes_on(room: Room) -> None:
    model = Model(answer=lambda _: "one two three four five six", pause=0.02)
    chat = room.chat(model)
    said = await chat.say("Count.", on_text=lambda piece: chat.stop() if "three" in piece else None)
    assert said.stopped and said.text == "one two three "
    last = chat.messages[-1]
    assert isinstance(last, ModelResponse) and (last.text, last.state) == ("one two three ", "interrupted")
    await chat.say("Go on.")
    await chat.close()
    assert texts(model.sent[-1]) == ["Count.", "one two three ", "Go on."]
    assert "one two three \n\n*2026" in room.transcript()


async def test_a_cancelled_call_keeps_the_prompt_and_the_partial_answer(room: Room) -> None:
    chat = room.chat(Model(answer=lambda _: "one two three four", pause=0.05))
    heard = asyncio.Event()
    task = asyncio.create_task(chat.say("Count.", on_text=lambda _: heard.set()))
    await heard.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await chat.close()
    assert texts(chat.messages) == ["Count.", "one "]
    assert "one \n\n" in room.transcript()


async def test_an_error_of_the_model_is_raised_and_the_prompt_is_kept(room: Room) -> None:
    def fail(prompt: str) -> str:
        if prompt == "Fail.":
            raise ConnectionError("the line is dead")
        return "fine"

    model = Model(answer=fail)
    chat = room.chat(model)
    with pytest.raises(ConnectionError, match="the line is dead"):
        await chat.say("Fail.")
    said = await chat.say("And now?")
    await chat.close()
    assert said.text == "fine "
    assert [turn for turn in texts(chat.messages) if turn] == ["Fail.", "And now?", "fine "]
    assert room.transcript().count("**User:**") == 2


async def test_a_second_prompt_during_an_answer_is_refused(room: Room) -> None:
    chat = room.chat(Model(pause=0.01))
    first = asyncio.create_task(chat.say("One."))
    await asyncio.sleep(0)
    with pytest.raises(SettingsError, match="an answer is still being written"):
        await chat.say("Two.")
    await first
    await chat.close()


async def test_an_empty_prompt_is_refused(room: Room) -> None:
    with pytest.raises(SettingsError, match="give a prompt"):
        await room.chat(Model()).say(" \n")


async def test_recall_finds_text_of_any_turn_including_the_last(room: Room) -> None:
    chat = room.chat(Model(), store=MemoryStore())
    for number in range(5):
        await chat.say(f"Number {number} is about the port {8080 + number}.")
    passages = await chat.recall("8084")
    await chat.close()
    assert any("8084" in passage.text for passage in passages)


async def test_a_wrong_value_is_refused_when_a_chat_is_made(room: Room) -> None:
    with pytest.raises(SettingsError, match="budget"):
        room.chat(Model(), budget=-1)
    with pytest.raises(SettingsError, match="reflections"):
        room.chat(Model(), reflections={"keep": 3})
    room.chat(Model(), reflections=ReflectionPolicy(keep=1))
    with pytest.raises(TypeError, match="bugdet"):
        room.chat(Model(), bugdet=1_000)


@pytest.mark.parametrize("wish", [{"record": "metadata"}, {"record": "off"}, {"redact": str.upper}])
def test_a_chat_that_may_not_store_its_text_is_refused(wish: dict[str, Any], room: Room) -> None:
    with pytest.raises(SettingsError, match=r"stores all of its text.*leave (record|redact) out"):
        room.chat(Model(), **wish)
    assert not list(room.path.iterdir())
    room.chat(Model(), record="full", redact=None)


async def test_a_chat_takes_the_arguments_of_the_compiler(room: Room) -> None:
    model = Model()
    chat = room.chat(model, endless=True, rules=["Never book before noon."])
    await chat.say("Hello.")
    await chat.close()
    assert "Never book before noon." in str(model.sent[-1])


async def test_a_chat_on_the_store_of_an_owner_has_a_transcript_of_theirs(room: Room) -> None:
    store, model = SQLiteStore(room.path / "context.db"), Model()
    for owner in ("ann", "bob"):
        chat = room.chat(model, store=store.scoped(owner), folder=None)
        await chat.say(f"I am {owner}.")
        await chat.close()
    assert "I am ann." not in str(model.sent[-1]) and "I am bob." in str(model.sent[-1])
    assert len(list(room.path.rglob("talk.md"))) == 2
    await store.close()
