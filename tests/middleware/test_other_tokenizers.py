"""A provider with another tokenizer: its own count of each request is within the budget from the second one on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import (
    CompactionPart,
    ModelMessage,
    ModelResponse,
    ModelResponsePart,
    NativeToolCallPart,
    NativeToolReturnPart,
    TextPart,
)
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from context_compiler import View
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


class Provided(FunctionModel):
    """A model of a provider, which reports `factor` times the tokens that the newest view counts."""

    def __init__(
        self, views: list[View], name: str, provider: str, factor: float, *, profile: Any = None, **answer: Any
    ) -> None:
        super().__init__(self._answer, model_name=name, profile=profile)
        self._views, self._provider_name, self.factor, self.fails = views, provider, factor, False
        self._facts: dict[str, Any] = answer

    @property
    def system(self) -> str:
        return self._provider_name

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if self.fails:
            raise ModelHTTPError(500, self.model_name)
        record = self._views[-1].record
        assert record is not None
        usage = RequestUsage(input_tokens=round(self.factor * record.tokens_exact), output_tokens=1)
        facts: dict[str, Any] = {"parts": [TextPart("It is hot.")], **self._facts}
        return ModelResponse(usage=usage, provider_name=self._provider_name, **facts)


async def ratios(model: Any, views: list[View], turns: int = 3) -> list[float]:
    """The ratios of a conversation's requests."""
    agent, history = Agent(model, capabilities=[compiler(budget=20_000, on_view=views.append)]), past(60)
    first = len(views)
    for _ in range(turns):
        history = (await run(agent, "And how hot is it?", message_history=history, conversation_id="kiln")).messages
    return [view.record.ratio for view in views[first:] if view.record is not None]


SEARCH: Sequence[ModelResponsePart] = (
    NativeToolCallPart("web_search", {"query": "kiln"}, tool_call_id="s1", provider_name="anthropic"),
    NativeToolReturnPart("web_search", "900 °C", tool_call_id="s1", provider_name="anthropic"),
    TextPart("It is hot."),
)
COMPACTED: Sequence[ModelResponsePart] = (CompactionPart(content="The kiln.", provider_name="anthropic"), *SEARCH[2:])


@pytest.mark.parametrize(
    "answer",
    [{"parts": SEARCH}, {"parts": COMPACTED}, {"metadata": {"__pydantic_ai__": {"context_input_tokens": 900}}}],
    ids=["native tools", "compaction", "several passes"],
)
async def test_usage_that_sums_several_passes_teaches_no_ratio(answer: dict[str, Any]) -> None:
    views: list[View] = []
    assert await ratios(Provided(views, "claude-sonnet-4-5", "anthropic", 2.25, **answer), views) == [1.25] * 3


@pytest.mark.parametrize(
    "metadata", [None, {}, {"__pydantic_ai__": "changed"}, {"__pydantic_ai__": {"context": 900}}], ids=str
)
async def test_usage_without_notes_of_the_host_teaches_a_ratio(metadata: Any) -> None:
    views: list[View] = []
    _, second, _ = await ratios(Provided(views, "claude-sonnet-4-5", "anthropic", 1.6, metadata=metadata), views)
    assert second == pytest.approx(1.632, abs=0.01)


async def test_the_model_that_answers_for_another_teaches_no_ratio_for_it() -> None:
    views: list[View] = []
    first, second = Provided(views, "gpt-5", "openai", 1.0), Provided(views, "claude-sonnet-4-5", "anthropic", 1.6)
    chain = FallbackModel(first, second)
    agent, history = Agent(chain, capabilities=[compiler(budget=20_000, on_view=views.append)]), past(60)
    for turn in range(6):
        first.fails = turn >= 3
        history = (await run(agent, "And how hot is it?", message_history=history, conversation_id="kiln")).messages
    seen = [view.record.ratio for view in views if view.record is not None]
    assert seen[:4] == [1.25] * 4 and seen[4] == pytest.approx(1.632, abs=0.01)


async def test_a_chain_of_models_without_a_known_tokenizer_teaches_its_own_ratio() -> None:
    views: list[View] = []
    chain = FallbackModel(*(Provided(views, name, "kiln", 1.6) for name in ("kiln-7b", "kiln-3b")))
    _, second, _ = await ratios(chain, views)
    assert second == pytest.approx(1.632, abs=0.01)
