"""Context overflow: retry once, with less, a request that a provider refused as too long.

From version 2.64 on, Pydantic AI makes the second attempt itself; for older versions a wrapper model does.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

from pydantic_ai import exceptions
from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings

from context_compiler.compiler.policy import REFUSED_SHARE
from context_compiler.middleware.arguments import Arguments, smaller
from context_compiler.middleware.refusals import TOO_LONG, Refusal
from context_compiler.middleware.request import Request
from context_compiler.middleware.state import Run
from context_compiler.middleware.windows import LEAST, WINDOWS
from context_compiler.tokens import PLAUSIBLE, Ratios

RetryModelRequest: type[Exception] | None = getattr(exceptions, "RetryModelRequest", None)
"""Exception that asks the host for another attempt; None if the host has none."""

_REFUSALS: tuple[type[Exception], ...] = (ModelAPIError, ExceptionGroup, *((TOO_LONG,) if TOO_LONG else ()))
"""Errors that may mean a request is too long; all others are raised as they are."""

STATED_SHARE = 0.9
"""Fraction of a stated context window to use: other messages may have more tokens for each of ours."""

Tighter = Callable[[BaseException], Awaitable[list[ModelMessage] | None]]
"""Returns the messages for a second attempt, or None if there should be none."""


async def with_window(arguments: Arguments, run: Run, request: Request, *, ask: bool) -> Request:
    """Add the context window that the server has stated; a server on this machine is asked for an unknown one.

    Args:
        arguments: Those of the compiler.
        run: The run, with the window that its own refusals have stated.
        request: The request.
        ask: False in a workflow, because it may be resumed in another process.
    """
    served, learnt = request.served, request.learnt
    window = request.window or learnt or arguments.window
    if ask and arguments.probe and served is not None and not window:
        await WINDOWS.ask(served)
        learnt = WINDOWS.of(served)
    learnt = smaller(learnt, run.window)
    return request if learnt == request.learnt else replace(request, learnt=learnt)


def tighten(arguments: Arguments, ratios: Ratios, run: Run, request: Request, refusal: Refusal) -> Request:
    """Reduce the budget of a run to what a refusal states, else to seven tenths of the refused request.

    Args:
        arguments: Those of the compiler.
        ratios: Ratios of all runs.
        run: The run; its ratio is raised too.
        request: The refused request.
        refusal: The refusal.

    Returns:
        The request with the context window, if that is stated.
    """
    low, high = PLAUSIBLE
    ratio = max(run.ratios.of(request.family), run.ratio)  # a view of a cycle keeps the cycle's, if it is higher
    before = arguments.whole_budget(request)[0] / ratio * run.tight
    counted, window = refusal.counted(low * run.sent, high * run.sent), refusal.window(LEAST)
    if window is not None:
        run.window = smaller(run.window, window)
        if request.served is not None:
            WINDOWS.learn(request.served, window)
    if counted:
        ratios.measure(request.family, exact=run.sent, counted=counted)
        ratio = max(run.ratios.of(request.family), counted / run.sent)
        run.ratios.hold(request.family, ratio)
    request = replace(request, learnt=smaller(request.learnt, run.window))
    budget, _ = arguments.whole_budget(request)
    whole = budget / ratio
    most = whole if run.window is None else STATED_SHARE * whole
    if run.window is None or not counted or counted <= budget:  # the numbers do not explain the refusal
        most = min(most, REFUSED_SHARE * (run.sent or whole * run.tight))
    run.tighten(min(most, before) / whole)  # a share of the budget that is known now
    return request


class TightModel(WrapperModel):
    """Model that retries once with a tighter view; a stream is retried only before its first event."""

    def __init__(self, wrapped: Model, tighter: Tighter) -> None:
        """Wrap a model; `tighter` returns the messages for the second attempt."""
        super().__init__(wrapped)
        self._tighter = tighter

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Send a request, and a shorter one if it was too long."""
        try:
            return await self.wrapped.request(messages, model_settings, model_request_parameters)
        except _REFUSALS as error:
            less = await self._tighter(error)
            if less is None:
                raise
            return await self.wrapped.request(less, model_settings, model_request_parameters)

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: Any = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Send a streamed request, and a shorter one if it was too long."""
        async with AsyncExitStack() as stack:
            rest = (model_settings, model_request_parameters, run_context)
            try:
                stream = await stack.enter_async_context(self.wrapped.request_stream(messages, *rest))
            except _REFUSALS as error:
                less = await self._tighter(error)
                if less is None:
                    raise
                stream = await stack.enter_async_context(self.wrapped.request_stream(less, *rest))
            yield stream
