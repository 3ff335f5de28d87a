"""A provider on loopback hears real HTTP and answers it as the real one would, refusals and failures included.

`LoopbackServer` is what every provider shares: a script of answers, a record of requests, and faults on
demand. What a provider accepts and how it spells its answers stands in `openai_server` and `anthropic_server`.
"""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count as counter
from types import TracebackType
from typing import Any, ClassVar, Literal, Self

from tests.support.wire import Body, Reply, Wire

Call = tuple[str, dict[str, Any] | str]
"""A tool's name and its arguments; a string goes out as it is, so it may be broken JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the model says: text, tool calls, or both."""

    text: str = ""
    calls: Sequence[Call] = ()
    thinking: str = ""
    """What it thinks before both; servers sign it, and check it when it comes back."""


Step = str | Sequence[Call] | Answer
Script = Sequence[Step] | Callable[[Body], Step]


class Refusal(Exception):
    """The provider says no; each server spells it in its own JSON."""

    def __init__(self, message: str, *, status: int = 400, kind: str = "invalid_request_error", **details: Any) -> None:
        super().__init__(message)
        self.message, self.status, self.kind, self.details = message, status, kind, details


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fault:
    kind: Literal["status", "hang", "drop"]
    status: int = 500
    seconds: float | None = None
    after: int = 0


class LoopbackServer(ABC):
    """A provider at `base_url`, alive inside its `with` block.

    Leaving the block lets go of every connection and raises what a script raised, so an assertion in a
    script cannot get lost in a caller that survives errors.
    """

    root: ClassVar[str] = ""
    """The part of the path that belongs to `base_url`."""
    path: ClassVar[str]
    """Where requests go that the script answers."""

    def __init__(
        self,
        script: Script = "ok.",
        *,
        window: int | None = None,
        count: Callable[[str], int] | None = None,
        facts: Mapping[str, Body] | None = None,
    ) -> None:
        """Answer by `script`: one text for all, a list of steps used up in turn, or a function of the body.

        Args:
            script: Steps are text, tool calls `[(name, args)]`, or an `Answer`; a function may raise `Refusal`.
            window: Prompt tokens above which a request is refused; None never refuses.
            count: Tokens of the JSON text of tools and messages; a quarter of its length by default.
            facts: What a GET of a path answers.
        """
        self.requests: list[Body] = []
        """Every body received, refused ones too."""
        self.statuses: list[int] = []
        """What each request came to, in the order they finished; 0 is a connection closed without an answer."""
        self.refusals: list[str] = []
        """The message of each error answered."""
        self.asked: list[str] = []
        """The path of each GET."""
        self.prompt_tokens: list[int] = []
        """Tokens of each request that was accepted."""
        self.window, self.count = window, count or _quarter
        self._script, self._step, self._facts = script, 0, facts or {}
        self._faults: deque[_Fault] = deque()
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._wire = Wire(self._take, self._tell)

    @property
    def base_url(self) -> str:
        """Where a client finds this server."""
        return f"http://127.0.0.1:{self._wire.port}{self.root}"

    def __enter__(self) -> Self:
        self._wire.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._wire.close()
        if error is None and self._wire.errors:
            raise self._wire.errors[0]

    def fail(self, status: int = 500, *, times: int = 1) -> None:
        """Answer the next `times` requests with an error of that status."""
        self._faults.extend([_Fault(kind="status", status=status)] * times)

    def hang(self, seconds: float | None = None, *, times: int = 1) -> None:
        """Answer the next `times` requests after `seconds`; None never answers, and hangs up at the end."""
        self._faults.extend([_Fault(kind="hang", seconds=seconds)] * times)

    def drop(self, *, times: int = 1, after: int = 0) -> None:
        """Close the connection of the next `times` requests, or `after` that many events of a stream."""
        self._faults.extend([_Fault(kind="drop", after=after)] * times)

    def _tell(self, path: str) -> tuple[int, Body]:
        self.asked.append(path)
        found = self._facts.get(path.partition("?")[0])
        return (404, {"error": {"message": "not found"}}) if found is None else (200, found)

    def _take(self, path: str, raw: bytes) -> Reply | None:
        status = 0
        try:
            body = self._parsed(path, raw)
            fault = self._faults.popleft() if self._faults else None
            if fault is not None and not self._survives(fault):
                return None
            reply = self._reply(path, body, fault)
            status = 200
        except Refusal as refusal:
            self.refusals.append(refusal.message)
            status, reply = refusal.status, self.error(refusal)
        finally:
            self.statuses.append(status)
        return status, reply

    def _parsed(self, path: str, raw: bytes) -> Body:
        if not path.partition("?")[0].startswith(self.path):
            raise Refusal(f"Unknown request URL: POST {path}.", status=404, kind="not_found_error")
        try:
            body = json.loads(raw)
        except ValueError as error:
            raise Refusal(f"We could not parse the JSON body of your request: {error}") from None
        self.requests.append(body)
        return body

    def _survives(self, fault: _Fault) -> bool:
        """Whether the request is answered after all."""
        if fault.kind == "status":
            raise Refusal(f"The server was told to answer {fault.status}.", status=fault.status, kind="api_error")
        if fault.kind == "hang":
            return not self._over.wait(fault.seconds)
        return fault.after > 0

    def _reply(self, path: str, body: Body, fault: _Fault | None) -> Body | Iterable[bytes]:
        self.validate(body)
        tokens = self.count(self.prompt(body))
        if self.window is not None and tokens > self.window:
            raise self.overflow(tokens, self.window)
        if path.partition("?")[0] != self.path:
            return self.other(path, tokens)
        self.prompt_tokens.append(tokens)
        answer = self._next(body)
        if not body.get("stream"):
            return self.whole(body, answer, tokens)
        events = self.events(body, answer, tokens)
        return _cut(events, fault.after) if fault is not None and fault.kind == "drop" else events

    def _next(self, body: Body) -> Answer:
        if callable(self._script):
            return _answer(self._script(body))
        if isinstance(self._script, str):
            return Answer(text=self._script)
        with self._lock:
            self._step += 1
            if self._step > len(self._script):
                raise AssertionError(f"request {self._step} came after the script's {len(self._script)} steps")
            return _answer(self._script[self._step - 1])

    def answer_tokens(self, answer: Answer) -> int:
        """Tokens of an answer, by the same count as prompts."""
        return max(1, self.count(json.dumps([answer.text, *answer.calls], ensure_ascii=False)))

    @abstractmethod
    def validate(self, body: Body) -> None:
        """Raise `Refusal` for whatever the provider would not accept."""

    @abstractmethod
    def overflow(self, tokens: int, window: int) -> Refusal:
        """How the provider says that a prompt is too long."""

    @abstractmethod
    def error(self, refusal: Refusal) -> Body:
        """A refusal in the provider's JSON."""

    @abstractmethod
    def whole(self, body: Body, answer: Answer, tokens: int) -> Body:
        """An answer in one piece, to a prompt of that many `tokens`."""

    @abstractmethod
    def events(self, body: Body, answer: Answer, tokens: int) -> Iterator[bytes]:
        """The same answer as server-sent events."""

    def prompt(self, body: Body) -> str:
        """The text of a request that counts."""
        return prompt_text(body)

    def other(self, path: str, tokens: int) -> Body:
        """The answer at a path below `path`, which the script does not decide."""
        raise Refusal(f"Nothing is answered at {path}.", status=404, kind="not_found_error")


_numbers = counter(1)


def fresh_id(prefix: str) -> str:
    """An id that no other answer of this process has."""
    return f"{prefix}_{next(_numbers):08d}"


def prompt_text(body: Body) -> str:
    """The JSON text that counts as the prompt: tools, top-level system text, messages."""
    parts = (body.get(name) for name in ("tools", "system", "instructions", "messages", "input"))
    return "".join(json.dumps(part, ensure_ascii=False) for part in parts if part)


def pieces(text: str, size: int = 12) -> list[str]:
    """A text as a stream would deliver it; nothing for an empty one."""
    return [text[start : start + size] for start in range(0, len(text), size)]


def arguments_text(call: Call) -> str:
    """A call's arguments as the model wrote them."""
    return call[1] if isinstance(call[1], str) else json.dumps(call[1], ensure_ascii=False)


def _quarter(text: str) -> int:
    return len(text) // 4


def _answer(step: Step) -> Answer:
    if isinstance(step, Answer):
        return step
    return Answer(text=step) if isinstance(step, str) else Answer(calls=tuple(step))


def _cut(events: Iterator[bytes], after: int) -> Iterator[bytes]:
    for index, event in enumerate(events):
        if index == after:
            raise ConnectionAbortedError("told to drop the connection")
        yield event
