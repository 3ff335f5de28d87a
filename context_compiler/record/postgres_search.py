"""The search indexes of the record in PostgreSQL.

The words of a text are a third of the work of saving it, so they are written after some saves, of many texts at once.
Until then a text waits in the table of the index, without its words, and a search reads it.
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

EVERY, INDEXED = 32, 256
"""Saves from one move of texts into the search index to the next, and texts that move at once."""

OF_OWNER = "($1 OR substr(node, 1, strpos(node, '/')) = $2)"
"""The condition of messages of everyone, or of the owner with a prefix."""


def index_waiting(db: PostgresDatabase, limit: int) -> int:
    """Move texts that wait into the search index, in rows of `PART` words; their number.

    Nothing waits for the disk: what a power failure undoes waits as before.
    """
    with db.transaction():
        db.run("SET LOCAL synchronous_commit = off", returns_rows=False)
        waiting = db.run(
            f"SELECT number, node, text FROM {db.schema}.messages_fts WHERE words IS NULL"
            " ORDER BY number LIMIT $1 FOR UPDATE SKIP LOCKED",
            limit,
        ).fetchall()
        parts = [(number, node, indexed_words(text or "")) for number, node, text in waiting]
        further = [(node, part) for _, node, every in parts for part in every[1:]]
        if further:
            db.run(
                f"INSERT INTO {db.schema}.messages_fts (node, words) SELECT n.node, n.words::tsvector"
                " FROM unnest($1::text[], $2::text[]) AS n (node, words)",
                *([one[at] for one in further] for at in range(2)),
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
    """Messages with these words one after the other, newest first."""
    asked = words_of(" ".join(words))
    if not asked:
        return []
    phrase = " <-> ".join(f"'{word}'" for word in asked) + ":*"
    owner = (prefix is None, prefix or "")
    waiting = db.run(
        f"SELECT number, node, text FROM {db.schema}.messages_fts WHERE words IS NULL AND {OF_OWNER}", *owner
    )
    found = [row for row in waiting if has_phrase(row[2], asked)]  # first, so that none is moved in between
    found += db.run(
        f"SELECT number, node, text FROM {db.schema}.messages_fts WHERE text IS NOT NULL AND node IN ("
        f" SELECT node FROM {db.schema}.messages_fts WHERE words @@ CAST($3::text AS tsquery) AND {OF_OWNER}"
        ") ORDER BY number DESC LIMIT $4",
        *(*owner, phrase, limit),
    )
    newest = {row[1]: row[2] for row in sorted(found, key=itemgetter(0), reverse=True)}
    return list(newest.items())[:limit]


def bm25(documents: Sequence[Sequence[str]], asked: Sequence[str]) -> Callable[[Any], float]:
    """The score of a row with `terms` among those that match."""
    average = sum(map(len, documents)) / max(len(documents), 1)
    holders = {term: sum(term in set(one) for one in documents) for term in asked}

    def score(row: Any) -> float:
        counts, length = Counter[str](row["terms"]), 0.25 + 0.75 * len(row["terms"]) / max(average, 1.0)
        return sum(
            log(1 + len(documents) / held) * counts[term] * 2.2 / (counts[term] + 1.2 * length)
            for term, held in holders.items()
            if counts[term]
        )

    return score
