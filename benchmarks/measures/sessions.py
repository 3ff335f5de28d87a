"""Recorded sessions, replayed: pairs, budget, cost, references, and the state of the stored history.

An agent sends every request (or a function makes it), and its history is what it stored after the previous request, so
what a peer throws away stays away. Broken pairs and tokens are counted in what reaches the model, after the host's own
repairs; for a function, in what it returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from pydantic_ai.messages import ModelMessage

from benchmarks import references
from benchmarks.approaches import Approach
from benchmarks.data import Data
from benchmarks.measures import Measure
from benchmarks.peers.baselines import READER
from benchmarks.results import Cell, Result
from benchmarks.tables import by_set, lines_of, markdown, part, percent, ranked, reasons, rows_of
from context_compiler.cli.drawing import Panel
from context_compiler.compiler.metrics import PromptCache, Sent, figures
from context_compiler.messages.history import Reading
from context_compiler.middleware.replay import LiveSession, replay, request_points

NAME = "sessions"


def cells(data: Data, approaches: Sequence[str]) -> list[Cell]:
    return [
        Cell(NAME, approach, chosen, budget)
        for chosen, budgets in data.lived.items()
        for approach in approaches
        for budget in budgets
    ]


def run(cell: Cell, approach: Approach, data: Data) -> Mapping[str, Any] | str:
    """Measure every session of a set, request by request."""
    if approach.session is None:
        return approach.dashes.get("session", "cannot live through a session")
    sent: list[Sent] = []
    whole = 0.0
    intact = True
    held: list[tuple[list[float], list[float]]] = []
    for messages in data.sessions(cell.data):
        if not request_points(messages):
            continue
        session = approach.session(cell.budget)
        kept = Kept(messages, cell.budget)
        sent += asyncio.run(replay(messages, session, READER, seen=kept.see))
        intact = intact and names(session.stored) in stored(messages)
        whole += everything(messages)
        held.append((kept.all, kept.long))
    sums = figures(sent, cell.budget)
    return {
        **asdict(sums),
        "relative": sums.cost / whole,
        "intact": intact,
        "references": [one for one, _ in held],
        "references_long": [one for _, one in held],
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
    asyncio.run(_lived(host, messages[:last]))
    return [names(messages[:last]), names(host.stored)]


async def _lived(session: LiveSession, messages: Sequence[ModelMessage]) -> None:
    await session.request(messages)


class Kept:
    """Reference recall of the views of one session, as `benchmarks.references` defines it."""

    def __init__(self, messages: Sequence[ModelMessage], budget: int) -> None:
        self.all: list[float] = []
        self.long: list[float] = []
        self._budget = budget
        history = READER.read(messages)
        self._said = references.texts(history)
        self._calls = {call.position: call for call in references.calls([history], [self._said])}
        self._texts: dict[str, str] = {}

    def see(self, point: int, view: Sequence[ModelMessage]) -> None:
        """Score the view that was sent before the response at `point`."""
        call = self._calls.get(point)
        if call is None:
            return
        shown = "\n".join(map(self._text, map(READER.one, view)))
        before = self._said[:point]
        hits = [(references.held(one.text, before, shown), one.distance) for one in call.references]
        self.all.append(fmean(hit for hit, _ in hits))
        if far := [hit for hit, distance in hits if distance > self._budget]:
            self.long.append(fmean(far))

    def _text(self, reading: Reading) -> str:
        known = self._texts.get(reading.name)
        if known is None:
            (known,) = references.texts(_One((reading,)))  # pyright: ignore[reportArgumentType] # reads only readings
            self._texts[reading.name] = known
        return known


class _One:
    def __init__(self, readings: tuple[Reading, ...]) -> None:
        self.readings = readings


def tables(results: Sequence[Result]) -> dict[str, str]:
    """Build one table per set and budget, and one of costs per set with several budgets."""
    found: dict[str, str] = {}
    for name, of_set in by_set(results).items():
        if len({one.cell.budget for one in of_set}) > 1:
            found[f"cost-{name}"] = ranked(of_set, lambda value: f"{value['relative']:.2f}")
        for budget in sorted({one.cell.budget for one in of_set}):
            rows = [one for one in of_set if one.cell.budget == budget]
            found[f"{NAME}-{name}-{budget}"] = markdown(HEAD, rows_of(rows, len(HEAD), _row)) + reasons(rows)
    return found


HEAD = (
    "",
    "requests",
    "over budget",
    "largest, in budgets",
    "broken pairs",
    "cost",
    "references",
    "long-range",
    "stored history",
    "ms",
)


def _row(value: Mapping[str, Any]) -> list[str]:
    return [
        f"{value['requests']:,}",
        part(value["over"], value["requests"]),
        f"{value['worst']:.2f}",
        part(value["broken"], value["requests"]),
        f"{value['relative']:.2f}",
        percent(value["references"]),
        percent(value["references_long"]),
        "whole" if value["intact"] else "shortened",
        f"{value['median_ms']:.1f}",
    ]


def panels(results: Sequence[Result]) -> list[Panel]:
    """Build panels of cost against budget."""
    return lines_of(
        results,
        lambda value: value["relative"],
        y="cost, everything = 1",
        leave_out={"everything", "random", "head-tail"},
        log_y=True,
    )


MEASURES = (
    Measure(
        name=NAME,
        title="Sessions, request by request",
        about=(
            "`over budget`: requests over the budget (0 is the goal). `broken pairs`: requests with an orphaned result "
            "or a half-open call (0 is the goal). `cost`: with a provider's prompt cache, 0.1 for tokens of whole "
            "leading messages shared with the previous request and 1.25 for the rest, relative to sending everything "
            "(less is better). `references`: the share of the ids and paths in real calls' arguments that occurred "
            "before and are still in the view with words around them, in per cent; `long-range`: those last mentioned "
            "further back than the budget (more is better). `stored history`: whether the history kept for the next "
            "request is still whole. `ms`: median of a request, through the host if the approach is attached to one."
        ),
        cells=cells,
        run=run,
        tables=tables,
        panels=panels,
    ),
)
