"""A record in PostgreSQL: every command that takes the path of a file takes its address too, and so do the pages."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import pytest
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel
from typer.testing import CliRunner

from context_compiler import ContextCompiler
from context_compiler.cli.root import app


def run(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture
def url(postgres_url: str, sync_loop: object) -> str:
    """The address of a record with one conversation of two requests."""
    compiler = ContextCompiler(store=postgres_url, system=None)
    agent = Agent(TestModel(custom_output_text="Oslo, as you said"), capabilities=[compiler])
    first = agent.run_sync("I live in Oslo.", conversation_id="ann")
    agent.run_sync("Where do I live?", conversation_id="ann", message_history=first.all_messages())
    return postgres_url


def test_commands_read_prune_and_delete(url: str):
    report = json.loads(run("verify", "--db", url, "--json"))
    assert report["sound"] and report["db"].startswith("postgresql://postgres@") and "host=" not in report["db"]
    (session,) = json.loads(run("sessions", "list", "--db", url, "--json"))["sessions"]
    assert (session["session_id"], session["requests"]) == ("ann", 2)
    assert "Oslo" in run("views", "show", "2", "--db", url)
    assert "views list" in run("views", "show", "7", "--db", url, code=2)
    rows = [json.loads(line) for line in run("export", "--db", url).splitlines()]
    assert sum(row["table"] == "views" for row in rows) == 2
    assert "1 request removed" in run("prune", "--keep-last", "1", "--db", url)
    assert "1 request" in run("sessions", "delete", "ann", "--yes", "--db", url)
    assert json.loads(run("sessions", "list", "--db", url, "--json"))["sessions"] == []


def test_a_fact_is_found_by_its_words_or_near_ones(url: str):
    exact = json.loads(run("sessions", "find", "ann", "live in Oslo", "--db", url, "--json"))
    assert exact["said_in"] == 1 and exact["had"] == 2 and not exact["near"]
    near = json.loads(run("sessions", "find", "ann", "lived Osol", "--db", url, "--json", code=1))
    assert not near["said_in"] and "I live in Oslo." in [match["fact"] for match in near["near"]]
    assert "I live in Oslo." in run("sessions", "find", "oslo lives", "--db", url, code=1)


async def test_the_pages_show_it(url: str, tmp_path: Path):
    web = pytest.importorskip("context_compiler.web.app")
    made = web.create_app(url, system=tmp_path)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(made), base_url="http://127.0.0.1") as client:
        listed = (await client.get("/api/sessions?name=AN&text=live in oslo&status=raw")).json()
        assert [session["session_id"] for session in listed["sessions"]] == ["ann"]
        page = (await client.get("/sessions")).text
        assert "ann" in page and "postgresql://postgres@" in page
        for path in re.findall(r'href="(/(?:sessions|requests)/[^"#]+)"', page)[:3] + [
            "/requests/2",
            "/requests/2/why",
        ]:
            answer = await client.get(path)
            assert answer.status_code == 200, (path, answer.text[:300])


def test_an_unreachable_address_is_reported_in_one_line_without_its_password():
    pytest.importorskip("asyncpg")
    said = run("verify", "--db", "postgresql://ann:secret@127.0.0.1:1/x", code=2)
    assert "secret" not in said and "check that the server runs" in said and len(said.splitlines()) == 1
