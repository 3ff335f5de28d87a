"""The formulas of BM25 (Robertson & Zaragoza 2009): idf, and saturation of term frequency normalized by length."""

from __future__ import annotations

from math import log1p

K1, B = 1.2, 0.75
"""The usual BM25 parameters: saturation of term frequency, and normalization by length."""
GIANT = 4.0
"""Cap on the length of a message in BM25, as a multiple of the average length."""


def idf(documents: int, spread: int) -> float:
    """Idf of a term that occurs in `spread` of the documents; above 0, and largest if it occurs in none."""
    return log1p((documents - spread + 0.5) / (spread + 0.5))


def saturation(times: int, damping: float) -> float:
    """BM25 weight of a term before idf, from its frequency in a text and the damping of that text."""
    return times * (K1 + 1) / (times + damping)


def damping_of(size: float) -> float:
    """Frequency at which a term has half its maximum BM25 weight, from the text's length as a multiple of the average.

    A length above `GIANT` counts as `GIANT`.
    """
    return K1 * (1 - B + B * min(GIANT, size))
