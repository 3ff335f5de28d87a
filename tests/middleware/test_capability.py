"""Attached to an agent, the compiler changes what a request carries, and whoever looks is told of it."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest
from pydantic_ai import (
    Agent,
    RunContext,
)
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestContext, ModelRequestParameters
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler import View
from context_compiler.middleware.overflow import RetryModelRequest
from tests.middleware.asking import BUDGET, LOOK, look
from tests.support.agents import WAYS, Notes, Talker, compiler, ran, run, unstamped
from tests.support.histories import assistant, long_history

COMBINES = hasattr(AbstractCapability, "combine")
"""True if the host asks what becomes of two capabilities with one id."""


@pytest.mark.parametrize("way", WAYS)
async def test_the_first_turns_of_a_conversation_go_out_as_they_are(way: str) -> None:
    talker, ours = Talker([LOOK, "done", "sure"]), compiler(Notes(), budget=32_000)
    agent = Agent(talker.model, tools=[look], capabilities=[ours])
    first = await WAYS[way](agent, "look around")
    await WAYS[way](agent, "thanks", message_history=first.messages)
    plain = Talker([LOOK, "done", "sure"])
    agent = Agent(plain.model, tools=[look])
    await WAYS[way](agent, "thanks", message_history=(await WAYS[way](agent, "look around")).messages)
    assert [unstamped(sent.messages) for sent in talker.sent] == [unstamped(sent.messages) for sent in plain.sent]
    assert ours.last_view is not None and ours.last_view.status == "raw"


def test_the_capability_works_without_a_running_event_loop(sync_loop: asyncio.AbstractEventLoop) -> None:
    talker, notes = Talker([LOOK, "done"]), Notes()
    agent = Agent(talker.model, tools=[look], capabilities=[compiler(notes, budget=BUDGET)])
    done = agent.run_sync("and now?", message_history=long_history(8))
    assert done.output == "done" and notes.asked == 1
    assert len(talker.sent[0].messages) < 10


async def test_the_view_ends_with_the_prompt_and_begins_with_the_notes() -> None:
    talker, ours = Talker("done"), compiler(Notes(), budget=BUDGET)
    await run(Agent(talker.model, capabilities=[ours]), "and now?", message_history=long_history(8)[:-1])
    texts = [
        str(part.content) for message in talker.last.messages for part in message.parts if message.kind == "request"
    ]
    assert "Context summary (compiled):" in texts[0] and "find out why the build fails" in texts[0]
    assert texts[-1] == "and now?"
    assert sum("and now?" in text for text in texts) == 1


@pytest.mark.parametrize("inject", ["user", "system", "compaction"])
async def test_the_notes_are_put_on_the_requested_channel(inject: str) -> None:
    talker, ours = Talker("done"), compiler(Notes(), budget=2 * BUDGET, inject=inject)
    await run(Agent(talker.model, capabilities=[ours]), "and now?", message_history=long_history(16))
    assert ours.last_view is not None
    parts = [part for message in ours.last_view.messages for part in message.parts]
    kinds = [part.part_kind for part in parts if "Context summary (compiled):" in str(getattr(part, "content", ""))]
    assert kinds == [{"user": "user-prompt", "system": "system-prompt", "compaction": "compaction"}[inject]]
    said = [part for part in parts if "Question" in str(getattr(part, "content", ""))]
    assert said and {part.part_kind for part in said} == {"user-prompt"}


async def test_an_agents_own_system_text_is_kept_before_the_notes() -> None:
    history = long_history(8)
    history[0] = ModelRequest(parts=[SystemPromptPart("You are a clerk."), *history[0].parts])
    talker, ours = Talker("done"), compiler(Notes(), budget=BUDGET)
    agent = Agent(talker.model, capabilities=[ours], instructions="Be brief.", system_prompt="You are a clerk.")
    await run(agent, "and now?", message_history=history)
    parts = [part for message in talker.last.messages for part in message.parts]
    assert [part.content for part in parts if part.part_kind == "system-prompt"] == ["You are a clerk."]
    assert parts[0].part_kind == "system-prompt" and talker.last.instructions == "Be brief."


async def test_a_run_without_a_prompt_continues_from_the_end_of_the_history() -> None:
    talker, ours = Talker("done"), compiler(Notes(), budget=BUDGET)
    history = long_history(8)
    done = ran(await Agent(talker.model, capabilities=[ours]).run(message_history=history))
    assert unstamped(done.messages[: len(history)]) == unstamped(history)
    assert talker.last.messages[-1].parts[-1].content == "Question 8: what about src/file_0.py?"


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_the_view_callback_gets_every_view_before_it_is_sent(asynchronous: bool) -> None:
    seen: list[View] = []

    async def later(view: View) -> None:
        await asyncio.sleep(0)
        seen.append(view)

    talker = Talker([LOOK, "done"])
    ours = compiler(Notes(), budget=BUDGET, on_view=later if asynchronous else seen.append)
    await run(Agent(talker.model, tools=[look], capabilities=[ours]), "and now?", message_history=long_history(8))
    assert [view.status for view in seen] == ["compiled", "cycle"]
    assert [view.record.tokens_sent for view in seen if view.record] == [
        record.tokens_sent for record in await ours.views()
    ][::-1]
    assert ours.last_view is seen[-1]
    assert seen[0].summary.startswith("- **Goal**") and seen[0].drops and seen[0].kept


async def test_a_dry_run_records_the_view_and_sends_the_raw_history() -> None:
    talker, notes = Talker([LOOK, "done"]), Notes()
    ours = compiler(notes, budget=BUDGET, dry_run=True)
    history = long_history(8)
    await run(Agent(talker.model, tools=[look], capabilities=[ours]), "and now?", message_history=history)
    assert all(len(sent.messages) >= len(history) for sent in talker.sent)
    records = await ours.views()
    assert [record.status.partition(";")[0] for record in records] == ["dry_run", "dry_run"]
    assert all(record.tokens_sent == record.tokens_raw for record in records)
    assert ours.last_view is not None and ours.last_view.tokens < BUDGET and notes.asked == 1


async def test_two_compilers_on_one_agent_are_merged_with_a_warning() -> None:
    talker, first, last = Talker([LOOK, "done"]), compiler(budget=BUDGET), compiler(Notes(), budget=BUDGET)
    with pytest.warns(UserWarning, match="two ContextCompilers") if COMBINES else nullcontext():
        agent = Agent(talker.model, tools=[look], capabilities=[first, last])
        done = await run(agent, "and now?", message_history=long_history(8))
    assert done.output == "done"
    said = [part for message in talker.last.messages for part in message.parts if "(compiled)" in str(part)]
    assert len(said) == 1
    assert first.last_view is None and last.last_view is not None


async def test_two_compilers_with_names_of_their_own_are_reported_once() -> None:
    talker, errors = Talker(["done", "sure"]), list[Exception]()
    both = [compiler(Notes(), budget=BUDGET, on_error=errors.append, id=id) for id in ("one", "two")]
    agent = Agent(talker.model, capabilities=both)
    for prompt in ("and now?", "and then?"):
        await run(agent, prompt, message_history=long_history(8))
    assert [str(error).partition(":")[0] for error in errors] == ["this agent has two ContextCompilers"]


async def test_an_agent_within_a_tool_may_have_a_compiler_of_its_own() -> None:
    errors = list[Exception]()
    inner = Agent(Talker("inner").model, capabilities=[compiler(Notes(), on_error=errors.append)])

    async def look() -> str:
        return (await inner.run("look")).output

    agent = Agent(Talker([LOOK, "done"]).model, tools=[look], capabilities=[compiler(Notes(), on_error=errors.append)])
    assert (await run(agent, "and now?")).output == "done" and errors == []


async def test_an_edit_by_another_capability_is_seen_and_kept() -> None:
    class Shout(AbstractCapability[Any]):
        async def before_model_request(self, ctx: RunContext[Any], request_context: Any) -> Any:
            messages = list(request_context.messages)
            messages[-1] = ModelRequest(parts=[*messages[-1].parts, UserPromptPart("LOUDER")])
            request_context.messages = messages
            return request_context

    talker = Talker("done")
    agent = Agent(talker.model, capabilities=[compiler(Notes(), budget=BUDGET), Shout()])
    await run(agent, "and now?", message_history=long_history(8))
    assert "LOUDER" in talker.last.text and "and now?" in talker.last.text and len(talker.last.messages) < 10


async def test_a_partial_response_is_left_to_the_provider() -> None:
    ours = compiler(budget=BUDGET)
    asked = [*long_history(8)[:-1], assistant("half an ans")]
    context = ModelRequestContext(
        model=Talker("ok").model,
        messages=asked,
        model_settings=None,
        model_request_parameters=ModelRequestParameters(),
    )
    hook: Any = getattr(ours, "prepare_model_request" if RetryModelRequest is not None else "before_model_request")
    assert (await hook(None, context)).messages is asked
    assert ours.last_view is None


class Odd(FunctionModel):
    """A model that fails when it is asked how much it can read."""

    @property
    def context_window(self) -> int:
        raise ZeroDivisionError("nobody knows")


async def test_an_unreadable_request_is_sent_unchanged() -> None:
    errors: list[Exception] = []
    ours = compiler(budget=BUDGET, on_error=errors.append)
    sent: list[list[ModelMessage]] = []

    def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        sent.append(messages)
        return ModelResponse(parts=[TextPart("ok")])

    history = long_history(8)
    await Agent(Odd(reply), capabilities=[ours]).run("and now?", message_history=history)
    assert [type(error) for error in errors] == [ZeroDivisionError]
    assert len(sent[0]) >= len(history)
