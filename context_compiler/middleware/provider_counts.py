"""`counter="provider"`: the provider counts what is about to be sent, where the host's model can ask it to.

It is asked at the first request of a process for a family of models, and at the first that might not fit, so that the
ratio is right before anything is cut; and once an advance, so that a new view is within its budget. Between these, the
ratio does. A provider that cannot or does not count is reported once, and the local count goes on. In a workflow of a
durable engine it is not asked, because a replay would have to get the same answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage

from context_compiler.errors import SettingsError
from context_compiler.middleware.arguments import Arguments
from context_compiler.middleware.request import Host, Request
from context_compiler.middleware.respond import advance_again, sample
from context_compiler.middleware.state import CompilerState, Result, Run
from context_compiler.resilience import Breaker, Report, attempt, try_await
from context_compiler.tokens import PLAUSIBLE, Ratios

Work = Callable[[Run, Request, Host, Callable[..., Coroutine[Any, Any, Result]]], Awaitable[Result]]
"""Does some work with a request and its host, off the event loop where it is long."""

PAUSE_S = 60.0
"""Pause after a provider did not count, doubled by each further failure."""


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

    async def calibrate(self, run: Run, request: Request, host: Host) -> int | None:
        """Learn the ratio of a family that is not known yet; the count of this request if it fits as it is."""
        if self._settled(run, request):
            return None
        self._begun.add(request.family)
        found = (await try_await(self._work(run, request, host, partial(sample, self._state, run, request)))).value
        counted = await self._count(request, host, found.view.messages) if found is not None else None
        if found is None or counted is None:
            return None
        self._measure(run, request, found.cost, counted)
        return counted if found.view.status == "raw" else None

    def _settled(self, run: Run, request: Request) -> bool:
        """True if no count is needed before this request.

        The ratio is known, or the history is so short that it fits by any. The first request is counted all the same.
        """
        if run.ratios.knows(request.family) or self._ratios.knows(request.family):
            return True
        if request.family not in self._begun:
            return False
        budget, _ = self._arguments.whole_budget(**request.terms)
        raw = attempt(lambda: self._state.reader.read(request.messages, last=run.raw)).value
        return raw is not None and (request.fixed + raw.tokens) * PLAUSIBLE[1] <= budget

    async def verify(self, run: Run, request: Request, host: Host, result: Result, raw: int | None) -> Result:
        """The result with the provider's count of it, cut back again where that is over the budget.

        Args:
            run: The state before this request.
            request: The request.
            host: Sends it.
            result: Answers it.
            raw: The count of the raw request, where there is one.
        """
        if result.view.status == "raw" and raw is not None and result.cost:
            return replace(result, ratio=raw / result.cost)
        if not result.began:
            return result
        counted = await self._count(request, host, result.view.messages)
        if counted is None or not result.cost:
            return result
        self._measure(run, request, result.cost, counted)
        if counted <= result.view.budget or result.view.status != "compiled":
            return replace(result, ratio=counted / result.cost)
        again = partial(advance_again, self._state, run, request, result=result)
        return (await try_await(self._work(run, request, host, again))).value or result

    def _measure(self, run: Run, request: Request, exact: int, counted: int) -> None:
        for ratios in (run.ratios, self._ratios):
            ratios.measure(request.family, exact=exact, counted=counted)

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
