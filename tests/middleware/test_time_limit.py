"""A history that takes longer to search than a request may take."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler import ContextCompiler, View
from context_compiler.messages.fences import QUOTED_TITLE
from tests.support.histories import assistant, user

BUDGET = 2_000
MESSAGES = [
    message
    for turn in range(900)
    for message in (
        user(f"Why does job {turn} of the night run need {turn + 7} workers? " * 2),
        assistant(f"Job {turn} reads /srv/jobs/{turn}.csv, which has {turn * 13} rows. " * 2),
    )
]
"""A history so long that its view is made in a thread."""


async def views_of(timeout: float, turns: int = 1) -> tuple[list[View], list[Exception], list[str]]:
    """Views, errors and what the model received, of an agent that continues the long history."""
    views: list[View] = []
    errors: list[Exception] = []
    sent: list[str] = []

    def answered(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        sent.append("\n".join(str(part) for message in messages for part in message.parts))
        return ModelResponse(parts=[TextPart("Noted.")])

    compiler: Any = ContextCompiler(
        budget=BUDGET, model="none", record="off", timeout=timeout, on_view=views.append, on_error=errors.append
    )
    agent = Agent(FunctionModel(answered), capabilities=[compiler])
    history = MESSAGES
    for _ in range(turns):
        history = (await agent.run("And how many rows has the file of job 7?", message_history=history)).all_messages()
    return views, errors, sent


async def test_a_history_that_takes_too_long_to_search_is_sent_within_the_budget_and_without_quotes() -> None:
    views, errors, sent = await views_of(timeout=1e-4)
    assert views[0].tokens_sent <= BUDGET and views[0].status == "compiled"
    assert "how many rows has the file of job 7" in sent[0]
    assert QUOTED_TITLE not in sent[0]
    assert [str(error) for error in errors] == ["searching a history takes more than 0.0001 s (timeout)"]


async def test_the_same_history_is_quoted_if_there_is_time() -> None:
    views, errors, sent = await views_of(timeout=60)
    assert views[0].tokens_sent <= BUDGET
    assert QUOTED_TITLE in sent[0] and not errors


@pytest.mark.parametrize("timeout", [1e-4, 60])
async def test_later_requests_continue_a_view_that_ran_out_of_time(timeout: float) -> None:
    views, _, sent = await views_of(timeout, turns=3)
    assert all(view.tokens_sent <= BUDGET for view in views) and len(sent) == 3
