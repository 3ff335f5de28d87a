"""Conversations shared by stages at `full`: a list of messages per key, used by one stage at a time.

If a run jumps back to a stage, the list is cut back to where that stage last started, so that it does not see work
that it is about to repeat.
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
    """A conversation; the lock gives it to one stage at a time."""

    key: str
    messages: list[ModelMessage] = field(default_factory=list[ModelMessage])
    marks: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """Stages that ran in it, each with the number of messages before it."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _written: list[Any] = field(default_factory=list[Any])
    """The messages as plain data."""

    def add(self, name: str, messages: Sequence[ModelMessage]) -> None:
        """Append the messages of a stage."""
        self.marks.append((name, len(self.messages)))
        self.messages += messages
        self._written += ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")

    def cut_back(self, name: str) -> None:
        """Drop everything since the last start of a stage; nothing if it never ran here."""
        at = next((at for at in reversed(range(len(self.marks))) if self.marks[at][0] == name), None)
        if at is not None:
            self.trim(at)

    def trim(self, marks: int) -> None:
        """Drop everything after the first `marks` stages."""
        if marks < len(self.marks):
            start = self.marks[marks][1]
            del self.marks[marks:], self.messages[start:], self._written[start:]

    def thread(self, former: Thread | None = None) -> Thread:
        """The conversation as plain data; `former` itself if unchanged."""
        if former is not None and former.marks == tuple(self.marks) and len(former.messages) == len(self._written):
            return former
        return Thread(messages=tuple(self._written), marks=tuple(self.marks))

    def copy(self) -> Session:
        """An independent copy."""
        return Session(key=self.key, messages=list(self.messages), marks=list(self.marks), _written=list(self._written))


def load_session(key: str, thread: Thread) -> Session:
    """Load a conversation.

    Raises:
        ValueError: it holds no valid messages.
    """
    messages = ModelMessagesTypeAdapter.validate_python(list(thread.messages))
    return Session(key=key, messages=messages, marks=list(thread.marks), _written=list(thread.messages))
