"""Statements of SQLite in the words of PostgreSQL, as far as this package writes them, and texts as that holds them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from context_compiler.record.postgres_tables import TABLES

NO_NULLS: frozenset[int] = frozenset()

_ROWID = ("cycles", "layers", "conversations", "actions")
NUMBERS: Mapping[str, str] = {"contents": "hash", "spaces": "session", **dict.fromkeys(_ROWID, "rowid")}
"""The columns in place of SQLite's `rowid`, where it is not `id`."""

_LITERAL = re.compile(r"('(?:[^']|'')*')")
_TABLE = re.compile(rf"\b(FROM|JOIN|INTO|UPDATE|TABLE)(\s+)({'|'.join(TABLES)})\b", re.IGNORECASE)
_LIST = re.compile(r"IN \(SELECT value FROM json_each\((\?\d*)\)\)")
_TIPS = re.compile(r"json_each\((\?\d*)\) AS tip")
_NULL = re.compile(r"(\?\d*) IS NULL")
_MARKED = re.compile(r"(IN \(SELECT value FROM json_each\(\?\d*\)\)|json_each\(\?\d*\) AS tip|\?\d* IS NULL|\?\d*)")
"""Markers of parameters, with the words around them that are other ones in PostgreSQL."""
_WORDS = (
    (re.compile(r"\bifnull\("), "coalesce("),
    (re.compile(r"\binstr\("), "strpos("),
    (re.compile(r"(?<!IS )\bNOT NULL\b"), "IS NOT NULL"),
    (re.compile(r"\bLIMIT (\$\d+)"), r"LIMIT nullif(\1::bigint, -1)"),
    (re.compile(r"\bOFFSET (\$\d+)"), r"OFFSET \1::bigint"),
    (re.compile(r"\bcoalesce\((\$\d+), 0\)"), r"coalesce(\1::bigint, 0)"),
    (re.compile(r"\bjson_each\(([\w.]+)\) (\w+)"), r"json_array_elements_text(\1::json) AS \2 (value)"),
)
_WRITES = re.compile(r"(WITH\b.*\)\s*)?(INSERT|UPDATE|DELETE)\b", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A statement in PostgreSQL's words."""

    text: str
    returns_rows: bool
    lists: frozenset[int]
    """Positions of parameters that are lists, as JSON."""
    body: int | None
    """Position of a parameter that is the stored form of a body."""


@lru_cache(maxsize=1_000)
def translate(sql: str, schema: str, nulls: frozenset[int] = NO_NULLS) -> Statement:
    """A statement for the tables of a schema.

    `nulls` are the positions of parameters that are NULL: where a statement asks for that, the answer is written into
    it, because the type of a parameter of which nothing else is asked would be unknown.
    """
    first = _TABLE.search(sql)
    number = NUMBERS.get(first[3].lower(), "id") if first else "id"
    markers = _Markers(nulls=nulls)
    parts = _LITERAL.split(re.sub(r"\browid\b", number, sql))
    text = "".join(part if at % 2 else _words(markers.replace(part), schema) for at, part in enumerate(parts)).strip()
    if "INSERT OR IGNORE" in text:
        text = text.replace("INSERT OR IGNORE", "INSERT") + " ON CONFLICT DO NOTHING"
    return Statement(
        text=text,
        returns_rows=_WRITES.match(text) is None,
        lists=frozenset(markers.lists),
        body=1 if text.startswith(f"INSERT INTO {schema}.contents ") else None,
    )


def _words(text: str, schema: str) -> str:
    for pattern, word in _WORDS:
        text = pattern.sub(word, text)
    return _TABLE.sub(rf"\1\2{schema}.\3", text)


@dataclass(slots=True, kw_only=True)
class _Markers:
    """The markers of one statement, in order."""

    nulls: frozenset[int]
    count: int = 0
    lists: set[int] = field(default_factory=set[int])

    def replace(self, text: str) -> str:
        """The text with PostgreSQL's markers."""
        return _MARKED.sub(lambda found: self._marked(found[0]), text)

    def _marked(self, text: str) -> str:
        if found := _LIST.fullmatch(text):
            return f"= ANY({self._marker(found[1], is_list=True)})"
        if found := _TIPS.fullmatch(text):
            return f"unnest({self._marker(found[1], is_list=True)}::text[]) WITH ORDINALITY AS tip (value, key)"
        if found := _NULL.fullmatch(text):
            return "TRUE" if int(self._marker(found[1])[1:]) - 1 in self.nulls else "FALSE"
        return self._marker(text)

    def _marker(self, text: str, *, is_list: bool = False) -> str:
        self.count += 1
        number = int(text[1:]) if len(text) > 1 else self.count
        if is_list:
            self.lists.add(number - 1)
        return f"${number}"


MARK, NUL = "\ufdd0", "\0"
"""A text cannot hold NUL here; it is written as the mark and `0`, and the mark, which is not a character, twice."""

PART, OVERLAP, WORD = 1_000, 16, 200
"""Words in a row of the search index, words that two rows share so that phrases cross them, and letters of a word."""


def escape(text: str) -> str:
    """A text that PostgreSQL can hold."""
    if NUL not in text and MARK not in text:
        return text
    return text.replace(MARK, MARK + MARK).replace(NUL, MARK + "0")


def unescape(text: str) -> str:
    """The text of `escape`."""
    return re.sub(f"{MARK}(.)", lambda found: NUL if found[1] == "0" else MARK, text)


def words_of(text: str) -> list[str]:
    """Words of a text as the search index knows them: without case and accents."""
    bare = text.casefold()
    if not bare.isascii():
        bare = "".join(one for one in unicodedata.normalize("NFKD", bare) if not unicodedata.combining(one))
    return [word[:WORD] for word in re.findall(r"[^\W_]+", bare)]


def indexed_words(text: str) -> list[str]:
    """The words of a text for the rows of the search index that it takes, one or more, as PostgreSQL reads them."""
    words = words_of(text)
    return [
        " ".join(f"'{word}':{at}" for at, word in enumerate(words[start : start + PART + OVERLAP], 1))
        for start in range(0, max(len(words), 1), PART)
    ]


def has_phrase(text: str, asked: Sequence[str]) -> bool:
    """True if a text has these words one after the other; the last may be the beginning of one."""
    words, size = words_of(text), len(asked)
    return any(
        words[at + size - 1].startswith(asked[-1]) and words[at : at + size - 1] == [*asked[:-1]]
        for at in range(len(words) - size + 1)
    )
