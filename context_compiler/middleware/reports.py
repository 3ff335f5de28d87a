"""Log lines and reports of errors: one line per compile, and each error once, in the log and to `on_error`."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from opentelemetry.metrics import get_meter_provider

from context_compiler.cache import Memo
from context_compiler.errors import BudgetError, CompileError, ContextCompilerError, SettingsError
from context_compiler.messages.printable import safe_line
from context_compiler.middleware.arguments import Arguments
from context_compiler.middleware.background import BACKGROUND
from context_compiler.middleware.metrics import count_error
from context_compiler.middleware.request import Request
from context_compiler.middleware.state import Result
from context_compiler.middleware.store_access import limited
from context_compiler.record.costs import compile_cost, request_cost
from context_compiler.record.values import Compile, Record
from context_compiler.resilience import call_within, try_await
from context_compiler.tokens.prices import dollars

LOG = logging.getLogger("context_compiler")

CAUSES = {"answer": "its answers are unusable", "call": "the call failed", "timeout": "it took too long"}
"""Causes of a `CompileError`, by its phase."""

TOLD = 64
"""Maximum number of conversations and prompts that are remembered as reported."""

ADVICE = "; the conversation goes on without it, `context-compiler views show ID` says why, model='none' asks no model"

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
        self._arguments = arguments
        self._reported: set[str] = set()
        self._told: Memo[tuple[str | None, str], bool] = Memo(TOLD)
        """Conversations whose rules find no room, and shortened prompts: what was reported is not reported again."""

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

    async def report_unpriced(self, request: Request) -> None:
        """Report, once per model, that a budget in money cannot be used because the model has no known price."""
        arguments = self._arguments
        if arguments.budget_unpriced(request.model, request.provider):
            budget, _ = arguments.whole_budget(request)
            unknown = f"budget={arguments.budget!r}: no price is known for {safe_line(request.model)}"
            remedy = "give a budget in tokens, or Money(…, fallback=…)"
            await self.report_once(request.model, SettingsError(f"{unknown}, so it is {budget:,} tokens; {remedy}"))

    async def report_shortfalls(self, request: Request, result: Result) -> None:
        """Report what found no room in a request: rules once per conversation, a prompt once, a whole view always."""
        budget = result.view.budget
        if result.lost:
            count = len(result.lost)
            lost = "1 rule finds" if count == 1 else f"{count} rules find"
            where = f"a request of {safe_line(request.session_id)}"
            text = f"{lost} no room in {where}: give fewer or shorter rules, or a larger budget"
            await self._report_new(request.conversation, BudgetError(text))
        if result.view.status == "floor_over_budget":
            await self.report(BudgetError(f"even the smallest view is over the budget of {budget} tokens"))
        elif (position := result.shortened_prompt) is not None:
            size = result.raw.readings[position].tokens
            text = f"a prompt of {size:,} tokens does not fit the budget of {budget:,} and lost its middle"
            error = BudgetError(f"{text}: give a larger budget, or a shorter prompt")
            await self._report_new((request.owner, result.raw.ids[position]), error)

    async def _report_new(self, key: tuple[str | None, str], error: BudgetError) -> None:
        if self._told.get(key) is None:
            self._told.keep(key, True)
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


def log_text(error: Exception) -> str:
    """One line about an error that is safe to log: texts of foreign errors are left out, as they may quote messages."""
    kind = type(error).__name__
    if isinstance(error, CompileError) and error.phase != "setup":  # nothing was sent yet at "setup"
        cause = CAUSES.get(error.phase, error.phase)
        return safe_line(f"{kind}: {error.model} wrote no summary ({cause}){ADVICE}")
    if isinstance(error, ContextCompilerError):
        return safe_line(f"{kind}: {error}")
    frames = traceback.extract_tb(error.__traceback__)
    return f"{kind} in {frames[-1].name}, line {frames[-1].lineno}" if frames else kind


def log_compile(record: Record, result: Result) -> None:
    """Log one line for a compile: tokens before and after, turns kept, model calls, time and cost."""
    if not LOG.isEnabledFor(logging.INFO):
        return
    kept = sum(reading.has_user_part for reading in result.sent.readings)
    recalled, sent = result.view.ledger["tokens"].get("recall", 0) * result.ratio, result.cost * result.ratio
    LOG.info(
        "%s → %s tokens%s, %d %s kept, %s, %.1f s, %s",
        f"{record.tokens_raw:,}",
        f"{round(sent):,}",
        f" ({round(recalled):,} recalled, {recalled / sent:.0%})" if recalled else "",
        kept,
        "turn" if kept == 1 else "turns",
        _compile_label(result.row),
        record.latency_ms / 1000,
        _cost_text(record, result.row),
    )


def _compile_label(row: Compile | None) -> str:
    if row is not None and row.status.startswith("failed"):
        return "the compile failed"
    if row is None or not row.compiled_prompt:
        return "no model asked"
    if row.status.startswith("refused") and not row.usage:
        return f"no model asked: {row.error}"
    return "1 compile, made in the background" if BACKGROUND in row.status else "1 compile"


def _cost_text(record: Record, made: Compile | None) -> str:
    """Input cost of a request, and the cost of its compile."""
    cost, spent = request_cost(record), compile_cost(made)
    parts = ["price unknown"]
    if cost.sent is not None:
        parts = [f"{dollars(cost.sent)} sent", f"{dollars(cost.everything)} for everything"]
    if spent or (spent is None and cost.sent is not None):
        parts.append(f"{dollars(spent)} for the compile")
    return ", ".join(parts)


def warn_of_fewer_turns(arguments: Arguments, result: Result) -> bool:
    """Warn if fewer turns are kept than the caller asked for, and suggest a remedy; True if a warning was logged."""
    wanted = arguments.recent_turns
    if not isinstance(wanted, int):
        return False
    kept, turns = (sum(reading.has_prompt for reading in history.readings) - 1 for history in (result.sent, result.raw))
    if kept >= min(wanted, turns):
        return False
    LOG.warning(
        "context_compiler: recent_turns=%d: %d kept in full or in part, because more would take over half of the room "
        "within the budget of %s tokens; a larger budget or fewer turns would do",
        wanted,
        max(0, kept),
        f"{result.view.budget:,}",
    )
    return True
