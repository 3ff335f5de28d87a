"""One answer, while it comes and once it is there, with what was sent for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic_ai.messages import (
    AgentStreamEvent,
    ModelMessage,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
)
from pydantic_ai.usage import RequestUsage

from context_compiler.chat.reconcile import BETWEEN
from context_compiler.compiler.view import View

Hear = Callable[[str], object]
"""Called with each piece of an answer, after it is on disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One answer, whole or stopped, and what was sent for it."""

    text: str
    output: Any = None
    """What the agent returned; None where it was stopped."""
    stopped: bool = False
    raw: int = 0
    """Tokens of the whole history at the last request."""
    sent: int = 0
    """Tokens of what was sent instead; in the normal mode the same."""
    cached: int = 0
    """Tokens that the provider had in its prompt cache."""
    view: View | None = None
    """What was sent last, in Endless mode."""
    history: tuple[ModelMessage, ...] = ()
    """The whole history at the last request."""
    first: float | None = None
    """Seconds until the first piece."""
    seconds: float = 0.0


@dataclass(slots=True)
class Spent:
    """What the answers of one chat took together, since it was opened."""

    answers: int = 0
    compiles: int = 0
    """With a model and without."""
    asked: int = 0
    """Compiles that a model was asked for."""
    raw: int = 0
    sent: int = 0
    cached: int = 0

    def saw(self, view: View) -> None:
        """Count the compile of a request in, where it had one."""
        made = view.record.compile if view.record is not None else None
        self.compiles += made is not None
        self.asked += made is not None and made.compiled_prompt is not None

    def add(self, said: Said) -> None:
        """Count one answer in."""
        self.answers += 1
        self.raw += said.raw
        self.sent += said.sent
        self.cached += said.cached


@dataclass(slots=True)
class Turn:
    """An answer while it comes."""

    hear: Hear | None
    began: float
    shown: str = ""
    first: float | None = None
    view: View | None = None
    messages: Sequence[ModelMessage] = ()
    output: Any = None

    def piece(self, event: AgentStreamEvent) -> str:
        """What an event adds to the text; empty for anything else."""
        if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
            text = event.part.content
            piece = f"{BETWEEN}{text}" if self.shown and text else text
        elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
            piece = event.delta.content_delta
        else:
            return ""
        if piece:
            self.first = self.first or time.perf_counter()
            self.shown += piece
        return piece


def said_of(turn: Turn, *, stopped: bool) -> Said:
    """What came of a turn."""
    messages = list(turn.messages)
    answers = [at for at, message in enumerate(messages) if isinstance(message, ModelResponse)]
    response = messages[answers[-1]] if answers else None
    usage = response.usage if isinstance(response, ModelResponse) else RequestUsage()
    record = turn.view.record if turn.view is not None else None
    end = time.perf_counter()
    said = Said(
        text=turn.shown,
        output=turn.output,
        stopped=stopped,
        raw=usage.input_tokens,
        sent=usage.input_tokens,
        cached=usage.cache_read_tokens,
        view=turn.view,
        history=tuple(messages[: answers[-1]] if answers else messages),
        first=None if turn.first is None else turn.first - turn.began,
        seconds=end - turn.began,
    )
    return said if record is None else replace(said, raw=record.tokens_raw, sent=record.tokens_sent)
