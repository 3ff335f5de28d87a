"""Selection of passages within a room: answers to the question first, best first, the rest by worth.

What covers most of a past that nothing is asked of is budgeted maximum coverage: the next passage is always
the one with the largest gain for a token, and a gain only shrinks as more is taken, so it is computed again
only where it might win (lazy greedy; Minoux 1978, Lin and Bilmes 2011). The gain of a passage is what its message is
worth for its price, for a message is needed whole or not at all, times what of the passage has not been said yet,
measured by its word pairs.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from math import log

from context_compiler.recall.informativeness import words, worths
from context_compiler.recall.passages import Passage, Quotation, passages, quoted
from context_compiler.recall.ranking import BESIDE

__all__ = ["Passage", "Quotation", "choose", "passages", "quoted"]

SMALLEST = 8
"""Tokens; less room than this holds no passage."""

REPEATED = 0.25
"""A passage counts in full while at least this share of its word pairs is new."""

LATER = 1.0
"""Score lost by a passage that answers nothing against an equal one that does."""

LEANING = 0.4
"""Weight of log worth per token beside the score for the question."""

USUAL = 40
"""Tokens; where something is asked, a message that is shorter gains nothing by it: chatter would hide the answer."""

NEAR = 0.98
"""A gain this close to the best is the best: computing on would change little."""


def choose(candidates: Sequence[Passage], room: int, ranks: Sequence[float] = ()) -> tuple[Passage, ...]:
    """The passages that tell most of these, together at most `room` tokens as `quoted` writes them, in order.

    Where any of `ranks`, which say how much each candidate answers a question, is above 0, they go in this order.
    Else, in a chat with an assistant the user's own words come first, short messages and standing
    instructions before long ones; in a talk between people what answers, opens and names. Ties go to the
    earlier passage.
    """
    order = sorted(range(len(candidates)), key=lambda at: (candidates[at].position, candidates[at].order))
    quotation = Quotation([candidates[at] for at in order], room)
    worth, prices = worths(quotation.candidates), _prices(quotation.candidates)
    answers = max(ranks, default=0.0) > 0
    leaning = [LEANING * log(one / max(USUAL, price)) for one, price in zip(worth, prices, strict=True)]
    keys = [-_merit(ranks[index]) - leaning[at] for at, index in enumerate(order)] if answers else []
    for at in sorted(range(len(keys)), key=keys.__getitem__):
        if quotation.left < SMALLEST:
            break
        quotation.take(at)
    if quotation.left >= SMALLEST:
        _fill(quotation, [one / price for one, price in zip(worth, prices, strict=True)])
    return quotation.passages


def _merit(rank: float) -> float:
    """A rank by which what answers nothing comes in between: late answers are weaker than a good neighbourhood."""
    return rank if rank > 0 else rank + BESIDE - LATER


def _prices(ordered: Sequence[Passage]) -> list[int]:
    """Tokens of each passage's whole message."""
    found: Counter[int] = Counter()
    for passage in ordered:
        found[passage.position] += _price(passage)
    return [found[passage.position] for passage in ordered]


def _fill(quotation: Quotation, rates: Sequence[float]) -> None:
    """Take what is worth most for its price, until the room is used."""
    ordered = quotation.candidates
    waiting = [(-rate, index) for index, rate in enumerate(rates) if not quotation.has(index)]
    heapq.heapify(waiting)
    pairs: dict[int, frozenset[tuple[str, str]]] = {}
    told = {pair for passage in quotation.passages for pair in _pairs(passage)}
    while waiting and quotation.left >= SMALLEST:
        _, index = heapq.heappop(waiting)
        if index not in pairs:
            pairs[index] = _pairs(ordered[index])
        gain = rates[index] * _unsaid(pairs[index], told)
        if waiting and gain < NEAR * -waiting[0][0]:
            heapq.heappush(waiting, (-gain, index))
        elif gain and quotation.take(index):
            told |= pairs[index]


def _price(passage: Passage) -> int:
    """Tokens of a passage among others: with its own label at most, without the date."""
    return max(1, passage.tokens - (passage.opening + passage.day if passage.first else passage.label))


def _pairs(passage: Passage) -> frozenset[tuple[str, str]]:
    said = words(passage.text)
    return frozenset(pairwise(said)) or frozenset((word, "") for word in said)


def _unsaid(pairs: frozenset[tuple[str, str]], told: set[tuple[str, str]]) -> float:
    """1 for what is new, less where most of it has been said, 0 for a repetition."""
    if not pairs:
        return 0.0
    return min(1.0, (1 - len(pairs & told) / len(pairs)) / REPEATED)
