"""Cost of finding a recall block in a long conversation, beside what the host takes for the same request.

    python -m benchmarks.blocks [--budgets 4000,16000] [--messages 2000] [--questions 100]

Conversations of LoCoMo, one behind the other, are the history of an agent with a block for each question and of one
with nothing but the host. Their questions are asked in turn, in an order drawn with a fixed seed, so that each is a
user turn of a conversation that goes on; requests of both agents are interleaved. CPU time is measured around
the search for a block, a search that finds out that the view has to be cut back first included, and around the host's
whole run. The first questions, which read the conversation, are not in the figures but for `first ms`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice
from statistics import median, quantiles
from typing import Any
from unittest.mock import patch

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from benchmarks import recall
from benchmarks.data import GENERATED, Data, at_hand
from benchmarks.machine import machine
from context_compiler import ContextCompiler
from context_compiler.middleware import respond

MESSAGES, QUESTIONS, WARM = 2_000, 100, 3
BUDGETS = (4_000, 16_000)
HEAD = ("budget", "messages", "blocks", "median ms", "p90 ms", "first ms", "host, median ms", "median × host")


def conversation(data: Data, count: int) -> tuple[list[ModelMessage], list[str]]:
    """So many messages, which end with an answer, and what may be asked about them."""
    messages: list[ModelMessage] = []
    questions: list[str] = []
    for one in data.conversations("locomo" if "locomo" in data.asked else GENERATED):
        questions += [question.text for question in one.questions if len(messages) + question.after < count]
        messages += one.messages
    messages = messages[:count]
    while isinstance(messages[-1], ModelRequest):
        messages.pop()
    random.Random(recall.SEED).shuffle(questions)
    return messages, questions


async def measured(data: Data, budget: int, count: int = MESSAGES, asked: int = QUESTIONS) -> dict[str, float]:
    """The figures of a row: CPU milliseconds of finding a block, and of the host's runs with the same questions."""
    messages, questions = conversation(data, count)
    ours = Agent(
        FunctionModel(_answer), capabilities=[ContextCompiler(budget=budget, model="none", store=None, system=None)]
    )
    host: Agent[None, str] = Agent(FunctionModel(_answer))
    stored, alone = messages, messages
    blocks: list[float] = []
    hosts: list[float] = []
    gc.freeze()  # what is there already is not looked through before every run
    for question in islice(cycle(questions), WARM + asked):
        gc.collect()
        with _timing() as spent:
            stored = (await ours.run(question, message_history=stored)).all_messages()
        blocks.append(sum(spent))
        gc.collect()
        begun = time.process_time()
        alone = (await host.run(question, message_history=alone)).all_messages()
        hosts.append(1000 * (time.process_time() - begun))
    found = blocks[WARM:]
    return {
        "budget": budget,
        "messages": len(messages),
        "blocks": len(found),
        "median": median(found),
        "p90": quantiles(found, n=10)[-1],
        "first": blocks[0],
        "host": median(hosts[WARM:]),
    }


def _answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return ModelResponse(parts=[TextPart("I see.")])


@contextmanager
def _timing() -> Generator[list[float]]:
    """CPU milliseconds of each search for a block."""
    spent: list[float] = []

    def timed(search: Callable[..., Any]) -> Callable[..., Any]:
        def searching(*args: Any, **given: Any) -> Any:
            begun = time.process_time()
            try:
                return search(*args, **given)
            finally:
                spent.append(1000 * (time.process_time() - begun))

        return searching

    with patch.multiple(
        respond,
        find_first_block=timed(respond.find_first_block),
        lacks_room_for_block=timed(respond.lacks_room_for_block),
    ):
        yield spent


def cells(row: dict[str, float]) -> Sequence[str]:
    """A row of the table."""
    counts = [f"{int(row[name]):,}" for name in ("budget", "messages", "blocks")]
    times = [f"{row[name]:.1f}" for name in ("median", "p90", "first", "host")]
    return [*counts, *times, f"{row['median'] / row['host']:.2f}"]


async def main() -> None:
    """Measure and print."""
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--budgets", default=",".join(map(str, BUDGETS)))
    given.add_argument("--messages", type=int, default=MESSAGES)
    given.add_argument("--questions", type=int, default=QUESTIONS)
    chosen = given.parse_args()
    print(f"{machine()}\n\n{' | '.join(HEAD)}")
    for budget in map(int, chosen.budgets.split(",")):
        row = await measured(at_hand(False, 1), budget, chosen.messages, chosen.questions)
        print(" | ".join(cells(row)), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
