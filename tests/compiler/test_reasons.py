"""The texts of reasons, and what is read from them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from context_compiler import TokenCounter, compile_view
from context_compiler.compiler import reasons
from context_compiler.compiler.cycle import RAW
from context_compiler.compiler.policy import Plan
from context_compiler.compiler.reasons import REASONS, Reason, reason_of
from context_compiler.compiler.view import cycle_drops
from context_compiler.messages.history import reader_of
from context_compiler.messages.shapes import WHOLE
from context_compiler.messages.turns import pair
from context_compiler.middleware.arguments import SHIPPED, Arguments, Terms
from context_compiler.settings import Settings
from tests.support.builders import assistant, exchange, prose, user


def test_a_reason_is_found_by_its_text() -> None:
    named = [one for one in vars(reasons).values() if isinstance(one, Reason)]
    assert [reason_of(one.text) for one in named] == named and set(named) == set(REASONS)


@pytest.mark.parametrize(
    ("text", "number", "effect"),
    [
        ("older than what were then the last 12 turns", 2, "drops"),
        ("tool exchange as a stub", 3, "shortens"),
        ("tool exchange of this turn as a stub", 6, "shortens"),
        ("clamped to fit, last resort: only the last exchange is sent", 11, "shortens"),
    ],
)
def test_a_step_is_read_from_a_text_on_the_record(text: str, number: int, effect: str) -> None:
    found = reason_of(text)
    assert found is not None and (found.step.number, found.step.effect) == (number, effect)


def test_a_text_that_no_step_wrote_has_no_step() -> None:
    assert [reason_of(text) for text in ("", "no room", "the last 2 turns", "older than")] == [None] * 4


async def test_a_written_view_shows_what_became_of_each_message(tmp_path: Path) -> None:
    run = [message for number in range(6) for message in exchange(number, content=prose(number, 40), run_id="r")]
    view = await compile_view(
        [user("Begin.", system="Be kind."), assistant("Yes."), user("Look.", run_id="r"), *run], budget=250
    )
    forms = re.findall(r'<article class="cc-message cc-(\w+)"', view.to_html(tmp_path / "view.html").read_text())
    assert forms == ["carried", "summary", "summary", "verbatim", "verbatim", "shortened", "verbatim", "verbatim"]


def test_a_drop_names_only_messages_of_its_reason() -> None:
    messages = [user("Look at all."), *(message for number in range(3) for message in exchange(number)), user("And?")]
    reader = reader_of(TokenCounter())
    history = reader.read(messages)
    policy = Arguments(model="none").policy(SHIPPED, Settings(), Terms())
    plan = Plan(history=history, pairing=pair(history), policy=policy, reader=reader, fixed=0)
    why = ((1, 2, "older"), (2, 3, "no room"), (4, 6, "older"))
    cycle = replace(RAW, decided=6, kept=((0, WHOLE), (3, WHOLE)), why=why)
    drops = [(drop.what, drop.reason) for drop in cycle_drops(cycle, plan)]
    assert drops == [("message 1", "older"), ("messages 4-5", "older"), ("message 2", "no room")]
