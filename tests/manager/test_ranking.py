"""Memories are read once, however often something is asked of them."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from context_compiler.manager import Memory
from context_compiler.manager.memory import MemoryRanking
from context_compiler.messages.history import Reader
from context_compiler.tokens import as_counter

THEN = datetime(2026, 1, 1, tzinfo=UTC)


def memories(count: int, words: int = 5) -> list[Memory]:
    texts = (f"place {number} is " + f"where heron{number} lives " * words for number in range(count))
    return [Memory(id=str(number), text=text, created_at=THEN) for number, text in enumerate(texts)]


def ranking() -> MemoryRanking:
    return MemoryRanking(Reader(as_counter(None)))


def test_a_repeated_query_ranks_as_a_new_ranking_does() -> None:
    every, used = memories(9), ranking()
    for some in (every[:3], every[:7], every[2:5], every[:2], every, every[::-1]):
        assert used.best("where does heron2 live", some, 5) == ranking().best("where does heron2 live", some, 5)


def seconds(used: MemoryRanking, given: list[Memory]) -> float:
    begun = time.process_time()
    assert used.best("where does heron7 live", given, 1)[0].memory.id == "7"
    return time.process_time() - begun


def test_a_repeated_query_costs_a_fraction_of_a_new_ranking() -> None:
    every, used = memories(120, words=40), ranking()
    seconds(used, every)
    assert min(seconds(used, every) for _ in range(5)) < min(seconds(ranking(), every) for _ in range(5)) / 3
