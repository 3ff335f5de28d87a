"""Failing open: whatever goes wrong here, the conversation goes on.

Cancellation is no failure and passes through, and so does the control flow of a durable execution engine,
which stops and resumes runs by exceptions of its own.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
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

    def failed(self) -> None:
        """Count a failure."""
        self.failures += 1
        if self.failures >= self.limit:
            wait = min(self.longest, self.pause * 2 ** min(self.failures - self.limit, DOUBLINGS))
            self._until = time.monotonic() + wait


def floor(messages: Sequence[ModelMessage], limit: int | None) -> list[ModelMessage]:
    """The last exchange alone, every text cut to fit, without any of the usual machinery.

    Args:
        messages: The raw history, not empty.
        limit: Tokens; None leaves texts as they are.
    """
    start = len(messages) - 1
    alone = _prompts(messages[start]) and not _answers(messages[start])
    if not alone and start and not isinstance(messages[start - 1], ModelRequest):
        start -= 1
    prompt = next((index for index in range(start - 1, -1, -1) if _prompts(messages[index])), None)
    kept = [*([messages[prompt]] if prompt is not None and not _prompts(messages[start]) else []), *messages[start:]]
    if limit is None:
        return kept
    texts = sum(len(message.parts) for message in kept) or 1
    each = max(1, limit // (2 * texts))
    return [replace(message, parts=[_short(part, each) for part in message.parts]) for message in kept]


def _prompts(message: ModelMessage) -> bool:
    return any(part.part_kind == "user-prompt" for part in message.parts)


def _answers(message: ModelMessage) -> bool:
    return any(getattr(part, "tool_name", None) is not None for part in message.parts)


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
