"""Chats to test with: a clock that stands, models that say what is wanted, and a room of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler.chat import ChatSession

NOON = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
NOTES = "Notes: the port is 8081."


@dataclass
class Model:
    """Answers with words one after the other; remembers what it was sent."""

    answer: Callable[[str], str] = lambda prompt: f"You said: {prompt[:40]}"
    pause: float = 0.0
    sent: list[list[ModelMessage]] = field(default_factory=list[list[ModelMessage]])
    compiles: list[str] = field(default_factory=list[str])

    def model(self) -> FunctionModel:
        async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
            self.sent.append(list(messages))
            for word in self.answer(last_text(messages)).split(" "):
                yield f"{word} "
                await asyncio.sleep(self.pause)

        def whole(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            self.compiles.append(last_text(messages))
            return ModelResponse(parts=[TextPart(NOTES)])

        return FunctionModel(whole, stream_function=stream, model_name="told")


def last_text(messages: list[ModelMessage]) -> str:
    return str(messages[-1].parts[-1].content)  # pyright: ignore[reportAttributeAccessIssue]


@dataclass
class Room:
    """A folder with everything that chats leave behind, and what they had to say to a person."""

    path: Path
    notices: list[str] = field(default_factory=list[str])

    def chat(self, who: Model | FunctionModel, session: str = "talk", **more: Any) -> ChatSession:
        agent = Agent(who.model() if isinstance(who, Model) else who)
        defaults: dict[str, Any] = {
            "folder": self.path / "Chat_Sessions",
            "store": self.path / "context.db",
            "system": self.path / "system",
            "notice": self.notices.append,
            "clock": lambda: NOON,
            "budget": 1_500,
        }
        return ChatSession(agent, session, **{**defaults, **more})

    def transcript(self, session: str = "talk") -> str:
        return (self.path / "Chat_Sessions" / f"{session}.md").read_text(encoding="utf-8")


def texts(messages: list[ModelMessage]) -> list[str]:
    """What is said in a history, part by part."""
    return [str(getattr(part, "content", "")) for message in messages for part in message.parts]
