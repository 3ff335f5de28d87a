"""Selection of passages within a room: answers to the question first, best first, the rest by worth.

A question for a sequence or for the whole is answered by many mentions: it gets the best ones of every stretch of the
conversation in turn, the beginnings of messages rather than their ends, and nothing that repeats what is there.

What covers most of a past that nothing is asked of is budgeted maximum coverage: the next passage is always
the one with the largest gain for a token, and a gain only shrinks as more is taken, so it is computed again
only where it might win (lazy greedy; Minoux 1978, Lin and Bilmes 2011). The gain of a passage is what its message is
worth for its price, for a message is needed whole or not at all, times what of the passage has not been said yet,
measured by its word pairs.

Worth is independent of any question, and estimated from wording and speaker.
Each sign below adds to its logarithm; the weights were fitted (Poisson regression, rounded) on
labelled conversations, where they predict what later questions need. Signs differ between a chat with an
assistant, where the user's own messages and standing instructions matter, and a talk between two people, where
answers, openings and names do; a conversation may lie between the two. Worth grows far less than length, so
that short messages come first where it is held against the price. Where nothing is asked of a talk, more signs
count: what is past, what is new, numbers, and no mere reactions. Beside a question they say nothing. Words are
those of spaced scripts and pairs of characters of the others; the words for times, questions and the like are English.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from math import exp, log
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from context_compiler.messages.prompts import instruction_sentences
from context_compiler.recall.passages import Passage, Quotation, passages, quoted
from context_compiler.recall.ranking import merit
from context_compiler.recall.terms import words

__all__ = ["Passage", "Quotation", "choose", "passages", "quoted", "spread"]

T = TypeVar("T")

SMALLEST = 8
"""Tokens; less room than this holds no passage."""

REPEATED = 0.25
"""A passage counts in full while at least this share of its word pairs is new."""

LEANING = 0.4
"""Weight of log worth per token beside the score for the question."""

USUAL = 40
"""Tokens; where something is asked, a message that is shorter gains nothing by it: chatter would hide the answer."""

NEAR = 0.98
"""A gain this close to the best is the best: computing on would change little."""

STRETCHES = 4
"""Equal parts of a conversation that a question for a sequence or for the whole is answered from in turn."""

FURTHER = 0.3
"""Score that each further piece of a message loses there: one mention of many is better than all of one."""

ASKED = {"user": 2.4, "standing": 1.7}
"""Weights in a chat with an assistant."""
TALK = {"answers": 0.7, "opens": 0.7, "names": 0.3, "rare": 0.4, "asks": -1.2, "you": -0.8}
"""Weights in a talk between two people."""
UNASKED = {"past": 0.1, "new": 0.1, "number": 0.4, "reacts": -0.2}
"""Further weights in a talk where nothing is asked."""
BOTH = {"mass": 0.4, "times": 0.4, "slight": -1.5}

RARE = 2.0
"""Words with a smaller idf than this say nothing: those in more than about every eighth passage."""
SLIGHT = 4
"""With fewer words a message is a nod."""
TURN_OF_TALK = 60
"""Words; people who talk say no more at once, on average."""
LONGEST = 32
"""Longer words are keys, hashes and the like, each of which is rare and none of which says anything."""

_NAME = re.compile(r"(?<=[a-z,;] )[A-Z][a-z]")
_STOPS = re.compile(r"[.!?？。]+")
_TIMES = frozenset(
    "yesterday today tomorrow tonight last next ago week weekend month year morning recently since soon summer winter"
    " spring monday tuesday wednesday thursday friday saturday sunday january february march april may june july august"
    " september october november december jan feb mar apr jun jul aug sep oct nov dec".split()
).union(map(str, range(1900, 2100)))
_PAST = re.compile(
    r"(?i)\b(?:was|were|went|got|had|did|made|took|saw|found|bought|gave|came|met|won|lost|[a-z]{3,}ed)\b"
)
_NUMBER = re.compile(r"(?i)\d|\b(?:two|three|four|five|six|seven|eight|nine|ten|dozen)\b")
_REACTS = re.compile(
    r"(?i)\W*(?:wow|thanks?|that'?s|that is|sounds|congrat\w*|cool|awesome|yeah|glad|nice|great|good|absolutely"
    r"|definitely|sure|no problem|you'?re|hey|hi|bye|take care)\b"
)
_YOU = ("you", "your", "yours", "you're", "you've", "you'll")


def choose(
    candidates: Sequence[Passage],
    room: int,
    ranks: Sequence[float] = (),
    *,
    wide: bool = False,
    newer: Mapping[tuple[int, int], tuple[int, int]] = MappingProxyType({}),
) -> tuple[Passage, ...]:
    """The passages that tell most of these, together at most `room` tokens as `quoted` writes them, in order.

    Where any of `ranks`, which say how much each candidate answers a question, is above 0, they go in this order;
    where the question is `wide`, those of each stretch of the conversation in turn. What `newer` names as the change
    of a candidate, both by place, comes with it.
    Else, in a chat with an assistant the user's own words come first, short messages and standing
    instructions before long ones; in a talk between people what answers, opens and names. Ties go to the
    earlier passage.
    """
    order = sorted(range(len(candidates)), key=lambda at: (candidates[at].position, candidates[at].order))
    quotation = Quotation([candidates[at] for at in order], room)
    parts = parts_of(quotation.candidates)
    answers = max(ranks, default=0.0) > 0
    worth = worths(quotation.candidates, parts, asked=answers)
    prices = _prices(quotation.candidates, parts)
    leaning = [LEANING * log(one / max(USUAL, price)) for one, price in zip(worth, prices, strict=True)]
    keys = [-merit(ranks[index]) - leaning[at] for at, index in enumerate(order)] if answers else []
    places = {one.place: at for at, one in enumerate(quotation.candidates)} if newer else {}
    after = {places[old]: places[new] for old, new in newer.items() if old in places and new in places}
    if wide and answers:
        _take_mentions(quotation, [ranks[index] for index in order], after)
    for at in sorted(range(len(keys)), key=keys.__getitem__):
        if quotation.left < SMALLEST:
            break
        _take(quotation, at, after)
    if quotation.left >= SMALLEST:
        _fill(quotation, [one / price for one, price in zip(worth, prices, strict=True)])
    return quotation.passages


def spread(ranked: Sequence[T], place: Callable[[T], int]) -> list[T]:
    """The best of each stretch of the places in turn, of what is given best first."""
    places = [place(one) for one in ranked]
    first, extent = min(places, default=0), max(places, default=0) - min(places, default=0) + 1
    taken = [0] * STRETCHES
    rounds: list[int] = []
    for at in places:
        stretch = (at - first) * STRETCHES // extent
        rounds.append(taken[stretch])
        taken[stretch] += 1
    return [ranked[at] for at in sorted(range(len(ranked)), key=rounds.__getitem__)]


def _take(quotation: Quotation, at: int, after: Mapping[int, int]) -> bool:
    """Take a candidate, after what changes it; true if it was not there and there was room."""
    if at in after and not quotation.has(after[at]):
        quotation.take(after[at])
    return not quotation.has(at) and quotation.take(at)


def _take_mentions(quotation: Quotation, ranks: Sequence[float], after: Mapping[int, int]) -> None:
    """Take what answers, spread over the conversation, but for what repeats."""
    ordered = quotation.candidates
    answering = [at for at, rank in enumerate(ranks) if rank > 0]
    answering.sort(key=lambda at: FURTHER * ordered[at].order - ranks[at])
    taken: set[tuple[str, str]] = set()
    for at in spread(answering, lambda at: ordered[at].turn):
        if quotation.left < SMALLEST:
            break
        pairs = _pairs(ordered[at])
        if _novelty(pairs, taken) == 1 and _take(quotation, at, after):
            taken |= pairs


def _prices(ordered: Sequence[Passage], parts: Sequence[Part]) -> list[int]:
    """Tokens of each passage's whole message; of a tool's result a piece is enough.

    A passage counts as among others: with its own label at most, without the date.
    """
    found: dict[Part, int] = {}
    for passage, part in zip(ordered, parts, strict=True):
        price = passage.tokens - (passage.opening + passage.day if passage.first else passage.label)
        found[part] = found.get(part, 0) + (price if price > 1 else 1)
    return [*map(found.__getitem__, parts)]


Part = tuple[int, int]
"""A message without the results of its tools, as position and -1, or a piece of a result."""


def parts_of(candidates: Sequence[Passage]) -> list[Part]:
    """The part that each passage is of."""
    return [(one.position, one.order if one.tool else -1) for one in candidates]


def _fill(quotation: Quotation, rates: Sequence[float]) -> None:
    """Take what is worth most for its price, until the room is used."""
    ordered = quotation.candidates
    waiting = [(-rate, index) for index, rate in enumerate(rates) if not quotation.has(index) and quotation.fits(index)]
    if not waiting:
        return
    heapq.heapify(waiting)
    pairs: dict[int, frozenset[tuple[str, str]]] = {}
    taken = {pair for passage in quotation.passages for pair in _pairs(passage)}
    while waiting and quotation.left >= SMALLEST:
        _, index = heapq.heappop(waiting)
        if index not in pairs:
            pairs[index] = _pairs(ordered[index])
        gain = rates[index] * _novelty(pairs[index], taken)
        if waiting and gain < NEAR * -waiting[0][0]:
            heapq.heappush(waiting, (-gain, index))
        elif gain and quotation.take(index):
            taken |= pairs[index]


def _pairs(passage: Passage) -> frozenset[tuple[str, str]]:
    texts = words(passage.text)
    return frozenset(pairwise(texts)) or frozenset((word, "") for word in texts)


def _novelty(pairs: frozenset[tuple[str, str]], taken: set[tuple[str, str]]) -> float:
    """1 for what is new, less where most of it has been said, 0 for a repetition."""
    if not pairs:
        return 0.0
    return min(1.0, (1 - len(pairs & taken) / len(pairs)) / REPEATED)


def worths(candidates: Sequence[Passage], parts: Sequence[Part], *, asked: bool = False) -> list[float]:
    """Worth of each passage's message, beside a question or alone; candidates are in order, and messages complete."""
    pieces = [_said((passage.text,)) for passage in candidates]
    idf = _idf(pieces)
    messages = _messages(candidates, parts, pieces, idf)
    talk = _talk(candidates, messages)
    unsaid = {} if asked else dict(idf)
    found: dict[Part, float] = {}
    for part, message in messages.items():
        said = message.said
        sign = BOTH["mass"] * log(1 + message.mass) + said.slight
        sign += said.times
        if talk < 1 and message.speaker == "user":
            sign += (1 - talk) * (ASKED["user"] + (ASKED["standing"] if _lays_down(message.texts) else 0))
        if talk > 0:
            sign += talk * _talk_signs(message, messages.get((part[0] - 1, -1)))
            sign += 0 if asked else talk * _unasked_signs(message, unsaid)
        found[part] = exp(sign)
    return [*map(found.__getitem__, parts)]


class _Said(NamedTuple):
    """Words and signs of one passage or of a whole message, whatever stands beside it."""

    size: int
    """In words."""
    words: Sequence[str]
    """Those that may say something, each once."""
    asks: bool
    """It ends with a question."""
    slight: float
    times: float
    names: float
    questions: float
    you: float


@lru_cache(maxsize=4_096)
def _said(texts: Sequence[str]) -> _Said:
    """Read the passages of a message: they are chosen from again and again while a conversation goes on."""
    spoken = [word for text in texts for word in words(text)]
    size, last = len(spoken), texts[-1]
    marks = sum([text.count("?") + text.count("？") for text in texts])
    stops = sum([len(_STOPS.findall(text)) for text in texts])
    return _Said(
        size=size,
        words=tuple(dict.fromkeys(word for word in spoken if len(word) <= LONGEST)),
        asks=last.rstrip().endswith(("?", "？")),
        slight=BOTH["slight"] * (size < SLIGHT),
        times=BOTH["times"] * min(2, len(_TIMES.intersection(spoken))),
        names=TALK["names"] * min(4, len(_NAME.findall(" ".join(texts)))),
        questions=TALK["asks"] * marks / max(1, stops),
        you=TALK["you"] * min(1.0, 5 * sum(map(spoken.count, _YOU)) / max(1, size)),
    )


@lru_cache(maxsize=4_096)
def _lays_down(texts: Sequence[str]) -> bool:
    """True if a message gives standing instructions."""
    return bool(instruction_sentences(" ".join(texts)))


def _idf(pieces: Sequence[_Said]) -> dict[str, float]:
    """The idf of the words that say something."""
    spread = Counter(chain.from_iterable([piece.words for piece in pieces]))
    logs = {times: log(len(pieces) / times) for times in set(spread.values())}
    telling = {times: value for times, value in logs.items() if value >= RARE}
    return {word: telling[times] for word, times in spread.items() if times in telling}


class _Message(NamedTuple):
    """Signs of one message among others."""

    speaker: str
    texts: Sequence[str]
    said: _Said
    mass: float
    """The idf of its words that say something, each once."""
    telling: int
    """The number of those."""
    opens: bool
    """It is the first of its day."""


def _messages(
    candidates: Sequence[Passage], parts: Sequence[Part], pieces: Sequence[_Said], idf: Mapping[str, float]
) -> dict[Part, _Message]:
    found: dict[Part, _Message] = {}
    day: str | None = None
    start, count, value = 0, len(candidates), idf.get
    while start < count:
        part, stop = parts[start], start + 1
        while stop < count and parts[stop] == part:
            stop += 1
        own, last = candidates[start:stop], candidates[stop - 1]
        texts = tuple([one.text for one in own])
        said = pieces[start] if len(own) == 1 else _said(texts)
        known = [*filter(None, map(value, said.words))]
        speaker = "user" if any([one.speaker == "user" for one in own]) else last.speaker
        found[part] = _Message(speaker, texts, said, sum(known), len(known), last.date != day)
        day, start = last.date, stop
    return found


def _talk(candidates: Sequence[Passage], messages: Mapping[Part, _Message]) -> float:
    """1 for a talk between equals, 0 for a chat with an assistant, by each side's share of the text."""
    if sum([passage.speaker == "tool" and not passage.tool for passage in candidates]) * 20 > len(candidates):
        return 0.0
    sizes: dict[str, list[int]] = {"user": [], "assistant": []}
    for message in messages.values():
        if message.speaker in sizes:
            sizes[message.speaker].append(message.said.size)
    if not all(sizes.values()):
        return 0.0
    user, assistant = (sum(own) / len(own) for own in sizes.values())
    return min(1.0, max(0.0, (3 - assistant / max(user, 1)) / 1.5)) if user <= TURN_OF_TALK else 0.0


def _talk_signs(message: _Message, before: _Message | None) -> float:
    said = message.said
    return (
        TALK["rare"] * message.mass / max(1, message.telling)
        + TALK["answers"] * (before is not None and before.said.asks)
        + TALK["opens"] * message.opens
        + said.names
        + said.questions
        + said.you
    )


def _unasked_signs(message: _Message, unsaid: dict[str, float]) -> float:
    """Signs of what later questions are about; words that the message is the first to say are taken out of `unsaid`."""
    news = sum([unsaid.pop(word, 0.0) for word in message.said.words])
    return UNASKED["new"] * log(1 + news) + _telling(message.texts)


@lru_cache(maxsize=4_096)
def _telling(texts: Sequence[str]) -> float:
    """Signs in the wording of a message."""
    text = " ".join(texts)
    return (
        UNASKED["past"] * min(3, len(_PAST.findall(text)))
        + UNASKED["number"] * bool(_NUMBER.search(text))
        + UNASKED["reacts"] * bool(_REACTS.match(text))
    )
