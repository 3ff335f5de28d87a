"""`counter="provider"`: the provider counts what is about to be sent, where the host's model can ask it to.

It is asked at the first request of a process for a family of models, and at the first that might not fit, so that the
ratio is right before anything is cut; at every advance; and at every request that comes near its budget by the ratio.
What it counts above the budget is not sent while less can be. A provider that cannot or does not count is reported
once, and the local count goes on. In a workflow of a durable engine it is not asked, because a replay would have to get
the same answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage

from context_compiler.errors import SettingsError
from context_compiler.middleware.arguments import Arguments
from context_compiler.middleware.request import Host, Request
from context_compiler.middleware.respond import advance_again, advance_request, assemble_view
from context_compiler.middleware.state import CompilerState, Result, Run, read_request
from context_compiler.resilience import Breaker, Report, attempt, try_await
from context_compiler.tokens import PLAUSIBLE, Ratios

Work = Callable[[Run, Request, Host, Callable[..., Coroutine[Any, Any, Result]]], Awaitable[Result]]
"""Does some work with a request and its host, off the event loop where it is long."""

PAUSE_S = 60.0
"""Pause after a provider did not count, doubled by each further failure."""

FRAMING = 1_000
"""Tokens that a provider may add to a request, for tools above all."""

NEAR = 0.9
"""Share of the budget from which on a measured ratio is not relied on."""

TRIES = 4
"""Times that a request is cut back because of the provider's count; the last leaves the least that can be sent."""

GROWN = ("raw", "cycle")
"""Statuses of views that only add to the previous request."""

SPREAD, MARGIN = 10, 1.05
"""Tokens by which two counts have to differ to tell what a provider adds, and factor of what they say is too much."""


@dataclass(frozen=True, slots=True)
class Count:
    """A request as it was counted."""

    exact: int
    """Our count."""
    tokens: int
    """The provider's."""
    raw: bool = False
    """It was raw history."""


class ProviderCounts:
    """Counts by the providers of one compiler."""

    def __init__(self, arguments: Arguments, state: CompilerState, ratios: Ratios, report: Report, work: Work) -> None:
        """Ask nobody yet; put what is learnt into `ratios` and those of the run."""
        self._arguments, self._state, self._ratios = arguments, state, ratios
        self._report, self._work = report, work
        self._breakers: dict[str, Breaker] = {}
        self._reported: set[str] = set()
        self._begun: set[str] = set()
        """Families of which a request was counted."""

    async def calibrate(self, run: Run, request: Request, host: Host) -> Count | None:
        """Learn the ratio of a family that is not known yet; the count that it was learnt from."""
        if self._settled(run, request):
            return None
        self._begun.add(request.family)
        found = (await try_await(self._work(run, request, host, partial(_sample, self._state, run, request)))).value
        counted = await self._count(request, host, found.view.messages) if found is not None else None
        if found is None or counted is None or not found.cost:
            return None
        count = Count(found.cost, counted, found.view.status == "raw")
        self._measure(run, request, count)
        if counted > self._budget(run, request):
            self._hold(run, request, count, None, 0)
        return count

    def _settled(self, run: Run, request: Request) -> bool:
        """True if no count is needed to know what to do with this request.

        The ratio is known, or the history is so short that it fits by any, or there is a cycle to go on with, whose
        request can be counted itself. The first request is counted all the same.
        """
        if self._measured(run, request):
            return True
        if request.family not in self._begun:
            return False
        raw = attempt(lambda: self._state.reader.read(request.messages, last=run.raw)).value
        fits = raw is not None and _at_most(request.fixed + raw.tokens) <= self._budget(run, request)
        return fits or run.cycle is not None

    async def verify(self, run: Run, request: Request, host: Host, result: Result, before: Count | None) -> Result:
        """The result with the provider's count of it, if it might not fit; cut back until that is within the budget.

        Args:
            run: The state before this request.
            request: The request.
            host: Sends it.
            result: Answers it.
            before: The count that the ratio was learnt from, if it was for this request.
        """
        counted = before.tokens if before is not None and before.raw and result.view.status == "raw" else None
        for tries in range(TRIES + 1):
            if counted is None and (tries or self._doubtful(run, request, result)):
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
            self._hold(run, request, count, before, tries)
            smaller = partial(advance_again, self._state, run, request, result=result)
            again = (await try_await(self._work(run, request, host, smaller))).value
            if again is None:
                break
            result, counted, before = again, None, count
        return result

    def _doubtful(self, run: Run, request: Request, result: Result) -> bool:
        """True if a request might not fit as its provider counts it: what was just cut or refused is always counted."""
        if result.view.status not in GROWN or run.refused:
            return True
        ratio = max(result.ratio, run.ratios.of(request.family))
        most = result.cost * ratio / NEAR if self._measured(run, request) else _at_most(result.cost)
        return most > self._budget(run, request)

    def _measured(self, run: Run, request: Request) -> bool:
        return run.ratios.measured(request.family) or self._ratios.measured(request.family)

    def _budget(self, run: Run, request: Request) -> float:
        """Tokens that a request may have by the count of its provider."""
        return self._arguments.whole_budget(**request.terms)[0] * run.tight

    def _measure(self, run: Run, request: Request, count: Count) -> None:
        """Learn from a count; a lower ratio than was taken for granted holds for the run, however short the request.

        What a provider adds to a request only makes that ratio higher than the one of a longer request.
        """
        for ratios in (run.ratios, self._ratios):
            ratios.measure(request.family, exact=count.exact, counted=count.tokens)
        run.ratios.hold(request.family, min(run.ratios.of(request.family), count.tokens / count.exact))

    def _hold(self, run: Run, request: Request, count: Count, before: Count | None, tries: int) -> None:
        """Have the run go on by a ratio at which a request that is over its budget has to be smaller.

        A provider counts more for each token of ours, and adds something to every request. One count cannot tell
        these apart, and is taken for the first; two counts of different size can.
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
        outcome = await try_await(self._asked(host, messages))
        if outcome.error is None:
            breaker.succeeded()
            return outcome.value
        breaker.failed()
        if isinstance(outcome.error, NotImplementedError | UserError):
            breaker.rest()
        if request.model not in self._reported:
            self._reported.add(request.model)
            why = str(outcome.error) or type(outcome.error).__name__
            error = SettingsError(f'counter="provider": {request.model} did not count, so we do ({why})')
            error.__cause__ = outcome.error
            await self._report(error)
        return None

    async def _asked(self, host: Host, messages: list[ModelMessage]) -> int:
        async with asyncio.timeout(self._arguments.timeout):
            counted = await host.count(messages)
        if counted is None:
            raise NotImplementedError("a history processor does not see the whole request")
        return counted


async def _sample(compiler: CompilerState, run: Run, request: Request, host: Host) -> Result:
    """A request to count: the raw one, or a view without a model where that is too long.

    Raises:
        ContextCompilerError: the template or anything else failed.
    """
    context = read_request(compiler, run, request, host)
    raw = assemble_view(context, None, "raw")
    if raw.cost <= context.limits().budget:
        return raw
    done = await advance_request(context, None, None)
    return assemble_view(context, done.cycle, "sample", done)


def _at_most(exact: int) -> float:
    """The most that a provider may count for a request, as long as nothing of its counts is known."""
    return exact * PLAUSIBLE[1] + FRAMING
