"""Ranking by meaning beside ranking by words, for those who bring an embedder.

The two orders are fused by reciprocal rank (Cormack, Clarke and Büttcher 2009), which needs no common scale.
An embedder that fails leaves the order of the words as it is.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Sequence
from hashlib import blake2b
from math import sqrt

from pydantic_ai.embeddings import Embedder

from context_compiler.cache import Memo
from context_compiler.recall.passages import Passage
from context_compiler.resilience import try_await

LOG = logging.getLogger("context_compiler")

DAMPING = 60
"""Damping constant of reciprocal rank fusion; larger means flatter."""

EMBEDDED = 2_000
"""Passages that are compared: those that rank best by words, then the newest."""

BATCH = 128
"""Passages in one call of the embedder."""

REMEMBERED = 20_000
"""Passages whose vectors are kept."""

CLOSE = 0.2
"""Cosine; what is further from the question than this is not about it."""


class Likeness:
    """Compares passages with questions by their embeddings, each of which is asked for once."""

    def __init__(self, embedder: Embedder) -> None:
        """Ask nothing yet."""
        self._embedder = embedder
        self._known: Memo[bytes, array[float]] = Memo(REMEMBERED)

    async def fused(self, question: str, candidates: Sequence[Passage], ranked: Sequence[float]) -> list[float]:
        """One score a candidate from both orders, 0 where neither has anything to say for it."""
        outcome = await try_await(self._cosines(question, candidates, ranked))
        if outcome.value is None:
            LOG.warning("context_compiler: the embedder failed (%s); ranked by words", type(outcome.error).__name__)
            return list(ranked)
        found = [0.0] * len(candidates)
        for scores, floor in ((ranked, 0.0), (outcome.value, CLOSE)):
            order = sorted((at for at, score in enumerate(scores) if score > floor), key=lambda at: -scores[at])
            for place, at in enumerate(order, 1):
                found[at] += 1 / (DAMPING + place)
        return found

    async def _cosines(self, question: str, candidates: Sequence[Passage], ranked: Sequence[float]) -> list[float]:
        wanted = sorted(range(len(candidates)), key=lambda at: (-ranked[at], -at))[:EMBEDDED]
        await self._learn([candidates[at].text for at in wanted])
        asked = _unit((await self._embedder.embed_query(question)).embeddings[0])
        found = [0.0] * len(candidates)
        for at in wanted:
            known = self._known.get(_name(candidates[at].text))
            found[at] = sum(map(float.__mul__, asked, known)) if known is not None else 0.0
        return found

    async def _learn(self, texts: Sequence[str]) -> None:
        """Ask for the vectors that are not known yet."""
        new = [text for text in dict.fromkeys(texts) if self._known.get(_name(text)) is None]
        for start in range(0, len(new), BATCH):
            batch = new[start : start + BATCH]
            result = await self._embedder.embed_documents(batch)
            for text, vector in zip(batch, result.embeddings, strict=True):
                self._known.keep(_name(text), _unit(vector))


def _name(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _unit(vector: Sequence[float]) -> array[float]:
    length = sqrt(sum(value * value for value in vector)) or 1.0
    return array("d", (value / length for value in vector))
