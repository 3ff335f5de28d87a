"""How good a session still is, as a number from 0 to 1: two scorers over the same state.

`QualityScorer` is the formula of the design that the manager follows. Its term for the session is 1 before the
first turn and 0 for every session in which a turn is not a summary, so it tells next to nothing of length.
`HealthScorer` looks at how often was summarised, and at how full the context is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol, cast, runtime_checkable

from pydantic_ai.messages import ModelMessage

from context_compiler.compiler.prompt import lines
from context_compiler.errors import SettingsError
from context_compiler.manager.summary import LLM
from context_compiler.messages.fences import fence
from context_compiler.messages.history import Reader
from context_compiler.template.prompts import prose

UNKNOWN = 1.0
"""What nobody has measured is taken to be in order: an empty memory is no decay."""

USUAL_SUMMARIES = 0.1
"""Summaries a turn in a session that is neither crammed nor forgetful."""

ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextState:
    """What is scored."""

    avg_memory_relevance: float | None
    """Of the memories that the turn is grounded in; None where there are none."""
    last_coherence_score: float | None
    """As rated last; None where nothing was."""
    turn_count: int
    summarization_count: int
    token_count: int
    max_tokens: int


@runtime_checkable
class Scorer(Protocol):
    """Anything that gives a state a score; what lies outside 0 to 1 is cut off."""

    def calculate(self, ctx: ContextState) -> float:
        """The score of a state."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityScorer:
    """Relevance of memory, coherence of the answer, and turns against summaries, by weight.

    Raises:
        SettingsError: a weight is below 0, or they are not 1 together.
    """

    memory_relevance_weight: float = 0.4
    coherence_weight: float = 0.4
    session_ratio_weight: float = 0.2

    def __post_init__(self) -> None:
        _check_weights(self)

    def calculate(self, ctx: ContextState) -> float:
        """The score of a state, from 0 to 1."""
        session = 1 - min(ctx.turn_count / max(ctx.summarization_count, 1), 1)
        return clamp_score(
            _or_unknown(ctx.avg_memory_relevance) * self.memory_relevance_weight
            + _or_unknown(ctx.last_coherence_score) * self.coherence_weight
            + session * self.session_ratio_weight
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthScorer:
    """The same with two other terms: summaries a turn as they usually are, and how much room is left.

    Raises:
        SettingsError: a weight is below 0, or they are not 1 together.
    """

    memory_weight: float = 0.3
    coherence_weight: float = 0.3
    session_health_weight: float = 0.2
    token_utilization_weight: float = 0.2

    def __post_init__(self) -> None:
        _check_weights(self)

    def calculate(self, ctx: ContextState) -> float:
        """The score of a state, from 0 to 1."""
        often = ctx.summarization_count / ctx.turn_count if ctx.turn_count else USUAL_SUMMARIES
        session = 1 - min(abs(often - USUAL_SUMMARIES), 1)
        used = ctx.token_count / ctx.max_tokens if ctx.max_tokens > 0 else 0.0
        return clamp_score(
            _or_unknown(ctx.avg_memory_relevance) * self.memory_weight
            + _or_unknown(ctx.last_coherence_score) * self.coherence_weight
            + session * self.session_health_weight
            + (1 - min(used, 1)) * self.token_utilization_weight
        )


def clamp_score(score: float) -> float:
    """A score within 0 to 1; what is no number is 0."""
    return min(1.0, max(0.0, score)) if score == score else 0.0


def _or_unknown(measured: float | None) -> float:
    return UNKNOWN if measured is None else clamp_score(measured)


def _check_weights(scorer: QualityScorer | HealthScorer) -> None:
    """Refuse weights that do not share out one whole."""
    weights = {field.name: cast(object, getattr(scorer, field.name)) for field in fields(scorer)}
    said = ", ".join(f"{name}={value!r}" for name, value in weights.items())
    numbers = [value for value in weights.values() if isinstance(value, int | float) and not isinstance(value, bool)]
    if (
        len(numbers) != len(weights)
        or not all(0 <= value <= 1 for value in numbers)
        or abs(sum(numbers) - 1) > ROUNDING
    ):
        raise SettingsError(f"{type(scorer).__name__}({said}): give weights from 0 up that are 1 together")


UNPARSED_RATING = 0.7
"""What an answer counts that holds no number from 0 to 1."""
RATED_TOKENS = 4_000
"""Tokens of the exchange that are shown."""

_NUMBER = re.compile(r"(?<![\w.])(?:0?\.\d+|[01](?:\.\d+)?)(?![\w.]*\d|\w|%)")


async def rate_coherence(messages: Sequence[ModelMessage], llm: LLM, reader: Reader) -> float:
    """How coherent a turn is, from 0 to 1; 0.7 where the answer is no number.

    Raises:
        CompileError: the model could not be asked.
    """
    history = reader.read(messages)
    said = reader.counter.tail("\n".join(lines(history, range(len(history)), 1)), RATED_TOKENS)
    prompt = f"{prose('coherence')}\n\n{fence('exchange', said)}"
    answer = await llm([prompt], instructions="rating")
    return parse_rating(answer.text)


def parse_rating(text: str) -> float:
    """The first number from 0 to 1 in a text, or 0.7."""
    found = _NUMBER.search(text)
    value = float(found[0]) if found else UNPARSED_RATING
    return clamp_score(value) if value <= 1 else UNPARSED_RATING
