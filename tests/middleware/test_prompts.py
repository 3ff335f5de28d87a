"""Prompts with files, and prompts that are added to a run which has begun."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pydantic_ai import Agent, BinaryContent, ImageUrl, RunContext
from pydantic_ai.messages import ModelMessage, UserContent

from context_compiler import View
from tests.recall.test_blocks import ASK, past, text_of
from tests.support.agents import Talker, compiler, run
from tests.support.builders import prose

CODE = "48151"
FILES = [
    ImageUrl("https://example.com/locker.png"),
    BinaryContent(b"%PDF-1.4 a plan", media_type="application/pdf"),
    BinaryContent(b"a few notes", media_type="text/plain"),
]


def texts(messages: Sequence[ModelMessage]) -> str:
    return "\n".join(text_of(part) for message in messages for part in message.parts)


@pytest.mark.parametrize("file", FILES, ids=["image", "document", "text"])
@pytest.mark.parametrize("budget", [4_000, 8_000])
async def test_a_question_beside_a_file_is_answered_from_the_past(budget: int, file: UserContent) -> None:
    talker, views = Talker("Fine."), list[View]()
    agent = Agent(talker.model, capabilities=[compiler(budget=budget, on_view=views.append)])
    await run(agent, [ASK, file], message_history=past())
    assert CODE in texts(talker.last.messages) and views[-1].tokens_sent <= budget


async def test_a_file_alone_asks_nothing() -> None:
    views = list[View]()
    agent = Agent(Talker("Fine.").model, capabilities=[compiler(budget=8_000, on_view=views.append)])
    await run(agent, [FILES[0]], message_history=past())
    assert views[-1].status == "compiled" and views[-1].ledger["tokens"]["recall"] == 0


async def lived_with(added: str, asked: str, budget: int = 4_000) -> list[str]:
    """Texts of the requests of a turn that calls a tool five times, and to which a prompt is added at the first."""
    left, waiting = 0, list[str]()

    def look(ctx: RunContext[Any], page: int) -> str:
        if waiting:
            ctx.enqueue(waiting.pop())
        return prose(page, 300)

    def script(messages: list[ModelMessage], info: Any) -> Any:
        nonlocal left
        left -= 1
        return [("look", {"page": left})] if left >= 0 else prose(len(messages), 60)

    talker = Talker(script)
    agent = Agent(talker.model, tools=[look], capabilities=[compiler(budget=budget)])
    history = past(60)
    for number in range(4):
        left = 2
        history = (await run(agent, prose(number, 30), message_history=history, conversation_id="c")).messages
    left, began, waiting = 5, len(talker.sent), [added]
    await run(agent, asked, message_history=history, conversation_id="c")
    return [texts(sent.messages) for sent in talker.sent[began:]]


async def test_a_question_added_to_a_run_is_answered_from_the_past() -> None:
    first, *later = await lived_with(ASK, "Continue with the report.")
    assert len(later) == 5 and CODE not in first
    assert all(ASK in sent and CODE in sent for sent in later)


async def test_an_order_added_to_a_run_leaves_the_question_of_the_turn_its_block() -> None:
    sent = await lived_with("Keep it short.", ASK)
    assert len(sent) == 6 and all(CODE in text for text in sent) and all("Keep it short." in text for text in sent[1:])
