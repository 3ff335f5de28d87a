"""Find past text that answers a question, without a model: index, ranking and selection of passages, and an outline."""

from __future__ import annotations

from context_compiler.recall.index import Index, changes_of, index_of
from context_compiler.recall.question import Question, pending_question, question_text
from context_compiler.recall.ranking import Ranking, rank
from context_compiler.recall.relevance import Relevance

__all__ = [
    "Index",
    "Question",
    "Ranking",
    "Relevance",
    "changes_of",
    "index_of",
    "pending_question",
    "question_text",
    "rank",
]
