"""A coding session of 60 prompts with default settings: its text is several budgets long, and no file is read twice.

Every second prompt asks about two files that are new to the session, and the prompts between them about a file that was
read long ago. The simulated model decides by what a request shows: it reads a file only if the line that it needs is
not there. Calls and results always stay together.

    python examples/coding_agent.py
    python examples/coding_agent.py http://127.0.0.1:8080/v1 my-model    # a real model behind a server
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler import ContextCompiler, View

TURNS = 60


def retries(number: int) -> int:
    """Value in a file that prompts ask for."""
    return number * 37 % 101 + 2


def read_file(path: str) -> str:
    """Read a file."""
    number = int(path.removeprefix("module_").removesuffix(".py"))
    steps = [f"def step_{number}_{line}(value):\n    return value + {line * number}" for line in range(90)]
    steps.insert(45, f"RETRIES_{number} = {retries(number)}")
    return "\n".join([f'"""Module {number}."""', *steps])


def prompts() -> Iterator[str]:
    """Prompts of the session."""
    for turn in range(TURNS):
        if turn % 2:
            earlier = turn // 2 * 11 % turn
            yield f"What was the value of RETRIES_{earlier} in module_{earlier}.py?"
        else:
            yield f"Which retries more often, module_{turn}.py or module_{turn + 1}.py?"


def decide(prompt: str, shown: str) -> list[str] | str:
    """Paths of the files to read next, or the answer if the request shows everything that it needs."""
    values = {
        path: re.search(rf"RETRIES_{path[7:-3]} = (\d+)", shown) for path in re.findall(r"module_\d+\.py", prompt)
    }
    missing = [path for path, value in values.items() if value is None]
    found = {path: int(value[1]) for path, value in values.items() if value is not None}
    return missing or (max(found, key=lambda path: found[path]) if len(found) > 1 else str(*found.values()))


def simulated(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Answer as a model would that sees the request and nothing else."""
    parts = [part for message in messages for part in message.parts]
    asked = next(part.content for part in reversed(parts) if isinstance(part, UserPromptPart))
    prompt = asked if isinstance(asked, str) else str(asked[-1])  # a block of past text may precede it
    step = decide(prompt, "\n".join(str(getattr(part, "content", "")) for part in parts))
    if isinstance(step, str):
        return ModelResponse(parts=[TextPart(step)])
    return ModelResponse(parts=[ToolCallPart("read_file", {"path": path}) for path in step])


def work(model: Model, views: list[View]) -> tuple[list[str], Counter[str]]:
    """Run the session; return the answers, and how often each file was read."""
    reads = Counter[str]()
    compiler = ContextCompiler(model="none", store=None, on_view=views.append)
    agent = Agent(model, capabilities=[compiler])

    @agent.tool_plain(name="read_file")
    def read(path: str) -> str:
        """Read a file."""
        reads[path] += 1
        return read_file(path)

    answers: list[str] = []
    history: list[ModelMessage] = []
    for prompt in prompts():
        result = agent.run_sync(prompt, message_history=history, conversation_id="coding")
        history = result.all_messages()
        answers.append(result.output)
    return answers, reads


def real_model(url: str, name: str) -> Model:
    """Connect to a server."""
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return OpenAIChatModel(name, provider=OpenAIProvider(base_url=url, api_key="none"))


def main() -> None:
    views: list[View] = []
    _, reads = work(real_model(*sys.argv[1:3]) if sys.argv[1:] else FunctionModel(simulated), views)

    records = [view.record for view in views if view.record is not None]
    compiled = sum(view.status == "compiled" for view in views)
    print(f"{TURNS} prompts, {len(views)} requests, {compiled} compiled, {len(reads)} files")
    print(f"the largest request had {max(record.tokens_sent for record in records):,} of {views[-1].budget:,} tokens")
    print(f"the last would have had {records[-1].tokens_raw:,} tokens without it")
    print(f"the most that a file was read: {max(reads.values())}")


if __name__ == "__main__":
    main()
