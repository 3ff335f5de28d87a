"""Cost of leaving out a feature of the ranking, or a sign of the choice of quotes.

Without a feature, messages are ranked for the questions of every labelled set, and the share of the evidence among the
best that fit is compared. Without a sign, the quotes of a view for which nothing is asked are compared.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean
from typing import Any

from benchmarks import recall
from benchmarks.approaches import Approach
from benchmarks.data import GENERATED, LABELLED, Data
from benchmarks.measures import Measure
from benchmarks.peers.baselines import READER, text
from benchmarks.peers.ours import one_shot
from benchmarks.results import Cell, Result
from benchmarks.tables import markdown
from context_compiler.recall import Index, Question, ranking, selection

NAME = "ablations"
DRAWN = 24
"""Questions of each set."""
CHATS = 4
UNASKED = {"locomo": 4_000, "beam-100k": 8_000}
"""Sets of chats, and the budgets of views for which nothing is asked, of the first `CHATS` of each."""
SIGNS = (selection.CHAT, selection.TALK, selection.BOTH)


@dataclass(frozen=True, slots=True)
class Sample:
    """A question with the messages before it."""

    values: tuple[tuple[float, ...], ...]
    """Value of every message, by feature."""
    costs: Sequence[int]
    """Tokens of every message."""
    evidence: frozenset[int]
    """Positions of messages with evidence."""

    def found(self, room: int, without: int | None) -> float:
        """Compute the share of the evidence among the best messages that fit, without the feature of that number."""
        scores = [0.0] * len(self.costs)
        for number, values in enumerate(self.values):
            if values and number != without:
                weight = 1 if number < len(ranking.FEATURES) else ranking.LESS
                scores = [score + weight * value for score, value in zip(scores, values, strict=True)]
        held = 0
        for at in sorted(range(len(scores)), key=scores.__getitem__, reverse=True):
            room -= self.costs[at]
            if room < 0:
                break
            held += at in self.evidence
        return held / len(self.evidence)


def samples(name: str, data: Data) -> Iterator[Sample]:
    """Draw questions of a set and compute the features of all messages before them."""
    data = replace(data, every=1, most=None)
    asked = [(one, question) for one in data.conversations(name) for question in one.questions]
    drawn = random.Random(f"{recall.SEED} fit {name}").sample(asked, min(DRAWN, len(asked)))
    drawn.sort(key=lambda pair: (pair[0].name, pair[1].stop or 0))
    for _, pairs in groupby(drawn, key=lambda pair: (pair[0].name, pair[1].stop)):
        (conversation, first), *more = pairs
        history = READER.read(conversation.messages[: first.stop])
        index, texts = Index.of(history), [text(message) for message in history.messages]
        costs = [reading.tokens for reading in history.readings]
        for question in (first, *(one for _, one in more)):
            evidence = frozenset(
                at for at, said in enumerate(texts) if any(one in said for one in question.evidence if one)
            )
            if evidence:
                place = ranking.Asked(index, Question.of(question.text), len(history))
                values = tuple(tuple(feature.value(place))[: len(history)] for feature in _features())
                yield Sample(values, costs, evidence)


def _features() -> tuple[ranking.Feature, ...]:
    return *ranking.FEATURES, *ranking.BESIDE


def cells(data: Data, approaches: Sequence[str]) -> list[Cell]:
    return [
        Cell(NAME, "ours", chosen, min(budgets)) for chosen, budgets in data.labelled.items() if "ours" in approaches
    ]


def run(cell: Cell, approach: Approach, data: Data) -> Mapping[str, Any] | str:
    """Measure the points that each feature, and in chats each sign, adds."""
    drawn = [*samples(cell.data, data)]
    whole = fmean(one.found(cell.budget, None) for one in drawn)
    features = {
        feature.name: 100 * (whole - fmean(one.found(cell.budget, number) for one in drawn))
        for number, feature in enumerate(_features())
    }
    return {"n": len(drawn), "features": features, "signs": _signs(cell.data, data) if cell.data in UNASKED else {}}


def _signs(name: str, data: Data) -> dict[str, float]:
    """Points that each sign adds to the evidence in views for which nothing is asked."""
    whole, found = _unasked(name, data), dict[str, float]()
    for signs in SIGNS:
        for sign, weight in [*signs.items()]:
            signs[sign] = 0.0
            try:
                found[sign] = 100 * (whole - _unasked(name, data))
            finally:
                signs[sign] = weight
    return found


def _unasked(name: str, data: Data) -> float:
    found: list[float] = []
    for conversation in data.conversations(name)[:CHATS]:
        view = asyncio.run(one_shot(recall.asked(conversation, recall.NEUTRAL), UNASKED[name]))
        found += [recall.score(one, recall.shown(view), whole=conversation.whole) for one in conversation.questions]
    return fmean(found)


def tables(results: Sequence[Result]) -> dict[str, str]:
    """Two tables: points by feature and set, and by sign and set of chats."""
    known = {one.cell.data: one.value for one in results if one.value is not None}
    order = [name for name in (*LABELLED, GENERATED) if name in known]
    return {
        f"{NAME}-{kind}": _table(kind, {name: known[name] for name in order if known[name][kind]})
        for kind in ("features", "signs")
        if any(known[name][kind] for name in order)
    }


def _table(kind: str, known: Mapping[str, Mapping[str, Any]]) -> str:
    names = next(iter(known.values()))[kind]
    rows = [(name, *(f"{value[kind][name]:+.1f}" for value in known.values())) for name in names]
    questions = (("questions", *(str(value["n"]) for value in known.values())),) if kind == "features" else ()
    return markdown(("", *known), [*rows, *questions])


MEASURES = (
    Measure(
        name=NAME,
        title="What each feature and sign adds",
        about="Points of evidence that are lost without a feature of the ranking, or without a sign of what to quote.",
        cells=cells,
        run=run,
        tables=tables,
        alone=True,
    ),
)
