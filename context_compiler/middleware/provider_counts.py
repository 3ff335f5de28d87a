"""`counter="provider"`: lets the provider count a request before it is sent, if the host's model supports that.

The provider counts the first request for a model family in a process, and the first that might not fit, so that the
ratio is known before anything is cut. It also counts at every advance, and at every request that is near its budget by
our count. A request above the budget is not sent if a smaller one is possible. If a provider cannot count, that is
reported once and our own count is used. In a durable workflow it is never called, because a replay would need the same
answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage

from context_compiler.errors import SettingsError, text_of
from context_compiler.middleware.arguments import Arguments
from context_compiler.middleware.request import Host, Request
from context_compiler.middleware.respond import advance_again, advance_request, assemble_view
from context_compiler.middleware.state import CompilerState, Result, Run, read_request
from context_compiler.resilience import Breaker, Report, attempt, try_await
from context_compiler.tokens import PLAUSIBLE, Ratios

Work = Callable[[Run, Request, Host, Callable[..., Coroutine[Any, Any, Result]]], Awaitable[Result]]
"""Runs work with a request and its host, off the event loop if the request is long."""

PAUSE_S = 60.0
"""Seconds before a provider that failed to count is called again; each further failure doubles them."""

FRAMING = 1_000
"""Tokens that a provider may add to a request, mainly for tools."""

NEAR = 0.9
"""Fraction of the budget above which a measured ratio is not trusted."""

TRIES = 4
"""Maximum number of cuts of a request because of the provider's count; the last one leaves the smallest request."""

GROWN = ("raw", "mended", "cycle")
"""Statuses of views that only append to the previous request."""

WHOLE = ("raw", "mended")
"""Statuses of views of everything."""

SPREAD, MARGIN = 10, 1.05
"""Minimum difference of two counts from which a provider's addition is derived, and safety factor on the excess."""


@dataclass(frozen=True, slots=True)
class Count:
    """Two counts of the same request."""

    exact: int
    """Our count."""
    tokens: int
    """The provider's count."""
    raw: bool = False
    """True if the request was raw history."""


class ProviderCounts:
    """Provider counts for one compiler."""

    def __init__(self, arguments: Arguments, state: CompilerState, ratios: Ratios, report: Report, work: Work) -> None:
        """Call no provider yet; what is learned goes into `ratios` and those of the run."""
        self._arguments, self._state, self._ratios = arguments, state, ratios
        self._report, self._work = report, work
        self._breakers: dict[str, Breaker] = {}
        self._reported: set[str] = set()
        self._counted: set[str] = set()
        """Model families for which a request was counted."""

    async def calibrate(self, run: Run, request: Request, host: Host) -> Count | None:
        """Learn the ratio of an unknown family; return the count from which it was learned, or None."""
        if self._needs_no_count(run, request):
            return None
        self._counted.add(request.family)
        sample = (await try_await(self._work(run, request, host, partial(_sample, self._state, run, request)))).value
        counted = await self._count(request, host, sample.view.messages) if sample is not None else None
        if sample is None or counted is None or not sample.cost:
            return None
        count = Count(sample.cost, counted, sample.view.status in WHOLE)
        self._measure(run, request, count)
        if counted > self._budget(run, request):
            self._hold_ratio(run, request, count, None, 0)
        return count

    def _needs_no_count(self, run: Run, request: Request) -> bool:
        """True if this request needs no count before a view is made.

        This is so if the ratio is known, if the history fits by any plausible ratio, or if a cycle can be continued,
        since that view can be counted itself. The first request of a family is always counted.
        """
        if self._is_measured(run, request):
            return True
        if request.family not in self._counted:
            return False
        with run.limit.applied():
            raw = attempt(lambda: self._state.reader.read(request.messages, last=run.raw)).value
        fits = raw is not None and _upper_bound(request.fixed + raw.tokens) <= self._budget(run, request)
        return fits or run.cycle is not None

    async def verify(self, run: Run, request: Request, host: Host, result: Result, before: Count | None) -> Result:
        """Count a result that might not fit, and cut it until the provider's count is within the budget.

        Args:
            run: State before this request.
            request: The request.
            host: Sender of the request.
            result: Result to verify.
            before: Count from which the ratio was learned, if it was for this request.
        """
        counted = before.tokens if before is not None and before.raw and result.view.status in WHOLE else None
        for tries in range(TRIES + 1):
            if counted is None and (tries or self._might_not_fit(run, request, result)):
                counted = await self._count(request, host, result.view.messages)
            if counted is None or not result.cost:
                break
            count = Count(result.cost, counted)
            self._measure(run, request, count)
            budget, least = self._budget(run, request), result.view.status == "floor_over_budget"
            ratio = counted / result.cost
            result = replace(result, ratio=ratio, limit=int(budget / max(1.0, ratio)))
            if counted <= budget:
                return replace(result, view=replace(result.view, status="compiled")) if least else result
            if least or tries == TRIES:
                break
            self._hold_ratio(run, request, count, before, tries)
            smaller = partial(advance_again, self._state, run, request, result=result)
            again = (await try_await(self._work(run, request, host, smaller))).value
            if again is None:
                break
            result, counted, before = again, None, count
        return result

    def _might_not_fit(self, run: Run, request: Request, result: Result) -> bool:
        """True if a request might not fit by its provider's count; after a cut or a refusal it is always counted."""
        if result.view.status not in GROWN or run.refused:
            return True
        ratio = max(result.ratio, run.ratios.of(request.family))
        most = result.cost * ratio / NEAR if self._is_measured(run, request) else _upper_bound(result.cost)
        return most > self._budget(run, request)

    def _is_measured(self, run: Run, request: Request) -> bool:
        return run.ratios.measured(request.family) or self._ratios.measured(request.family)

    def _budget(self, run: Run, request: Request) -> float:
        """Budget of a request in tokens of its provider."""
        return self._arguments.whole_budget(request)[0] * run.tight

    def _measure(self, run: Run, request: Request, count: Count) -> None:
        """Learn from a count; if its ratio is lower than the current one, it is used for the rest of the run.

        The length of the request does not matter: the provider's addition weighs more in a short request, so the ratio
        of a longer one is lower still.
        """
        for ratios in (run.ratios, self._ratios):
            ratios.measure(request.family, exact=count.exact, counted=count.tokens)
        run.ratios.hold(request.family, min(run.ratios.of(request.family), count.tokens / count.exact))

    def _hold_ratio(self, run: Run, request: Request, count: Count, before: Count | None, tries: int) -> None:
        """Set a ratio for the run by which a request that is over its budget must become smaller.

        A provider counts more for each of our tokens, and adds a constant to every request. One count cannot separate
        the two, so the whole difference is treated as a ratio; two counts of different sizes can separate them.
        """
        budget = self._budget(run, request)
        exact = count.exact * budget / count.tokens
        if before is not None and before.exact - count.exact >= SPREAD:
            low, high = PLAUSIBLE
            each = min(max((before.tokens - count.tokens) / (before.exact - count.exact), low), high)
            exact = min(exact, count.exact - MARGIN * (count.tokens - budget) / each - 1)
        elif tries:
            exact = count.exact - 2.0**tries * (count.tokens - budget)
        run.ratios.hold(request.family, budget / max(1.0, exact if tries + 1 < TRIES else 1.0))

    async def _count(self, request: Request, host: Host, messages: list[ModelMessage]) -> int | None:
        breaker = self._breakers.setdefault(request.model, Breaker(limit=1, pause=PAUSE_S, longest=3_600))
        if breaker.open:
            return None
        outcome = await try_await(self._ask(host, messages))
        if outcome.error is None:
            breaker.succeeded()
            return outcome.value
        breaker.failed()
        if isinstance(outcome.error, NotImplementedError | UserError):
            breaker.rest()
        if request.model not in self._reported:
            self._reported.add(request.model)
            own = isinstance(outcome.error, NotImplementedError | UserError)
            why = str(outcome.error) if own else text_of(outcome.error)
            error = SettingsError(f'counter="provider": {request.model} did not count, so we do ({why})')
            error.__cause__ = outcome.error
            await self._report(error)
        return None

    async def _ask(self, host: Host, messages: list[ModelMessage]) -> int:
        async with asyncio.timeout(self._arguments.timeout):
            counted = await host.count(messages)
        if counted is None:
            raise NotImplementedError("a history processor does not see the whole request")
        return counted


async def _sample(compiler: CompilerState, run: Run, request: Request, host: Host) -> Result:
    """A request to count: raw history, or a view without a model if that is too long; errors are those of a view."""
    context = read_request(compiler, run, request, host)
    raw = assemble_view(context, None, "raw")
    if raw.cost <= context.limits().budget:
        return raw
    done = await advance_request(context, None, None)
    return assemble_view(context, done.cycle, "sample", done)


def _upper_bound(exact: int) -> float:
    """Maximum that a provider may count for a request while its ratio is unknown."""
    return exact * PLAUSIBLE[1] + FRAMING
