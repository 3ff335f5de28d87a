"""What one request may cost, in tokens: the budget, what is fixed, and the two marks between which a view lives.

A view grows until it passes `high`; then it is cut back to `low`, about half way to what is fixed. Moving
the window on every request instead would cost more than sending everything, because no prompt cache
would ever hit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from context_compiler.fidelity import Fidelity, summary_cap
from context_compiler.settings import Amount, amount_tokens

DEFAULT_BUDGET = 32_000
DEFAULT_SHARE = 0.8
DEFAULT_RESERVE = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one request may cost, in exact tokens: a model's learnt ratio has already been divided out."""

    budget: int
    fixed: int
    """Instructions, schemas, and what a view always carries for others."""
    high: int
    low: int
    ratio: float = 1.0
    """The model's learnt ratio."""
    tight: float = 1.0
    """What is left of the budget after a provider refused it, as a share."""

    @property
    def room(self) -> int:
        """What is left for messages."""
        return max(0, self.budget - self.fixed)

    def carrying(self, fixed: int) -> Limits:
        """The same budget when less is fixed than it would fill alone."""
        return replace(self, fixed=fixed, high=self.budget, low=_half_way(fixed, self.budget))

    def cap(self, fidelity: Fidelity) -> int:
        """The most tokens a summary may have."""
        return summary_cap(fidelity, self.room)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the user asked for, checked; None where nothing was said."""

    budget: Amount | None = None
    trigger: Amount | None = None
    reserve: int | None = None
    window: int | None = None


def whole_budget(asked: Asked, *, window: int | None, max_tokens: int | None) -> tuple[int, int | None]:
    """The budget, and what may go out when we fail: the user's budget, else the window; None where neither is known.

    A known window caps the budget: what the model needs for its answer, at most a quarter, stays free.
    """
    window = asked.window or window
    usable = None
    if window:
        usable = window - min(asked.reserve or max_tokens or DEFAULT_RESERVE, window // 4)
    if asked.budget is None:
        budget = int(DEFAULT_SHARE * window) if window else DEFAULT_BUDGET
    else:
        budget = amount_tokens(asked.budget, of=window or DEFAULT_BUDGET) or 1
    budget = min(budget, usable) if usable else budget
    return max(1, budget), (budget if asked.budget is not None else usable)


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
    """Every mark of one request.

    Args:
        asked: What the user asked for; a share of a trigger is one of the budget.
        fixed: Tokens that the view carries whatever it leaves out.
        window: The model's context window, where it is known.
        max_tokens: What the request's settings allow for the answer.
        threshold: The template's default trigger; 0 is none.
        fidelity: `full` waits until the budget is passed, whatever the trigger says.
        ratio: How much more the model counts than we do; what the user asked for is in the model's tokens.
        tight: What is left of the budget after a provider refused it, as a share.
    """
    budget, _ = whole_budget(asked, window=window, max_tokens=max_tokens)
    trigger = asked.trigger if asked.trigger is not None else (threshold or None)
    wanted = amount_tokens(trigger, of=budget)
    if wanted is None or fidelity is Fidelity.FULL:
        wanted = budget
    budget, wanted = max(1, int(budget * tight / ratio)), int(wanted / ratio)
    room = max(0, budget - fixed)
    high = min(max(wanted, fixed + room // 2), budget)
    return Limits(budget=budget, fixed=fixed, high=high, low=_half_way(fixed, high), ratio=ratio, tight=tight)


def _half_way(fixed: int, high: int) -> int:
    return fixed + max(0, high - fixed) // 2
