"""How much of a long history a request looks at: counted, not timed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.test import TestModel

from context_compiler import ContextCompiler, SQLiteStore
from context_compiler.messages.history import Reader
from context_compiler.record.database import Database

T = TypeVar("T")

TURNS = 400
LONG = 600
"""Characters of a message: with so many, the whole is worked on off the event loop."""


def _history(characters: int) -> list[ModelMessage]:
    texts = [(f"{turn} " * characters)[:characters] for turn in range(TURNS)]
    pairs = ((ModelRequest([UserPromptPart(text)]), ModelResponse([TextPart(text)])) for text in texts)
    return [message for pair in pairs for message in pair]


@pytest.mark.parametrize("characters", [20, LONG])
@pytest.mark.parametrize("budget", [10_000_000, 2_000])
async def test_a_request_reads_each_message_of_a_known_history_once(
    budget: int, characters: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[ModelMessage] = []
    original = Reader.one

    def counted(reader: Reader, message: ModelMessage) -> Any:
        looked.append(message)
        return original(reader, message)

    compiler = ContextCompiler("extractive", budget=budget, model="none", store=tmp_path / "record.db", system=None)
    agent, history = Agent(TestModel(), capabilities=[compiler]), _history(characters)
    await agent.run("first", message_history=history)
    monkeypatch.setattr(Reader, "one", counted)
    await agent.run("second", message_history=history)
    assert len(looked) <= len(history) + 60


async def test_a_run_reads_its_start_state_in_one_job(tmp_path: Path) -> None:
    store, jobs = SQLiteStore(tmp_path / "record.db"), list[object]()
    perform = store.perform

    async def counted(work: Callable[[Database], T]) -> T:
        jobs.append(work)
        return await perform(work)

    store.perform = counted
    compiler = ContextCompiler("extractive", budget=10_000_000, model="none", store=store, system=None)
    agent, history = Agent(TestModel(), capabilities=[compiler]), _history(20)[:8]
    counts: list[int] = []
    for _ in range(2):
        history = (await agent.run("next", message_history=history, conversation_id="talk")).all_messages()
        counts.append(len(jobs))
        jobs.clear()
    assert counts == [4, 3], (
        "the window and the start are read at first; the start, then the request and the answer saved"
    )


async def test_the_messages_left_out_by_a_cycle_are_computed_once_for_all_its_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = ContextCompiler("extractive", budget=2_000, model="none", store=tmp_path / "record.db", system=None)
    agent, history = Agent(TestModel(), capabilities=[compiler]), _history(20)
    first = await agent.run("first", message_history=history)
    assert compiler.last_view is not None and compiler.last_view.drops
    drops = compiler.last_view.drops

    def again(*_: Any) -> None:
        raise AssertionError("worked out again")

    monkeypatch.setattr("context_compiler.middleware.breakdown.cycle_drops", again)
    await agent.run("second", message_history=first.all_messages())
    assert compiler.last_view.drops == drops and compiler.last_view.status == "cycle"
