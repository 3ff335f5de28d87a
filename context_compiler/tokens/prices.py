"""Prices of tokens, by `genai-prices`, offline; a model that it does not know has no price."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache

from genai_prices import Usage, calc_price

MILLION = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Prices of a model in US dollars a million tokens."""

    input: Decimal
    cached: Decimal
    """Input tokens that come from the provider's prompt cache."""
    output: Decimal

    def cost(self, *, fresh: int = 0, cached: int = 0, output: int = 0) -> Decimal:
        """Cost of tokens in US dollars."""
        return (self.input * fresh + self.cached * cached + self.output * output) / MILLION


@lru_cache(maxsize=256)
def price_of(model: str, provider: str | None = None) -> Price | None:
    """Price of a model by its name, `gpt-5` or `openai:gpt-5`; None if it is unknown.

    Small requests are priced: some models ask more for very long ones.
    """
    named, _, rest = model.partition(":")
    if rest and provider is None:
        provider, model = named, rest
    if not model:
        return None
    tokens = 1_000
    try:
        fresh = calc_price(Usage(input_tokens=tokens), model, provider_id=provider).total_price
        cached = calc_price(
            Usage(input_tokens=tokens, cache_read_tokens=tokens), model, provider_id=provider
        ).total_price
        output = calc_price(Usage(output_tokens=tokens), model, provider_id=provider).total_price
    except (LookupError, ValueError):
        return None if provider is None else price_of(model)
    scale = Decimal(MILLION) / tokens
    return Price(input=fresh * scale, cached=cached * scale, output=output * scale)


def cost_of(model: str, usage: Mapping[str, int], provider: str | None = None) -> Decimal | None:
    """Cost of a usage in US dollars; None if the model is unknown."""
    price = price_of(model, provider)
    if price is None:
        return None
    cached = usage.get("cache_read_tokens", 0)
    return price.cost(
        fresh=max(0, usage.get("input_tokens", 0) - cached), cached=cached, output=usage.get("output_tokens", 0)
    )
