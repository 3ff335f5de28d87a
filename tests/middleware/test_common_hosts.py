"""Common ways of using a host keep their few compiles, and a fact from the beginning is found when asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import BinaryContent, ModelMessage, ModelMessagesTypeAdapter
from pydantic_ai.models.wrapper import WrapperModel

from context_compiler import ContextCompiler, View
from tests.support.agents import Notes, Talker, compiler, run
from tests.support.builders import prose

BUDGET, TURNS = 4_000, 50
FACT = "By the way, the staging database is called heron."
ASK = "What is the staging database called?"


class Told(BaseModel):
    text: str


class Life:
    """A conversation of many turns in which a fact is told early and asked for at the end."""

    def __init__(self, **wanted: Any) -> None:
        self.notes, self.talker, self.seen = Notes("All went on as planned."), Talker("answer " * 60), 0
        self.ours: ContextCompiler = compiler(self.notes, budget=BUDGET, **wanted)
        self.agent: Agent[Any, Any] = Agent(self.talker.model, capabilities=[self.ours])
        self.history: list[ModelMessage] = []

    async def live(self, carry: Callable[[list[ModelMessage]], list[ModelMessage]], **given: Any) -> None:
        for number in range(TURNS):
            told = f"{FACT} " if number == 3 else ""
            await self.turn(f"{told}Matter {number}: {prose(number, 40)}", carry, **given)
        await self.turn(ASK, carry, **given)
        assert "heron" in self.talker.last.text
        assert max(sent.tokens for sent in self.talker.sent) <= BUDGET

    async def turn(self, prompt: Any, carry: Callable[[list[ModelMessage]], list[ModelMessage]], **given: Any) -> None:
        ran = await run(self.agent, prompt, message_history=carry(self.history), conversation_id="c", **given)
        self.history = ran.messages


class Windowed(WrapperModel):
    """A model whose context window is known."""

    def __init__(self, wrapped: Any, window: int) -> None:
        super().__init__(wrapped)
        self._window = window

    @property
    def context_window(self) -> int:
        return self._window


def whole(history: list[ModelMessage]) -> list[ModelMessage]:
    return history


def window(history: list[ModelMessage]) -> list[ModelMessage]:
    return history[-21:]


def rebuilt(history: list[ModelMessage]) -> list[ModelMessage]:
    """As a front end would give it back: new objects, without times and ids."""
    data = ModelMessagesTypeAdapter.dump_python(history, mode="json")
    for message in data:
        for key in ("timestamp", "run_id", "conversation_id", "provider_response_id", "metadata"):
            message.pop(key, None)
        for part in message["parts"]:
            part.pop("timestamp", None)
    return ModelMessagesTypeAdapter.validate_python(data)


_plain: list[int] = []


@pytest.fixture
async def plain() -> int:
    """Summaries of the plain session, which is lived once."""
    if not _plain:
        life = Life()
        await life.live(whole)
        _plain.append(life.notes.asked)
    return _plain[0]


async def test_a_dynamic_system_prompt_is_no_other_conversation(plain: int) -> None:
    life = Life()

    @life.agent.system_prompt(dynamic=True)
    def now(ctx: RunContext[Any]) -> str:
        life.seen += 1
        return f"You are kind. The time is {life.seen}."

    await life.live(whole)
    assert life.notes.asked <= plain + 2
    assert f"The time is {life.seen}." in life.talker.last.text, "it is sent as it is now"


async def test_a_window_of_a_known_conversation_is_joined_with_the_record(plain: int, tmp_path: Path) -> None:
    life = Life(store=tmp_path / "record.db")
    await life.live(window)
    assert life.notes.asked <= plain + 2
    record = (await life.ours.views("c"))[0]
    assert "joined with" in record.status
    assert len(await life.ours.transcript("c")) == 2 * (TURNS + 1)
    again = Life(store=tmp_path / "record.db")
    again.history = life.history
    await again.turn("And what did I say it was called, the staging database?", window)
    assert again.notes.asked == 0 and FACT in again.talker.last.text, "another process knows it too"


async def test_a_window_without_a_name_of_its_own_is_taken_as_it_is(tmp_path: Path) -> None:
    life = Life(store=tmp_path / "record.db")
    for number in range(30):
        ran = await run(life.agent, f"{number} {FACT if number == 1 else ''}", message_history=life.history[-6:])
        life.history = ran.messages
    assert "heron" not in life.talker.last.text


@pytest.mark.parametrize("budget", [2_000, 6_000])
async def test_a_prompt_larger_than_the_budget_leaves_room_for_the_past(budget: int) -> None:
    life = Life()
    for number in range(20):
        await life.turn(f"{FACT if number == 3 else ''} Matter {number}: {prose(number, 40)}", whole)
    talker = Talker("Found.")
    agent = Agent(talker.model, capabilities=[compiler(budget=budget)])
    listing = "\n".join(f"./src/part_{number}/file_{number}.py" for number in range(3_000))
    await run(agent, f"{ASK} Here is the listing:\n{listing}", message_history=life.history)
    assert "heron" in talker.last.text and "file_2999" in talker.last.text
    assert 0.75 * budget <= talker.last.tokens <= budget


async def test_histories_that_a_front_end_rebuilds_keep_their_cycle(plain: int) -> None:
    life = Life()
    await life.live(rebuilt)
    assert life.notes.asked <= plain + 2


async def test_structured_answers_are_no_tool_work(plain: int) -> None:
    life = Life()
    life.talker = Talker(lambda messages, info: [("final_result", {"text": "answer " * 60})])
    life.agent = Agent(life.talker.model, capabilities=[life.ours], output_type=Told)
    await life.live(whole)
    assert life.notes.asked <= plain + 2


async def test_a_picture_alone_asks_nothing_and_costs_no_run() -> None:
    life = Life()
    for number in range(30):
        await life.turn(f"Matter {number}: {prose(number, 40)}", whole)
    await life.turn([BinaryContent(data=b"\x89PNG\r\n\x1a\n", media_type="image/png")], whole)
    assert life.talker.last.text.count("BEGIN RECALLED") == 0


async def test_two_agents_in_turn_on_one_history(plain: int) -> None:
    life = Life()
    other = Agent(life.talker.model, capabilities=[life.ours], instructions="Be brief.")
    agents = [life.agent, other]
    for number in range(TURNS):
        life.agent = agents[number % 2]
        await life.turn(f"{FACT if number == 3 else ''} Matter {number}: {prose(number, 40)}", whole)
    await life.turn(ASK, whole)
    assert "heron" in life.talker.last.text and life.notes.asked <= plain + 2


@pytest.mark.parametrize("cached", [True, False])
async def test_where_messages_are_cached_at_breakpoints_the_notes_end_with_one(cached: bool) -> None:
    life = Life()
    settings: Any = {"anthropic_cache_messages": cached}
    for number in range(30):
        await life.turn(f"Matter {number}: {prose(number, 40)}", whole, model_settings=settings)
    points = [message for message in life.talker.last.messages if "CachePoint" in str(message)]
    assert len(points) == cached
    assert not cached or "BEGIN QUOTED" in str(points[0])


async def test_a_fallback_with_a_small_window_has_cycles_of_its_own() -> None:
    """It compiles as often as it does alone, and the large model still sees everything."""

    async def lived(windows: list[int]) -> tuple[int, list[str]]:
        views: list[View] = []
        notes, talker = Notes("All went on as planned."), Talker("answer " * 60)
        ours = compiler(notes, budget=None, on_view=views.append)
        models = [Windowed(talker.model, window) for window in windows]
        agent, history = Agent(models[0], capabilities=[ours]), list[ModelMessage]()
        for number in range(40):
            model = models[number % len(models)]
            ran = await run(
                agent,
                f"Matter {number}: {prose(number, 40)}",
                message_history=history,
                model=model,
                conversation_id="c",
            )
            history = ran.messages
        small = [view.status for number, view in enumerate(views) if windows[number % len(windows)] == 5_000]
        assert {view.status for number, view in enumerate(views) if windows[number % len(windows)] > 5_000} <= {"raw"}
        return notes.asked, small

    asked, both = await lived([100_000, 5_000])
    alone, statuses = await lived([5_000])
    assert asked <= alone and both.count("compiled") <= statuses.count("compiled")


async def test_a_prompt_that_is_regenerated_keeps_the_cycle(plain: int) -> None:
    life = Life()
    for number in range(TURNS):
        before = life.history
        await life.turn(f"{FACT if number == 3 else ''} Matter {number}: {prose(number, 40)}", whole)
        if number % 5 == 4:
            life.history = before
            await life.turn(f"Matter {number}, said otherwise: {prose(number + 500, 40)}", whole)
    await life.turn(ASK, whole)
    assert "heron" in life.talker.last.text and life.notes.asked <= plain + 2
