"""Time of a request through the host, with this package, without it, and with a peer; and of finding a recall block.

    python -m benchmarks.overhead [--sizes 100,1000,10000] [--repeat 9]
    python -m benchmarks.overhead --blocks [--budgets 4000,16000] [--questions 100]

Every row is one `Agent.run` with a model that answers at once, on the same tool-using history. The runs of all rows are
interleaved; the table shows medians and their ratio to the host alone. It shows CPU time as well as wall time, because
machines are shared. `cold` is the first request with messages that were just deserialised. Peers
(`summarization-pydantic-ai`, `pydantic-ai-harness`) are left out if they are not installed.

With `--blocks`, two agents share 2,000 messages of LoCoMo's conversations, joined. One has a recall block for each
question, the other is the host alone. The questions are asked one after the other, in an order drawn with a fixed seed,
each as a user turn of the growing conversation; requests of both agents are interleaved. CPU time is measured around
the search for a block and around the host's whole run. A search that finds that the view must be cut back first counts
too. The first questions, which read the conversation, count only for `first ms`.
"""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import cycle, islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pydantic_ai import Agent
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from benchmarks import recall
from benchmarks.command import arguments, machine
from benchmarks.data import GENERATED, Data, at_hand
from benchmarks.peers.baselines import same
from benchmarks.tables import markdown
from context_compiler import ContextCompiler
from context_compiler.middleware import respond

VIEW, RAW = 8_000, 10_000_000
WARM = 3
HOST = "the host alone"
HEAD = ("messages", "way", "reach the model", "wall ms", "× host", "CPU ms", "× host", "cold ms")
BLOCKS_HEAD = ("budget", "messages", "blocks", "median ms", "p90 ms", "first ms", "host, median ms", "median × host")


def history(count: int) -> list[ModelMessage]:
    """Build a tool-using conversation of about `count` messages of some 35 tokens each."""
    made: list[ModelMessage] = []
    for turn in range(count // 4):
        path = f"src/module_{turn}.py"
        made += [
            ModelRequest(parts=[UserPromptPart(f"Question {turn}: what does {path} do, and who calls it? " * 2)]),
            ModelResponse(parts=[ToolCallPart("read", {"path": path}, tool_call_id=f"call-{turn}")]),
            ModelRequest(
                parts=[ToolReturnPart("read", f"def f_{turn}(): return {turn}\n" * 6, tool_call_id=f"call-{turn}")]
            ),
            ModelResponse(parts=[TextPart(f"{path} defines f_{turn}, which returns {turn}. " * 3)]),
        ]
    return made


def ways(folder: Path) -> dict[str, Callable[[], list[Any]]]:
    """Return the ways to send a history, by name, as functions that build their capabilities."""
    ways: dict[str, Callable[[], list[Any]]] = {
        HOST: list,
        "ProcessHistory doing nothing": lambda: [ProcessHistory(same)],
        "ours, raw sent": lambda: [_ours(folder / "raw.db", RAW)],
        "ours, raw sent, record off": lambda: [_ours(None, RAW, record="off")],
        f"ours, a view of {VIEW:,} tokens": lambda: [_ours(folder / "view.db", VIEW)],
    }
    with suppress(ImportError):
        summarization = import_module("pydantic_ai_summarization")
        ways["summarization-pydantic-ai, sliding window"] = lambda: [
            summarization.SlidingWindowCapability(trigger=("tokens", VIEW), keep=("tokens", VIEW // 2))
        ]
    with suppress(ImportError):
        harness = import_module("pydantic_ai_harness.compaction")
        ways["harness, sliding window"] = lambda: [
            harness.SlidingWindowCompaction(max_tokens=VIEW, keep_tokens=VIEW // 2)
        ]
    return ways


def _ours(store: Path | None, budget: int, **more: Any) -> ContextCompiler:
    return ContextCompiler("extractive", budget=budget, model="none", store=store, system=None, **more)


async def measured(count: int, folder: Path, repeat: int) -> list[list[str]]:
    """Measure all ways on one history, interleaved: rows of a table, each compared with the host alone."""
    raw = ModelMessagesTypeAdapter.dump_json(history(count))
    seen: dict[str, int] = {}
    agents = {name: _agent(name, make(), seen) for name, make in ways(folder).items()}
    cold = {name: await _once(agent, ModelMessagesTypeAdapter.validate_json(raw)) for name, agent in agents.items()}
    messages = ModelMessagesTypeAdapter.validate_json(raw)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in agents}
    gc.freeze()  # so that no collection walks the objects that exist already
    for turn in range(repeat + 1):
        for name, agent in agents.items():
            taken = await _once(agent, messages)
            if turn:
                times[name].append(taken)
    medians = {
        name: (statistics.median(wall for wall, _ in taken), statistics.median(cpu for _, cpu in taken))
        for name, taken in times.items()
    }
    host_wall, host_cpu = medians[HOST]
    rows: list[list[str]] = []
    for name, (wall, cpu) in medians.items():
        figures = (f"{wall:.1f}", f"{wall / host_wall:.2f}", f"{cpu:.1f}", f"{cpu / host_cpu:.2f}")
        rows.append([f"{count:,}", name, f"{seen[name]:,}", *figures, f"{cold[name][0]:.0f}"])
    return rows


def _agent(name: str, capabilities: list[Any], seen: dict[str, int]) -> Agent[None, str]:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen[name] = len(messages)
        return ModelResponse(parts=[TextPart("done")])

    return Agent(FunctionModel(answer), capabilities=capabilities)


async def _once(agent: Agent[None, str], messages: list[ModelMessage]) -> tuple[float, float]:
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    await agent.run("And the next one?", message_history=messages)
    return (time.perf_counter() - wall) * 1000, (time.process_time() - cpu) * 1000


def conversation(data: Data, count: int) -> tuple[list[ModelMessage], list[str]]:
    """Return at most `count` messages that end with an answer, and questions about them."""
    messages: list[ModelMessage] = []
    questions: list[str] = []
    for source in data.conversations("locomo" if "locomo" in data.asked else GENERATED):
        questions += [question.text for question in source.questions if len(messages) + question.after < count]
        messages += source.messages
    messages = messages[:count]
    while isinstance(messages[-1], ModelRequest):
        messages.pop()
    random.Random(recall.SEED).shuffle(questions)
    return messages, questions


async def measured_blocks(data: Data, budget: int, count: int, asked: int) -> dict[str, float]:
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
    asking = blocks[WARM:]
    return {
        "budget": budget,
        "messages": len(messages),
        "blocks": len(asking),
        "median": statistics.median(asking),
        "p90": statistics.quantiles(asking, n=10)[-1],
        "first": blocks[0],
        "host": statistics.median(hosts[WARM:]),
    }


def _answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return ModelResponse(parts=[TextPart("I see.")])


@contextmanager
def _timing() -> Generator[list[float]]:
    """Collect the CPU milliseconds of each search for a block."""
    spent: list[float] = []

    def timed(search: Callable[..., Any]) -> Callable[..., Any]:
        def searching(*args: Any, **options: Any) -> Any:
            begun = time.process_time()
            try:
                return search(*args, **options)
            finally:
                spent.append(1000 * (time.process_time() - begun))

        return searching

    with patch.multiple(
        respond,
        find_first_block=timed(respond.find_first_block),
        lacks_room_for_block=timed(respond.lacks_room_for_block),
    ):
        yield spent


def block_table(budgets: Sequence[int], messages: int, questions: int) -> str:
    """Measure recall blocks within each budget, and format a table."""
    rows: list[list[str]] = []
    for budget in budgets:
        row = asyncio.run(measured_blocks(at_hand(False, 1), budget, messages, questions))
        times = [f"{row[name]:.1f}" for name in ("median", "p90", "first", "host")]
        counts = [f"{row[name]:,}" for name in ("budget", "messages", "blocks")]
        rows.append([*counts, *times, f"{row['median'] / row['host']:.2f}"])
    return markdown(BLOCKS_HEAD, rows)


def main() -> None:
    options = arguments(__doc__, sizes="100,1000,10000", repeat=9, blocks=False, budgets="4000,16000", questions=100)
    if options.blocks:
        budgets = [int(budget) for budget in options.budgets.split(",")]
        print(f"{machine()}\n\n{block_table(budgets, 2_000, options.questions)}")
        return
    rows: list[list[str]] = []
    for size in map(int, options.sizes.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            print(f"{size:,} messages …", file=sys.stderr)
            rows += asyncio.run(measured(size, Path(folder), options.repeat))
    print(f"{machine()}\n\n{markdown(HEAD, rows)}")


if __name__ == "__main__":
    main()
