"""Number of summaries requested from a model: in a run of many tool steps, and in a conversation of many turns.

The model is a fake, because only its calls are counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import UsageLimits

from benchmarks.approaches import Approach
from benchmarks.data import Data
from benchmarks.measures import Measure
from benchmarks.results import Cell, Result
from benchmarks.tables import markdown, named, reasons

NAME = "compiles"
BUDGET = 8_000
STEPS, TURNS = 50, 40
FACTS = "The sluice gate of basin {at} opens at {at}:15 and is closed by hand when the river is high. "
SHORT = "The user checks basins one after the other; all were in order so far."


def cells(data: Data, approaches: Sequence[str]) -> list[Cell]:
    return [Cell(NAME, approach, "made up", BUDGET) for approach in approaches]


def run(cell: Cell, approach: Approach, data: Data) -> Mapping[str, Any] | str:
    """Count the summaries in a run of `STEPS` tool steps, and in a conversation of `TURNS` turns."""
    if approach.summarising is None:
        return approach.dashes.get("compiles", "asks no model")
    return {"run": asyncio.run(_of_run(approach)), "conversation": asyncio.run(_of_conversation(approach))}


class Asked(FunctionModel):
    """A model that counts its calls."""

    def __init__(self) -> None:
        self.times = 0
        super().__init__(self._said)

    def _said(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.times += 1
        return ModelResponse(parts=[TextPart(SHORT)])


def history() -> list[ModelMessage]:
    """Build a conversation of about 12,000 tokens, so that it exceeds the budget before the run begins."""
    found: list[ModelMessage] = []
    for at in range(40):
        found.append(ModelRequest(parts=[UserPromptPart(f"What about basin {at}? " + FACTS.format(at=at) * 4)]))
        found.append(ModelResponse(parts=[TextPart(FACTS.format(at=at) * 8)]))
    return found


async def _of_run(approach: Approach) -> int:
    """Count the summaries in one user turn with `STEPS` tool steps."""
    compiler = Asked()
    steps = 0

    def step(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        nonlocal steps
        steps += 1
        if steps > STEPS:
            return ModelResponse(parts=[TextPart("All basins are in order.")])
        return ModelResponse(parts=[ToolCallPart("look", {"basin": steps}, tool_call_id=f"look-{steps}")])

    agent: Agent[None, str] = Agent(FunctionModel(step), capabilities=_made(approach, compiler))

    @agent.tool_plain
    def look(basin: int) -> str:
        return FACTS.format(at=basin) * 10

    free = UsageLimits(request_limit=None)
    await agent.run("Look at all basins, please.", message_history=history(), usage_limits=free)
    return compiler.times


async def _of_conversation(approach: Approach) -> int:
    """Count the summaries in `TURNS` user turns, each with the stored history."""
    compiler = Asked()

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart("Noted. " + FACTS.format(at=7) * 8)])

    agent: Agent[None, str] = Agent(FunctionModel(answer), capabilities=_made(approach, compiler))
    known: list[ModelMessage] = []
    for turn in range(TURNS):
        result = await agent.run(f"And basin {turn}? " + FACTS.format(at=turn) * 8, message_history=known)
        known = result.all_messages()
    return compiler.times


def _made(approach: Approach, compiler: FunctionModel) -> list[Any]:
    return approach.summarising(compiler, BUDGET) if approach.summarising is not None else []


def tables(results: Sequence[Result]) -> dict[str, str]:
    asking = [one for one in results if one.value is not None]
    rows = [
        [named(one.cell.approach), str(one.value["run"]), str(one.value["conversation"])]
        for one in asking
        if one.value is not None
    ]
    others = [one for one in results if "asks no model" not in one.dash]
    head = ("", f"one run of {STEPS} tool steps", f"a conversation of {TURNS} turns")
    return {NAME: markdown(head, rows) + reasons(others)}


MEASURES = (
    Measure(
        name=NAME,
        title="Compiles",
        about=f"How often a model is asked for a summary, at a budget of {BUDGET:,} tokens (less is better).",
        cells=cells,
        run=run,
        tables=tables,
    ),
)
