"""Rank past messages and passages against a question with a linear score of a few plain features.

The main features are BM25 of the message, of its neighbours and of its day, the speaker, and the length; `Ranking` has
the formula. The weights were fitted on labelled conversations of two kinds, chats with an assistant and conversations
between people, and rounded.

A ranking always has a best entry; `Relevance` shows if even that one is irrelevant.
"""

from __future__ import annotations

import datetime
from array import array
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from heapq import nlargest
from itertools import accumulate, compress
from math import exp, log1p

from context_compiler.recall.bm25 import GIANT, K1, B, damping_of, idf, saturation
from context_compiler.recall.index import ASSISTANT, CUES, LASTING, NOBODY, PLACED, SPEAKERS, TIMED, TOOL, USER, Index
from context_compiler.recall.passages import Passage
from context_compiler.recall.question import Question
from context_compiler.recall.terms import beginnings, fold, passage_terms, terms

# The weights below are in units of score. `Ranking` says how they are combined.

MESSAGE, AROUND, DAY, SUBJECT, MONTH, PASSAGE = 3.4, 2.0, 2.4, 2.6, 5.6, 0.6
"""Weights of the features: BM25 of the message, of the message with its neighbours, of its day; said by the speaker
that the question is about; said in a month that it names; BM25 of the passage itself."""
LENGTH, OTHERS_LENGTH = 0.8, 0.6
"""Score lost for each unit of excess length (a logarithm), by messages of that speaker and by other messages."""
LAID_DOWN, LIKED = 2.0, 1.5
"""Score added to standing instructions and to preferences if the question asks for advice."""
CUED = (0.0, LAID_DOWN, LIKED, LAID_DOWN)
"""The same by the two lowest cue flags of a message; one with both counts as an instruction."""
SOUGHT = {TIMED: 1.0, PLACED: 1.5, LASTING: 2.0}
"""Score added to short messages that name what the question word asks for: a time, a place, a duration."""

REPLY = 0.45
"""Fraction of a message's BM25 that is added to the next message, which may answer it in other words."""

DATE, SOON = 3.0, 10
"""Score added to messages of a date that the question names, and the days after it within which that falls to 0."""

OWN = 2.0
"""Score added to messages of the speaker that the question is about if it asks for a sequence."""

NEAR = (0.6, 0.3)
"""Fractions of a message's BM25 that count for the messages at distance one and two from it."""
TYPICAL = 60
"""Average size of a passage in terms, assumed for its BM25."""

BESIDE = 100.0
"""Score subtracted from messages that do not answer. All of them end up below 0 and keep their order."""

LATER = 1.0
"""Score lost, instead of `BESIDE`, by passages that do not answer when they compete with those that do."""

MAX_TERMS = 48
"""Maximum number of terms of a question that are looked up, the rarest first."""
WORK = 50_000
"""Maximum number of postings read for a question. Common terms that would exceed it are skipped, because they cost most
and discriminate least."""
CLOSE = 256
"""Number of the best passages for which the BM25 of the passage itself is computed."""


def rank(index: Index, question: Question, candidates: Sequence[Passage]) -> list[float]:
    """Score of each candidate for the question; above 0 if it answers, higher is better.

    Messages after the last candidate, such as the question itself, are ignored.
    """
    return Ranking(index, question, 1 + max((one.position for one in candidates), default=-1)).passages(candidates)


def merit(score: float) -> float:
    """Score by which answering and other passages are ranked together, so that a good neighbour beats a weak answer."""
    return score if score > 0 else score + BESIDE - LATER


class Ranking:
    """Scores of the messages before a position for one question; the cost grows with the occurrences of its terms.

    The raw score of a message is this sum:

    - `MESSAGE` x its BM25, as a fraction of the best message's;
    - `AROUND` x the BM25 of it and its neighbours (see `NEAR`), divided by the sum of the idf of the question's terms;
    - `DAY` x the BM25 of its day, taken as one document, as a fraction of the best day's;
    - `SUBJECT` if it is by the speaker that the question is about, or half of that if this speaker is unknown;
    - minus `LENGTH` or `OTHERS_LENGTH` x its excess length;
    - `MONTH` if it is from a month that the question names;
    - in a conversation between two people, `DATE` if it is from a date that the question names or soon after,
      `REPLY` x `MESSAGE` x the BM25 of the message before, and `SOUGHT` if it names what the question word asks for;
    - `CUED` if the question asks for advice about the user, and `OWN` if it asks for a sequence.

    A message answers if it or a message within two of it contains a term of the question, or if it is from a month that
    the question names. `scores` maps the raw score to log(1 + e^raw), which is above 0, and subtracts `BESIDE` if the
    message does not answer.
    """

    def __init__(self, index: Index, question: Question, stop: int, question_at: int | None = None) -> None:
        """Score every message before position `stop`.

        `question_at` is the position of the question, whose own BM25 counts as 0 so that it does not raise its
        neighbours.
        """
        people = index.speakers_named(question.names)
        talk = index.is_between_people
        self.of_somebody = talk and bool(people)
        """True if this is a conversation between two people and the question names one of them."""
        who = subject_speaker(index, question, people)
        self._wanted = _wanted(index, question, people, stop)
        self._beginnings = [(start, term) for term in self._wanted for start in beginnings(term)]
        hits, days = _bm25(index, self._wanted, stop)
        if question_at is not None and question_at < stop:
            hits[question_at] = 0.0
        self._hits = hits
        near, before = _beside(index, hits)
        most, around = MESSAGE / (max(hits, default=0.0) or 1.0), AROUND / (sum(self._wanted.values()) or 1.0)
        named_month = [bool(question.months) and day[5:7] in question.months for day in index.days]
        days = [score + MONTH * here for score, here in zip(days, named_month, strict=True)]
        for session, nearness in enumerate(_closeness_to_dates(index, question) if talk else ()):
            days[session] += DATE * nearness
        reply, bases = REPLY * most if talk else 0.0, _bases(index, who)
        columns = zip(hits, near, map(days.__getitem__, index.sessions), bases, before, strict=False)
        self._raw = [most * hit + around * close + day + base + reply * last for hit, close, day, base, last in columns]
        if talk and question.sought:
            gains = [SOUGHT.get(cue & question.sought, 0.0) for cue in range(CUES)]
            self._raw = [score + gains[cue] for score, cue in zip(self._raw, index.cues, strict=False)]
        if question.advice and who == USER:
            self._raw = [score + CUED[cue % len(CUED)] for score, cue in zip(self._raw, index.cues, strict=False)]
        if question.order and who is not None:
            own = [OWN * (speaker == who) for speaker in range(SPEAKERS)]
            self._raw = [score + own[one] for score, one in zip(self._raw, index.speakers, strict=False)]
        self._answers: Sequence[float] = near
        if any(named_month):
            self._answers = [close or named_month[day] for close, day in zip(near, index.sessions, strict=False)]
        """Truthy for each message that answers, by position."""

    def best(self, count: int, without: Set[int] = frozenset(), *, beside: bool = False) -> list[int]:
        """Positions of the best messages, best first.

        Args:
            count: Maximum number of positions.
            without: Positions to leave out.
            beside: Include messages that do not answer, ranked by their raw scores.
        """
        every = range(len(self._raw))
        found = [at for at in (every if beside else self.answering(every)) if at not in without]
        return nlargest(count, found, key=self._raw.__getitem__)

    def passages(self, candidates: Sequence[Passage]) -> list[float]:
        """Score of each passage; above 0 if it answers.

        It is the score of its message, plus `PASSAGE` x its own BM25 (as a fraction of the best) for the best `CLOSE`.
        For a piece of a tool result it is then multiplied by a factor from 1/2 to 1, see `_piece_factors`.
        """
        if not any(self._answers):
            return [0.0] * len(candidates)
        found = self.scores([one.position for one in candidates])
        best = nlargest(CLOSE, [at for at, score in enumerate(found) if score > 0], key=found.__getitem__)
        own = [self._bm25_of(candidates[at]) for at in best]
        top = max(own, default=0.0) or 1.0
        for at, score in zip(best, own, strict=True):
            found[at] += PASSAGE * score / top
        for at, share in self._piece_factors(candidates).items():
            found[at] *= share if found[at] > 0 else 1
        return found

    def _bm25_of(self, passage: Passage) -> float:
        """BM25 of a passage; 0 if its message has none, except for a tool exchange, whose line has words of its own."""
        if passage.speaker != "tool" and not self._hits[passage.position]:
            return 0.0
        spoken = passage_terms(passage.text)
        held = sorted(self._wanted.keys() & spoken.keys())
        damping = damping_of(spoken.total() / TYPICAL) if held else 0.0
        return sum([self._wanted[term] * saturation(spoken[term], damping) for term in held])

    def _piece_factors(self, candidates: Sequence[Passage]) -> dict[int, float]:
        """Factor for the score of each piece of a tool result.

        It is 1/2 plus half the fraction that the piece has of the question's idf in all pieces of that result.
        """
        held = {at: self._possible_terms(one.text) for at, one in enumerate(candidates) if one.tool}
        exchanges: defaultdict[int, set[str]] = defaultdict(set)
        for at, own in held.items():
            exchanges[candidates[at].position] |= own
        sums = {position: self._total_idf(own) for position, own in exchanges.items()}
        return {at: (1 + self._total_idf(own) / sums[candidates[at].position]) / 2 for at, own in held.items() if own}

    def _total_idf(self, held: Set[str]) -> float:
        return sum(map(self._wanted.__getitem__, sorted(held)))

    def _possible_terms(self, text: str) -> set[str]:
        """Terms of the question that a text may contain, found by prefix without splitting it into terms."""
        plain = fold(text)
        return {term for start, term in self._beginnings if start in plain}

    def weight(self, text: str) -> float:
        """Sum of the idf of the question's terms that a text may contain."""
        return self._total_idf(self._possible_terms(text))

    def answering(self, positions: Sequence[int]) -> list[int]:
        """Filter positions for messages that answer."""
        return [*compress(positions, map(self._answers.__getitem__, positions))]

    def scores(self, positions: Iterable[int]) -> list[float]:
        """Scores of the messages at some positions; above 0 if a message answers, else below."""
        raw, answers = self._raw, self._answers
        return [log1p(exp(raw[at])) if answers[at] else log1p(exp(raw[at])) - BESIDE for at in positions]


def _wanted(index: Index, question: Question, people: Collection[str], stop: int) -> dict[str, float]:
    """Idf of the question's terms that occur in the index, rarest first; names of the two speakers are left out.

    Of a long question, such as one with a pasted text, only terms that occur before `stop` count: else the words of the
    paste, which occur nowhere else, would be the rarest and leave no room for others.
    """
    names = frozenset(term for name in people for term in terms(name))
    known = sorted((len(index.posts[term]) // 2, term) for term in question.terms - names if term in index.posts)
    if len(known) > MAX_TERMS:
        known = [(spread, term) for spread, term in known if index.posts[term][0] < stop]
    work = accumulate(spread for spread, _ in known)
    size = len(index)
    return {
        term: idf(size, spread)
        for (spread, term), done in zip(known[:MAX_TERMS], work, strict=False)
        if done <= WORK or done == spread
    }


def _bases(index: Index, who: int | None) -> array[float]:
    """Query-independent score of each message from speaker and length, cached in the index.

    `who` is the speaker that the question is about; None if it may be either, which gives each half.
    """
    known = index.bases.get(who, array("d"))
    if len(known) < len(index):
        theirs = [0.5 if who is None else float(speaker == who) for speaker in range(SPEAKERS)]
        gain = [SUBJECT * share for share in theirs]
        loss = [LENGTH * share + OTHERS_LENGTH * (1 - share) for share in theirs]
        new = zip(index.speakers[len(known) :], index.excess[len(known) :], strict=True)
        known = index.bases[who] = known + array("d", (gain[speaker] - long * loss[speaker] for speaker, long in new))
    return known


def _closeness_to_dates(index: Index, question: Question) -> Iterator[float]:
    """Closeness of each day of the conversation to a date of the question: 1 on the date, 0 after `SOON` days."""
    for day in index.days if question.dates else ():
        year, rest = day[:4], day[5:]
        after = [_days_after(day, date if len(date) > len(rest) else f"{year}-{date}") for date in question.dates]
        yield max((1 - days / SOON for days in after if 0 <= days < SOON), default=0.0)


def _days_after(day: str, date: str) -> int:
    """Days from a date to a day; -1 if either is not a valid date."""
    try:
        return (datetime.date.fromisoformat(day) - datetime.date.fromisoformat(date)).days
    except ValueError:
        return -1


def _bm25(index: Index, wanted: Mapping[str, float], stop: int) -> tuple[list[float], list[float]]:
    """BM25 of each message before `stop`, and the score that each day adds: `DAY` x its BM25 over that of the best.

    The inner loop runs once for each occurrence of a term, so it computes `saturation` without a call.
    """
    found, days, sessions = [0.0] * stop, [0.0] * len(index.days), index.sessions
    base, slope, giant = K1 * (1 - B), K1 * B / index.average, GIANT * index.average
    sizes = index.sizes
    damping = {size: base + slope * min(size, giant) for size in set(sizes)}
    for term, weight in wanted.items():
        flat = iter(index.posts[term])
        by_day = [0] * len(days)
        most = weight * (K1 + 1)
        for at, times in zip(flat, flat, strict=True):
            if at < stop:
                found[at] += most * times / (times + damping[sizes[at]])
                by_day[sessions[at]] += times
        _add_days(index, days, by_day)
    best = max(days, default=0.0) or 1.0
    return found, [DAY * score / best for score in days]


def _add_days(index: Index, days: list[float], by_day: Sequence[int]) -> None:
    """Add the BM25 of a term to each day, given its frequency by day; with a single day there is nothing to compare."""
    count = len(days)
    if count < 2:
        return
    average, holding = sum(index.totals) / count or 1.0, count - by_day.count(0)
    weight = idf(count, holding)
    for session, often in enumerate(by_day):
        if often:
            days[session] += weight * saturation(often, damping_of(index.totals[session] / average))


def _beside(index: Index, hits: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """BM25 of each message with its neighbours, and BM25 of the message said before it.

    A tool exchange is one neighbour, because its result is indexed with its call; the request that carries the result
    is none. What was said before a message is the last message of either speaker, whatever tools were called since.
    """
    speakers = index.speakers[: len(hits)]
    if speakers.count(USER) + speakers.count(ASSISTANT) == len(hits):
        return _with_neighbours(hits), [0.0, *hits[:-1]]
    near, before, last = [0.0] * len(hits), [0.0] * len(hits), 0.0
    places = [at for at, speaker in enumerate(speakers) if speaker != NOBODY]
    for at, close in zip(places, _with_neighbours([hits[at] for at in places]), strict=True):
        near[at], before[at] = close, last
        last = last if speakers[at] == TOOL else hits[at]
    return near, before


def _with_neighbours(hits: Sequence[float]) -> list[float]:
    """BM25 of each message plus that of its four neighbours, weighted by distance."""
    one, two = NEAR
    edged = [0.0, 0.0, *hits, 0.0, 0.0]
    rows = zip(edged, edged[1:], edged[2:], edged[3:], edged[4:], strict=False)
    return [at + one * (left + right) + two * (far + off) for far, left, at, right, off in rows]


def subject_speaker(index: Index, question: Question, called: Mapping[str, int]) -> int | None:
    """Speaker that a question is about; None if it may be either."""
    people = set(called.values())
    if people:
        return people.pop() if len(people) == 1 else None
    if question.yours:
        return ASSISTANT
    return USER if question.mine or not index.is_between_people else None
