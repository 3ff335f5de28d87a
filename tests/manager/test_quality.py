"""A score lies between 0 and 1, is not low for want of memory, and tells how a session goes over time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from context_compiler.manager import ContextState, HealthScorer, QualityScorer, VolatileMemory
from context_compiler.manager.quality import parse_rating
from tests.manager.fakes import Scribe, managed, talk

unknown = st.one_of(st.none(), st.floats(allow_nan=True))
counts = st.integers(0, 10_000)
states = st.builds(
    ContextState,
    avg_memory_relevance=unknown,
    last_coherence_score=unknown,
    turn_count=counts,
    summarization_count=counts,
    token_count=counts,
    max_tokens=counts,
)


def state(turns: int = 0, summaries: int = 0, tokens: int = 0, **given: Any) -> ContextState:
    known = {"avg_memory_relevance": None, "last_coherence_score": None, "max_tokens": 1_000, **given}
    return ContextState(turn_count=turns, summarization_count=summaries, token_count=tokens, **known)


@given(states)
def test_a_score_is_between_0_and_1_in_any_state(one: ContextState) -> None:
    assert 0 <= QualityScorer().calculate(one) <= 1
    assert 0 <= HealthScorer().calculate(one) <= 1


@pytest.mark.parametrize(
    ("one", "score"),
    [
        (state(), 1.0),
        (state(turns=1), 0.8),
        (state(turns=10, summaries=1), 0.8),
        (state(turns=3, summaries=6), 0.9),
        (state(turns=5, avg_memory_relevance=0.5), 0.6),
        (state(turns=5, avg_memory_relevance=0.5, last_coherence_score=0.5), 0.4),
        (state(avg_memory_relevance=0.0, last_coherence_score=0.0), 0.2),
    ],
)
def test_quality_is_the_formula_of_the_design(one: ContextState, score: float) -> None:
    assert QualityScorer().calculate(one) == pytest.approx(score)


@pytest.mark.parametrize(
    ("one", "score"),
    [
        (state(), 1.0),
        (state(turns=1), 0.98),
        (state(turns=10, summaries=1, tokens=800), 0.84),
        (state(turns=10, tokens=1_000), 0.78),
        (state(turns=10, summaries=10, tokens=2_000), 0.62),
        (state(turns=10, summaries=1, avg_memory_relevance=0.0), 0.7),
        (state(turns=10, summaries=1, max_tokens=0, tokens=5), 1.0),
    ],
)
def test_the_health_score_depends_on_summaries_and_free_room(one: ContextState, score: float) -> None:
    assert HealthScorer().calculate(one) == pytest.approx(score)


@given(turns=st.integers(1, 500), room=st.integers(0, 1_000))
def test_an_empty_memory_alone_never_looks_degraded(turns: int, room: int) -> None:
    one = state(turns=turns, summaries=turns // 10, tokens=room)
    assert QualityScorer().calculate(one) >= 0.6 and HealthScorer().calculate(one) >= 0.6


async def test_every_turn_is_scored_and_kept_in_its_order() -> None:
    memory = VolatileMemory()
    manager = managed(memory=memory, scorer=HealthScorer(), checkpoint_interval=2)
    results = []
    for number in range(5):
        results.append(await manager.process_turn(f"turn {number} " + "why " * 50))
        manager.add_response("because " * 50)
    kept = await memory.scores()
    assert [score.quality for score in kept] == [result.quality_score for result in results]
    assert [score.checkpoint for score in kept] == [result.checkpoint_created for result in results]
    assert [score.tokens for score in kept] == [result.token_count for result in results]
    assert list(manager.quality_history) == list(kept)
    qualities = [score.quality for score in kept]
    assert qualities == sorted(qualities, reverse=True) and qualities[0] > qualities[-1]


async def test_a_failing_scorer_is_replaced_by_the_default_score() -> None:
    class Broken:
        def calculate(self, ctx: ContextState) -> float:
            raise ZeroDivisionError

    heard: list[Exception] = []
    manager = managed(scorer=Broken(), on_error=heard.append)
    assert 0 <= (await manager.process_turn("Hello.")).quality_score <= 1
    assert heard


@pytest.mark.parametrize("score", [float("nan"), 7.0, -3.0])
async def test_a_score_out_of_bounds_is_cut_off(score: float) -> None:
    class Odd:
        def calculate(self, ctx: ContextState) -> float:
            return score

    manager = managed(scorer=Odd())
    assert 0 <= (await manager.process_turn("Hello.")).quality_score <= 1


async def test_coherence_is_rated_only_on_request() -> None:
    quiet, asked = Scribe("0.5"), Scribe("0.5")
    await talk(managed(quiet), 3)
    manager = managed(asked, coherence=True)
    await talk(manager, 3)
    assert (quiet.asked, asked.asked) == (0, 2)
    assert manager.quality_score() == pytest.approx(0.4 + 0.4 * 0.5)
    assert "=== BEGIN EXCHANGE ===" in asked.prompts[0] and "question 0" in asked.prompts[0]


async def test_a_failing_rating_does_not_change_the_score() -> None:
    manager = managed(Scribe(RuntimeError("no model")), coherence=True)
    await talk(manager, 1)
    result = await manager.process_turn("And now?")
    assert result.quality_score == pytest.approx(0.8) and any("rating" in one for one in result.trouble)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("0.85", 0.85),
        ("Score: .5.", 0.5),
        ("1", 1.0),
        ("0", 0.0),
        ("1.0", 1.0),
        ("I would say 0.4 of 1", 0.4),
        ("very good", 0.7),
        ("", 0.7),
        ("85%", 0.7),
        ("8/10", 0.7),
        ("1.5", 0.7),
        ("12", 0.7),
    ],
)
def test_a_rating_is_the_first_number_from_0_to_1(text: str, score: float) -> None:
    assert parse_rating(text) == score
