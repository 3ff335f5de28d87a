"""LangChain's `trim_messages`, set up as its documentation recommends for chat models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage, trim_messages
from pydantic_ai.messages import ModelMessage

from benchmarks.approaches import Approach
from benchmarks.peers.parts import Piece, pieces, whole
from context_compiler.messages.items import parse_arguments
from context_compiler.middleware.replay import PlainSession

TOKENS = "tokens"


def theirs(piece: Piece) -> BaseMessage:
    more: dict[str, Any] = {"id": piece.name, "additional_kwargs": {TOKENS: piece.tokens}}
    if piece.role == "system":
        return SystemMessage(piece.text, **more)
    if piece.role == "tool":
        return ToolMessage(piece.text, tool_call_id=piece.call_id, **more)
    if piece.role == "user":
        return HumanMessage(piece.text, **more)
    calls = [
        {"name": call.tool or "", "args": parse_arguments(call.text) or {}, "id": call.call_id, "type": "tool_call"}
        for call in piece.calls
    ]
    return AIMessage(piece.text, tool_calls=calls, **more)


def counted(messages: list[BaseMessage]) -> int:
    return sum(message.additional_kwargs[TOKENS] for message in messages)


async def trimmed(messages: list[ModelMessage], budget: int) -> Sequence[ModelMessage]:
    kept = trim_messages(
        [theirs(piece) for piece in pieces(messages)],
        max_tokens=budget,
        token_counter=counted,
        strategy="last",
        start_on="human",
        end_on=("human", "tool"),
        include_system=True,
    )
    return whole(messages, [message.id or "" for message in kept])


APPROACHES = (
    Approach(
        name="langchain-trim",
        title="LangChain, `trim_messages`",
        setup='`strategy="last", start_on="human", end_on=("human", "tool"), include_system=True`',
        package="langchain-core",
        view=trimmed,
        session=lambda budget: PlainSession(trimmed, budget),
    ),
)
