"""Baselines that need no package but the host: everything, the tail, head and tail, a random choice, and an oracle."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence

from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import ModelMessage

from benchmarks.approaches import Approach, attached_approach
from context_compiler.messages.history import Reader
from context_compiler.middleware.replay import PlainSession, View, everything, newest
from context_compiler.recall.bm25 import damping_of, idf, saturation
from context_compiler.recall.passages import text_pieces
from context_compiler.recall.terms import passage_terms, terms
from context_compiler.tokens import TokenCounter

SEED = 7
HEAD = 0.2
"""Fraction of the budget for the head, if head and tail share it."""

READER = Reader(TokenCounter())
"""Shared by all approaches, so that each message is counted once."""

tail = newest(READER)


def price(messages: Iterable[ModelMessage]) -> int:
    return sum(READER.one(message).tokens for message in messages)


async def head_and_tail(messages: list[ModelMessage], budget: int) -> Sequence[ModelMessage]:
    stop, room = 0, int(budget * HEAD)
    while stop < len(messages) and (room := room - READER.one(messages[stop]).tokens) >= 0:
        stop += 1
    rest = messages[stop:] or messages[-1:]
    return [*messages[:stop], *await tail(rest, budget - price(messages[:stop]))]


async def at_random(messages: list[ModelMessage], budget: int) -> Sequence[ModelMessage]:
    order = list(range(len(messages) - 1))
    random.Random(SEED).shuffle(order)
    return chosen(messages, order, budget)


def chosen(messages: Sequence[ModelMessage], order: Iterable[int], budget: int) -> list[ModelMessage]:
    """Choose the last message and, in the given order, those that fit; return them in the order of the history."""
    room = budget - price(messages[-1:])
    taken: list[int] = []
    for index in order:
        tokens = price([messages[index]])
        if tokens <= room:
            room -= tokens
            taken.append(index)
    return [*(messages[index] for index in sorted(taken)), messages[-1]]


def text(message: ModelMessage) -> str:
    return "\n".join(item.text for item in READER.one(message).items)


def oracle(evidence: Sequence[str]) -> View:
    """Build a view of the messages that hold the evidence, cheapest first, and the last message."""
    wanted = tuple(evidence)

    async def view(messages: list[ModelMessage], budget: int) -> Sequence[ModelMessage]:
        holding = [position for position, message in enumerate(messages[:-1]) if text(message).endswith(wanted)]
        holding.sort(key=lambda position: price([messages[position]]))
        return chosen(messages, holding, budget)

    return view


NEIGHBOURS = 3
"""Messages on either side of one that count with it."""


def by_words(*, around: bool) -> View:
    """Build a view of the messages with the best BM25 for the last one; with `around`, also of their neighbourhoods.

    The three scores, of the message, of its neighbourhood and of its best passage, count as fractions of the best.
    """

    async def view(messages: list[ModelMessage], budget: int) -> Sequence[ModelMessage]:
        asked, said = set(terms(text(messages[-1]))), [text(message) for message in messages[:-1]]
        own = [*map(passage_terms, said)]
        starts = range(-NEIGHBOURS, len(own) - NEIGHBOURS)
        near = [sum(own[max(0, start) : start + 2 * NEIGHBOURS + 1], Counter[str]()) for start in starts]
        pieces = [
            (position, passage_terms(piece)) for position, whole in enumerate(said) for piece in text_pieces(whole)
        ]
        best = [0.0] * len(said)
        for (position, _), score in zip(pieces, bm25(asked, [piece for _, piece in pieces]), strict=True):
            best[position] = max(best[position], score)
        scores = bm25(asked, own)
        if around:
            rows = zip(scores, bm25(asked, near), best, strict=True)
            scores = [alone + nearby + 0.6 * piece for alone, nearby, piece in rows]
        order = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
        return chosen(messages, (position for position in order if scores[position] > 0), budget)

    return view


def bm25(asked: Iterable[str], documents: Sequence[Counter[str]]) -> list[float]:
    """Compute the BM25 of every document for some terms, as a fraction of the best."""
    sizes = [document.total() for document in documents]
    average = sum(sizes) / (len(sizes) or 1) or 1.0
    spread = {term: sum(term in document for document in documents) for term in asked}
    scores = [
        sum(
            idf(len(documents), spread[term]) * saturation(document[term], damping_of(size / average))
            for term in sorted(spread)
            if term in document
        )
        for document, size in zip(documents, sizes, strict=True)
    ]
    best = max(scores, default=0.0) or 1.0
    return [score / best for score in scores]


def same(messages: list[ModelMessage]) -> list[ModelMessage]:
    return messages


def plain(name: str, title: str, setup: str, view: View) -> Approach:
    return Approach(name=name, title=title, setup=setup, view=view, session=lambda budget: PlainSession(view, budget))


APPROACHES = (
    plain("everything", "everything", "the history as it is, without the host's repairs", everything),
    plain("tail", "the newest that fit", "a strict window: cuts anywhere, moves with every request", tail),
    plain("head-tail", "head and tail", "a fifth of the budget for the beginning, the rest for the end", head_and_tail),
    plain("random", "random messages", f"messages that fit, in a random order with seed {SEED}", at_random),
    plain("bm25", "BM25", "whole messages by BM25, stemmed", by_words(around=False)),
    plain("bm25-3", "BM25+3", "the same of seven messages around it and of its passages, too", by_words(around=True)),
    Approach(
        name="oracle",
        title="oracle (knows the evidence)",
        setup="the messages labelled as evidence, cheapest first: the best possible result with whole messages",
        knows=True,
        dashes={"session": "there is no evidence without a question"},
    ),
    attached_approach(
        "host",
        "Pydantic AI, everything",
        "`ProcessHistory` with a function that returns its input",
        lambda _: [ProcessHistory(same)],
        package="pydantic-ai-slim",
    ),
)
