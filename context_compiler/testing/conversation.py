"""A conversation as its model saw it: every request in order, and assertions about all of them or about some."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai.messages import ModelMessage

from context_compiler.compiler.metrics import CACHED, FRESH, PromptCache
from context_compiler.record.values import Drop, positions_of
from context_compiler.testing.explain import explain
from context_compiler.testing.request import READER, Request, flat, searched_texts, unpaired


class ContextFailure(AssertionError):
    """An assertion about requests that does not hold; its text explains the first request at which it fails."""

    def __init__(self, check: str, request: Request, arguments: Sequence[Any], conversation: Conversation) -> None:
        """Explain why a `check` with some arguments fails at a `request`."""
        super().__init__(explain(conversation, check, request, arguments))
        self.check, self.request, self.arguments, self.conversation = check, request, arguments, conversation


@dataclass(eq=False, repr=False)
class Conversation:
    """All requests of a conversation as they reached the model.

    `after_turn`, `at_turn` and `last` narrow it to some requests, which the assertions are then about.
    """

    requests: list[Request] = field(default_factory=list[Request])
    """The requests that the assertions are about."""
    raw: list[ModelMessage] = field(default_factory=list[ModelMessage])
    """Everything that was said, in order, whatever was sent of it."""
    notes: list[str] = field(default_factory=list[str])
    """Circumstances that explain a failure, such as a recorded summary that does not fit."""
    compiler: Any = None
    """The agent's `ContextCompiler`; None if it has none."""
    every: list[Request] = field(default_factory=list[Request])
    """All requests, even if this conversation is narrowed."""
    turns: int = 0
    """Number of user prompts in `raw`."""
    _texts: dict[int, tuple[ModelMessage, list[str]]] = field(default_factory=dict[int, tuple[ModelMessage, list[str]]])

    def __post_init__(self) -> None:
        self.every = self.every or self.requests

    def __repr__(self) -> str:
        return f"Conversation({len(self.requests)} requests, {len(self.raw)} messages said)"

    def add_messages(self, messages: Iterable[ModelMessage]) -> None:
        """Add what was said to `raw`."""
        for message in messages:
            self.raw.append(message)
            self.turns += READER.one(message).has_prompt

    def after_turn(self, turn: int) -> Conversation:
        """Only the requests of later turns."""
        return self._with([request for request in self.requests if request.turn > turn])

    def at_turn(self, turn: int) -> Conversation:
        """Only the requests of one turn."""
        return self._with([request for request in self.requests if request.turn == turn])

    @property
    def last(self) -> Conversation:
        """Only the last request."""
        return self._with(self.requests[-1:])

    def _with(self, requests: list[Request]) -> Conversation:
        narrowed = copy(self)
        narrowed.requests = requests
        return narrowed

    def assert_in_context(self, *texts: str) -> None:
        """Check that every request contains each text, from the request on in which it is first said."""
        __tracebackhide__ = True
        for text in texts:
            self._check("in_context", self.missing(text), text)

    def assert_not_in_context(self, *texts: str) -> None:
        """Check that no request contains any of the texts. A failure does not repeat the text."""
        __tracebackhide__ = True
        for text in texts:
            self._check("not_in_context", self.containing(text), text)

    def assert_newest(self, subject: str, value: str) -> None:
        """Check that a replaced value never stands alone: where a request has the subject, it has the newest value.

        Args:
            subject: Words of every statement of the value, such as "The refund limit is".
            value: The newest value; checked from the request on in which it is said.
        """
        __tracebackhide__ = True
        self._check("newest", self.outdated(subject, value), value, subject)

    def assert_within(
        self,
        *,
        budget: int | None = None,
        pairs: bool = False,
        compiles: int | None = None,
        cost_of_everything: float | None = None,
    ) -> None:
        """Check the size, the form and the cost of the requests.

        Args:
            budget: Maximum tokens of each request, with instructions and tools, by o200k.
            pairs: True if every tool call must have its result, and every result its call.
            compiles: Maximum number of requests that do not begin with the request before, its instructions and tools
                included, and so lose the prompt cache.
            cost_of_everything: Maximum input cost, as a fraction of the cost of sending everything; both with a prompt
                cache.
        """
        __tracebackhide__ = True
        if budget is not None:
            self._check("budget", (request for request in self._checked() if request.tokens > budget), budget)
        if pairs:
            self._check("pairs", (request for request in self._checked() if any(unpaired(request.readings))))
        if compiles is not None:
            self._check("compiles", iter(self.rewrites()[compiles:]), compiles)
        if cost_of_everything is not None and self.cost_share() > cost_of_everything:
            self._check("cost", iter(self._checked()[-1:]), cost_of_everything)

    def missing(self, text: str) -> Iterator[Request]:
        """Requests that do not contain a text, from the request on in which it is first said."""
        said = next(self.positions(text), -1)
        return (request for request in self._checked() if request.said > said and not self.contains(request, text))

    def containing(self, text: str) -> Iterator[Request]:
        """Requests that contain a text."""
        return (request for request in self._checked() if self.contains(request, text))

    def outdated(self, subject: str, value: str) -> Iterator[Request]:
        """Requests that contain a subject without its newest value, from the request on in which that is said."""
        newest = list(self.positions(value))
        old = [position for position in self.positions(subject) if position not in newest]
        said = next((position for position in newest if not old or position > old[-1]), newest[0] if newest else -1)
        stale = self.containing(subject)
        return (request for request in stale if request.said > said and not self.contains(request, value))

    def _checked(self) -> list[Request]:
        if not self.requests:
            raise AssertionError("there is no request to check: none was sent, or none in these turns")
        return self.requests

    def _check(self, check: str, failing: Iterator[Request], *arguments: Any) -> None:
        __tracebackhide__ = True
        request = next(failing, None)
        if request is not None:
            raise ContextFailure(check, request, arguments, self)

    def contains(self, request: Request, text: str) -> bool:
        """True if a request contains a text, without regard to case, white space and the escapes of JSON."""
        wanted = _wanted(text)
        return wanted in flat(request.beside) or any(self._says(message, wanted) for message in request.messages)

    def positions(self, text: str) -> Iterator[int]:
        """Positions of the messages in `raw` that contain a text, oldest first."""
        wanted = _wanted(text)
        messages = enumerate(self.raw)
        return (position for position, message in messages if self._says(message, wanted))

    def _says(self, message: ModelMessage, wanted: str) -> bool:
        if id(message) not in self._texts:
            self._texts[id(message)] = message, list(map(flat, searched_texts(message)))  # the message keeps its id
        return any(wanted in text for text in self._texts[id(message)][1])

    def rewrites(self) -> list[Request]:
        """Requests that do not begin with the request before, its instructions and tools included."""
        return [
            request for request in self.requests if (before := self.before(request)) and not request.extends(before)
        ]

    def cost_share(self) -> float:
        """Input cost of all requests with a prompt cache, as a fraction of the cost of sending everything."""
        cache, before = PromptCache(), None
        sent = everything = 0.0
        old = said = 0
        for request in self.every:
            if before is None or request.beside != before.beside:
                cache, price = PromptCache(), FRESH
            else:
                price = CACHED
            new = sum(READER.one(message).tokens for message in self.raw[said : request.said])
            sent += price * request.fixed + cache.charge(request.readings)
            everything += price * (request.fixed + old) + FRESH * new
            before, said, old = request, request.said, old + new
        return sent / everything if everything else 0.0

    def drop_of(self, position: int, request: Request) -> tuple[Request, Drop] | None:
        """The newest decision up to a request to leave out a message of `raw`, by its position; None if unknown."""
        for decided in reversed(self.every[: request.number]):
            for drop in decided.drops:
                if position in positions_of(drop.what):
                    return decided, drop
        return None

    def before(self, request: Request) -> Request | None:
        """The request before; None for the first one."""
        return self.every[request.number - 2] if request.number > 1 else None


def _wanted(text: str) -> str:
    """Text to search for.

    Raises:
        ValueError: It is empty, so every request contains it.
    """
    if not text.strip():
        raise ValueError("an empty text is in every request")
    return flat(text)
