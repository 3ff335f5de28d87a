"""Find the exact terms of a question that nobody has said: ids, paths, long numbers, names and dates.

Only what can be compared letter by letter counts. Nothing is claimed about paraphrases, and nothing at all if a text of
the conversation is too large to be searched whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from context_compiler.cache import Memo
from context_compiler.messages.history import History
from context_compiler.messages.items import LARGEST
from context_compiler.recall.question import Pending, dated
from context_compiler.recall.terms import MAX_TERM, fold, stem

MAX_ASKED = 4_000
"""Maximum number of characters of a question; a longer one contains pasted text, of which nothing is asked."""

_RUN = re.compile(r"\d{1,3}(?:,\d{3})+(?!\d)|[\w./\\:@#+~-]+")
_NUMBER = re.compile(r"\d{3,}|\d{1,3}(?:,\d{3})+")
_ID = re.compile(
    r"(?!\d+-?[a-z])(?=.*\w\w)"
    r"(?:.*[^\W\d].*\d|.*\d.*[^\W\d]|.*\w{2}[.@_]\w{2}|.*[a-z][A-Z]|.*[/\\].*[./\\]|[/~].*\w)"
)
"""A letter and a digit, but no "20-year-old"; or a mark between words, but no "e.g" and no "and/or"."""
_NAME = re.compile(r"(?<=[a-z0-9,;] )[A-Z][^\W\d_]{2,}")

_COMMA = re.compile(r"(?<=\d),(?=\d{3})")
_DATE = re.compile(r"(?:\d{4}-)?\d\d-\d\d")

YEAR = -len("MM-DD")
"""Position in a date at which its month begins, from the end."""

_kept = Memo[tuple[str, str], tuple[str, ...]](1_024)


def absent_terms(history: History, question: Pending) -> tuple[str, ...]:
    """The exact terms of a question that no message before it contains, as they are written."""
    before = history.ids[question.at - 1] if question.at else ""
    return _kept.get_or_make((before, question.name), lambda: tuple(_absent(history, question)))


def _absent(history: History, question: Pending) -> Iterator[str]:
    asked = dict(_exact_terms(question.text)) if len(question.text) <= MAX_ASKED else {}
    readings = history.readings[: question.at] if asked else ()
    if any(len(item.text) >= LARGEST for reading in readings for item in reading.items):
        return
    said = [_plain("\n".join([reading.day, *(item.text for item in reading.items)])) for reading in readings]
    dates = (
        {date[YEAR:] for text in said for _, date in dated(text)} if any(map(_DATE.fullmatch, asked.values())) else ()
    )
    for written, form in asked.items():
        if form[YEAR:] not in dates and not any(form in text for text in said):
            yield written


def _plain(text: str) -> str:
    return _COMMA.sub("", fold(text))


def _exact_terms(text: str) -> Iterator[tuple[str, str]]:
    """Exact terms of a text, and the form in which plain texts contain them; that of a date is YYYY-MM-DD, or MM-DD."""
    for written, date in dated(text):
        yield written, date
        text = text.replace(written, " ")
    for name in _NAME.findall(text):
        if stem(name.lower()) and name.lower() not in _CALENDAR:
            yield name, _plain(name)
    for run in _RUN.findall(text):
        exact = run.rstrip("./\\:@#+~-").lstrip(".\\:@#+-") if len(run) <= MAX_TERM else ""
        if len(exact) > 2 and (_NUMBER.fullmatch(exact) or _ID.match(exact)):
            yield exact, _plain(exact)


_CALENDAR = frozenset(
    "january february march april may june july august september october november december"
    " monday tuesday wednesday thursday friday saturday sunday"
    " jan feb mar apr jun jul aug sep sept oct nov dec mon tue wed thu fri sat sun".split()
)
