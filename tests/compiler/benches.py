"""A bench for tests: made, climbed rung by rung, and checked."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic_ai.messages import (
    ModelMessage,
)

from context_compiler.compiler.cut_order import Draft
from context_compiler.compiler.cut_order import Step as Rung
from context_compiler.compiler.reasons import DROPS, Reason, StepInfo
from context_compiler.messages.history import Reader
from context_compiler.messages.shapes import WHOLE, Shape
from context_compiler.messages.turns import outline, pair
from tests.support.builders import prose
from tests.support.views import counter

LONG = prose(1, 400)


def bench(
    messages: Sequence[ModelMessage],
    shapes: Sequence[Shape | None] | None = None,
    *,
    room: int = 1_000,
    recent: int = 1,
) -> Draft:
    history = Reader(counter).read(messages)
    whole = shapes or [WHOLE] * len(messages)
    return Draft(history, outline(history, pair(history)), counter, whole, room=room, recent=recent)


def reason(text: str) -> Reason:
    return Reason(text, StepInfo("cut something", DROPS, 0))


def climb(on: Draft, rung: Rung) -> list[str]:
    """Everything that one rung does, to the end; the reasons it gives, in order."""
    before = len(on.drops)
    for _ in rung(on):
        pass
    return [drop.reason for drop in on.drops[before:]]


def gone(on: Draft) -> list[int]:
    return [index for index in range(len(on.shapes)) if on.here(index) is None]


def checked(on: Draft) -> None:
    """The running total is what everything costs, and what drops say they saved is what was saved."""
    whole = bench(on.history.messages)
    assert on.total == sum(on.costs) + on.summary
    assert whole.total - sum(on.costs) == sum(drop.tokens for drop in on.drops)
