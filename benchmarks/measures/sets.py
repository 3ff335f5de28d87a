"""Evidence in one view on every labelled set, beside plain baselines and the best possible choice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from pydantic_ai.messages import ModelMessage

from benchmarks import recall
from benchmarks.approaches import HOMES, Approach
from benchmarks.data import GENERATED, LABELLED, LIVED, Data
from benchmarks.fitting import fitted_without
from benchmarks.lived import evidence
from benchmarks.measures import Measure, grid
from benchmarks.peers.baselines import READER, chosen, price, text
from benchmarks.results import Cell, Result
from benchmarks.tables import DASH, markdown, named, percent

NAME = "sets"
COMPARED = ("ours", "ours-unseen", "tail", "bm25", "bm25-3", "oracle")


def cells(data: Data, approaches: Sequence[str]) -> list[Cell]:
    return grid(NAME, data.labelled, [name for name in approaches if name in COMPARED])


def run(cell: Cell, approach: Approach, data: Data) -> Mapping[str, Any] | str:
    """Measure the share of the evidence of every question, by conversation; a budget excludes the question."""
    with fitted_without(cell.data, data) if approach.name == "ours-unseen" else nullcontext():
        return {"groups": [group for group in _groups(cell, approach, data) if group]}


def _groups(cell: Cell, approach: Approach, data: Data) -> Iterator[list[float]]:
    for conversation in data.conversations(cell.data):
        scores: list[float] = []
        for question in conversation.questions[:: data.every if cell.data in LIVED else 1]:
            messages = recall.asked(conversation, question.text, question.stop)
            budget = cell.budget + READER.one(messages[-1]).tokens
            shown = recall.shown(asyncio.run(_view(approach, messages, budget, question.evidence)))
            scores.append(evidence(conversation, question, shown))
        yield scores


async def _view(
    approach: Approach, messages: list[ModelMessage], budget: int, evidence: Sequence[str]
) -> Sequence[ModelMessage]:
    """Make a view; the oracle's has the messages that contain the evidence, cheapest first."""
    if approach.view is not None:
        return await approach.view(messages, budget)
    texts = [text(message) for message in messages[:-1]]
    holding = [position for position, said in enumerate(texts) if any(part in said for part in evidence)]
    return chosen(messages, sorted(holding, key=lambda position: price([messages[position]])), budget)


def tables(results: Sequence[Result]) -> dict[str, str]:
    values = {(result.cell.data, result.cell.budget, result.cell.approach): result.value for result in results}
    names = [name for name in HOMES if any(name == approach for _, _, approach in values)]
    order = [*LABELLED, GENERATED]
    rows = [
        [
            data,
            f"{budget:,}",
            _asked(values, data, budget),
            *(percent(value["groups"]) if (value := values.get((data, budget, name))) else DASH for name in names),
        ]
        for data, budget in sorted({key[:2] for key in values}, key=lambda key: (order.index(key[0]), key[1]))
    ]
    return {NAME: markdown(("set", "budget", "questions", *map(named, names)), rows)} if rows else {}


def _asked(values: Mapping[tuple[str, int, str], Mapping[str, Any] | None], data: str, budget: int) -> str:
    counts = {sum(map(len, value["groups"])) for key, value in values.items() if value and key[:2] == (data, budget)}
    return " to ".join(map(str, sorted(counts)))


MEASURES = (Measure(name=NAME, title="Evidence on every labelled set", cells=cells, run=run, tables=tables),)
