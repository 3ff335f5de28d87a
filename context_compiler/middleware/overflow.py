"""Context overflow: recognize that a provider refused a request as too long, and retry it once with less.

From version 2.64 on, Pydantic AI makes the second attempt itself; for older versions a wrapper model does.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

from pydantic_ai import exceptions
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings

RetryModelRequest: type[Exception] | None = getattr(exceptions, "RetryModelRequest", None)
"""Exception that asks the host for another attempt; None if the host has none."""

_TOO_LONG: type[Exception] | None = getattr(exceptions, "ModelContextWindowExceededError", None)
_REFUSALS: tuple[type[Exception], ...] = (ModelHTTPError, ExceptionGroup, *((_TOO_LONG,) if _TOO_LONG else ()))
"""Errors that may mean a request is too long; all others are raised as they are."""

_WORDS = (
    "context_length_exceeded",
    "maximum context length",
    "reduce the length of the messages",
    "prompt is too long",
    "input token count",
    "number of tokens allowed",
    "input is too long",
    "maximum prompt length",
    "exceeded model token limit",
    "context window exceeds limit",
    "exceeds the context window",
    "exceeds the available context size",
    "greater than the context length",
)
"""Lower-case phrases with which providers and local servers report this error."""


def is_overflow(error: BaseException) -> bool:
    """True if a provider refused a request as too long; a group counts if one of its errors does.

    Status 413 says so by itself. With 400 and 422 the words decide.
    """
    if isinstance(error, BaseExceptionGroup):
        group = cast(BaseExceptionGroup[BaseException], error)
        return any(map(is_overflow, group.exceptions))
    if _TOO_LONG is not None and isinstance(error, _TOO_LONG):
        return True
    if not isinstance(error, ModelHTTPError) or error.status_code not in (400, 413, 422):
        return False
    if error.status_code == 413:  # "content too large", in whatever words
        return True
    message = str(error.body).lower()
    return any(words in message for words in _WORDS)


Tighter = Callable[[BaseException], Awaitable[list[ModelMessage] | None]]
"""Returns the messages for a second attempt, or None if there should be none."""


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
