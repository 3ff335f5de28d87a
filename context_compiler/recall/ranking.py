"""Past text is ranked against a question by a few plain features with one set of round weights.

A message scores by BM25 (Robertson & Zaragoza 2009), by that of the two messages on either side of it, by
BM25 of its day as one document, for being said by whom the question is about and in the month it names, and
loses the logarithm of its length; a passage adds its own BM25. The weights were fitted on labelled
conversations of two kinds, chats with an assistant and talks between people, and rounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from heapq import nlargest
from itertools import accumulate
from math import exp, log1p

from context_compiler.passages import Passage
from context_compiler.recall.asking import asked_about, named
from context_compiler.recall.index import STANDING, USER, Index
from context_compiler.recall.question import Question
from context_compiler.recall.stems import terms

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
    stop = 1 + max((passage.position for passage in candidates), default=-1)
    wanted = _wanted(index, question)
    by_message = scores(index, question, stop, wanted)
    found = [by_message[passage.position] for passage in candidates]
    best = nlargest(CLOSE, (at for at, score in enumerate(found) if score > 0), key=lambda at: (found[at], -at))
    own = [_own(wanted, candidates[at].text) for at in best]
    top = max(own, default=0.0) or 1.0
    for at, score in zip(best, own, strict=True):
        found[at] += PASSAGE * score / top
    return found


def scores(index: Index, question: Question, stop: int, wanted: Mapping[str, float] | None = None) -> list[float]:
    """The score of each message before position `stop`; above 0 where it or what is around it answers."""
    wanted = _wanted(index, question) if wanted is None else wanted
    if not wanted and not (question.months & {day[5:7] for day in index.days}):
        return [0.0] * stop
    hits = _hits(index, wanted, stop)
    around = _around(hits, sum(wanted.values()) or 1.0)
    best = max(hits, default=0.0) or 1.0
    days = _days(index, wanted, stop)
    in_month = [bool(question.months) and day[5:7] in question.months for day in index.days]
    who = asked_about(index, question)
    cues = bytes(index.cues) if question.advice and who == USER else bytes(stop)
    found: list[float] = []
    columns = zip(hits, around, index.sessions, index.speakers, index.costs, cues, strict=False)
    for hit, near, session, speaker, cost, cue in columns:
        score: float = MESSAGE * hit / best + AROUND * near + days[session] + MONTH * in_month[session]
        theirs = 0.5 if who is None else float(speaker == who)
        long = max(0.0, log1p(cost) - SHORT)
        score += SUBJECT * theirs - long * (LENGTH * theirs + OTHERS_LENGTH * (1 - theirs))
        if cue:
            score += LAID_DOWN if cue & STANDING else LIKED
        found.append(log1p(exp(score)) - (0.0 if near or in_month[session] else BESIDE))
    return found


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


def _hits(index: Index, wanted: Mapping[str, float], stop: int) -> list[float]:
    """The BM25 of each message before `stop`."""
    found = [0.0] * len(index)
    norms = index.norms(K1, B, GIANT)
    for term, weight in wanted.items():
        weight *= K1 + 1
        for at, times in _pairs(index, term):
            found[at] += weight * times / (times + norms[at])
    return found[:stop]


def _pairs(index: Index, term: str) -> Iterator[tuple[int, int]]:
    flat = iter(index.posts[term])
    return zip(flat, flat, strict=True)


def _around(hits: Sequence[float], norm: float) -> list[float]:
    """What a message and those next to it say of all that was asked: the nearer, the more."""
    found = [hit / norm for hit in hits]
    for step, share in enumerate(NEAR, 1):
        share /= norm
        ahead, behind = [*hits[step:], *[0.0] * step], [*[0.0] * step, *hits]
        found = [said + share * (one + other) for said, one, other in zip(found, ahead, behind, strict=False)]
    return found[: len(hits)]


def _days(index: Index, wanted: Mapping[str, float], stop: int) -> list[float]:
    """What the BM25 of each day as one document adds, relative to the best; nothing where there is one day."""
    count = len(index.days)
    if count < 2:
        return [0.0] * count
    sizes = Counter[int]()
    for session, size in zip(index.sessions, index.sizes, strict=True):
        sizes[session] += size
    average = sizes.total() / count or 1.0
    found = [0.0] * count
    for term in wanted:
        times = Counter[int]()
        for at, often in _pairs(index, term):
            if at < stop:
                times[index.sessions[at]] += often
        weight = log1p((count - len(times) + 0.5) / (len(times) + 0.5))
        for session, often in times.items():
            found[session] += weight * _saturated(often, sizes[session] / average)
    best = max(found) or 1.0
    return [DAY * score / best for score in found]


def _own(wanted: Mapping[str, float], text: str) -> float:
    """The BM25 of a passage."""
    said = _said(text)
    times = Counter(term for term in said if term in wanted)
    return sum(wanted[term] * _saturated(often, len(said) / TYPICAL) for term, often in sorted(times.items()))


@lru_cache(maxsize=4_096)
def _said(text: str) -> tuple[str, ...]:
    return tuple(terms(text))
