"""A compiler that fails, hangs, says nothing or is cancelled costs no run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelHTTPError, UnexpectedModelBehavior
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from tests.middleware.faulty import BUDGET, Faulty
from tests.support.agents import NOTES, WAYS, Notes, run
from tests.support.histories import assert_pairs_whole, long_history, prose, user


async def leftovers() -> set[asyncio.Task[Any]]:
    """Tasks that do not end within a time in which a busy machine writes a row, and no model of these tests answers."""
    left = asyncio.all_tasks() - {asyncio.current_task()}  # pyright: ignore
    return (await asyncio.wait(left, timeout=20))[1] if left else set()


FAILURES: dict[str, Callable[[], Notes]] = {
    "an error of the model": lambda: Notes(UnexpectedModelBehavior("no")),
    "an error of the provider": lambda: Notes(ModelHTTPError(500, "notes", body="down")),
    "any other error": lambda: Notes(ValueError("bug")),
    "a cancellation of its own": lambda: Notes(asyncio.CancelledError()),  # pyright: ignore
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", FAILURES)
async def test_a_failing_compiler_fails_no_run(case: str, way: str) -> None:
    faulty = Faulty(FAILURES[case]())
    done = await WAYS[way](faulty.agent, "and now?", message_history=faulty.history)
    assert done.output == "done"
    assert faulty.kinds == ["CompileError"] and faulty.statuses == ["fallback"]
    assert faulty.talker.last.tokens <= BUDGET
    assert_pairs_whole(faulty.talker.last.messages)
    record = (await faulty.ours.views())[0]
    assert record.error is not None and "sent: a view without a model" in record.error
    assert record.compile is not None and record.compile.status.startswith("failed") and record.compile.compiled_prompt
    assert not await leftovers()


@pytest.mark.parametrize("way", WAYS)
async def test_quotes_take_the_place_of_a_summary_that_takes_too_long(way: str) -> None:
    faulty = Faulty(Notes(seconds=30), timeout=0.3)
    done = await WAYS[way](faulty.agent, "and now?", message_history=faulty.history)
    assert done.output == "done"
    assert faulty.kinds == ["CompileError"] and faulty.statuses == ["compiled"]
    record = (await faulty.ours.views())[0]
    assert record.error is None and record.compile is not None
    assert record.compile.status.startswith("refused") and "no answer within" in (record.compile.error or "")
    assert not await leftovers()


async def test_without_a_budget_the_fallback_is_the_raw_history() -> None:
    faulty = Faulty(Notes(ValueError("bug")), budget=None)
    faulty.history = long_history(90)
    await faulty.ask()
    assert faulty.statuses == ["fallback"] and len(faulty.talker.last.messages) >= len(faulty.history)
    record = (await faulty.ours.views())[0]
    assert record.error is not None and record.error.endswith("sent: raw history")


async def test_a_known_window_limits_the_fallback() -> None:
    faulty = Faulty(Notes(ValueError("bug")), budget=None, window=6_000)
    await faulty.ask()
    assert faulty.talker.last.tokens <= 4_500
    record = (await faulty.ours.views())[0]
    assert record.error is not None and record.error.endswith("sent: a view without a model")


async def test_with_a_cycle_the_fallback_is_the_last_good_view() -> None:
    said = iter([NOTES])
    notes = Notes(lambda number: next(said))
    faulty = Faulty(notes, lambda messages, info: prose(len(messages), 60), trigger=1_500)
    await faulty.ask()
    assert faulty.statuses == ["compiled"]
    number = 0
    while "fallback" not in faulty.statuses:
        number += 1
        await faulty.ask(f"Question {number}: {prose(number, 60)}", message_history=faulty.done.messages)
        assert number < 40
    assert faulty.kinds == ["CompileError"]
    record = (await faulty.ours.views())[0]
    assert record.error is not None and record.error.endswith("sent: the last good view")
    assert "find out why the build fails" in faulty.talker.last.text
    assert faulty.talker.last.tokens <= BUDGET


async def test_after_a_failure_the_turn_continues_without_a_model_and_with_a_stable_prefix() -> None:
    notes = Notes(ValueError("bug"))
    steps = iter([[("look", {"path": "a"})]] * 3)
    faulty = Faulty(notes, lambda messages, info: next(steps, "done"))
    await faulty.ask()
    assert notes.asked == 1 and faulty.statuses == ["fallback", "cycle", "cycle", "cycle"]
    sent = [sent.messages for sent in faulty.talker.sent]
    assert all(later[: len(earlier)] == earlier for earlier, later in zip(sent, sent[1:], strict=False))


@pytest.mark.parametrize("said", ["", "  \n\t ", "quite a lot " * 20_000])
async def test_an_answer_that_is_empty_or_saves_nothing_is_refused(said: str) -> None:
    notes = Notes(said)
    steps = iter([[("look", {"path": "a"})]] * 2)
    faulty = Faulty(notes, lambda messages, info: next(steps, "done"))
    await faulty.ask()
    assert not faulty.errors and faulty.statuses == ["compiled", "cycle", "cycle"]
    assert notes.asked == 1, "remembered for the turn"
    compile = (await faulty.ours.views())[-1].compile
    assert compile is not None and compile.status.startswith("refused") and compile.error
    assert compile.raw_output == said.strip() and compile.compiled_prompt
    assert faulty.talker.sent[0].tokens <= BUDGET and "quite a lot" not in faulty.talker.last.text


async def test_a_compiler_that_keeps_failing_is_paused() -> None:
    notes = Notes(ValueError("bug"))
    faulty = Faulty(notes)
    for number in range(6):
        await faulty.ask(
            message_history=[user(f"beginning {number}"), ModelResponse(parts=[TextPart("yes")]), *faulty.history]
        )
    assert notes.asked == 3
    assert faulty.kinds == ["CompileError"] * 3, "none while it is paused"
    assert faulty.statuses == ["fallback"] * 3 + ["compiled"] * 3
    row = (await faulty.ours.views())[0].compile
    assert row is not None and "it failed too often" in (row.error or "")


class Writer:
    """A model of runs that also writes their summaries, in the way that it is told."""

    def __init__(self, name: str, summary: str | Exception) -> None:
        self.summary, self.asked = summary, 0
        self.model = FunctionModel(self._answer, model_name=name)

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if not info.instructions:  # a request of the run, whose agent has none
            return ModelResponse(parts=[TextPart("done")])
        self.asked += 1
        if isinstance(self.summary, Exception):
            raise self.summary
        return ModelResponse(parts=[TextPart(self.summary)])


async def ask_about(faulty: Faulty, name: str, **options: Any) -> None:
    """A request of a long conversation of this name."""
    opening = [user(f"beginning {name}"), ModelResponse(parts=[TextPart("yes")])]
    await faulty.ask(message_history=[*opening, *faulty.history], conversation_id=name, **options)


async def test_a_model_that_keeps_failing_pauses_no_other_model() -> None:
    faulty, expired, healthy = Faulty(model=None), Writer("expired", ValueError("key")), Writer("healthy", NOTES)
    for number in range(3):
        await ask_about(faulty, f"expired {number}", model=expired.model)
    for number in range(2):
        await ask_about(faulty, f"healthy {number}", model=healthy.model)
        await ask_about(faulty, f"paused {number}", model=expired.model)
    assert (expired.asked, healthy.asked) == (3, 2)
    assert faulty.statuses == ["fallback"] * 3 + ["compiled"] * 4
    summaries = [record.compile for record in await faulty.ours.views() if record.compile is not None]
    refused = [row.error for row in summaries if row.status.startswith("refused")]
    assert refused == ["expired is not asked for a while: it failed too often"] * 2


async def test_bad_summaries_pause_the_model_for_their_conversation_alone() -> None:
    faulty = Faulty(notes := Notes(lambda number: "" if number <= 4 else NOTES))
    for number in range(6):
        await ask_about(faulty, f"talk {number}")
    assert notes.asked == 6 and not faulty.errors
    assert ["Goal" in view.summary for view in faulty.views[-2:]] == [True, True]


async def test_bad_summaries_of_a_conversation_pause_no_other_model_for_it() -> None:
    faulty, bad, good = Faulty(model=None, every_turn=True), Writer("bad", ""), Writer("good", NOTES)
    for number in range(5):
        model = good.model if number == 4 else bad.model
        await faulty.ask(prose(number, 60), message_history=faulty.history, conversation_id="talk", model=model)
        faulty.history = faulty.done.messages
    assert (bad.asked, good.asked) == (2, 1) and "Goal" in faulty.views[-1].summary


@pytest.mark.parametrize("when", [0.02, 0.1])
async def test_a_cancelled_run_leaves_nothing_behind(when: float, tmp_path: Path) -> None:
    notes = Notes(seconds=30)
    faulty = Faulty(notes, store=tmp_path / "record.db")
    task = asyncio.create_task(faulty.ask())
    while not notes.prompts:
        await asyncio.sleep(0.01)
    await asyncio.sleep(when)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert notes.cancelled == 1 and not faulty.errors
    assert not await leftovers()


async def test_a_cancelled_run_does_not_cancel_another_that_waits_for_the_same_compile() -> None:
    notes = Notes(seconds=0.2)
    faulty = Faulty(notes)
    first, second = (asyncio.create_task(run(faulty.agent, f"{n}", message_history=faulty.history)) for n in range(2))
    while not notes.prompts:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.02)
    first.cancel()
    assert (await second).output == "done"
    with pytest.raises(asyncio.CancelledError):
        await first
    assert (notes.asked, notes.cancelled) == (1, 0) and faulty.statuses == ["compiled"]
    assert not await leftovers()


async def test_a_timeout_of_the_caller_is_raised() -> None:
    notes = Notes(seconds=30)
    faulty = Faulty(notes)

    async def run_out(limit: asyncio.Timeout) -> None:
        # Not sooner: a host that is cancelled as its run begins leaves a task of its own behind.
        while not notes.prompts:
            await asyncio.sleep(0.01)
        limit.reschedule(asyncio.get_running_loop().time())

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as limit:
            await asyncio.gather(run_out(limit), faulty.ask())
    assert notes.cancelled == 1 and not await leftovers()
