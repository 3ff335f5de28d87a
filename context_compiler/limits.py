"""Former import path of `context_compiler.compiler.policy`, with the former signature of `limits`."""

from __future__ import annotations

from dataclasses import dataclass

from context_compiler.compiler import policy
from context_compiler.compiler.policy import Limits
from context_compiler.fidelity import Fidelity
from context_compiler.settings import Amount

__all__ = ["Asked", "Limits", "limits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The caller's budget settings; None means the default."""

    budget: Amount | None = None
    trigger: Amount | None = None
    reserve: int | None = None
    window: int | None = None


def limits(
    asked: Asked,
    *,
    fixed: int,
    window: int | None = None,
    max_tokens: int | None = None,
    threshold: Amount = 0,
    fidelity: Fidelity = Fidelity.SUMMARY_MEDIUM,
    ratio: float = 1.0,
    tight: float = 1.0,
) -> Limits:
    """Compute the budget and thresholds of one request, as `ContextCompiler` does.

    Args:
        asked: The caller's budget settings; a trigger given as a share is a share of the budget.
        fixed: Tokens that are in the view no matter what is left out.
        window: The model's context window, if known.
        max_tokens: Maximum tokens of the answer, by the request's settings.
        threshold: The template's default trigger; 0 means the budget.
        fidelity: `full` ignores the trigger and waits until the budget is exceeded.
        ratio: Tokens of the model per token of o200k; the caller's budget is in tokens of the model.
        tight: Fraction of the budget to use, below 1 after a provider has rejected a request as too long.
    """
    budget, _ = policy.whole_budget(
        asked.budget, reserve=asked.reserve, window=asked.window or window, max_tokens=max_tokens
    )
    trigger = policy.trigger_of(asked.trigger, threshold, fidelity)
    return policy.limits(budget=budget, trigger=trigger, fixed=fixed, ratio=ratio, tight=tight)
