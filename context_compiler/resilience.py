"""Failing open: no error in this package ends a conversation.

Cancellation is not a failure and passes through. So do the exceptions by which a durable execution engine stops and
resumes runs.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from inspect import isawaitable, iscoroutinefunction
from threading import RLock, Thread
from time import thread_time
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

from context_compiler.errors import ContextCompilerError

T = TypeVar("T")

Report = Callable[[Exception], Awaitable[None]]
"""Callback that receives each failure."""

ENGINES = ("dbos", "temporalio", "prefect")
"""Packages whose exceptions are control flow rather than failures."""

STEP = 100
"""Messages that are read without a look at the clock, so that the last exchange can always be read."""

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


async def call(function: Callable[..., Any], *args: Any) -> Any:
    """Call a plain or async function, and return its result."""
    result = function(*args)
    return await result if isawaitable(result) else result


def start_in_thread(work: Callable[[], T]) -> Future[T]:
    """Start work in a daemon thread, in a copy of this context. Neither cancellation nor exit waits for it."""
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # it is passed to whatever awaits this
            done.set_exception(error)

    Thread(target=copy_context().run, args=(run,), name="context-compiler-call", daemon=True).start()
    return done


async def call_in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Result of a plain or async function. A plain one runs in a thread, so that it does not block this event loop.

    What it returns is awaited here, if it is awaitable. If this is cancelled, the thread goes on.
    """
    if iscoroutinefunction(function):
        return await function(*args)
    called = await asyncio.wrap_future(start_in_thread(lambda: attempt(lambda: function(*args))))
    if called.error is not None:  # not raised by the future, which cannot raise a `StopIteration`
        raise called.error
    return await called.value if isawaitable(called.value) else called.value


async def cancel_and_wait(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


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


async def call_within(seconds: float, callback: Callable[[Any], Any], what: Any, late: Exception) -> Any:
    """Result of a plain or async callback for `what`; cancel an async one after `seconds` and raise `late`."""
    result = callback(what)
    return await await_within(seconds, result, late) if isawaitable(result) else result


class SharedLock:
    """Lock for the coroutines of all threads and event loops, in the order in which they ask for it.

    An `asyncio.Lock` belongs to the first loop that waits for it.
    """

    def __init__(self) -> None:
        self._state = RLock()  # reentrant, because a garbage collection may end a coroutine that holds this lock
        self._holder: asyncio.Future[None] | None = None
        self._waiting = deque[asyncio.Future[None]]()

    def locked(self) -> bool:
        """True while a coroutine holds the lock."""
        return self._holder is not None

    async def __aenter__(self) -> None:
        """Wait for the lock."""
        while not await self._has_turn():
            pass

    async def __aexit__(self, *_: object) -> None:
        """Hand the lock over to the next one."""
        self._hand_over()

    async def _has_turn(self) -> bool:
        """Take the lock if it is free, else wait for a turn; False if it must be asked for again."""
        turn = asyncio.get_running_loop().create_future()
        with self._state:
            if self._holder is None:
                self._holder = turn
                return True
            self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            with self._state:
                if self._holder is turn:  # it was handed over in the meantime
                    self._hand_over()
            raise
        return self._holder is turn

    def _hand_over(self) -> None:
        """Free the lock, and give it to the first one in the queue whose event loop runs.

        Those before it are only woken: their loops may never run again, and if one does, it asks again.
        """
        with self._state:
            here = self._holder.get_loop() if self._holder is not None else None
            self._holder = None
            while self._waiting and self._holder is None:
                turn = self._waiting.popleft()
                loop = turn.get_loop()
                with suppress(RuntimeError):  # the loop is closed
                    (loop.call_soon if loop is here else loop.call_soon_threadsafe)(_wake, turn)
                    if not turn.done() and (loop is here or loop.is_running()):
                        self._holder = turn


def _wake(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)


class OutOfTimeError(ContextCompilerError):
    """The time that a request may spend on reading and searching its history is used up."""


class TimeLimit:
    """Seconds of CPU that the threads of one request may spend, one after another; waiting does not count."""

    def __init__(self, seconds: float) -> None:
        """Start no clock yet."""
        self.seconds = self._left = seconds
        self.error: OutOfTimeError | None = None
        """The error that `check` has raised."""
        self._end = float("inf")

    @contextmanager
    def applied(self) -> Generator[None]:
        """Apply what is left of the limit to everything that this thread does within."""
        began = thread_time()
        self._end = began + self._left
        token = _LIMIT.set(self)
        try:
            yield
        finally:
            _LIMIT.reset(token)
            self._left -= thread_time() - began

    def check(self) -> None:
        """Raise `OutOfTimeError` if the time is used up."""
        if thread_time() > self._end:
            work = "reading and searching a history"
            self.error = OutOfTimeError(f"{work} takes more than {self.seconds:g} s (timeout)")
            raise self.error


_LIMIT: ContextVar[TimeLimit | None] = ContextVar("time_limit", default=None)


def check_time() -> None:
    """Raise `OutOfTimeError` if the time of the current request is used up; what is kept so far serves later ones."""
    limit = _LIMIT.get()
    if limit is not None:
        limit.check()


def in_steps(items: Iterable[T]) -> Iterator[T]:
    """Yield items; after each `STEP` of them, raise `OutOfTimeError` if the time is used up."""
    for number, item in enumerate(items, 1):
        if number % STEP == 0:
            check_time()
        yield item


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


class _Forgetful(Protocol):
    def forget(self) -> None: ...


_ALL: WeakSet[_Forgetful] = WeakSet()


def forget_in_child(state: _Forgetful) -> None:
    """Have `state.forget` called in every process that is forked from this one."""
    _ALL.add(state)


def _forget_all() -> None:
    for state in list(_ALL):
        state.forget()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget_all)
