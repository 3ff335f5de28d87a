"""Passages of a history, and prompts and answers of one day in May."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart

from context_compiler.messages.history import Reader
from context_compiler.messages.turns import outline, pair
from context_compiler.recall.passages import Passage, passages
from context_compiler.tokens import TokenCounter

COUNTER = TokenCounter()
MAY = datetime(2024, 5, 15, 9, tzinfo=UTC)


def all_of(messages: Sequence[ModelMessage], counter: TokenCounter = COUNTER) -> tuple[Passage, ...]:
    history = Reader(counter).read(messages)
    return passages(history, outline(history, pair(history)), range(len(history)), counter)


def asked(text: str, when: datetime = MAY) -> ModelRequest:
    return ModelRequest(parts=[UserPromptPart(content=text, timestamp=when)], timestamp=when)


def replied(text: str, when: datetime = MAY) -> ModelResponse:
    return ModelResponse(parts=[TextPart(content=text)], timestamp=when)
