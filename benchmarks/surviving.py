"""Survival of specifics that a given summary loses: the share in the view, and the maximum possible.

    python -m benchmarks.surviving [--set pi] [--budget 8000] [--summary FILE]

Each session is compiled once, with a model that answers with the given text; the default text has no specifics. `view`
is the share of the specifics of the compiled messages in summary, index and quotes, from the record. `ceiling` is the
share that a list of the index's size (15 % of the budget) could hold: the cheapest first, each with three tokens of
origin.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from benchmarks.references import FILES, data_folder, load
from context_compiler import TokenCounter, compile_view
from context_compiler.compiler.identifiers import SHARE
from context_compiler.compiler.specifics import lost_specifics
from context_compiler.messages.history import Reader
from context_compiler.messages.turns import outline, pair
from context_compiler.record.values import Compile

NOTHING = "The work went on and some of it is done."
ORIGIN = 3
"""Minimum tokens for the origin of a listed specific."""

_READER = Reader(TokenCounter())


async def compiled(messages: Sequence[ModelMessage], budget: int, summary: str) -> Compile | None:
    """Return the row of a compile whose model answers with `summary`; None if no model was asked."""

    async def answer(asked: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart(content=summary)])

    model = FunctionModel(answer, model_name="given")
    view = await compile_view(messages, "chat_compiler", budget, model=model, system=None, counter=_READER.counter)
    row = view.record.compile if view.record else None
    return row if row is not None and row.survival is not None else None


def ceiling(messages: Sequence[ModelMessage], row: Compile, room: int) -> int:
    """Return how many specifics of the compiled messages fit into a list of `room` tokens."""
    history = _READER.read(messages)
    spans = cast(list[list[int]], (row.input_payload or {})["compiled"])
    span = [position for start, stop in spans for position in range(start, stop)]
    lost = lost_specifics(history, outline(history, pair(history)), span)
    held = 0
    for cost in sorted(_READER.counter.text(one.verbatim) + ORIGIN for one in lost):
        room -= cost
        if room < 0:
            break
        held += 1
    return held


def main() -> None:
    """Measure a set and print its row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=list(FILES), default="pi")
    parser.add_argument("--budget", type=int, default=8_000)
    parser.add_argument("--summary", type=Path)
    given = parser.parse_args()
    folder = data_folder()
    if folder is None:
        raise SystemExit("no data: set CONTEXT_COMPILER_DATA to the folder that holds them")
    summary = given.summary.read_text(encoding="utf-8") if given.summary else NOTHING
    sums = [0, 0, 0, 0]
    for messages in load(given.set, folder):
        row = asyncio.run(compiled(messages, given.budget, summary))
        if row is None:
            continue
        counts = cast(dict[str, Any], (row.input_payload or {})["specifics"])
        most = min(counts["found"], ceiling(messages, row, int(SHARE * given.budget)) + counts["in_summary"])
        sums = [
            a + b for a, b in zip(sums, (counts["found"], counts["in_summary"], counts["in_view"], most), strict=True)
        ]
    found, alone, view, most = sums
    if not found:
        raise SystemExit("no session is longer than the budget")
    print("| set | budget | specifics | summary | view | ceiling | view of ceiling |\n|---|---|---|---|---|---|---|")
    shares = " | ".join(f"{one / found:.1%}" for one in (alone, view, most))
    print(f"| {given.set} | {given.budget:,} | {found:,} | {shares} | {view / most:.1%} |")


if __name__ == "__main__":
    main()
