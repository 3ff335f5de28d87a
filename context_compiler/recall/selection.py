"""Select passages within a token limit: first those that answer the question, then those worth most for their tokens.

`Candidates.choose` has three stages; each takes passages in order until the room is used up:

1. Mentions, only for a question about a sequence or the whole conversation: the best answers of each quarter of the
   conversation in turn, because many brief mentions answer such a question.
2. Answers: all candidates that have any relevance to the question, the most relevant first.
3. Coverage: all others by the worth of their message per token of the message.

Each takes passages whose word pairs are new: what was said a second time, also with another number, is quoted once.

The worth of a message estimates, without a question, how likely later questions need it. It is e to the sum of the
signs below, whose weights were fitted (Poisson regression, rounded) on labelled conversations. In a chat with an
assistant, the user's messages and standing instructions count most; in a conversation between two people, answers,
openings and names. A conversation may lie between these two kinds, see `_peer_share`. A message without a rare word,
such as a goodbye, is worth least. Worth grows far less than length, so short messages have the best worth per token.
The word lists are English; other signs work in every script.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import chain, pairwise
from math import exp, log
from operator import attrgetter
from sys import float_info, intern
from typing import NamedTuple, TypeVar

from context_compiler.messages.history import History
from context_compiler.messages.instructions import instruction_sentences
from context_compiler.messages.turns import Outline
from context_compiler.recall.changes import Change
from context_compiler.recall.index import changes_of
from context_compiler.recall.passages import MIN_QUOTE, Passage, Quotation
from context_compiler.recall.terms import SHORT, words
from context_compiler.resilience import check_time
from context_compiler.tokens import TokenCounter

T = TypeVar("T")

Place = tuple[int, int]
"""Message of a passage, and its number there."""

REPEATED = 0.125
"""Maximum fraction of new word pairs in a passage that repeats what is quoted already."""

STRETCHES = 4
"""Number of equal parts of a conversation from which mentions are taken in turn."""

CHAT = {"user": 2.4, "standing": 1.7, "value": 0.4}
"""Weights of signs in a chat with an assistant: by the user, gives a standing instruction, a number or a name."""
TALK = {"answers": 0.7, "opens": 0.7, "names": 0.3, "asks": -1.2}
"""Weights of signs in a conversation between two people: follows a question, is the first of its day, number of names,
fraction of sentences that are questions."""
BOTH = {"mass": 0.4, "times": 0.4}
"""Weights of signs in every conversation: logarithm of the total idf, words for times."""

RARE = 2.0
"""Minimum idf of a word that counts; more frequent ones, in more than about every eighth passage, count 0."""
TURN_OF_TALK = 60
"""Maximum average number of words in a user's message in a conversation between two people."""

_NAME = re.compile(r"(?<=[a-z,;] )[A-Z][a-z]")
_STOPS = re.compile(r"[.!?？。]+")
_TIMES = frozenset(
    "yesterday today tomorrow tonight last next ago week weekend month year morning recently since soon summer winter"
    " spring monday tuesday wednesday thursday friday saturday sunday january february march april may june july august"
    " september october november december jan feb mar apr jun jul aug sep oct nov dec".split()
)
_NUMBER = re.compile(r"(?i)\d|\b(?:two|three|four|five|six|seven|eight|nine|ten|dozen)\b")


class Candidates:
    """Passages to select from, with what does not depend on the room, which is computed once and only if needed."""

    def __init__(
        self,
        candidates: Sequence[Passage],
        ranks: Sequence[float] = (),
        *,
        asked: bool = True,
        mentions: float | None = None,
    ) -> None:
        """Take the candidates in any order; messages should be complete.

        Without the passages that revise it, a candidate is left out.

        Args:
            candidates: Passages to select from.
            ranks: Relevance of each candidate to the question; if none is above 0, only coverage decides. Ties go to
                the earlier passage.
            asked: False if the ranks are for a prompt that asks nothing. Answers then get half of the room, because
                what is most like such a prompt ("Thanks, let me know!") may say nothing.
            mentions: Least rank of a mention; None unless the question is for a sequence or the whole conversation.
        """
        order = sorted(range(len(candidates)), key=[*map(attrgetter("position", "order"), candidates)].__getitem__)
        if any([passage.beside for passage in candidates]):
            order = _complete(order, candidates)
        self._ordered = [candidates[slot] for slot in order]
        self._ranks = [ranks[slot] for slot in order] if max(ranks, default=0.0) > 0 else []
        self._asked, self._least = asked, mentions
        self.answers = frozenset[Place]()
        """Places of the passages that the last choice took as answers."""
        self._outcomes = _outcomes(self._ordered, self._ranks)

    def choose(self, room: int) -> tuple[Passage, ...]:
        """Select passages that `write_quotation` writes in at most `room` tokens; in order of the conversation."""
        quotation, taken = Quotation(self._ordered, room), set[tuple[str, str]]()
        half = MIN_QUOTE if self._asked else max(MIN_QUOTE, room // 2)
        for stage, least in ((self._mentions, MIN_QUOTE), (self._answers, half), (self._informative, MIN_QUOTE)):
            if quotation.left >= least:
                _take_new(quotation, stage(), least, taken, self._outcomes)
            if stage == self._answers:
                self.answers = frozenset(passage.place for passage in quotation.passages)
        return quotation.passages

    def _mentions(self) -> Sequence[int]:
        """Slots of answers spread over the conversation; none without a question about a sequence or all of it."""
        least = self._least
        answering = [] if least is None else [slot for slot in self._answers() if self._ranks[slot] >= least]
        return spread(answering, lambda slot: self._ordered[slot].turn)

    def _answers(self) -> Sequence[int]:
        """Slots by relevance, best first, ties to the earlier; none without a question."""
        ranks = self._ranks
        return sorted((slot for slot, rank in enumerate(ranks) if rank > 0), key=lambda slot: -ranks[slot])

    def _informative(self) -> Sequence[int]:
        """Slots that answer no question, best worth per token first; of equals the later, perhaps a newer value.

        A call whose result has quotable pieces is none of them: the outcome tells more.
        """
        asked = self._asked and bool(self._ranks)
        others = (slot for slot in range(len(self._ordered)) if not asked or self._ranks[slot] <= 0)
        slots = [slot for slot in others if slot not in self._outcomes]
        rates = self._rates if slots else ()
        return sorted((slot for slot in slots if rates[slot] > 0), key=lambda slot: (-rates[slot], -slot))

    @cached_property
    def _rates(self) -> Sequence[float]:
        """Worth per token of each candidate, less if it is outdated or was said often."""
        check_time()
        parts = parts_of(self._ordered)
        worth, prices = worths(self._ordered, parts), _prices(self._ordered, parts)
        counts = zip(worth, _once(self._ordered), prices, strict=True)
        return [passage * new / price for passage, new, price in counts]


def _complete(order: Sequence[int], candidates: Sequence[Passage]) -> list[int]:
    """Slots of the passages with all that revise them, in order; what revises a passage is in a later message."""
    present, complete = set[Place](), list[int]()
    for slot in reversed(order):
        if present.issuperset(candidates[slot].beside):
            present.add(candidates[slot].place)
            complete.append(slot)
    return complete[::-1]


def _outcomes(ordered: Sequence[Passage], ranks: Sequence[float]) -> dict[int, int]:
    """Slot of the best piece of its result, by slot of each call: the call alone says little."""
    outcomes: dict[int, int] = {}
    call: int | None = None
    for slot, passage in enumerate(ordered):
        if not passage.tool:
            call = slot if passage.speaker == "tool" else None
        elif call is not None and ordered[call].position == passage.position:
            best = outcomes.setdefault(call, slot)
            if ranks and ranks[slot] > ranks[best]:
                outcomes[call] = slot
    return outcomes


def _once(ordered: Sequence[Passage]) -> list[float]:
    """Factor by which a passage counts: less if it is outdated or was said often, 0 if the same is said again later."""
    said = [_wording(passage.text) for passage in ordered]
    times, last = Counter(said), {text: index for index, text in enumerate(said)}
    return [
        (1 - sum(map(len, item.outdated)) / len(item.text)) / times[text] if last[text] == index else 0.0
        for index, (item, text) in enumerate(zip(ordered, said, strict=True))
    ]


@lru_cache(maxsize=8_192)
def _wording(text: str) -> str:
    return " ".join(words(text)) or text


def spread(ranked: Sequence[T], place: Callable[[T], int]) -> list[T]:
    """Reorder items, given best first, so that the best of each of `STRETCHES` equal parts of the places alternate."""
    places = [place(item) for item in ranked]
    first, extent = min(places, default=0), max(places, default=0) - min(places, default=0) + 1
    taken = [0] * STRETCHES
    rounds: list[int] = []
    for number in places:
        stretch = (number - first) * STRETCHES // extent
        rounds.append(taken[stretch])
        taken[stretch] += 1
    return [ranked[number] for number in sorted(range(len(ranked)), key=rounds.__getitem__)]


def take_beside(quotation: Quotation, index: int, after: Mapping[int, int]) -> bool:
    """Take a candidate, and before it all that revise it and the one `after` it; True if it is new and all fit."""
    if quotation.has(index):
        return False
    others = [*map(quotation.index, quotation.candidates[index].beside)]
    if index in after:
        others.append(after[index])
    for other in others:
        take_beside(quotation, other, after)
    return all(map(quotation.has, others)) and quotation.take(index)


def _take_new(
    quotation: Quotation, indices: Sequence[int], least: int, taken: set[tuple[str, str]], after: Mapping[int, int]
) -> None:
    """Take passages in order until fewer than `least` tokens are left, without those that repeat the pairs `taken`."""
    for index in indices:
        if quotation.left < least:
            return
        pairs = _pairs(quotation.candidates[index])
        if len(pairs - taken) > REPEATED * len(pairs) and take_beside(quotation, index, after):
            taken |= pairs


def _prices(ordered: Sequence[Passage], parts: Sequence[Part]) -> list[int]:
    """Tokens of each passage's part, with the labels: its whole message, or one piece of a tool result.

    The whole message counts because half of it is rarely of use. Labels count, or greetings would be the cheapest.
    """
    by_part: dict[Part, int] = {}
    for passage, part in zip(ordered, parts, strict=True):
        by_part[part] = by_part.get(part, 0) + passage.tokens
    return [*map(by_part.__getitem__, parts)]


Part = tuple[int, int]
"""Unit for which worth is estimated: a message without its tool results, as `(position, -1)`, or one piece of a tool
result, as `(position, order)`."""


def parts_of(candidates: Sequence[Passage]) -> list[Part]:
    """Part to which each passage belongs."""
    return [(passage.position, passage.order if passage.tool else -1) for passage in candidates]


def _pairs(passage: Passage) -> frozenset[tuple[str, str]]:
    """Pairs of adjacent words of what a passage says that still holds; of all of it if nothing does."""
    text = passage.text
    for sentence in passage.outdated:
        text = text.replace(sentence, "")
    return _word_pairs(text) or _word_pairs(passage.text)


@lru_cache(maxsize=4_096)
def _word_pairs(text: str) -> frozenset[tuple[str, str]]:
    """Pairs of adjacent words, or the only word."""
    texts = words(text)
    return frozenset(pairwise(texts)) or frozenset((word, "") for word in texts)


def worths(candidates: Sequence[Passage], parts: Sequence[Part]) -> list[float]:
    """Worth of each passage's part. Candidates must be in order, with all passages of a message."""
    pieces = [_analyze(passage.text) for passage in candidates]
    messages = _messages(candidates, parts, pieces, _idf(pieces))
    talk = _peer_share(candidates, messages)
    by_part: dict[Part, float] = {}
    for part, message in messages.items():
        wording = message.wording
        sign = BOTH["mass"] * log(message.mass or float_info.min) + BOTH["times"] * wording.times
        if talk < 1 and message.speaker == "user":
            standing, value = _gives_instruction(wording.texts), not wording.asks and _has_value(wording.texts)
            sign += (1 - talk) * (CHAT["user"] + CHAT["standing"] * standing + CHAT["value"] * value)
        if talk > 0:
            sign += talk * _peer_signs(message, messages.get((part[0] - 1, -1)))
        by_part[part] = exp(sign)
    return [*map(by_part.__getitem__, parts)]


class _Wording(NamedTuple):
    """Words and signs of a text, independent of its context."""

    texts: Sequence[str]
    """The passages of the text."""
    size: int
    """Number of words."""
    words: Sequence[str]
    """Distinct words of at most `SHORT` characters, because longer ones are keys or hashes; interned, because they are
    counted at every turn."""
    asks: bool
    """True if it ends with a question."""
    times: int
    names: int
    questions: float
    """Fraction of its sentences that are questions."""


@lru_cache(maxsize=4_096)
def _analyze(*texts: str) -> _Wording:
    """Analyze the passages of a message; cached because the same messages are candidates at every turn."""
    spoken = [word for text in texts for word in words(text)]
    size, last = len(spoken), texts[-1]
    marks = sum([text.count("?") + text.count("？") for text in texts])
    stops = sum([len(_STOPS.findall(text)) for text in texts])
    return _Wording(
        texts=texts,
        size=size,
        words=tuple([intern(word) for word in dict.fromkeys(spoken) if len(word) <= SHORT]),
        asks=last.rstrip().endswith(("?", "？")),
        times=min(2, len(_TIMES.intersection(spoken))),
        names=min(4, len(_NAME.findall(" ".join(texts)))),
        questions=marks / max(1, stops),
    )


@lru_cache(maxsize=4_096)
def _gives_instruction(texts: Sequence[str]) -> bool:
    """True if a message gives a standing instruction."""
    return bool(instruction_sentences(" ".join(texts)))


@lru_cache(maxsize=4_096)
def _has_value(texts: Sequence[str]) -> bool:
    """True if a message gives a number, an identifier or a name."""
    text = " ".join(texts)
    return bool(_NUMBER.search(text) or _NAME.search(text))


def _idf(pieces: Sequence[_Wording]) -> dict[str, float]:
    """Idf of the words for which it is at least `RARE`; passages are the documents."""
    spread = Counter(chain.from_iterable([piece.words for piece in pieces]))
    logs = {times: log(len(pieces) / times) for times in set(spread.values())}
    telling = {times: value for times, value in logs.items() if value >= RARE}
    return {word: telling[times] for word, times in spread.items() if times in telling}


class _Message(NamedTuple):
    """One message in its context."""

    speaker: str
    wording: _Wording
    mass: float
    """Total idf of its distinct words that count."""
    opens: bool
    """True if it is the first of its day."""


def _messages(
    candidates: Sequence[Passage], parts: Sequence[Part], pieces: Sequence[_Wording], idf: Mapping[str, float]
) -> dict[Part, _Message]:
    by_part: dict[Part, _Message] = {}
    day: str | None = None
    start, count, value = 0, len(candidates), idf.get
    while start < count:
        part, stop = parts[start], start + 1
        while stop < count and parts[stop] == part:
            stop += 1
        wording, last = pieces[start], candidates[stop - 1]
        speaker, date = last.speaker, last.date
        if stop - start > 1:
            own = candidates[start:stop]
            wording = _analyze(*[passage.text for passage in own])
            speaker = "user" if any([passage.speaker == "user" for passage in own]) else speaker
        mass = sum(filter(None, map(value, wording.words)))
        by_part[part] = _Message(speaker, wording, mass, date != day)
        day, start = date, stop
    return by_part


def _peer_share(candidates: Sequence[Passage], messages: Mapping[Part, _Message]) -> float:
    """Degree from 0 (a chat with an assistant) to 1 (a conversation between two people), by the average message sizes.

    It is 1 if the answers have up to 1.5 times the words of the prompts, and falls to 0 at 3 times. It is also 0 if
    more than a twentieth of the passages are tool exchanges, or if the prompts are longer than `TURN_OF_TALK`. Answers
    that are said again and again, as people do not, reduce it by their share of the words.
    """
    if sum([passage.speaker == "tool" and not passage.tool for passage in candidates]) * 20 > len(candidates):
        return 0.0
    sizes: dict[str, list[int]] = {"user": [], "assistant": []}
    answers: dict[Sequence[str], int] = {}
    for message in messages.values():
        if message.speaker in sizes:
            sizes[message.speaker].append(message.wording.size)
        if message.speaker == "assistant":
            answers[message.wording.texts] = message.wording.size
    if not all(sizes.values()):
        return 0.0
    user, assistant = (sum(own) / len(own) for own in sizes.values())
    share = min(1.0, max(0.0, (3 - assistant / max(user, 1)) / 1.5)) if user <= TURN_OF_TALK else 0.0
    return share * sum(answers.values()) / max(1, sum(sizes["assistant"]))


def _peer_signs(message: _Message, before: _Message | None) -> float:
    wording = message.wording
    return (
        TALK["answers"] * (before is not None and before.wording.asks)
        + TALK["opens"] * message.opens
        + TALK["names"] * wording.names
        + TALK["asks"] * wording.questions
    )


def mark_changes(
    history: History,
    outline: Outline,
    ranked: Sequence[tuple[Passage, float]],
    counter: TokenCounter,
    *,
    until: int | None = None,
    quote: Callable[[int], Iterable[Passage]] = lambda _: (),
) -> list[tuple[Passage, float]]:
    """Mark passages that a later message revises, and add the passages that revise them.

    A revising passage gets at least the score of the passage that it revises, and precedes it in the list.

    Args:
        history: The raw history.
        outline: Its turns.
        ranked: Passages with their scores; above 0 if they answer.
        counter: Prices the marks.
        until: Position of the prompt that asks; later revisions are ignored. None for the end of the history.
        quote: Returns the passages of a message that may be added; by default none.
    """
    changes, until = changes_of(history), len(history) if until is None else until
    if not any(other.position in changes.later for other, _ in ranked):
        return [*ranked]
    marked: dict[Place, tuple[Passage, float]] = {}
    waiting, places = [*ranked], {passage.place for passage, _ in ranked}
    for passage, score in waiting:
        own = changes.of(passage.position, passage.text, until)
        if own:
            newest = max(change.at for change in own)
            turn = outline.turns[bisect_right(outline.starts, newest) - 1].index
            price = counter.text(f", changed at turn {turn + 1}") + 1
            revising = [*filter(None, (_revising(change, waiting, quote) for change in own))]
            passage = replace(
                passage,
                changed=turn,
                outdated=tuple(change.sentence for change in own),
                beside=tuple(other.place for other in revising),
                tokens=passage.tokens + price,
                label=passage.label + price,
            )
            for other in revising:
                kept, best = marked.get(other.place, (other, score))
                marked[other.place] = kept, max(best, score)
                if other.place not in places:
                    places.add(other.place)
                    waiting.append((other, score))
        if passage.place not in marked or own:
            marked[passage.place] = passage, max(score, marked.get(passage.place, (passage, score))[1])
    return [*marked.values()]


def _revising(
    change: Change, ranked: Sequence[tuple[Passage, float]], quote: Callable[[int], Iterable[Passage]]
) -> Passage | None:
    """The passage with the sentence that makes a change, one of those ranked if possible; None if there is none."""
    own = [other for other, _ in ranked if other.position == change.at and change.later in other.text]
    return next(iter(own or [other for other in quote(change.at) if change.later in other.text]), None)
