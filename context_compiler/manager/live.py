"""A manager's session on a live agent: as a capability, which leaves the history alone, or as a history processor."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import ModelRequestContext

from context_compiler.cache import Memo
from context_compiler.compiler.agent import Answer
from context_compiler.compiler.view import mark_in
from context_compiler.manager.agent_session import Served, finish, let_go, serve, unseen
from context_compiler.manager.turns import Desk
from context_compiler.middleware.overflow import RetryModelRequest
from context_compiler.middleware.processor import REMEMBERED, after, tagged
from context_compiler.middleware.request import charged
from context_compiler.resilience import attempted


@dataclass
class ManagedContext(AbstractCapability[Any]):
    """Sends what a manager's session says instead of the history, which stays as it is.

    A `ContextCompiler` beside it comes after it: it records what is sent, and keeps to a budget of its own.
    """

    desk: Desk
    _: KW_ONLY
    id: str | None = "context_manager"
    """Stable, because durable engines name their steps by it."""
    _seen: int = field(init=False, repr=False, compare=False, default=0)
    _key: int | None = field(init=False, repr=False, compare=False, default=None)
    _over: bool = field(init=False, repr=False, compare=False, default=False)

    async def for_run(self, ctx: RunContext[Any]) -> ManagedContext:
        """A copy with its own place in the history; the session is shared."""
        mine = copy(self)
        mine._seen, mine._key, mine._over = 0, None, False
        return mine

    async def wrap_run(self, ctx: RunContext[Any], *, handler: Callable[[], Awaitable[Any]]) -> Any:
        """Keep the last answer too, and let go of the turn however the run ends.

        The host cancels a request only after this: so a run without a result does not wait for the session.
        """
        said: list[ModelMessage] = []
        try:
            result = await handler()
            said = result.all_messages()
            return result
        finally:
            self._over = True
            if not said:
                let_go(self.desk, self._key)
            if said or not self.desk.lock.locked():
                await self._finished(said)

    async def _finished(self, said: list[ModelMessage]) -> None:
        outcome = await attempted(finish(self.desk, self._key, said[self._seen :], said))
        if outcome.error is not None:
            self.desk.reports.tell("the end of a run", outcome.error)

    async def _sent(self, ctx: RunContext[Any], given: ModelRequestContext) -> ModelRequestContext:
        messages = given.messages
        outcome = await attempted(self._served(ctx, messages))
        if outcome.value is None:
            self.desk.reports.tell("the history is sent as it is", outcome.error or RuntimeError("nothing to send"))
            return given
        return replace(given, messages=outcome.value.messages)

    async def _served(self, ctx: RunContext[Any], messages: list[ModelMessage]) -> Served:
        news = messages[self._seen :] if self._seen else unseen(self.desk, messages)
        self._seen = len(messages)
        served = await serve(self.desk, news, messages, self._key, _charging(ctx), ends=True)
        self._key = served.key
        if self._over:
            let_go(self.desk, self._key)
        return served

    if RetryModelRequest is not None:

        async def prepare_model_request(
            self, ctx: RunContext[Any], request_context: ModelRequestContext
        ) -> ModelRequestContext:
            """Send what the session says."""
            return await self._sent(ctx, request_context)

    else:

        async def before_model_request(
            self, ctx: RunContext[Any], request_context: ModelRequestContext
        ) -> ModelRequestContext:
            """Send what the session says."""
            return await self._sent(ctx, request_context)


class ManagedHistory:
    """A history processor, `(ctx, messages) -> messages`; the host stores what it sends, the session keeps all.

    It does not hear the last answer of a run: the session has that once the next run hands it over.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._runs: Memo[str, tuple[int | None, int]] = Memo(REMEMBERED)
        """By run: the turn it is in, and how much of a history that was sent as it is has been seen."""

    async def __call__(self, ctx: RunContext[Any], messages: list[ModelMessage]) -> list[ModelMessage]:
        """What the session says, with a mark by which it is known again. Never raises."""
        outcome = await attempted(self._sent(ctx, messages))
        if outcome.value is None:
            self._desk.reports.tell("the history is sent as it is", outcome.error or RuntimeError("nothing to send"))
        return outcome.value or messages

    async def _sent(self, ctx: RunContext[Any], messages: list[ModelMessage]) -> list[ModelMessage]:
        run = ctx.run_id or ""
        key, seen = self._runs.get(run) or (None, 0)
        news: Sequence[ModelMessage]
        mark = next((found for message in messages if (found := mark_in(message)) is not None), None)
        if mark is not None and "responses" in mark:
            news = after(messages, mark["responses"], mark["tail"])
        else:
            news = messages[seen:] if seen else unseen(self._desk, messages)
        served = await serve(self._desk, news, messages, key, _charging(ctx), ends=False)
        self._runs.keep(run, (served.key, len(messages)))
        return messages if served.same else tagged(served.messages, str(self._desk.session.taken))


def _charging(ctx: RunContext[Any]) -> Callable[[Answer], Answer]:
    return lambda answer: charged(ctx, answer)
