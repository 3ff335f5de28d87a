"""A stage that fails in passing is tried again, after a pause that grows; what cannot succeed is not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError

from context_compiler.pipeline.graph import Graph, Node

Sleep = Callable[[float], Awaitable[None]]
"""Waits for some seconds."""
Random = Callable[[], float]
"""A number from 0 up to 1."""

PASSING = (408, 425, 429)
"""HTTP answers that may be another one next time, beside all from 500 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How long to wait before each further attempt."""

    initial: float = 0.2
    """Seconds before the second attempt."""
    factor: float = 2.0
    longest: float = 60.0
    jitter: bool = True

    def delay(self, attempt: int, draw: Random = random.random) -> float:
        """Seconds to wait after the attempt of that number, from 1; with jitter from half as long to one and a half."""
        exponent = min(attempt - 1, 64)
        try:
            wait = min(self.initial * self.factor**exponent, self.longest)
        except OverflowError:
            wait = self.longest
        return wait * (0.5 + draw()) if self.jitter else wait


PRESETS = {
    "none": (1, Backoff()),
    "standard": (5, Backoff(initial=0.2, factor=2.0)),
    "aggressive": (5, Backoff(initial=0.5, factor=2.0)),
    "linear": (3, Backoff(initial=0.5, factor=1.0)),
    "patient": (3, Backoff(initial=2.0, factor=3.0)),
}
"""Attempts and pauses under the names that pipelines use for them (`retry_policy`)."""


def attempts(node: Node, graph: Graph) -> int:
    """How often a stage may run at one visit: its `max_retries` and one, else its policy's, else the graph's."""
    if node.max_retries is not None:
        return max(0, node.max_retries) + 1
    preset = PRESETS.get(node.text("retry_policy"))
    return preset[0] if preset else max(0, graph.default_max_retries) + 1


def backoff(node: Node, usual: Backoff) -> Backoff:
    """The pauses of a stage."""
    preset = PRESETS.get(node.text("retry_policy"))
    return preset[1] if preset else usual


def is_passing(error: BaseException) -> bool:
    """Whether an exception may not come again: a provider that is busy or not reached, a connection, a time-out."""
    if isinstance(error, ModelHTTPError):
        return error.status_code in PASSING or error.status_code >= 500
    return isinstance(error, ModelAPIError | ConnectionError | TimeoutError | asyncio.IncompleteReadError)
