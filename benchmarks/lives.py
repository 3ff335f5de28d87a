"""Running conversations turn by turn: a live agent or a session of a peer, and the cost of its requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, zip_longest
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.messages import CachePoint, ModelMessage, ModelRequest, ModelResponse, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from benchmarks.peers.baselines import READER, price
from context_compiler.compiler.metrics import CACHED, FRESH, PromptCache, broken_pairs
from context_compiler.middleware.replay import Session, with_usage

USELESS = "entry {at}: shelf {shelf}, checked, in order, nothing to report"
LINES = 8
"""Lines of a useless tool result."""
SETTINGS: Any = {"anthropic_cache_messages": True}


class Reply(BaseModel):
    """Output type of the scenario `output`."""

    text: str


def look_up(query: str) -> str:
    """Look something up that has nothing to do with the conversation."""
    first = sum(map(ord, query))
    return "\n".join(USELESS.format(at=first + line, shelf=(first * line) % 97) for line in range(LINES))


def steps(script: Sequence[ModelMessage]) -> Iterator[tuple[list[ModelMessage], list[ModelMessage]]]:
    """Split the messages after a prompt into responses, each with the requests that carry its tool results."""
    groups = [list(group) for _, group in groupby(script, lambda message: message.kind)]
    yield from zip_longest(groups[::2], groups[1::2], fillvalue=list[ModelMessage]())


class AgentLife:
    """A live agent with capabilities, whose history is the one that the host stores."""

    def __init__(self, capabilities: Sequence[Any], *, scenario: str = "plain") -> None:
        self.stored: list[ModelMessage] = []
        self.added: Sequence[ModelMessage] = ()
        """Messages that the last turn added after its prompt."""
        self._script: deque[ModelResponse] = deque()
        self._sent: list[Sequence[ModelMessage]] = []
        self._agent: Agent[None, Any] = Agent(
            FunctionModel(self._answer),
            capabilities=list(capabilities),
            output_type=Reply if scenario == "output" else str,
            tools=[look_up] if scenario.startswith("tool") else (),
            model_settings=SETTINGS,
        )

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self._sent.append(list(messages))
        spent = RequestUsage(input_tokens=price(messages), output_tokens=1)
        return replace(self._script.popleft(), usage=spent)

    def start(self, history: Sequence[ModelMessage]) -> None:
        """Continue from a stored history."""
        self.stored = list(history)

    async def turn(self, prompt: ModelRequest, script: Sequence[ModelMessage]) -> list[Sequence[ModelMessage]]:
        """Run one turn and return its requests; `script` has the messages after the prompt and ends with a response.

        Tool results are not taken from the script.
        """
        self._sent, self._script = [], deque(message for message in script if isinstance(message, ModelResponse))
        result = await self._agent.run(message_history=[*self.stored, prompt])
        self.stored = result.all_messages()
        self.added = result.new_messages()
        return self._sent


class SessionLife:
    """A session that runs request by request, with the recorded messages in between."""

    def __init__(self, session: Session) -> None:
        self.added: list[ModelMessage] = []
        self._session = session
        self._new: list[ModelMessage] = []

    def start(self, history: Sequence[ModelMessage]) -> None:
        """Continue from a stored history."""
        self._new = list(history)

    async def turn(self, prompt: ModelRequest, script: Sequence[ModelMessage]) -> list[Sequence[ModelMessage]]:
        """Send the requests of a turn and return them."""
        requests: list[Sequence[ModelMessage]] = []
        self.added = []
        self._new = [*self._new, prompt]
        for responses, returned in steps(script):
            requests.append(await self._session.request(self._new))
            self._new = [*(with_usage(response, price(requests[-1])) for response in responses), *returned]
            self.added += self._new
        return requests


Life = AgentLife | SessionLife

POINTS, BACK = 4, 20
"""Breakpoints that a provider accepts in one request, and content blocks that it searches before each for an entry."""

SUMS = tuple("requests over broken cost whole pointed one_shot_cost sent compiles asked fallbacks".split())
"""Figures of conversations that add up."""


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
        near = (entry for point in points for entry in range(max(0, point - BACK), point + 1))
        cached = max((entry for entry in near if marks[entry] in self._entries), default=0)
        self._entries |= {marks[point] for point in points}
        return CACHED * sums[cached] + FRESH * (tokens - sums[cached])

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
        blocks = [
            (hash((message.kind, text)), round(tokens * len(text or "") / lengths), text is None) for text in texts
        ]
        self._blocks[id(message)] = (message, blocks)
        return blocks


def _block(piece: Any) -> str:
    text = getattr(piece, "content", piece)
    if isinstance(piece, ToolCallPart):
        text = f"{piece.tool_name} {piece.args_as_json_str()}"
    return text if isinstance(text, str) else str(text)


@dataclass(kw_only=True)
class Lived:
    """Figures of one conversation."""

    held: list[float] = field(default_factory=list[float])
    """Share of the evidence held at every question, in the order asked."""
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


def total(lives: Sequence[Lived]) -> dict[str, Any]:
    """Add up the figures of conversations; shares of evidence stay grouped by conversation."""
    groups = {name: [getattr(lived, name) for lived in lives] for name in ("held", "one_shot", "unasked")}
    return {
        **groups,
        "worst": max((lived.worst for lived in lives), default=0.0),
        **{name: sum(getattr(lived, name) for lived in lives) for name in SUMS},
    }


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
