"""Parallel calls of one answer that share an id: each is sent with its own result, in every view."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ToolCallPart, ToolReturnPart

from context_compiler import View, compile_view
from context_compiler.messages.failures import failures
from tests.messages.reading import read
from tests.support.agents import Talker, compiler, run
from tests.support.builders import answer, assistant, call, user
from tests.support.histories import long_history

Part = TypeVar("Part", ToolCallPart, ToolReturnPart)

CITIES = {"Lisbon": "21 degrees", "Oslo": "4 degrees", "Cairo": "33 degrees", "Quito": "14 degrees"}


def asked(cities: Iterable[str] = CITIES, answered: Iterable[str] = CITIES) -> list[ModelMessage]:
    """A response whose calls all have the id `look`, and the results of those that were answered."""
    results = [answer("look", f"{city}: {CITIES[city]}") for city in answered]
    return [assistant(*(call("look", "look", city=city) for city in cities)), user(*results)]


def parts_of(messages: Sequence[ModelMessage], kind: type[Part]) -> list[Part]:
    """Calls or results with the shared id."""
    parts = [part for message in messages for part in message.parts if isinstance(part, kind)]
    return [part for part in parts if part.tool_call_id == "look"]


def mismatched(messages: Sequence[ModelMessage]) -> list[str]:
    """Cities of calls that are not followed, in order, by their own results."""
    calls = [part.args_as_dict()["city"] for part in parts_of(messages, ToolCallPart)]
    results = [str(part.content) for part in parts_of(messages, ToolReturnPart)]
    return [city for city, result in zip(calls, results, strict=True) if not result.startswith(city)]


@pytest.mark.parametrize("budget", [1_200, 3_000, 32_000])
@pytest.mark.parametrize("later", [0, 12])
async def test_each_call_is_sent_with_its_own_result(budget: int, later: int) -> None:
    talker = Talker("fine")
    agent = Agent(talker.model, capabilities=[compiler(budget=budget, recent_turns=2)])
    history = [*long_history(later), user("How warm is it?"), *asked(), assistant("mild"), user("there?"), *asked()]
    await run(agent, "And where is it the warmest?", message_history=[*history, assistant("hot")])
    calls = parts_of(talker.last.messages, ToolCallPart)
    assert not mismatched(talker.last.messages) and len(calls) % 4 == 0
    assert budget < 32_000 or len(calls) == 8


async def test_a_view_that_leaves_a_part_out_is_not_raw() -> None:
    views: list[View] = []
    talker = Talker("fine")
    agent = Agent(talker.model, capabilities=[compiler(budget=32_000, on_view=views.append)])
    history = [user("How warm is it?"), *asked(["Lisbon"], ["Lisbon", "Oslo"]), assistant("mild")]
    await run(agent, "And in Cairo?", message_history=history)
    assert not mismatched(talker.last.messages)
    assert [view.status for view in views] == ["mended"] and len(views[0].drops) == 1


async def test_a_one_shot_view_leaves_out_the_calls_that_were_not_answered() -> None:
    history = [user("How warm is it?"), *asked(answered=["Lisbon", "Oslo"]), assistant("mild")]
    view = await compile_view([*history, user("And in Cairo?")], budget=32_000)
    assert view.status == "mended" and not mismatched(view.messages)
    assert [part.tool_call_id for part in parts_of(view.messages, ToolCallPart)] == ["look", "look"]


async def test_a_view_that_leaves_nothing_out_is_raw() -> None:
    once = await compile_view([user("How warm is it?"), *asked(), assistant("mild"), user("thanks")], budget=32_000)
    assert once.status == "raw" and not once.drops and not mismatched(once.messages)


def test_a_failure_names_the_call_that_failed() -> None:
    results = [answer("look", f"{city}: unknown", outcome="failed" if city == "Oslo" else "success") for city in CITIES]
    calls = assistant(*(call("look", "look", city=city) for city in CITIES))
    history = read([user("How warm is it?"), calls, user(*results), assistant("odd")])
    assert ["Oslo" in found.call for found in failures(history, range(len(history)))] == [True]
