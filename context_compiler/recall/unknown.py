"""Terms of a question that its conversation does not contain: misspelt words are corrected, exact terms are named.

A misspelt word stands for the nearest word of the conversation. Exact terms are ids, paths, long numbers, names and
dates: what can be compared letter by letter. Nothing is claimed about paraphrases, and nothing at all if a text of the
conversation is too large to be searched whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from os.path import commonprefix
from unicodedata import normalize

from context_compiler.cache import CACHED, Memo
from context_compiler.messages.history import History
from context_compiler.messages.items import LARGEST
from context_compiler.recall.index import Index
from context_compiler.recall.question import Pending, Question, dated
from context_compiler.recall.ranking import MAX_TERMS
from context_compiler.recall.statements import DAYS, MONTHS
from context_compiler.recall.terms import MAX_TERM, PROSE, fold, stem

LEAST = 5
"""Minimum length of a term that may be misspelt; shorter ones have too many neighbours."""


def spelt(question: Question, index: Index, stop: int) -> Question:
    """The question with the nearest known term in place of each that no message before `stop` contains."""
    posts = index.posts
    unknown = {term for term in question.terms if term not in posts or posts[term][0] >= stop}
    if not 0 < len(unknown) <= MAX_TERMS:
        return question
    first = {term[0] for term in unknown if len(term) >= LEAST}
    counts = {term: len(places) for term, places in posts.items() if term[0] in first and places[0] < stop}
    near = [max(near_terms(term, counts), key=lambda word: (counts[word], word), default=term) for term in unknown]
    return replace(question, terms=(question.terms - unknown).union(near))


def near_terms(term: str, words: Iterable[str]) -> list[str]:
    """Known words with the same first letter that differ from a word by one slip.

    A slip is a letter too many, one too few or a wrong one, or two that changed places. Numbers and ids have no
    neighbours, because another number is another thing.
    """
    if len(term) < LEAST or not term.isalpha():
        return []
    first, least, most = term[0], len(term) - 1, len(term) + 1
    return [word for word in words if word[0] == first and least <= len(word) <= most and _is_slip(term, word)]


def _is_slip(term: str, word: str) -> bool:
    start = len(commonprefix((term, word)))
    end = len(commonprefix((term[start:][::-1], word[start:][::-1])))
    ours, theirs = term[start : len(term) - end], word[start : len(word) - end]
    return word.isalpha() and (max(len(ours), len(theirs)) == 1 or (len(ours) == 2 and ours == theirs[::-1]))


_RUN = re.compile(r"\d{1,3}(?:,\d{3})+(?!\d)|[\w./\\:@#+~-]+")
_NUMBER = re.compile(r"\d{3,}|\d{1,3}(?:,\d{3})+")
_COUNTED = re.compile(r"\d+-?[a-z]")
"""Beginning of "10am" and "20-year-old"."""
_JOINED = re.compile(r"\w{2}[.@_]\w{2}|[a-z][A-Z]")
"""A mark between words, but no "e.g"; or a capital in a word."""
_NAME = re.compile(r"(?<=[a-z0-9,;] )[A-Z][^\W\d_]{2,}")

_COMMA = re.compile(r"(?<=\d),(?=\d{3})")
_BACKSLASHES = re.compile(r"\\+")
"""JSON doubles each backslash, once more for each text within a text, so that a run of them counts as one."""
_DATE = re.compile(r"(?:\d{4}-)?\d\d-\d\d")

YEAR = -len("MM-DD")
"""Position in a date at which its month begins, from the end."""

_kept = Memo[tuple[str, str], tuple[str, ...]](CACHED)


def absent_terms(history: History, question: Pending) -> tuple[str, ...]:
    """The exact terms of a question that no message before it contains, as they are written."""
    before = history.ids[question.at - 1] if question.at else ""
    return _kept.get_or_make((before, question.name), lambda: tuple(_absent(history, question)))


def _absent(history: History, question: Pending) -> Iterator[str]:
    asked = dict(_exact_terms(question.text)) if len(question.text) <= PROSE else {}
    readings = history.readings[: question.at] if asked else ()
    if any(len(item.text) >= LARGEST for reading in readings for item in reading.items):
        return
    said = [_plain("\n".join([reading.day, *(item.text for item in reading.items)])) for reading in readings]
    asks_date = any(map(_DATE.fullmatch, asked.values()))
    dates = {date[YEAR:] for text in said for _, date in dated(text)} if asks_date else ()
    for written, form in asked.items():
        if form[YEAR:] not in dates and not any(form in text for text in said):
            yield written


def _plain(text: str) -> str:
    return _BACKSLASHES.sub(r"\\", _COMMA.sub("", fold(text)))


def _exact_terms(text: str) -> Iterator[tuple[str, str]]:
    """Exact terms of a text, and the form in which plain texts contain them; that of a date is YYYY-MM-DD, or MM-DD."""
    text = normalize("NFC", text)
    for written, date in dated(text):
        yield written, date
        text = text.replace(written, " ")
    for name in _NAME.findall(text):
        lowered = name.lower()
        # names of months and days, and their beginnings, do not count
        if stem(lowered) and not any(full.startswith(lowered) for full in (*MONTHS, *DAYS)):
            yield name, _plain(name)
    for run in _RUN.findall(text):
        exact = run.rstrip("./\\:@#+~-").lstrip(".\\:@#+-") if len(run) <= MAX_TERM else ""
        if len(exact) > 2 and (_NUMBER.fullmatch(exact) or _is_id(exact)):
            yield exact, _plain(exact)


def _is_id(run: str) -> bool:
    """True for an id or a path: with a letter and a digit, or with marks; "and/or" is none."""
    if _COUNTED.match(run):
        return False
    mixed = any(map(str.isalpha, run)) and any(map(str.isdigit, run))
    is_path = run[0] in "/~" or ("/" in run or "\\" in run) and sum(map(run.count, "/\\.")) > 1
    return mixed or is_path or _JOINED.search(run) is not None
