"""Recorded sessions, replayed: pairs, budget, cost, references, and the state of the stored history.

An agent sends every request (or a function makes it), and its history is what it stored after the previous request, so
what a peer throws away stays away. Broken pairs and tokens are counted in what reaches the model, after the host's own
repairs; for a function, in what it returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pydantic_ai.messages import ModelMessage

from benchmarks.approaches import Approach
from benchmarks.data import Data
from benchmarks.measures import Measure, grid
from benchmarks.peers.baselines import READER
from benchmarks.results import Cell, Result
from benchmarks.tables import by_set, columns_of, part, percent, ranked
from context_compiler.compiler.metrics import PromptCache, Sent, figures
from context_compiler.compiler.references import ReferenceRecall
from context_compiler.middleware.replay import LiveSession, replay, request_points

NAME = "sessions"


def run(cell: Cell, approach: Approach, data: Data) -> Mapping[str, Any] | str:
    if approach.session is None:
        return approach.dashes.get("session", "cannot live through a session")
    sent: list[Sent] = []
    whole = 0.0
    intact = True
    references: list[Kept] = []
    for messages in data.sessions(cell.data):
        if not request_points(messages):
            continue
        session = approach.session(cell.budget)
        kept = Kept(READER.read(messages), cell.budget, READER)
        sent += asyncio.run(replay(messages, session, READER, seen=kept.see))
        intact = intact and names(session.stored) in stored(messages)
        whole += everything(messages)
        references.append(kept)
    sums = figures(sent, cell.budget)
    return {
        **asdict(sums),
        "relative": sums.cost / whole,
        "intact": intact,
        "references": [kept.shares for kept in references],
        "references_long": [kept.long_shares for kept in references],
    }


def everything(messages: Sequence[ModelMessage]) -> float:
    """Return the cost of a session if everything is sent unchanged."""
    cache = PromptCache()
    readings = [READER.one(message) for message in messages]
    return sum(cache.charge(readings[:point]) for point in request_points(messages))


def names(messages: Sequence[ModelMessage]) -> tuple[str, ...]:
    return tuple(READER.one(message).name for message in messages)


def stored(messages: Sequence[ModelMessage]) -> list[tuple[str, ...]]:
    """Return the ids of a whole history: as recorded, and as the host alone stores it (adjacent messages joined)."""
    last = request_points(messages)[-1]
    host = LiveSession([])
    asyncio.run(host.request(messages[:last]))
    return [names(messages[:last]), names(host.stored)]


class Kept(ReferenceRecall):
    """References of tool calls that the views of one session keep, with the share of each call."""

    @property
    def shares(self) -> list[float]:
        """Shares of the calls' references."""
        return self._all

    @property
    def long_shares(self) -> list[float]:
        """The same for references last mentioned further back than the budget."""
        return self._long


COLUMNS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "requests": lambda value: f"{value['requests']:,}",
    "over budget": lambda value: part(value["over"], value["requests"]),
    "largest, in budgets": lambda value: f"{value['worst']:.2f}",
    "broken pairs": lambda value: part(value["broken"], value["requests"]),
    "cost": lambda value: f"{value['relative']:.2f}",
    "references": lambda value: percent(value["references"]),
    "long-range": lambda value: percent(value["references_long"]),
    "stored history": lambda value: "whole" if value["intact"] else "shortened",
    "ms": lambda value: f"{value['median_ms']:.1f}",
}


def tables(results: Sequence[Result]) -> dict[str, str]:
    """Build one table per set and budget, and one of costs per set with several budgets."""
    tables: dict[str, str] = {}
    for name, of_set in by_set(results).items():
        budgets = sorted({result.cell.budget for result in of_set})
        if len(budgets) > 1:
            tables[f"cost-{name}"] = ranked(of_set, COLUMNS["cost"])
        for budget in budgets:
            rows = [result for result in of_set if result.cell.budget == budget]
            tables[f"{NAME}-{name}-{budget}"] = columns_of(rows, COLUMNS)
    return tables


MEASURES = (
    Measure(
        name=NAME,
        title="Sessions, request by request",
        cells=lambda data, approaches: grid(NAME, data.lived, approaches),
        run=run,
        tables=tables,
    ),
)
