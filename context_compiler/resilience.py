"""Failing open: no error in this package ends a conversation.

Cancellation is not a failure and passes through. So do the exceptions by which a durable execution engine stops and
resumes runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from inspect import isawaitable
from typing import Any, Generic, TypeVar, cast

from pydantic_ai.messages import ModelMessage, ModelRequest, TextPart

from context_compiler.errors import ContextCompilerError

T = TypeVar("T")

Report = Callable[[Exception], Awaitable[None]]
"""Callback that receives each failure."""

ENGINES = ("dbos", "temporalio", "prefect")
"""Packages whose exceptions are control flow rather than failures."""

GONE = "[left out]"
"""Placeholder for content without text in the last fallback."""

DOUBLINGS = 30
"""Maximum exponent of a pause: it has long reached `longest` by then, and `2 ** n` would overflow."""


def is_control_flow(error: Exception) -> bool:
    """True if an exception is control flow of the host rather than a failure."""
    return type(error).__module__.split(".")[0] in ENGINES


@dataclass(frozen=True, slots=True)
class Attempt(Generic[T]):
    """Outcome of an attempt: a value or an error."""

    value: T | None = None
    error: Exception | None = None


def attempt(work: Callable[[], T]) -> Attempt[T]:
    """Call `work` and catch any error except control flow."""
    try:
        return Attempt(value=work())
    except Exception as error:
        if is_control_flow(error):
            raise
        return Attempt(error=error)


async def try_await(work: Awaitable[T]) -> Attempt[T]:
    """Await `work` and catch any error except control flow."""
    try:
        return Attempt(value=await work)
    except Exception as error:
        if is_control_flow(error):
            raise
        return Attempt(error=error)


async def await_within(seconds: float, work: Awaitable[T], late: Exception) -> T:
    """Await `work`; after `seconds`, cancel it and raise `late`."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await work
    except TimeoutError:
        if not limit.expired():
            raise
        raise late from None


async def call_within(seconds: float, callback: Callable[[Any], Any], what: Any, late: Exception) -> None:
    """Call a plain or async callback with `what`; cancel an async one after `seconds` and raise `late`."""
    result = callback(what)
    if isawaitable(result):
        await await_within(seconds, result, late)


class OutOfTimeError(ContextCompilerError):
    """The time that a request may spend on searching its history is used up."""


class TimeLimit:
    """Seconds of CPU that one thread may spend on what a view can do without; waiting does not count."""

    def __init__(self, seconds: float) -> None:
        """Start no clock yet."""
        self.seconds = seconds
        self.error: OutOfTimeError | None = None
        """The error that `check` has raised."""
        self._end = float("inf")

    @contextmanager
    def applied(self) -> Generator[None]:
        """Apply the limit to everything that this thread does within, starting now."""
        self._end = time.thread_time() + self.seconds
        token = _LIMIT.set(self)
        try:
            yield
        finally:
            _LIMIT.reset(token)

    def check(self) -> None:
        """Raise `OutOfTimeError` if the time is used up."""
        if time.thread_time() > self._end:
            self.error = OutOfTimeError(f"searching a history takes more than {self.seconds:g} s (timeout)")
            raise self.error


_LIMIT: ContextVar[TimeLimit | None] = ContextVar("time_limit", default=None)


def check_time() -> None:
    """Raise `OutOfTimeError` if the time of the current request is used up; what is kept so far serves later ones."""
    limit = _LIMIT.get()
    if limit is not None:
        limit.check()


def in_time(work: Callable[[], T], otherwise: T) -> T:
    """Call `work`; return `otherwise` if the time of the current request is used up."""
    try:
        return work()
    except OutOfTimeError:
        return otherwise


class Breaker:
    """Circuit breaker: opens for a pause after `limit` failures in a row, and twice as long after each further one.

    A success resets it.
    """

    def __init__(self, *, limit: int = 3, pause: float = 15.0, longest: float = 600.0) -> None:
        """Set the number of failures that open the breaker, and the first and the longest pause in seconds."""
        self.limit, self.pause, self.longest = limit, pause, longest
        self.failures = 0
        self._until = 0.0

    @property
    def open(self) -> bool:
        """True while nothing should be attempted."""
        return time.monotonic() < self._until

    def succeeded(self) -> None:
        """Record a success, which resets the breaker."""
        self.failures, self._until = 0, 0.0

    def rest(self) -> None:
        """Stay open until `succeeded` is called, because every further attempt would fail too."""
        self._until = float("inf")

    def failed(self) -> None:
        """Record a failure."""
        self.failures += 1
        if self.failures >= self.limit:
            wait = min(self.longest, self.pause * 2 ** min(self.failures - self.limit, DOUBLINGS))
            self._until = time.monotonic() + wait


def last_exchange(messages: Sequence[ModelMessage], limit: int | None) -> dict[int, ModelMessage]:
    """Last fallback: only the last exchange, with texts cut to fit, built without the rest of this package.

    Args:
        messages: The raw history, not empty.
        limit: Maximum tokens of the result; None leaves texts unchanged.

    Returns:
        Messages to send, in order, by their positions in the history; messages that were cut are copies.
    """
    kept = _last_exchange(messages)
    first = min(kept)
    if not _has_prompt(messages[first]):
        kept.add(next((index for index in range(first - 1, -1, -1) if _has_prompt(messages[index])), first))
    chosen = {index: messages[index] for index in sorted(kept)}
    if limit is None:
        return chosen
    texts = sum(len(message.parts) for message in chosen.values()) or 1
    each = max(1, limit // (2 * texts))
    cut = {index: [_shorten(part, each) for part in message.parts] for index, message in chosen.items()}
    return {index: replace(message, parts=cut[index]) for index, message in chosen.items()}


def _last_exchange(messages: Sequence[ModelMessage]) -> set[int]:
    """Positions of the last message, the responses whose calls it answers, and all other answers to those responses.

    The answers to one response may be in several requests and far from it, because some calls are answered late.
    """
    kept: set[int] = set()
    last = len(messages) - 1
    bare = last and not _has_prompt(messages[last]) and not _call_ids(messages[last])
    waiting = [last, last - 1] if bare else [last]  # feedback without a tool needs the answer before it
    while waiting:
        current = waiting.pop()
        kept.add(current)
        ids, request = _call_ids(messages[current]), isinstance(messages[current], ModelRequest)
        for index in range(current - 1, -1, -1) if request else range(current + 1, last + 1):
            if not ids:
                break
            if isinstance(messages[index], ModelRequest) != request and (shared := ids & _call_ids(messages[index])):
                ids -= shared
                waiting += [index] if index not in kept else []
    return kept


def _call_ids(message: ModelMessage) -> set[str]:
    """Ids of the function calls that a message makes or answers."""
    parts: list[Any] = [
        part for part in message.parts if part.part_kind in ("tool-call", "tool-return", "retry-prompt")
    ]
    return {part.tool_call_id for part in parts if part.tool_name}


def _has_prompt(message: ModelMessage) -> bool:
    return any(part.part_kind == "user-prompt" for part in message.parts)


def _shorten(part: Any, limit: int) -> Any:
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
