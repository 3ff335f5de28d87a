"""Agents to test the test tools with: with the compiler, with a plain history processor, and with none."""

from __future__ import annotations

from typing import Any

from pydantic_ai import Agent
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import ModelMessage

from context_compiler.testing import ContextFailure
from tests.support.agents import compiler
from tests.support.builders import prose

RULE = "Never refund more than 50 euros."


def matters(count: int, words: int = 40, **said: str) -> list[str]:
    """A prompt for each turn; `said_3="…"` begins the prompt of turn 3."""
    turns = range(1, count + 1)
    texts = (f"{said.get(f'said_{turn}', '')} Matter {turn}: {prose(turn, words)}" for turn in turns)
    return [text.strip() for text in texts]


def newest(messages: list[ModelMessage]) -> list[ModelMessage]:
    """The tail of a history, as many applications trim it."""
    return messages[-5:]


def trimming(**given: Any) -> Agent[Any, Any]:
    return Agent(capabilities=[ProcessHistory(newest)], **given)


def compiling(budget: int = 900, *, tools: Any = (), **given: Any) -> Agent[Any, Any]:
    return Agent(tools=tools, capabilities=[compiler(budget=budget, **given)])


def failure(check: Any) -> ContextFailure:
    """The failure that a check raises."""
    try:
        check()
    except ContextFailure as error:
        return error
    raise AssertionError("the check holds")
