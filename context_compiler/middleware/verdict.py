"""Verdict on the cost of a session: the cheapest of some settings, or that sending everything costs less.

A session is replayed with each setting of a grid; no model is asked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from statistics import mean
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import ModelRequestContext

from context_compiler.compiler.metrics import CACHED, FRESH, Sent, broken_pairs
from context_compiler.compiler.policy import DEFAULT_BUDGET
from context_compiler.messages.history import Reader
from context_compiler.middleware.again import recorded_settings
from context_compiler.middleware.capability import ContextCompiler
from context_compiler.middleware.replay import LiveSession, PlainSession, Seen, replay, request_points, with_answer
from context_compiler.record.values import Record, fixed_tokens, input_price
from context_compiler.settings import Amount
from context_compiler.tokens.prices import dollars, price_of

SIZES = (0.5, 1, 2)
"""Budgets that are tried, as multiples of the given one."""

RECALLS = (0.15, 1.0)
"""Values of `recall` that are tried, unless one is given."""

Setting = tuple[int, Amount]
"""A budget and a value of `recall`."""

Tried = tuple[int, Amount, Sequence[Sent]]
"""Budget, `recall` and requests of one setting."""


def charge_of(model: str) -> Callable[[int, int], float]:
    """Cost of a request by its tokens and those read from the cache: in dollars, or plain input tokens if unpriced."""
    price = price_of(model)
    if price is None:
        return lambda tokens, cached: CACHED * cached + FRESH * (tokens - cached)
    return lambda tokens, cached: float(price.cost(tokens, cached=cached))


PRICE_ONLY = "Only prices are compared: a smaller view leaves more out."
"""Reservation about every verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The cheapest view of a grid of settings beside sending everything."""

    budget: int
    recall: Amount
    cost: float
    """Cost of the whole session with these settings."""
    everything: float
    """Cost of the whole session if everything is sent."""
    now: float | None
    """Cost of the whole session with the recorded settings; None if nothing is recorded."""
    priced: bool
    """True if costs are in US dollars; else they are in plain input tokens."""
    pays_from: int
    """Tokens of history from which on a request with everything costs more than the average one with such a view: an
    estimate, at least the size of this session."""

    def __str__(self) -> str:
        """The verdict in one sentence."""
        unit = "" if self.priced else " uncached input tokens"
        now = "" if self.now is None else f", the present settings {self._amount(self.now)}"
        best, whole = self._amount(self.cost), self._amount(self.everything)
        if self.cost < self.everything:
            settings = f"budget {self.budget:,}, recall {self.recall}"
            return f"use {settings}: this costs {best}{unit}{now}, sending everything {whole}"
        settings = f"a budget of {self.budget:,} with recall {self.recall}"
        cheaper = f"sending everything is cheaper here: it costs {whole}{unit}, {settings} {best}"
        same = f"sending everything costs the same here, {whole}{unit}"
        said = cheaper if self.cost > self.everything else same
        return f"{said}{now}; a view pays from about {self.pays_from:,} tokens on"

    def _amount(self, cost: float) -> str:
        return dollars(Decimal(cost)) if self.priced else f"like {round(cost):,}"


def verdict_of(
    everything: Sequence[Sent], tried: Sequence[Tried], model: str, *, now: Setting | None = None
) -> Verdict:
    """Find the cheapest of some settings.

    Args:
        everything: Requests with the whole history.
        tried: Budget, `recall` and requests of each setting.
        model: Model whose prices apply.
        now: The setting that is in use, one of those tried; None if there is none.
    """
    charge = charge_of(model)

    def cost(sent: Sequence[Sent]) -> float:
        return sum(charge(request.tokens, request.cached) for request in sent)

    budget, recall, sent = min(tried, key=lambda setting: cost(setting[2]))
    rate = charge(1_000, 1_000) / 1_000
    new = mean(charge(request.tokens, request.cached) - rate * request.tokens for request in everything)
    return Verdict(
        budget=budget,
        recall=recall,
        cost=cost(sent),
        everything=cost(everything),
        now=next((cost(sent) for *setting, sent in tried if (*setting,) == now), None),
        priced=price_of(model) is not None,
        pays_from=max(budget, everything[-1].tokens, int(round((cost(sent) / len(sent) - new) / rate, -2))),
    )


class Everything(AbstractCapability[Any]):
    """Capability that notes requests before a compiler changes them: what the host alone would send."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._requests: deque[list[ModelMessage]] = deque()

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Note the messages of a request."""
        self._requests.append(list(request_context.messages))
        return request_context

    async def next_request(self, messages: list[ModelMessage], budget: int) -> Sequence[ModelMessage]:
        """Return the messages of the next noted request, with broken tool calls repaired as the host would."""
        noted = self._requests.popleft()
        whole = not any(broken_pairs(map(self._reader.one, noted)))
        return noted if whole else await LiveSession([]).request(messages)


def grid_of(budget: int, recalls: Sequence[Amount] = RECALLS) -> list[Setting]:
    """The settings that are tried around a budget."""
    return [(int(size * budget), value) for size in SIZES for value in recalls]


async def replay_grid(
    messages: Sequence[ModelMessage],
    grid: Sequence[Setting],
    compiler: Callable[..., ContextCompiler],
    reader: Reader,
    seen: Seen | None = None,
    last: int | None = None,
) -> list[Tried]:
    """Replay a session, or its `last` requests, with each setting; `compiler` gets it as `budget` and `recall`."""
    tried: list[Tried] = []
    for budget, recall in grid:
        session = LiveSession([compiler(budget=budget, recall=recall)])
        tried.append((budget, recall, await replay(messages, session, reader, seen=seen, last=last)))
    return tried


def plain_compiler(**settings: Any) -> ContextCompiler:
    """Compiler that asks no model and records nothing."""
    return ContextCompiler(model="none", store=None, system=None, **settings)


async def replay_whole(messages: Sequence[ModelMessage], reader: Reader, *, last: int | None = None) -> list[Sent]:
    """Requests of a session, or its `last` ones, as the host alone would send them."""
    host = Everything(reader)
    await replay(messages, LiveSession([host]), reader, last=last)
    return await replay(messages, PlainSession(host.next_request, 0), reader, last=last)


def with_fixed(sent: Iterable[Sent], tokens: int) -> list[Sent]:
    """Requests with instructions and schemas of some tokens, which the prompt cache contains from the second on."""
    return [
        replace(request, tokens=request.tokens + tokens, cached=request.cached + tokens * (index > 0))
        for index, request in enumerate(sent)
    ]


async def recorded_verdict(
    raw: Sequence[ModelMessage], record: Record, reader: Reader, *, last: int | None = None
) -> Verdict | None:
    """Verdict on a recorded session; None if nothing in it was answered.

    Args:
        raw: Raw history of a request.
        record: The record of that request, whose model, budget, instructions and schemas count.
        reader: Counts the tokens.
        last: Number of requests that are replayed, the newest; None replays all.
    """
    if not request_points(raw):
        return None
    raw = with_answer(raw)
    fixed, budget = fixed_tokens(record), record.budget or DEFAULT_BUDGET
    now = (budget, recorded_settings(record)["recall"])
    grid = [(max(1, size - fixed), value) for size, value in dict.fromkeys((*grid_of(budget), now))]
    tried = await replay_grid(raw, grid, plain_compiler, reader, last=last)
    whole = await replay_whole(raw, reader, last=last)
    measured = [(size + fixed, value, with_fixed(sent, fixed)) for size, value, sent in tried]
    return verdict_of(with_fixed(whole, fixed), measured, input_price(record).model, now=now)
