"""A conversation with an agent that has tools, turn by turn, and what was seen of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.usage import UsageLimits

from context_compiler import View
from context_compiler.messages.items import separate_parts
from tests.support.agents import Notes, Sent, Talker, compiler, run, unstamped
from tests.support.histories import prose

BUDGET = 3_000
RECALLED = "BEGIN RECALLED"
NO_LIMIT = UsageLimits(request_limit=None)


def look(path: str) -> str:
    return prose(len(path) * 31 + sum(map(ord, path)), 60)


class Chat:
    """A conversation of many turns on one agent, and everything that was sent and seen in it."""

    def __init__(self, *, steps: int = 1, words: int = 40, notes: Notes | None = None, **wanted: Any) -> None:
        self.steps, self.words = steps, words
        self.talker, self.notes = Talker(self._answer), notes or Notes()
        self.views: list[View] = []
        self.errors: list[Exception] = []
        wanted = {
            "budget": BUDGET,
            "trigger": 1.0,
            "on_view": self.views.append,
            "on_error": self.errors.append,
            **wanted,
        }
        self.ours = compiler(self.notes, **wanted)
        self.agent = Agent(self.talker.model, tools=[look], capabilities=[self.ours], instructions="Be brief.")
        self.messages: list[ModelMessage] = []
        self._left = 0

    def _answer(self, messages: Any, info: Any) -> Any:
        self._left -= 1
        number = len(self.talker.sent)
        if self._left >= 0:
            return [("look", {"path": f"src/file_{number}.py"})]
        return prose(number, self.words)

    async def turn(self, number: int, history: list[ModelMessage] | None = None, **options: Any) -> None:
        self._left = self.steps
        prompt = f"Question {number}: {prose(number + 1_000, self.words)}"
        history = self.messages if history is None else history
        self.messages = (
            await run(self.agent, prompt, message_history=history, usage_limits=NO_LIMIT, **options)
        ).messages

    async def turns(self, count: int) -> None:
        for number in range(count):
            asked = self.notes.asked
            await self.turn(number)
            assert self.notes.asked <= asked + 1, f"turn {number} asked for notes more than once"

    @property
    def statuses(self) -> list[str]:
        return [view.status for view in self.views]


def extends(earlier: Sent, later: Sent) -> bool:
    """Whether a request goes on where the one before ended; at a user turn its recalled text may have gone."""
    before, after = unstamped(earlier.messages), unstamped(later.messages)
    if later.instructions != earlier.instructions:
        return False
    if after[: len(before)] == before:
        return True
    opens = any(part.part_kind == "user-prompt" for part in later.messages[-1].parts)
    gone = unstamped(without_blocks(earlier.messages))
    return opens and unstamped(without_blocks(later.messages))[: len(gone)] == gone


def without_blocks(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    """Messages without what was recalled."""
    return [
        replace(message, parts=[part for part in separate_parts(message) if RECALLED not in str(part)])  # pyright: ignore[reportArgumentType]
        for message in messages
    ]
