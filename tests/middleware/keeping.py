"""A conversation whose record is kept in a file, for tests."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage

from context_compiler.record.values import Compile, Record
from tests.support.agents import Notes, Talker, compiler, run
from tests.support.histories import prose

BUDGET = 3_000
SECRET = "sk-live-4711-TOPSECRET"


def look(path: str) -> str:
    return prose(len(path), 30)


class Kept:
    """One agent that records into a file, and the file."""

    def __init__(self, folder: Path, notes: Notes | None = None, **wanted: Any) -> None:
        self.file = folder / "record.db"
        self.notes = notes or Notes()
        self.talker = Talker(lambda messages, info: [("look", {"path": "a"})] if len(self.talker.sent) % 2 else "done")
        self.ours = compiler(self.notes, **{"budget": BUDGET, "store": self.file, **wanted})
        self.agent = Agent(self.talker.model, tools=[look], capabilities=[self.ours], instructions="Be brief.")
        self.messages: list[ModelMessage] = []

    async def turn(self, prompt: str = "and now?", history: Any = None, **given: Any) -> None:
        history = self.messages if history is None else history
        self.messages = (await run(self.agent, prompt, message_history=history, **given)).messages

    async def records(self) -> list[Record]:
        return (await self.ours.views())[::-1]


def unexplained(row: Record | Compile) -> list[str]:
    """Columns that are empty although the status does not say why."""
    names = [field.name for field in dataclasses.fields(row) if field.name not in ("id", "compile")]
    return [name for name in names if getattr(row, name) is None and not re.search(rf"\b{name}\b", row.status)]
