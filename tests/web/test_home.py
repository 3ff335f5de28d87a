"""The first page: a question, a picture of all sessions, and their list."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from starlette.testclient import TestClient
from typer.testing import CliRunner

from context_compiler import ContextCompiler, Record
from context_compiler.chat.demo_model import ScriptedModel
from context_compiler.chat.session import ChatSession
from context_compiler.cli.importing import import_record
from context_compiler.cli.root import app
from context_compiler.messages.history import reader_of
from context_compiler.pipeline import RunConfig, run_pipeline
from context_compiler.record.store import SQLiteStore, open_store
from context_compiler.record.values import Entry
from context_compiler.tokens import as_counter
from context_compiler.web.app import create_app
from tests.cli.conftest import DEMO
from tests.support.agents import Talker
from tests.web.conftest import FACT, HOSTILE
from tests.web.test_pipelines import GRAPH


def listed(client: TestClient, **query: str) -> list[dict[str, Any]]:
    return client.get("/api/sessions", params=query).json()["sessions"]


def test_the_totals_are_those_of_the_command_line(client: TestClient, db: Path) -> None:
    total = json.loads(CliRunner().invoke(app, ["stats", "--db", str(db), "--json"]).stdout)["total"]
    overview = client.get("/api/overview").json()
    for name, other in (("requests", "requests"), ("saved", "tokens_saved"), ("compiled", "compiled")):
        assert overview[name] == total[other] > 0
    assert f"{total['tokens_saved']:,}" in client.get("/sessions").text


def test_periods_add_up_to_the_totals(db: Path) -> None:
    asyncio.run(spread(db))
    with TestClient(create_app(db, system=None), base_url="http://127.0.0.1") as client:
        overview = client.get("/api/overview").json()
        assert 2 < len(overview["periods"]) <= 72
        for name in ("requests", "saved", "compiled", "fallbacks"):
            assert sum(period[name] for period in overview["periods"]) == overview[name]
        assert "2026-01-01" in client.get("/sessions").text


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_an_older_conversation_that_is_imported_later_moves_no_totals(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    place = str(tmp_path / "context.db") if kind == "sqlite" else request.getfixturevalue("postgres_url")
    live = [dated("live", f"2026-03-{day:02}", status="raw", run_id="one", tokens_sent=9) for day in range(1, 21)]
    imported = [dated("older", "2026-03-05"), dated("oldest", "2026-01-01"), dated("newest", "2026-04-01")]
    asyncio.run(save(place, [*live, *imported]))
    with TestClient(create_app(place, system=None), base_url="http://127.0.0.1") as client:
        overview = client.get("/api/overview").json()
        assert (overview["sessions"], overview["requests"]) == (1, 20)
        starts = [period["start"][:10] for period in overview["periods"] if period["requests"]]
        assert (starts[0], starts[-1]) == ("2026-03-01", "2026-03-20")
        assert sum(period["requests"] for period in overview["periods"]) == 20
        assert [session["session_id"] for session in listed(client)] == ["newest", "live", "older", "oldest"]


def dated(session: str, day: str, **changes: Any) -> Record:
    """An imported conversation of a day; `changes` make a request of it."""
    history = reader_of(as_counter(None)).read([])
    record = import_record(history, session, datetime.fromisoformat(f"{day}T12:00:00+00:00"))
    return replace(record, raw_tip=None, view_tip=None, request_index=int(day[-2:]), **changes)


async def save(place: str, records: Iterable[Record]) -> None:
    store = open_store(place)
    for record in records:
        await store.save(Entry(record=record, raw=None, view=None))
    await store.close()


async def spread(db: Path) -> None:
    """Move each request of a record half a day behind the one before it."""
    store = SQLiteStore(db)
    move = (
        "UPDATE views SET created_at = strftime('%Y-%m-%dT%H:%M:%S.000000+00:00', '2026-01-01', (id * 12) || ' hours')"
    )
    await store.perform(lambda connection: connection.execute(move))
    await store.close()


@pytest.mark.parametrize("sort", ["requests", "raw", "sent"])
def test_sessions_are_sorted_by_their_figures(client: TestClient, sort: str) -> None:
    column = sort if sort == "requests" else f"tokens_{sort}"
    figures = [one[column] for one in listed(client, sort=sort)]
    assert figures == sorted(figures, reverse=True) and len(set(figures)) > 1
    assert 'aria-sort="descending"' in client.get(f"/sessions?sort={sort}").text


def test_each_session_has_a_kind(tmp_path: Path) -> None:
    db = tmp_path / "context.db"

    async def record() -> None:
        compiler = ContextCompiler(model="none", store=db, system=None)
        for name in ("worker", "r/check"):
            await Agent(Talker().model, capabilities=[compiler]).run("hello", conversation_id=name)
        chat = ChatSession(Agent(ScriptedModel(delay=0)), "holidays", endless=True, store=db, system=tmp_path)
        await chat.say("Where is it warm?")
        await chat.close()

    asyncio.run(record())
    runs = RunConfig(runs=tmp_path / "runs.db", simulate=True)
    asyncio.run(run_pipeline(GRAPH, runs, run_id="r"))
    assert CliRunner().invoke(app, ["import", str(DEMO), "--db", str(db)]).exit_code == 0
    with TestClient(create_app(db, system=tmp_path, runs=runs.runs), base_url="http://127.0.0.1") as client:
        kinds = {session["session_id"]: session["kind"] for session in listed(client)}
        assert kinds == {"worker": "agent", "r/check": "pipeline", "holidays": "chat", "demo": "import"}
        for kind in ("agent", "chat", "import", "pipeline"):
            assert {session["session_id"] for session in listed(client, kind=kind)} == {
                name for name, other in kinds.items() if other == kind
            }


def test_an_empty_record_and_a_missing_one_show_how_to_begin(tmp_path: Path) -> None:
    asyncio.run(SQLiteStore(tmp_path / "other.db").sessions())
    (tmp_path / "notes.db").write_text("not a record")
    for path in (tmp_path / "missing.db", tmp_path / "empty.db"):
        if path.stem == "empty":
            asyncio.run(SQLiteStore(path).sessions())
        with TestClient(create_app(path, system=None), base_url="http://127.0.0.1") as client:
            page = client.get("/sessions")
            assert page.status_code == 200 and "notice bad" not in page.text
            for way in (f"context-compiler demo --db {path}", "ContextCompiler(", "context-compiler import"):
                assert way in page.text
            assert ("other.db" in page.text) == (path.stem == "missing") and "notes.db" not in page.text


def test_the_first_page_asks_for_words_once_and_keeps_them_beside_other_filters(client: TestClient) -> None:
    for path, hidden in (("/sessions", 0), ("/sessions?text=zzyzx", 1)):
        page = client.get(path).text
        assert page.count('type="search" name="q"') == 1 and page.count('name="text"') == hidden
    assert "No session contains <q>zzyzx</q>" in page and "No session matches these filters" not in page
    assert "No session matches these filters" in client.get("/sessions?text=zzyzx&kind=chat").text


def test_a_hostile_name_stays_text_in_the_list(client: TestClient) -> None:
    assert HOSTILE not in client.get("/sessions").text
    assert FACT not in client.get("/sessions").text


def test_found_sessions_show_the_words_and_if_the_newest_request_has_them(client: TestClient) -> None:
    for words in ("hello script", "hello", FACT, "Turn 3: read"):
        sessions = listed(client, text=words)
        page = client.get("/sessions", params={"text": words}).text
        assert sessions and 'aria-label="Totals"' in page
        for session in sessions:
            fact = client.get(f"/api/sessions/{session['id']}/fact", params={"q": words}).json()
            assert session["said"] == [*fact["mentions"], *fact["near"]][0]
            assert session["now"] == (fact["stretches"][-1]["forms"] if fact["mentioned"] else None)
        assert page.count('newest request: <b class="good">') == sum(bool(session["now"]) for session in sessions)
        assert page.count("does not have it") == sum(session["now"] == [] for session in sessions)
    (near,) = listed(client, text="rememver deploying")
    assert "deploy" in near["said"]["fact"] and near["now"] is None


def test_the_fallbacks_of_the_first_page_lead_to_their_requests(client: TestClient, db: Path) -> None:
    with closing(sqlite3.connect(db)) as record:
        record.execute("UPDATE views SET status = 'fallback; error: none' WHERE id = 5")
        record.commit()
    assert 'href="/sessions?status=fallback"' in client.get("/sessions").text
    assert 'href="/sessions/1?status=fallback"' in client.get("/sessions?status=fallback").text
    assert client.get("/api/sessions/1").json()["statuses"]["fallback"] == 1
    page = client.get("/sessions/1?status=fallback").text
    assert re.findall(r'<tr id="r(\d+)">', page) == ["5"] and 'aria-current="true">fallback <b>1</b>' in page


def test_small_amounts_of_money_are_not_rounded_to_nothing(client: TestClient, db: Path) -> None:
    with closing(sqlite3.connect(db)) as record:
        record.execute("UPDATE views SET model = 'gpt-5', provider = 'openai'")
        record.commit()
    money = abs(float(client.get("/api/overview").json()["money"]))
    assert 0.0001 < money < 0.1 and f'<p class="big">${money:.4f}</p>' in client.get("/sessions").text


def test_a_model_without_a_price_is_named_as_such(client: TestClient) -> None:
    page = client.get("/sessions/1").text
    (models,) = re.findall(r"<dt>no price is known for</dt><dd>([^<]+)</dd>", page)
    shown = client.get("/sessions/1/settings?budget=1500").text
    model = models.partition(",")[0]
    assert f'{model} <span class="faint">no price is known for it</span>' in shown and "which are unknown" not in shown
