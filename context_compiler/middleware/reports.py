"""Reports of errors, in the log and to `on_error`: one for each error of a request or an operation by hand."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from opentelemetry.metrics import get_meter_provider

from context_compiler.errors import ContextCompilerError
from context_compiler.middleware.arguments import Arguments
from context_compiler.middleware.log_lines import log_text
from context_compiler.middleware.metrics import count_error
from context_compiler.middleware.store_access import limited
from context_compiler.resilience import call_within, try_await

LOG = logging.getLogger("context_compiler")

_REPORTED: ContextVar[set[str] | None] = ContextVar("reported", default=None)
"""Errors that the current operation has reported; None outside of operations."""


@contextmanager
def operation() -> Generator[None]:
    """Report each error once within one operation."""
    token = _REPORTED.set(set())
    try:
        yield
    finally:
        _REPORTED.reset(token)


class Reports:
    """Errors of one compiler, and calls of its callbacks."""

    def __init__(self, arguments: Arguments) -> None:
        """Report nothing yet."""
        self._arguments = arguments
        self._reported: set[str] = set()

    async def report(self, error: Exception) -> None:
        """Report an error, unless the current operation has reported one of the same text."""
        reported, text = _REPORTED.get(), f"{type(error).__name__}: {error}"
        if reported is not None:
            if text in reported:
                return
            reported.add(text)
        LOG.warning("context_compiler: %s", log_text(error))
        if has_metrics():
            count_error(error)
        await self.call_back("on_error", error)

    async def report_once(self, key: str, error: Exception) -> None:
        """Report an error that concerns the agent rather than a single run: once per `key`."""
        if key not in self._reported:
            self._reported.add(key)
            await self.report(error)

    async def call_back(self, name: str, what: Any) -> None:
        """Call `on_view` or `on_error`; its own error is reported, or for `on_error` logged."""
        callback: Callable[[Any], Any] | None = getattr(self._arguments, name)
        if callback is None:
            return
        limit = self._arguments.timeout
        late = ContextCompilerError(f"{name} took longer than {limit:g} s (timeout)")
        with limited(None):
            outcome = await try_await(call_within(limit, callback, what, late))
        if outcome.error is None:
            return
        if name == "on_view":
            await self.report(outcome.error)
        else:
            LOG.warning("context_compiler: on_error failed: %s", log_text(outcome.error))


def has_metrics() -> bool:
    """True if the application has set a metrics provider; OpenTelemetry's default one counts nothing."""
    return not type(get_meter_provider()).__module__.startswith("opentelemetry.metrics")
