"""Recall takes nothing from the turns that stand: whatever is asked, the same messages are kept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, UserPromptPart

from context_compiler import View, compile_view
from tests.support.agents import Talker, compiler, run
from tests.support.histories import histories
from tests.support.texts import texts

QUICK = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
BUDGETS = st.one_of(st.integers(60, 400), st.integers(400, 6_000))


def asked(history: list[ModelMessage], question: str) -> list[ModelMessage]:
    return [*history, ModelRequest(parts=[UserPromptPart(content=question)])]


@settings(suppress_health_check=QUICK, max_examples=8)
@given(history=histories(future=False, max_turns=8), question=texts(), budget=BUDGETS)
@pytest.mark.parametrize("recent", [1, 3])
def test_a_one_shot_view_keeps_the_same_messages_with_and_without_it(
    history: list[ModelMessage], question: str, budget: int, recent: int, sync_loop: asyncio.AbstractEventLoop
) -> None:
    def view(recall: float) -> View:
        work = compile_view(asked(history, question), budget=budget, recent_turns=recent, recall=recall, system=None)
        return sync_loop.run_until_complete(work)

    without, withal = view(0), view(1)
    assert withal.kept == without.kept and withal.drops == without.drops
    assert withal.tokens <= budget or withal.status == without.status == "floor_over_budget"


@settings(suppress_health_check=QUICK, max_examples=8)
@given(history=histories(future=False, max_turns=8, ends="prompt"), question=texts(), budget=BUDGETS)
def test_a_live_view_keeps_the_same_messages_with_and_without_it(
    history: list[ModelMessage], question: str, budget: int, sync_loop: asyncio.AbstractEventLoop
) -> None:
    def kept(recall: float) -> list[Any]:
        views: list[View] = []
        ours = compiler(budget=budget, recall=recall, on_view=views.append)
        talker = Talker("ok")
        agent = Agent(talker.model, capabilities=[ours])

        async def talk() -> None:
            first = await run(agent, "Hello.", message_history=history)
            await run(agent, question, message_history=first.messages)

        sync_loop.run_until_complete(talk())
        for sent, view in zip(talker.sent, views, strict=True):
            assert sent.tokens <= budget or view.status == "floor_over_budget"
        return [view.kept for view in views]

    assert kept(1) == kept(0)
