"""Relevance of a text to a question: the share of the question's most telling terms that it holds.

A ranking always has a best; this says when even the best is beside the point.
"""

from __future__ import annotations

from math import log1p

from context_compiler.recall.index import Index
from context_compiler.recall.question import Question
from context_compiler.recall.terms import beginning, folded, said

FLOOR = 0.3
"""Below this share a text only happens to use a word of the question's."""

FEW = 64
"""Terms; of a question with more it costs more to look for their beginnings than to take a text apart."""

TELLING = 6
"""Terms by which a question is known: those that the fewest messages hold."""


class Relevance:
    """Relevance of texts to one question."""

    def __init__(self, index: Index, question: Question, *, least: float = 0.0, floor: float = FLOOR) -> None:
        """Weigh the terms of the question by their idf; one that was never said weighs most.

        Args:
            index: What was said.
            question: What is asked.
            least: Added to every weight, because idf says little where little was said.
            floor: The share below which a text counts for nothing.
        """
        size, self._floor = len(index), floor
        self._weights = {
            term: least + log1p((size - spread + 0.5) / (spread + 0.5))
            for term in sorted(question.terms)  # sums must not depend on the order of a set
            for spread in (len(index.posts.get(term, ())) // 2,)
        }
        self._all = sum(sorted(self._weights.values(), reverse=True)[:TELLING])
        self._least = floor * self._all * (1 - 1e-9)
        few = self._weights if len(self._weights) <= FEW else {}
        self._beginnings = [(beginning(term), weight) for term, weight in few.items()]

    def of(self, text: str) -> float:
        """The share of the most telling terms' idf that the text holds, at most 1; 0 below the floor."""
        if not self._all:
            return 0.0
        if self._beginnings:
            plain = folded(text)
            if sum(weight for start, weight in self._beginnings if start in plain) < self._least:
                return 0.0
        own = set(said(text))
        held = sum(weight for term, weight in self._weights.items() if term in own)
        share = min(1.0, held / self._all)
        return share if share >= self._floor else 0.0
