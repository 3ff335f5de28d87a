"""Memories are ranked by how much of what is asked they hold; rare terms of the question count for more."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic_ai.messages import ModelRequest, UserPromptPart

from context_compiler.manager.results import Match, Memory
from context_compiler.messages.history import Reader
from context_compiler.recall import Index, Question, Relevance

FLOOR = 0.1
"""Below this share of the question a memory only happens to use a word of it."""
LEAST = 2.0
"""What every term counts: where little is remembered, how rare a term is says little."""


class MemoryRanking:
    """Ranks the memories of one system; what it has read of a text it remembers."""

    def __init__(self, reader: Reader) -> None:
        self._reader, self._index = reader, Index()

    def best(self, query: str, memories: Sequence[Memory], limit: int) -> list[Match]:
        """At most `limit` of the memories that bear on a query, the best first; of equals the later one."""
        question = Question.of(query)
        if limit < 1 or not question.terms or not memories:
            return []
        said = [ModelRequest(parts=[UserPromptPart(content=one.text, timestamp=one.created_at)]) for one in memories]
        history = self._reader.read(said)
        if not self._index.extends_to(history):
            self._index = Index()
        self._index.extend(history)
        relevant = Relevance(self._index, question, least=LEAST, floor=FLOOR)
        scored = [(relevant.of(one.text), at) for at, one in enumerate(memories)]
        found = sorted((pair for pair in scored if pair[0] > 0), key=lambda pair: (-pair[0], -pair[1]))
        return [Match(memory=memories[at], score=min(1.0, score)) for score, at in found[:limit]]
