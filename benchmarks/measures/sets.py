"""Evidence in one view on every labelled set, beside plain baselines and the best possible choice."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage

from benchmarks import facts, recall
from benchmarks.approaches import Approach
from benchmarks.data import LIVED, Data
from benchmarks.measures import Measure
from benchmarks.peers.baselines import READER, chosen, price, text
from benchmarks.results import Cell, Result
from benchmarks.tables import ranked

NAME = "sets"
COMPARED = ("ours", "tail", "bm25", "bm25-3", "oracle")


def cells(data: Data, approaches: Sequence[str]) -> list[Cell]:
    return [
        Cell(NAME, approach, chosen, budget)
        for chosen, budgets in data.labelled.items()
        for budget in budgets
        for approach in approaches
        if approach in COMPARED
    ]


def run(cell: Cell, approach: Approach, data: Data) -> Mapping[str, Any] | str:
    """Measure the share of the evidence of every question, by conversation; a budget excludes the question."""
    groups: list[list[float]] = []
    for conversation in data.conversations(cell.data):
        found: list[float] = []
        for question in conversation.questions[:: data.every]:
            messages = recall.asked(conversation, question.text, question.stop)
            budget = cell.budget + READER.one(messages[-1]).tokens
            shown = recall.shown(asyncio.run(_view(approach, messages, budget, question.evidence)))
            held = facts.held(question, shown) if cell.data in LIVED else None
            found.append(recall.score(question, shown, whole=conversation.whole) if held is None else held)
        groups.append(found)
    return {"groups": [group for group in groups if group]}


async def _view(
    approach: Approach, messages: list[ModelMessage], budget: int, evidence: Sequence[str]
) -> Sequence[ModelMessage]:
    """Make a view; the oracle's has the messages that contain the evidence, cheapest first."""
    if approach.view is not None:
        return await approach.view(messages, budget)
    holding = [at for at, one in enumerate(messages[:-1]) if any(part in text(one) for part in evidence)]
    return chosen(messages, sorted(holding, key=lambda at: price([messages[at]])), budget)


def tables(results: Sequence[Result]) -> dict[str, str]:
    """A table for every set: evidence in per cent with its interval."""
    names = dict.fromkeys(one.cell.data for one in results)
    return {f"{NAME}-{name}": ranked([one for one in results if one.cell.data == name], _shown) for name in names}


def _shown(value: Mapping[str, Any]) -> str:
    mean, low, high = (100 * one for one in recall.interval(value["groups"]))
    return f"{mean:.1f} [{low:.0f}, {high:.0f}]"


MEASURES = (
    Measure(
        name=NAME,
        title="Evidence on every labelled set",
        about=(
            "Share of the labelled evidence that is in one view for its question, in per cent, with its 95 % interval "
            "(bootstrap over conversations). More is better. Baselines pay for no labels."
        ),
        cells=cells,
        run=run,
        tables=tables,
    ),
)
