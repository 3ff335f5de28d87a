"""Prices of tokens, by `genai-prices`, offline, and amounts of money; a model that it does not know has no price.

Many models ask more for a token of a long request: a `Price` has the rates of every size. Nothing that has no known
price is ever counted as free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Self, TypeAlias

from genai_prices import Usage, calc_price

from context_compiler.errors import SettingsError
from context_compiler.settings import MOST, Amount, check_amount

MILLION = 1_000_000
PROBE = 1_000
"""Tokens of the requests by which rates are read."""

NANO = 10**9
NANO_USD = "nano_usd"
"""Key of a usage on the record: its cost in billionths of a US dollar, as the host knew it."""

FALLBACK = "fallback:"
"""Prefix of the name of the host's `FallbackModel`; the names of its models follow."""

MOST_USD = 1_000_000


@dataclass(frozen=True, slots=True)
class Money:
    """An amount of US dollars: `Money(0.02)` or `Money("$0.02")`."""

    usd: Decimal | float | str
    _: KW_ONLY
    fallback: Amount | None = None
    """As a budget: tokens, or a share of the window, where the model's price is unknown; None is the default budget."""

    def __post_init__(self) -> None:
        """Check the amount.

        Raises:
            SettingsError: It is not a number above 0, or the fallback is wrong.
        """
        given: object = self.usd
        try:
            amount = Decimal("nan") if isinstance(given, bool) else Decimal(str(given).strip().removeprefix("$"))
        except InvalidOperation:
            amount = Decimal("nan")
        if not amount.is_finite() or not 0 < amount <= MOST_USD:
            raise SettingsError(f"Money({given!r}): give US dollars above 0 and at most {MOST_USD:,}, such as 0.02")
        check_amount(self.fallback, name="fallback")
        object.__setattr__(self, "usd", amount)

    def __str__(self) -> str:
        return dollars(self.amount)

    @property
    def amount(self) -> Decimal:
        """US dollars."""
        return Decimal(self.usd)

    @classmethod
    def parse(cls, given: Money | str, *, name: str) -> Self | Money:
        """An amount of money, or of a text such as "$0.02".

        Raises:
            SettingsError: It is neither.
        """
        if isinstance(given, Money):
            return given
        if not given.strip().startswith("$"):
            raise SettingsError(f"{name}={given!r}: give money such as Money(0.50) or '$0.50'")
        return cls(given)


Budget: TypeAlias = Amount | Money | str
"""A budget: tokens, a share of the window, or money; a text is money, such as "$0.02"."""


def check_budget(budget: Budget | None, *, name: str) -> None:
    """Refuse a budget that is neither tokens, nor a share, nor money.

    Raises:
        SettingsError: It is none of these.
    """
    if isinstance(budget, str):
        if not budget.strip().startswith("$"):
            allowed = "tokens such as 8_000, a share such as 0.5, or money such as '$0.02'"
            raise SettingsError(f"{name}={budget!r}: give {allowed}")
        Money.parse(budget, name=name)
    elif not isinstance(budget, Money):
        check_amount(budget, name=name)


def dollars(amount: Decimal | None) -> str:
    """An amount as text; "unknown" for None, and never "$0" for anything above it."""
    if amount is None:
        return "unknown"
    if 0 < amount < Decimal("0.0001"):
        return "<$0.0001"
    return f"${amount:,.2f}" if amount >= 1 else f"${amount:.4f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Prices of a model for requests from a size on, in US dollars a million tokens."""

    above: int
    """Input tokens of a request above which they hold."""
    input: Decimal
    cached: Decimal
    """Input tokens that come from the provider's prompt cache."""
    written: Decimal
    """Input tokens that are written to it."""
    written_1h: Decimal
    """The same for an hour."""
    output: Decimal


@dataclass(frozen=True, slots=True)
class Price:
    """Prices of a model for requests of all sizes, the smallest first."""

    rates: tuple[Rates, ...]

    def at(self, tokens: int) -> Rates:
        """Rates of a request with `tokens` of input."""
        return next(rates for rates in reversed(self.rates) if tokens > rates.above or not rates.above)

    def cost(self, tokens: int, *, cached: int = 0, written: int = 0, output: int = 0) -> Decimal:
        """Cost of a request in US dollars.

        Args:
            tokens: All of its input.
            cached: Part of it that comes from a prompt cache.
            written: Part of it that is written to one.
            output: Tokens of the answer.
        """
        rates, fresh = self.at(tokens), max(0, tokens - cached - written)
        given = rates.input * fresh + rates.cached * cached + rates.written * written
        return (given + rates.output * output) / MILLION

    def affordable(self, usd: Decimal, *, cache: str = "") -> int | None:
        """The most input tokens that cost at most `usd` without any cache hit; None for a model that is free.

        Args:
            usd: US dollars.
            cache: "5m" or "1h" where the request is written to a prompt cache, which may cost more.
        """
        best = 0
        for rates, above in zip(self.rates, (*(one.above for one in self.rates[1:]), MOST), strict=True):
            rate = max(rates.input, {"5m": rates.written, "1h": rates.written_1h}.get(cache, rates.input))
            if not rate:
                return None
            tokens = min(int(usd * MILLION / rate), above)
            best = tokens if tokens > rates.above or not rates.above else best
        return best


@lru_cache(maxsize=256)
def price_of(model: str, provider: str | None = None) -> Price | None:
    """Price of a model by its name, `gpt-5` or `openai:gpt-5`; None if it is unknown."""
    named, _, rest = model.partition(":")
    if rest and provider is None:
        provider, model = named, rest
    if not model:
        return None
    try:
        found = calc_price(Usage(input_tokens=PROBE), model, provider_id=provider).model_price
    except (LookupError, ValueError):
        return None if provider is None else price_of(model)
    tiers = {tier.start for price in vars(found).values() for tier in getattr(price, "tiers", ())}

    def rate(above: int, **of: int) -> Decimal:
        tokens = above + PROBE
        named = {name: tokens for name, wanted in of.items() if wanted}
        if "output_tokens" in named:
            return found.calc_price(Usage(input_tokens=tokens, **named))["output_price"] * MILLION / tokens
        return found.calc_price(Usage(input_tokens=tokens, **named))["input_price"] * MILLION / tokens

    return Price(
        tuple(
            Rates(
                above=above,
                input=rate(above),
                cached=rate(above, cache_read_tokens=1),
                written=rate(above, cache_write_tokens=1),
                written_1h=rate(above, cache_write_tokens=1, cache_write_1h_tokens=1),
                output=rate(above, output_tokens=1),
            )
            for above in sorted({0, *tiers})
        )
    )


@lru_cache(maxsize=256)
def highest_price(model: str, provider: str | None = None) -> Price | None:
    """Price of a model; of a chain of fallbacks the highest of each rate, because it is not known who will answer.

    None if the price of one of them is unknown.
    """
    if not model.startswith(FALLBACK):
        return price_of(model, provider)
    names, providers = (text.replace(FALLBACK, "").split(",") for text in (model, provider or ""))
    of: list[str | None] = [*providers] if len(providers) == len(names) else [None] * len(names)
    found = [price_of(name, one) for name, one in zip(names, of, strict=True)]
    known = [price for price in found if price is not None]
    if len(known) < len(found):
        return None
    tiers = sorted({rates.above for price in known for rates in price.rates})
    highest = {above: [price.at(above + 1) for price in known] for above in tiers}
    return Price(
        tuple(
            Rates(
                above=above,
                input=max(one.input for one in rates),
                cached=max(one.cached for one in rates),
                written=max(one.written for one in rates),
                written_1h=max(one.written_1h for one in rates),
                output=max(one.output for one in rates),
            )
            for above, rates in highest.items()
        )
    )


def cost_of(model: str, usage: Mapping[str, int], provider: str | None = None) -> Decimal | None:
    """Cost of a usage in US dollars: what the host knew, else by the model's price; None if that is unknown."""
    if NANO_USD in usage:
        return Decimal(usage[NANO_USD]) / NANO
    price = price_of(model, provider)
    if price is None:
        return None
    return price.cost(
        usage.get("input_tokens", 0),
        cached=usage.get("cache_read_tokens", 0),
        written=usage.get("cache_write_tokens", 0),
        output=usage.get("output_tokens", 0),
    )
