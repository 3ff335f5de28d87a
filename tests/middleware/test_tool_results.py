"""Results of tools in the current turn: they stay readable while the budget has room, and are read once."""

from __future__ import annotations

import json
import re

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler import ContextCompiler, TokenCounter, View

COUNTER = TokenCounter()


def text_of(name: str, tokens: int) -> str:
    return COUNTER.head("\n".join(f"{name}{line} value {line * 7919 % 1000}" for line in range(tokens)), tokens)


@pytest.mark.parametrize(
    ("budget", "share", "files", "calls"), [(8_000, 0.45, 2, 1), (16_000, 0.3, 3, 1), (16_000, 0.1, 2, 4)]
)
async def test_files_that_fit_the_budget_together_are_read_once_each(
    budget: int, share: float, files: int, calls: int
) -> None:
    names = "abcdefghijkl"[: files * calls]
    bodies = {name: text_of(name, int(share * budget)) for name in names}
    reads: list[str] = []
    views: list[View] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        shown = " ".join(str(getattr(part, "content", "")) for message in messages for part in message.parts)
        missing = [name for name in names if bodies[name] not in shown][:calls]
        return ModelResponse(
            parts=[ToolCallPart("read", {"name": name}, tool_call_id=f"c{len(reads)}{name}") for name in missing]
            or [TextPart("They differ.")]
        )

    compiler = ContextCompiler(budget=budget, model="none", store=None, system=None, on_view=views.append)
    agent = Agent(FunctionModel(answer), capabilities=[compiler])

    @agent.tool_plain
    def read(name: str) -> str:
        reads.append(name)
        return bodies[name]

    await agent.run("Compare the files.")
    assert sorted(reads) == list(names) and not any(view.drops for view in views)


async def test_a_file_that_had_to_go_stays_as_a_stub_and_the_reason_is_true() -> None:
    views: list[View] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        called = len(views) - 1
        return ModelResponse(
            parts=[ToolCallPart("read", {"name": f"f{called}"}, tool_call_id=f"c{called}")]
            if called < 12
            else [TextPart("Done.")]
        )

    compiler = ContextCompiler(budget=8_000, model="none", store=None, system=None, on_view=views.append)
    agent = Agent(FunctionModel(answer), capabilities=[compiler])

    @agent.tool_plain
    def read(name: str) -> str:
        return text_of(name, 2_000)

    await agent.run("Read the files.")
    sent = str(views[-1].messages)
    assert all(f"'name': 'f{number}'" in sent for number in range(12))
    assert {drop.reason for drop in views[-1].drops} == {"tool exchange of this turn as a stub"}
    assert 2 * sum(view.status == "compiled" for view in views) <= 12 * 2_000 / 8_000 * 4


class Report(BaseModel):
    title: str
    body: str
    owner: str
    day: int


async def test_every_error_in_the_feedback_of_the_host_reaches_the_model() -> None:
    values = {"title": "Cranes", "owner": "Ann", "day": 3}
    seen: list[set[str]] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        feedback = " ".join(str(getattr(part, "content", "")) for part in messages[-1].parts)
        seen.append({name for name in values if re.search(rf"loc\W+{name}\b", feedback)})
        report = {"body": "A long report on the harbour and its cranes. " * 250}
        return ModelResponse(parts=[TextPart(json.dumps(report | {name: values[name] for name in seen[-1]}))])

    model = FunctionModel(answer, profile={"supports_json_schema_output": True})
    compiler = ContextCompiler(budget=8_000, store=None, model="none")
    agent = Agent(model, output_type=NativeOutput(Report), retries=2, capabilities=[compiler])
    await agent.run("Write the report.")
    assert seen == [set(), set(values)]
