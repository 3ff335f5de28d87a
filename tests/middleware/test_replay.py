"""A real coding session, request by request, through a live agent: within budget, whole, untouched, and cheap."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler import ContextCompiler, MemoryStore
from context_compiler.messages.history import Reader, reader_of
from context_compiler.messages.importers import read_transcripts
from context_compiler.middleware.replay import LiveSession, replay
from context_compiler.record.values import fixed_tokens
from context_compiler.tokens import TokenCounter, as_counter
from tests.support.agents import Talker
from tests.support.builders import prose
from tests.support.histories import snapshot

BUDGET = 6_000

REQUESTS = 80
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
        tokens = [reading.tokens for reading in read]
        self.cost += 0.1 * sum(tokens[:shared]) + 1.25 * sum(tokens[shared:])
        self.before = [reading.name for reading in read]
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
    session = read_transcripts(data_folder / "pi_sessions" / "large-session.jsonl")[0].messages
    messages = list(session[: 3 * REQUESTS])
    raw = snapshot(messages)
    sent: list[list[ModelMessage]] = []

    def answer(received: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        sent.append(list(received))
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


@pytest.mark.parametrize("seed", [4, 5, 8])
async def test_a_replay_without_instructions_sends_what_the_agent_with_them_sent(seed: int) -> None:
    """Bench, settings and "what if?" replay a session in the room that its instructions leave."""
    store, long = MemoryStore(), "You help with a renovation. " * 40
    random, talker = Random(seed), Talker(lambda messages, info: "Noted. " + prose(len(messages), 40))
    compiler = ContextCompiler(budget=2_000, model="none", store=store, system=None)
    agent = Agent(talker.model, instructions=long, capabilities=[compiler])
    history: list[ModelMessage] = []
    for turn in range(16):
        result = await agent.run(prose(turn, random.choice((20, 40, 200, 900))), message_history=history)
        history = result.all_messages()
    rows = [*await store.views(limit=100)][::-1]
    fixed = fixed_tokens(rows[-1])
    again = LiveSession([ContextCompiler(budget=2_000 - fixed, model="none", store=None, system=None)])
    sent = await replay(history, again, reader_of(as_counter(None)))
    assert fixed > 200 and sum(row.status.startswith("compiled") for row in rows) > 3
    assert [request.tokens + fixed for request in sent] == [row.tokens_sent for row in rows]


@pytest.mark.parametrize("seed", [4, 5, 8])
async def test_a_cut_is_recorded_with_the_size_that_crossed_the_threshold(seed: int) -> None:
    store, random = MemoryStore(), Random(seed)
    talker = Talker(lambda messages, info: "Noted. " + prose(len(messages), 40))
    compiler = ContextCompiler(budget=2_000, model="none", store=store, system=None, recall=0)
    agent = Agent(talker.model, instructions="Be brief.", capabilities=[compiler])
    history: list[ModelMessage] = []
    for turn in range(24):
        result = await agent.run(prose(turn, random.choice((20, 40, 200, 900))), message_history=history)
        history = result.all_messages()
    rows = [*await store.views(limit=100)][::-1]
    cuts = [(before, row) for before, row in pairwise(rows) if row.status.startswith("compiled")]
    assert len(cuts) > 3
    for before, row in cuts:
        size, threshold = row.ledger["cut"]["size"], row.ledger["cut"]["threshold"]
        assert size > threshold and size == before.tokens_sent + row.tokens_raw - before.tokens_raw
