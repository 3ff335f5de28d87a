"""A nightly workflow: the three steps of `nightly.md`, killed in the second step and resumed in the morning.

Each step sees as much of the earlier steps as it needs: `@context-helper` compiles their outputs for it. The models in
this example are functions. On the command line, `context-compiler workflow run examples/nightly.md --simulate` does the
same.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler.pipeline import RunConfig, resume_pipeline, run_pipeline
from context_compiler.workflow import load_workflow

WORKFLOW = Path(__file__).with_name("nightly.md")
FAILURES = "\n".join(f"job-{number}: failed after {number} s, error E{number * 3}" for number in range(100, 160))


class Killed(BaseException):
    """The machine is shut down."""


async def main() -> None:
    down = True
    sent: list[str] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        sent.append(str(messages))
        prompt = sent[-1]
        if "List every failed job" in prompt and "Which of these" not in prompt:
            return ModelResponse(parts=[TextPart(FAILURES)])
        if down:
            raise Killed
        return ModelResponse(parts=[TextPart("job-117 again: error E351. The others are new.")])

    agents = {"*": Agent(FunctionModel(answer))}
    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig(agents=agents, runs=Path(folder) / "runs.db", store=Path(folder) / "context.db")
        try:
            await run_pipeline(load_workflow(WORKFLOW), config, run_id="tonight")
        except Killed:
            print("killed in the second step")
        down = False
        result = await resume_pipeline("tonight", config)
        print(f"resumed: {result.status}, {', '.join(result.completed)}")
        print(f"the report was told job-117 of the first step, compiled: {'job-117' in sent[-1]}")


if __name__ == "__main__":
    asyncio.run(main())
