"""pydantic-ai-harness: its sliding window, clearing of tool results, tiers of both, and summaries."""

from __future__ import annotations

from functools import partial
from typing import Any

from pydantic_ai.models import Model
from pydantic_ai_harness.compaction import (
    ClearToolResults,
    SlidingWindowCompaction,
    SummarizingCompaction,
    TieredCompaction,
)

from benchmarks.approaches import attached_approach, summarising_approach
from benchmarks.peers.baselines import READER

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
    attached_approach(
        "harness-window",
        "harness, sliding window",
        "`SlidingWindowCompaction(max_tokens=budget, keep_tokens=…)`: "
        "keeps 0.8 of the budget for one view, half of it in a session",
        window,
        partial(window, keep=LIVE),
        package=PACKAGE,
    ),
    attached_approach(
        "harness-window-quarter",
        "harness, sliding window, keeps a quarter",
        "the same with `keep_tokens` a quarter of the budget",
        None,
        partial(window, keep=QUARTER),
        package=PACKAGE,
        dashes={"view": "the other sliding-window row makes better use of the budget in a single view"},
    ),
    attached_approach(
        "harness-clear",
        "harness, clears tool results",
        "`ClearToolResults(max_tokens=budget)`",
        clearing,
        package=PACKAGE,
    ),
    attached_approach(
        "harness-tiered",
        "harness, tiers",
        "`TieredCompaction(tiers=[ClearToolResults, SlidingWindowCompaction], target_tokens=budget)`",
        tiers,
        partial(tiers, keep=LIVE),
        package=PACKAGE,
    ),
    summarising_approach(
        "harness-summary",
        "harness, summaries",
        "`SummarizingCompaction(max_tokens=budget, keep_tokens=budget // 2)`",
        summaries,
        PACKAGE,
    ),
)
