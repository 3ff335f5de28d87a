"""Time that the layers take in a session of 1,000 turns and 10,000 entities.

    python benchmarks/layers.py [--turns 1000] [--entities 10000] [--times 20]

Each turn adds ten entities; one in fifty is retained, one in a hundred was generated and never saved, one in forty was
demoted. A manager's session grows to 10,000 messages. Times are the median and the slowest, in milliseconds.

A second table shows the CPU time of turns that mention 1, 10 or 100 of 100 to 100,000 entities, all of which stay in
the session.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from context_compiler.layers import (
    NEEDS,
    Layers,
    SessionIdRegistry,
    conversation_of,
    from_json,
    layer_texts,
    retention,
    summarise_turn,
    to_json,
)
from context_compiler.layers.context import build_context, layer_block, node_template
from context_compiler.manager import ContextConfig, ContextManager, SQLiteMemory
from context_compiler.record.store import MemoryStore, SQLiteStore
from context_compiler.template import TemplateLibrary
from context_compiler.tokens import TokenCounter

Work = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One repeated operation and its goal."""

    what: str
    work: Work
    goal: float | None = None
    """Milliseconds; None if there is no goal."""
    beside: str = ""
    """Work that the goal excludes."""


def session(turns: int, entities: int) -> dict[str, Any]:
    """Return the state after a number of turns, with a number of entities."""
    registry, each = SessionIdRegistry(), max(1, entities // turns)
    number = 0
    for turn in range(1, turns + 1):
        registry.set_turn(turn)
        for _ in range(each):
            number += 1
            name = f"Recipe number {number}"
            if number % 100 == 0:
                registry.register_generated("recipes", name, {"name": name, "minutes": number % 90})
                continue
            ref = registry.register_read("recipes", number, name, data={"id": number, "name": name})
            if number % 50 == 1:
                registry.retain(ref, "the user comes back to it")
            elif number % 40 == 2:
                registry.demote(ref)
    registry.set_turn(turns + 1)
    stored = asyncio.run(conversation(turns))
    steps = [{"type": "read", "subdomain": "recipes", "result": [{"id": number, "name": "x"}]}]
    return {"id_registry": registry, "current_turn": turns + 1, "conversation": stored, "steps": steps}


async def conversation(turns: int) -> Any:
    """Return the stored conversation after a number of turns; it has no entities."""
    stored = conversation_of(None)
    for turn in range(1, turns + 1):
        said = {"user_message": f"Question {turn}, please? " * 5, "final_response": f"Answer {turn}. " * 20}
        think = {"decision": "plan_direct", "goal": f"Answer question {turn}"}
        stored = await summarise_turn({**said, "think_output": think, "current_turn": turn, "conversation": stored})
    return stored


def builders(state: dict[str, Any]) -> Iterator[Timed]:
    """Yield the operations that build a node's context: as values, as texts, and as the block of a view."""
    counter, library = TokenCounter(), TemplateLibrary(system=None)
    for node in NEEDS:
        yield Timed(what=f"build_{node}_context", work=lambda node=node: build_context(node, state), goal=20)
    for node in NEEDS:
        yield Timed(what=f"texts of {node}", work=lambda node=node: layer_texts(node, state))
    for node in NEEDS:
        template = node_template(node, library)
        yield Timed(
            what=f"block of {node}, 2,000 tokens",
            work=lambda node=node, template=template: layer_block(node, state, template, room=2_000, counter=counter),
        )


def stored(state: dict[str, Any]) -> Iterator[Timed]:
    """Yield the operations at the end of a turn and the beginning of the next."""
    asleep = {**state, "id_registry": state["id_registry"].to_dict()}
    text = to_json(run(lambda: summarise_turn(state)))
    yield Timed(what="build_think_context, registry as stored", work=lambda: build_context("think", asleep))
    yield Timed(what="end of a turn: summarise", work=lambda: run(lambda: summarise_turn(state)))
    yield Timed(what=f"as JSON ({len(text) / 2**20:.1f} MiB)", work=lambda: to_json(run(lambda: summarise_turn(state))))
    yield Timed(what="back from JSON, with its registry", work=lambda: awake(text))
    yield Timed(what="a whole turn without nodes, in memory", work=lambda: run(lambda: turn(text)))


def whole_turns(state: dict[str, Any]) -> Iterator[Timed]:
    """Yield turns of one session in a file: each reads five entities, mentions one, and gives each node its block."""
    loop = asyncio.new_event_loop()
    counter, library = TokenCounter(), TemplateLibrary(system=None)
    templates = {node: node_template(node, library) for node in NEEDS}
    with tempfile.TemporaryDirectory() as folder:
        store = SQLiteStore(Path(folder) / "context.db")
        layers, said = Layers(store), count(10_000_000)

        async def begin() -> None:
            await store.save_layers("s", "", to_json(await summarise_turn(state)), after=0)

        async def one() -> None:
            async with layers.turn("s", "Question?") as now:
                for number in range(5):
                    id = next(said)
                    now.registry.register_read("recipes", id, f"Recipe {number}", data={"id": id, "name": "x"})
                now.registry.touch("recipe_7")
                for node, template in templates.items():
                    layer_block(node, now.state, template, room=4_000, counter=counter)
                now.answered("Answer.")

        loop.run_until_complete(begin())
        yield Timed(what="a whole turn with four blocks, in a file", work=partial(_done, loop, one))
        loop.run_until_complete(layers.close())
    loop.close()


MENTIONED = ((100, 10), (1_000, 10), (10_000, 1), (10_000, 10), (10_000, 100), (100_000, 10))
"""Numbers of entities that exist, and of entities that each turn mentions."""


def turns_by_size(times: int) -> Iterator[tuple[str, ...]]:
    """Yield table rows: CPU time of turns with four blocks in a file, by entities that exist and are mentioned."""
    kept, retention.MAX_ENTITIES = retention.MAX_ENTITIES, 10**9
    try:
        for exist, mentioned in MENTIONED:
            yield f"{exist:,}", f"{mentioned:,}", *asyncio.run(cpu_of_turns(exist, mentioned, times))
    finally:
        retention.MAX_ENTITIES = kept


async def cpu_of_turns(exist: int, mentioned: int, times: int) -> tuple[str, ...]:
    """Return CPU milliseconds of a turn (median, slowest, first of a process), and kilobytes written per turn."""
    counter, library = TokenCounter(), TemplateLibrary(system=None)
    templates = {node: node_template(node, library) for node in NEEDS}
    numbers = count()

    async def one(layers: Layers) -> float:
        started = time.process_time()
        async with layers.turn("s", "Question?") as now:
            for _ in range(mentioned):
                now.registry.touch(f"recipe_{next(numbers) * 97 % exist + 1}")
            for node, template in templates.items():
                layer_block(node, now.state, template, room=4_000, counter=counter)
            now.answered("Answer.")
        return (time.process_time() - started) * 1000

    with tempfile.TemporaryDirectory() as folder:
        store = SQLiteStore(Path(folder) / "context.db")
        async with Layers(store).turn("s", "Question?") as now:
            for number in range(exist):
                now.registry.register_read("recipes", number, f"Recipe number {number}")
        layers = Layers(store)
        first = await one(layers)
        for _ in range(5):  # until the entities of the first turn are no longer active
            await one(layers)
        taken = [await one(layers) for _ in range(times)]
        before = await pages(store)
        await one(layers)
        written = sum(len(body) for name, body in (await pages(store)).items() if name not in before)
        await store.close()
    return f"{statistics.median(taken):.1f}", f"{max(taken):.1f}", f"{first:.1f}", f"{written / 1000:.0f}"


async def pages(store: SQLiteStore) -> dict[str, str]:
    """Return the bodies of the entity pages in a store, by name."""
    query = "SELECT name, body FROM layer_pages"
    return {row[0]: row[1] for row in await store.perform(lambda db: db.execute(query).fetchall())}


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    """Run a coroutine in a new event loop and return its result."""

    async def done() -> Any:
        return await work()

    return asyncio.run(done())


def awake(text: str) -> SessionIdRegistry:
    return SessionIdRegistry.from_dict(from_json(text)["id_registry"])


async def turn(text: str) -> None:
    store = MemoryStore()
    await store.save_layers("s", "", text, after=0)
    async with Layers(store).turn("s", "Question?") as now:
        now.answered("Answer.")


def managed(state: dict[str, Any]) -> Iterator[Timed]:
    """Yield a turn, a search and a checkpoint of a manager on a file without a model: early, and at 10,000 messages."""
    loop = asyncio.new_event_loop()
    with tempfile.TemporaryDirectory() as folder:
        memory = SQLiteMemory("s", Path(folder) / "context.db")
        config = ContextConfig(auto_summarize=False, auto_checkpoint=False, max_tokens=10**9)
        manager = ContextManager.with_versioning(memory, memory, "none", config)
        said = count()

        async def exchange() -> None:
            number = next(said)
            await manager.process_turn(f"Question {number}: which port has service {number % 200}, and who runs it?")
            manager.add_response(f"It has port {8000 + number % 200}, says answer {number}.")

        async def fill(turns: int) -> None:
            while manager.turn_count < turns:
                await exchange()

        async def remember() -> None:
            for number in range(200):
                await memory.remember(f"The port of service {number} is {8000 + number}; team {number % 7} runs it.")

        def search() -> object:
            return loop.run_until_complete(manager.ground_query("Which port has service 77, and who runs it?"))

        loop.run_until_complete(remember())
        for turns in (100, 5_000):
            loop.run_until_complete(fill(turns))
            size = f"at {2 * turns:,} messages"
            yield Timed(what=f"manager: search among 200 memories, {size}", work=search)
            turn = partial(_done, loop, exchange)
            yield Timed(what=f"manager: turn with its search, {size}", work=turn, goal=10, beside="the search")
            yield Timed(
                what=f"manager: checkpoint of what is new, {size}", work=partial(_done, loop, manager.checkpoint)
            )
        loop.run_until_complete(memory.close())
    loop.close()


def _done(loop: asyncio.AbstractEventLoop, work: Callable[[], Awaitable[Any]]) -> object:
    async def done() -> object:
        return await work()

    return loop.run_until_complete(done())


MEASURES: tuple[Callable[[dict[str, Any]], Iterator[Timed]], ...] = (builders, stored, whole_turns, managed)
"""Builders of the operations to measure, each on the state of a long session."""


def timed(one: Timed, times: int) -> tuple[str, ...]:
    """Measure an operation and return its table row."""
    taken: list[float] = []
    for _ in range(times):
        started = time.perf_counter()
        one.work()
        taken.append((time.perf_counter() - started) * 1000)
    goal = "" if one.goal is None else f"{one.goal:g} ms" + (f" beside {one.beside}" if one.beside else "")
    return one.what, f"{statistics.median(taken):.2f}", f"{max(taken):.2f}", goal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=1_000)
    parser.add_argument("--entities", type=int, default=10_000)
    parser.add_argument("--times", type=int, default=20)
    given = parser.parse_args()
    state = session(given.turns, given.entities)
    print(f"{given.turns:,} turns, {len(state['id_registry']):,} entities, median of {given.times}\n")
    print("| what | median ms | slowest ms | goal |\n|---|---:|---:|---:|")
    for measure in MEASURES:
        for one in measure(state):
            print("| " + " | ".join(timed(one, given.times)) + " |", flush=True)
    print("\n| entities | mentioned a turn | CPU ms | slowest | first of a process | kB written |")
    print("|---:|---:|---:|---:|---:|---:|")
    for line in turns_by_size(given.times):
        print("| " + " | ".join(line) + " |", flush=True)


if __name__ == "__main__":
    main()
