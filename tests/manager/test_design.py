"""The five tests that the design of the manager lists, under the names that it gives them."""

from __future__ import annotations

import pytest

from context_compiler.manager import ContextConfig, ContextState, QualityScorer, VolatileMemory
from context_compiler.tokens import TokenCounter
from tests.manager.fakes import Scribe, managed, said, talk
from tests.support.o200k import theirs


def test_context_config_validation() -> None:
    assert ContextConfig(max_tokens=4096, summarize_at_ratio=0.7, checkpoint_interval=5).summarization_threshold == 2867
    for wrong in (
        {"max_tokens": 0},
        {"summarize_at_ratio": 1.5},
        {"quality_threshold": -1},
        {"checkpoint_interval": 0},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ContextConfig(**wrong)  # pyright: ignore[reportArgumentType]


async def test_summarization_flow() -> None:
    scribe, memory = Scribe("The user plans a move."), VolatileMemory()
    manager = managed(scribe, memory, max_tokens=1_000)
    results = []
    for number in range(16):
        results.append(await manager.process_turn(f"question {number} " + "why " * 30))
        manager.add_response("because " * 30)
    first = next(number for number, result in enumerate(results) if result.summarization_triggered)
    assert results[first].token_count < results[first - 1].token_count
    assert not results[first + 1].summarization_triggered
    assert any("The user plans a move." in text for text in said(manager.get_context_messages()))
    assert await memory.search("move plans", 1)


async def test_checkpoint_rollback_flow() -> None:
    memory = VolatileMemory()
    manager = managed(memory=memory, checkpoint_interval=5)
    await talk(manager, 5)
    [commit] = await memory.log()
    await memory.remember("Something wrong about herons.")
    await talk(manager, 4, start=5)
    done = await manager.rollback()
    assert (done.commit_restored, done.turns_lost, manager.turn_count) == (commit.id, 4, 5)
    assert await memory.search("herons", 5) == []


def test_quality_scoring_with_mock_data() -> None:
    scorer = QualityScorer(memory_relevance_weight=0.5, coherence_weight=0.3, session_ratio_weight=0.2)
    state = ContextState(
        avg_memory_relevance=0.8,
        last_coherence_score=0.9,
        turn_count=4,
        summarization_count=8,
        token_count=100,
        max_tokens=1_000,
    )
    assert scorer.calculate(state) == pytest.approx(0.5 * 0.8 + 0.3 * 0.9 + 0.2 * 0.5)


async def test_token_counting_accuracy() -> None:
    manager = managed(system_prompt="You are a clerk.")
    await talk(manager, 6)
    encoder = theirs()
    exact = sum(len(encoder.encode(text, disallowed_special=())) for text in said(manager.get_context_messages()))
    framing = 4 * len(manager.get_context_messages())
    assert exact <= manager.estimated_tokens() <= exact + framing + len(manager.get_context_messages())
    assert manager.estimated_tokens() - framing == pytest.approx(exact, rel=0.02)
    assert TokenCounter()("You are a clerk.") == len(encoder.encode("You are a clerk."))
