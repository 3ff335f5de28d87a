"""Scores of a managed session as it grows, on real sessions, drawn as an SVG.

    python -m benchmarks.quality [--out docs/quality.svg] [--turns 400] [--max-tokens 8192]

A manager without a model receives each session turn by turn, and quotes older turns. The sessions come from the sets of
`benchmarks.data`; if no data are available, a generated session shows that the benchmark works.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

from pydantic_ai.messages import ModelMessage

from benchmarks.data import ASKED, GENERATED, Data, at_hand
from context_compiler.cli.drawing import Line, Panel, draw
from context_compiler.manager import ContextConfig, ContextManager, Score, VolatileMemory
from context_compiler.manager.session import split_turns
from context_compiler.messages.history import Reader
from context_compiler.tokens import as_counter

SETS = {"a talk between two people": "locomo", "a chat with an assistant": "beam-100k", "a coding agent": "pi"}
"""Description of each session, and the set from which it is the first one."""

CUT = 1.5
"""Upper limit of the plot, because one turn of a coding agent may cost several times the budget."""


def sessions(data: Data) -> dict[str, Sequence[ModelMessage]]:
    """Return the first session of each available set."""
    found: dict[str, Sequence[ModelMessage]] = {}
    for name, which in SETS.items():
        if data.files(which):
            asked = which in ASKED
            found[name] = data.conversations(which)[0].messages if asked else data.sessions(which)[0]
    return found or {"generated": data.sessions(GENERATED)[0]}


async def scored(messages: Sequence[ModelMessage], turns: int, most: int) -> Sequence[Score]:
    """Return the scores of a session as it grows."""
    memory = VolatileMemory()
    manager = ContextManager(memory, "none", ContextConfig(max_tokens=most))
    feed = manager.as_capability().processor
    for group in split_turns(messages, Reader(as_counter(None)))[:turns]:
        async with feed.lock:
            await feed.process(list(group))
    return await memory.scores()


def panel(name: str, scores: Sequence[Score], most: int) -> Panel:
    """Build a panel with both scores of a session, and the fill level of its context."""
    turns = [score.turn + 1 for score in scores]
    full = [min(score.tokens / most, CUT) for score in scores]
    lines = (
        Line(name="QualityScorer", x=turns, y=[score.quality for score in scores], strong=True),
        Line(name="HealthScorer", x=turns, y=[score.health for score in scores], strong=True),
        Line(name=f"tokens, as a share of {most:,}", x=turns, y=full, dashed=True),
    )
    return Panel(title=name, x="turns", y="score, or share of tokens", lines=lines)


def main() -> None:
    """Measure, draw, and print the figures of the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/quality.svg"))
    parser.add_argument("--turns", type=int, default=400)
    parser.add_argument("--max-tokens", type=int, default=8192)
    given = parser.parse_args()
    panels: list[Panel] = []
    print("| session | turns | summaries | quality: first, lowest, last | health: first, lowest, last |")
    print("|---|---:|---:|---|---|")
    for name, messages in sessions(at_hand(fast=False, every=1)).items():
        scores = asyncio.run(scored(messages, given.turns, given.max_tokens))
        panels.append(panel(name, scores, given.max_tokens))
        told = [[getattr(score, which) for score in scores] for which in ("quality", "health")]
        cells = (" · ".join(f"{value:.2f}" for value in (one[0], min(one), one[-1])) for one in told)
        summaries = sum(score.summarized for score in scores)
        print(f"| {name} | {len(scores)} | {summaries} | {' | '.join(cells)} |", flush=True)
    draw(panels, given.out)


if __name__ == "__main__":
    main()
