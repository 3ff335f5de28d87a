"""Conversations that stages at `full` share: a list of messages per key, used by one stage at a time.

If a run jumps back to a stage, the list is cut back to the last start of that stage, so that the stage does not see
work that it is about to repeat.
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
    """A conversation, with a lock so that one stage uses it at a time."""

    key: str
    messages: list[ModelMessage] = field(default_factory=list[ModelMessage])
    marks: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """Stages that ran in the conversation, each with the number of messages before it."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _plain: list[Any] = field(default_factory=list[Any])
    """The messages as plain data."""

    def add(self, name: str, messages: Sequence[ModelMessage]) -> None:
        """Append the messages of a stage."""
        self.marks.append((name, len(self.messages)))
        self.messages += messages
        self._plain += ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")

    def cut_back(self, name: str) -> None:
        """Remove everything since the last start of a stage, if it ever ran in this conversation."""
        start = next((index for index in reversed(range(len(self.marks))) if self.marks[index][0] == name), None)
        if start is not None:
            self.trim(start)

    def trim(self, marks: int) -> None:
        """Remove everything after the first `marks` stages."""
        if marks < len(self.marks):
            start = self.marks[marks][1]
            del self.marks[marks:], self.messages[start:], self._plain[start:]

    def thread(self, former: Thread | None = None) -> Thread:
        """Serialize the conversation to plain data; return `former` itself if nothing changed since."""
        thread = Thread(messages=tuple(self._plain), marks=tuple(self.marks))
        return former if former is not None and former == thread else thread

    def copy(self) -> Session:
        """Return an independent copy."""
        return Session(key=self.key, messages=list(self.messages), marks=list(self.marks), _plain=list(self._plain))


def load_session(key: str, thread: Thread) -> Session:
    """Build a conversation from plain data.

    Raises:
        ValueError: a message is not valid.
    """
    messages = ModelMessagesTypeAdapter.validate_python(list(thread.messages))
    return Session(key=key, messages=messages, marks=list(thread.marks), _plain=list(thread.messages))
