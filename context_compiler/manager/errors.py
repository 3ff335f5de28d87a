"""What failed and was done without is told: in the log, and to whoever wants to hear of it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from context_compiler.middleware.middleware import loggable
from context_compiler.resilience import attempt, attempted

LOG = logging.getLogger("context_compiler")
T = TypeVar("T")


class Reports:
    """Tells of failures; telling never fails."""

    def __init__(self, on_error: Callable[[Exception], object] | None) -> None:
        self._on_error = on_error

    def tell(self, what: str, error: Exception) -> None:
        """Say what failed."""
        LOG.warning("context_compiler: %s: %s", what, loggable(error))
        told = self._on_error
        if told is not None and (failed := attempt(lambda: told(error)).error) is not None:
            LOG.warning("context_compiler: a callback raised %s", loggable(failed))

    async def spared(self, what: str, work: Awaitable[T], trouble: list[str]) -> T | None:
        """What some work gives, or None when it fails, which is told and added to `trouble`."""
        outcome = await attempted(work)
        if outcome.error is not None:
            trouble.append(f"{what}: {loggable(outcome.error)}")
            self.tell(what, outcome.error)
        return outcome.value
