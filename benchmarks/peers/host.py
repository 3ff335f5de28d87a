"""The host with a history processor that does nothing: it sends everything, after the host's own repairs."""

from __future__ import annotations

from typing import Any

from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import ModelMessage

from benchmarks.approaches import Approach, attached
from context_compiler.middleware.replay import LiveSession


def same(messages: list[ModelMessage]) -> list[ModelMessage]:
    return messages


def processing(budget: int) -> list[Any]:
    return [ProcessHistory(same)]


APPROACHES = (
    Approach(
        name="host",
        title="Pydantic AI, everything",
        setup="`ProcessHistory` with a function that returns its input",
        package="pydantic-ai-slim",
        view=attached(processing),
        session=lambda budget: LiveSession(processing(budget)),
    ),
)
