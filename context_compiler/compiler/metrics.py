"""Metrics of a request that need no judge: size, broken pairs, cost with a prompt cache.

Every measure takes what a request carries, as it was read, and knows nothing of who made it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from context_compiler.messages.history import Reading

CACHED, FRESH = 0.1, 1.25
"""Cost of a cached token, and of one written to the cache; a plain token costs 1."""


def broken_pairs(readings: Iterable[Reading]) -> tuple[int, int]:
    """Orphaned results and half-open calls: answers to no call before them, and calls that nothing after them answers.

    A second answer to the same call is an orphan. The provider's own tools are left to the provider.
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
    """Price of the requests of one session with a provider's prompt cache, in plain input tokens.

    Whole messages at the beginning that are the same as in the request before cost a tenth, the rest 1.25. Nothing
    is ever evicted, and what hosts stamp on a message (times, ids) does not make it another one.
    """

    def __init__(self) -> None:
        self._before: tuple[str, ...] = ()
        self.cached = 0

    def charge(self, readings: Sequence[Reading]) -> float:
        """The price of the next request; `cached` has its tokens that came from the cache."""
        names = tuple(reading.name for reading in readings)
        pairs = zip(names, self._before, strict=False)
        shared = next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(names), len(self._before)))
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
    """Tokens that a prompt cache has."""
    seconds: float
    """From asking to the model's answer, which comes at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Metrics of all requests of one session."""

    requests: int
    over: int
    """Requests over the budget."""
    worst: float
    """Tokens of the largest request, in budgets."""
    broken: int
    """Requests with an orphaned result or a half-open call."""
    tokens: int
    cost: float
    """Of the whole session, in plain input tokens."""
    median_ms: float


def figures(sent: Sequence[Sent], budget: int) -> Figures:
    """The requests of a session together; a session without requests comes to nothing."""
    return Figures(
        requests=len(sent),
        over=sum(one.tokens > budget for one in sent),
        worst=max((one.tokens for one in sent), default=0) / budget,
        broken=sum(bool(one.orphans or one.half_open) for one in sent),
        tokens=sum(one.tokens for one in sent),
        cost=sum(one.cost for one in sent),
        median_ms=median(one.seconds for one in sent) * 1000 if sent else 0.0,
    )
