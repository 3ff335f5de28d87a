"""CPU time of turns with layers, by the entities that exist in the session and the entities that a turn mentions.

    python -m benchmarks.layers [--times 20]

Each turn mentions some entities, gives each node its block, and is saved in a file.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from itertools import count
from pathlib import Path

from benchmarks.tables import markdown
from context_compiler.layers import NEEDS, Layers
from context_compiler.layers.context import layer_block, node_template
from context_compiler.record.store import SQLiteStore
from context_compiler.template import TemplateLibrary
from context_compiler.tokens import TokenCounter

SIZES = ((100, 10), (1_000, 10), (10_000, 1), (10_000, 10), (10_000, 100))
"""Numbers of entities that exist, and of entities that each turn mentions."""
HEAD = ("entities", "mentioned a turn", "CPU ms", "slowest", "first of a process")


async def cpu_of_turns(exist: int, mentioned: int, times: int) -> list[str]:
    """Return CPU milliseconds of a turn: median, slowest, and the first of a process."""
    counter, library = TokenCounter(), TemplateLibrary(system=None)
    templates = {node: node_template(node, library) for node in NEEDS}
    numbers = count()

    async def turn(layers: Layers) -> float:
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
        first = await turn(layers)
        for _ in range(5):  # until the entities of the first turn are no longer active
            await turn(layers)
        taken = [await turn(layers) for _ in range(times)]
        await store.close()
    return [f"{exist:,}", f"{mentioned:,}", *(f"{ms:.1f}" for ms in (statistics.median(taken), max(taken), first))]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20)
    given = parser.parse_args()
    rows = [asyncio.run(cpu_of_turns(exist, mentioned, given.times)) for exist, mentioned in SIZES]
    print(markdown(HEAD, rows))


if __name__ == "__main__":
    main()
