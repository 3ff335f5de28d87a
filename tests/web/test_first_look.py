"""What the first look at a page does not wait for: compiled templates, and messages that another page has read."""

from __future__ import annotations

import gc
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from threading import enumerate as threads
from typing import Any

import pytest
import uvicorn
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from starlette.testclient import TestClient
from typer.testing import CliRunner

from context_compiler import ContextCompiler
from context_compiler.cli.root import app
from context_compiler.compiler.trace import Tracer
from context_compiler.record import browse
from context_compiler.record.store import SQLStore, open_store
from context_compiler.web.app import create_app
from context_compiler.web.pages import environment
from tests.support.agents import Talker


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "context.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")


async def talk(store: SQLStore) -> None:
    """A conversation of many turns whose middle was said again in other words."""
    compiler = ContextCompiler(model="none", store=store, system=None, budget=600, recall=0)
    agent = Agent(Talker("I see. " * 8).model, capabilities=[compiler])
    histories: list[list[ModelMessage]] = [[]]
    for number in range(45):
        result = await agent.run(f"prompt {number}", message_history=histories[-1], conversation_id="talk")
        histories.append(result.all_messages())
    for number in range(1, 4):
        await agent.run(f"another {number}", message_history=histories[5 * number], conversation_id="talk")


async def chains(store: SQLStore, session: int, tips: Sequence[str]) -> dict[str, tuple[browse.Node, ...]]:
    """Chains that are read one after the other."""
    tracer = Tracer(store)
    return {tip: await store.perform(partial(tracer.chain, tip=tip, session=session)) for tip in tips}


async def test_parts_shared_with_another_request_are_read_from_memory(place: str) -> None:
    store = open_store(place)
    assert isinstance(store, SQLStore)
    await talk(store)
    (session,) = [number for number, *_ in await store.perform(browse.newest_conversations)]
    tips = await store.perform(lambda db: browse.request_tips(db, session))
    every = [tip for request in tips for tip in (request.raw_tip, request.view_tip) if tip is not None]
    alone = {tip: (await chains(store, session, [tip]))[tip] for tip in every}
    longest = max(alone, key=lambda tip: len(alone[tip]))
    assert len(alone[longest]) > browse.NEAR
    for order in (every, every[::-1], sorted(every), [longest, *every]):
        assert await chains(store, session, order) == alone
    earlier = tips[30].raw_tip
    assert earlier is not None and alone[longest][: len(alone[earlier])] == alone[earlier]
    together = await chains(store, session, [longest, earlier])
    again = zip(together[longest], together[earlier][:-1], strict=False)
    assert len(together[earlier]) > 50 and all(node is other for node, other in again)
    await store.close()


def test_templates_are_compiled_when_the_server_starts(db: Path) -> None:
    environment.cache_clear()
    with TestClient(create_app(db, system=None), base_url="http://127.0.0.1") as client:
        for thread in threads():
            if thread.name == "prepare":
                thread.join()
        before = {name for _, name in environment().cache or ()}
        for path in ("/sessions", "/sessions/1", "/requests/20", "/requests/20/why", "/requests/20/diff"):
            assert client.get(path).status_code == 200
        assert {name for _, name in environment().cache or ()} == before


def test_a_server_excludes_its_own_code_from_garbage_collection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def run(server: uvicorn.Server, sockets: Any) -> None:
        calls.append("run")
        sockets[0].close()

    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    monkeypatch.setattr(uvicorn.Server, "run", run)
    done = CliRunner().invoke(app, ["serve", "--db", str(tmp_path / "context.db"), "--model", "scripted", "--json"])
    assert json.loads(done.stdout)["url"].startswith("http://127.0.0.1:")
    assert calls == ["freeze", "run"]
