"""Survival of specifics: details of left-out messages that are still in the view, word for word.

Specifics are the paths, commands, numbers, ids and prohibitions that `context_compiler.compiler.specifics` finds in
every message that is not in the view unchanged; each counts once per session. A specific survives if the view has it,
whole, anywhere: in a summary, an index, a quote, or a kept message. Views are made before the last answer of a session.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage

from benchmarks.approaches import Approach
from benchmarks.data import Data
from benchmarks.measures import Measure
from benchmarks.peers.baselines import READER
from benchmarks.results import Cell, Result
from benchmarks.tables import by_set, markdown, percent, reasons, rows_of
from context_compiler.compiler.patterns import Sort
from context_compiler.compiler.specifics import TextSet, specifics
from context_compiler.messages.history import searchable
from context_compiler.middleware.replay import View, request_points

NAME = "survival"
SORTS = (Sort.PATH, Sort.COMMAND, Sort.NUMBER, Sort.ID, Sort.RULE)
SESSIONS = 20
"""Maximum sessions of a set."""


def cells(data: Data, approaches: Sequence[str]) -> list[Cell]:
    lived = data.lived.items()
    return [Cell(NAME, approach, chosen, budgets[0]) for chosen, budgets in lived for approach in approaches]


def run(cell: Cell, approach: Approach, data: Data) -> Mapping[str, Any] | str:
    """Measure survival in every session, by sort."""
    if approach.view is None:
        return approach.dashes.get("view", "there is no evidence without a question")
    lost: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    groups: list[list[float]] = []
    for messages in data.sessions(cell.data)[:SESSIONS]:
        found = asyncio.run(survived(messages, approach.view, cell.budget))
        lost.update({sort: len(ones) for sort, ones in found.items()})
        kept.update({sort: sum(ones) for sort, ones in found.items()})
        if every := [float(one) for ones in found.values() for one in ones]:
            groups.append(every)
    return {"of": dict(lost), "kept": dict(kept), "groups": groups}


async def survived(messages: Sequence[ModelMessage], view: View, budget: int) -> dict[str, list[bool]]:
    """Return, by sort, True for every specific of left-out messages that is in the view, else False."""
    before = list(messages[: request_points(messages)[-1]])
    sent = [READER.one(message) for message in await view(before, budget)]
    there = {reading.name for reading in sent}
    told = TextSet(*map(searchable, sent))
    gone = [reading for reading in map(READER.one, before) if reading.name not in there]
    wanted = {(one.sort, one.text): one for reading in gone for one in specifics(searchable(reading))}
    found: dict[str, list[bool]] = {}
    for (sort, _), one in wanted.items():
        if sort in SORTS:
            found.setdefault(str(sort), []).append(told.holds(one))
    return found


def tables(results: Sequence[Result]) -> dict[str, str]:
    head = ("", "all, %", *map(str, SORTS))
    return {
        f"{NAME}-{name}": markdown(head, rows_of(of_set, len(head), _row)) + reasons(of_set)
        for name, of_set in by_set(results).items()
    }


def _row(value: Mapping[str, Any]) -> list[str]:
    of, kept, groups = value["of"], value["kept"], value["groups"]
    if not groups:
        return ["nothing is left out", *("" for _ in SORTS)]
    return [
        percent(groups),
        *(f"{kept.get(sort, 0):,} of {of[sort]:,}" if of.get(sort) else "–" for sort in map(str, SORTS)),
    ]


MEASURES = (
    Measure(
        name=NAME,
        title="Survival of specifics",
        about=(
            "The share of the paths, commands, numbers, ids and prohibitions in left-out messages that are still in "
            "the view, anywhere, word for word. More is better; a view cannot hold more than fits. An approach that "
            "leaves little out because it exceeds its budget has little to lose."
        ),
        cells=cells,
        run=run,
        tables=tables,
    ),
)
