"""The chat of the server: one conversation for every tab, terminal and program that listens."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic_ai import Agent
from starlette.testclient import TestClient

from context_compiler.chat.demo_model import ScriptedModel
from context_compiler.chat.session import ChatSession
from context_compiler.chat.transcript import Transcript
from context_compiler.middleware.capability import ContextCompiler
from context_compiler.record.store import SQLiteStore
from context_compiler.web.app import create_app
from tests.chat.test_faults import Full
from tests.web.browser import chat_app, serving

HOSTILE = "<script>alert(1)</script> <img src=x onerror=alert(1)> [x](javascript:alert(1)) ![y](http://evil.example/y)"


class Tab:
    """A page of a chat that is listened to."""

    def __init__(self, address: str, session: str = "main") -> None:
        self.client = httpx.AsyncClient(base_url=address, timeout=120, params={"session": session})
        self.heard: list[tuple[str, Any]] = []

    async def __aenter__(self) -> Tab:
        self._task = asyncio.create_task(self._listen())
        await self.until("state")
        return self

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
        await self.client.aclose()

    async def _listen(self) -> None:
        async with self.client.stream("GET", "/api/chat/events") as answer:
            name = ""
            async for line in answer.aiter_lines():
                if line.startswith("event: "):
                    name = line[7:]
                elif line.startswith("data: "):
                    self.heard.append((name, json.loads(line[6:])))

    async def until(self, name: str, count: int = 1) -> Any:
        """Wait for the nth event of a kind; its value."""
        while len(values := [value for event, value in self.heard if event == name]) < count:
            await asyncio.sleep(0.01)
            assert not self._task.done(), self._task.exception()
        return values[count - 1]

    async def say(self, text: str, **more: Any) -> httpx.Response:
        return await self.client.post("/api/chat", json={"text": text, **more})

    async def page(self) -> str:
        return (await self.client.get("/chat/turns")).text


async def test_every_tab_gets_one_answer_with_a_link_to_its_request(tmp_path: Path) -> None:
    with serving(chat_app(tmp_path)) as address:
        async with Tab(address) as tab, Tab(address) as other:
            assert (await tab.say("Never deploy on Fridays.")).status_code == 202
            done = await tab.until("done")
            assert await other.until("done") == done
            assert [value for name, value in tab.heard if name == "piece"]
            assert done["error"] == "" and done["sent"] > 0 and done["budget"] == 2_000
            async with httpx.AsyncClient(base_url=address) as client:
                request = await client.get(f"/api/requests/{done['request']}")
            assert "Never deploy on Fridays." in request.text
            assert f'href="/requests/{done["request"]}"' in await other.page()


async def test_an_answer_is_rendered_as_safe_markdown_while_it_is_written(tmp_path: Path) -> None:
    with serving(chat_app(tmp_path, delay=0.03)) as address:
        async with Tab(address) as tab:
            await tab.say(f"Never deploy **on Fridays** {HOSTILE}.")
            await tab.until("done")
            await tab.say("What must you never do **on Fridays**?")
            await tab.until("rendered", 4)
            async with Tab(address) as late:
                assert (await late.until("state"))["pending"]["html"].startswith("<")
            await tab.until("done", 2)
            seen = [value["html"] for name, value in tab.heard if name == "rendered"]
            pieces = [value["text"] for name, value in tab.heard if name == "piece"]
    assert any("<strong>on Fridays</strong>" in html for html in seen)
    assert not any(re.search(r"<(?:script|img)|href=.javascript", html) for html in seen)
    assert len(seen) < len(pieces)


async def test_a_second_prompt_is_refused_during_an_answer_and_stop_keeps_the_shown_part(
    tmp_path: Path,
) -> None:
    with serving(chat_app(tmp_path, delay=0.05)) as address:
        async with Tab(address) as tab:
            await tab.say("Where do I look first?")
            await tab.until("piece", 3)
            refused = await tab.say("And then?")
            assert refused.status_code == 409 and "still being written" in refused.json()["error"]
            async with Tab(address) as late:
                state = await late.until("state")
                assert state["pending"]["prompt"] == "Where do I look first?" and state["pending"]["text"]
            assert (await tab.client.post("/api/chat/stop")).json() == {"stopped": True}
            done = await tab.until("done")
            shown = "".join(value["text"] for name, value in tab.heard if name == "piece")
            assert done["stopped"] and shown
            assert (tmp_path / "Chat_Sessions" / "main.md").read_text().count(shown.strip()[:20]) == 1
            assert (await tab.client.post("/api/chat/stop")).json() == {"stopped": False}
            await tab.say("And then?", endless=False)
            done = await tab.until("done", 2)
            assert done["budget"] is None and done["status"] == "raw"
            page = await tab.page()
            assert "And then?" in page and f'href="/requests/{done["request"]}"' in page


async def test_an_answer_that_waits_for_another_terminal_ends_when_it_is_stopped(tmp_path: Path) -> None:
    terminal = Transcript(tmp_path / "Chat_Sessions", "main")
    with serving(chat_app(tmp_path)) as address:
        async with Tab(address) as tab:
            assert terminal.acquire()
            await tab.say("Where do I look first?")
            assert "waiting for it" in (await tab.until("notice"))["text"]
            assert (await tab.client.post("/api/chat/stop")).json() == {"stopped": True}
            async with asyncio.timeout(60):
                assert await tab.until("done") == {"error": "", "unsent": "Where do I look first?"}
                assert await tab.until("notice", 2) == {"text": "stopped while waiting: nothing was sent"}
            assert "Where do I look first?" not in await tab.page()
            terminal.close()
            await tab.say("And now?")
            assert (await tab.until("done", 2))["error"] == "" and "And now?" in await tab.page()


async def test_a_terminal_and_a_tab_share_a_session_without_a_lost_turn(tmp_path: Path) -> None:
    agent = Agent(ScriptedModel(delay=0), name="chat")
    terminal = ChatSession(agent, "main", store=tmp_path / "context.db", system=tmp_path, budget=2_000)
    with serving(chat_app(tmp_path)) as address:
        async with Tab(address) as tab:
            await tab.say("one")
            await tab.until("done")
            await asyncio.gather(terminal.say("two"), tab.say("three"))
            await tab.until("done", 2)
            await tab.say("four")
            await tab.until("done", 3)
            page = await tab.page()
            await terminal.say("five")
    await terminal.close()
    assert all(f'dir="auto">{word}</div>' in page for word in ("one", "two", "three", "four"))
    stored = (tmp_path / "Chat_Sessions" / "main.md").read_text()
    assert [stored.count(f"**User:**\n\n{word}\n") for word in ("one", "two", "three", "four", "five")] == [1] * 5


async def test_a_server_stopped_during_an_answer_keeps_it(tmp_path: Path) -> None:
    with serving(chat_app(tmp_path, delay=0.05)) as address:
        async with Tab(address) as tab:
            await tab.say("Where do I look first?")
            await tab.until("piece", 4)
            shown = "".join(value["text"] for name, value in tab.heard if name == "piece")
    with serving(chat_app(tmp_path)) as address:
        async with Tab(address) as tab:
            page = await tab.page()
            assert "Where do I look first?" in page and shown.split()[0] in page
            assert (await tab.until("state"))["turns"] == 1


async def test_a_missing_template_is_reported_and_the_chat_continues(tmp_path: Path) -> None:
    with serving(chat_app(tmp_path)) as address:
        async with Tab(address) as tab:
            await tab.say("hello", template="no_such_template")
            assert "no_such_template" in (await tab.until("notice"))["text"]
            done = await tab.until("done")
            assert done["error"] == "" and done["sent"] > 0
            await tab.say("hello again", template="chat_compiler")
            assert (await tab.until("done", 2))["status"] == "raw"


@pytest.mark.parametrize("impatient", [2_000], indirect=True)  # longer than a request waits for the record
@pytest.mark.usefixtures("impatient")
async def test_a_record_locked_by_another_process_is_reported_and_nothing_is_lost(tmp_path: Path) -> None:
    with serving(chat_app(tmp_path)) as address:
        async with Tab(address) as tab:
            await tab.say("Before the lock.")
            await tab.until("done")
            with closing(sqlite3.connect(tmp_path / "context.db", isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                await tab.say("While it is locked.")
                done = await tab.until("done", 2)
                assert "the record did not answer within" in (await tab.until("notice"))["text"]
                other.execute("ROLLBACK")
            assert done["error"] == "" and done["sent"] > 0
            store = SQLiteStore(tmp_path / "context.db")
            async with asyncio.timeout(300):
                while len(await store.views("main")) < 2:  # it is recorded behind the answer
                    await asyncio.sleep(0.05)
            await tab.say("After the lock.")
            assert (await tab.until("done", 3))["request"] is not None
            page = await tab.page()
    assert all(text in page for text in ("Before the lock.", "While it is locked.", "After the lock."))
    assert (tmp_path / "Chat_Sessions" / "main.md").read_text().count("**Assistant:**") == 3
    assert b"While it is locked." in b"".join(await store.transcript("main")) and await store.verify() == ()
    await store.close()


async def test_a_full_disk_is_reported_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(chat_app(tmp_path)) as address:
        async with Tab(address) as tab:
            await tab.say("There is room.")
            await tab.until("done")
            disk = Full(monkeypatch, 0)
            await tab.say("There is none.")
            assert "No space left on device" in (await tab.until("notice"))["text"]
            done = await tab.until("done", 2)
            assert done["error"] == "" and "There is none." in await tab.page()
            disk.room = 10**9
            await tab.say("There is again.")
            await tab.until("done", 3)
    monkeypatch.undo()
    stored = (tmp_path / "Chat_Sessions" / "main.md").read_text()
    assert [stored.count(f"**User:**\n\nThere is {word}.\n") for word in ("room", "none", "again")] == [1] * 3


async def test_a_model_that_cannot_be_used_is_refused_and_the_next_prompt_is_answered(tmp_path: Path) -> None:
    with serving(chat_app(tmp_path)) as address:
        async with Tab(address) as tab:
            wrong = await tab.say("hello", model="nowhere:nothing")
            assert wrong.status_code == 422 and "nowhere:nothing" in wrong.json()["error"]
            assert (await tab.say("hello")).status_code == 202
            assert (await tab.until("done"))["error"] == ""


@pytest.fixture
def client(tmp_path: Path) -> Any:
    with TestClient(chat_app(tmp_path), base_url="http://127.0.0.1") as made:
        yield made


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"[]", "not a JSON object"),
        (b"{", "not a JSON object"),
        (b'{"text": ""}', "give a prompt"),
        (b'{"text": 5}', "text: give a string"),
        (b'{"text": "x", "endless": "yes"}', "endless: give a boolean"),
        (b'{"text": "' + b"x" * 400_001 + b'"}', "at most"),
    ],
)
def test_an_invalid_prompt_is_refused_with_the_reason(client: TestClient, body: bytes, words: str) -> None:
    answer = client.post("/api/chat", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400 and words in answer.json()["error"]


def test_a_form_of_another_site_cannot_send_a_prompt(client: TestClient) -> None:
    assert client.post("/api/chat", content=b'{"text": "x"}', headers={"content-type": "text/plain"}).status_code == 400
    origin = {"origin": "http://evil.example"}
    assert client.post("/api/chat", json={"text": "x"}, headers=origin).status_code == 403


@pytest.mark.parametrize("name", ["", " ", "a\x00b", "x" * 201, "\u202eevil"])
def test_a_name_that_cannot_be_shown_is_refused(client: TestClient, name: str) -> None:
    assert client.get("/api/chat", params={"session": name}).status_code == 400


async def test_hostile_text_stays_text(tmp_path: Path) -> None:
    name = "<b>../../x</b>"
    with serving(chat_app(tmp_path)) as address:
        async with Tab(address, name) as tab:
            await tab.say(HOSTILE)
            await tab.until("done")
            page = await tab.page()
            whole = (await tab.client.get("/chat")).text
    for text in (page, whole):
        assert "<script>alert" not in text and "<img" not in text
        assert 'href="javascript:' not in text and "<b>../../x" not in text
    assert [file.parent for file in tmp_path.rglob("*.md") if file.parent.name == "Chat_Sessions"] == [
        tmp_path / "Chat_Sessions"
    ]


def test_a_server_without_a_chat_explains_how_to_start_one(tmp_path: Path) -> None:
    with TestClient(create_app(tmp_path / "context.db"), base_url="http://127.0.0.1") as client:
        answer = client.get("/chat")
        assert answer.status_code == 404 and "context-compiler serve" in answer.text


async def test_an_answer_of_normal_mode_links_to_its_request_too(tmp_path: Path) -> None:
    with serving(chat_app(tmp_path)) as address:
        async with Tab(address) as tab, httpx.AsyncClient(base_url=address) as client:
            for number in range(1, 4):
                await tab.say(f"Question {number}: {'what is in the queue? ' * 200}", endless=number == 2)
                await tab.until("done", number)
            page = await tab.page()
            assert [f'href="/requests/{number}"' in page for number in (1, 2, 3, 4)] == [True, True, True, False]
            assert "no request recorded" not in page
            answer = (await client.get("/api/requests/3")).json()
            assert answer["request"]["status"] == "raw" and answer["request"]["budget"] is None
            assert answer["pages"]["total"] == 5 and answer["request"]["tokens_sent"] > 2_000
            shown = await client.get("/requests/3")
            assert shown.status_code == 200 and "budget of" not in shown.text
            assert (await client.get("/requests/3/why")).status_code == 200
            assert (await client.get("/requests/3/replay")).status_code == 200
    with serving(chat_app(tmp_path)) as address:
        async with Tab(address) as tab:
            assert 'href="/requests/3"' in await tab.page()


async def test_a_tab_links_to_the_requests_of_a_terminal(tmp_path: Path) -> None:
    agent = Agent(ScriptedModel(delay=0), name="chat")
    terminal = ChatSession(agent, "main", store=tmp_path / "context.db", system=tmp_path)
    with serving(chat_app(tmp_path)) as address:
        async with Tab(address) as tab:
            await terminal.say("Hello.")
            await tab.until("turns")
            assert 'href="/requests/1"' in await tab.page()
    await terminal.close()


async def test_a_session_of_another_program_is_continued_as_a_copy_and_never_written_to(tmp_path: Path) -> None:
    recorded = Agent(
        ScriptedModel(delay=0), capabilities=[ContextCompiler(store=tmp_path / "context.db", budget=2_000)]
    )
    await recorded.run("My number is ZX-4711.", conversation_id="theirs")
    store = SQLiteStore(tmp_path / "context.db")
    before = await store.transcript("theirs")
    with TestClient(chat_app(tmp_path), base_url="http://localhost") as client:
        page = client.get("/chat?session=theirs")
        assert page.status_code == 409 and "Continue as a new chat" in page.text
        assert client.post("/api/chat?session=theirs", json={"text": "Hi"}).status_code == 409
        assert client.post("/api/chat/copy?session=nobody", json={}).status_code == 400
        made = client.post("/api/chat/copy?session=theirs", json={})
        assert (made.status_code, made.json()["session"]) == (201, "theirs (copy)")
        assert "ZX-4711" in client.get("/chat?session=theirs (copy)").text
        assert client.post("/api/chat?session=theirs (copy)", json={"text": "Go on."}).status_code == 202
    assert await store.transcript("theirs") == before
    assert {info.session_id for info in await store.sessions()} == {"theirs", "theirs (copy)"}
    await store.close()


def test_a_server_without_a_chat_only_shows_the_record_and_steers(tmp_path: Path) -> None:
    with TestClient(create_app(tmp_path / "context.db", system=None), base_url="http://localhost") as client:
        page = client.get("/chat")
        assert page.status_code == 404 and "serve --chat" in page.text
        assert client.post("/api/chat", json={"text": "Hi"}).status_code == 404


def test_a_page_of_a_chat_writes_nothing(tmp_path: Path) -> None:
    with TestClient(chat_app(tmp_path), base_url="http://localhost") as client:
        before = sorted(tmp_path.rglob("*"))
        for path in ("/chat", "/chat/turns", "/api/chat"):
            assert client.get(path, params={"session": "new"}).status_code == 200
        assert sorted(tmp_path.rglob("*")) == before


async def test_a_page_shows_a_turn_that_was_cut_short_and_a_prompt_repairs_it(tmp_path: Path) -> None:
    cut = Transcript(tmp_path / "Chat_Sessions", "main")
    cut.repair()
    cut.begin_turn("What did I ask?", datetime(2026, 1, 1, tzinfo=UTC))
    cut.close()
    text = cut.path.read_text()
    with serving(chat_app(tmp_path)) as address:
        async with Tab(address) as tab:
            assert "What did I ask?" in await tab.page() and cut.path.read_text() == text
            assert (await tab.say("And now?")).status_code == 202
            await tab.until("done")
            page = await tab.page()
    assert "What did I ask?" in page and "And now?" in page and cut.path.read_text().startswith(text)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are counted by the system")
def test_chats_that_nobody_uses_are_closed_and_open_again(tmp_path: Path) -> None:
    with TestClient(chat_app(tmp_path), base_url="http://localhost") as client:
        assert client.post("/api/chat?session=chat0", json={"text": "My number is ZX-4711."}).status_code == 202
        opened: list[int] = []
        for number in range(30):
            assert client.get(f"/chat?session=chat{number}").status_code == 200
            opened.append(len(list(Path("/proc/self/fd").iterdir())))
        assert opened[-1] <= opened[9] + 3
        assert "ZX-4711" in client.get("/chat?session=chat0").text
