"""Metrics for operations: what was counted, under which labels, and that no text of anybody is among them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from context_compiler import ContextCompiler, MemoryStore
from context_compiler.pipeline import run_pipeline
from tests.support.builders import long_history

Points = dict[tuple[str, str], Any]


@pytest.fixture(scope="module")
def reader() -> Iterator[InMemoryMetricReader]:
    """A reader of all metrics of this process, from now on: a provider can be set once."""
    metric_reader = InMemoryMetricReader()
    provider = MeterProvider([metric_reader])
    metrics.set_meter_provider(provider)
    yield metric_reader
    provider.shutdown()


def points(reader: InMemoryMetricReader) -> Points:
    """Sums, or counts of a histogram, by metric and label."""
    data = reader.get_metrics_data()
    every = (
        [metric for resource in data.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics]
        if data
        else []
    )
    return {
        (metric.name.removeprefix("context_compiler."), ",".join(map(str, (point.attributes or {}).values()))): getattr(
            point, "value", None
        )
        or getattr(point, "count", None)
        for metric in every
        if metric.name.startswith("context_compiler.")
        for point in metric.data.data_points
    }


def since(before: Points, after: Points) -> Points:
    """What was added."""
    return {key: value - (before.get(key) or 0) for key, value in after.items() if value and value != before.get(key)}


async def test_a_request_with_a_compile_is_counted(reader: InMemoryMetricReader) -> None:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        usage = RequestUsage(input_tokens=1_000, output_tokens=20, cache_read_tokens=400)
        return ModelResponse(parts=[TextPart("- **Goal**: survive.")], usage=usage, model_name="gpt-5-mini")

    model = FunctionModel(answer, model_name="gpt-5-mini")
    compiler = ContextCompiler(budget=4_000, store=MemoryStore(), system=None)
    before = points(reader)
    result = await Agent(model, capabilities=[compiler]).run("survive this", message_history=long_history(18))
    assert result.output
    counted, record = since(before, points(reader)), compiler.last_view and compiler.last_view.record
    assert record is not None and record.compile is not None
    assert counted["views", "compiled"] == counted["compiles", "ok"] == 1
    assert (counted["tokens.raw", ""], counted["tokens.sent", ""]) == (record.tokens_raw, record.tokens_sent)
    assert (counted["tokens.input", ""], counted["tokens.cached", ""]) == (1_000, 400)
    assert counted["compile.tokens", "input"] == record.compile.usage["input_tokens"]
    assert counted["view.duration", "compiled"] == counted["compile.duration", "ok"] == 1
    assert counted["cost", "request"] > 0 and counted["cost", "compile"] > 0
    assert not any("survive" in label for _, label in points(reader))


async def test_a_failure_is_counted_by_type_and_an_unpriced_model_not_as_zero_cost(
    reader: InMemoryMetricReader,
) -> None:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart("Yes.")], model_name="nobody-knows-it")

    def fail(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        raise RuntimeError("secret text")

    compiler = ContextCompiler(budget=4_000, model=FunctionModel(fail), store=MemoryStore(), system=None)
    before = points(reader)
    agent = Agent(FunctionModel(answer, model_name="nobody-knows-it"), capabilities=[compiler])
    await agent.run("survive this", message_history=long_history(18))
    counted = since(before, points(reader))
    assert counted["compiles", "failed"] == counted["errors", "CompileError"] == counted["unpriced", "request"] == 1
    assert ("cost", "request") not in counted


async def test_runs_and_stages_of_a_pipeline_are_counted(reader: InMemoryMetricReader) -> None:
    before = points(reader)
    await run_pipeline("digraph g { start [shape=Mdiamond]; done [shape=Msquare]; a; start->a->done }", simulate=True)
    counted = since(before, points(reader))
    assert (counted["runs", "success"], counted["stages", "success"]) == (1, 3)
    assert counted["stage.duration", "success"] == 3
