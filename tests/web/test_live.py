"""Requests and compiles that appear while somebody looks."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic_ai import Agent
from starlette.testclient import TestClient

from context_compiler import ContextCompiler, SQLiteStore
from context_compiler.record import browse
from context_compiler.record.browse import ModelCall, RequestRow, SessionFilter
from context_compiler.record.store import SQLStore, Store, open_store
from context_compiler.record.values import Entry, now
from context_compiler.web.app import create_app
from context_compiler.web.data import Inspector
from context_compiler.web.live import MAX_NEW, OVERLAP, Shown, live_events
from tests.support.agents import Talker
from tests.web.conftest import number_of


async def test_requests_of_a_running_agent_appear(db: Path) -> None:
    store = SQLiteStore(db, read_only=True)
    seen: list[int] = []

    def render(rows: list[RequestRow], under_way: list[ModelCall] | None) -> str:
        seen.extend(row.id for row in rows)
        return "<tr>\n\n<td>new</td></tr>"

    events = live_events(Inspector(store), None, render, pause=0.01)
    await anext(events)
    waiting = asyncio.ensure_future(anext(events))
    writer = SQLiteStore(db)
    compiler = ContextCompiler(model="none", store=writer, system=None)
    await Agent(Talker().model, capabilities=[compiler]).run("now", conversation_id="live")
    mark, *lines = (await waiting).splitlines()
    assert mark.startswith("id: ") and lines == ["data: <tr>", "data: <td>new</td></tr>", ""]
    [newest, *_] = await writer.views("live")
    assert seen == [newest.id]
    await events.aclose()
    await writer.close()
    await store.close()


async def test_a_compile_of_another_process_is_shown_until_its_outcome_is_there(client: TestClient, db: Path) -> None:
    number = number_of(client, "long")
    assert "is being written" not in client.get(f"/sessions/{number}").text
    seen: list[list[str] | None] = []
    writer, reader = SQLiteStore(db), SQLiteStore(db, read_only=True)

    def render(rows: list[RequestRow], under_way: list[ModelCall] | None) -> str:
        seen.append(None if under_way is None else [call.model for call in under_way])
        return "."

    events = live_events(Inspector(reader), number, render, pause=0.01)
    assert await writer.announce_compile("long", "", "<b>writer</b>", 60)
    await anext(events)
    page = client.get(f"/sessions/{number}").text
    assert "is being written by <b>&lt;b&gt;writer" in page and "<b>writer</b>" not in page
    assert client.get(f"/api/sessions/{number}").json()["under_way"][0]["model"] == "<b>writer</b>"
    (made, *_) = await writer.summaries("long")
    record = replace((await writer.views("long"))[0], id=None, run_id="later", raw_tip=None, view_tip=None)
    row = replace(made, created_at=now(), cache_key=None)
    await writer.save(Entry(record=replace(record, summary_id=None, compile=None), raw=None, view=None, compile=row))
    await anext(events)
    assert seen == [["<b>writer</b>"], []]
    assert "is being written" not in client.get(f"/sessions/{number}").text
    await events.aclose()
    await writer.close()
    await reader.close()


def listener(client: TestClient, session: str) -> tuple[int, str]:
    """Number of a session, and the mark of what its page has."""
    number = number_of(client, session)
    match = re.search(
        rf'hx-sse:connect="/live\?session={number}&amp;since=([0-9a-f.]+)"', client.get(f"/sessions/{number}").text
    )
    assert match
    return number, match[1]


async def heard(inspector: Inspector, session: int | None, since: str) -> tuple[list[int], str]:
    """Requests of the first event for a page, newest first, and the mark of what it has then."""
    seen: list[int] = []

    def render(rows: list[RequestRow], under_way: list[ModelCall] | None) -> str:
        seen.extend(row.id for row in rows)
        return "."

    events = live_events(inspector, session, render, since=since, pause=0.01)
    mark = (await anext(events)).splitlines()[0].removeprefix("id: ")
    await events.aclose()
    return seen, mark


async def ask(store: Store, session: str, *, times: int = 1) -> list[int]:
    """Requests of an agent in another process: their numbers, oldest first."""
    compiler = ContextCompiler(model="none", store=store, system=None)
    for number in range(times):
        await Agent(Talker().model, capabilities=[compiler]).run(f"prompt {number}", conversation_id=session)
    return [view.id or 0 for view in (await store.views(session))[:times][::-1]]


async def test_requests_made_while_a_page_is_disconnected_are_not_missed(client: TestClient, db: Path) -> None:
    number, mark = listener(client, "long")
    writer, reader = SQLiteStore(db), SQLiteStore(db, read_only=True)
    inspector = Inspector(reader)
    first = await ask(writer, "long")
    assert (await heard(inspector, number, mark))[0] == first
    _, mark = await heard(inspector, number, mark)
    missed = await ask(writer, "long", times=2)
    others = await ask(writer, "another")
    assert (await heard(inspector, number, mark))[0] == missed[::-1]
    assert (await heard(inspector, None, mark))[0] != others
    with TestClient(create_app(db, system=None), base_url="http://127.0.0.1") as again:
        again.app.state.is_ending = iter([False, True]).__next__  # pyright: ignore
        answer = again.get("/live", params={"session": number}, headers={"last-event-id": mark}).text
    assert [int(digits) for digits in re.findall(r'<tr id="r(\d+)"', answer)] == missed[::-1]
    await writer.close()
    await reader.close()


async def test_more_requests_than_one_event_holds_arrive_in_several(db: Path) -> None:
    writer = SQLiteStore(db)
    every = await ask(writer, "many", times=MAX_NEW + 5)
    number = await writer.perform(lambda database: browse.session_number(database, "many"))
    first, mark = await heard(Inspector(writer), number, "0.0")
    assert first == every[:MAX_NEW][::-1]
    assert (await heard(Inspector(writer), number, mark))[0] == every[MAX_NEW:][::-1]
    await writer.close()


@pytest.mark.parametrize("mark", ["", "x", "1", "-1.f", "9" * 16 + ".1", "1." + "f" * 300, "٣.1"])
def test_an_invalid_mark_is_ignored(mark: str) -> None:
    assert Shown.parse(mark) is None


def test_a_mark_keeps_the_shown_numbers_within_a_bounded_length() -> None:
    shown = Shown().plus([1, 3, 7], 9)
    assert Shown.parse(shown.mark) == shown
    far = shown.plus(range(5, 10 * OVERLAP, 2))
    assert Shown.parse(far.mark) == far and len(far.mark) < 300
    assert far.settled == far.newest - OVERLAP and min(far.numbers) > far.settled


async def test_a_request_that_is_committed_after_one_with_a_higher_number_is_shown(postgres_url: str) -> None:
    asyncpg = pytest.importorskip("asyncpg")
    store = open_store(postgres_url)
    assert isinstance(store, SQLStore)
    (early,) = await ask(store, "slow")
    (number,) = {
        session.id for session in await store.perform(lambda db: browse.sessions_page(db, SessionFilter(), limit=9)[0])
    }
    slow = await asyncpg.connect(postgres_url)
    transaction = slow.transaction()
    await transaction.start()
    schema = await slow.fetchval(
        "SELECT schemaname FROM pg_tables WHERE tablename = 'views' AND schemaname <> 'pg_catalog'"
    )
    late = await slow.fetchval(
        f"INSERT INTO {schema}.views SELECT (json_populate_record(v, json_build_object('run_id', 'late', 'id',"
        f" nextval('{schema}.views_numbers')))).* FROM {schema}.views v WHERE v.id = $1 RETURNING id",
        early,
    )
    seen: list[int] = []

    def render(rows: list[RequestRow], under_way: list[ModelCall] | None) -> str:
        seen.extend(row.id for row in rows)
        return "."

    async with asyncio.timeout(60):
        events = {session: live_events(Inspector(store), session, render, pause=0.01) for session in (number, None)}
        for stream in events.values():
            await anext(stream)
        (fast,) = await ask(store, "fast")
        await anext(events[None])
        assert seen == [fast] and fast > late
        (next_,) = await ask(store, "slow")
        for stream in events.values():
            await anext(stream)
        assert seen == [fast, next_, next_]
        await transaction.commit()
        for stream in events.values():
            await anext(stream)
    assert seen == [fast, next_, next_, late, late]
    for stream in events.values():
        await stream.aclose()
    await slow.close()
    await store.close()
