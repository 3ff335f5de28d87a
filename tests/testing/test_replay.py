"""Replays: the recording supplies answers, tool results and summaries; whatever does not fit it is named."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, CallDeferred, DeferredToolRequests, DeferredToolResults, Tool
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from context_compiler import ContextCompiler, compile_view
from context_compiler.errors import TranscriptError
from context_compiler.testing import (
    Conversation,
    Recording,
    RecordingError,
    ReplayError,
    live,
    live_async,
    read_recording,
    recorded_async,
    replay,
    replay_async,
    write_html,
)
from tests.support.agents import Notes, Talker, compiler, unstamped
from tests.support.builders import assistant, user
from tests.testing.agents import RULE, compiling, failure, matters, trimming

CALLED: list[str] = []


def look(what: str) -> str:
    CALLED.append(what)
    return f"Nothing about {what}."


def script(turns: int) -> list[Any]:
    return [step for turn in range(turns) for step in ([("look", {"what": f"matter {turn}"})], f"Seen {turn}.")]


@pytest.fixture
def desk() -> list[ModelMessage]:
    """A conversation of six turns with a tool call in each."""
    made = live(Agent(tools=[look]), matters(6, said_2=RULE), model=Talker(script(6)).model)
    CALLED.clear()
    return made.history


def texts(conversation: Conversation) -> list[str]:
    return [request.text for request in conversation.requests]


@pytest.mark.parametrize("stream", [False, True])
def test_a_replay_sends_the_recorded_requests_and_calls_no_tool(desk: list[ModelMessage], stream: bool) -> None:
    conversation = replay(desk, Agent(tools=[look]), stream=stream)
    assert unstamped(conversation.raw) == unstamped(desk)
    assert [len(request.messages) for request in conversation.requests] == [1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23]
    assert [request.turn for request in conversation.requests] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]
    assert not CALLED
    conversation.assert_in_context(RULE, "Nothing about matter 3.")
    conversation.assert_within(pairs=True, compiles=0)


def test_another_strategy_on_the_same_recording_fails_where_it_loses_the_rule(desk: list[ModelMessage]) -> None:
    found = failure(lambda: replay(desk, trimming(tools=[look])).assert_in_context(RULE))
    assert (found.request.number, found.request.turn) == (6, 3)
    replay(desk, compiling(700, tools=[look])).assert_in_context(RULE)


def test_a_tool_that_an_agent_no_longer_has_is_a_clear_difference(desk: list[ModelMessage]) -> None:
    with pytest.raises(ReplayError) as raised:
        replay(desk, Agent())
    lines = str(raised.value).splitlines()
    assert lines[0] == "message 2: the agent sends another request than the recording"
    assert "Unknown tool name" in lines[1] and "Nothing about matter 0." in lines[2]


def test_arguments_that_a_tool_no_longer_takes_are_a_clear_difference(desk: list[ModelMessage]) -> None:
    def changed(number: int) -> str:
        return str(number)

    with pytest.raises(ReplayError, match="the agent sends another request than the recording"):
        replay(desk, Agent(tools=[Tool(changed, name="look")]))


class Answer(BaseModel):
    text: str


def test_an_agent_that_wants_another_output_differs_and_does_not_hang(desk: list[ModelMessage]) -> None:
    with pytest.raises(ReplayError, match=r"agent: .*\n  recording: .*Matter 2"):
        replay(desk, Agent(tools=[look], output_type=Answer))


async def test_structured_outputs_and_results_that_ask_again_are_replayed() -> None:
    steps = [[("look", {"nothing": 1})], [("look", {"what": "a"})], [("final_result", {"text": "done"})]] * 2
    agent = Agent(tools=[look], output_type=Answer)
    first = await live_async(agent, ["Look.", "Again."], model=Talker(steps).model)
    assert any("Field required" in text for text in texts(first))
    second = await replay_async(first.history, agent)
    assert texts(first) == texts(second)


async def test_a_recording_that_ends_with_a_call_ends_the_replay(desk: list[ModelMessage]) -> None:
    with pytest.raises(ReplayError, match="nothing: it has ended"):
        await replay_async(desk[:2], Agent(tools=[look]))


async def test_parallel_calls_get_their_own_results() -> None:
    calls: Any = [("look", {"what": "a"}), ("look", {"what": "b"})]
    first = await live_async(Agent(tools=[look]), ["Look."], model=Talker([calls, "Done."]).model)
    second = await replay_async(first.history, Agent(tools=[look]))
    results = [part for part in second.requests[1].messages[-1].parts if isinstance(part, ToolReturnPart)]
    assert [part.content for part in results] == ["Nothing about a.", "Nothing about b."]


async def session(path: Path, notes: Notes, **given: Any) -> Any:
    ours = compiler(notes, budget=2_000, store=path, recall=0, **given)
    agent = Agent(capabilities=[ours])
    return agent, await live_async(agent, matters(40, said_2=RULE), conversation_id="desk")


async def test_a_session_of_a_record_is_replayed_with_its_summaries_and_writes_no_record(tmp_path: Path) -> None:
    notes = Notes("All went on as planned.")
    agent, first = await session(tmp_path / "record.db", notes)
    assert notes.asked > 1
    before, asked = await ContextCompiler(store=tmp_path / "record.db", system=None).views("desk"), notes.asked
    second = await replay_async("desk", agent, db=tmp_path / "record.db")
    assert not second.notes and notes.asked == asked
    assert [request.status for request in second.requests] == [request.status for request in first.requests]
    assert sum("All went on as planned." in text for text in texts(second)) > 10
    assert len(await ContextCompiler(store=tmp_path / "record.db", system=None).views("desk")) == len(before)


async def test_a_recorded_summary_that_does_not_fit_a_changed_template_is_reported(tmp_path: Path) -> None:
    await session(tmp_path / "record.db", Notes("All went on as planned."))
    changed = Agent(capabilities=[compiler(Notes(), budget=2_000, recall=0, template="goal_oriented")])
    conversation = await replay_async("desk", changed, db=tmp_path / "record.db")
    assert "no recorded summary fits its prompt" in conversation.notes[0]
    assert not any("All went on as planned." in text for text in texts(conversation))
    error = failure(lambda: conversation.assert_in_context("All went on as planned."))
    assert "note: request" in str(error)
    none = await replay_async("desk", changed, db=tmp_path / "record.db", summaries="none")
    assert not none.notes
    model = await replay_async("desk", changed, db=tmp_path / "record.db", summaries=Notes("A new summary.").model)
    assert not model.notes and any("A new summary." in text for text in texts(model))


async def test_the_recorded_requests_of_a_session_are_those_that_were_sent(tmp_path: Path) -> None:
    _, first = await session(tmp_path / "record.db", Notes("All went on as planned."))
    second = await recorded_async("desk", db=tmp_path / "record.db")
    assert texts(second) == texts(first)
    assert [request.turn for request in second.requests] == [request.turn for request in first.requests]
    assert [request.said for request in second.requests] == [request.said for request in first.requests]
    assert [request.number for request in second.rewrites()] == [request.number for request in first.rewrites()]
    second.assert_within(budget=2_000, pairs=True)
    error = failure(lambda: second.assert_in_context("Matter 1:"))
    assert "step 2 of the cut order" in str(error) and "for a budget of 2,000" in str(error)
    assert "would keep it: pin(…, 'm0')" in str(error) and "would keep it: budget=" in str(error)


@pytest.mark.parametrize("table", ["nodes", "contents"])
async def test_a_record_from_which_messages_are_missing_is_an_error(table: str, tmp_path: Path) -> None:
    await session(tmp_path / "record.db", Notes("All went on as planned."))
    with closing(sqlite3.connect(tmp_path / "record.db")) as database, database:
        database.execute("DELETE FROM nodes WHERE position = 2" if table == "nodes" else "DELETE FROM contents")
    with pytest.raises(RecordingError, match="messages of session 'desk' are missing"):
        await recorded_async("desk", db=tmp_path / "record.db")


async def test_parallel_replays_of_one_record_do_not_disturb_each_other(tmp_path: Path) -> None:
    agent, first = await session(tmp_path / "record.db", Notes("All went on as planned."))
    replays = await asyncio.gather(*(replay_async("desk", agent, db=tmp_path / "record.db") for _ in range(4)))
    assert all([one.status for one in each.requests] == [one.status for one in first.requests] for each in replays)


async def test_an_unknown_session_is_an_error_that_names_it(tmp_path: Path) -> None:
    await session(tmp_path / "record.db", Notes("All went on as planned."))
    for load in (
        replay_async("other", Agent(), db=tmp_path / "record.db"),
        recorded_async("other", db=tmp_path / "record.db"),
    ):
        with pytest.raises(RecordingError, match="'other'"):
            await load


def test_a_recording_is_saved_and_read_again(desk: list[ModelMessage], tmp_path: Path) -> None:
    file = tmp_path / "desk.json"
    Recording(messages=desk, summaries={"a": "b"}).save(file)
    again = read_recording(file)
    assert list(again.messages) == desk and again.summaries == {"a": "b"}
    assert texts(replay(file, Agent(tools=[look]))) == texts(replay(desk, Agent(tools=[look])))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "a recording of version 2"),
        ({"version": "1"}, "a recording of version '1'"),
        ({"messages": [{"kind": "nothing"}]}, "damaged"),
        ({"messages": 3}, "damaged"),
        ({}, "damaged"),
    ],
)
def test_a_damaged_or_newer_recording_is_an_error_with_its_remedy(
    change: dict[str, Any], words: str, desk: list[ModelMessage], tmp_path: Path
) -> None:
    file = tmp_path / "desk.json"
    Recording(messages=desk).save(file)
    document = json.loads(file.read_text(encoding="utf-8"))
    changed = document | change if change else {"format": document["format"]}
    file.write_text(json.dumps(changed), encoding="utf-8")
    with pytest.raises(RecordingError, match=words):
        replay(file, Agent())


def test_a_recording_that_was_cut_off_is_damaged_and_a_missing_one_is_named(
    desk: list[ModelMessage], tmp_path: Path
) -> None:
    file = tmp_path / "desk.json"
    Recording(messages=desk).save(file)
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(RecordingError, match="damaged"):
        replay(file, Agent())
    with pytest.raises(TranscriptError, match="no such file"):
        replay(tmp_path / "other.json", Agent())


KEY = "-----BEGIN KEY-----\nMIIE abc"


@pytest.fixture
def escaped() -> Conversation:
    """A conversation whose arguments and results are JSON with escaped characters."""
    calls = ToolCallPart("save", {"key": KEY}, "c1"), ToolCallPart("save", r'{"name": "M\u00fcller"}', "c2")
    results = [
        ToolReturnPart("save", {"path": "C:\\Users\\ann", "q": 'say "yes"'}, "c1"),
        ToolReturnPart("save", r"the file C:\new\table", "c2"),
    ]
    messages = [user("Save it."), ModelResponse(parts=calls), ModelRequest(parts=results), assistant("Saved.")]
    return replay([*messages, user("Thanks."), assistant("Yes.")])


@pytest.mark.parametrize("text", [KEY, r"C:\Users\ann", 'say "yes"', "Müller", r"C:\new\table"])
def test_a_text_in_arguments_and_structured_results_is_found_as_it_was_given(
    escaped: Conversation, text: str, tmp_path: Path
) -> None:
    escaped.assert_in_context(text)
    found = failure(lambda: escaped.assert_not_in_context(text))
    assert found.request.number == 2 and "word for word" in str(found)
    page = write_html(found, tmp_path / "failure.html").read_text(encoding="utf-8")
    assert "contains a text that no request may contain" in page


def test_a_plain_result_is_not_read_as_json(escaped: Conversation) -> None:
    escaped.assert_not_in_context("C: ew able", "key save")


def test_an_answer_that_was_aborted_is_replayed_as_it_is() -> None:
    first, second = (user(text) for text in ("Look.", "Look again."))
    conversation = replay([first, assistant(), second, assistant("Done."), user("Why?"), assistant("So.")], Agent())
    assert [len(request.messages) for request in conversation.requests] == [1, 3, 5]
    assert conversation.requests[2].messages[1].parts == []
    assert len(conversation.raw) == 6 and "aborted" not in str(conversation.raw)


def order() -> str:
    raise CallDeferred


def test_the_result_of_a_deferred_call_that_came_with_the_next_prompt_is_replayed() -> None:
    agent = Agent(tools=[order], output_type=[str, DeferredToolRequests])
    first = live(agent, ["Order it."], model=Talker([[("order", {})], "Good.", "Yes."]).model)
    results = DeferredToolResults(calls={first.output.calls[0].tool_call_id: "It is on its way."})
    first.say("Thanks.", deferred_tool_results=results)
    for other in (agent, None):
        second = replay(first.history, other)
        assert unstamped(second.raw) == unstamped(first.raw) and len(second.requests) == 2
        second.assert_within(pairs=True)


def test_a_request_that_was_never_answered_is_sent(desk: list[ModelMessage]) -> None:
    for length, agent in ((21, Agent(tools=[look])), (1, Agent(output_type=Answer))):
        conversation = replay(desk[:length], agent)
        assert len(conversation.requests) == (length + 1) / 2
        assert unstamped(conversation.raw) == unstamped(desk[:length])
        assert unstamped(conversation.requests[-1].messages) == unstamped(desk[:length])


def test_a_transcript_of_another_tool_is_a_recording(tmp_path: Path) -> None:
    lines = [{"role": "user", "content": RULE}, {"role": "assistant", "content": "Yes."}]
    (tmp_path / "chat.json").write_text(json.dumps([*lines, *lines, *lines]), encoding="utf-8")
    conversation = replay(tmp_path / "chat.json", Agent())
    assert len(conversation.requests) == 3
    conversation.assert_in_context(RULE)


async def test_the_instructions_of_a_request_before_system_text_are_read_from_the_record(tmp_path: Path) -> None:
    asked = ModelRequest(parts=[UserPromptPart("Hello.")], instructions="Refund at most 50 euros.")
    late = ModelRequest(parts=[SystemPromptPart("It is late.")])
    await compile_view([asked, late], budget=8_000, store=tmp_path / "record.db", session="desk", system=None)
    (await recorded_async("desk", db=tmp_path / "record.db")).assert_in_context("Refund at most 50 euros.")
