"""A provider with another tokenizer: its own count of each request is within the budget from the second one on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent

from tests.middleware.test_windows import LlamaServer, unknown
from tests.recall.test_blocks import past
from tests.support.agents import compiler, run
from tests.support.histories import prose


def look(path: str) -> str:
    return prose(len(path), 150)


async def ask(server: LlamaServer, turns: range, history: Any, **options: Any) -> Any:
    agent = Agent(unknown(server), tools=[look], capabilities=[compiler(trigger=1.0, probe=False, **options)])
    for turn in turns:
        prompt = f"What is at item {turn * 7 % 60}, and at item {turn * 11 % 60}?"
        history = (await run(agent, prompt, message_history=history, conversation_id="kiln")).messages
    return history


BUDGETS_AND_FACTORS = pytest.mark.parametrize(("budget", "factor"), [(2_000, 1.1), (2_000, 1.3), (4_000, 1.2)])


@BUDGETS_AND_FACTORS
async def test_a_history_that_fills_the_budget_is_within_it_from_the_second_request_on(
    budget: int, factor: float
) -> None:
    with LlamaServer(100_000, factor=factor) as server:
        await ask(server, range(14), past(budget // 125), budget=budget)
        assert budget < server.prompt_tokens[0], "nothing is known before the first report"
        assert max(server.prompt_tokens[1:]) <= budget


@BUDGETS_AND_FACTORS
async def test_a_long_history_is_within_the_budget_from_the_second_request_on(budget: int, factor: float) -> None:
    with LlamaServer(100_000, factor=factor) as server:
        await ask(server, range(14), past(60), budget=budget)
        assert max(server.prompt_tokens[1:]) <= budget


async def test_a_fresh_process_with_a_recorded_view_is_within_it_from_its_second_request_on(tmp_path: Path) -> None:
    with LlamaServer(100_000, factor=1.3) as server:
        options: dict[str, Any] = {"budget": 2_000, "store": tmp_path / "context.db"}
        history = await ask(server, range(6), past(60), **options)
        first = len(server.prompt_tokens)
        await ask(server, range(6, 9), history, **options)
        assert max(server.prompt_tokens[first + 1 :]) <= 2_000
