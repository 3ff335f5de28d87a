"""At `full` several stages share one conversation: a list of messages under a key, used by one stage at a time.

A stage that a run jumps back to does not hear of what it is about to do again: the list is cut back to where the
stage began last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter

from context_compiler.pipeline.state import Thread


@dataclass(slots=True, eq=False)
class Session:
    """One conversation; the lock gives it to one stage at a time."""

    key: str
    messages: list[ModelMessage] = field(default_factory=list[ModelMessage])
    marks: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """Stages that ran in it, each with the number of messages there were before it."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _written: list[Any] = field(default_factory=list[Any])
    """The messages as plain data."""

    def add(self, name: str, messages: Sequence[ModelMessage]) -> None:
        """What a stage said and heard."""
        self.marks.append((name, len(self.messages)))
        self.messages += messages
        self._written += ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")

    def cut_back(self, name: str) -> None:
        """Forget everything since the stage of that name began last; nothing if it never ran here."""
        at = next((at for at in reversed(range(len(self.marks))) if self.marks[at][0] == name), None)
        if at is not None:
            self.trim(at)

    def trim(self, marks: int) -> None:
        """Forget everything but what the first stages said, as many as `marks`."""
        if marks < len(self.marks):
            start = self.marks[marks][1]
            del self.marks[marks:], self.messages[start:], self._written[start:]

    def thread(self, former: Thread | None = None) -> Thread:
        """As plain data; `former` itself when nothing has changed since."""
        if former is not None and former.marks == tuple(self.marks) and len(former.messages) == len(self._written):
            return former
        return Thread(messages=tuple(self._written), marks=tuple(self.marks))

    def copy(self) -> Session:
        """A conversation that goes on by itself from here."""
        return Session(key=self.key, messages=list(self.messages), marks=list(self.marks), _written=list(self._written))


def load_session(key: str, thread: Thread) -> Session:
    """A conversation as it was written down.

    Raises:
        ValueError: the messages are none.
    """
    messages = ModelMessagesTypeAdapter.validate_python(list(thread.messages))
    return Session(key=key, messages=messages, marks=list(thread.marks), _written=list(thread.messages))
