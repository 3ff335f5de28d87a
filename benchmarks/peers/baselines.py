"""Baselines that need no package: everything, the tail, head and tail, a random choice, and an oracle."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from pydantic_ai.messages import ModelMessage

from benchmarks.approaches import Approach
from context_compiler.messages.history import Reader
from context_compiler.middleware.replay import PlainSession, View, everything, newest
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
    wanted = set(evidence)

    async def view(messages: list[ModelMessage], budget: int) -> Sequence[ModelMessage]:
        holding = [at for at, message in enumerate(messages[:-1]) if text(message) in wanted]
        holding.sort(key=lambda at: price([messages[at]]))
        return chosen(messages, holding, budget)

    return view


def plain(name: str, title: str, setup: str, view: View) -> Approach:
    return Approach(
        name=name,
        title=title,
        setup=setup,
        view=view,
        session=lambda budget: PlainSession(view, budget),
        dashes={"compiles": "asks no model"},
    )


APPROACHES = (
    plain("everything", "everything", "the history as it is, without the host's repairs", everything),
    plain("tail", "the newest that fit", "a strict window: cuts anywhere, moves with every request", tail),
    plain("head-tail", "head and tail", "a fifth of the budget for the beginning, the rest for the end", head_and_tail),
    plain("random", "random messages", f"messages that fit, in a random order with seed {SEED}", at_random),
    Approach(
        name="oracle",
        title="oracle (knows the evidence)",
        setup="the messages labelled as evidence, cheapest first: the best possible result with whole messages",
        knows=True,
        dashes={"session": "there is no evidence without a question", "compiles": "asks no model"},
    ),
)
