"""Transcript under construction: the messages so far, the reading position, and notes on lenient reading.

Only this module builds messages from parts. Consecutive tool results share a request, a system message begins the
request that follows it, and nothing is repaired: a conversation that is broken in the file stays broken.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast

from pydantic import ValidationError
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    ToolCallPart,
    ToolReturnPart,
)

from context_compiler.errors import TranscriptError
from context_compiler.messages.history import UNDATED

NAMELESS = "unknown"
"""Tool name of a result that has no name and answers no call."""


class Draft:
    """Builder of a `Transcript` from one conversation."""

    def __init__(self, *, file: str, label: str = "") -> None:
        """Read from `file`; `label` names the conversation if the file contains several."""
        self.file, self.label = file, label
        self.at = 0
        """0-based index of the message that is being read."""
        self.messages: list[ModelMessage] = []
        self._starts: list[int] = []
        self._notes: dict[str, list[int]] = {}
        self._names: dict[str, str] = {}
        self._waiting: OrderedDict[str, str] = OrderedDict()
        self._parts: list[ModelRequestPart] | None = None
        self._leads = self._answers = False

    def error(self, message: str) -> TranscriptError:
        """Build an error about the message that is being read."""
        return TranscriptError(
            f"in conversation {self.label}: {message}" if self.label else message, file=self.file, index=self.at
        )

    def each(self, entries: Sequence[object], positions: Iterable[int] | None = None) -> Iterator[object]:
        """Iterate over all entries, or those at `positions`, and keep `at` up to date."""
        for index in range(len(entries)) if positions is None else positions:
            self.at = index
            yield entries[index]

    def objects(
        self, entries: Sequence[object], what: str, keys: str, positions: Iterable[int] | None = None
    ) -> Iterator[Json]:
        """Iterate like `each` over entries that are objects.

        Raises:
            TranscriptError: An entry is not an object; the message names `what` it is, and the `keys` it needs.
        """
        for value in self.each(entries, positions):
            fields = mapping(value)
            if fields is None:
                raise self.error(f"{what} is {kind(value)}; it must be an object with {keys}")
            yield fields

    def note(self, what: str, index: int | None = None) -> None:
        """Record a note on lenient reading at `index`, by default at the current position."""
        self._notes.setdefault(what, []).append(self.at if index is None else index)

    def add(self, message: ModelMessage) -> None:
        """Add a complete message."""
        self._parts = None
        self.messages.append(message)
        self._starts.append(self.at)

    def request(self, parts: Sequence[ModelRequestPart], *, time: datetime | None) -> None:
        """Add parts to a request: to the last one if they continue it, else to a new one.

        Any parts continue a request that has only system prompts so far; tool results continue tool results.
        """
        answers = all(isinstance(part, ToolReturnPart) for part in parts)
        if self._parts is not None and (self._leads or (answers and self._answers)):
            self._parts.extend(parts)
        else:
            started = list(parts)
            self.add(ModelRequest(parts=started, timestamp=time))
            self._parts, self._leads = started, True
        self._leads = self._leads and all(isinstance(part, SystemPromptPart) for part in parts)
        self._answers = answers

    def respond(
        self, parts: Sequence[ModelResponsePart], *, time: datetime | None, joins: bool = False
    ) -> ModelResponse:
        """Add a response, or extend the last message if `joins` and that is a response.

        Later tool results without an id are assigned to its calls in order.
        """
        last = self.messages[-1] if joins and self.messages else None
        extends = isinstance(last, ModelResponse)
        if not parts and not extends:
            self.note("response without content")
        calls = OrderedDict((part.tool_call_id, part.tool_name) for part in parts if isinstance(part, ToolCallPart))
        self._waiting = OrderedDict(self._waiting, **calls) if extends else calls
        self._names.update(calls)
        if isinstance(last, ModelResponse):
            last.parts = [*last.parts, *parts]
            return last
        response = ModelResponse(parts=list(parts), timestamp=time or UNDATED)
        self.add(response)
        return response

    def result(
        self, content: object, *, call_id: str | None, name: str | None, failed: bool = False, time: datetime | None
    ) -> ToolReturnPart:
        """Build the result of a call; without a name, it gets the one of its call."""
        if not call_id:
            self.note("tool result without an id, assigned to the oldest open call")
            waiting = (id for id, tool in self._waiting.items() if not name or name == tool)
            call_id = next(waiting, f"result-{self.at}")
        if not name and call_id not in self._names:
            self.note("tool result without a name or a call")
        self._waiting.pop(call_id, None)
        return ToolReturnPart(
            tool_name=name or self._names.get(call_id, NAMELESS),
            content=content,
            tool_call_id=call_id,
            timestamp=time or UNDATED,
            outcome="failed" if failed else "success",
        )

    def transcript(self, *, name: str, format: str) -> Transcript:
        """Finish the transcript, after a check that it can be stored as JSON and loaded again.

        Raises:
            TranscriptError: A message cannot be stored: it contains a lone surrogate, endless nesting, or a number that
                is too long.
        """
        if _storage_problem(self.messages):
            for index, message in zip(self._starts, self.messages, strict=True):
                if why := _storage_problem([message]):
                    self.at = index
                    raise self.error(why)
        notes = tuple(f"{note} (at {_indexes(entries)})" for note, entries in self._notes.items())
        return Transcript(name=name, format=format, messages=tuple(self.messages), notes=notes)


def _storage_problem(messages: list[ModelMessage]) -> str | None:
    """Reason why messages cannot be stored as JSON and loaded again; None if they can."""
    try:
        ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(messages, warnings=False))
    except ValidationError as error:
        return f"cannot be stored as JSON: {error.errors(include_url=False, include_input=False)[0]['msg']}"
    except ValueError as error:
        if "surrogates" in str(error):
            return "contains half a character (a lone surrogate such as \\ud83d); replace it, for example with \\ufffd"
        return f"cannot be stored as JSON: {str(error)[:200]}"
    return None


def _indexes(where: list[int]) -> str:
    shown = ", ".join(map(str, where[:5]))
    return f"{shown} and {len(where) - 5} more" if len(where) > 5 else shown


Json = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Transcript:
    """One imported conversation."""

    name: str
    """Stem of the file; `stem#id` or `stem#index` for one of several conversations in a file."""
    format: str
    """One of `importers.FORMATS`."""
    messages: tuple[ModelMessage, ...]
    notes: tuple[str, ...] = ()
    """Notes on lenient reading, such as entries skipped, responses cut off, blocks of unknown type kept as text."""

    def __repr__(self) -> str:
        """Name, format and size; the messages are long."""
        return f"Transcript({self.name!r}, {self.format}, {len(self.messages):,} messages, {len(self.notes)} notes)"


def mapping(value: object) -> Json | None:
    """Value as a JSON object; None if it is none."""
    return cast(Json, value) if isinstance(value, dict) else None


def sequence(value: object) -> list[object] | None:
    """Value as a JSON array; None if it is none."""
    return cast("list[object]", value) if isinstance(value, list) else None


def text(value: object) -> str | None:
    """Value as a JSON string; None if it is none."""
    return value if isinstance(value, str) else None


def kind(value: object) -> str:
    """Kind of a JSON value in words, such as `an object`."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    names = (("an object", dict), ("a list", list), ("a string", str))
    return next((name for name, shape in names if isinstance(value, shape)), "a number")


def parse_time(value: object) -> datetime | None:
    """Parse a time from ISO 8601 text, or from seconds or milliseconds since 1970, in UTC; None if it is neither."""
    try:
        if isinstance(value, str):
            read = datetime.fromisoformat(value)
            return (read if read.tzinfo else read.replace(tzinfo=UTC)).astimezone(UTC)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value / 1000 if abs(value) > 1e11 else value, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return None


def time_of(entry: Json) -> datetime | None:
    """Time of a message; None if its entry gives none."""
    return parse_time(entry.get("timestamp")) or parse_time(entry.get("created_at"))
