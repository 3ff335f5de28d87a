"""Rank passages by embeddings as well as by words, if the caller supplies an embedder.

The two rankings are combined by reciprocal rank fusion (Cormack, Clarke and Büttcher 2009), which needs no common
scale. If the embedder fails or is late, the ranking by words is used alone; after three times, also for a pause.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Awaitable, Sequence
from hashlib import blake2b
from math import sqrt

from pydantic_ai.embeddings import Embedder, EmbeddingResult

from context_compiler.cache import CACHED, Memo
from context_compiler.recall.passages import Passage
from context_compiler.resilience import Breaker, await_within, try_await

LOG = logging.getLogger("context_compiler")

DAMPING = 60
"""Damping constant of reciprocal rank fusion: the larger it is, the less the top ranks count."""

EMBEDDED = 2_000
"""Maximum number of passages compared by embedding: the best by words, ties to the later one."""

BATCH, WITHIN_S = 128, 5.0
"""Maximum number of passages in one call of the embedder, and seconds that a search waits for it. The next search goes
on with the passages that are left."""

SHARE = 0.3
"""Weight of the ranking by embeddings; at equal weights it costs up to six points of recall."""

CLOSE = 0.2
"""Minimum cosine similarity; a passage with less is not about the question."""


class Likeness:
    """Compares passages with questions by their embeddings; each passage is embedded once."""

    def __init__(self, embedder: Embedder) -> None:
        """Store the embedder; nothing is embedded yet."""
        self._embedder = embedder
        self._known: Memo[bytes, array[float]] = Memo(CACHED)
        self._breaker = Breaker()

    async def fused(self, question: str, candidates: Sequence[Passage], ranked: Sequence[float]) -> list[float]:
        """Combined score of each candidate; 0 if it answers by neither words nor embeddings.

        Args:
            question: The question, as text.
            candidates: Passages to score.
            ranked: Their scores by words, above 0 for passages that answer.
        """
        if self._breaker.open:
            return list(ranked)
        outcome = await try_await(self._cosines(question, candidates, ranked))
        if outcome.value is None:
            self._breaker.failed()
            LOG.warning("context_compiler: the embedder failed (%s); ranked by words", type(outcome.error).__name__)
            return list(ranked)
        self._breaker.succeeded()
        combined = [0.0] * len(candidates)
        for scores, floor, weight in ((ranked, 0.0, 1 - SHARE), (outcome.value, CLOSE, SHARE)):
            order = sorted(
                (index for index, score in enumerate(scores) if score > floor), key=lambda index: -scores[index]
            )
            for rank, index in enumerate(order, 1):
                combined[index] += weight / (DAMPING + rank)
        return combined

    async def _cosines(self, question: str, candidates: Sequence[Passage], ranked: Sequence[float]) -> list[float]:
        wanted = sorted(range(len(candidates)), key=lambda index: (-ranked[index], -index))[:EMBEDDED]
        end = time.monotonic() + WITHIN_S
        query = _unit((await _await_until(end, self._embedder.embed_query(question))).embeddings[0])
        await self._embed([candidates[index].text for index in wanted], end)
        cosines = [0.0] * len(candidates)
        for index in wanted:
            vector = self._known.get(_key(candidates[index].text))
            cosines[index] = sum(map(float.__mul__, query, vector)) if vector is not None else 0.0
        return cosines

    async def _embed(self, texts: Sequence[str], end: float) -> None:
        """Embed the texts whose vectors are not cached, in order, as many batches as end in time; one must."""
        new = [text for text in dict.fromkeys(texts) if self._known.get(_key(text)) is None]
        for start in range(0, len(new), BATCH):
            if start and time.monotonic() >= end:
                return
            batch = new[start : start + BATCH]
            try:
                result = await _await_until(end, self._embedder.embed_documents(batch))
            except TimeoutError:
                if start:
                    return
                raise
            for text, vector in zip(batch, result.embeddings, strict=True):
                self._known.keep(_key(text), _unit(vector))


async def _await_until(end: float, work: Awaitable[EmbeddingResult]) -> EmbeddingResult:
    return await await_within(end - time.monotonic(), work, TimeoutError(f"no answer within {WITHIN_S:g} s"))


def _key(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _unit(vector: Sequence[float]) -> array[float]:
    length = sqrt(sum(value * value for value in vector)) or 1.0
    return array("d", (value / length for value in vector))
