"""Prompts with files, and prompts that are added to a run which has begun."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, BinaryContent, ImageUrl, RunContext, ToolReturn
from pydantic_ai.messages import ModelMessage, UserContent

from context_compiler import View
from context_compiler.middleware import layer_blocks
from tests.recall.test_blocks import ASK, SECRET, past, text_of, words
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


@pytest.mark.parametrize("budget", [400, 900])
async def test_a_prompt_that_loses_its_middle_is_reported_once(budget: int) -> None:
    errors = list[Exception]()
    talker = Talker([[("look", {})], "Fine.", "Fine."])
    ours = compiler(budget=budget, on_error=errors.append)
    agent = Agent(talker.model, tools=[look], capabilities=[ours])
    first = await agent.run("Refund order 4711. " + prose(3, 1_200), conversation_id="desk")
    await agent.run("Thanks.", message_history=first.all_messages(), conversation_id="desk")
    (told,) = [str(error) for error in errors]
    assert f"does not fit the budget of {budget}" in told and "give a larger budget" in told


def look() -> str:
    return "nothing"


async def lived_with(*added: str, asked: str, budget: int = 4_000, beside: str = "", index: int = 0) -> list[str]:
    """Texts of the requests of a turn with five steps of three calls; call `index` of the first adds the prompts."""
    left, waiting = 0, list[str]()

    async def look(ctx: RunContext[Any], page: int, call: int) -> Any:
        if waiting and call == index:
            for text in waiting:
                ctx.enqueue(text)
            waiting.clear()
        return ToolReturn(prose(page, 100), content=beside) if beside else prose(page, 100)

    def script(messages: list[ModelMessage], info: Any) -> Any:
        nonlocal left
        left -= 1
        return [("look", {"page": left, "call": call}) for call in range(3)] if left >= 0 else prose(len(messages), 60)

    talker = Talker(script)
    agent = Agent(talker.model, tools=[look], capabilities=[compiler(budget=budget)])
    history = past(60)
    for number in range(4):
        left = 2
        history = (await run(agent, prose(number, 30), message_history=history, conversation_id="c")).messages
    left, began, waiting = 5, len(talker.sent), list(added)
    await run(agent, asked, message_history=history, conversation_id="c")
    return [texts(sent.messages) for sent in talker.sent[began:]]


@pytest.mark.parametrize("beside", ["", "Here is what the page looks like now:"])
@pytest.mark.parametrize("at", [0, 2])
async def test_a_question_added_to_a_run_is_answered_from_the_past(at: int, beside: str) -> None:
    first, *later = await lived_with(ASK, asked="Continue with the report.", index=at, beside=beside)
    assert len(later) == 5 and CODE not in first
    assert all(ASK in sent and CODE in sent for sent in later)


OTHER = f"What was item 9 about, the one with {words(9, 3)}?"


@pytest.mark.parametrize(("added", "asked"), [((ASK, OTHER), "Continue."), ((OTHER,), ASK), ((ASK,), OTHER)])
async def test_all_questions_of_a_turn_are_answered_from_the_past(added: tuple[str, ...], asked: str) -> None:
    _, answered, *_ = await lived_with(*added, asked=asked)
    assert CODE in answered and f"Item 9: {words(9, 12)}" in answered


async def test_an_order_added_to_a_run_leaves_the_question_of_the_turn_its_block() -> None:
    sent = await lived_with("Keep it short.", asked=ASK)
    assert len(sent) == 6 and all(CODE in text for text in sent) and all("Keep it short." in text for text in sent[1:])


async def test_a_question_added_to_a_run_is_answered_from_other_conversations(tmp_path: Path) -> None:
    left = 0

    def look(ctx: RunContext[Any]) -> str:
        ctx.enqueue(ASK)
        return "Done."

    def script(messages: list[ModelMessage], info: Any) -> Any:
        nonlocal left
        left -= 1
        return [("look", {})] if left == 0 else "Fine."

    talker = Talker(script)
    ours = compiler(budget=4_000, recall_across=0.2, owner="ann", store=tmp_path / "record.db")
    agent = Agent(talker.model, tools=[look], capabilities=[ours])
    await run(agent, SECRET, conversation_id="desk")
    left = 1
    await run(agent, "Work in the garden.", conversation_id="travel")
    before, after = (texts(sent.messages) for sent in talker.sent[-2:])
    assert CODE not in before and ASK in after and CODE in after


@pytest.mark.parametrize("broken", ["pending_question", "quoted_mentions"])
async def test_a_failing_search_of_other_conversations_is_reported_and_fails_no_run(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the search failed")

    errors, talker = list[Exception](), Talker("Fine.")
    ours = compiler(budget=4_000, recall_across=0.2, owner="ann", store=tmp_path / "r.db", on_error=errors.append)
    agent = Agent(talker.model, capabilities=[ours])
    await run(agent, SECRET, conversation_id="desk")
    monkeypatch.setattr(layer_blocks, broken, fail)
    await run(agent, ASK, conversation_id="travel")
    assert ASK in talker.last.text and list(map(str, errors)) == ["the search failed"]


@pytest.mark.parametrize("budget", [4_000, 6_000])
async def test_text_that_a_tool_returns_beside_its_result_does_not_replace_the_question(budget: int) -> None:
    left = 0

    def look(page: int) -> ToolReturn:
        return ToolReturn(prose(page, 660), content=["Here is what the page looks like now:"])

    def script(messages: list[ModelMessage], info: Any) -> Any:
        nonlocal left
        left -= 1
        return [("look", {"page": left})] if left >= 0 else prose(len(messages), 60)

    views, talker = list[View](), Talker(script)
    agent = Agent(talker.model, tools=[look], capabilities=[compiler(budget=budget, on_view=views.append)])
    history: list[ModelMessage] = []
    for number in range(40):
        prompt = SECRET if number == 0 else prose(number, 40)
        history = (await run(agent, prompt, message_history=history, conversation_id="c")).messages
    left, began = 4, len(views)
    await run(agent, ASK, message_history=history, conversation_id="c")
    assert "compiled" in [view.status for view in views[began + 1 :]]
    assert all(CODE in sent.text for sent in talker.sent[-5:])


@pytest.mark.parametrize("budget", [2_500, 4_000])
async def test_text_that_parallel_tools_of_different_duration_return_asks_nothing(
    budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("context_compiler.messages.history.AT_ONCE", timedelta(seconds=0.04))  # on a busy machine

    async def slow(ctx: RunContext[Any]) -> Any:
        await asyncio.sleep(0.05)
        return ToolReturn(prose(1, 60), content=OTHER)

    async def fast(ctx: RunContext[Any]) -> Any:
        return ToolReturn(prose(2, 60), content=f"What about the page, the one with {words(7, 3)}?")

    def script(messages: list[ModelMessage], info: Any) -> Any:
        has_results = any(part.part_kind == "tool-return" for part in messages[-1].parts)
        return prose(len(messages), 80) if has_results else [("slow", {}), ("fast", {})]

    talker, views = Talker(script), list[View]()
    agent = Agent(talker.model, tools=[slow, fast], capabilities=[compiler(budget=budget, on_view=views.append)])
    history = past(40)
    for number in range(3):
        prompt = f"Look at both, please. {prose(number, 20)}"
        history = (await run(agent, prompt, message_history=history, conversation_id="c")).messages
        *_, last = talker.last.messages
        assert "RECALLED" not in str(last), "a block belongs before the prompt, not between results and their text"
    assert [view.record.turn_index for view in views if view.record] == [40, 40, 41, 41, 42, 42]
