"""Costs of recorded requests and compiles, in US dollars: as sent, and if everything had been sent, with the cache.

Answers are left out, because a view does not change them. A request counts as if the provider's prompt cache had kept
all that it begins with as the request before did; where a price or the model is unknown, it is not counted at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import cast

from context_compiler.messages.printable import safe_line
from context_compiler.record.values import Compile, Record
from context_compiler.tokens.prices import cost_of, dollars, price_of

PRICE = "price"
"""Key of a record's ledger: model, provider, and the tokens that a prompt cache has."""

NO_MODEL = "requests without a model's name"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCost:
    """Cost of the input of one request; None where no price is known."""

    model: str
    sent: Decimal | None
    everything: Decimal | None
    """Cost if everything had been sent, with the same cache."""
    cached: int
    """Tokens that the cache has of it as sent."""


def request_cost(record: Record) -> RequestCost:
    """Cost of the input of a recorded request."""
    given = record.ledger.get(PRICE)
    facts = cast("dict[str, object]", given) if isinstance(given, dict) else dict[str, object]()
    model, provider = str(facts.get("model") or ""), facts.get("provider")
    price = price_of(model, provider if isinstance(provider, str) else None)
    cached, cached_raw = (_tokens(facts.get(name)) for name in ("cached", "cached_raw"))
    sent = everything = None
    if price is not None:
        sent = price.cost(record.tokens_sent, cached=min(cached, record.tokens_sent))
        everything = price.cost(record.tokens_raw, cached=min(cached_raw, record.tokens_raw))
    return RequestCost(model=model, sent=sent, everything=everything, cached=cached)


def compile_cost(compile: Compile | None) -> Decimal | None:
    """Cost of a compile; 0 where no model was asked, None where the price is unknown."""
    if compile is None or not compile.usage:
        return Decimal(0)
    return cost_of(compile.model_alias, compile.usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Costs of several requests and of the compiles that they carry; None where no price of any is known."""

    requests: int
    priced: int
    """Requests whose price is known: the amounts are theirs."""
    sent: Decimal | None
    everything: Decimal | None
    compiles: Decimal | None
    unknown: tuple[str, ...]
    """Models whose price is unknown."""

    @property
    def text(self) -> str:
        """The costs as one line."""
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
    """Add up what was sent, what everything would have cost, and each compile once; `unsent` no request carries."""
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
