"""LlamaIndex's memories: the buffer, and `Memory` without blocks (its blocks need a model or an embedding)."""

from __future__ import annotations

from collections.abc import Sequence

from llama_index.core.llms import ChatMessage
from llama_index.core.memory import ChatMemoryBuffer, Memory
from pydantic_ai.messages import ModelMessage
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.approaches import Approach
from benchmarks.peers.baselines import READER
from benchmarks.peers.parts import Piece, pieces, whole
from context_compiler.middleware.replay import PlainSession

NAME = "piece"


def tokenized(text: str) -> list[int]:
    """Return as many entries as tokens; only their number is used."""
    return [0] * READER.counter.text(text)


def theirs(piece: Piece) -> ChatMessage:
    kwargs: dict[str, object] = {NAME: piece.name}
    if piece.calls:
        kwargs["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.tool, "arguments": call.text}}
            for call in piece.calls
        ]
    if piece.call_id:
        kwargs["tool_call_id"] = piece.call_id
    return ChatMessage(role=piece.role, content=piece.text, additional_kwargs=kwargs)


class MemorySession:
    """Session with `Memory`: new messages are put into it, and its messages are sent."""

    def __init__(self, budget: int) -> None:
        self.stored: list[ModelMessage] = []
        self.engine = create_async_engine("sqlite+aiosqlite:///:memory:")
        self._memory = Memory.from_defaults(
            session_id="one", token_limit=budget, tokenizer_fn=tokenized, async_engine=self.engine
        )

    async def request(self, new: Sequence[ModelMessage]) -> Sequence[ModelMessage]:
        """Put `new` into the memory, and send the messages that it returns."""
        before = len(self.stored)
        self.stored = [*self.stored, *new]
        await self._memory.aput_messages([theirs(piece) for piece in pieces(new, first=before)])
        return ours(self.stored, await self._memory.aget())


async def buffered(messages: list[ModelMessage], budget: int) -> Sequence[ModelMessage]:
    history = [theirs(piece) for piece in pieces(messages)]
    buffer = ChatMemoryBuffer.from_defaults(chat_history=history, token_limit=budget, tokenizer_fn=tokenized)
    return ours(messages, buffer.get())


async def remembered(messages: list[ModelMessage], budget: int) -> Sequence[ModelMessage]:
    session = MemorySession(budget)
    try:
        return await session.request(messages)
    finally:
        await session.engine.dispose()


def ours(messages: Sequence[ModelMessage], kept: Sequence[ChatMessage]) -> Sequence[ModelMessage]:
    return whole(messages, [str(message.additional_kwargs[NAME]) for message in kept])


APPROACHES = (
    Approach(
        name="llamaindex-buffer",
        title="LlamaIndex, `ChatMemoryBuffer`",
        setup="`token_limit=budget`, our tokenizer; counts message contents but not the arguments of tool calls",
        package="llama-index-core",
        view=buffered,
        session=lambda budget: PlainSession(buffered, budget),
    ),
    Approach(
        name="llamaindex-memory",
        title="LlamaIndex, `Memory`",
        setup="`token_limit=budget`, our tokenizer, no blocks; by default its history gets 0.7 of the limit",
        package="llama-index-core",
        view=remembered,
        session=MemorySession,
    ),
)
