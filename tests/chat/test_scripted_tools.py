"""The offline model calls tools when it is told to."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic_ai import Agent, ToolReturn
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart, ToolReturnPart

from context_compiler import ContextCompiler, SQLiteStore
from context_compiler.chat import ScriptedModel

CALLS = (("read_file", {"path": "a.py"}), ("read_file", {"path": "b.py"}))


def read_file(path: str) -> str:
    return f"content of {path}"


def made(messages: list[ModelMessage]) -> list[str]:
    """Paths of the calls in a history, in order."""
    answers = (message for message in messages if isinstance(message, ModelResponse))
    parts = (part for answer in answers for part in answer.parts)
    return [part.args_as_dict()["path"] for part in parts if isinstance(part, ToolCallPart)]


@pytest.mark.parametrize("streams", [False, True])
async def test_the_calls_are_made_before_each_answer(tmp_path: Path, streams: bool) -> None:
    compiler = ContextCompiler(model="none", store=tmp_path / "context.db", system=None, budget=2_000)
    agent = Agent(ScriptedModel(delay=0, calls=CALLS), tools=[read_file], capabilities=[compiler])
    history: list[ModelMessage] = []
    for turn in range(3):
        if streams:
            async with agent.run_stream(f"Question {turn}?", message_history=history) as result:
                assert (await result.get_output()).startswith("On “Question")
            history = result.all_messages()
        else:
            done = await agent.run(f"Question {turn}?", message_history=history)
            assert done.output.startswith("On “Question")
            history = done.all_messages()
        assert made(history) == ["a.py", "b.py"] * (turn + 1)
    results = [part.content for message in history for part in message.parts if isinstance(part, ToolReturnPart)]
    assert results == ["content of a.py", "content of b.py"] * 3


async def test_text_beside_a_result_does_not_begin_the_calls_again() -> None:
    def read_file(path: str) -> ToolReturn:
        return ToolReturn(f"content of {path}", content=f"Please read {path} again.")

    done = await Agent(ScriptedModel(delay=0, calls=CALLS), tools=[read_file]).run("Question?")
    assert made(done.all_messages()) == ["a.py", "b.py"]


async def test_a_summary_needs_no_tools(tmp_path: Path) -> None:
    scripted = ScriptedModel(delay=0, calls=CALLS)
    compiler = ContextCompiler(model=scripted, store=tmp_path / "context.db", system=None, budget=1_500)
    agent = Agent(scripted, tools=[read_file], capabilities=[compiler])
    history: list[ModelMessage] = []
    for turn in range(8):
        done = await agent.run(
            f"Question {turn} " + "about the ledger of the shop " * 60, message_history=history, conversation_id="c"
        )
        history = done.all_messages()
    store = SQLiteStore(tmp_path / "context.db")
    compiles = [summary for info in await store.sessions() for summary in await store.summaries(info.session_id)]
    await store.close()
    assert any(summary.usage for summary in compiles), "the model was asked for a summary"
    assert made(history) == ["a.py", "b.py"] * 8


async def test_its_summary_of_prompts_that_are_alike_is_not_refused() -> None:
    errors: list[Exception] = []
    compiler = ContextCompiler(budget=1_500, store=None, on_error=errors.append)
    agent = Agent(ScriptedModel(delay=0), capabilities=[compiler])
    history: list[ModelMessage] = []
    compiled = 0
    for number in range(30):
        prompt = f"What about step {number}?" if number else "Never deploy on Fridays."
        result = await agent.run(prompt, message_history=history, conversation_id="steps")
        history = result.all_messages()
        view = compiler.last_view
        compiled += view is not None and view.status == "compiled"
    assert compiled and not errors
