"""Exact terms of a prompt that nobody has said are named, to the caller and on request in the block."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Literal
from unicodedata import normalize

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, UserPromptPart

from context_compiler import View, compile_view
from context_compiler.compiler.recall_block import NEVER_SAID
from tests.support.agents import Talker, compiler
from tests.support.builders import answer, assistant, call, prose, user
from tests.support.views import own_texts

FACTS: list[ModelMessage] = [
    user("Order QX-4711 of Anna Schmidt ships on January 5, 2031 from src/depot.py, for 1,250 euros."),
    assistant(call("look", "1", path="/etc/depot.conf")),
    user(answer("1", "handled by getRoute on host.example.com")),
    assistant("Noted."),
]
FILLER = [message for n in range(30) for message in (user(prose(n, 60)), assistant(prose(n + 100, 60)))]


async def view_of(prompt: str) -> View:
    return await compile_view([*FACTS, *FILLER, user(prompt)], budget=1_500, system=None)


async def live(prompt: str) -> View:
    ours = compiler(budget=1_500, say_absent=True)
    await Agent(Talker().model, capabilities=[ours]).run(prompt, message_history=[*FACTS, *FILLER])
    assert ours.last_view is not None
    return ours.last_view


@pytest.mark.parametrize(
    ("prompt", "absent"),
    [
        ("Who asked for order ZZ-9999, or QX-4711?", ["ZZ-9999"]),
        ("What did Anna say to Melanie?", ["Melanie"]),
        ("Is src/depot.py used by src/other.py?", ["src/other.py"]),
        ("Was it 1250 euros, or 1,390?", ["1,390"]),
        ("What happens on 5 January 2031 and on 7.3.2031?", ["7.3.2031"]),
        ("Does /etc/depot.conf name getRoute or getTable?", ["getTable"]),
        ("Is host.example.com older than other.example.com?", ["other.example.com"]),
        ("Which 20-year-old car and/or van, e.g. in March, at 10am, do you like?", []),
        ("How does one pack a suitcase for the seaside?", []),
    ],
)
async def test_a_view_lists_the_terms_of_its_prompt_that_nobody_has_said(prompt: str, absent: list[str]) -> None:
    view = await view_of(prompt)
    assert list(view.absent) == absent
    assert NEVER_SAID not in "\n".join(own_texts(view))


async def test_a_block_names_them_on_request() -> None:
    view = await live("Who asked for order ZZ-9999, or QX-4711?")
    assert f"{NEVER_SAID} ZZ-9999\n" in "\n".join(own_texts(view))


async def test_a_block_names_them_where_nothing_is_recalled_but_not_for_a_prompt_that_does_not_ask() -> None:
    view = await live("When does ZZ-9999 ship?")
    assert f"{NEVER_SAID} ZZ-9999" in "\n".join(own_texts(view)) and view.tokens_sent <= 1_500
    assert NEVER_SAID not in "\n".join(own_texts(await live("I met Melanie today.")))


async def test_raw_history_is_searched_too() -> None:
    ours = compiler(budget=50_000)
    await Agent(Talker().model, capabilities=[ours]).run("When does ZZ-9999 ship?", message_history=FACTS)
    assert ours.last_view is not None and ours.last_view.absent == ("ZZ-9999",)


async def test_a_prompt_with_pasted_text_and_a_text_too_large_to_search_claim_nothing() -> None:
    assert (await view_of("What does ZZ-9999 mean?\n" + "XX-1 " * 1_000)).absent == ()
    large = [user("x " * 300_000 + "ZZ-9999" + " y" * 300_000), assistant("Noted.")]
    assert (await compile_view([*large, user("Who sent ZZ-9998?")], budget=4_000, system=None)).absent == ()


@pytest.mark.parametrize("nested", [False, True])
async def test_a_path_with_backslashes_was_said_however_often_json_escapes_them(nested: bool) -> None:
    path = r"C:\Users\ann\notes9.txt"
    arguments: dict[str, Any] = {"path": path}
    if nested:
        arguments = {"body": json.dumps(arguments)}
    called = [user("Look."), assistant(call("read", "1", **arguments)), user(answer("1", "no such file"))]
    returned = [user("Look."), assistant(call("list", "1")), user(answer("1", json.dumps(arguments)))]
    for work in (called, returned):
        asked = user(rf"What is in {path}, and what in C:\Users\bob\notes9.txt?")
        view = await compile_view([*work, assistant("Fine."), *FILLER, asked], budget=1_500, system=None)
        assert view.absent == (r"C:\Users\bob\notes9.txt",)


@pytest.mark.parametrize("form", ["NFC", "NFD"])
async def test_a_name_was_said_in_whatever_unicode_form_it_is_asked_for(form: Literal["NFC", "NFD"]) -> None:
    history = [user("The keys are with René."), assistant("Noted."), *FILLER]
    asked = user(normalize(form, "Where do René and Zoë keep the keys?"))
    assert (await compile_view([*history, asked], budget=1_500, system=None)).absent == ("Zoë",)


async def test_a_question_finds_text_of_another_unicode_form() -> None:
    said = "어제 서울에서 친구와 김치찌개를 먹었다."
    history = [user(normalize("NFD", said)), assistant("좋아요."), *FILLER, user("서울에서 뭘 먹었지?")]
    view = await compile_view(history, budget=1_000, system=None)
    assert said in normalize("NFC", "\n".join(own_texts(view)))


@pytest.mark.parametrize("written", ["19.1.2031", "1/19/2031", "2031-01-19", "19 January 2031"])
async def test_a_date_finds_what_was_said_on_that_day_however_it_is_written(written: str) -> None:
    days = [
        ModelRequest(
            parts=[UserPromptPart(f"We chose the {what} tiles.", timestamp=datetime(2031, 1, day, tzinfo=UTC))]
        )
        for day, what in ((9, "white"), (19, "green"), (29, "black"))
    ]
    history = [message for day in days for message in (day, assistant("Noted."), *FILLER[:40])]
    asked = user(f"Which tiles did we choose on {written}?")
    texts = "\n".join(own_texts(await compile_view([*history, asked], budget=1_000, system=None)))
    assert "green tiles" in texts and "black tiles" not in texts.partition("green tiles")[0]
