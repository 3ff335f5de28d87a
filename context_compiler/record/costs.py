"""Input costs of recorded requests and compiles, in US dollars: as sent, and as if the whole history had been sent.

Costs of answers are left out, because a view does not change them. The prompt cache is assumed to contain the longest
beginning that a request shares with the previous one. Requests of unknown models or prices are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import cast

from context_compiler.messages.printable import safe_line
from context_compiler.record.values import Compile, Record
from context_compiler.tokens.prices import cost_of, dollars, highest_price

PRICE = "price"
"""Key in a record's ledger; its value contains the model, the provider and the cached tokens."""

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
    given = record.ledger.get(PRICE)
    facts = cast("dict[str, object]", given) if isinstance(given, dict) else dict[str, object]()
    model, provider = str(facts.get("model") or ""), facts.get("provider")
    price = highest_price(model, provider if isinstance(provider, str) else None)
    cached, cached_raw = (_tokens(facts.get(name)) for name in ("cached", "cached_raw"))
    sent = everything = None
    if price is not None:
        sent = price.cost(record.tokens_sent, cached=min(cached, record.tokens_sent))
        everything = price.cost(record.tokens_raw, cached=min(cached_raw, record.tokens_raw))
    return RequestCost(model=model, sent=sent, everything=everything, cached=cached)


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
        known = self.sent is not None or self.everything is not None
        parts = [
            *([f"{dollars(self.sent)} sent"] if known else []),
            *([f"{dollars(self.everything)} if everything had been sent, with the cache"] if known else []),
            f"{dollars(self.compiles)} for compiles",
        ]
        if self.priced < self.requests and self.priced:
            parts.append(f"prices are known for {self.priced:,} of {self.requests:,} requests")
        if self.unknown:
            parts.append(f"no price is known for {', '.join(map(safe_line, self.unknown))}")
        return ", ".join(parts)


def add_costs(records: Sequence[Record], unsent: Sequence[Compile] = ()) -> Costs:
    """Add up the costs of requests and of compiles; a compile that several requests use counts once.

    `unsent` are compiles that no request uses.
    """
    found = [request_cost(record) for record in records]
    made = {record.summary_id: record.compile for record in records if record.compile and record.compile.usage}
    compiles = [(one.model_alias, compile_cost(one)) for one in (*made.values(), *unsent)]
    unknown = {one.model or NO_MODEL for one in found if one.sent is None}
    unknown |= {model for model, cost in compiles if cost is None}
    return Costs(
        requests=len(found),
        priced=sum(one.sent is not None for one in found),
        sent=_total([one.sent for one in found]),
        everything=_total([one.everything for one in found]),
        compiles=_total([cost for _, cost in compiles]) if compiles else Decimal(0),
        unknown=tuple(sorted(unknown)),
    )


def _total(amounts: Sequence[Decimal | None]) -> Decimal | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known, Decimal(0)) if known or not amounts else None


def _tokens(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0
