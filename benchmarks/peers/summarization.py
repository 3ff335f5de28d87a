"""summarization-pydantic-ai: its sliding window, and its summaries."""

from __future__ import annotations

from functools import partial
from typing import Any

from pydantic_ai.models import Model
from pydantic_ai_summarization import SlidingWindowCapability, SummarizationCapability

from benchmarks.approaches import attached_approach, summarising_approach
from benchmarks.peers.baselines import price

PACKAGE = "summarization-pydantic-ai"


def window(budget: int, keep: float = 0.9) -> list[Any]:
    kept = ("tokens", int(keep * budget))
    return [SlidingWindowCapability(trigger=("tokens", budget), keep=kept, token_counter=price)]


def summaries(model: Model, budget: int) -> list[Any]:
    kept = ("tokens", budget // 2)
    return [SummarizationCapability(trigger=("tokens", budget), keep=kept, model=model, token_counter=price)]


APPROACHES = (
    attached_approach(
        "summarization-window",
        "summarization-pydantic-ai, sliding window",
        "`SlidingWindowCapability(trigger=budget, keep=…)`: "
        "keeps 0.9 of the budget for one view, half of it in a session",
        window,
        partial(window, keep=0.5),
        package=PACKAGE,
    ),
    summarising_approach(
        "summarization-summary",
        "summarization-pydantic-ai, summaries",
        "`SummarizationCapability(trigger=budget, keep=budget / 2)`",
        summaries,
        PACKAGE,
    ),
)
