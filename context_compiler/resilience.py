"""Failing open: whatever goes wrong here, the conversation goes on.

Cancellation is not a failure and passes through, and so does the control flow of a durable execution engine,
which stops and resumes runs by exceptions of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from inspect import isawaitable
from typing import Any, Generic, TypeVar, cast

from pydantic_ai.messages import ModelMessage, ModelRequest, TextPart

T = TypeVar("T")

Report = Callable[[Exception], Awaitable[None]]
"""Callback that is given each failure."""

ENGINES = ("dbos", "temporalio", "prefect")
"""Packages whose exceptions are control flow."""

GONE = "[left out]"
"""Placeholder for content without text in the last fallback."""

DOUBLINGS = 30
"""Cap on the exponent; the pause has already reached `longest`, and `2 ** n` would overflow."""


def is_control_flow(error: Exception) -> bool:
    """True if an exception is control flow of the host rather than a failure."""
    return type(error).__module__.split(".")[0] in ENGINES


@dataclass(frozen=True, slots=True)
class Attempt(Generic[T]):
    """Outcome of an attempt: a value, or the error."""

    value: T | None = None
    error: Exception | None = None


def attempt(work: Callable[[], T]) -> Attempt[T]:
    """Call something that may fail in any way."""
    try:
        return Attempt(value=work())
    except Exception as error:
        if is_control_flow(error):
            raise
        return Attempt(error=error)


async def try_await(work: Awaitable[T]) -> Attempt[T]:
    """Await something that may fail in any way."""
    try:
        return Attempt(value=await work)
    except Exception as error:
        if is_control_flow(error):
            raise
        return Attempt(error=error)


async def await_within(seconds: float, work: Awaitable[T], late: Exception) -> T:
    """Await something for a limited time; if it takes longer, cancel it and raise `late`."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await work
    except TimeoutError:
        if not limit.expired():
            raise
        raise late from None


async def call_within(seconds: float, callback: Callable[[Any], Any], what: Any, late: Exception) -> None:
    """Call a callback, plain or async; an async one for a limited time."""
    given = callback(what)
    if isawaitable(given):
        await await_within(seconds, given, late)


class Breaker:
    """Circuit breaker: a pause after three failures in a row, doubled by each further one, ended by a success."""

    def __init__(self, *, limit: int = 3, pause: float = 15.0, longest: float = 600.0) -> None:
        """Pauses in seconds."""
        self.limit, self.pause, self.longest = limit, pause, longest
        self.failures = 0
        self._until = 0.0

    @property
    def open(self) -> bool:
        """True while the breaker is open."""
        return time.monotonic() < self._until

    def succeeded(self) -> None:
        """Forget all failures."""
        self.failures, self._until = 0, 0.0

    def rest(self) -> None:
        """Stay open for good: another attempt would fail too."""
        self._until = float("inf")

    def failed(self) -> None:
        """Count a failure."""
        self.failures += 1
        if self.failures >= self.limit:
            wait = min(self.longest, self.pause * 2 ** min(self.failures - self.limit, DOUBLINGS))
            self._until = time.monotonic() + wait


def floor(messages: Sequence[ModelMessage], limit: int | None) -> dict[int, ModelMessage]:
    """The last exchange alone, every text cut to fit, without any of the usual machinery.

    Args:
        messages: The raw history, not empty.
        limit: Tokens; None leaves texts as they are.

    Returns:
        Messages to send, in order, by their positions in the history; those that are cut are copies.
    """
    kept = _exchange(messages)
    first = min(kept)
    if not _prompts(messages[first]):
        kept.add(next((index for index in range(first - 1, -1, -1) if _prompts(messages[index])), first))
    chosen = {index: messages[index] for index in sorted(kept)}
    if limit is None:
        return chosen
    texts = sum(len(message.parts) for message in chosen.values()) or 1
    each = max(1, limit // (2 * texts))
    return {at: replace(one, parts=[_short(part, each) for part in one.parts]) for at, one in chosen.items()}


def _exchange(messages: Sequence[ModelMessage]) -> set[int]:
    """Positions of the last message, the calls that it answers, and all other answers to those responses.

    The answers to one response may be in several requests, and far from it: some calls are answered later than others.
    """
    kept: set[int] = set()
    last = len(messages) - 1
    bare = last and not _prompts(messages[last]) and not _ids(messages[last])
    waiting = [last, last - 1] if bare else [last]
    while waiting:
        at = waiting.pop()
        kept.add(at)
        ids, request = _ids(messages[at]), isinstance(messages[at], ModelRequest)
        for index in range(at - 1, -1, -1) if request else range(at + 1, last + 1):
            if not ids:
                break
            if isinstance(messages[index], ModelRequest) != request and (found := ids & _ids(messages[index])):
                ids -= found
                waiting += [index] if index not in kept else []
    return kept


def _ids(message: ModelMessage) -> set[str]:
    """Ids of the function calls that a message makes or answers."""
    parts: list[Any] = [
        part for part in message.parts if part.part_kind in ("tool-call", "tool-return", "retry-prompt")
    ]
    return {part.tool_call_id for part in parts if part.tool_name}


def _prompts(message: ModelMessage) -> bool:
    return any(part.part_kind == "user-prompt" for part in message.parts)


def _short(part: Any, limit: int) -> Any:
    """Cut the text of a part to `limit` characters; non-text content becomes a short label."""
    if part.part_kind == "file":
        return TextPart(content=GONE[:limit])
    if part.part_kind in ("tool-call", "builtin-tool-call"):
        return part if len(str(part.args)) <= limit else replace(part, args={})
    content = getattr(part, "content", "")
    if isinstance(content, str):
        return part if len(content) <= limit else replace(part, content=content[:limit])
    if content is None or len(repr(content)) <= limit:
        return part
    pieces = cast(list[object], content) if isinstance(content, list) else []
    text = " ".join(piece for piece in pieces if isinstance(piece, str))
    return replace(part, content=(text or GONE)[:limit])
