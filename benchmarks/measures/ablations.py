"""Cost of leaving out a feature of the ranking, or a sign of the choice of quotes.

Without a feature, messages are ranked for the questions of every labelled set, and the share of the evidence among the
best that fit is compared. Without a sign, the quotes of a view for which nothing is asked are compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any
from unittest.mock import patch

from benchmarks import recall
from benchmarks.approaches import Approach
from benchmarks.data import GENERATED, LABELLED, Data
from benchmarks.fitting import features, samples, weights
from benchmarks.measures import Measure
from benchmarks.peers.ours import one_shot
from benchmarks.results import Cell, Result
from benchmarks.tables import markdown
from context_compiler.recall import ranking, selection

NAME = "ablations"
CHATS = 4
UNASKED = {"locomo": 4_000, "beam-100k": 8_000}
"""Sets of chats, and the budgets of views for which nothing is asked, of the first `CHATS` of each."""
SIGNS = (selection.CHAT, selection.TALK, selection.BOTH)


def cells(data: Data, approaches: Sequence[str]) -> list[Cell]:
    sets = data.labelled.items() if "ours" in approaches else ()
    return [Cell(NAME, "ours", name, min(budgets)) for name, budgets in sets]


def run(cell: Cell, approach: Approach, data: Data) -> Mapping[str, Any] | str:
    """Measure the points that each feature, and in chats each sign, adds."""
    drawn, usual = samples(cell.data, data), weights(ranking.SETTING_WEIGHT, ranking.LENGTH)
    whole, lost = fmean(sample.held(usual, cell.budget) for sample in drawn), dict[str, float]()
    for number, feature in enumerate(features()):
        rest = [*usual[:number], 0.0, *usual[number + 1 :]]
        lost[feature.name] = 100 * (whole - fmean(sample.held(rest, cell.budget) for sample in drawn))
    return {"n": len(drawn), "features": lost, "signs": _signs(cell.data, data) if cell.data in UNASKED else {}}


def _signs(name: str, data: Data) -> dict[str, float]:
    """Points that each sign adds to the evidence in views for which nothing is asked."""
    whole, added = _unasked(name, data), dict[str, float]()
    for signs in SIGNS:
        for sign in [*signs]:
            with patch.dict(signs, {sign: 0.0}):
                added[sign] = 100 * (whole - _unasked(name, data))
    return added


def _unasked(name: str, data: Data) -> float:
    held: list[float] = []
    for chat in data.conversations(name)[:CHATS]:
        view = asyncio.run(one_shot(recall.asked(chat, recall.NEUTRAL), UNASKED[name]))
        held += [recall.score(question, recall.shown(view), whole=chat.whole) for question in chat.questions]
    return fmean(held)


def tables(results: Sequence[Result]) -> dict[str, str]:
    values = {result.cell.data: result.value for result in results if result.value is not None}
    order = [name for name in (*LABELLED, GENERATED) if name in values]
    return {
        f"{NAME}-{kind}": _table(kind, {name: values[name] for name in order if values[name][kind]})
        for kind in ("features", "signs")
        if any(values[name][kind] for name in order)
    }


def _table(kind: str, values: Mapping[str, Mapping[str, Any]]) -> str:
    names = next(iter(values.values()))[kind]
    rows = [(name, *(f"{value[kind][name]:+.1f}" for value in values.values())) for name in names]
    questions = (("questions", *(str(value["n"]) for value in values.values())),) if kind == "features" else ()
    return markdown(("", *values), [*rows, *questions])


MEASURES = (Measure(name=NAME, title="What each feature and sign adds", cells=cells, run=run, tables=tables),)
