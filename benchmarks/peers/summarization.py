"""summarization-pydantic-ai: its sliding window, and its summaries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model
from pydantic_ai_summarization import SlidingWindowCapability, SummarizationCapability

from benchmarks.approaches import NEEDS_A_MODEL, Approach, attached
from benchmarks.peers.baselines import price
from context_compiler.middleware.replay import LiveSession

PACKAGE = "summarization-pydantic-ai"


def counted(messages: Sequence[ModelMessage]) -> int:
    return price(messages)


def window(budget: int, keep: float = 0.9) -> list[Any]:
    kept = ("tokens", int(keep * budget))
    return [SlidingWindowCapability(trigger=("tokens", budget), keep=kept, token_counter=counted)]


def summaries(model: Model, budget: int) -> list[Any]:
    kept = ("tokens", budget // 2)
    return [SummarizationCapability(trigger=("tokens", budget), keep=kept, model=model, token_counter=counted)]


APPROACHES = (
    Approach(
        name="summarization-window",
        title="summarization-pydantic-ai, sliding window",
        setup=(
            "`SlidingWindowCapability(trigger=budget, keep=…)`: "
            "keeps 0.9 of the budget for one view, half of it in a session"
        ),
        package=PACKAGE,
        view=attached(window),
        session=lambda budget: LiveSession(window(budget, 0.5)),
    ),
    Approach(
        name="summarization-summary",
        title="summarization-pydantic-ai, summaries",
        setup=(
            "`SummarizationCapability(trigger=budget, keep=budget / 2)`, "
            "with a model that answers with recorded summaries"
        ),
        package=PACKAGE,
        summarising=summaries,
        dashes={"view": NEEDS_A_MODEL, "session": NEEDS_A_MODEL},
    ),
)
