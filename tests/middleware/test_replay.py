"""A real coding session, request by request, through a live agent: within budget, whole, untouched, and cheap."""

from __future__ import annotations

from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler import ContextCompiler
from context_compiler.messages.history import Reader
from context_compiler.messages.importers import read_transcripts
from context_compiler.tokens import TokenCounter
from tests.support.histories import snapshot

BUDGET = 16_000

REQUESTS = 150
"""Of more than 400; `benchmarks --measure sessions` lives through all of them."""


class Meter:
    """What a provider with a prompt cache would charge: a tenth for a prefix it has seen, 1.25 for the rest."""

    def __init__(self) -> None:
        self.reader = Reader(TokenCounter())
        self.before: list[str] = []
        self.cost = 0.0

    def see(self, messages: list[ModelMessage]) -> int:
        read = [self.reader.one(message) for message in messages]
        shared = 0
        while shared < min(len(read), len(self.before)) and read[shared].name == self.before[shared]:
            shared += 1
        tokens = [one.tokens for one in read]
        self.cost += 0.1 * sum(tokens[:shared]) + 1.25 * sum(tokens[shared:])
        self.before = [one.name for one in read]
        return sum(tokens)


def assert_answered(messages: list[ModelMessage]) -> None:
    """Every call has one answer after it, and every answer a call; the session itself has empty, aborted answers."""
    waiting: set[str] = set()
    for part in (part for message in messages for part in message.parts):
        if part.part_kind == "tool-call":
            assert part.tool_call_id not in waiting
            waiting.add(part.tool_call_id)
        elif part.part_kind == "tool-return":
            waiting.remove(part.tool_call_id)
    assert not waiting


async def test_a_real_session_stays_within_budget_whole_and_cheap(data_folder: Path) -> None:
    messages = list(read_transcripts(data_folder / "pi_sessions" / "large-session.jsonl")[0].messages)
    raw = snapshot(messages)
    sent: list[list[ModelMessage]] = []

    def answer(given: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        sent.append(list(given))
        return ModelResponse(parts=[TextPart("ok")])

    errors: list[Exception] = []
    compiler = ContextCompiler(budget=BUDGET, model="none", store=None, system=None, on_error=errors.append)
    agent = Agent(FunctionModel(answer), capabilities=[compiler])
    ours, everything = Meter(), Meter()
    requests = [
        index
        for index, message in enumerate(messages)
        if index and isinstance(message, ModelResponse) and isinstance(messages[index - 1], ModelRequest)
    ][:REQUESTS]
    for index in requests:
        await agent.run(message_history=messages[:index])
        assert ours.see(sent[-1]) <= BUDGET
        assert_answered(sent[-1])
        everything.see(messages[:index])
    assert len(sent) == len(requests) == REQUESTS
    assert not errors
    assert snapshot(messages) == raw
    assert ours.cost / everything.cost <= 0.33
