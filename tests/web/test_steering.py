"""Steering from the browser: the session's page, the chat, and their JSON."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from starlette.testclient import TestClient

from context_compiler import ContextCompiler
from context_compiler.record.store import SQLiteStore
from context_compiler.web.app import create_app
from tests.web.browser import chat_app, serving
from tests.web.conftest import FACT, HOSTILE, number_of, requests_of
from tests.web.test_chat import Tab

QUESTIONS = (
    "Maria asks about ticket 471: was her refund paid out?",
    "Does the deploy of the gateway wait for a review?",
    "Why has invoice 8812 two different totals?",
    "Which queue holds the webhooks that failed on Monday?",
    "Can Ines move the price table into another schema?",
    "How large may an attachment of a customer be?",
)


def steer(client: TestClient, way: str, session: int, **body: Any) -> Any:
    answer = client.post(f"/api/sessions/{session}/{way}", json=body)
    return answer.json() if answer.status_code == 200 else (answer.status_code, answer.json()["error"])


async def test_a_session_can_be_compacted_pinned_and_undone(client: TestClient, db: Path) -> None:
    session = number_of(client, "long")
    shown = steer(client, "compact", session, focus="the release code", preview=True)
    assert shown["done"] and shown["kind"] == "preview" and shown["cost"] == "$0"
    assert client.get(f"/api/sessions/{session}/steering").json()["actions"] == []
    done = steer(client, "compact", session, focus="the release code")
    assert done["done"] and done["before"] >= done["after"] and done["left_out"] and FACT in done["summary"]
    pinned = steer(client, "pin", session, message=FACT)
    assert pinned["turn"] == 2 and pinned["role"] == "user"
    page = client.get(f"/sessions/{session}/steering").text
    assert 'data-unpin="m' in page and "the release code" in page and 'data-open="compact"' in page
    state = client.get(f"/api/sessions/{session}/steering").json()
    assert [action["kind"] for action in state["actions"]] == ["pin", "compile"] and state["actions"][1]["compile"]
    assert [pin["turn"] for pin in state["pins"]] == [2]
    assert [row["turn"] for row in state["prompts"] if row["pinned"]] == [2] and state["prompts"][0]["message"] == 0
    assert steer(client, "unpin", session, message="turn 2")["turn"] == 2
    assert steer(client, "undo", session)["done"]
    assert not await SQLiteStore(db).verify()


async def test_the_button_unpins_a_message_with_any_text(tmp_path: Path) -> None:
    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart("Noted.")])

    ours = ContextCompiler(model="none", store=tmp_path / "c.db", system=None)
    agent, history = Agent(FunctionModel(answer), capabilities=[ours]), list[ModelMessage]()
    prompts = ("3", "3", "turn 2", "\x1b[1m half \ud800 of it", "And then?")
    for prompt in prompts:
        history = (await agent.run(prompt, message_history=history, conversation_id="talk")).all_messages()
    with TestClient(create_app(tmp_path / "c.db", system=None), base_url="http://127.0.0.1") as client:
        session = number_of(client, "talk")
        for turn in range(1, len(prompts)):
            steer(client, "pin", session, message=f"turn {turn}")
        page = client.get(f"/sessions/{session}/steering").text
        rows = re.findall(r'data-unpin="(c1:[^"]+)"', page)
        assert [steer(client, "unpin", session, message=tip)["turn"] for tip in rows] == [1, 2, 3, 4]
        assert client.get(f"/api/sessions/{session}/steering").json()["pins"] == []


def test_a_request_shows_which_of_its_messages_are_pinned(client: TestClient) -> None:
    session, newest = number_of(client, "long"), requests_of(client, "long")[-1]["id"]
    assert steer(client, "pin", session, message=FACT)["turn"] == 2
    whys = client.get(f"/api/requests/{newest}/why").json()
    (index,) = whys["pinned"]
    page = client.get(f"/requests/{newest}/why").text
    assert f'data-unpin="m{index}"' in page and f'data-pin="m{index}"' not in page and page.count("data-unpin=") == 1
    first = next(request["id"] for request in requests_of(client, "long") if request["messages_raw"] > index)
    assert f'data-unpin="m{index}"' in client.get(f"/requests/{first}").text
    steer(client, "unpin", session, message=f"m{index}")
    assert "data-unpin=" not in client.get(f"/requests/{newest}/why").text
    assert client.get(f"/api/requests/{first}").json()["pinned"] == []


async def test_the_pinned_one_of_two_equal_messages_is_shown(tmp_path: Path) -> None:
    with serving(chat_app(tmp_path)) as address:
        async with Tab(address) as tab, httpx.AsyncClient(base_url=address, timeout=300) as client:
            for number in range(1, 4):
                await tab.say("Go on.")
                await tab.until("done", number)
            assert (await client.post("/api/chat/pin", json={"message": "turn 2"})).status_code == 200
            for part in ("", "/why"):
                assert (await client.get(f"/api/requests/3{part}")).json()["pinned"] == [2]


def test_a_preview_has_an_address(client: TestClient) -> None:
    session = number_of(client, "long")
    preview = client.get(f"/api/sessions/{session}/steering?preview=yes&focus=release&start=turn 9").json()["preview"]
    assert preview["kind"] == "preview" and preview["focus"] == "release"
    wrong = client.get(f"/api/sessions/{session}/steering?preview=yes&start=turn 900")
    assert wrong.status_code == 400 and "no such message" in wrong.json()["error"]
    bare = number_of(client, "bare")
    assert "cannot be steered from here" in client.get(f"/sessions/{bare}/steering").text
    assert steer(client, "compact", bare)[0] == 503


@pytest.mark.parametrize(
    "headers",
    [{"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}, {"content-type": "text/plain"}],
)
def test_another_site_cannot_steer(client: TestClient, headers: dict[str, str]) -> None:
    session = number_of(client, "long")
    for way in ("compact", "undo", "pin", "unpin"):
        answer = client.post(f"/api/sessions/{session}/{way}", content='{"message": "turn 1"}', headers=headers)
        assert answer.status_code in (400, 403)
    assert client.get(f"/api/sessions/{session}/steering").json()["actions"] == []


def test_without_the_token_steering_is_refused(db: Path) -> None:
    with TestClient(create_app(db, system=None, token="secret"), base_url="http://127.0.0.1") as guarded:
        assert guarded.post("/api/sessions/1/pin", json={"message": "turn 1"}).status_code == 401
        allowed = guarded.post(
            "/api/sessions/1/pin", json={"message": "turn 1"}, headers={"authorization": "Bearer secret"}
        )
        assert allowed.status_code == 200


def test_an_invalid_request_is_refused_with_the_reason(client: TestClient) -> None:
    session = number_of(client, "long")
    assert steer(client, "pin", session, message="turn 99")[0] == 400
    assert steer(client, "pin", session, message=7) == (400, "message: give a string")
    assert steer(client, "pin", 4_711, message="turn 1")[0] == 404
    assert "no models" in steer(client, "compact", session, model="openai:gpt-5")[1]
    assert client.post(f"/api/sessions/{session}/compact", json=[]).status_code == 400
    assert client.get(f"/api/sessions/{session}/compact").status_code in (404, 405)
    paths = client.get("/api/openapi.json").json()["paths"]
    assert {"/api/sessions/{number}/undo", "/api/sessions/{number}/steering", "/api/chat/pin"} <= set(paths)


def test_a_pinned_message_is_shown_as_text(client: TestClient) -> None:
    session = number_of(client, "long")
    assert steer(client, "pin", session, message=HOSTILE)["turn"] == 6
    assert HOSTILE not in client.get(f"/sessions/{session}/steering").text


async def test_every_tab_is_notified_when_a_chat_is_steered(tmp_path: Path) -> None:
    with serving(chat_app(tmp_path)) as address:
        async with Tab(address) as tab, httpx.AsyncClient(base_url=address, timeout=300) as client:
            empty = await client.post("/api/chat/compact", json={})
            assert empty.status_code == 400 and "still empty" in empty.json()["error"]
            for number, question in enumerate(QUESTIONS, 1):
                await tab.say(question)
                await tab.until("done", number)
            assert 'data-pin="turn 2"' in await tab.page() and 'data-from="turn 2"' in await tab.page()
            assert (await client.post("/api/chat/pin", json={"message": "turn 2"})).json()["turn"] == 2
            assert 'data-unpin="turn 2"' in await tab.page()
            shown = (await client.post("/api/chat/compact", json={"focus": "tickets", "preview": True})).json()
            assert shown["kind"] == "preview" and shown["usage"]["input_tokens"] > 0
            heard = len([name for name, _ in tab.heard if name == "turns"])
            done = (await client.post("/api/chat/compact", json={"focus": "tickets"})).json()
            assert done["done"] and done["model"] == "scripted" and "Said so far" in done["summary"]
            await tab.until("turns", heard + 1)
            assert (await client.post("/api/chat/undo", json={})).json()["done"]
            assert (await client.post("/api/chat/undo", json={})).json()["done"] is False
            await tab.say("Where do I look first?")
            busy = await client.post("/api/chat/undo", json={})
            assert busy.status_code in (200, 409)
            await tab.until("done", 7)
