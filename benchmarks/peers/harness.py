"""pydantic-ai-harness: its sliding window, clearing of tool results, tiers of both, and summaries."""

from __future__ import annotations

from typing import Any

from pydantic_ai.models import Model
from pydantic_ai_harness.compaction import (
    ClearToolResults,
    SlidingWindowCompaction,
    SummarizingCompaction,
    TieredCompaction,
)

from benchmarks.approaches import NEEDS_A_MODEL, Approach, attached
from benchmarks.peers.baselines import READER
from context_compiler.middleware.replay import LiveSession

PACKAGE = "pydantic-ai-harness"
COUNT = READER.counter
ONE_SHOT, LIVE, QUARTER = 0.8, 0.5, 0.25
"""Fractions of the budget to keep: most of it for one view, less in a session, to leave room for what comes next."""


def window(budget: int, keep: float = ONE_SHOT) -> list[Any]:
    return [SlidingWindowCompaction(max_tokens=budget, keep_tokens=int(keep * budget), tokenizer=COUNT)]


def clearing(budget: int) -> list[Any]:
    return [ClearToolResults(max_tokens=budget, tokenizer=COUNT)]


def tiers(budget: int, keep: float = ONE_SHOT) -> list[Any]:
    steps = [*clearing(budget), *window(budget, keep)]
    return [TieredCompaction(tiers=steps, target_tokens=budget, tokenizer=COUNT)]


def summaries(model: Model, budget: int) -> list[Any]:
    return [SummarizingCompaction(model=model, max_tokens=budget, keep_tokens=budget // 2, tokenizer=COUNT)]


APPROACHES = (
    Approach(
        name="harness-window",
        title="harness, sliding window",
        setup=(
            "`SlidingWindowCompaction(max_tokens=budget, keep_tokens=…)`: "
            "keeps 0.8 of the budget for one view, half of it in a session"
        ),
        package=PACKAGE,
        view=attached(window),
        session=lambda budget: LiveSession(window(budget, LIVE)),
    ),
    Approach(
        name="harness-window-quarter",
        title="harness, sliding window, keeps a quarter",
        setup="the same with `keep_tokens` a quarter of the budget",
        package=PACKAGE,
        session=lambda budget: LiveSession(window(budget, QUARTER)),
        dashes={"view": "the other sliding-window row makes better use of the budget in a single view"},
    ),
    Approach(
        name="harness-clear",
        title="harness, clears tool results",
        setup="`ClearToolResults(max_tokens=budget)`",
        package=PACKAGE,
        view=attached(clearing),
        session=lambda budget: LiveSession(clearing(budget)),
    ),
    Approach(
        name="harness-tiered",
        title="harness, tiers",
        setup="`TieredCompaction(tiers=[ClearToolResults, SlidingWindowCompaction], target_tokens=budget)`",
        package=PACKAGE,
        view=attached(tiers),
        session=lambda budget: LiveSession(tiers(budget, LIVE)),
    ),
    Approach(
        name="harness-summary",
        title="harness, summaries",
        setup=(
            "`SummarizingCompaction(max_tokens=budget, keep_tokens=budget // 2)`, "
            "with a model that answers with recorded summaries"
        ),
        package=PACKAGE,
        summarising=summaries,
        dashes={"view": NEEDS_A_MODEL, "session": NEEDS_A_MODEL},
    ),
)
