"""Time of a request through the host, with this package, without it, and with a peer.

    python -m benchmarks.overhead [--sizes 100,1000,10000] [--repeat 9]

Every row is one `Agent.run` with a model that answers at once, on the same tool-using history. The runs of all rows are
interleaved; the table shows medians and their ratio to the host alone. It shows CPU time as well as wall time, because
machines are shared. `cold` is the first request with messages that were just deserialised. Peers
(`summarization-pydantic-ai`, `pydantic-ai-harness`) are left out if they are not installed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

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

from benchmarks.machine import machine
from context_compiler import ContextCompiler, TokenCounter, compile_view

VIEW, RAW = 8_000, 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Figures of one way to send one history."""

    messages: int
    way: str
    wall_ms: float
    cpu_ms: float
    cold_ms: float | None
    sent: int
    """Messages that reached the model."""


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
    found: dict[str, Callable[[], list[Any]]] = {
        "the host alone": list,
        "ProcessHistory doing nothing": lambda: [ProcessHistory(_same)],
        "ours, raw sent": lambda: [_ours(folder / "raw.db", RAW)],
        "ours, raw sent, record off": lambda: [_ours(None, RAW, record="off")],
        f"ours, a view of {VIEW:,} tokens": lambda: [_ours(folder / "view.db", VIEW)],
    }
    found |= _peers()
    return found


def _same(messages: list[ModelMessage]) -> list[ModelMessage]:
    return messages


def _ours(store: Path | None, budget: int, **more: Any) -> ContextCompiler:
    return ContextCompiler("extractive", budget=budget, model="none", store=store, system=None, **more)


def _peers() -> dict[str, Callable[[], list[Any]]]:
    """Return the sliding windows of the installed peers."""
    found: dict[str, Callable[[], list[Any]]] = {}
    with suppress(ImportError):
        summarization = import_module("pydantic_ai_summarization")
        found["summarization-pydantic-ai, sliding window"] = lambda: [
            summarization.SlidingWindowCapability(trigger=("tokens", VIEW), keep=("tokens", VIEW // 2))
        ]
    with suppress(ImportError):
        harness = import_module("pydantic_ai_harness.compaction")
        found["harness, sliding window"] = lambda: [
            harness.SlidingWindowCompaction(max_tokens=VIEW, keep_tokens=VIEW // 2)
        ]
    return found


async def measured(count: int, folder: Path, repeat: int) -> list[Row]:
    """Measure all ways on one history, interleaved."""
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
    return [
        Row(
            messages=count,
            way=name,
            wall_ms=statistics.median(wall for wall, _ in taken),
            cpu_ms=statistics.median(cpu for _, cpu in taken),
            cold_ms=cold[name][0],
            sent=seen[name],
        )
        for name, taken in times.items()
    ]


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


def imports(repeat: int = 5) -> tuple[float, float]:
    """Return milliseconds to import `pydantic_ai`, and the extra ones for `context_compiler` with its main names."""
    code = "import time; a=time.perf_counter(); import pydantic_ai; b=time.perf_counter(); "
    code += "import context_compiler; c=time.perf_counter(); print(b-a, c-b)"
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(repeat)
    ]
    pairs = [tuple(map(float, run.stdout.split())) for run in runs]
    return tuple(statistics.median(pair[side] for pair in pairs) * 1000 for side in (0, 1))  # pyright: ignore[reportReturnType]


async def half_a_million() -> tuple[int, float]:
    """Return the tokens of a long history, and the seconds to view it, cold and without a model."""
    messages = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(history(10_860)))
    started = time.perf_counter()
    view = await compile_view(messages, "extractive", 16_000, system=None, counter=TokenCounter())
    assert view.tokens <= 16_000 and view.record is not None
    return view.record.tokens_raw, time.perf_counter() - started


def table(rows: list[Row]) -> str:
    """Format the rows as markdown, each compared with the host alone on the same history."""
    alone = {row.messages: row for row in rows if row.way == "the host alone"}
    lines = [
        "| messages | way | reach the model | wall ms | × host | CPU ms | × host | cold ms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        host = alone[row.messages]
        figures = (
            f"{row.wall_ms:.1f} | {row.wall_ms / host.wall_ms:.2f} | {row.cpu_ms:.1f} | {row.cpu_ms / host.cpu_ms:.2f}"
        )
        lines.append(f"| {row.messages:,} | {row.way} | {row.sent:,} | {figures} | {row.cold_ms:.0f} |")
    return "\n".join(lines)


async def main() -> None:
    """Measure and print."""
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--sizes", default="100,1000,10000", help="lengths of the histories, in messages")
    given.add_argument("--repeat", type=int, default=9, help="measured runs per row")
    asked = given.parse_args()
    rows: list[Row] = []
    for size in map(int, asked.sizes.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            print(f"{size:,} messages …", file=sys.stderr)
            rows += await measured(size, Path(folder), asked.repeat)
    print(f"{machine()}\n\n{table(rows)}\n")
    if not _peers():
        print("No peers: neither summarization-pydantic-ai nor pydantic-ai-harness is installed.\n")
    host, ours = imports()
    print(f"`import context_compiler`: {ours:.0f} ms over `import pydantic_ai` ({host:.0f} ms).")
    tokens, seconds = await half_a_million()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"A view of {tokens:,} tokens, cold, without a model: {seconds:.1f} s; {peak:.2f} GiB at most in this process."
    )


if __name__ == "__main__":
    asyncio.run(main())
