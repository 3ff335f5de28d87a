"""Compile a transcript file into a view within a budget of tokens, without a model.

Usage: python examples/compile_transcript.py [TRANSCRIPT [BUDGET]]

The file may contain messages of Pydantic AI, OpenAI, Anthropic and others. Without a file, the example uses the
conversation that comes with the package.
"""

from __future__ import annotations

import asyncio
import sys
from importlib.resources import files

from context_compiler import compile_view
from context_compiler.messages.importers import read_transcripts


async def main(path: str, budget: int) -> None:
    for transcript in read_transcripts(path):
        view = await compile_view(transcript.messages, budget=budget)
        raw = view.record.tokens_raw if view.record else 0
        print(f"{transcript.name}: {raw:,} → {view.tokens:,} of {view.budget:,} tokens, {view.status}")
        for position, why in view.kept:
            print(f"  message {position}: {why}")
        for drop in view.drops:
            print(f"  {drop.what} left out, {drop.tokens:,} tokens: {drop.reason}")


if __name__ == "__main__":
    bundled = str(files("context_compiler").joinpath("data/demo.json"))
    given = [*sys.argv[1:], *(bundled, "2000")[len(sys.argv) - 1 :]]
    asyncio.run(main(given[0], int(given[1])))
