"""CPU time of finding a recall block in a long conversation, compared with the host's time for the same request.

    python -m benchmarks.blocks [--budgets 4000,16000] [--messages 2000] [--questions 100]

Two agents share one history: the conversations of LoCoMo, joined. One agent has a recall block for each question, the
other is the host alone. The questions are asked one after the other, in an order drawn with a fixed seed, each as a
user turn of the growing conversation; requests of both agents are interleaved. CPU time is measured around the search
for a block and around the host's whole run. A search that finds that the view must be cut back first counts too. The
first questions, which read the conversation, count only for `first ms`.
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
    """Return at most `count` messages that end with an answer, and questions about them."""
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
    """Measure one row: CPU milliseconds of finding a block, and of the host's runs with the same questions."""
    messages, questions = conversation(data, count)
    ours = Agent(
        FunctionModel(_answer), capabilities=[ContextCompiler(budget=budget, model="none", store=None, system=None)]
    )
    host: Agent[None, str] = Agent(FunctionModel(_answer))
    stored, alone = messages, messages
    blocks: list[float] = []
    hosts: list[float] = []
    gc.freeze()  # so that no collection walks the objects that exist already
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
    """Collect the CPU milliseconds of each search for a block."""
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
    """Format a row of the table."""
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
