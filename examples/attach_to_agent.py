"""An agent whose requests stay within a budget while its history grows. It needs no key and no network.

Two function models replace real ones, one for the chat and one for the compiler. To use a real model, give the agent
its name, such as "anthropic:claude-sonnet-5-5", and leave out `model=`. The chat's own model then writes the summaries.
"""

from __future__ import annotations

import logging

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler import ContextCompiler, View

QUESTIONS = [
    "Never deploy on Fridays. What does the first log say?",
    *(f"And log number {number}?" for number in range(2, 13)),
]


def chat(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Read the log that the prompt asks about, then report what is in it."""
    if any(isinstance(part, UserPromptPart) for part in messages[-1].parts):
        return ModelResponse(parts=[ToolCallPart("read_log", {"path": "/var/log/app.log"})])
    return ModelResponse(parts=[TextPart("Nothing unusual: all 40 lines are heartbeats.")])


def write_notes(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Write a summary in place of a real model."""
    return ModelResponse(parts=[TextPart("- Goal: check the logs one by one.\n- Done: heartbeats only, so far.")])


def read_log(path: str) -> str:
    """Read a log file."""
    return "\n".join(f"2026-05-18T09:{minute:02d}:00Z {path} heartbeat ok" for minute in range(40))


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # logs one line for each compile
    views: list[View] = []
    compiler = ContextCompiler(
        budget=8_000, model=FunctionModel(write_notes, model_name="notes"), store=None, on_view=views.append
    )
    agent = Agent(FunctionModel(chat), tools=[read_log], capabilities=[compiler])

    history: list[ModelMessage] = []
    for question in QUESTIONS:
        result = agent.run_sync(question, message_history=history)
        history = result.all_messages()
        record = views[-1].record
        assert record is not None
        statuses = ", ".join(view.status for view in views)  # one for each request of the turn
        print(f"{len(history):3} messages, {record.tokens_raw:6,} → {record.tokens_sent:5,}  {statuses}")
        views.clear()


if __name__ == "__main__":
    main()
