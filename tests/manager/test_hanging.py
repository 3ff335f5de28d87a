"""A memory or repository that hangs stops neither a turn nor a run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from pydantic_ai import Agent

from context_compiler.errors import ContextMemoryError
from context_compiler.manager import Match, Saved, Score, Snapshot, VolatileMemory
from context_compiler.record.values import Compile
from tests.manager.fakes import Scribe, managed, talk
from tests.support.agents import Talker

ROLLBACK = ("checkout", "session_at")
STEPS = ("search", "remember", "commit", "keep", "latest", *ROLLBACK)


class Hanging(VolatileMemory):
    """A memory of which one method never returns."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.method = method

    async def _wait(self, name: str) -> None:
        if name == self.method:
            await asyncio.Event().wait()

    async def search(self, query: str, limit: int) -> list[Match]:
        await self._wait("search")
        return await super().search(query, limit)

    async def remember(self, text: str) -> str:
        await self._wait("remember")
        return await super().remember(text)

    async def commit(self, message: str, author: str = "context-manager", session: Snapshot | None = None) -> str:
        await self._wait("commit")
        return await super().commit(message, author, session)

    async def keep(self, session: Snapshot, score: Score | None = None, compile: Compile | None = None) -> None:
        await self._wait("keep")
        await super().keep(session, score, compile)

    async def latest(self) -> Saved | None:
        await self._wait("latest")
        return await super().latest()

    async def checkout(self, commit: str) -> None:
        await self._wait("checkout")
        await super().checkout(commit)

    async def session_at(self, commit: str) -> Saved | None:
        await self._wait("session_at")
        return await super().session_at(commit)


@pytest.fixture(autouse=True)
async def bounded() -> AsyncIterator[None]:
    async with asyncio.timeout(300):
        yield


@pytest.mark.parametrize("method", STEPS)
async def test_a_turn_continues_and_names_the_call_that_hangs(method: str) -> None:
    heard: list[Exception] = []
    seconds = 3.0 if method == "remember" else 0.05  # the summary that is to be remembered has to be made in time
    manager = managed(
        Scribe("They talked."),
        Hanging(method),
        timeout=seconds,
        max_tokens=300,
        recent_turns_to_keep=1,
        checkpoint_interval=1,
        auto_rollback=method in ROLLBACK,
        quality_threshold=1.0,
        on_error=heard.append,
    )
    await talk(manager, 3, words=60 if method == "remember" else 5)
    assert manager.turn_count == 3
    assert any(f"{method} took longer than {seconds:g} seconds" in str(error) for error in heard)


@pytest.mark.parametrize("method", STEPS)
async def test_an_agent_answers_although_the_memory_hangs(method: str) -> None:
    manager = managed(
        memory=Hanging(method),
        timeout=0.05,
        checkpoint_interval=1,
        auto_rollback=method in ROLLBACK,
        quality_threshold=1.0,
    )
    agent = Agent(Talker("ok.").model, capabilities=[manager.as_capability()])
    for _ in range(2):
        assert (await agent.run("Hello.")).output == "ok."


async def test_a_hanging_memory_raises_in_a_direct_call() -> None:
    with pytest.raises(ContextMemoryError, match="search took longer"):
        await managed(memory=Hanging("search"), timeout=0.05).ground_query("heron?")
    with pytest.raises(ContextMemoryError, match="commit took longer"):
        await managed(memory=Hanging("commit"), timeout=0.05).checkpoint()


@pytest.mark.parametrize("method", ROLLBACK)
async def test_a_hanging_rollback_raises_and_the_session_continues(method: str) -> None:
    manager = managed(memory=Hanging(method), timeout=0.05, checkpoint_interval=99)
    commit = await manager.checkpoint()
    await talk(manager, 1)
    with pytest.raises(ContextMemoryError, match=f"{method} took longer"):
        await manager.rollback()
    assert manager.next_checkpoint == commit
    await talk(manager, 1)
    assert manager.turn_count == 2
