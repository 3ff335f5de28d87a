"""One long-running process: memory and open files must not grow."""

from __future__ import annotations

import gc
import os
from functools import lru_cache
from pathlib import Path
from typing import cast

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel

from benchmarks.campaign.case import Case
from benchmarks.campaign.drawn import NAMED, Drawn
from context_compiler import ContextCompiler, Recall
from context_compiler.cache import Memo
from context_compiler.errors import BudgetError

REQUESTS = 4_000
TALKS, TURNS = 24, 20
"""Concurrent conversations, and turns after which a new conversation replaces each."""
GROWTH_KB = 16_000
"""Allowed growth in the last half of the requests, because allocators return little memory."""
SMALLER = 50
"""Divisor of the room of each cache, so that caches are full, and grow no more, in the first half of the requests."""

_Cached = type(lru_cache(maxsize=1)(len))


def _resident_kb() -> int:
    for cached in gc.get_objects():
        if type(cached) is _Cached and cached.cache_info().maxsize:  # fills later than the soak ends, and no further
            cached.cache_clear()
    gc.collect()
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1_024


async def soak(case: Case) -> None:
    """Send some thousand requests of many conversations through one compiler, in one process."""
    if not Path("/proc/self/statm").exists():
        case.count("not measured: no /proc")
        return
    drawn = Drawn(case.random)
    errors: list[Exception] = []
    writer = FunctionModel(lambda messages, info: ModelResponse(parts=[TextPart(f"- Goal: {NAMED}. {drawn.text(40)}")]))
    path = case.folder / "context.db"
    ours = ContextCompiler(
        budget=2_000, model=writer, store=path, system=None, on_error=errors.append, record_timeout=60
    )
    model = FunctionModel(lambda messages, info: ModelResponse(parts=[TextPart(drawn.text(200))]))
    agent = Agent(model, capabilities=[ours, Recall(transcript=ours.transcript)])
    for cache in map(vars, [cast("object", thing) for thing in gc.get_objects() if type(thing) is Memo]):
        cache["_room"] = max(1, cache["_room"] // SMALLER)
    histories: dict[int, list[ModelMessage]] = {}
    requests = max(60, int(REQUESTS * min(1.0, case.scale)))
    marks: list[tuple[int, int]] = []
    for number in range(requests):
        lane = number % TALKS
        talk = f"{lane}-{number // (TALKS * TURNS)}"
        history = histories.get(lane, []) if (number // TALKS) % TURNS else []
        _, prompt = drawn.prompt()
        histories[lane] = (await agent.run(prompt, message_history=history, conversation_id=talk)).all_messages()
        if number in (requests // 2, requests - 1):
            marks.append((_resident_kb(), len(os.listdir("/proc/self/fd"))))
    (half, files), (end, more_files) = marks
    case.count("requests of a soak", requests)
    case.count("kB that memory grew in the last half of the soak", max(0, end - half))
    full = requests == REQUESTS  # in the half of a shorter soak, the caches are not full yet
    grown = end - half if full else 0
    case.check(grown <= GROWTH_KB, "memory that grows", f"from {half:,} to {end:,} kB in {requests // 2} requests")
    case.check(more_files <= files, "open files that grow", f"from {files} to {more_files}")
    others = [error for error in errors if not isinstance(error, BudgetError)]  # of prompts that are too long
    case.check(not others, "unexpected errors", lambda: repr(others[:1]))
