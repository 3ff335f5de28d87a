"""Cost of a conversation, request by request, and how well it keeps to its budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai.messages import CachePoint, ModelMessage, ToolCallPart, UserPromptPart

from benchmarks.peers.baselines import READER
from benchmarks.recall import Question
from context_compiler.compiler.metrics import CACHED, FRESH, PromptCache, broken_pairs

POINTS, BACK = 4, 20
"""Breakpoints that a provider accepts in one request, and content blocks that it searches before each for an entry."""


class PointedCache:
    """Charges of a provider that writes its cache only at breakpoints, in plain input tokens.

    The end of every request and every `CachePoint` are breakpoints. An entry is found if it is at most `BACK` content
    blocks before a breakpoint.
    """

    def __init__(self) -> None:
        self._entries: set[int] = set()
        self._blocks: dict[int, tuple[object, list[tuple[int, int, bool]]]] = {}

    def charge(self, messages: Sequence[ModelMessage]) -> float:
        """Return the price of the next request."""
        mark, sums, tokens = 0, [0], 0
        marks = [mark]
        points: list[int] = []
        for message in messages:
            for name, cost, point in self._of(message):
                if point:
                    points.append(len(marks) - 1)
                    continue
                mark, tokens = hash((mark, name)), tokens + cost
                marks.append(mark)
                sums.append(tokens)
        points = sorted({*points, len(marks) - 1})[-POINTS:]
        known = max((at for point in points for at in self._near(marks, point)), default=0)
        self._entries |= {marks[point] for point in points}
        return CACHED * sums[known] + FRESH * (tokens - sums[known])

    def _near(self, marks: Sequence[int], point: int) -> Iterator[int]:
        for at in range(point, max(-1, point - BACK - 1), -1):
            if marks[at] in self._entries:
                yield at
                return

    def _of(self, message: ModelMessage) -> list[tuple[int, int, bool]]:
        seen = self._blocks.get(id(message))
        if seen is not None and seen[0] is message:
            return seen[1]
        texts: list[str | None] = []
        for part in message.parts:
            content = getattr(part, "content", None)
            pieces = content if isinstance(part, UserPromptPart) and not isinstance(content, str) else (part,)
            for piece in pieces:
                texts.append(None if isinstance(piece, CachePoint) else _block(piece))
        lengths = sum(len(text) for text in texts if text is not None) or 1
        tokens = READER.one(message).tokens
        found = [
            (hash((message.kind, text)), round(tokens * len(text or "") / lengths), text is None) for text in texts
        ]
        self._blocks[id(message)] = (message, found)
        return found


def _block(piece: Any) -> str:
    text = getattr(piece, "content", piece)
    if isinstance(piece, ToolCallPart):
        text = f"{piece.tool_name} {piece.args_as_json_str()}"
    return text if isinstance(text, str) else str(text)


@dataclass(kw_only=True)
class Lived:
    """Figures of one conversation."""

    name: str
    held: list[float] = field(default_factory=list[float])
    """Share of the evidence held at every question, in the order asked."""
    kinds: list[str] = field(default_factory=list[str])
    """Kinds of the questions."""
    asked_requests: list[tuple[Question, Sequence[ModelMessage]]] = field(
        default_factory=list["tuple[Question, Sequence[ModelMessage]]"]
    )
    """Every question with the request that answers it."""
    one_shot: list[float] = field(default_factory=list[float])
    unasked: list[float] = field(default_factory=list[float])
    requests: int = 0
    over: int = 0
    worst: float = 0.0
    """The largest request, in budgets."""
    broken: int = 0
    cost: float = 0.0
    """Cost of all requests with a prompt cache, in plain input tokens."""
    whole: float = 0.0
    """The same if everything is sent."""
    pointed: float = 0.0
    """Cost with a cache that is written at breakpoints only."""
    one_shot_cost: float = 0.0
    """Scenario `everyasks`: cost of a one-shot view at every request."""
    sent: int = 0
    """Tokens of all requests."""
    compiles: int = 0
    asked: int = 0
    """Calls of the summarising model."""
    fallbacks: int = 0


class Ledger:
    """Add up the requests of one conversation."""

    def __init__(self, lived: Lived, budget: int) -> None:
        self.lived, self.budget = lived, budget
        self._cache, self._pointed, self._views = PromptCache(), PointedCache(), PromptCache()
        self._before = 0

    def charge(self, sent: Sequence[ModelMessage], whole: int) -> None:
        """Count a request; `whole` is the size of the whole history in tokens."""
        lived, readings = self.lived, [READER.one(message) for message in sent]
        tokens = sum(reading.tokens for reading in readings)
        lived.requests += 1
        lived.sent += tokens
        lived.over += tokens > self.budget
        lived.worst = max(lived.worst, tokens / self.budget)
        lived.broken += any(broken_pairs(readings))
        lived.cost += self._cache.charge(readings)
        lived.pointed += self._pointed.charge(sent)
        lived.whole += CACHED * self._before + FRESH * (whole - self._before)
        self._before = whole

    def charge_view(self, view: Sequence[ModelMessage]) -> None:
        """Count a one-shot view made at the same point as a request."""
        self.lived.one_shot_cost += self._views.charge([READER.one(message) for message in view])
