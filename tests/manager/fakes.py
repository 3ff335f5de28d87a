"""A manager with nothing around it, and memories that fail on request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage

from context_compiler.manager import ContextConfig, ContextManager, Match, Snapshot, VolatileMemory
from tests.support.builders import texts_of


class Scribe:
    """An LLM that answers `text`, or raises it, and keeps every prompt."""

    def __init__(self, text: str | Exception | Callable[[int], str] = "They talked about the move.") -> None:
        self.text: Any = text
        self.prompts: list[str] = []

    async def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        if isinstance(self.text, Exception):
            raise self.text
        return self.text(len(self.prompts)) if callable(self.text) else self.text

    @property
    def asked(self) -> int:
        return len(self.prompts)


class Fragile(VolatileMemory):
    """A memory whose methods fail when they are named in `down`."""

    def __init__(self, *down: str) -> None:
        super().__init__()
        self.down = set(down)
        self.calls: list[str] = []

    def _tried(self, name: str) -> None:
        self.calls.append(name)
        if name in self.down:
            raise ConnectionError(f"{name} is down")

    async def search(self, query: str, limit: int) -> list[Match]:
        self._tried("search")
        return await super().search(query, limit)

    async def remember(self, text: str) -> str:
        self._tried("remember")
        return await super().remember(text)

    async def commit(self, message: str, author: str = "context-manager", session: Snapshot | None = None) -> str:
        self._tried("commit")
        return await super().commit(message, author, session)

    async def checkout(self, commit: str) -> None:
        self._tried("checkout")
        await super().checkout(commit)


def managed(llm: object = None, memory: Any = None, versioned: bool = True, **options: Any) -> ContextManager:
    """A manager over one memory; what is no setting goes to the manager itself."""
    own = {name: options.pop(name) for name in ("system_prompt", "scorer", "on_error", "session_id") if name in options}
    memory = memory if memory is not None else VolatileMemory()
    llm = Scribe() if llm is None else llm
    config = ContextConfig(**options)
    if versioned:
        return ContextManager.with_versioning(memory, memory, llm, config, **own)
    return ContextManager(memory, llm, config, **own)


async def talk(manager: ContextManager, turns: int, start: int = 0, words: int = 20) -> None:
    """Whole turns, each of about twice as many words."""
    for number in range(start, start + turns):
        await manager.process_turn(f"question {number} " + "why " * words)
        assert manager.add_response(f"answer {number} " + "because " * words)


def said(messages: Sequence[ModelMessage]) -> list[str]:
    """Every text, message by message."""
    return [" ".join(text for part in message.parts for text in texts_of(part)) for message in messages]
