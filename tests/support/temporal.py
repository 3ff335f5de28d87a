"""A run in a Temporal workflow that is replayed from its history at every step, on a server of its own.

python -m tests.support.temporal FOLDER PROGRAM    # prints what came of it; PROGRAM is the server's `temporal`
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, cast

from temporalio import workflow
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from pydantic_ai import Agent
    from pydantic_ai.durable_exec.temporal import PydanticAIPlugin, PydanticAIWorkflow, TemporalDurability
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    from context_compiler import ContextCompiler
    from tests.support.builders import long_history, prose

FOLDER, PROGRAM = Path(sys.argv[1]), sys.argv[2]
COMPILED, SENT = list[str](), list[list[str]]()


async def notes(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    COMPILED.append("once")
    return ModelResponse(parts=[TextPart("- **Goal**: survive.")])


async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    SENT.append([repr([getattr(part, "content", "") for part in message.parts]) for message in messages])
    return ModelResponse(parts=[ToolCallPart("tool", {}) if len(SENT) < 3 else TextPart("done")])


def tool() -> str:
    """Survive."""
    return prose(3, 100)


compiler = ContextCompiler(
    budget=3_000, trigger=1.0, model=FunctionModel(notes), store=FOLDER / "record.db", system=None
)
agent = Agent(FunctionModel(answer), name="clerk", tools=[tool], capabilities=[TemporalDurability(), compiler])


@workflow.defn
class Clerk(PydanticAIWorkflow):
    """The run."""

    __pydantic_ai_agents__ = [agent]

    @workflow.run
    async def run(self, prompt: str) -> str:
        return (await agent.run(prompt, message_history=long_history(18))).output


async def main() -> None:
    environment = cast(Any, WorkflowEnvironment)
    started = await environment.start_local(
        plugins=[PydanticAIPlugin()], dev_server_existing_path=PROGRAM, dev_server_extra_args=["--headless"]
    )
    async with started as server, Worker(server.client, task_queue="q", workflows=[Clerk], max_cached_workflows=0):
        output = await server.client.execute_workflow(Clerk.run, "survive this", id="run", task_queue="q")
        history = await server.client.get_workflow_handle("run").fetch_history()
    activities = [event.activity_task_scheduled_event_attributes.activity_type.name for event in history.events]
    views = [record.status.partition(";")[0] for record in await compiler.views()]
    report = {"output": output, "compiled": COMPILED, "sent": SENT, "views": views[::-1]}
    await compiler.aclose()
    print(json.dumps({**report, "activities": [name for name in activities if "context_compiler" in name]}))


if __name__ == "__main__":
    asyncio.run(main())
