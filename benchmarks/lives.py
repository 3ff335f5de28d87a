"""Running conversations: a live agent, or a session of a peer, that runs the recorded turns."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Protocol

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from benchmarks.peers.baselines import price
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
    groups = [list(group) for _, group in groupby(script, lambda one: isinstance(one, ModelRequest))]
    for at in range(0, len(groups), 2):
        yield groups[at], groups[at + 1] if at + 1 < len(groups) else []


class Life(Protocol):
    """A running conversation."""

    compiles: int
    """Number of requests that began a new cycle, if the approach reports it."""

    def start(self, history: Sequence[ModelMessage]) -> None:
        """Continue from a stored history."""
        ...

    async def turn(self, prompt: ModelRequest, script: Sequence[ModelMessage]) -> list[Sequence[ModelMessage]]:
        """Run one turn and return its requests; `script` has the messages after the prompt and ends with a response."""
        ...

    def added(self) -> Sequence[ModelMessage]:
        """Return the messages that the last turn added after its prompt."""
        ...


class AgentLife:
    """A live agent with capabilities, whose history is the one that the host stores."""

    def __init__(self, capabilities: Sequence[Any], *, scenario: str = "plain", answer_s: float = 0.0) -> None:
        """Start with an empty history; the model takes `answer_s` seconds for an answer."""
        self.stored: list[ModelMessage] = []
        self.compiles = 0
        self._answer_s = answer_s
        self._script: deque[ModelResponse] = deque()
        self._sent: list[Sequence[ModelMessage]] = []
        self._added: Sequence[ModelMessage] = ()
        self._agent: Agent[None, Any] = Agent(
            FunctionModel(self._answer),
            capabilities=list(capabilities),
            output_type=Reply if scenario == "output" else str,
            tools=[look_up] if scenario.startswith("tool") else (),
            model_settings=SETTINGS,
        )

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        await asyncio.sleep(self._answer_s)
        self._sent.append(list(messages))
        spent = RequestUsage(input_tokens=price(messages), output_tokens=1)
        return replace(self._script.popleft(), usage=spent)

    def start(self, history: Sequence[ModelMessage]) -> None:
        """Continue from a stored history."""
        self.stored = list(history)

    async def turn(self, prompt: ModelRequest, script: Sequence[ModelMessage]) -> list[Sequence[ModelMessage]]:
        """Run the agent once; its tool results are not taken from the script."""
        self._sent, self._script = [], deque(one for one in script if isinstance(one, ModelResponse))
        result = await self._agent.run(message_history=[*self.stored, prompt])
        self.stored = result.all_messages()
        self._added = result.new_messages()
        return self._sent

    def added(self) -> Sequence[ModelMessage]:
        """Return the messages that the last run added."""
        return self._added


class AgentSession:
    """A live agent with capabilities that makes every request in a run of its own, as after a restart."""

    def __init__(self, capabilities: Sequence[Any], *, answer_s: float = 0.0) -> None:
        """Start with an empty history; the model takes `answer_s` seconds for an answer."""
        self.stored: list[ModelMessage] = []
        self._answer_s = answer_s
        self._sent: list[ModelMessage] = []
        self._agent: Agent[None, str] = Agent(
            FunctionModel(self._answer), capabilities=list(capabilities), model_settings=SETTINGS
        )

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        await asyncio.sleep(self._answer_s)
        self._sent = list(messages)
        return ModelResponse(parts=[TextPart("ok")])

    async def request(self, new: Sequence[ModelMessage]) -> Sequence[ModelMessage]:
        """Run the agent on its history and `new`; discard its made-up answer."""
        result = await self._agent.run(message_history=[*self.stored, *new])
        self.stored = result.all_messages()[:-1]
        return self._sent


class SessionLife:
    """A session that runs request by request, with the recorded messages in between."""

    compiles = 0

    def __init__(self, session: Session) -> None:
        """Start with an empty history."""
        self._session = session
        self._new: list[ModelMessage] = []
        self._added: list[ModelMessage] = []

    def start(self, history: Sequence[ModelMessage]) -> None:
        """Continue from a stored history."""
        self._new = list(history)

    async def turn(self, prompt: ModelRequest, script: Sequence[ModelMessage]) -> list[Sequence[ModelMessage]]:
        """Send the requests of a turn."""
        requests: list[Sequence[ModelMessage]] = []
        self._added = []
        self._new = [*self._new, prompt]
        for responses, returned in steps(script):
            requests.append(await self._session.request(self._new))
            self._new = [*(with_usage(one, price(requests[-1])) for one in responses), *returned]
            self._added += self._new
        return requests

    def added(self) -> Sequence[ModelMessage]:
        """Return the messages that the last turn added."""
        return self._added
