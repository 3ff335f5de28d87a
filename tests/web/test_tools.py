"""Tools and single messages of a request, on its page and in the API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel
from starlette.testclient import TestClient

from context_compiler import ContextCompiler
from context_compiler.record.store import SQLiteStore
from context_compiler.record.values import Tool
from context_compiler.web.app import create_app
from context_compiler.web.data import arguments
from tests.web.conftest import HOSTILE, number_of, requests_of


def find(place: str, kind: Literal["shop", "park"], limit: int | None = None, tags: list[str] | None = None) -> str:
    """Find a place.

    Args:
        place: Name of the place, such as <script>alert("x")</script>.
        kind: Its kind.
        limit: Most of them.
        tags: Words for it.
    """
    return place


@pytest.fixture
async def asked(tmp_path: Path) -> TestClient:
    """A record of an agent with one tool."""
    db = tmp_path / "context.db"
    compiler = ContextCompiler(model="none", store=db, system=None, budget=4_000)
    await Agent(TestModel(), tools=[find], instructions="Be brief.", capabilities=[compiler]).run("hello")
    await compiler.aclose()
    return TestClient(create_app(db, system=None), base_url="http://127.0.0.1")


def test_the_tools_of_a_request_are_shown_with_their_tokens(asked: TestClient) -> None:
    answer = asked.get("/api/requests/1").json()
    (entry,) = answer["tools"]
    assert entry["tool"]["name"] == "find" and entry["tool"]["parameters"]["required"] == ["place", "kind"]
    kinds = {each["name"]: (each["kind"], each["required"]) for each in entry["arguments"]}
    assert kinds["place"] == ("string", True) and kinds["kind"] == ('"shop" | "park"', True)
    assert kinds["limit"] == ("integer | null", False) and kinds["tags"] == ("array of string | null", False)
    (section,) = [bar["tokens"] for bar in answer["bar"] if bar["name"] == "instructions and schemas"]
    assert entry["tokens"] + answer["instructions_tokens"] == section
    page = asked.get("/requests/1").text
    assert "Name of the place, such as &lt;script&gt;" in page and HOSTILE not in page


async def test_unrecorded_tools_of_a_request_are_shown_as_such(client: TestClient, db: Path) -> None:
    number = requests_of(client, "long")[-1]["id"]
    assert "Tools sent beside" in client.get(f"/requests/{number}").text
    store = SQLiteStore(db)
    await store.perform(lambda opened: opened.execute("DELETE FROM toolsets"))
    await store.close()
    assert client.get(f"/api/requests/{number}").json()["tools"] is None
    assert "The tools of this request are not recorded." in client.get(f"/requests/{number}").text


@pytest.mark.parametrize(
    "schema", [{}, {"properties": 1}, {"properties": {"a": 2}}, {"properties": {"a": {"enum": 3, "items": "x"}}}]
)
def test_a_tool_with_an_invalid_schema_is_still_shown(schema: dict[str, object]) -> None:
    tool = Tool(kind="function", name="odd", description=None, parameters=schema)
    assert all(one.kind == "any" for one in arguments(tool))


def test_a_message_has_an_address_with_its_json(client: TestClient) -> None:
    number = requests_of(client, "long")[-1]["id"]
    shown = client.get(f"/api/requests/{number}").json()["messages"]
    answer = client.get(f"/api/requests/{number}/messages/1").json()
    assert answer["message"]["parts"] == shown[1]["parts"] and answer["total"] == len(shown)
    raw = json.loads(answer["json"])
    assert raw["kind"] in ("request", "response") and raw["parts"]
    assert "part_kind" in client.get(f"/requests/{number}/messages/1").text
    missing = client.get(f"/api/requests/{number}/messages/4000")
    assert missing.status_code == 404 and "has no message 4000" in missing.json()["error"]


def test_messages_are_steered_where_they_are_shown(client: TestClient) -> None:
    session, number = number_of(client, "long"), requests_of(client, "long")[-1]["id"]
    request, why = client.get(f"/requests/{number}").text, client.get(f"/requests/{number}/why").text
    for page in (request, why):
        assert f'data-steer="/api/sessions/{session}"' in page and 'data-pin="m' in page and 'data-from="m' in page
    first = why.partition('data-pin="m')[2].partition('"')[0]
    assert client.post(f"/api/sessions/{session}/pin", json={"message": f"m{first}"}).status_code == 200
    bare = requests_of(client, "bare")[-1]["id"]
    assert "data-pin" not in client.get(f"/requests/{bare}").text
