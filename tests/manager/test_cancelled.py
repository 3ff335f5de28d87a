"""A run that is cancelled ends at once, and its turn is in nobody's way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic_ai import Agent

from context_compiler.manager import ContextManager, Match, VolatileMemory
from tests.manager.fakes import Scribe, managed
from tests.support.agents import Talker


class Slow(VolatileMemory):
    """A memory that does not find anything until it is `free`."""

    def __init__(self) -> None:
        super().__init__()
        self.free, self.asked = asyncio.Event(), asyncio.Event()

    async def search(self, query: str, limit: int) -> list[Match]:
        self.asked.set()
        await self.free.wait()
        return await super().search(query, limit)


async def cancelled(manager: ContextManager, prompt: str, begun: asyncio.Event | None = None) -> None:
    """Begin a run, cancel it once it has `begun` to wait, and wait for its end."""
    agent = Agent(Talker("never").model, capabilities=[manager.as_capability()])
    run = asyncio.create_task(agent.run(prompt))
    if begun is None:
        for _ in range(100):
            await asyncio.sleep(0)
    else:
        await begun.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run


def agent_of(manager: ContextManager, **more: Any) -> tuple[Agent[None, str], Talker]:
    talker = Talker("Noted. " + "word " * 60)
    return Agent(talker.model, capabilities=[manager.as_capability()], **more), talker


async def test_a_cancelled_run_does_not_wait_for_a_slow_memory() -> None:
    memory = Slow()
    async with asyncio.timeout(300):
        await cancelled(managed(memory=memory, versioned=False), "first", memory.asked)


async def test_turns_after_a_cancelled_one_are_summarised() -> None:
    memory, scribe = Slow(), Scribe("The plan was made.")
    manager = managed(scribe, memory, versioned=False, max_tokens=600, recent_turns_to_keep=2)
    await cancelled(manager, "the cancelled one", memory.asked)
    memory.free.set()
    agent, talker = agent_of(manager)
    for number in range(10):
        await agent.run(f"step {number}: go on")
    assert "The plan was made." in talker.last.text
    assert manager.turn_count == 11


async def test_the_prompt_of_a_cancelled_run_is_still_sent() -> None:
    memory = Slow()
    manager = managed(memory=memory, versioned=False)
    await cancelled(manager, "the cancelled one", memory.asked)
    memory.free.set()
    agent, talker = agent_of(manager)
    await agent.run("the next one")
    assert "the cancelled one" in talker.last.text


async def test_a_cancelled_run_does_not_wait_for_the_summary_of_another() -> None:
    waiting = asyncio.Event()

    async def scribe(prompt: str) -> str:
        waiting.set()
        await asyncio.Event().wait()
        return "never"

    manager = managed(scribe, versioned=False, recent_turns_to_keep=1)
    for number in range(3):
        await manager.process_turn(f"question {number} " + "why " * 50)
    summing = asyncio.create_task(manager.summarize())
    await waiting.wait()
    async with asyncio.timeout(300):
        await cancelled(manager, "beside it")
    summing.cancel()
    await asyncio.wait([summing])
