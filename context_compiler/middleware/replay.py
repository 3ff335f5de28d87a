"""Replay of a recorded session, request by request; the recording supplies the answers.

Each request is a run of a live agent. The next request starts from the history that the agent then has, plus the
recorded messages in between, so an approach that shortens the stored history has to work with the shortened one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Protocol

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from context_compiler.compiler.metrics import PromptCache, Sent, broken_pairs
from context_compiler.messages.history import Reader

View = Callable[[list[ModelMessage], int], Awaitable[Sequence[ModelMessage]]]
"""Maps the history up to a request and a budget in tokens to the messages to send."""

Seen = Callable[[int, Sequence[ModelMessage]], object]
"""Called with the position of each request in the recording, and the messages that were sent."""


class Session(Protocol):
    """One way to send requests, in the middle of a conversation."""

    stored: list[ModelMessage]
    """The history that is stored for the next request."""

    async def request(self, new: Sequence[ModelMessage]) -> Sequence[ModelMessage]:
        """Send a request after appending `new` to the history; return the messages that reached the model."""
        ...


class LiveSession:
    """An agent with some capabilities, and the history that its host would store."""

    def __init__(
        self,
        capabilities: Sequence[Any],
        *,
        name: str | None = None,
        model: str | None = None,
        settings: ModelSettings | None = None,
    ) -> None:
        """Attach `capabilities` to an agent whose model answers at once; the names are those on the record."""
        self.stored: list[ModelMessage] = []
        self._name = name
        self._sent: list[ModelMessage] = []
        self._agent: Agent[None, str] = Agent(
            FunctionModel(self._answer, model_name=model), capabilities=list(capabilities), model_settings=settings
        )

    def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self._sent = list(messages)
        return ModelResponse(parts=[TextPart("ok")])

    async def request(self, new: Sequence[ModelMessage]) -> Sequence[ModelMessage]:
        """Run the agent on its history and `new`; its made-up answer is removed from the history."""
        self.stored = [*self.stored, *new]
        result = await self._agent.run(message_history=self.stored, conversation_id=self._name)
        self.stored = result.all_messages()[:-1]
        return self._sent


class PlainSession:
    """A function from history and budget to messages; the whole history is stored."""

    def __init__(self, view: View, budget: int) -> None:
        """Send the messages that `view` returns for the history."""
        self.stored: list[ModelMessage] = []
        self._view, self._budget = view, budget

    async def request(self, new: Sequence[ModelMessage]) -> Sequence[ModelMessage]:
        """Return the messages of the next request."""
        self.stored = [*self.stored, *new]
        return await self._view(self.stored, self._budget)


def request_points(messages: Sequence[ModelMessage]) -> list[int]:
    """Positions of the responses that answer a request, each of which marks a point where a request was sent."""
    return [
        index
        for index, message in enumerate(messages)
        if index and isinstance(message, ModelResponse) and isinstance(messages[index - 1], ModelRequest)
    ]


def with_answer(messages: Sequence[ModelMessage]) -> Sequence[ModelMessage]:
    """Messages whose last request has an answer, if need be an empty one, so that a replay sends it too."""
    return [*messages, ModelResponse(parts=[])] if isinstance(messages[-1], ModelRequest) else messages


async def replay(
    messages: Sequence[ModelMessage],
    session: Session,
    reader: Reader,
    *,
    seen: Seen | None = None,
    last: int | None = None,
) -> list[Sent]:
    """Send every request of a recorded session through `session`, and measure it.

    Args:
        messages: The whole recording.
        session: A fresh session; it cannot be reused.
        reader: Counts the tokens that are sent; if replays share it, every message is read only once.
        seen: Called for every request.
        last: Number of requests that are sent, the newest; None sends all.
    """
    cache = PromptCache()
    measured: list[Sent] = []
    before = tokens = 0
    for point in request_points(messages)[-(last or 0) :]:
        new = [with_usage(message, tokens) for message in messages[before:point]]
        started = perf_counter()
        view = await session.request(new)
        seconds = perf_counter() - started
        readings = [reader.one(message) for message in view]
        orphans, half_open = broken_pairs(readings)
        tokens = sum(reading.tokens for reading in readings)
        cost = cache.charge(readings)
        pairs = {"orphans": orphans, "half_open": half_open}
        measured.append(Sent(tokens=tokens, **pairs, cost=cost, cached=cache.cached, seconds=seconds))
        if seen is not None:
            seen(point, view)
        before = point
        await asyncio.sleep(0)
    return measured


def with_usage(message: ModelMessage, tokens: int) -> ModelMessage:
    """A recorded answer with its usage set to a request of `tokens` tokens."""
    return replace(message, usage=RequestUsage(input_tokens=tokens)) if isinstance(message, ModelResponse) else message


def newest(reader: Reader) -> View:
    """The tail window: the newest messages that fit, without regard to turns; at least the last one."""

    async def tail(messages: list[ModelMessage], budget: int) -> list[ModelMessage]:
        start, room = len(messages), budget
        while start and (room := room - reader.one(messages[start - 1]).tokens) >= 0:
            start -= 1
        return messages[min(start, len(messages) - 1) :]

    return tail


async def everything(messages: list[ModelMessage], budget: int) -> list[ModelMessage]:
    """The whole history, without regard to the budget."""
    return messages
