"""Quality of a session as a number from 0 to 1: two scorers of the same state, and a model's rating of an answer.

`QualityScorer` implements the formula that the manager was designed with. Its session term is 1 before the first turn
and 0 whenever a session has at least one turn per summary, so it hardly depends on the length of the session.
`HealthScorer` instead uses the number of summaries per turn and the free fraction of the context.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol, cast, runtime_checkable

from pydantic_ai.messages import ModelMessage

from context_compiler.compiler.summary import turn_lines
from context_compiler.errors import SettingsError
from context_compiler.manager.summary import LLM
from context_compiler.messages.fences import fence
from context_compiler.messages.history import Reader
from context_compiler.template import prompt_text

UNKNOWN = 1.0
"""Value of a term that was not measured: an empty memory is not a sign of decay."""

USUAL_SUMMARIES = 0.1
"""Summaries per turn in a healthy session."""

ROUNDING = 1e-9
"""Tolerance for the sum of weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextState:
    """State to score."""

    avg_memory_relevance: float | None
    """Average relevance of the memories in the grounding; None without grounding."""
    last_coherence_score: float | None
    """Last coherence rating by the model; None if there is none."""
    turn_count: int
    summarization_count: int
    token_count: int
    max_tokens: int


@runtime_checkable
class Scorer(Protocol):
    """Any object that scores a state. Scores are clamped to 0 to 1."""

    def calculate(self, ctx: ContextState) -> float:
        """Return the score of a state."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityScorer:
    """Weighted sum of memory relevance, coherence of the answer, and the ratio of turns to summaries.

    Raises:
        SettingsError: A weight is negative, or the weights do not add up to 1.
    """

    memory_relevance_weight: float = 0.4
    coherence_weight: float = 0.4
    session_ratio_weight: float = 0.2

    def __post_init__(self) -> None:
        _check_weights(self)

    def calculate(self, ctx: ContextState) -> float:
        """Return the score of a state, from 0 to 1."""
        session = 1 - min(ctx.turn_count / max(ctx.summarization_count, 1), 1)
        return clamp_score(
            _or_unknown(ctx.avg_memory_relevance) * self.memory_relevance_weight
            + _or_unknown(ctx.last_coherence_score) * self.coherence_weight
            + session * self.session_ratio_weight
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthScorer:
    """Weighted sum of relevance, coherence, the rate of summaries, and the free fraction of the context.

    Raises:
        SettingsError: A weight is negative, or the weights do not add up to 1.
    """

    memory_weight: float = 0.3
    coherence_weight: float = 0.3
    session_health_weight: float = 0.2
    token_utilization_weight: float = 0.2

    def __post_init__(self) -> None:
        _check_weights(self)

    def calculate(self, ctx: ContextState) -> float:
        """Return the score of a state, from 0 to 1."""
        rate = ctx.summarization_count / ctx.turn_count if ctx.turn_count else USUAL_SUMMARIES
        session = 1 - min(abs(rate - USUAL_SUMMARIES), 1)
        used = ctx.token_count / ctx.max_tokens if ctx.max_tokens > 0 else 0.0
        return clamp_score(
            _or_unknown(ctx.avg_memory_relevance) * self.memory_weight
            + _or_unknown(ctx.last_coherence_score) * self.coherence_weight
            + session * self.session_health_weight
            + (1 - min(used, 1)) * self.token_utilization_weight
        )


def clamp_score(score: float) -> float:
    """Clamp a score to 0 to 1; NaN becomes 0."""
    return min(1.0, max(0.0, score)) if score == score else 0.0


def _or_unknown(measured: float | None) -> float:
    return UNKNOWN if measured is None else clamp_score(measured)


def _check_weights(scorer: QualityScorer | HealthScorer) -> None:
    """Raise SettingsError if a weight is negative, or the weights do not add up to 1."""
    weights = {field.name: cast(object, getattr(scorer, field.name)) for field in fields(scorer)}
    listed = ", ".join(f"{name}={value!r}" for name, value in weights.items())
    numbers = [value for value in weights.values() if isinstance(value, int | float) and not isinstance(value, bool)]
    are_shares = len(numbers) == len(weights) and all(0 <= value <= 1 for value in numbers)
    if not are_shares or abs(sum(numbers) - 1) > ROUNDING:
        raise SettingsError(f"{type(scorer).__name__}({listed}): give weights of at least 0 that add up to 1")


UNPARSED_RATING = 0.7
"""Rating for an answer without a number from 0 to 1."""
RATED_TOKENS = 4_000
"""Maximum tokens of an exchange shown to the model for a rating; the end is kept."""

_NUMBER = re.compile(r"(?<![\w.])(?:0?\.\d+|[01](?:\.\d+)?)(?![\w.]*\d|\w|%)")


async def rate_coherence(messages: Sequence[ModelMessage], llm: LLM, reader: Reader) -> float:
    """Return the coherence of a turn as rated by the model, from 0 to 1.

    Raises:
        CompileError: The model could not be asked.
    """
    history = reader.read(messages)
    exchange = reader.counter.tail("\n".join(turn_lines(history, range(len(history)), 1)), RATED_TOKENS)
    prompt = f"{prompt_text('coherence')}\n\n{fence('exchange', exchange)}"
    answer = await llm([prompt], instructions="rating")
    return parse_rating(answer.text)


def parse_rating(text: str) -> float:
    """Parse the first number from 0 to 1 in a string; `UNPARSED_RATING` if there is none."""
    match = _NUMBER.search(text)
    value = float(match[0]) if match else UNPARSED_RATING
    return clamp_score(value) if value <= 1 else UNPARSED_RATING
