"""A system prompt that models read in its own request alone costs nothing later, and never comes back in a view."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessage, SystemPromptPart

from context_compiler import View
from context_compiler.middleware.overflow import RetryModelRequest
from tests.support.agents import Talker, compiler, run
from tests.support.builders import prose

LEFT = "SPENDING: there are {} dollars left. " + prose(7, 200)


class Spending(AbstractCapability[Any]):
    """Tells every request what is left, in a part that is kept in the history."""

    def __init__(self) -> None:
        self.requests = 0

    async def before_model_request(self, ctx: RunContext[Any], request_context: Any) -> Any:
        self.requests += 1
        ctx.enqueue(SystemPromptPart(LEFT.format(1_000 - self.requests), scope="request"))
        return request_context


def look(number: int) -> str:
    """Look at a page."""
    return f"page {number}: {prose(number, 40)}"


@pytest.mark.parametrize("budget", [1_000, 3_000, 60_000])
async def test_a_prompt_for_one_request_is_sent_with_that_request_alone(budget: int) -> None:
    views = list[View]()
    spending, ours = Spending(), compiler(budget=budget, on_view=views.append)
    script = [step for turn in range(8) for step in ([("look", {"number": turn})], f"answer {turn}: {prose(turn, 30)}")]
    talker, history = Talker(script), list[ModelMessage]()
    agent = Agent(talker.model, tools=[look], capabilities=[spending, ours])
    for turn in range(8):
        done = await run(agent, f"question {turn}: {prose(turn, 20)}", message_history=history, conversation_id="c")
        history = done.messages
    kept = [part for message in history for part in message.parts if getattr(part, "scope", "") == "request"]
    assert len(kept) == spending.requests == len(talker.sent) == 16
    said = [
        (sent.text.count("SPENDING"), f"{1_000 - number} dollars" in sent.text)
        for number, sent in enumerate(talker.sent, 1)
    ]
    assert said == [(1, True)] * 16
    assert all(view.tokens <= budget for view in views)
    if budget == 60_000:
        assert {view.status for view in views} == {"raw"} and views[-1].tokens < 3_000


@pytest.mark.parametrize("delivers", [True, False])
async def test_the_view_contains_what_a_hook_enqueues(delivers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not delivers:
        monkeypatch.setattr("context_compiler.middleware.capability.deliver_asap_messages", None)
    views, talker = list[View](), Talker("done")
    ours = compiler(budget=1_000, on_view=views.append)
    agent = Agent(talker.model, capabilities=[Spending(), ours])
    done = await run(agent, prose(3, 900))
    assert done.output == "done" and talker.last.text.count("SPENDING") == 1
    if delivers or RetryModelRequest is not None:
        assert "SPENDING" in str(views[-1].messages) and views[-1].tokens <= 1_000
