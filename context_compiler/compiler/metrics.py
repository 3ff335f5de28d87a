"""Metrics of requests that need no judge: size, broken call pairs, cost with a prompt cache.

They are computed from the messages of a request alone, so that they apply to any compaction method.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from context_compiler.messages.history import Reading

CACHED, FRESH = 0.1, 1.25
"""Cost of a token read from the prompt cache, and of one written to it; a plain input token costs 1."""


def broken_pairs(readings: Iterable[Reading]) -> tuple[int, int]:
    """Numbers of orphaned results (without a call before them) and of half-open calls (without a result after them).

    A second result of the same call is an orphan. Native tools of the provider are not counted.
    """
    waiting: set[str] = set()
    orphans = half_open = 0
    for reading in readings:
        for call in reading.answers:
            orphans += call not in waiting
            waiting.discard(call)
        for call in reading.calls:
            half_open += call in waiting
            waiting.add(call)
    return orphans, half_open + len(waiting)


class PromptCache:
    """Model of a provider's prompt cache that prices the requests of one session, in plain input tokens.

    Leading messages that equal those of the previous request cost `CACHED` for each token, the others `FRESH`. Nothing
    is ever evicted. Timestamps and ids from the host do not count as differences.
    """

    def __init__(self) -> None:
        self._before: tuple[str, ...] = ()
        self.cached = 0

    def charge(self, readings: Sequence[Reading]) -> float:
        """Price of the next request; afterwards `cached` is the number of its tokens read from the cache."""
        names = tuple(reading.name for reading in readings)
        pairs = zip(names, self._before, strict=False)
        shared = next(
            (index for index, (name, other) in enumerate(pairs) if name != other), min(len(names), len(self._before))
        )
        self._before = names
        tokens = [reading.tokens for reading in readings]
        self.cached = sum(tokens[:shared])
        return CACHED * self.cached + FRESH * sum(tokens[shared:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One request as it was sent."""

    tokens: int
    """Exact tokens of its messages."""
    orphans: int
    half_open: int
    cost: float
    """In plain input tokens, with prompt caching."""
    cached: int
    """Tokens read from the prompt cache."""
    seconds: float
    """Time of the request with a model that answers at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Metrics of all requests of one session."""

    requests: int
    over: int
    """Number of requests over the budget."""
    worst: float
    """Tokens of the largest request, as a multiple of the budget."""
    broken: int
    """Number of requests with an orphaned result or a half-open call."""
    tokens: int
    cost: float
    """Cost of the whole session, in plain input tokens."""
    median_ms: float


def figures(sent: Sequence[Sent], budget: int) -> Figures:
    """Aggregate the requests of a session; all figures are 0 without requests."""
    return Figures(
        requests=len(sent),
        over=sum(request.tokens > budget for request in sent),
        worst=max((request.tokens for request in sent), default=0) / budget,
        broken=sum(bool(request.orphans or request.half_open) for request in sent),
        tokens=sum(request.tokens for request in sent),
        cost=sum(request.cost for request in sent),
        median_ms=median(request.seconds for request in sent) * 1000 if sent else 0.0,
    )
