"""As a history processor the host stores views; what they stand for is never lost."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler import View, build_compiling_history_processor
from context_compiler.messages.fences import QUOTED_TITLE, SUMMARY_PREFIX
from context_compiler.messages.history import Reader
from context_compiler.middleware.processor import CompilingHistoryProcessor
from context_compiler.tokens import TokenCounter
from tests.support.histories import assert_pairs_whole, texts_of

BUDGET, TURNS = 3_000, 14
processor_reader = Reader(TokenCounter())


def answering(sent: list[list[ModelMessage]]) -> FunctionModel:
    """Looks something up, then answers at length."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        sent.append(list(messages))
        if any(part.part_kind == "user-prompt" for part in messages[-1].parts):
            return ModelResponse(parts=[ToolCallPart("look", {"n": len(sent)}, tool_call_id=f"call-{len(sent)}")])
        return ModelResponse(parts=[TextPart(f"answer {len(sent)} " * 40)])

    return FunctionModel(answer)


def short(sent: list[list[ModelMessage]], messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    sent.append(list(messages))
    return ModelResponse(parts=[TextPart("ok")])


def agent_with(processor: CompilingHistoryProcessor, sent: list[list[ModelMessage]]) -> Agent[None, str]:
    agent = Agent(answering(sent), capabilities=[ProcessHistory(processor)])

    @agent.tool_plain
    def look(n: int) -> str:
        return f"found {n} " * 60

    return agent


async def talk(processor: CompilingHistoryProcessor, sent: list[list[ModelMessage]], stored: bool) -> Any:
    agent, history = agent_with(processor, sent), list[ModelMessage]()
    result: Any = None
    for turn in range(TURNS):
        result = await agent.run(f"Question {turn}: where is part {turn}?", message_history=history)
        history = result.all_messages()
        if stored:  # as an application does that keeps histories as JSON
            history = ModelMessagesTypeAdapter.validate_json(result.all_messages_json())
    return result


def said(messages: list[ModelMessage]) -> list[str]:
    return [text for message in messages for part in message.parts for text in texts_of(part)]


def prompts(messages: list[ModelMessage]) -> list[str]:
    return [
        str(part.content)
        for message in messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if part.part_kind == "user-prompt" and str(part.content).startswith("Question")
    ]


async def test_the_transcript_gives_back_every_turn_that_the_host_no_longer_stores(tmp_path: Path) -> None:
    processor = build_compiling_history_processor(
        "chat_compiler", budget=BUDGET, model="none", store=tmp_path / "c.db", system=None
    )
    sent: list[list[ModelMessage]] = []
    result = await talk(processor, sent, stored=True)
    transcript = await processor.transcript(result.all_messages()[-1].conversation_id)
    assert len(prompts(result.all_messages())) < TURNS
    assert prompts(transcript) == [f"Question {turn}: where is part {turn}?" for turn in range(TURNS)]


async def test_every_request_is_within_budget_with_whole_pairs_and_one_note(tmp_path: Path) -> None:
    processor = build_compiling_history_processor(budget=BUDGET, model="none", store=None, system=None)
    sent: list[list[ModelMessage]] = []
    await talk(processor, sent, stored=False)
    for messages in sent:
        texts = said(messages)
        assert processor_reader.read(messages).tokens <= BUDGET
        assert_pairs_whole(messages)
        assert sum(text.count(SUMMARY_PREFIX) for text in texts) <= 1
    assert any(QUOTED_TITLE in text for text in said(sent[-1]))


async def test_the_line_that_marks_a_view_without_notes_is_within_the_budget_too() -> None:
    views: list[View] = []
    processor = build_compiling_history_processor(
        "extractive", budget=300, trigger=300, fidelity="truncate", store=None, system=None, on_view=views.append
    )
    sent: list[list[ModelMessage]] = []
    agent = Agent(FunctionModel(partial(short, sent)), capabilities=[ProcessHistory(processor)])
    history: list[ModelMessage] = []
    for turn in range(60):
        history = (await agent.run(f"q {turn}", message_history=history)).all_messages()
        assert views[-1].tokens == processor_reader.read(sent[-1]).tokens <= 300
    assert {"compiled", "cycle"} <= {view.status for view in views}


async def test_another_process_continues_from_the_same_file(tmp_path: Path) -> None:
    def made() -> CompilingHistoryProcessor:
        return build_compiling_history_processor(budget=BUDGET, model="none", store=tmp_path / "c.db", system=None)

    sent: list[list[ModelMessage]] = []
    result = await talk(made(), sent, stored=True)
    stored = ModelMessagesTypeAdapter.validate_json(result.all_messages_json())
    again = made()
    last = await agent_with(again, sent).run("Question 99: and now?", message_history=stored)
    transcript = await again.transcript(last.all_messages()[-1].conversation_id)
    assert len(prompts(transcript)) == TURNS + 1
