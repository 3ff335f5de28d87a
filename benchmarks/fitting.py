"""Weights of the ranking, fitted on all labelled sets but one.

The weights start equal and change one at a time, twice round, to whichever value of a grid finds most evidence in whole
messages by rank within the smallest budget of each set. They are weights of messages; `OWN_WORDS`, of a passage, stays.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from statistics import fmean

from benchmarks import recall
from benchmarks.data import Data
from benchmarks.peers.baselines import READER, text
from context_compiler.recall import Index, Question, ranking

DRAWN = 24
"""Questions of each set to fit on."""
GRID = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5)
ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Sample:
    """A question to fit on."""

    values: tuple[tuple[float, ...], ...]
    """Value of every message, by feature."""
    costs: Sequence[int]
    """Tokens of every message."""
    evidence: frozenset[int]
    """Positions of messages with evidence."""

    def found(self, weights: Sequence[float], room: int) -> float:
        """Compute the share of the evidence among the best messages that fit."""
        scores = [0.0] * len(self.costs)
        for weight, values in zip(weights, self.values, strict=True):
            if weight and values:
                scores = [score + weight * value for score, value in zip(scores, values, strict=True)]
        held = 0
        for at in sorted(range(len(scores)), key=scores.__getitem__, reverse=True):
            room -= self.costs[at]
            if room < 0:
                break
            held += at in self.evidence
        return held / len(self.evidence)


@cache
def samples(name: str, data: Data) -> tuple[Sample, ...]:
    """Draw questions of a set and compute the features of all messages before them."""
    data = replace(data, every=1, most=None)
    asked = [(one, question) for one in data.conversations(name) for question in one.questions]
    drawn = random.Random(f"{recall.SEED} fit {name}").sample(asked, min(DRAWN, len(asked)))
    drawn.sort(key=lambda pair: (pair[0].name, pair[1].stop or 0))
    found: list[Sample] = []
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
                values = tuple(tuple(feature.value(place))[: len(history)] for feature in ranking.FEATURES)
                found.append(Sample(values, costs, evidence))
    return tuple(found)


@cache
def weights_without(name: str, data: Data) -> tuple[float, ...]:
    """Fit a weight for each of `FEATURES` on all labelled sets but one."""
    sets = {other: min(budgets) for other, budgets in data.labelled.items() if other != name}

    def quality(weights: Sequence[float]) -> float:
        return fmean(
            fmean(sample.found(weights, room) for sample in samples(other, data)) for other, room in sets.items()
        )

    weights = [feature.weight if not sets else 1.0 for feature in ranking.FEATURES]
    if not sets:
        return tuple(weights)
    best = quality(weights)
    for at in [*range(len(weights))] * ROUNDS:
        for value in GRID:
            trial = [*weights[:at], value, *weights[at + 1 :]]
            if (reached := quality(trial)) > best:
                weights, best = trial, reached
    return tuple(weights)


@contextmanager
def fitted_without(name: str, data: Data) -> Generator[None]:
    """Rank with weights that never saw a set."""
    usual = ranking.FEATURES
    pairs = zip(usual, weights_without(name, data), strict=True)
    ranking.FEATURES = tuple(feature._replace(weight=weight) for feature, weight in pairs)
    try:
        yield
    finally:
        ranking.FEATURES = usual
