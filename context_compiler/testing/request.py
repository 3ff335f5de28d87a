"""One request as it reached the model, and what its texts say."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic_ai.messages import ModelMessage
from pydantic_core import to_jsonable_python

from context_compiler.messages.display import FORMS, SHORTENED, VERBATIM, segments
from context_compiler.messages.history import Reader, Reading, reader_of
from context_compiler.messages.items import LARGEST, Item, Kind
from context_compiler.record.values import Drop
from context_compiler.tokens import as_counter

READER: Reader = reader_of(as_counter(None))

ESCAPES = re.compile(r'(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))+')
"""Characters that are escaped in JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request as it reached the model."""

    number: int
    """From 1."""
    turn: int
    """From 1; a turn begins with a user prompt."""
    messages: Sequence[ModelMessage] = field(repr=False)
    readings: Sequence[Reading] = field(repr=False)
    """Items and tokens of each message."""
    beside: str = field(repr=False)
    """Instructions, and names, descriptions and parameters of the tools, which are sent with the messages."""
    fixed: int
    """Tokens of the instructions and tools."""
    said: int
    """Number of messages of the conversation that had been said when it was sent."""
    status: str = ""
    """Status of the view, if `ContextCompiler` made it."""
    budget: int | None = None
    """Budget of the view, if `ContextCompiler` made it."""
    drops: tuple[Drop, ...] = field(default=(), repr=False)
    """Messages that the view leaves out, if `ContextCompiler` made it."""

    @property
    def tokens(self) -> int:
        """Tokens of messages, instructions and tools."""
        return self.fixed + sum(reading.tokens for reading in self.readings)

    @property
    def text(self) -> str:
        """Everything in it."""
        return "\n".join([self.beside, *map(reading_text, self.readings)])

    def extends(self, other: Request) -> bool:
        """True if it begins with another request, so that a prompt cache keeps that."""
        names, theirs = ([reading.name for reading in request.readings] for request in (self, other))
        return self.beside == other.beside and names[: len(theirs)] == theirs

    def __str__(self) -> str:
        return f"request {self.number} (turn {self.turn})"


def reading_text(reading: Reading) -> str:
    """Everything that a message says, with the names of the tools that it calls."""
    return "\n".join(f"{item.tool} {item.text}" if item.tool else item.text for item in reading.items)


def searched_texts(message: ModelMessage) -> list[str]:
    """Texts of a message in which a text is searched: everything that it says, as it is sent and without JSON."""
    reading = READER.one(message)
    decoded = (_without_json(item, item.text) for item in reading.items)
    is_cut = any(len(item.text) > LARGEST for item in reading.items)  # a reading has the ends of a very long text
    whole = _texts(to_jsonable_python(message.parts, bytes_mode="base64", serialize_unknown=True)) if is_cut else ()
    return [reading_text(reading), *filter(None, decoded), *whole]


def _texts(value: Any) -> Iterator[str]:
    """Texts in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts(list(cast("dict[str, Any]", value).values()))
    elif isinstance(value, list):
        for element in cast("list[Any]", value):
            yield from _texts(element)


def _without_json(item: Item, text: str) -> str:
    """A piece of arguments or of a structured result with its escaped characters decoded; empty if there are none."""
    if item.kind not in (Kind.CALL, Kind.RETURN) or not item.text.lstrip().startswith(("{", "[")):
        return ""
    decoded = ESCAPES.sub(lambda escaped: json.loads(f'"{escaped[0]}"'), text)
    return decoded if decoded != text else ""


def flat(text: str) -> str:
    """Normalize a text: on one line, without case."""
    return " ".join(text.casefold().split())


def form_of(reading: Reading, text: str) -> str:
    """Form in which a message contains a text, by its display name; empty if it does not."""
    for item in reading.items:
        if not _contains(item, item.text, text):
            continue
        if item.mark is None:
            return FORMS[VERBATIM]
        pieces = segments(item.text)
        return next((FORMS[piece.form] for piece in pieces if _contains(item, piece.text, text)), FORMS[SHORTENED])
    return ""


def _contains(item: Item, piece: str, text: str) -> bool:
    """True if a piece of an item contains a text, as it is sent or without JSON."""
    wanted = flat(text)
    return wanted in flat(piece) or wanted in flat(_without_json(item, piece))


def unpaired(readings: Sequence[Reading]) -> Iterator[str]:
    """Tool calls without a result, and results without a call, each described in a few words."""
    waiting: dict[str, str] = {}
    for index, reading in enumerate(readings):
        for call in reading.answers:
            if waiting.pop(call, None) is None:
                yield f"message {index} has the result of {call!r}, whose call is missing before it"
        for call in reading.calls:
            if call in waiting:
                yield f"{waiting[call]}, and is called again"
            waiting[call] = f"message {index} calls {_tool_of(reading)} ({call!r}), whose result is missing"
    yield from waiting.values()


def _tool_of(reading: Reading) -> str:
    return next((item.tool for item in reading.items if item.tool), "a tool")
