"""Every view can be sent to a server whose chat template refuses two messages of one side in a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart

from context_compiler import Recall, build_compiling_history_processor, compile_view
from tests.support.agents import Notes, compiler
from tests.support.builders import assistant, long_history, prose, user
from tests.support.openai_server import TemplateServer

ASK = "With what does gate 3 open?"


def prompts(turns: int) -> Iterator[str]:
    for turn in range(turns):
        asks = turn % 5 == 4
        yield ASK if asks else f"Gate {turn} opens with {turn * 37 % 1000:03d}. " + prose(turn, 60)


@pytest.fixture
def server() -> Iterator[TemplateServer]:
    with TemplateServer(lambda body: "The garden needs water in the morning. " * 12) as running:
        yield running


async def live(agent: Agent[Any, Any], given: Sequence[ModelMessage] = (), turns: int = 24) -> list[ModelMessage]:
    history = list(given)
    for prompt in prompts(turns):
        history = (await agent.run(prompt, message_history=history, conversation_id="gates")).all_messages()
    return history


def said(server: TemplateServer) -> list[list[str]]:
    """Texts of the newest user message of each request."""
    last = [[one for one in body["messages"] if one["role"] == "user"][-1]["content"] for body in server.requests]
    return [[one] if isinstance(one, str) else [piece["text"] for piece in one] for one in last]


@pytest.mark.parametrize("inject", ["user", "system", "compaction"])
@pytest.mark.parametrize("notes", [None, Notes("**Goal**: keep a list of the gates and of what opens them.")])
async def test_a_conversation_goes_on_past_its_cuts(server: TemplateServer, notes: Notes | None, inject: str) -> None:
    ours = compiler(notes, budget=1_200 if notes else 1_500, inject=inject)
    await live(Agent(server.model(), capabilities=[ours]), turns=15)
    assert any("QUOTED" in str(body) for body in server.requests)
    assert any("BEGIN RECALLED" in str(texts[0]) for texts in said(server)), "the block is in the prompt"
    assert not any("QUOTED" in text for texts in said(server) for text in texts)
    assert not any("Context summary" in text for texts in said(server) for text in texts)


async def test_only_the_current_prompt_is_kept(server: TemplateServer) -> None:
    ours = compiler(budget=2_500, recent_turns=0, recall=0)
    await live(Agent(server.model(), capabilities=[ours]))
    assert any("QUOTED" in str(body) for body in server.requests)
    assert not any("QUOTED" in text for texts in said(server) for text in texts)


async def test_tool_calls_whose_answer_is_left_out_are_followed_by_an_answer(server: TemplateServer) -> None:
    ours = compiler(budget=1_200)
    history = [*long_history(12, 3, words=50), assistant("Well.")]
    await live(Agent(server.model(), capabilities=[ours, Recall()]), history)
    assert len(server.requests) == 24


async def test_pinned_prompts_do_not_follow_each_other(server: TemplateServer, tmp_path: Path) -> None:
    ours = compiler(budget=1_500, store=tmp_path / "record.db")
    history = [
        message for number in range(30) for message in (user(prose(number, 50)), assistant(prose(99 - number, 50)))
    ]
    agent = Agent(server.model(), capabilities=[ours])
    history = (await agent.run("Begin.", message_history=history, conversation_id="gates")).all_messages()
    for index in (0, 4, 8):
        await ours.pin("gates", index)
    await live(agent, history)
    assert all(prose(4, 50) in str(body) for body in server.requests[1:])


async def test_a_processor_stores_views_that_can_be_sent_again(server: TemplateServer) -> None:
    processor = build_compiling_history_processor(budget=1_500, model="none", store=None, system=None)
    stored = await live(Agent(server.model(), capabilities=[ProcessHistory(processor)]))
    assert len(await processor.transcript("gates")) == 48 > len(stored) / 2
    assert await processor.transcript("gates") == [
        message
        for message in await processor.transcript("gates")
        if "BEGIN QUOTED" not in str(message) and "BEGIN RECALLED" not in str(message)
    ]


@pytest.mark.parametrize("turns", [1, 12])
async def test_one_view_can_be_sent_and_continued(server: TemplateServer, turns: int) -> None:
    history = [
        message for number in range(30) for message in (user(prose(number, 40)), assistant(prose(99 - number, 40)))
    ]
    view = await compile_view([*history, user(ASK)], budget=600, system=None, recent_turns=turns)
    plain = Agent(server.model())
    result = await plain.run(message_history=view.messages)
    again = await plain.run("And gate 4?", message_history=result.all_messages())
    ours = compiler(budget=400)
    await Agent(server.model(), capabilities=[ours]).run("And gate 5?", message_history=again.all_messages())
    assert view.messages[-1].parts[-1].content == ASK  # pyright: ignore[reportAttributeAccessIssue]


async def test_the_beginning_of_a_cycle_keeps_its_bytes_from_turn_to_turn(server: TemplateServer) -> None:
    seen: list[Any] = []
    ours = compiler(budget=3_000, on_view=seen.append, recall=0)
    await live(Agent(server.model(), capabilities=[ours]))
    pairs = [*zip(server.requests, server.requests[1:], seen[1:], strict=False)]
    extended = [(request, other) for request, other, view in pairs if view.status == "cycle"]
    assert len(extended) > 4
    assert all(other["messages"][: len(request["messages"])] == request["messages"] for request, other in extended)


def test_the_server_refuses_two_messages_of_one_side(server: TemplateServer) -> None:
    twice = [ModelRequest(parts=[UserPromptPart("One."), UserPromptPart("Two.")]), ModelResponse(parts=[TextPart("A")])]
    with pytest.raises(Exception, match="alternate"):
        Agent(server.model()).run_sync("Three.", message_history=twice)
