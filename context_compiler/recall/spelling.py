"""Correct misspelt words of a question to words of its conversation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from os.path import commonprefix

from context_compiler.recall.index import Index
from context_compiler.recall.question import Question

LEAST = 5
"""Minimum length of a term that may be misspelt; shorter ones have too many neighbours."""

MOST = 8
"""Maximum number of unknown terms of a question that are looked up; a prompt with more has a pasted text."""


def spelt(question: Question, index: Index, stop: int) -> Question:
    """The question with the nearest known term in place of each that no message before `stop` contains."""
    posts = index.posts
    unknown = {term for term in question.terms if term not in posts or posts[term][0] >= stop}
    if not 0 < len(unknown) <= MOST:
        return question
    first = {term[0] for term in unknown if len(term) >= LEAST}
    known = {term: len(places) for term, places in posts.items() if term[0] in first and places[0] < stop}
    near = [max(near_terms(term, known), key=lambda word: (known[word], word), default=term) for term in unknown]
    return replace(question, terms=(question.terms - unknown).union(near))


def near_terms(term: str, known: Iterable[str]) -> list[str]:
    """Known words with the same first letter that differ from a word by one slip.

    A slip is a letter too many, one too few or a wrong one, or two that changed places. Numbers and ids have no
    neighbours, because another number is another thing.
    """
    if len(term) < LEAST or not term.isalpha():
        return []
    first, least, most = term[0], len(term) - 1, len(term) + 1
    return [word for word in known if word[0] == first and least <= len(word) <= most and _is_slip(term, word)]


def _is_slip(term: str, word: str) -> bool:
    start = len(commonprefix((term, word)))
    end = len(commonprefix((term[start:][::-1], word[start:][::-1])))
    ours, theirs = term[start : len(term) - end], word[start : len(word) - end]
    return word.isalpha() and (max(len(ours), len(theirs)) == 1 or (len(ours) == 2 and ours == theirs[::-1]))
