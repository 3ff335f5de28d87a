"""A run in a Prefect flow that fails once after it, and is done again from its journal, on a server of its own.

python -m tests.support.prefect FOLDER    # prints what came of it
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, cast

from prefect import flow
from prefect.testing import utilities
from pydantic_ai import Agent
from pydantic_ai.durable_exec.prefect import PrefectDurability
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler import ContextCompiler
from tests.support.builders import long_history, prose

COMPILED, SENT, TRIED = list[str](), list[int](), list[str]()


async def notes(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    COMPILED.append("once")
    return ModelResponse(parts=[TextPart("- **Goal**: survive.")])


async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    SENT.append(len(messages))
    return ModelResponse(parts=[ToolCallPart("tool", {}) if len(SENT) < 3 else TextPart("done")])


def tool() -> str:
    """Survive."""
    return prose(3, 100)


async def main() -> None:
    store = Path(sys.argv[1]) / "record.db"
    compiler = ContextCompiler(budget=3_000, trigger=1.0, model=FunctionModel(notes), store=store, system=None)
    agent = Agent(FunctionModel(answer), name="clerk", tools=[tool], capabilities=[PrefectDurability(), compiler])
    history = long_history(18)

    async def run(prompt: str) -> str:
        result = await agent.run(prompt, message_history=history)
        TRIED.append(result.output)
        if len(TRIED) == 1:
            raise RuntimeError("the flow fails after the run")
        return result.output

    output = await cast(Any, flow(retries=1)(run))("survive this")
    views = [record.status.partition(";")[0] for record in await compiler.views()]
    await compiler.aclose()
    print(json.dumps({"output": output, "tried": TRIED, "compiled": COMPILED, "sent": SENT, "views": views[::-1]}))


if __name__ == "__main__":
    with cast(Any, utilities).prefect_test_harness(server_startup_timeout=120):
        asyncio.run(main())
