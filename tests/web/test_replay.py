"""A recorded request under other settings is the request that an agent with those settings would have sent."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from starlette.testclient import TestClient
from typer.testing import CliRunner

from context_compiler import ContextCompiler
from context_compiler.cli.root import app
from context_compiler.web.app import create_app
from tests.support.agents import Talker
from tests.web.conftest import requests_of

FACT = "Ben is allergic to walnuts."

PLACES = ("Belém", "Alfama", "Sintra", "Cascais", "Estrela", "Graça", "Almada", "Chiado", "Baixa", "Lapa")

PROMPTS: list[str] = [
    FACT,
    *(
        f"On day {day} we want to see {place} before it gets hot; how long does the way there take us?"
        for day in range(3)
        for place in PLACES
    ),
]


async def trip(db: Path, prompts: Sequence[str] = PROMPTS, **settings: Any) -> None:
    """Record a session about a trip whose first prompt is left out after a while."""
    compiler = ContextCompiler(model="none", store=db, system=None, record_timeout=60, **settings)
    talker = Talker(lambda messages, info: "By tram, and the last part on foot. " * 4)
    agent = Agent(talker.model, capabilities=[compiler], instructions="Plan a trip. " * 20)
    history: list[ModelMessage] = []
    for prompt in prompts:
        history = (await agent.run(prompt, message_history=history, conversation_id="trip")).all_messages()
    await compiler.aclose()


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record of that session."""
    db = tmp_path_factory.mktemp("trip") / "context.db"
    asyncio.run(trip(db, budget=700, recall=0.25, trigger=450))
    return db


@pytest.fixture
def pages(planned: Path) -> Iterator[TestClient]:
    """The pages of that record."""
    with TestClient(create_app(planned, system=None), base_url="http://127.0.0.1") as client:
        yield client


def replayed(db: Path, number: int, *options: object) -> dict[str, Any]:
    command = ["views", "replay", str(number), *map(str, options), "--db", str(db), "--json"]
    return json.loads(CliRunner().invoke(app, command).stdout)


def test_a_replay_shows_which_settings_the_request_had(pages: TestClient) -> None:
    page = pages.get(f"/requests/{len(PROMPTS)}/replay").text
    assert 'placeholder="as it was (0.25)"' in page and 'placeholder="as it was (450)"' in page


@pytest.mark.parametrize(("setting", "value"), [("recall", 0.25), ("budget", 701)])
def test_a_setting_that_changes_nothing_changes_no_token(
    pages: TestClient, planned: Path, setting: str, value: float
) -> None:
    rows = requests_of(pages, "trip")
    assert {row["status"] for row in rows} == {"raw", "compiled", "cycle"}
    for row in rows[3::8]:
        page = pages.get(f"/api/requests/{row['id']}/replay", params={setting: value}).json()
        said = replayed(planned, row["id"], f"--{setting}", value)["after"]
        sent = row["tokens_sent"], row["status"]
        assert (page["tokens"], page["status"]) == (said["tokens"], said["status"]) == sent


def test_a_replay_is_what_an_agent_with_these_settings_sends(pages: TestClient, tmp_path: Path) -> None:
    asyncio.run(trip(tmp_path / "other.db", budget=900, recall=0.25, trigger=600))
    with TestClient(create_app(tmp_path / "other.db", system=None), base_url="http://127.0.0.1") as other:
        for row in requests_of(other, "trip")[8::9]:
            asked = {"budget": 900, "trigger": 600}
            page = pages.get(f"/api/requests/{row['id']}/replay", params=asked).json()
            assert (page["tokens"], page["status"]) == (row["tokens_sent"], row["status"])


def test_the_budget_that_would_have_kept_a_message_keeps_it_in_a_replay(tmp_path: Path) -> None:
    db, prompts = tmp_path / "context.db", PROMPTS[:12]
    number = len(prompts)
    asyncio.run(trip(db, prompts, budget=700))
    sent = str(replayed(db, number, "--budget", 701)["messages"])
    position, lost = next((2 * turn, prompt) for turn, prompt in enumerate(prompts) if prompt not in sent)
    with TestClient(create_app(db, system=None), base_url="http://127.0.0.1") as pages:
        remedy = pages.get(f"/api/requests/{number}/why", params={"message": f"m{position}"}).json()["remedy"]
    assert lost in str(replayed(db, number, "--budget", remedy["budget"])["messages"])


def test_a_replay_tells_where_words_are_and_why_it_was_cut(pages: TestClient) -> None:
    row = next(row for row in requests_of(pages, "trip") if row["status"] == "compiled")
    address, word = f"/requests/{row['id']}/replay", PROMPTS[int(row["turn_index"])].split()[7]
    page = pages.get(f"{address}?q={word.lower()}&budget=701").text
    answer = pages.get(f"/api{address}?q={word.lower()}&budget=701").json()
    assert answer["places"][0] and answer["places"] == [answer["places"][0]] * 2
    assert f"would have had {row['tokens_raw']:,} tokens" in page and "in a budget of 701" in page
    assert pages.get(f"/api{address}?budget=701").json()["places"] == [[], []]
    assert "not in the request" in pages.get(f"{address}?q=nowhere").text


def test_a_value_that_cannot_be_used_leads_back_to_the_form_with_the_others(pages: TestClient) -> None:
    answer = pages.get("/requests/9/replay?recall=7.5&budget=900")
    assert answer.status_code == 400 and "recall=&#39;7.5&#39;: give a share from 0" in answer.text
    assert "<h1>Invalid value</h1>" in answer.text and 'href="/requests/9/replay?budget=900"' in answer.text
    assert "give a whole number from 1 to" in pages.get("/requests/9/replay?budget=lots").text


def test_figures_count_from_one_and_name_no_error_that_was_not(pages: TestClient, planned: Path) -> None:
    shown = CliRunner().invoke(app, ["views", "show", "9", "--db", str(planned)]).stdout
    assert "request 1 of it" in " ".join(shown.split())
    page = pages.get("/requests/9").text
    assert "request in its run</dt><dd>1<" in page and "error: none" not in page


def test_a_recorded_replay_is_the_request_that_was_shown(planned: Path, tmp_path: Path) -> None:
    copy = tmp_path / "context.db"
    shutil.copy(planned, copy)
    said = replayed(copy, 20, "--budget", 400, "--record")
    again = ["views", "show", str(said["record"]["id"]), "--db", str(copy), "--json"]
    shown = json.loads(CliRunner().invoke(app, again).stdout)
    assert shown["messages"] == said["messages"] and shown["view"]["tokens_sent"] == said["after"]["tokens"] <= 400
    assert shown["view"]["budget"] == 400 and shown["view"]["compile"]["template_name"] == "chat_compiler"


def test_a_replay_is_compared_message_by_message_and_its_sections_add_up(pages: TestClient) -> None:
    row = requests_of(pages, "trip")[-1]
    page = pages.get(f"/api/requests/{row['id']}/replay", params={"budget": 1_400}).json()
    sides = [
        [side and side["parts"][-1]["segments"][-1]["text"] for side in (row["before"], row["after"])]
        for row in page["rows"]
    ]
    both = [(before, after) for before, after in sides if before and after]
    assert both and all(before == after for before, after in both)
    assert not {side[0] for side in sides if not side[1]} & {side[1] for side in sides if side[1] in PROMPTS}
    assert sum(section["tokens"] for section in page["bar"]) == page["tokens"]
    assert sum(section["tokens"] for section in page["bar_before"]) == row["tokens_sent"]
