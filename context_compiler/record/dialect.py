"""Translation of this package's SQLite statements, texts and search words to PostgreSQL."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count

from context_compiler.record.postgres_tables import TABLES
from context_compiler.record.tables import UNNAMED_NUMBERS

NO_NULLS: frozenset[int] = frozenset()

NUMBERS: Mapping[str, str] = {
    "contents": "hash",
    "messages_fts": "number",
    **dict.fromkeys(UNNAMED_NUMBERS, "rowid"),
}
"""Columns that replace SQLite's `rowid`, by table; in all other tables it is `id`."""

_LITERAL = re.compile(r"('(?:[^']|'')*')")
_TABLE = re.compile(rf"\b(FROM|JOIN|INTO|UPDATE|TABLE)(\s+)({'|'.join(TABLES)})\b", re.IGNORECASE)
_MARKER = re.compile(
    r"IN \(SELECT value FROM json_each\(\?(?P<list>\d*)\)\)|json_each\(\?(?P<tips>\d*)\) AS tip"
    r"|\?(?P<null>\d*) IS NULL|\?(?P<plain>\d*)"
)
"""Parameter markers by kind, with the words around them that PostgreSQL writes differently."""
_FORMS = {"list": "= ANY(${})", "tips": "unnest(${}::text[]) WITH ORDINALITY AS tip (value, key)", "plain": "${}"}
_WORDS = (
    (re.compile(r"\bifnull\("), "coalesce("),
    (re.compile(r"\binstr\("), "strpos("),
    (re.compile(r"\bjson_group_array\("), "json_agg("),
    (re.compile(r"(?<!IS )\bNOT NULL\b"), "IS NOT NULL"),
    (re.compile(r"\bLIMIT (\$\d+)"), r"LIMIT nullif(\1::bigint, -1)"),
    (re.compile(r"\bOFFSET (\$\d+)"), r"OFFSET \1::bigint"),
    (re.compile(r"\bcoalesce\((\$\d+), 0\)"), r"coalesce(\1::bigint, 0)"),
    (re.compile(r"\bjson_each\(([\w.]+)\) (\w+)"), r"json_array_elements_text(\1::json) AS \2 (value)"),
)
_WRITES = re.compile(r"(WITH\b.*\)\s*)?(INSERT|UPDATE|DELETE)\b", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A statement translated to PostgreSQL."""

    text: str
    returns_rows: bool
    lists: frozenset[int]
    """Positions of parameters that are JSON lists."""
    body: int | None
    """Position of the parameter with a body in stored form; None if there is none."""


@lru_cache(maxsize=1_000)
def translate(sql: str, schema: str, nulls: frozenset[int] = NO_NULLS) -> Statement:
    """Translate a statement for the tables of a schema.

    `nulls` are the positions of parameters that are NULL. Each `? IS NULL` is replaced by TRUE or FALSE, because
    PostgreSQL cannot infer the type of a parameter that is used only in such a test.
    """
    first = _TABLE.search(sql)
    number = NUMBERS.get(first[3].lower(), "id") if first else "id"
    ordinals, lists = count(1), set[int]()

    def translate_marker(marker: re.Match[str]) -> str:
        ordinal, kind = next(ordinals), marker.lastgroup or "plain"
        parameter = int(marker[kind] or ordinal)
        if kind in ("list", "tips"):
            lists.add(parameter - 1)
        if kind == "null":
            return "TRUE" if parameter - 1 in nulls else "FALSE"
        return _FORMS[kind].format(parameter)

    parts = _LITERAL.split(re.sub(r"\browid\b", number, sql))
    text = "".join(
        part if i % 2 else _words(_MARKER.sub(translate_marker, part), schema) for i, part in enumerate(parts)
    ).strip()
    if "INSERT OR IGNORE" in text:
        text = text.replace("INSERT OR IGNORE", "INSERT") + " ON CONFLICT DO NOTHING"
    return Statement(
        text=text,
        returns_rows=_WRITES.match(text) is None,
        lists=frozenset(lists),
        body=1 if text.startswith(f"INSERT INTO {schema}.contents ") else None,
    )


def _words(text: str, schema: str) -> str:
    for pattern, word in _WORDS:
        text = pattern.sub(word, text)
    return _TABLE.sub(rf"\1\2{schema}.\3", text)


MARK, NUL = "\ufdd0", "\0"
"""Escapes of NUL, which PostgreSQL cannot store in a string: NUL becomes the mark and `0`, and the mark is doubled.

The mark is a Unicode noncharacter.
"""

ROW_WORDS, OVERLAP_WORDS, MAX_WORD_LENGTH = 1_000, 16, 200
"""Words in a row of the search index, words that consecutive rows share, and maximum letters of a word.

Rows overlap so that a phrase that crosses from one to the next is found.
"""


def escape(text: str) -> str:
    """Escape a string so that PostgreSQL can store it."""
    if NUL not in text and MARK not in text:
        return text
    return text.replace(MARK, MARK + MARK).replace(NUL, MARK + "0")


def unescape(text: str) -> str:
    """Return the string that `escape` was given."""
    return re.sub(f"{MARK}(.)", lambda escaped: NUL if escaped[1] == "0" else MARK, text)


def words_of(text: str) -> list[str]:
    """Split a string into words as the search index stores them: without case and accents."""
    bare = text.casefold()
    if not bare.isascii():
        bare = "".join(char for char in unicodedata.normalize("NFKD", bare) if not unicodedata.combining(char))
    return [word[:MAX_WORD_LENGTH] for word in re.findall(r"[^\W_]+", bare)]


def indexed_words(text: str) -> list[str]:
    """Return the words of a string in PostgreSQL's tsvector syntax, for one or more rows of the search index."""
    words = words_of(text)
    return [
        " ".join(
            f"'{word}':{number}" for number, word in enumerate(words[start : start + ROW_WORDS + OVERLAP_WORDS], 1)
        )
        for start in range(0, max(len(words), 1), ROW_WORDS)
    ]


def has_phrase(text: str, phrase: Sequence[str]) -> bool:
    """True if a string contains these words in sequence; the last may be the beginning of a longer word."""
    words, size = words_of(text), len(phrase)
    return any(
        words[start + size - 1].startswith(phrase[-1]) and words[start : start + size - 1] == [*phrase[:-1]]
        for start in range(len(words) - size + 1)
    )
