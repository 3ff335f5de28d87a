"""Whatever the history, the budget, the fidelity and the template: a view keeps what it promises."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import warnings
from collections.abc import Awaitable, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolSearchCallPart,
    ToolSearchReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler.compiler.view import View
from context_compiler.fidelity import Fidelity
from context_compiler.middleware.one_shot import compile_view
from tests.support.builders import assistant, user
from tests.support.histories import histories, long_history, snapshot
from tests.support.texts import texts
from tests.support.views import assert_answered, assert_sound, counter, own_texts

T = TypeVar("T")

ASK = "Please look at src/app/main.py and tell me why the build fails."

BUDGETS = st.sampled_from([20, 40, 60, 100, 200, 400, 800, 1_500, 3_000, 8_000, 20_000])
FIDELITIES = st.sampled_from([None, *Fidelity])
TEMPLATES = st.sampled_from(["extractive", "chat_compiler", "goal_oriented"])
RECENT: st.SearchStrategy[Any] = st.sampled_from([None, 0, 1, 3, "all"])

MODES = pytest.mark.parametrize(
    "kind",
    [
        {"broken": False, "future": False},
        {},
        {"surrogates": True, "ends": "prompt"},
        {"max_turns": 8, "max_steps": 4, "ends": "results"},
    ],
    ids=["plain", "broken", "surrogates", "long"],
)


def run(work: Awaitable[T]) -> T:
    """Wait for something, without what the host warns about parts that are no longer made."""

    async def waited() -> T:
        return await work

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return asyncio.run(waited())


def compiled(history: Sequence[ModelMessage], *given: Any, **wanted: Any) -> View:
    return run(compile_view(history, *given, system=None, **wanted))


@MODES
def test_a_view_is_within_budget_whole_and_ends_with_the_last_request(kind: dict[str, Any]) -> None:
    @given(histories(**kind), BUDGETS, FIDELITIES, TEMPLATES, RECENT)
    def check(
        history: list[ModelMessage], budget: int, fidelity: Fidelity | None, template: str, recent: int | None
    ) -> None:
        before, parts = snapshot(history), [part for message in history for part in message.parts]
        view = compiled(history, template, budget, fidelity=fidelity, recent_turns=recent)
        assert snapshot(history) == before
        assert all(
            old is new for old, new in zip(parts, (part for message in history for part in message.parts), strict=True)
        )
        assert view.budget == budget
        assert_sound(view, history)
        if view.status == "raw" and not view.drops and _unbroken(history):
            assert all(sent is original for sent, original in zip(view.messages, history, strict=True))

    check()


def test_a_host_exchange_that_stays_alone_is_paid_for_with_the_lines_around_it() -> None:
    asked = ToolSearchCallPart(args={"queries": ["maps"]}, tool_call_id="find")
    told = ToolSearchReturnPart(content={"discovered_tools": [{"name": "maps_find"}]}, tool_call_id="find")
    loaded = [ModelResponse(parts=[asked]), ModelRequest(parts=[told])]
    history = [user(ASK, system=ASK), assistant(ASK), user(ASK), *loaded, assistant(ASK), user(ASK)]
    for budget in range(60, 140, 3):
        assert_sound(compiled(history, "extractive", budget), history)


def _unbroken(history: list[ModelMessage]) -> bool:
    try:
        assert_answered(history)
    except AssertionError:
        return False
    return True


@given(histories(), BUDGETS, st.sampled_from(list(Fidelity)), TEMPLATES, RECENT)
def test_a_named_fidelity_caps_summary_and_quotes(
    history: list[ModelMessage], budget: int, fidelity: Fidelity, template: str, recent: int | None
) -> None:
    view = compiled(history, template, budget, fidelity=fidelity, recent_turns=recent)
    written = sum(counter.text(text) for text in own_texts(view))
    assert written <= fidelity.cap
    assert written <= max(budget // 4, 0) or fidelity is Fidelity.TRUNCATE


@given(histories(max_turns=6), BUDGETS, FIDELITIES, TEMPLATES, RECENT)
def test_the_same_history_gives_the_same_view(
    history: list[ModelMessage], budget: int, fidelity: Fidelity | None, template: str, recent: int | None
) -> None:
    first = compiled(history, template, budget, fidelity=fidelity, recent_turns=recent)
    again = compiled(history, template, budget, fidelity=fidelity, recent_turns=recent)
    assert snapshot(first.messages) == snapshot(again.messages)
    assert (first.tokens, first.drops, first.kept, first.ledger) == (
        again.tokens,
        again.drops,
        again.kept,
        again.ledger,
    )


@given(st.lists(texts(huge=True), min_size=1, max_size=25), st.integers(60, 400), TEMPLATES)
def test_the_smallest_view_of_an_ordinary_conversation_fits_sixty_tokens(
    said: list[str], budget: int, template: str
) -> None:
    history = [
        user(text) if index % 2 == 0 else assistant(text)
        for index, text in enumerate([*said, *said[: len(said) % 2 == 0]])
    ]
    view = compiled(history, template, budget)
    assert view.status != "floor_over_budget"
    assert_sound(view, history)


Behaviour = Literal["short", "empty", "long"]


def writing(behaviour: Behaviour, history: list[ModelMessage]) -> FunctionModel:
    """A compiler that writes a little, nothing, or more than a history holds."""
    text = {
        "short": "Goal: the build. Never push to main. === END NOTES ===",
        "empty": " \n",
        "long": "a word " * len(str(snapshot(history))),
    }

    def write(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart(content=text[behaviour])])

    return FunctionModel(write)


@pytest.mark.parametrize("behaviour", ["short", "empty", "long"])
def test_a_view_is_sound_with_any_output_of_the_compiler(behaviour: Behaviour) -> None:
    @settings(max_examples=25)
    @given(histories(max_turns=6), BUDGETS, FIDELITIES, st.sampled_from(["chat_compiler", "goal_oriented"]))
    def check(history: list[ModelMessage], budget: int, fidelity: Fidelity | None, template: str) -> None:
        before = snapshot(history)
        view = compiled(history, template, budget, fidelity=fidelity, model=writing(behaviour, history), recent_turns=1)
        assert snapshot(history) == before
        assert_sound(view, history)
        if behaviour != "short":
            assert "a word a word" not in "".join(own_texts(view)) or "quoted" in "".join(own_texts(view))

    check()


SCRIPT = """
import asyncio
from context_compiler import compile_view
from context_compiler.messages.bodies import message_body
from tests.support.histories import long_history

view = asyncio.run(compile_view(long_history(60), budget=1_500, system=None))
print(b"\\n".join(map(message_body, view.messages)).decode())
"""


def test_another_process_makes_the_same_view() -> None:
    root = str(Path(__file__).parents[1])
    with redirect_stdout(StringIO()) as here:
        exec(SCRIPT, {})
    there = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=root,
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": root},
        capture_output=True,
        check=True,
        text=True,
    )
    assert there.stdout == here.getvalue()
    assert "QUOTED" in there.stdout


def test_a_larger_budget_keeps_more_of_a_conversation() -> None:
    history = long_history(30, tools_per_turn=1)
    sizes = [compiled(history, budget=budget).tokens for budget in (300, 600, 1_200, 2_400)]
    assert sizes == sorted(sizes)
