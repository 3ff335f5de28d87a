"""A record that real agents left, and the application over a copy of it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo
from starlette.testclient import TestClient

from context_compiler import ContextCompiler
from context_compiler.web.app import create_app
from tests.support.agents import Notes, Step, Talker

FACT = "ORCHID-7731"
"""Told in the second turn of the long session."""

HOSTILE = '<script>alert("x")</script>'

TURNS = 24


def _answer(messages: list[ModelMessage], info: AgentInfo) -> Step:
    last = messages[-1].parts[-1]
    if last.part_kind == "user-prompt" and "file" in str(last.content) and info.function_tools:
        return [("read_file", {"path": f"src/module_{len(messages)}.py"})]
    return f"Answer {len(messages)}: the build is green and module {len(messages)} is done. " * 3


def read_file(path: str) -> str:
    return "\n".join(f"{path}:{number} def function_{number}(): return {number}" for number in range(12))


def prompts() -> list[str]:
    said = [f"Turn {number}: read the next file and say what module {number} does." for number in range(TURNS)]
    said[1] = f"Remember that the release code is {FACT}, and never deploy without my yes."
    said[5] = f"Look at {HOSTILE} and <img src=x onerror=alert(1)> in the page."
    said[-1] = "What was the release code again?"
    return said


async def _record(db: Path) -> None:
    notes = Notes("- **Goal**: finish the modules.\n- the release code is known.")
    talker = Talker(_answer)
    compiler = ContextCompiler(model=notes.model, store=db, system=None, budget=2_000, record_timeout=60)
    agent = Agent(talker.model, tools=[read_file], capabilities=[compiler], instructions="Answer briefly.")
    history: list[ModelMessage] = []
    for prompt in prompts():
        result = await agent.run(prompt, message_history=history, conversation_id="long")
        history = result.all_messages()
    for name in (HOSTILE, "../../etc/passwd?x=1#y", "\u202eesrever"):
        short: Agent[None, Any] = Agent(Talker().model, capabilities=[compiler])
        await short.run(f"hello {HOSTILE}", conversation_id=name)
    bare = ContextCompiler(model="none", store=db, system=None, record="metadata", budget=2_000, record_timeout=60)
    await Agent(Talker().model, capabilities=[bare]).run("secret words", conversation_id="bare")


RULE = "Never order anything above 400 euros without asking me."

ROOMS = ("kitchen", "hall", "attic", "cellar", "pantry", "study", "bathroom", "bedroom", "porch", "stairs")


def talk(db: Path, said: Iterable[str], **settings: Any) -> None:
    """Record a session, `talk`, of some prompts and their answers."""

    async def run() -> None:
        compiler = ContextCompiler(model="none", store=db, system=None, record_timeout=60, **settings)
        talker = Talker(lambda messages, info: f"Noted as item {len(messages)}, and the tiles fit. " * 3)
        agent = Agent(talker.model, capabilities=[compiler])
        history: list[ModelMessage] = []
        for prompt in said:
            history = (await agent.run(prompt, message_history=history, conversation_id="talk")).all_messages()
        await compiler.aclose()

    asyncio.run(run())


def renovation(*before: str) -> list[str]:
    """Prompts about the rooms of a house, after some others."""
    rooms = (
        f"Next is the {room}: tiles from Holzhof Brandt, order AB-{4100 + n}, 1 June." for n, room in enumerate(ROOMS)
    )
    return [*before, *rooms]


@contextmanager
def pages_of(db: Path, said: Iterable[str], **settings: Any) -> Generator[TestClient]:
    """The pages of a record of one session, `talk`."""
    talk(db, said, **settings)
    with TestClient(create_app(db, system=None), base_url="http://127.0.0.1") as made:
        yield made


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record of one long session, three with hostile names, and one without content."""
    db = tmp_path_factory.mktemp("web") / "context.db"
    asyncio.run(_record(db))
    return db


@pytest.fixture
def db(recorded: Path, tmp_path: Path) -> Path:
    """A copy of that record."""
    path = tmp_path / "context.db"
    with closing(sqlite3.connect(recorded)) as source, closing(sqlite3.connect(path)) as copy:
        source.backup(copy)  # a connection that is closed meanwhile removes files beside it
    return path


@pytest.fixture
def client(db: Path) -> Iterator[TestClient]:
    """A browser without a screen on the application of that record."""
    with TestClient(create_app(db, system=None), base_url="http://127.0.0.1") as made:
        yield made


def number_of(client: TestClient, session: str) -> int:
    """Number of a session by its name."""
    found = client.get("/api/sessions", params={"name": session}).json()["sessions"]
    return next(one["id"] for one in found if one["session_id"] == session)


def requests_of(client: TestClient, session: str) -> list[dict[str, Any]]:
    """All requests of a session, oldest first."""
    requests: list[dict[str, Any]] = []
    number, page = number_of(client, session), 1
    while True:
        answer = client.get(f"/api/sessions/{number}", params={"page": page}).json()
        requests += answer["requests"]
        if len(requests) >= answer["pages"]["total"]:
            return requests[::-1]
        page += 1
