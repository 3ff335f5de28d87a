"""Numbers of the ranking, fitted on all labelled sets but one.

Every pair of a grid is tried: the weight of the features of a message's place and kind, and the length that costs it as
much as all words bring. The pair that finds most evidence in whole messages by rank, within the smallest budget of each
set, is taken.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby, product
from statistics import fmean
from unittest.mock import patch

from benchmarks import recall
from benchmarks.data import Data
from benchmarks.peers.baselines import READER, text
from context_compiler.recall import Index, Question, ranking

DRAWN = 240
"""Questions of each set."""
LESS, LENGTH = (0.4, 0.5, 0.6, 0.7, 0.8, 1.0), (2.5, 3.0, 3.5, 4.0, 5.0)


@dataclass(frozen=True, slots=True)
class Sample:
    """A question with the messages before it."""

    values: tuple[tuple[float, ...], ...]
    """Value of every message, by feature."""
    costs: Sequence[int]
    """Tokens of every message."""
    evidence: frozenset[int]
    """Positions of messages with evidence."""

    def held(self, weights: Sequence[float], room: int) -> float:
        """Compute the share of the evidence among the best messages that fit."""
        scores = [0.0] * len(self.costs)
        for weight, values in zip(weights, self.values, strict=True):
            if weight and values:
                scores = [score + weight * value for score, value in zip(scores, values, strict=True)]
        held = 0
        for position in sorted(range(len(scores)), key=scores.__getitem__, reverse=True):
            room -= self.costs[position]
            if room < 0:
                break
            held += position in self.evidence
        return held / len(self.evidence)


def features() -> tuple[ranking.Feature, ...]:
    """Features of a message, in the order of a sample's values."""
    return *ranking.FEATURES, *ranking.SETTING


def weights(less: float, length: float) -> list[float]:
    """Weights of `features()`. A multiple of brevity ranks as another `LENGTH` does."""
    alone = {"words": 1.0, "brevity": ranking.LENGTH / length}
    return [alone.get(feature.name, less) for feature in features()]


@cache
def samples(name: str, data: Data) -> tuple[Sample, ...]:
    """Draw questions of a set and compute the features of all messages before them."""
    data = replace(data, every=1, most=None)
    asked = [(chat, question) for chat in data.conversations(name) for question in chat.questions]
    drawn = random.Random(f"{recall.SEED} fit {name}").sample(asked, min(DRAWN, len(asked)))
    drawn.sort(key=lambda pair: (pair[0].name, pair[1].stop or 0))
    samples: list[Sample] = []
    for _, pairs in groupby(drawn, key=lambda pair: (pair[0].name, pair[1].stop)):
        (conversation, first), *more = pairs
        history = READER.read(conversation.messages[: first.stop])
        index, texts = Index.of(history), [text(message) for message in history.messages]
        costs = [reading.tokens for reading in history.readings]
        for question in (first, *(question for _, question in more)):
            evidence = frozenset(
                position
                for position, said in enumerate(texts)
                if any(part in said for part in question.evidence if part)
            )
            if evidence:
                asked_at = ranking.Asked(index, Question.of(question.text), len(history))
                values = tuple(tuple(feature.value(asked_at))[: len(history)] for feature in features())
                samples.append(Sample(values, costs, evidence))
    return tuple(samples)


@cache
def numbers_without(name: str, data: Data) -> tuple[float, float]:
    """Fit `LESS` and `LENGTH` of the ranking on all labelled sets but one; without another, they stay."""
    sets = {other: min(budgets) for other, budgets in data.labelled.items() if other != name}
    if not sets:
        return ranking.SETTING_WEIGHT, ranking.LENGTH

    def quality(numbers: tuple[float, float]) -> float:
        own = weights(*numbers)
        return fmean(fmean(sample.held(own, room) for sample in samples(other, data)) for other, room in sets.items())

    return max(product(LESS, LENGTH), key=quality)


@contextmanager
def fitted_without(name: str, data: Data) -> Generator[None]:
    """Rank with numbers that never saw a set."""
    weight, length = numbers_without(name, data)
    with patch.multiple(ranking, SETTING_WEIGHT=weight, LENGTH=length):
        yield
