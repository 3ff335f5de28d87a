"""The README's three lines over a long conversation: whatever a user asks for is in the request that answers.

The user mentions facts in passing and asks for them at random later turns; a turn that asks calls a tool first. The
chat's own model writes the summaries, as by default, and they say nothing.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler import ContextCompiler
from context_compiler.messages.history import Reader
from context_compiler.tokens import TokenCounter

BUDGET = 4_000
BLAND = "The user set up several services and discussed naming. Work continues."
THINGS = (
    "staging database|build queue|payment ledger|search cluster|mail relay|backup bucket|audit table|login service"
    "|cron host|metrics store|image cache|sync worker|report index|billing topic|alert channel|proxy pool"
).split("|")
NAMES = "heron lantern copper violin saddle orchard granite feather candle marble thicket canyon ribbon otter".split()
WORK = (
    "The {thing} was slow at step {step}; can you look at the log of job {job}?",
    "Let us go through file {job} next, it has something to do with the {thing}.",
    "I moved the {thing} behind the other one and restarted step {step}.",
    "Write a short test for step {step}, and leave the {thing} as it is.",
)
ANSWERS = (
    "Done. Job {job} waited {step} seconds for a lock, and after that everything ran through as it should.",
    "I looked at it: step {step} reads the whole of file {job} twice, which is why it takes so long.",
    "The test is written and passes; job {job} was started again and is at step {step} now.",
)
LOOKED_UP = "shelf {at}: checked, in order, nothing to report\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A sentence of the user, and the turn that asks for it."""

    sentence: str
    question: str
    mentioned: int
    asked: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Result for a fact."""

    fact: Fact
    held: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of a conversation."""

    rows: Sequence[Row]
    requests: int
    over: int
    summaries: int
    """Number of summaries that the chat's model was asked for."""


def facts(turns: int, count: int, draw: random.Random) -> list[Fact]:
    """Draw facts with distinct turns, each asked for at least a tenth of the conversation later."""
    names = draw.sample(NAMES, count)
    mentioned = sorted(draw.sample(range(2, turns * 6 // 10), count))
    free = set(range(2, turns)) - set(mentioned)
    drawn: list[Fact] = []
    for thing, name, number in zip(draw.sample(THINGS, count), names, mentioned, strict=True):
        asked = draw.choice(sorted(turn for turn in free if turn >= number + turns // 10))
        free.remove(asked)
        sentence = f"the {thing} is called {name}."
        drawn.append(Fact(sentence=sentence, question=f"What is the {thing} called?", mentioned=number, asked=asked))
    return drawn


async def converse(turns: int, count: int, seed: int) -> Outcome:
    """Run a conversation of the given number of turns; its record is in the working directory, as by default."""
    draw = random.Random(seed)
    chosen = facts(turns, count, draw)
    requests: list[Sequence[ModelMessage]] = []
    asking, summaries = False, 0

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        nonlocal summaries
        if not info.function_tools:
            summaries += 1
            return ModelResponse(parts=[TextPart(BLAND)])
        requests.append(list(messages))
        looked_up = any(isinstance(part, ToolReturnPart) for part in messages[-1].parts)
        if asking and not looked_up:
            return ModelResponse(parts=[ToolCallPart("look_up", {"shelf": draw.randrange(100)})])
        return ModelResponse(parts=[TextPart(_said(draw, ANSWERS))])

    compiler = ContextCompiler(budget=BUDGET)
    agent = Agent(FunctionModel(answer), capabilities=[compiler])

    @agent.tool_plain
    def look_up(shelf: int) -> str:
        """Look something up that has nothing to do with the conversation."""
        return "".join(LOOKED_UP.format(at=shelf + offset) for offset in range(12))

    rows: list[Row] = []
    history: list[ModelMessage] = []
    for turn in range(turns):
        due = next((fact for fact in chosen if fact.asked == turn), None)
        passing = "".join(f" By the way, {fact.sentence}" for fact in chosen if fact.mentioned == turn)
        asking = due is not None
        text = due.question if due is not None else " ".join(_said(draw, WORK) for _ in range(3)) + passing
        result = await agent.run(text, message_history=history)
        history = result.all_messages()
        if due is not None:
            rows.append(Row(fact=due, held=due.sentence in str(requests[-1])))
    reader = Reader(TokenCounter())
    over = sum(reader.read(request).tokens > BUDGET for request in requests)
    return Outcome(rows=rows, requests=len(requests), over=over, summaries=summaries)


def _said(draw: random.Random, texts: Sequence[str]) -> str:
    return draw.choice(texts).format(thing=draw.choice(THINGS), step=draw.randrange(90), job=draw.randrange(9_000))


async def test_all_facts_asked_for_are_sent_with_any_summaries_and_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = await converse(80, 10, seed=7)
    assert [row.fact.question for row in outcome.rows if not row.held] == []
    assert len(outcome.rows) == 10
    assert outcome.over == 0
    assert 1 <= outcome.summaries < 16
