"""Token prices, looked up offline in `genai-prices`, and amounts of money.

Many models charge more per token for long requests, so a `Price` has rates by size of the request. A model that
`genai-prices` does not know has no price (None); it is never treated as free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from importlib import import_module
from typing import Any, Self, TypeAlias, cast

from context_compiler.errors import SettingsError
from context_compiler.settings import MAX_TOKENS, Amount, check_amount

MILLION = 1_000_000
PROBE = 1_000
"""Tokens of the sample requests by which rates are determined."""

NANO = 10**9
NANO_USD = "nano_usd"
"""Key in a recorded usage: its cost as reported by the host, in billionths of a US dollar."""

FALLBACK = "fallback:"
"""Prefix of the name of the host's `FallbackModel`; the names of its models follow, separated by commas."""

MAX_USD = 1_000_000
"""Maximum amount of money that can be given, in US dollars."""


@dataclass(frozen=True, slots=True)
class Money:
    """An amount of US dollars: `Money(0.02)` or `Money("$0.02")`."""

    usd: Decimal | float | str
    _: KW_ONLY
    fallback: Amount | None = None
    """Budget to use if the model's price is unknown: tokens or a share of the window; None is the default budget."""

    def __post_init__(self) -> None:
        """Check the amount and the fallback.

        Raises:
            SettingsError: The amount is not a number above 0, or the fallback is wrong.
        """
        usd: object = self.usd
        try:
            amount = Decimal("nan") if isinstance(usd, bool) else Decimal(str(usd).strip().removeprefix("$"))
        except InvalidOperation:
            amount = Decimal("nan")
        if not amount.is_finite() or not 0 < amount <= MAX_USD:
            raise SettingsError(f"Money({usd!r}): give US dollars above 0 and at most {MAX_USD:,}, such as 0.02")
        check_amount(self.fallback, name="fallback")
        object.__setattr__(self, "usd", amount)

    def __str__(self) -> str:
        return dollars(self.amount)

    @property
    def amount(self) -> Decimal:
        """Amount in US dollars."""
        return Decimal(self.usd)

    @classmethod
    def parse(cls, given: Money | str, *, name: str) -> Self | Money:
        """Parse a string such as "$0.02"; an amount of money is returned unchanged.

        Raises:
            SettingsError: The value is neither; the message names `name`.
        """
        if isinstance(given, Money):
            return given
        if not given.strip().startswith("$"):
            raise SettingsError(f"{name}={given!r}: give money such as Money(0.50) or '$0.50'")
        return cls(given)


Budget: TypeAlias = Amount | Money | str
"""Tokens, a share of the window, or money; a string such as "$0.02" is money."""


def check_budget(budget: Budget | None, *, name: str) -> None:
    """Check that a budget is tokens, a share, or money; None is accepted.

    Raises:
        SettingsError: It is none of these; the message names `name`.
    """
    if isinstance(budget, str):
        if not budget.strip().startswith("$"):
            allowed = "tokens such as 8_000, a share such as 0.5, or money such as '$0.02'"
            raise SettingsError(f"{name}={budget!r}: give {allowed}")
        Money.parse(budget, name=name)
    elif not isinstance(budget, Money):
        check_amount(budget, name=name)


def dollars(amount: Decimal | None) -> str:
    """Format an amount of US dollars; "unknown" for None, and "<$0.0001" for a smaller amount above 0."""
    if amount is None:
        return "unknown"
    if 0 < amount < Decimal("0.0001"):
        return "<$0.0001"
    return f"${amount:,.2f}" if amount >= 1 else f"${amount:.4f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Prices of a model for requests above a size, in US dollars per million tokens."""

    above: int
    """The rates apply to requests with more input tokens than this."""
    input: Decimal
    cached: Decimal
    """Price of input tokens read from the provider's prompt cache."""
    written: Decimal
    """Price of input tokens written to the prompt cache."""
    written_1h: Decimal
    """Price of input tokens written to the prompt cache for an hour."""
    output: Decimal

    def cost(self, tokens: int, *, cached: int = 0, written: int = 0, output: int = 0) -> Decimal:
        """Cost of one or several requests in US dollars; for the arguments, see `Price.cost`."""
        fresh = max(0, tokens - cached - written)
        input_cost = self.input * fresh + self.cached * cached + self.written * written
        return (input_cost + self.output * output) / MILLION


@dataclass(frozen=True, slots=True)
class Price:
    """Prices of a model for requests of all sizes."""

    rates: tuple[Rates, ...]
    """Rates by size of the request, smallest first."""

    def at(self, tokens: int) -> Rates:
        """Rates for a request with `tokens` of input."""
        return next(rates for rates in reversed(self.rates) if tokens > rates.above or not rates.above)

    def cost(self, tokens: int, *, cached: int = 0, written: int = 0, output: int = 0) -> Decimal:
        """Cost of a request in US dollars.

        Args:
            tokens: All tokens of its input.
            cached: Input tokens that are read from a prompt cache.
            written: Input tokens that are written to a prompt cache.
            output: Tokens of the answer.
        """
        return self.at(tokens).cost(tokens, cached=cached, written=written, output=output)

    def affordable(self, usd: Decimal, *, cache: str = "") -> int | None:
        """Maximum input tokens that cost at most `usd` without any cache hit; None if the model is free.

        Args:
            usd: US dollars.
            cache: "5m" or "1h" if the request is written to a prompt cache, which may cost more; else empty.
        """
        best = 0
        for rates, above in zip(self.rates, (*(tier.above for tier in self.rates[1:]), MAX_TOKENS), strict=True):
            rate = max(rates.input, {"5m": rates.written, "1h": rates.written_1h}.get(cache, rates.input))
            if not rate:
                return None
            tokens = min(int(usd * MILLION / rate), above)
            best = tokens if tokens > rates.above or not rates.above else best
        return best


@lru_cache(maxsize=256)
def price_of(model: str, provider: str | None = None) -> Price | None:
    """Look up the price of a model by its name, such as `gpt-5` or `openai:gpt-5`; None if it is unknown."""
    prefix, _, rest = model.partition(":")
    if rest and provider is None:
        provider, model = prefix, rest
    if not model:
        return None
    table: Any = import_module("genai_prices")  # slow to import, and most commands need no price
    try:
        model_price: Any = table.calc_price(table.Usage(input_tokens=PROBE), model, provider_id=provider).model_price
    except (LookupError, ValueError):
        return None if provider is None else price_of(model)
    tiers = {
        tier.start
        for price in cast("Mapping[str, object]", vars(model_price)).values()
        for tier in getattr(price, "tiers", ())
    }

    def rate(above: int, *kinds: str) -> Decimal:
        tokens = above + PROBE
        price = model_price.calc_price(table.Usage(input_tokens=tokens, **dict.fromkeys(kinds, tokens)))
        return price["output_price" if "output_tokens" in kinds else "input_price"] * MILLION / tokens

    return Price(
        tuple(
            Rates(
                above=above,
                input=rate(above),
                cached=rate(above, "cache_read_tokens"),
                written=rate(above, "cache_write_tokens"),
                written_1h=rate(above, "cache_write_tokens", "cache_write_1h_tokens"),
                output=rate(above, "output_tokens"),
            )
            for above in sorted({0, *tiers})
        )
    )


@lru_cache(maxsize=256)
def highest_price(model: str, provider: str | None = None) -> Price | None:
    """Look up the price of a model; for a `FallbackModel`, the highest of each rate, because any model may answer.

    None if the price of one of the models is unknown.
    """
    if not model.startswith(FALLBACK):
        return price_of(model, provider)
    names, providers = (text.replace(FALLBACK, "").split(",") for text in (model, provider or ""))
    providers_of: list[str | None] = [*providers] if len(providers) == len(names) else [None] * len(names)
    looked_up = [price_of(name, provider_name) for name, provider_name in zip(names, providers_of, strict=True)]
    prices = [price for price in looked_up if price is not None]
    if len(prices) < len(looked_up):
        return None
    tiers = sorted({rates.above for price in prices for rates in price.rates})
    highest = {above: [price.at(above + 1) for price in prices] for above in tiers}
    kinds = [field.name for field in fields(Rates) if field.name != "above"]
    return Price(
        tuple(
            Rates(above=above, **{kind: max(getattr(rate, kind) for rate in rates) for kind in kinds})
            for above, rates in highest.items()
        )
    )


def cost_of(model: str, usage: Mapping[str, int], provider: str | None = None) -> Decimal | None:
    """Cost of a usage in US dollars: as reported by the host, else by the model's price; None if that is unknown.

    For a `FallbackModel` it is the most that the usage may cost, because any of its models may have answered.
    """
    if NANO_USD in usage:
        return Decimal(usage[NANO_USD]) / NANO
    price = highest_price(model, provider)
    if price is None:
        return None
    return price.cost(
        usage.get("input_tokens", 0),
        cached=usage.get("cache_read_tokens", 0),
        written=usage.get("cache_write_tokens", 0),
        output=usage.get("output_tokens", 0),
    )
