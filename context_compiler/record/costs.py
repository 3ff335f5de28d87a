"""Input costs of recorded requests and compiles, in US dollars: as sent, and as if the whole history had been sent.

Costs of answers are left out, because a view does not change them. The prompt cache is assumed to contain the longest
beginning that a request shares with the previous one. Requests of unknown models or prices are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from context_compiler.messages.printable import safe_line
from context_compiler.record.totals import MadeCompile, RequestSums
from context_compiler.record.values import Compile, Record, input_price
from context_compiler.tokens.prices import cost_of, dollars, highest_price

NO_MODEL = "requests without a model's name"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCost:
    """Input cost of one request in US dollars; None if the price is unknown."""

    model: str
    sent: Decimal | None
    everything: Decimal | None
    """Cost if the whole history had been sent, with prompt caching."""
    cached: int
    """Tokens of the sent request that the prompt cache contains."""


def request_cost(record: Record) -> RequestCost:
    """Compute the input cost of a recorded request."""
    pricing = input_price(record)
    price = highest_price(pricing.model, pricing.provider)
    sent = everything = None
    if price is not None:
        sent = price.cost(record.tokens_sent, cached=pricing.cached)
        everything = price.cost(record.tokens_raw, cached=pricing.cached_raw)
    return RequestCost(model=pricing.model, sent=sent, everything=everything, cached=pricing.cached)


def _cost_of_sums(sums: RequestSums) -> RequestCost:
    """Compute the input cost of requests that are priced alike."""
    price = highest_price(sums.model, sums.provider)
    sent = everything = None
    if price is not None:
        sent = price.at(sums.largest_sent).cost(sums.tokens_sent, cached=sums.cached)
        everything = price.at(sums.largest_raw).cost(sums.tokens_raw, cached=sums.cached_raw)
    return RequestCost(model=sums.model, sent=sent, everything=everything, cached=sums.cached)


def sizes_of(model: str, provider: str | None) -> tuple[int, ...]:
    """Sizes of a request, in tokens, above which other rates of a model apply."""
    price = highest_price(model, provider)
    return () if price is None else tuple(rates.above for rates in price.rates if rates.above)


def compile_cost(compile: Compile | None) -> Decimal | None:
    """Compute the cost of a compile; 0 if no model was used, None if the price is unknown."""
    if compile is None or not compile.usage:
        return Decimal(0)
    return cost_of(compile.model_alias, compile.usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Total costs of several requests and their compiles, in US dollars; None if no price is known."""

    requests: int
    priced: int
    """Requests with a known price, which the amounts cover."""
    sent: Decimal | None
    everything: Decimal | None
    compiles: Decimal | None
    unknown: tuple[str, ...]
    """Models whose price is unknown."""

    @property
    def text(self) -> str:
        """The costs in one line, for people."""
        parts = [f"{dollars(self.compiles)} for compiles"]
        if self.sent is not None or self.everything is not None:
            everything = f"{dollars(self.everything)} if everything had been sent, with the cache"
            parts = [f"{dollars(self.sent)} sent", everything, *parts]
        if self.priced < self.requests and self.priced:
            parts.append(f"prices are known for {self.priced:,} of {self.requests:,} requests")
        if self.unknown:
            names = (safe_line(model).rstrip(":") for model in self.unknown)  # a function's model ends with a colon
            parts.append(f"no price is known for {', '.join(names)}")
        return ", ".join(parts)


def add_costs(sums: Iterable[RequestSums], made: Iterable[MadeCompile]) -> Costs:
    """Add up the costs of requests and of compiles, each of which counts once."""
    costs = [(entry.requests, _cost_of_sums(entry)) for entry in sums if entry.requests]
    compiles = [(entry.model, cost_of(entry.model, entry.usage)) for entry in made]
    unknown = {cost.model or NO_MODEL for _, cost in costs if cost.sent is None}
    unknown |= {model for model, cost in compiles if cost is None}
    return Costs(
        requests=sum(count for count, _ in costs),
        priced=sum(count for count, cost in costs if cost.sent is not None),
        sent=_total([cost.sent for _, cost in costs]),
        everything=_total([cost.everything for _, cost in costs]),
        compiles=_total([cost for _, cost in compiles]) if compiles else Decimal(0),
        unknown=tuple(sorted(unknown)),
    )


def _total(amounts: Sequence[Decimal | None]) -> Decimal | None:
    priced = [amount for amount in amounts if amount is not None]
    return sum(priced, Decimal(0)) if priced or not amounts else None
