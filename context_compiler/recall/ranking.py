"""Rank past messages and passages against a question: a sum of nine features, each at most 1.

`FEATURES` and `SETTING` list those of a message; the ninth, of a passage, is its own words. A new signal is one
function and one line. The weights are the same for every kind of conversation.

A ranking always has a best entry; `Relevance` shows if even that one is irrelevant.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, reduce
from heapq import nlargest
from itertools import accumulate, chain, repeat
from math import inf
from operator import add, mul, sub
from statistics import fmean
from typing import NamedTuple

from context_compiler.recall.bm25 import GIANT, K1, B, damping_of, idf, saturation
from context_compiler.recall.index import ASSISTANT, PREFERENCE, SPEAKERS, STANDING, USER, Index
from context_compiler.recall.passages import Passage
from context_compiler.recall.question import Question
from context_compiler.recall.terms import beginnings, fold, passage_terms, terms

NEAR, STRETCH = 3, 8
"""Messages on either side that belong to the neighbourhood of one, and messages in a third of its stretch."""

SOON = 10
"""Days after a named date within which its closeness falls from 1 to 0."""

LENGTH = 3.5
"""Excess length of a message, as a logarithm, that costs it as much as all words of the question bring."""

END = 0.2
"""Fraction of the way from the mean score to the best at which an answer ends."""

MAX_TERMS = 48
"""Maximum number of terms of a question that are looked up, the rarest first."""
WORK = 50_000
"""Maximum number of postings read for a question. Common terms that would exceed it are skipped, because they cost most
and discriminate least."""
CLOSE = 256
"""Number of the best passages whose own words are compared with the question."""


@dataclass(frozen=True)
class Asked:
    """A question to the messages of a conversation before a position."""

    index: Index
    question: Question
    stop: int
    """Number of messages that are ranked."""
    without: int | None = None
    """Position of the question itself, whose words do not count, so that it does not raise its neighbours."""

    @cached_property
    def people(self) -> Mapping[str, int]:
        """Speakers whom the question names."""
        return self.index.speakers_named(self.question.names)

    @cached_property
    def subject(self) -> int | None:
        """Speaker whom the question is about; None if it is about both, or says nothing of either."""
        named = set(self.people.values())
        if named:
            return named.pop() if len(named) == 1 else None
        if self.question.yours:
            return ASSISTANT
        return USER if self.question.mine else None

    @cached_property
    def wanted(self) -> dict[str, float]:
        """Idf of the question's terms that occur in the index, rarest first, without the names of the two speakers.

        Of a long question, such as one with a pasted text, only terms that occur before `stop` count: else the words of
        the paste, which occur nowhere else, would be the rarest and leave no room for others.
        """
        posts, size = self.index.posts, len(self.index)
        names = frozenset(term for name in self.people for term in terms(name))
        spreads = sorted((len(posts[term]) // 2, term) for term in self.question.terms - names if term in posts)
        if len(spreads) > MAX_TERMS:
            spreads = [(spread, term) for spread, term in spreads if posts[term][0] < self.stop]
        work = accumulate(spread for spread, _ in spreads)
        return {
            term: idf(size, spread)
            for (spread, term), done in zip(spreads[:MAX_TERMS], work, strict=False)
            if done <= WORK or done == spread
        }

    @cached_property
    def postings(self) -> list[tuple[float, list[tuple[int, int]]]]:
        """Idf, and pairs of position and frequency, of each wanted term."""
        weighted: list[tuple[float, list[tuple[int, int]]]] = []
        for term, weight in self.wanted.items():
            flat = iter(self.index.posts[term])
            pairs = [pair for pair in zip(flat, flat, strict=True) if pair[0] < self.stop and pair[0] != self.without]
            weighted.append((weight, pairs))
        return weighted

    @cached_property
    def words(self) -> list[float]:
        """BM25 of each message."""
        index, scores = self.index, [0.0] * self.stop
        base, slope, giant, sizes = K1 * (1 - B), K1 * B / index.average, GIANT * index.average, index.sizes
        damping = {size: base + slope * min(size, giant) for size in set(sizes)}
        for weight, pairs in self.postings:
            most = weight * (K1 + 1)
            for position, times in pairs:
                scores[position] += most * times / (times + damping[sizes[position]])
        return scores

    @cached_property
    def around(self) -> list[float]:
        """BM25 of each message together with `NEAR` messages on either side."""
        before = [0, *accumulate(self.index.sizes[: self.stop])]
        first = [0] * NEAR + before[:-1]
        last = before[1 + NEAR :] + before[-1:] * NEAR
        return self._bm25_of_groups([*map(sub, last[: self.stop], first)], 1, NEAR)

    @cached_property
    def stretch(self) -> list[float]:
        """BM25 of the three parts of `STRETCH` messages around each message."""
        before = [0, *accumulate(self.index.sizes[: self.stop])]
        starts = range(0, self.stop, STRETCH)
        sizes = [
            before[min(self.stop, position + 2 * STRETCH)] - before[max(0, position - STRETCH)] for position in starts
        ]
        scores = self._bm25_of_groups(sizes, STRETCH, 1)
        return [*chain.from_iterable(repeat(score, STRETCH) for score in scores)][: self.stop]

    def _bm25_of_groups(self, sizes: Sequence[int], part: int, reach: int) -> list[float]:
        """BM25 of groups of messages, each taken as one document: a part of `part` messages with `reach` on each side.

        `sizes` has the terms of each group.
        """
        count, scores = len(sizes), [0.0] * len(sizes)
        average = sum(sizes) / (count or 1) or 1.0
        base, slope, giant = K1 * (1 - B), K1 * B / average, GIANT * average
        for weight, pairs in self.postings:
            often = defaultdict[int, int](int)
            for position, times in pairs:
                own = position // part
                for group in range(own - reach if own > reach else 0, min(count, own + reach + 1)):
                    often[group] += times
            most = weight * (K1 + 1)
            for group, times in often.items():
                size = sizes[group]
                scores[group] += most * times / (times + base + slope * (size if size < giant else giant))
        return scores

    @cached_property
    def days(self) -> list[float]:
        """Closeness of each day to the month, or the date, that the question names; else none.

        A day on which nothing was said before the question, such as its own, has 0.
        """
        named, dates = self.question.months, bool(self.question.dates)
        if not named and not dates:
            return []
        before = set(self.index.sessions[: self.stop][: self.without])
        return [
            ((day[5:7] in named) + self._closeness(day)) / (1 + dates) if number in before else 0.0
            for number, day in enumerate(self.index.days)
        ]

    def _closeness(self, day: str) -> float:
        """Closeness of a day to a date of the question: 1 on the date, 0 before it and from `SOON` days after it."""
        year, rest = day[:4], day[5:]
        after = [_days_after(day, date if len(date) > len(rest) else f"{year}-{date}") for date in self.question.dates]
        return max((1 - days / SOON for days in after if 0 <= days < SOON), default=0.0)


def _days_after(day: str, date: str) -> int:
    """Days from a date to a day; -1 if either is not a valid date."""
    try:
        return (datetime.date.fromisoformat(day) - datetime.date.fromisoformat(date)).days
    except ValueError:
        return -1


class Feature(NamedTuple):
    """A feature of messages."""

    name: str
    value: Callable[[Asked], Iterable[float]]
    """Value of each message, at most 1; nothing if the question does not ask for it."""


def _of_best(values: Sequence[float]) -> list[float]:
    best = max(values, default=0.0) or 1.0
    return [value / best for value in values]


def _total(features: Iterable[Feature], asked: Asked) -> Iterable[float]:
    """Sum of the features of each message."""
    values = filter(None, (feature.value(asked) for feature in features))
    return reduce(lambda total, value: map(add, total, value), values, [0.0] * asked.stop)


def _words(asked: Asked) -> Iterable[float]:
    return _of_best(asked.words)


def _around(asked: Asked) -> Iterable[float]:
    return _of_best(asked.around)


def _stretch(asked: Asked) -> Iterable[float]:
    return _of_best(asked.stretch)


def _brevity(asked: Asked) -> Iterable[float]:
    return [1 - excess / LENGTH for excess in asked.index.excess]


def _speaker(asked: Asked) -> Iterable[float]:
    """1 for messages of the speaker whom the question is about; a half for the user's if it says nothing of either."""
    subject, half = asked.subject, not asked.people
    values = [1.0 if who == subject else 0.5 * (who == USER and half) for who in range(SPEAKERS)]
    return [values[who] for who in asked.index.speakers]


def _when(asked: Asked) -> Iterable[float]:
    return [asked.days[day] for day in asked.index.sessions] if any(asked.days) else ()


def _taste(asked: Asked) -> Iterable[float]:
    """1 for the user's standing instructions and preferences if the question asks for advice."""
    if not asked.question.advice or asked.people or asked.subject == ASSISTANT:
        return ()
    return [float(cue & (STANDING | PREFERENCE) > 0) for cue in asked.index.cues]


def _sought(asked: Asked) -> Iterable[float]:
    """1 for messages that name a time, a place or a duration if the question asks for one."""
    return [float(cue & asked.question.sought > 0) for cue in asked.index.cues] if asked.question.sought else ()


FEATURES = (Feature("words", _words), Feature("brevity", _brevity))
"""Features of a message alone: BM25 as a fraction of the best; few words."""

SETTING = (
    Feature("around", _around),
    Feature("stretch", _stretch),
    Feature("speaker", _speaker),
    Feature("when", _when),
    Feature("taste", _taste),
    Feature("sought", _sought),
)
"""Features of its place and kind, which weigh `SETTING_WEIGHT`: BM25 of its neighbourhood and of its stretch of the
conversation, each as a fraction of the best; the speaker, the day, and the kind of message that the question wants."""

SETTING_WEIGHT = 0.7
"""Weight of those features."""

OWN_WORDS = 0.4
"""Weight of the ninth feature, of a passage: its own BM25 as a fraction of that of the best."""


def rank(index: Index, question: Question, candidates: Sequence[Passage]) -> list[float]:
    """Score of each candidate for the question, from 0; higher is better. All are 0 if none is near its words or days.

    Messages after the last candidate, such as the question itself, are ignored.
    """
    return Ranking(index, question, 1 + max((passage.position for passage in candidates), default=-1)).passages(
        candidates
    )


class Ranking:
    """Scores of the messages before a position for one question; the cost grows with the occurrences of its terms."""

    def __init__(self, index: Index, question: Question, stop: int, question_at: int | None = None) -> None:
        """Score every message before position `stop`; `question_at` is the position of the question."""
        self._asked = asked = Asked(index, question, stop, question_at)
        self._wanted = asked.wanted
        self._beginnings = [(start, term) for term in self._wanted for start in beginnings(term)]
        setting = map(mul, repeat(SETTING_WEIGHT), _total(SETTING, asked))
        self._raw = [*map(add, _total(FEATURES, asked), setting)]
        self._found = bool(any(asked.words) or any(asked.days))
        """True if a message contains a term of the question, or is of a day that it names."""

    @cached_property
    def end(self) -> float:
        """Score at which the answer ends, wherever the best passage is, also if a view shows it already.

        It lies between the mean and the best: most of a score may be what all messages have, such as few words.
        """
        if not self._found:
            return inf
        mean = fmean(self._raw)
        return mean + END * (max(self._raw) + OWN_WORDS - mean)

    def best(self, without: Set[int] = frozenset()) -> list[int]:
        """Positions of the messages that may belong to the answer, best first; `without` has those to leave out."""
        least = self.end - OWN_WORDS
        near = [position for position, score in enumerate(self._raw) if score >= least and position not in without]
        return sorted(near, key=self._raw.__getitem__, reverse=True)

    def passages(self, candidates: Sequence[Passage]) -> list[float]:
        """Score of each passage, from 0.

        It is the score of its message; the best `CLOSE` also get `OWN_WORDS` x their BM25, as a fraction of the best.
        """
        if not self._found:
            return [0.0] * len(candidates)
        scores = [self._raw[passage.position] for passage in candidates]
        best = nlargest(CLOSE, range(len(scores)), key=scores.__getitem__)
        own = _of_best([self._bm25_of(candidates[index].text) for index in best])
        for index, value in zip(best, own, strict=True):
            scores[index] += OWN_WORDS * value
        return scores

    def _bm25_of(self, text: str) -> float:
        spoken = passage_terms(text)
        held = sorted(self._wanted.keys() & spoken.keys())
        damping = damping_of(spoken.total() / self._asked.index.average) if held else 0.0
        return sum([self._wanted[term] * saturation(spoken[term], damping) for term in held])

    def weight(self, text: str) -> float:
        """Sum of the idf of the question's terms that a text may contain, found by prefix without splitting it."""
        plain = fold(text)
        return sum(self._wanted[term] for term in sorted({term for start, term in self._beginnings if start in plain}))
