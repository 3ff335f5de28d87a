"""What a session sends never costs more than `max_tokens`, however much was said in its newest turns."""

from __future__ import annotations

import pytest
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolCallPart

from context_compiler.manager import ContextManager, VolatileMemory
from context_compiler.messages.history import Reader
from context_compiler.tokens import TokenCounter
from tests.manager.fakes import managed, said, talk


def cost(manager: ContextManager) -> int:
    reader = Reader(TokenCounter())
    return sum(reader.one(message).tokens for message in manager.get_context_messages())


@pytest.mark.parametrize("most", [150, 400, 2_000])
@pytest.mark.parametrize("auto", [True, False])
async def test_turns_that_are_too_long_are_cut_to_the_limit(most: int, auto: bool) -> None:
    manager = managed("none", max_tokens=most, auto_summarize=auto, system_prompt="You are a clerk.")
    for number in range(3):
        result = await manager.process_turn(f"question {number} " + "why " * 900)
        assert result.token_count == manager.estimated_tokens() == cost(manager) <= most
        manager.add_response(f"answer {number} " + "because " * 900)
        assert manager.estimated_tokens() == cost(manager) <= most
    assert sum(len(text) for text in said(manager.transcript())) > 30_000


async def test_the_newest_question_is_kept() -> None:
    manager = managed("none", max_tokens=400, auto_summarize=False)
    await talk(manager, 12)
    await manager.process_turn("What was decided about the heron?")
    assert "What was decided about the heron?" in said(manager.get_context_messages())[-1]
    assert isinstance(manager.get_context_messages()[-1], ModelRequest)


async def test_the_answer_of_the_last_turn_stays_last() -> None:
    manager = managed("none", max_tokens=400, auto_summarize=False)
    await talk(manager, 12)
    assert isinstance(manager.get_context_messages()[-1], ModelResponse)
    assert "answer 11" in said(manager.get_context_messages())[-1]


async def test_memories_are_cut_before_the_question() -> None:
    memory = VolatileMemory()
    await memory.remember("heron " + "staging " * 500)
    manager = managed("none", memory, max_tokens=300)
    result = await manager.process_turn("Where is the heron of staging?")
    assert result.grounding_used and result.token_count <= 300
    assert said(manager.get_context_messages())[-1] == "Where is the heron of staging?"


async def test_system_text_that_is_too_long_is_cut_last() -> None:
    manager = managed("none", max_tokens=300, system_prompt="Be kind. " * 400)
    result = await manager.process_turn("hello " * 400)
    assert result.token_count <= 300 and said(manager.get_context_messages())[0].startswith("Be kind.")


async def test_a_cut_session_is_sent_whole_again_once_it_fits() -> None:
    manager = managed("none", max_tokens=300, auto_summarize=False)
    await talk(manager, 8)
    wide = managed("none", max_tokens=8_000)
    wide.load_json(manager.to_json())
    assert len(wide.get_context_messages()) == 16 > len(manager.get_context_messages())


async def test_cutting_does_not_change_the_session_and_is_repeatable() -> None:
    manager = managed("none", max_tokens=300, auto_summarize=False)
    await talk(manager, 8)
    before = manager.to_json()
    first = manager.get_context_messages()
    first.clear()
    assert manager.get_context_messages() == manager.get_context_messages() != []
    assert manager.to_json() == before


async def test_an_answer_with_a_call_is_cut_too() -> None:
    manager = managed("none", max_tokens=300)
    await manager.process_turn("Find it.")
    call = ToolCallPart(tool_name="find", args={"text": "x " * 4_000}, tool_call_id="1")
    manager.add_response(ModelResponse(parts=[TextPart(content="I look."), call]))
    assert manager.estimated_tokens() == cost(manager) <= 300
