"""An earlier path of `context_compiler.compiler.policy`; `limits` takes `Asked` too, as it did."""

from __future__ import annotations

from dataclasses import dataclass

from context_compiler.compiler import policy
from context_compiler.compiler.policy import Limits
from context_compiler.fidelity import Fidelity
from context_compiler.settings import Amount

__all__ = ["Asked", "Limits", "limits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The caller's budget; None is the default."""

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
    """Budget and thresholds of one request, as `ContextCompiler` has them.

    Args:
        asked: The caller's budget; a share of a trigger is one of the budget.
        fixed: Tokens that the view carries whatever it leaves out.
        window: The model's context window, where it is known.
        max_tokens: The most tokens of an answer that the request's settings allow.
        threshold: The template's default trigger; 0 is none.
        fidelity: `full` waits until the budget is passed, whatever the trigger is.
        ratio: The model's tokens to one of ours; the caller's budget is in the model's.
        tight: Share of the budget that is left after a provider refused it.
    """
    budget, _ = policy.whole_budget(
        asked.budget, reserve=asked.reserve, window=asked.window or window, max_tokens=max_tokens
    )
    trigger = policy.trigger_of(asked.trigger, threshold, fidelity)
    return policy.limits(budget=budget, trigger=trigger, fixed=fixed, ratio=ratio, tight=tight)
