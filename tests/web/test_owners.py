"""The inspector of one owner shows nothing of another: no session, request, compile, text or run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from context_compiler.errors import SettingsError
from context_compiler.pipeline import RunConfig, run_pipeline
from context_compiler.record.store import SQLiteStore
from context_compiler.web.app import create_app
from tests.pipeline.playing import graph
from tests.record.entries import Talk, compiled, request


@pytest.fixture
def db(tmp_path: Path) -> Path:
    async def record() -> None:
        store = SQLiteStore(tmp_path / "context.db")
        for owner in ("ann", "bob"):
            raw = Talk(f"the journey of {owner}", "and", "so on")
            made = compiled(raw.ids[0], template_name=f"template_of_{owner}", summary=f"summary of {owner}")
            await store.scoped(owner).save(
                request(raw, Talk(f"a summary for {owner}"), compile=made, session_id="chat", ledger={})
            )
        await store.close()

    asyncio.run(record())
    return tmp_path / "context.db"


def test_an_owner_sees_their_own(db: Path) -> None:
    client = TestClient(create_app(db, system=None, owner="ann"), base_url="http://localhost")
    answer = client.get("/api/sessions").json()
    assert [row["owner"] for row in answer["sessions"]] == ["ann"] and answer["templates"] == ["template_of_ann"]
    assert client.get("/api/sessions?text=journey").json()["pages"]["total"] == 1
    for path in ("/sessions/{}", "/requests/{}", "/requests/{}/why", "/requests/{}/export", "/compiles/{}"):
        for page in (path, f"/api{path}"):
            assert client.get(page.format(1)).status_code == 200, page
            assert client.get(page.format(2)).status_code == 404, page
    pages = "".join(client.get(path).text for path in ("/sessions", "/sessions/1", "/requests/1", "/compiles/1"))
    assert "of_ann" in pages and "bob" not in pages


def test_without_an_owner_every_owner_is_shown(db: Path) -> None:
    client = TestClient(create_app(db, system=None), base_url="http://localhost")
    assert {session["owner"] for session in client.get("/api/sessions").json()["sessions"]} == {"ann", "bob"}
    assert [client.get(f"/api/requests/{number}").status_code for number in (1, 2)] == [200, 200]
    assert "of ann" in client.get("/sessions/1").text
    assert all(owner in client.get("/sessions").text for owner in ("ann", "bob"))


def test_an_owner_is_shown_only_their_own_runs(db: Path, tmp_path: Path) -> None:
    for owner in ("ann", "bob"):
        config = RunConfig(simulate=True, runs=tmp_path / "runs.db", compiler={"owner": owner})
        asyncio.run(run_pipeline(graph("a [prompt=a]; start->a->done"), config, run_id=f"run of {owner}"))
    app = create_app(db, system=None, runs=tmp_path / "runs.db", owner="ann")
    client = TestClient(app, base_url="http://localhost")
    assert [run["run_id"] for run in client.get("/api/pipelines").json()["runs"]] == ["run of ann"]
    for path in ("/api/pipeline?run=run of {}", "/pipeline?run=run of {}"):
        assert client.get(path.format("ann")).status_code == 200, path
        assert client.get(path.format("bob")).status_code == 404, path


def test_an_owner_is_shown_the_templates_of_their_vault(db: Path, tmp_path: Path) -> None:
    for owner in ("ann", "bob"):
        folder = tmp_path / "prompts" / owner / "AssistantMD" / "ContextTemplates"
        folder.mkdir(parents=True)
        (folder / f"handover_of_{owner}.md").write_text(f"The handover of {owner}.")
    vault = tmp_path / "prompts" / "{owner}"
    client = TestClient(create_app(db, system=None, vault=vault, owner="ann"), base_url="http://localhost")
    page = client.get("/api/templates").text
    assert "handover_of_ann" in page and "handover_of_bob" not in page
    for name, status in (("handover_of_ann", 200), ("handover_of_bob", 404)):
        assert client.get(f"/api/template?name={name}&source=vault").status_code == status
    with pytest.raises(SettingsError, match="name the owner"):
        create_app(db, system=None, vault=vault)
