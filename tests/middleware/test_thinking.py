"""Conversations with models that think: providers check that thinking is complete, and goes with what it led to."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent

from tests.support.agents import compiler, run
from tests.support.anthropic_server import AnthropicServer
from tests.support.histories import prose
from tests.support.loopback import Answer
from tests.support.responses_server import ResponsesServer

SERVERS: dict[str, tuple[Any, str, Any]] = {
    "responses": (ResponsesServer, "gpt-5", {"openai_reasoning_effort": "low"}),
    "anthropic": (
        AnthropicServer,
        "claude-sonnet-4-6",
        {"anthropic_thinking": {"type": "enabled", "budget_tokens": 1_024}, "max_tokens": 4_096},
    ),
}


def look(path: str, why: str = "") -> str:
    return prose(len(path), 120)


def steps() -> Any:
    """In each turn: a thought and a long call, a thought with text and two calls, and a thought with an answer."""
    asked = 0

    def step(body: Any) -> Answer:
        nonlocal asked
        asked += 1
        if asked % 3 == 1:
            why = {"path": "a" * asked, "why": prose(asked, 160)}
            return Answer(thinking=f"Thought {asked}: look.", calls=[("look", why)])
        if asked % 3 == 2:
            calls = [("look", {"path": "b" * asked}), ("look", {"path": "c" * asked})]
            return Answer(thinking=f"Thought {asked}: look again.", text=f"Now the others ({asked}).", calls=calls)
        return Answer(thinking=f"Thought {asked}: that is all.", text=prose(asked, 80))

    return step


@pytest.mark.parametrize(
    ("budget", "tool_history"), [(2_000, "paired"), (4_000, "paired"), (2_000, "drop"), (2_000, "render")]
)
@pytest.mark.parametrize("provider", SERVERS)
async def test_no_view_separates_thinking_from_what_it_led_to(provider: str, budget: int, tool_history: str) -> None:
    kind, name, settings = SERVERS[provider]
    with kind(steps()) as server:
        ours = compiler(budget=budget, tool_history=tool_history, every_turn=tool_history != "paired")
        agent = Agent(server.model(name), tools=[look], capabilities=[ours], model_settings=settings)
        history: list[Any] = []
        for turn in range(5):
            history = (await run(agent, f"Question {turn}: " + prose(turn, 40), message_history=history)).messages
        assert not server.refusals and ours.last_view is not None and ours.last_view.status in ("cycle", "compiled")
        assert any("Thought" in str(body) for body in server.requests), "some thinking is sent"
