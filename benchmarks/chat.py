"""Overhead of a chat without its model: milliseconds to the first piece of an answer, and seconds to the prompt.

    python benchmarks/chat.py [--messages 20000] [--turns 200]

The model answers at once, so only our own time is measured. "Host alone" is the same agent with the same history and
no chat around it. Time to the prompt is measured on a pseudo-terminal, from the start of the process.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import pty
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import (
    AgentStreamEvent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    UserPromptPart,
)

from context_compiler import SQLiteStore
from context_compiler.chat import ChatSession, ScriptedModel, Transcript
from context_compiler.chat.reconcile import visible_turns
from context_compiler.messages.history import Reader
from context_compiler.tokens import TokenCounter

ROOT = Path(__file__).parents[1]
PROMPT = "›".encode()
GOAL_FIRST, GOAL_OPEN = 10.0, 1.0
WARM, ROUNDS = 5, 40


def conversation(messages: int) -> list[ModelMessage]:
    """Return a history of the given number of messages."""
    made: list[ModelMessage] = []
    for number in range(messages // 2):
        prompt = f"Question {number} about service {number % 17}: why does its deploy fail at step {number % 9}? " * 3
        made.append(ModelRequest(parts=[UserPromptPart(prompt, timestamp=datetime(2026, 1, 1, tzinfo=UTC))]))
        made.append(ModelResponse(parts=[TextPart(f"Answer {number}: the lock of job {number * 7} is held. " * 6)]))
    return made


async def keep(folder: Path, messages: Sequence[ModelMessage]) -> None:
    """Store a conversation where a chat finds it."""
    store = SQLiteStore(folder / "system" / "context.db")
    await store.archive("main", "", Reader(TokenCounter(len)).read(messages))
    await store.close()
    transcript = Transcript(folder / "system" / "Chat_Sessions", "main")
    transcript.repair()
    transcript.append(visible_turns(messages), datetime(2026, 1, 1, tzinfo=UTC))
    transcript.close()


async def alone(agent: Agent[Any, Any], messages: list[ModelMessage], text: str) -> float:
    """Return milliseconds to the first piece of an answer of the host alone, and add the answer to the history."""
    first: list[float] = []

    async def heard(ctx: RunContext[Any], events: AsyncIterable[AgentStreamEvent]) -> None:
        async for event in events:
            if not first and isinstance(event, PartStartEvent | PartDeltaEvent):
                first.append(time.perf_counter())

    began = time.perf_counter()
    result = await agent.run(text, message_history=list(messages), event_stream_handler=heard)
    messages[:] = result.all_messages()
    return (first[0] - began) * 1000


async def in_chat(chat: ChatSession, text: str) -> float:
    """Return milliseconds to the first piece of an answer in a chat."""
    result = await chat.say(text)
    return (result.first or 0.0) * 1000


async def first_pieces(folder: Path, turns: int) -> dict[str, list[float]]:
    """Return milliseconds to the first piece, for the host alone and for both modes."""
    messages = conversation(2 * turns)
    os.chdir(folder)
    agent = Agent(ScriptedModel(0))
    chats = {
        name: ChatSession(agent, endless=endless, budget=1_000_000, store=f"{name}.db", folder=name)
        for name, endless in (("normal mode", False), ("Endless, nothing compiled", True))
    }
    found: dict[str, list[float]] = {"host alone": [], **{name: [] for name in chats}}
    for chat in chats.values():
        await chat.storage.store.archive("main", "", Reader(TokenCounter(len)).read(messages))
        await chat.open()
    for at in range(WARM + ROUNDS):
        found["host alone"].append(await alone(agent, messages, f"And question {at}?"))
        for name, chat in chats.items():
            found[name].append(await in_chat(chat, f"And question {at}?"))
    for chat in chats.values():
        await chat.close()
    return {name: values[WARM:] for name, values in found.items()}


def prompted(folder: Path) -> tuple[float, float]:
    """Return seconds from process start to the prompt, and to the first piece of an answer to text typed at once."""
    master, slave = pty.openpty()
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "context_compiler", "chat", "--model", "scripted:0"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PROMPT_TOOLKIT_NO_CPR": "1", "TERM": "xterm"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    try:
        prompt = awaited(master, PROMPT) - began
        os.write(master, b"Hello.\r")
        return prompt, awaited(master, "On “Hello".encode()) - began
    finally:
        process.kill()
        process.wait(10)
        os.close(master)
        os.close(slave)


def awaited(file: int, words: bytes, seconds: float = 60.0) -> float:
    """Return the time at which words have appeared on a terminal."""
    text, end = b"", time.perf_counter() + seconds
    while words not in text and time.perf_counter() < end:
        if select.select([file], [], [], 0.05)[0]:
            text += os.read(file, 65_536)
    return time.perf_counter()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--messages", type=int, default=20_000)
    options.add_argument("--turns", type=int, default=200)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(first_pieces(Path(folder), given.turns))
    base = statistics.median(found["host alone"])
    print(f"first piece, {given.turns} turns so far: host alone {base:.1f} ms")
    for name, values in list(found.items())[1:]:
        added = statistics.median(values) - base
        print(f"  {name}: {added:+.1f} ms (goal {GOAL_FIRST:g}), slowest {max(values) - base:+.1f} ms")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        asyncio.run(keep(folder, conversation(given.messages)))
        process = [prompted(folder) for _ in range(3)]
    print(f"opening {given.messages:,} messages (goal {GOAL_OPEN:g} s):")
    print(f"  from the start of the process to the prompt: {statistics.median(one[0] for one in process):.2f} s")
    print(
        f"  to the first piece of an answer, prompt typed at once: {statistics.median(one[1] for one in process):.2f} s"
    )


if __name__ == "__main__":
    main()
