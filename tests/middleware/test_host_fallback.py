"""The host's `ModelFallback` beside the compiler: which of them answers an overflow, and who writes a summary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pydantic_ai import Agent, capabilities
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler import ContextCompiler
from tests.support.agents import NOTES
from tests.support.histories import long_history

FALLBACK: Any = getattr(capabilities, "ModelFallback", None)
pytestmark = pytest.mark.skipif(FALLBACK is None, reason="this host has no ModelFallback")


class Server:
    """A model that refuses its first requests, and all texts that it was sent."""

    def __init__(self, name: str, refusals: Sequence[Exception] = (), window: int = 200_000) -> None:
        self.sent, self._refusals = list[str](), list(refusals)
        self.model = FunctionModel(self._answer, model_name=name, profile={"context_window": window})

    def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.sent.append(str(messages))
        if self._refusals:
            raise self._refusals.pop(0)
        return ModelResponse(parts=[TextPart(NOTES)])


def ours(**options: Any) -> ContextCompiler:
    return ContextCompiler(store=None, system=None, **options)


@pytest.mark.parametrize("first", [True, False])
async def test_a_request_that_is_too_long_is_sent_shorter_before_another_model_is_asked(first: bool) -> None:
    refusal = ModelHTTPError(400, "kiln", body={"code": "context_length_exceeded"})
    kiln, spare = Server("kiln", [refusal]), Server("spare")
    both = [ours(budget=100_000, model="none"), FALLBACK(spare.model)]
    agent = Agent(kiln.model, capabilities=both if first else both[::-1])
    await agent.run("and now?", message_history=long_history(40))
    assert len(kiln.sent) == 2 and len(kiln.sent[1]) < len(kiln.sent[0]) and not spare.sent


async def test_the_summary_for_a_fallback_is_written_by_the_fallback() -> None:
    kiln = Server("kiln", [ModelHTTPError(503, "kiln")] * 3)
    spare = Server("spare", window=6_000)
    agent = Agent(kiln.model, capabilities=[FALLBACK(spare.model), ours()])
    await agent.run("and now?", message_history=long_history(60))
    assert not any("COMPILER TASK" in text for text in kiln.sent)
    assert any("COMPILER TASK" in text for text in spare.sent)
