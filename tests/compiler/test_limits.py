"""Budget, marks and reserve: every figure as the page on budgets gives it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from context_compiler.compiler.policy import Limits, limits, trigger_of, whole_budget
from context_compiler.errors import SettingsError
from context_compiler.fidelity import Fidelity
from context_compiler.middleware.arguments import Arguments, Terms
from context_compiler.settings import Amount, amount_tokens, check_amount


@pytest.mark.parametrize("amount", [1, 8_000, 0.25, 1.0, None])
def test_tokens_and_shares_are_amounts(amount: Any) -> None:
    assert check_amount(amount, name="budget") == amount


@pytest.mark.parametrize("amount", [True, False, 0, -1, 0.0, 1.5, -0.1, float("nan"), float("inf"), "8000", [8]])
def test_anything_else_is_refused_by_name_and_value(amount: object) -> None:
    with pytest.raises(SettingsError, match="trigger=") as caught:
        check_amount(amount, name="trigger")
    assert repr(amount) in str(caught.value)


def test_a_share_depends_on_the_whole_and_tokens_do_not() -> None:
    assert (amount_tokens(0.5, of=9_001), amount_tokens(700, of=9_001), amount_tokens(None, of=9_001)) == (
        4_500,
        700,
        None,
    )


@pytest.mark.parametrize(
    ("given", "window", "max_tokens", "budget", "allowed"),
    [
        (Arguments(), None, None, 32_000, None),
        (Arguments(), 100_000, None, 80_000, 95_904),
        (Arguments(), 100_000, 30_000, 70_000, 70_000),
        (Arguments(), 8_000, 32_000, 2_000, 2_000),
        (Arguments(), 8_000, None, 6_000, 6_000),
        (Arguments(reserve=1_000), 8_000, 4_000, 6_400, 7_000),
        (Arguments(reserve=9_000), 8_000, None, 6_000, 6_000),
        (Arguments(budget=4_000), 8_000, None, 4_000, 4_000),
        (Arguments(budget=8_000), 8_000, None, 6_000, 6_000),
        (Arguments(budget=0.5), 100_000, None, 50_000, 50_000),
        (Arguments(budget=1.0), 100_000, None, 95_904, 95_904),
        (Arguments(budget=0.5), None, None, 16_000, 16_000),
        (Arguments(budget=0.5, window=20_000), 100_000, None, 10_000, 10_000),
        (Arguments(budget=50_000), None, None, 50_000, 50_000),
        (Arguments(budget=0.000_001), None, None, 1, 1),
    ],
)
def test_the_budget_is_limited_to_the_window_minus_the_answer(
    given: Arguments, window: int | None, max_tokens: int | None, budget: int, allowed: int | None
) -> None:
    assert given.whole_budget(Terms(window=window, max_tokens=max_tokens)) == (budget, allowed)


def limits_of(
    budget: Amount,
    trigger: Amount | None = None,
    *,
    window: int | None = None,
    threshold: Amount = 0,
    fidelity: Fidelity = Fidelity.SUMMARY_MEDIUM,
    **options: Any,
) -> Limits:
    """Limits of a request with the amounts of a caller and the threshold of a template."""
    whole, _ = whole_budget(budget, window=window)
    return limits(budget=whole, trigger=trigger_of(trigger, threshold, fidelity), **options)


def marks(**given: Any) -> tuple[int, int, int]:
    found = limits_of(10_000, fixed=2_000, **given)
    return found.budget, found.high, found.low


def test_without_a_trigger_the_high_mark_is_the_budget_and_the_low_mark_halfway() -> None:
    assert marks() == (10_000, 10_000, 6_000)


def test_a_trigger_in_tokens_is_the_high_mark() -> None:
    assert marks(trigger=7_000) == (10_000, 7_000, 4_500)


def test_a_trigger_that_is_a_share_is_one_of_the_budget() -> None:
    assert marks(trigger=0.9) == (10_000, 9_000, 5_500)


def test_a_trigger_is_raised_to_the_fixed_tokens_plus_a_thousand_or_half_the_room() -> None:
    assert marks(trigger=4_000) == (10_000, 4_000, 3_000)
    assert marks(trigger=100) == (10_000, 3_000, 2_500)
    small = limits_of(1_000, 100, fixed=200)
    assert (small.high, small.low) == (600, 400)


def test_a_trigger_is_at_most_the_budget() -> None:
    assert marks(trigger=70_000) == (10_000, 10_000, 6_000)


def test_the_templates_threshold_counts_where_the_user_gave_no_trigger() -> None:
    assert marks(threshold=7_000) == (10_000, 7_000, 4_500)
    assert marks(threshold=0.7) == (10_000, 7_000, 4_500)
    assert marks(threshold=0) == (10_000, 10_000, 6_000)
    assert marks(trigger=8_000, threshold=7_000) == (10_000, 8_000, 5_000)


def test_fidelity_full_compiles_only_at_the_budget_whatever_the_trigger() -> None:
    assert marks(trigger=7_000, threshold=6_500, fidelity=Fidelity.FULL) == (10_000, 10_000, 6_000)


def test_fixed_tokens_may_exceed_the_budget() -> None:
    found = limits_of(1_000, fixed=5_000)
    assert (found.room, found.high, found.low) == (0, 1_000, 5_000)
    assert found.cap(Fidelity.SUMMARY_HIGH) == 0


def test_a_ratio_reduces_the_given_limits_to_exact_tokens() -> None:
    found = limits_of(12_500, 10_000, fixed=2_000, ratio=1.25)
    assert (found.budget, found.high, found.low) == (10_000, 8_000, 5_000)


def test_a_refused_budget_is_tight() -> None:
    found = limits_of(10_000, 9_000, fixed=0, tight=0.7)
    assert (found.budget, found.high, found.low) == (7_000, 7_000, 3_500)


def test_the_cap_of_a_summary_follows_the_room() -> None:
    found = limits_of(4_000, fixed=1_000)
    assert (found.room, found.cap(Fidelity.SUMMARY_HIGH), found.cap(Fidelity.COMPACT)) == (3_000, 512, 500)


AMOUNTS = st.integers(1, 50_000) | st.floats(0.001, 1.0)


@given(AMOUNTS, st.none() | AMOUNTS, st.integers(0, 60_000), st.none() | st.integers(1, 80_000), st.floats(0.8, 2.0))
def test_the_marks_are_in_order(budget: Any, trigger: Any, fixed: int, window: int | None, ratio: float) -> None:
    bounds = limits_of(budget, trigger, fixed=fixed, window=window, ratio=ratio)
    assert 1 <= bounds.budget
    assert bounds.high <= bounds.budget
    assert bounds.low <= bounds.high or fixed > bounds.high
    assert bounds.high >= min(bounds.budget, fixed + min(bounds.room // 2, 1_000))
    if window is not None:
        assert bounds.budget * ratio <= max(1, window - min(4_096, window // 4)) + ratio
