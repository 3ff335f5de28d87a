"""A long conversation: what it takes to answer is made while somebody types, and not once more when it is needed."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart

from context_compiler import SQLiteStore
from context_compiler.messages.history import Reader
from context_compiler.tokens import TokenCounter
from tests.support.warm import python

MESSAGES = 2_000
ROOT = Path(__file__).parents[2]
ONE_ANSWER = """
import asyncio, json, sys, time
from pydantic_ai import Agent
from context_compiler.chat import ChatSession, ScriptedModel

async def main():
    chat = ChatSession(Agent(ScriptedModel(0)), endless=True, budget=4_000)
    await chat.open()
    began = time.process_time()
    if sys.argv[1] == "ready":
        await chat.storage.ready()
    made = time.process_time() - began
    began = time.process_time()
    said = await chat.say("What about service 3?")
    first = time.process_time() - began
    await chat.close()
    print(json.dumps({"status": said.view.status, "made": made, "first": first}))

asyncio.run(main())
"""


def conversation() -> list[ModelMessage]:
    made: list[ModelMessage] = []
    for number in range(MESSAGES // 2):
        asked = f"Question {number} about service {number % 17}: why does its deploy fail at step {number % 9}? " * 3
        made.append(ModelRequest(parts=[UserPromptPart(asked, timestamp=datetime(2026, 1, 1, tzinfo=UTC))]))
        made.append(ModelResponse(parts=[TextPart(f"Answer {number}: the lock of job {number * 7} is held. " * 6)]))
    return made


def one_answer(folder: Path, when: str) -> dict[str, Any]:
    """Answer once in a process of its own, at once or when what the answer needs is ready."""
    done = subprocess.run(
        [python(), "-c", ONE_ANSWER, when],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
    )
    return json.loads(done.stdout)


async def test_the_first_answer_of_a_process_does_not_wait_for_old_turns_to_be_read(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "system" / "context.db")
    await store.archive("main", "", Reader(TokenCounter(len)).read(conversation()).chain)
    await store.close()
    assert one_answer(tmp_path, "ready")["status"] == "compiled"
    ready, hasty = one_answer(tmp_path, "ready"), one_answer(tmp_path, "at once")
    assert ready["status"] == hasty["status"] == "cycle"
    assert ready["first"] < hasty["first"] - ready["made"] / 2, "the history was read or made searchable again"
