"""A long conversation with the three lines of the README: are facts in the request when the user asks for them?

    python -m benchmarks.three_lines [--turns 300] [--facts 10] [--seed 7] [--no-tool]

The agent has `ContextCompiler(budget=8_000)` and `Agent(..., capabilities=[compiler])`, and every turn continues the
history. The chat's own model writes the summaries, as by default, and they say nothing. The user mentions facts in
passing and asks for them at random later turns; a turn that asks calls a tool first. `held`: the fact's sentence is in
the last request of the turn. Exits with 1 if a fact is missing or a request is over the budget.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from benchmarks.peers.baselines import price
from context_compiler import ContextCompiler

BUDGET = 8_000
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
    found: list[Fact] = []
    for thing, name, at in zip(draw.sample(THINGS, count), names, mentioned, strict=True):
        asked = draw.choice(sorted(turn for turn in free if turn >= at + turns // 10))
        free.remove(asked)
        sentence = f"the {thing} is called {name}."
        found.append(Fact(sentence=sentence, question=f"What is the {thing} called?", mentioned=at, asked=asked))
    return found


async def converse(turns: int, count: int, seed: int, *, tool: bool = True) -> Outcome:
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
        if tool and asking and not looked_up:
            return ModelResponse(parts=[ToolCallPart("look_up", {"shelf": draw.randrange(100)})])
        return ModelResponse(parts=[TextPart(_said(draw, ANSWERS))])

    compiler = ContextCompiler(budget=BUDGET)
    agent = Agent(FunctionModel(answer), capabilities=[compiler])

    @agent.tool_plain
    def look_up(shelf: int) -> str:
        """Look something up that has nothing to do with the conversation."""
        return "".join(LOOKED_UP.format(at=shelf + at) for at in range(12))

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
    over = sum(price(request) > BUDGET for request in requests)
    return Outcome(rows=rows, requests=len(requests), over=over, summaries=summaries)


def _said(draw: random.Random, texts: Sequence[str]) -> str:
    return draw.choice(texts).format(thing=draw.choice(THINGS), step=draw.randrange(90), job=draw.randrange(9_000))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=300)
    parser.add_argument("--facts", type=int, default=10)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--no-tool", action="store_true", help="call no tool in turns that ask")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        outcome = asyncio.run(converse(given.turns, given.facts, given.seed, tool=not given.no_tool))
        os.chdir(os.sep)
    held = sum(row.held for row in outcome.rows)
    print(
        f"held {held} of {len(outcome.rows)} | over the budget {outcome.over} of {outcome.requests:,} requests"
        f" | {outcome.summaries} summaries"
    )
    sys.exit(held < len(outcome.rows) or outcome.over > 0)


if __name__ == "__main__":
    main()
