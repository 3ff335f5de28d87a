"""The search index of messages in PostgreSQL, and BM25 ranking of memories.

Indexing the words of a text is a third of the work of saving it, so it is done for many texts at once, after several
saves. Until then a text is in the table without its words, and a search reads the text itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import log
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from context_compiler.record.dialect import has_phrase, indexed_words, words_of

if TYPE_CHECKING:
    from context_compiler.record.postgres import PostgresDatabase

SAVES_PER_STEP, TEXTS_PER_STEP = 32, 256
"""Saves between two indexing steps, and maximum texts that are indexed in one step."""

OF_OWNER = "($1 OR substr(node, 1, strpos(node, '/')) = $2)"
"""Condition for messages of every owner if `$1` is true, or else of the owner with the prefix `$2`."""


def index_waiting(db: PostgresDatabase, limit: int) -> int:
    """Index at most `limit` texts that are not indexed yet, in rows of `ROW_WORDS` words; return their number.

    The commit does not wait for the disk: if a power failure undoes it, the texts are simply not indexed yet.
    """
    with db.transaction():
        db.run("SET LOCAL synchronous_commit = off", returns_rows=False)
        waiting = db.run(
            f"SELECT number, node, text FROM {db.schema}.messages_fts WHERE words IS NULL"
            " ORDER BY number LIMIT $1 FOR UPDATE SKIP LOCKED",
            limit,
        ).fetchall()
        parts = [(number, node, indexed_words(text or "")) for number, node, text in waiting]
        more_rows = [(node, part) for _, node, every in parts for part in every[1:]]
        if more_rows:
            db.run(
                f"INSERT INTO {db.schema}.messages_fts (node, words) SELECT n.node, n.words::tsvector"
                " FROM unnest($1::text[], $2::text[]) AS n (node, words)",
                *([one[at] for one in more_rows] for at in range(2)),
                returns_rows=False,
            )
        if parts:
            db.run(
                f"UPDATE {db.schema}.messages_fts f SET words = n.words::tsvector"
                " FROM unnest($1::bigint[], $2::text[]) AS n (number, words) WHERE f.number = n.number",
                [number for number, _, _ in parts],
                [every[0] for _, _, every in parts],
                returns_rows=False,
            )
    return len(waiting)


def find_messages(db: PostgresDatabase, words: Sequence[str], limit: int, prefix: str | None) -> list[tuple[str, str]]:
    """Find messages that contain a phrase, newest first, as `(message id, text)`; the last word may be a beginning."""
    phrase = words_of(" ".join(words))
    if not phrase:
        return []
    query = " <-> ".join(f"'{word}'" for word in phrase) + ":*"
    owner = (prefix is None, prefix or "")
    waiting = db.run(
        f"SELECT number, node, text FROM {db.schema}.messages_fts WHERE words IS NULL AND {OF_OWNER}", *owner
    )
    found = [row for row in waiting if has_phrase(row[2], phrase)]  # first, so that no text is indexed in between
    found += db.run(
        f"SELECT number, node, text FROM {db.schema}.messages_fts WHERE text IS NOT NULL AND node IN ("
        f" SELECT node FROM {db.schema}.messages_fts WHERE words @@ CAST($3::text AS tsquery) AND {OF_OWNER}"
        ") ORDER BY number DESC LIMIT $4",
        *(*owner, query, limit),
    )
    newest = {row[1]: row[2] for row in sorted(found, key=itemgetter(0), reverse=True)}
    return list(newest.items())[:limit]


def bm25(documents: Sequence[Sequence[str]], terms: Sequence[str]) -> Callable[[Any], float]:
    """Return a function that scores a matching row by BM25; `documents` are the terms of each matching row."""
    average = sum(map(len, documents)) / max(len(documents), 1)
    frequencies = {term: sum(term in set(one) for one in documents) for term in terms}

    def score(row: Any) -> float:
        counts, length = Counter[str](row["terms"]), 0.25 + 0.75 * len(row["terms"]) / max(average, 1.0)
        return sum(
            log(1 + len(documents) / frequency) * counts[term] * 2.2 / (counts[term] + 1.2 * length)
            for term, frequency in frequencies.items()
            if counts[term]
        )

    return score
