"""Past text is ranked against a question by a few plain features with one set of round weights.

A message scores by BM25 (Robertson & Zaragoza 2009), by that of the two messages on either side of it, by
BM25 of its day as one document, for being said by whom the question is about and in the month it names, and
loses the logarithm of its length; a passage adds its own BM25. The weights were fitted on labelled
conversations of two kinds, chats with an assistant and talks between people, and rounded.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from heapq import nlargest
from itertools import accumulate
from math import exp, log1p

from context_compiler.passages import Passage
from context_compiler.recall.asking import asked_about, named
from context_compiler.recall.index import STANDING, USER, Index
from context_compiler.recall.question import Question
from context_compiler.recall.stems import said, terms

MESSAGE, AROUND, DAY, SUBJECT, MONTH, PASSAGE = 3.4, 2.0, 2.4, 2.6, 5.6, 0.6
LENGTH, OTHERS_LENGTH = 0.8, 0.6
"""What a unit of the logarithm of its length costs a message: one of the subject's, and another's."""
LAID_DOWN, LIKED = 2.0, 1.5
"""What a standing instruction and a liking of the user's gain where advice is asked for."""

K1, B = 1.2, 0.75
GIANT = 4.0
"""A message counts as at most so many times as long as the average."""
NEAR = (0.6, 0.3)
"""What a hit counts for the messages next to it, and for those after them."""
SHORT = 3.4
"""The logarithm of the terms of a message that is not long, about 30."""
TYPICAL = 60
"""Terms of a passage."""

BESIDE = 100.0
"""Below 0 by so much what answers nothing is still ranked: by its day, its speaker and its length."""

MOST = 48
"""Terms that are looked up; of a longer question the rarest."""
WORK = 50_000
"""Occurrences that are looked at; where the next term would exceed them, it says too little to be worth it."""
CLOSE = 256
"""The best passages, which are also ranked by their own words."""


def rank(index: Index, question: Question, candidates: Sequence[Passage]) -> list[float]:
    """How much each candidate answers the question: higher is better, 0 and below is not at all.

    What stands behind the last candidate, such as the question itself, counts for nothing.
    """
    return Ranking(index, question, 1 + max((one.position for one in candidates), default=-1)).passages(candidates)


class Ranking:
    """How much the messages before a position answer a question. It costs what the question's terms occur."""

    def __init__(self, index: Index, question: Question, stop: int) -> None:
        """Score every message before `stop` that answers, or stands next to one that does."""
        self._index = index
        self._wanted = _wanted(index, question)
        self._who = asked_about(index, question)
        self._cued = question.advice and self._who == USER
        self._days = _days(index, self._wanted, stop)
        self._months = [bool(question.months) and day[5:7] in question.months for day in index.days]
        hits = _hits(index, self._wanted, stop)
        near = _around(hits, sum(self._wanted.values()) or 1.0, stop)
        if any(self._months):
            near |= {at: near.get(at, 0.0) for at in range(stop) if self._months[index.sessions[at]]}
        self._best = max(hits.values(), default=0.0) or 1.0
        self.messages = {at: self._score(at, hits.get(at, 0.0), close) for at, close in near.items()}
        """By position; always above 0."""

    def passages(self, candidates: Sequence[Passage]) -> list[float]:
        """The score of each passage: its message's and its own; 0 or less for what answers nothing."""
        if not self.messages:
            return [0.0] * len(candidates)
        known = self.messages
        found = [known[at] if (at := one.position) in known else self._score(at, 0, 0) - BESIDE for one in candidates]
        best = nlargest(CLOSE, (at for at, score in enumerate(found) if score > 0), key=lambda at: (found[at], -at))
        own = [_own(self._wanted, candidates[at].text) for at in best]
        top = max(own, default=0.0) or 1.0
        for at, score in zip(best, own, strict=True):
            found[at] += PASSAGE * score / top
        return found

    def _score(self, at: int, hit: float, near: float) -> float:
        index, session = self._index, self._index.sessions[at]
        theirs = 0.5 if self._who is None else float(index.speakers[at] == self._who)
        long = max(0.0, log1p(index.costs[at]) - SHORT)
        score = MESSAGE * hit / self._best + AROUND * near + self._days[session] + MONTH * self._months[session]
        score += SUBJECT * theirs - long * (LENGTH * theirs + OTHERS_LENGTH * (1 - theirs))
        if self._cued and index.cues[at]:
            score += LAID_DOWN if index.cues[at] & STANDING else LIKED
        return log1p(exp(score))


def _wanted(index: Index, question: Question) -> dict[str, float]:
    """The terms of the question that occur, rarest first, with how much each says (idf)."""
    names = frozenset(term for name in named(index, question) for term in terms(name))
    known = sorted((len(index.posts[term]) // 2, term) for term in question.terms - names if term in index.posts)
    work = accumulate(spread for spread, _ in known)
    size = len(index)
    return {
        term: log1p((size - spread + 0.5) / (spread + 0.5))
        for (spread, term), done in zip(known[:MOST], work, strict=False)
        if done <= WORK or done == spread
    }


def _saturated(times: float, size: float) -> float:
    """BM25's weight of a term that occurs so often in a text so many times as long as the average."""
    return times * (K1 + 1) / (times + K1 * (1 - B + B * min(GIANT, size)))


def _hits(index: Index, wanted: Mapping[str, float], stop: int) -> dict[int, float]:
    """The BM25 of each message before `stop` that holds one of the terms."""
    found: defaultdict[int, float] = defaultdict(float)
    average = index.average
    for term, weight in wanted.items():
        for at, times in _pairs(index, term):
            if at >= stop:
                break
            found[at] += weight * _saturated(times, index.sizes[at] / average)
    return found


def _pairs(index: Index, term: str) -> Iterator[tuple[int, int]]:
    flat = iter(index.posts[term])
    return zip(flat, flat, strict=True)


def _around(hits: Mapping[int, float], norm: float, stop: int) -> dict[int, float]:
    """What a message and those next to it say of all that was asked: the nearer, the more."""
    found = {at: hit / norm for at, hit in hits.items()}
    for at, hit in hits.items():
        for step, share in enumerate(NEAR, 1):
            for beside in (at - step, at + step):
                if 0 <= beside < stop:
                    found[beside] = found.get(beside, 0.0) + share * hit / norm
    return found


def _days(index: Index, wanted: Mapping[str, float], stop: int) -> list[float]:
    """What the BM25 of each day as one document adds, relative to the best; nothing where there is one day."""
    count = len(index.days)
    if count < 2:
        return [0.0] * count
    average = sum(index.totals) / count or 1.0
    found = [0.0] * count
    for term in wanted:
        times: defaultdict[int, int] = defaultdict(int)
        for at, often in _pairs(index, term):
            if at < stop:
                times[index.sessions[at]] += often
        weight = log1p((count - len(times) + 0.5) / (len(times) + 0.5))
        for session, often in times.items():
            found[session] += weight * _saturated(often, index.totals[session] / average)
    best = max(found) or 1.0
    return [DAY * score / best for score in found]


def _own(wanted: Mapping[str, float], text: str) -> float:
    """The BM25 of a passage."""
    spoken = said(text)
    times = Counter(term for term in spoken if term in wanted)
    return sum(wanted[term] * _saturated(often, len(spoken) / TYPICAL) for term, often in sorted(times.items()))
