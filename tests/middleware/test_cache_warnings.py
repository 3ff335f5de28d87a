"""The harness warns where a prompt cache suddenly has less; a compile, which means to, is no case of that."""

from __future__ import annotations

import importlib.util
import warnings
from importlib import import_module
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from context_compiler import ContextCompiler, View
from tests.support.builders import snapshot
from tests.support.histories import prose

needs_harness = pytest.mark.skipif(
    importlib.util.find_spec("pydantic_ai_harness") is None, reason="pydantic-ai-harness is not installed"
)


class Caching:
    """A model that reports how much of its input it had in a prompt cache; a token is four characters."""

    def __init__(self) -> None:
        self._before = ""
        self.model = FunctionModel(self._answer, model_name="caching")

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        text = snapshot([message for message in messages])
        pairs = enumerate(zip(text, self._before, strict=False))
        shared = next((index for index, (char, other) in pairs if char != other), min(len(text), len(self._before)))
        self._before, read = text, shared // 4
        usage = RequestUsage(
            input_tokens=len(text) // 4,
            output_tokens=1,
            cache_read_tokens=read,
            cache_write_tokens=max(0, len(text) // 4 - read),
        )
        return ModelResponse(parts=[TextPart(prose(len(messages), 250))], usage=usage)


async def lived(turns: int, **wanted: Any) -> tuple[list[View], list[warnings.WarningMessage]]:
    """Views of a conversation, and the warnings of the harness beside it."""
    harness = import_module("pydantic_ai_harness.warn_on_cache_busts")
    views, history = list[View](), list[ModelMessage]()
    base: dict[str, Any] = {"model": "none", "store": None, "system": None, "budget": 9_000, "on_view": views.append}
    agent = Agent(Caching().model, capabilities=[harness.WarnOnCacheBusts(), ContextCompiler(**base | wanted)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for turn in range(turns):
            asked = f"Question {turn}: {prose(turn, 450)}"
            history = (await agent.run(asked, message_history=history, conversation_id="talk")).all_messages()
    return views, [warning for warning in caught if issubclass(warning.category, harness.CacheBustWarning)]


@pytest.mark.harness
@needs_harness
@pytest.mark.parametrize("inject", ["user", "compaction"])
async def test_a_compile_causes_no_cache_warning(inject: str) -> None:
    views, found = await lived(9, inject=inject)
    assert sum(view.status == "compiled" for view in views) >= 2 and not found
