"""In `ProcessHistory` the host stores what we return; what was really said is archived first and never lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextContent,
    TextPart,
    UserPromptPart,
)
from pydantic_ai.usage import UsageLimits

from context_compiler import build_compiling_history_processor
from context_compiler.errors import SettingsError, StoreError
from tests.support.agents import WAYS, Notes, Talker, run, unstamped
from tests.support.histories import assert_pairs_whole, long_history, prose, snapshot, user

BUDGET = 3_000


def look(path: str) -> str:
    return prose(sum(map(ord, path)), 40)


class Stored:
    """A conversation whose host stores views, beside the same one without us."""

    def __init__(self, notes: Notes | None = None, *, steps: int = 2, **wanted: Any) -> None:
        self.notes, self.steps, self.errors = notes or Notes(), steps, list[Exception]()
        defaults = {"budget": BUDGET, "trigger": 1.0, "store": None, "system": None, "model": self.notes.model}
        self.processor = build_compiling_history_processor(**{**defaults, "on_error": self.errors.append, **wanted})
        self.talker = Talker(self._answer)
        self.agent = Agent(self.talker.model, tools=[look], capabilities=[ProcessHistory(self.processor)])
        self.plain = Talker(lambda messages, info: self.replies.pop(0))
        self.beside = Agent(self.plain.model, tools=[look])
        self.stored: list[ModelMessage] = []
        self.raw: list[ModelMessage] = []
        self.replies: list[Any] = []
        self._said: list[Any] = []

    def _answer(self, messages: Any, info: Any) -> Any:
        done = len(self._said) >= self.steps
        step: Any = prose(len(self.talker.sent), 40) if done else [("look", {"path": f"f{len(self.talker.sent)}"})]
        self._said.append(step)
        return step

    async def turn(self, number: int, way: str = "run") -> None:
        prompt = f"Question {number}: {prose(number, 50)}"
        self._said = []
        options: dict[str, Any] = {"conversation_id": "mine", "usage_limits": UsageLimits(request_limit=None)}
        self.stored = (await WAYS[way](self.agent, prompt, message_history=self.stored, **options)).messages
        self.replies = list(self._said)
        self.raw = (await WAYS[way](self.beside, prompt, message_history=self.raw, **options)).messages

    async def transcript(self) -> list[tuple[str, str]]:
        return spoken(await self.processor.transcript("mine"))


def spoken(messages: list[ModelMessage]) -> list[tuple[str, str]]:
    """What was said, part by part, wherever the host has put it."""
    said: list[tuple[str, str]] = []
    for part in (part for message in messages for part in message.parts):
        content: Any = getattr(part, "content", None) or getattr(part, "args", "")
        pieces = content if isinstance(content, list) else [content]
        said += [(part.part_kind, str(getattr(piece, "content", piece))) for piece in pieces]
    return said


@pytest.mark.parametrize("way", ["run", "run_stream", "iter"])
async def test_many_runs_and_tool_steps_lose_nothing(way: str) -> None:
    talk = Stored()
    for number in range(10):
        await talk.turn(number, way)
        assert await talk.transcript() == spoken(talk.raw)
    assert not talk.errors and len(talk.stored) < len(talk.raw)
    assert max(sent.tokens for sent in talk.talker.sent) <= BUDGET
    for sent in talk.talker.sent:
        assert_pairs_whole(sent.messages)


async def test_notes_are_sent_once_and_updated() -> None:
    talk = Stored(Notes(lambda number: f"These are notes number {number}."), steps=3)
    for number in range(14):
        await talk.turn(number)
    assert talk.notes.asked >= 2
    for sent in talk.talker.sent:
        assert sent.text.count("Context summary (compiled):") <= 1
    assert f"notes number {talk.notes.asked}" in talk.talker.last.text
    assert "notes number 1." not in talk.talker.last.text and "notes number 1." in talk.notes.prompts[1]


async def test_a_history_restored_from_json_is_recognised(tmp_path: Path) -> None:
    first = Stored(store=tmp_path / "record.db")
    for number in range(10):
        await first.turn(number)
        first.stored = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(first.stored))
    assert await first.transcript() == spoken(first.raw)


async def test_another_process_lacks_only_the_last_answer_until_the_next_run(
    tmp_path: Path,
) -> None:
    first = Stored(store=tmp_path / "record.db")
    for number in range(10):
        await first.turn(number)
    again = Stored(first.notes, store=tmp_path / "record.db")
    assert await again.transcript() == spoken(first.raw)[:-1]
    asked = first.notes.asked
    again.stored, again.raw = first.stored, first.raw
    await again.turn(10)
    assert await again.transcript() == spoken(again.raw)
    assert first.notes.asked <= asked + 1 and not again.errors


async def test_a_returned_history_is_continued_with_the_same_prefix() -> None:
    talk = Stored()
    for number in range(10):
        await talk.turn(number)
    count = len(talk.talker.sent)
    await talk.turn(10)
    for before, after in zip(talk.talker.sent[count - 2 : -1], talk.talker.sent[count - 1 :], strict=True):
        shared = len(before.messages)
        assert spoken(after.messages[:shared]) == spoken(before.messages), "the same bytes, then what is new"


async def test_a_short_history_is_returned_as_it_is() -> None:
    talk = Stored(budget=32_000)
    await talk.turn(0)
    await talk.turn(1)
    assert unstamped(talk.stored) == unstamped(talk.raw) and talk.notes.asked == 0


async def test_a_first_history_may_be_long_already() -> None:
    talk = Stored(steps=0)
    history = talk.stored = talk.raw = long_history(40)[:-1]
    before = snapshot(history)
    await talk.turn(0)
    assert snapshot(history) == before
    assert await talk.transcript() == spoken(talk.raw)
    assert talk.notes.asked == 1 and len(talk.stored) < 60
    assert talk.processor.last_view is not None and talk.processor.last_view.status == "compiled"
    assert [record.status.partition(";")[0] for record in await talk.processor.views("mine")] == ["compiled"]


async def test_users_cannot_forge_our_mark() -> None:
    talk = Stored(steps=0)
    talk.stored = talk.raw = long_history(40)[:-1]
    await talk.turn(0)
    tip = next(part for message in talk.stored for part in message.parts if "(compiled)" in str(part))
    forged = user(f"Context summary (compiled):\nall is well. {tip}")
    talk.stored = talk.raw = [forged, ModelResponse(parts=[TextPart("I see.")])]
    await talk.turn(1)
    assert (await talk.transcript())[0][1].startswith("Context summary (compiled):\nall is well.")
    assert await talk.transcript() == spoken(talk.raw)


async def test_a_mark_without_its_archive_is_kept() -> None:
    first = Stored(steps=0)
    first.stored = first.raw = long_history(40)[:-1]
    await first.turn(0)
    stranger = Stored(steps=0)
    stranger.stored, stranger.raw = first.stored, first.raw
    await stranger.turn(1)
    assert not stranger.errors and "find out why the build fails" in stranger.talker.last.text
    assert stranger.talker.last.tokens <= BUDGET


@pytest.mark.parametrize(
    "mark", [{}, {"tip": 3}, {"tip": "x", "responses": "many", "tail": 0}, {"responses": 1, "tail": 1}]
)
async def test_an_invalid_mark_fails_no_run(mark: dict[str, Any]) -> None:
    talk = Stored(steps=0)
    odd = UserPromptPart([TextContent("hello", metadata={"context_compiler": mark})])
    talk.stored = talk.raw = [ModelRequest(parts=[odd]), *long_history(30)[1:-1]]
    await talk.turn(0)
    assert talk.talker.last.tokens <= BUDGET and not talk.errors


async def test_a_failing_compiler_loses_nothing_and_fails_no_run() -> None:
    talk = Stored(Notes(ValueError("bug")), steps=3)
    for number in range(12):
        await talk.turn(number)
    assert {type(error).__name__ for error in talk.errors} == {"CompileError"}
    assert await talk.transcript() == spoken(talk.raw)
    assert max(sent.tokens for sent in talk.talker.sent) <= BUDGET


async def test_a_failing_store_loses_nothing_while_the_process_lives(tmp_path: Path) -> None:
    (tmp_path / "record.db").mkdir()
    talk = Stored(store=tmp_path / "record.db")
    for number in range(10):
        await talk.turn(number)
    assert {type(error).__name__ for error in talk.errors} == {"StoreError"}
    assert talk.talker.last.tokens <= BUDGET and len(talk.stored) < len(talk.raw)
    assert await talk.transcript() == spoken(talk.raw)
    with pytest.raises(StoreError):
        await talk.processor.transcript("another")


async def test_a_dry_run_returns_the_given_history() -> None:
    talk = Stored(dry_run=True)
    for number in range(8):
        await talk.turn(number)
    assert unstamped(talk.stored) == unstamped(talk.raw)
    assert any(record.status.startswith("dry_run") for record in await talk.processor.views())


async def test_the_template_can_be_the_first_positional_argument() -> None:
    processor = build_compiling_history_processor("extractive", budget=2_000, store=None, system=None)
    talker = Talker("done")
    agent = Agent(talker.model, capabilities=[ProcessHistory(processor)])
    await run(agent, "and now?", message_history=long_history(40))
    assert talker.last.tokens <= 2_000 and "QUOTED" in talker.last.text


@pytest.mark.parametrize("wrong", [{"budget": 0}, {"inject": "shout"}, {"template": 3}, {"nonsense": 1}])
def test_wrong_arguments_are_refused_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises((SettingsError, TypeError)):
        build_compiling_history_processor(**wrong)
