"""A durable run that dies in a tool after its first compile, and is recovered by the next process.

python -m tests.support.durable FOLDER    # first it dies with status 42, then it prints what came of it
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from dbos import DBOS, SetWorkflowID
from pydantic_ai import Agent
from pydantic_ai.durable_exec.dbos import DBOSDurability
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from context_compiler import ContextCompiler
from tests.support.builders import long_history, prose
from tests.support.openai_server import OpenAIServer

FOLDER = Path(sys.argv[1])


def count(what: str) -> int:
    """Say that something happened, in a way that survives this process; how often it has by now."""
    with (FOLDER / what).open("a") as file:
        file.write("once\n")
    return len((FOLDER / what).read_text().splitlines())


async def notes(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    count("compiled")
    return ModelResponse(
        parts=[TextPart("- **Goal**: survive.")], usage=RequestUsage(input_tokens=100, output_tokens=20)
    )


def answer(body: Any) -> Any:
    said = [message for message in body["messages"] if message["role"] == "tool" and "survived" in str(message)]
    asked = "survive this" in str(body["messages"])
    if asked:
        with (FOLDER / "sent").open("a") as file:
            file.write(json.dumps(body["messages"]) + "\n")
    return [("tool", {})] if asked and len(said) < 2 else "done"


def tool() -> str:
    if count("called") == 1:
        os._exit(42)
    return f"survived {prose(3, 100)}"


async def main(server: OpenAIServer) -> None:
    model = server.model("some-model-that-counts-more", profile={"context_window": None})
    compiler = ContextCompiler(
        budget=8_000, trigger=1.0, model=FunctionModel(notes), store=FOLDER / "record.db", system=None
    )
    agent: Agent[None, str] = Agent(model, name="clerk", tools=[tool], capabilities=[DBOSDurability(), compiler])

    @DBOS.workflow(name="run")
    async def workflow() -> dict[str, Any]:
        result = await agent.run("survive this", message_history=long_history(18))
        return {"output": result.output, "input": result.usage.input_tokens, "requests": result.usage.requests}

    DBOS.launch()
    if not (FOLDER / "called").exists():
        await agent.run("what was learnt before a run counts in it", message_history=long_history(5))
        with SetWorkflowID("the-run"):
            await DBOS.start_workflow_async(workflow)
    handle = await DBOS.retrieve_workflow_async("the-run")
    result = await handle.get_result()
    steps = [step["function_name"] for step in await DBOS.list_workflow_steps_async("the-run")]
    views = [record.status.partition(";")[0] for record in await compiler.views()]
    print(json.dumps({**result, "steps": steps, "views": views[::-1], "ratio": (await compiler.views())[0].ratio}))


if __name__ == "__main__":
    DBOS(config={"name": "clerk", "system_database_url": f"sqlite:///{FOLDER}/dbos.sqlite", "run_admin_server": False})
    with OpenAIServer(answer, count=lambda text: len(text) // 2) as loopback:
        asyncio.run(main(loopback))
    DBOS.destroy()
