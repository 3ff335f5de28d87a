"""Money and the prices of models: what has no known price never counts as free."""

from __future__ import annotations

import pickle
from decimal import Decimal
from typing import Any

import pytest
from genai_prices import Usage, calc_price

from context_compiler import Money
from context_compiler.errors import SettingsError
from context_compiler.tokens.prices import cost_of, dollars, price_of

MODELS = ("openai:gpt-5", "anthropic:claude-sonnet-4-5", "google-gla:gemini-2.5-pro", "anthropic:claude-haiku-5-5")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("tokens", [1, 900, 100_001, 200_000, 200_001, 450_000])
def test_the_cost_of_a_request_matches_the_price_list(model: str, tokens: int) -> None:
    price = price_of(model)
    assert price is not None
    provider, _, name = model.partition(":")
    provider = provider.removesuffix("-gla")
    usage = Usage(input_tokens=tokens, cache_read_tokens=tokens // 2, output_tokens=100)
    assert price.cost(tokens, cached=tokens // 2, output=100) == pytest.approx(
        calc_price(usage, name, provider_id=provider).total_price
    )


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("usd", ["0.00001", "0.02", "0.31", "0.65", "0.9", "3"])
def test_money_buys_the_most_tokens_that_cost_no_more_without_a_cache(model: str, usd: str) -> None:
    price = price_of(model)
    assert price is not None
    amount = Decimal(usd)
    tokens = price.affordable(amount)
    assert tokens is not None and price.cost(tokens) <= amount < price.cost(tokens + 1)
    written = price.affordable(amount, cache="5m")
    assert written is not None and written <= tokens and price.cost(written, written=written) <= amount


def test_a_model_without_a_price_has_none() -> None:
    assert price_of("test") is None and price_of("") is None
    assert cost_of("nobody:nothing", {"input_tokens": 10}) is None
    assert cost_of("nobody:nothing", {"input_tokens": 10, "nano_usd": 5_000_000}) == Decimal("0.005")
    assert dollars(None) == "unknown"


def test_amounts_are_never_shown_as_nothing() -> None:
    shown = [dollars(Decimal(amount)) for amount in ("0", "0.000001", "0.0123", "12.346", "1234")]
    assert shown == ["$0.0000", "<$0.0001", "$0.0123", "$12.35", "$1,234.00"]


@pytest.mark.parametrize("given", [0, -1, "x", "", True, float("nan"), float("inf"), None, 10**9])
def test_an_amount_of_money_must_be_above_zero(given: Any) -> None:
    with pytest.raises(SettingsError, match="US dollars"):
        Money(given)


def test_money_is_a_value() -> None:
    assert Money(0.02) == Money("$0.02") == pickle.loads(pickle.dumps(Money(" 0.02 ")))
    assert Money(0.02, fallback=8_000) != Money(0.02)
    assert str(Money(0.02)) == "$0.0200"
    with pytest.raises(SettingsError, match="fallback"):
        Money(0.02, fallback=0)
