"""Verdict of `bench`: the cheapest of the settings that were tried, or that sending everything costs less."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from statistics import mean

from context_compiler.cli.text import number
from context_compiler.compiler.metrics import CACHED, FRESH, Sent
from context_compiler.tokens.prices import dollars, price_of

SIZES = (0.5, 1, 2)
"""Budgets that are tried, as multiples of the given one."""

RECALLS = (0.15, 0.5)
"""Values of `recall` that are tried, unless one is given."""

Tried = tuple[int, str, Sequence[Sent]]
"""Budget, `recall` and requests of one setting."""


def charge_of(model: str) -> Callable[[int, int], float]:
    """Cost of a request by its tokens and those read from the cache: in dollars, or plain input tokens if unpriced."""
    price = price_of(model)
    if price is None:
        return lambda tokens, cached: CACHED * cached + FRESH * (tokens - cached)
    return lambda tokens, cached: float(price.cost(tokens, cached=cached))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The cheapest view of a grid of settings beside sending everything."""

    budget: int
    recall: str
    """Value of `recall`, as given."""
    cost: float
    """Cost of the whole session with these settings."""
    everything: float
    """Cost of the whole session if everything is sent."""
    priced: bool
    """True if costs are in US dollars; else they are in plain input tokens."""
    pays_from: int
    """Tokens of history from which on a request with everything costs more than the average one with such a view: an
    estimate, at least the size of this session."""

    def __str__(self) -> str:
        """The verdict in one sentence."""
        settings = f"budget {self.budget:,}, recall {self.recall}"
        if self.cost < self.everything:
            return f"use {settings}: {self._amount(self.everything)} → {self._amount(self.cost)}"
        best = f"{self._amount(self.everything)}, and {self._amount(self.cost)} with {settings}"
        return f"sending everything is cheaper here ({best}); a view pays from about {self.pays_from:,} tokens on"

    def _amount(self, cost: float) -> str:
        return dollars(Decimal(cost)) if self.priced else f"{number(round(cost))} input tokens"


def verdict_of(everything: Sequence[Sent], tried: Sequence[Tried], model: str) -> Verdict:
    """Find the cheapest of some settings.

    Args:
        everything: Requests with the whole history.
        tried: Budget, `recall` and requests of each setting.
        model: Model whose prices apply.
    """
    charge = charge_of(model)

    def cost(sent: Sequence[Sent]) -> float:
        return sum(charge(one.tokens, one.cached) for one in sent)

    budget, recall, sent = min(tried, key=lambda one: cost(one[2]))
    rate = charge(1_000, 1_000) / 1_000
    new = mean(charge(one.tokens, one.cached) - rate * one.tokens for one in everything)
    return Verdict(
        budget=budget,
        recall=recall,
        cost=cost(sent),
        everything=cost(everything),
        priced=price_of(model) is not None,
        pays_from=max(budget, everything[-1].tokens, int(round((cost(sent) / len(sent) - new) / rate, -2))),
    )
