"""Relevance: the fraction of a question that a text contains.

A ranking always has a best entry. Relevance shows if even the best one is irrelevant.
"""

from __future__ import annotations

from collections.abc import Set

from context_compiler.recall.bm25 import idf
from context_compiler.recall.index import Index
from context_compiler.recall.question import Question
from context_compiler.recall.ranking import MAX_TERMS
from context_compiler.recall.terms import beginnings, fold, passage_terms

FLOOR = 0.3
"""Minimum fraction of a question that a relevant text contains. With less, it shares a word by chance."""

TELLING = 6
"""Number of rarest terms of a question whose idf counts as the whole question: a text does not need the others."""


class Relevance:
    """Fraction of one question that texts contain, weighted by idf.

    It is the sum of the idf of the question's terms in the text, divided by that of the question's `TELLING` rarest
    terms, and at most 1.
    """

    def __init__(self, index: Index, question: Question, *, least: float = 0.0, floor: float = FLOOR) -> None:
        """Weigh the terms of the question by idf; a term that does not occur in the index weighs most.

        Args:
            index: Index of the conversation.
            question: The question.
            least: Added to every weight, because idf is unreliable in a short conversation.
            floor: Fraction below which a text counts as irrelevant.
        """
        size, self._floor = len(index), floor
        self._weights = {
            term: least + idf(size, spread)
            for term in sorted(question.terms)  # sums must not depend on the order of a set
            for spread in (len(index.posts.get(term, ())) // 2,)
        }
        self._all = sum(sorted(self._weights.values(), reverse=True)[:TELLING])
        self._least = floor * self._all * (1 - 1e-9)
        few = self._weights if len(self._weights) <= MAX_TERMS else {}
        self._beginnings = [(start, weight) for term, weight in few.items() for start in beginnings(term)]

    def of(self, text: str) -> float:
        """Fraction of the question that a text contains, from 0 to 1; 0 if it is below the floor."""
        if not self._all:
            return 0.0
        if self._beginnings:
            plain = fold(text)
            if sum(weight for start, weight in self._beginnings if start in plain) < self._least:
                return 0.0
        share = self.share(self.held(text))
        return share if share >= self._floor else 0.0

    def held(self, text: str) -> set[str]:
        """Terms of the question that a text contains."""
        return self._weights.keys() & passage_terms(text).keys()

    def share(self, held: Set[str]) -> float:
        """Fraction of the question that a set of its terms covers, from 0 to 1."""
        return min(1.0, sum(map(self._weights.__getitem__, sorted(held))) / self._all) if self._all else 0.0
