"""A coding agent: one prompt, 45 tool calls with long results, and requests that stay within a budget.

Within a run, no model is asked for a second summary. Finished calls become stubs, and details that a stub lost are
quoted or listed. A call and its result always stay together. The model in this example is a function that reads one
file after another.
"""

from __future__ import annotations

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler import ContextCompiler, View

FILES = 45
BUDGET = 6_000


def read_file(path: str) -> str:
    """Read a file."""
    number = int(path.split("_")[1].removesuffix(".py"))
    body = "\n".join(f"def step_{number}_{line}(value):\n    return value + {line}" for line in range(25))
    return f"# {path}\nTIMEOUT_{number} = {number * 7}\n{body}"


def work(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call the tool for the next file until all files are read."""
    calls = {part.tool_call_id for message in messages for part in message.parts if isinstance(part, ToolCallPart)}
    results = {part.tool_call_id for message in messages for part in message.parts if isinstance(part, ToolReturnPart)}
    assert calls == results, "a provider refuses half a tool call"
    last = max((int(call.removeprefix("call_")) for call in calls), default=-1)
    if last + 1 == FILES:
        return ModelResponse(parts=[TextPart(f"All {FILES} files are read.")])
    call = ToolCallPart("read_file", {"path": f"module_{last + 1}.py"}, tool_call_id=f"call_{last + 1}")
    return ModelResponse(parts=[call])


def main() -> None:
    views: list[View] = []
    compiler = ContextCompiler(budget=BUDGET, model="none", store=None, on_view=views.append)
    agent = Agent(FunctionModel(work), tools=[read_file], capabilities=[compiler])
    result = agent.run_sync("Read every module and tell me when you are done.")

    last = views[-1]
    assert last.record is not None
    compiled = sum(view.status == "compiled" for view in views)
    print(result.output)
    print(f"{len(views)} requests, {compiled} compiled, the largest of {max(view.tokens for view in views):,} tokens")
    print(f"the last would have had {last.record.tokens_raw:,} tokens without it, and had {last.record.tokens_sent:,}")
    print(f"the stored history has all {len(result.all_messages())} messages")
    assert all(view.record is not None and view.record.tokens_sent <= BUDGET for view in views)


if __name__ == "__main__":
    main()
