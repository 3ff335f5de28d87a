"""A session that several threads and event loops use: each turn waits for the one before, and none is lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from pydantic_ai import Agent

from context_compiler.manager import Match, VolatileMemory
from tests.manager.fakes import managed
from tests.support.agents import Talker

LONG_S = 30.0


class Slow(VolatileMemory):
    """A memory that searches only while it is `free`."""

    def __init__(self) -> None:
        super().__init__()
        self.free, self.asked = threading.Event(), threading.Semaphore(0)

    async def search(self, query: str, limit: int) -> list[Match]:
        self.asked.release()
        await asyncio.sleep(0)
        while not self.free.is_set():
            await asyncio.sleep(0.001)
        return []


def in_threads(memory: Slow, works: Sequence[Callable[[], Coroutine[Any, Any, Any]]]) -> None:
    """Do each work in a thread and a loop of its own, the later ones while the first one searches."""
    ended: list[object] = []
    threads = [
        threading.Thread(target=lambda work=work: ended.append(asyncio.run(work())), daemon=True) for work in works
    ]
    threads[0].start()
    memory.asked.acquire()
    for thread in threads[1:]:
        thread.start()
        thread.join(0.1)
    memory.free.set()
    for thread in threads:
        thread.join(LONG_S)
    assert len(ended) == len(works)


def test_runs_in_several_threads_wait_for_one_another() -> None:
    memory, talker = Slow(), Talker("Fine.")
    manager = managed(memory=memory, versioned=False)
    agent = Agent(talker.model, capabilities=[manager.as_capability()])
    in_threads(memory, [partial(agent.run, f"What is {name} called?") for name in ("alpha", "beta", "gamma")])
    assert manager.turn_count == 3 and len(manager.transcript()) == 6


def test_one_event_loop_after_another_uses_a_session() -> None:
    errors: list[Exception] = []
    manager = managed(memory=(memory := Slow()), versioned=False, on_error=errors.append)
    memory.free.set()
    agent = Agent(Talker("Fine.").model, capabilities=[manager.as_capability()])

    async def two() -> None:
        await asyncio.gather(agent.run("What is alpha?"), agent.run("What is beta?"))

    for _ in range(3):
        asyncio.run(two())
    assert (manager.turn_count, errors) == (6, [])


def test_a_loop_that_stopped_or_closed_while_it_waited_keeps_no_other_from_its_turn() -> None:
    memory = Slow()
    manager = managed(memory=memory, versioned=False)
    left = [asyncio.new_event_loop() for _ in range(2)]

    async def first() -> None:
        turn = asyncio.create_task(manager.process_turn("What is the first?"))
        while not memory.asked.acquire(blocking=False):
            await asyncio.sleep(0)
        await asyncio.to_thread(leave)
        memory.free.set()
        await turn

    def leave() -> None:
        for loop in left:
            tasks.append(loop.create_task(manager.process_turn("What is the one that was left?")))
            loop.run_until_complete(asyncio.sleep(0))
        left[0].close()

    tasks: list[asyncio.Task[Any]] = []
    asyncio.run(asyncio.wait_for(first(), LONG_S))
    asyncio.run(asyncio.wait_for(manager.process_turn("What is the next?"), LONG_S))
    left[1].run_until_complete(asyncio.wait_for(tasks[1], LONG_S))
    left[1].close()
    assert manager.turn_count == 3


async def test_a_turn_that_is_cancelled_as_it_begins_lets_the_next_begin() -> None:
    memory = Slow()
    manager = managed(memory=memory, versioned=False)
    turns = [asyncio.create_task(manager.process_turn(f"What is {name}?")) for name in ("alpha", "beta", "gamma")]
    await asyncio.sleep(0)
    memory.free.set()
    await turns[0]
    turns[1].cancel()
    await asyncio.wait_for(turns[2], LONG_S)
    assert turns[1].cancelled() and manager.turn_count == 2
