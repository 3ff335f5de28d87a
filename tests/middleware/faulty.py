"""One agent with a compiler, a long history, and everything that was heard of failures."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, Tool

from context_compiler import View
from tests.support.agents import Notes, Talker, compiler, run
from tests.support.histories import long_history, prose

BUDGET = 3_000


HOLD = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None); db.execute('BEGIN IMMEDIATE');"
PROGRAM = f"{HOLD} print(flush=True); sys.stdin.read()"


def locked(file: Path) -> Callable[[], None]:
    """Let another process write to a file, until what is returned is called."""
    other = subprocess.Popen([sys.executable, "-c", PROGRAM, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout is not None
    other.stdout.readline()

    def release() -> None:
        other.communicate()

    return release


def look(path: str) -> str:
    return prose(len(path), 30)


@cache
def look_tool() -> Tool[Any]:
    """A tool for all agents; making the schema of its arguments takes as long as a request."""
    return Tool(look)


class Faulty:
    """One agent, a long history, and everything that was heard of failures."""

    def __init__(self, notes: Notes | None = None, script: Any = "done", **wanted: Any) -> None:
        self.errors: list[Exception] = []
        self.views: list[View] = []
        self.talker = Talker(script)
        base = {"budget": BUDGET, "on_error": self.errors.append, "on_view": self.views.append, "record_timeout": None}
        self.ours = compiler(notes, **{**base, **wanted})
        self.agent = Agent(self.talker.model, tools=[look_tool()], capabilities=[self.ours])
        self.history = long_history(40)

    async def ask(self, prompt: str = "and now?", **given: Any) -> Any:
        given = {"message_history": self.history, **given}
        self.done = await run(self.agent, prompt, **given)
        return self.done

    @property
    def kinds(self) -> list[str]:
        return [type(error).__name__ for error in self.errors]

    @property
    def statuses(self) -> list[str]:
        return [view.status for view in self.views]
