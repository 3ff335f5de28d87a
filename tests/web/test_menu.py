"""Templates, layers and quality."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

from pydantic_ai import Agent
from starlette.testclient import TestClient

from context_compiler import ContextCompiler, ContextManager, SQLiteStore
from context_compiler.layers import Layers
from context_compiler.manager import SQLiteMemory
from context_compiler.web.app import create_app
from tests.support.agents import Talker
from tests.web.conftest import FACT, number_of, requests_of


def folders(tmp_path: Path) -> tuple[Path, Path]:
    vault, system = tmp_path / "vault", tmp_path / "system"
    ours = vault / "AssistantMD" / "ContextTemplates"
    (ours / "team").mkdir(parents=True)
    (system / "ContextTemplates").mkdir(parents=True)
    (ours / "chat_compiler.md").write_text("---\ndescription: Ours\n---\nNotes: {{ recent_turns }}")
    (ours / "team" / "notes.md").write_text("Team notes {{ topic }}")
    (ours / "broken.md").write_text("---\ncompiler: nobody\n---\nx")
    (system / "ContextTemplates" / "chat_compiler.md").write_text("System notes")
    return vault, system


def test_the_template_menu_is_that_of_the_document(db: Path, tmp_path: Path) -> None:
    vault, system = folders(tmp_path)
    with TestClient(create_app(db, vault=vault, system=system), base_url="http://127.0.0.1") as client:
        templates = client.get("/api/context/templates").json()
        ours = [template for template in templates if template["name"] == "chat_compiler"]
        assert [template["source"] for template in ours] == ["vault", "system", "builtin"]
        assert [template["shadowed_by"] for template in ours] == [None, "vault", "vault"]
        assert {"name", "source", "path", "hash", "description", "shadowed_by"} == set(ours[0])
        team = next(template for template in templates if template["name"] == "team/notes")
        file = vault / "AssistantMD" / "ContextTemplates" / "team" / "notes.md"
        assert team["path"] == "team/notes.md" and team["hash"] == sha256(file.read_bytes()).hexdigest()
        page = client.get("/templates").text
        assert "shadowed by vault" in page and "invalid" in page and "broken" in page
        assert "System notes" in client.get("/template?name=chat_compiler&source=system").text
        assert client.get("/template?name=none").status_code == 404


def test_the_main_menu_has_what_there_is(db: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs.db"
    with TestClient(create_app(db, runs=runs), base_url="http://127.0.0.1") as client:
        for path in ("/sessions", "/chat"):
            assert re.findall(r">(\w+)</a>", menu_of(client.get(path).text)) == ["Sessions", "Templates"]
        runs.touch()
        assert "/pipelines" in menu_of(client.get("/templates").text)


def menu_of(page: str) -> str:
    return page.partition('<nav aria-label="Main">')[2].partition("</nav>")[0]


def test_a_template_is_tried_on_a_recorded_history(client: TestClient) -> None:
    number = requests_of(client, "long")[-1]["id"]
    asked = client.get("/api/template", params={"name": "chat_compiler", "request": number}).json()
    assert asked["asks_model"] and "=== BEGIN EXTRACTION TEMPLATE ===" in asked["prompt"] and FACT in asked["prompt"]
    own = client.get("/api/template", params={"name": "extractive", "request": number}).json()
    assert not own["asks_model"] and "QUOTED" in own["prompt"]


def test_a_session_without_layers_or_manager_is_shown_as_such(client: TestClient) -> None:
    number = number_of(client, "long")
    assert "No layers are stored" in client.get(f"/sessions/{number}/layers").text
    assert "is not managed" in client.get(f"/sessions/{number}/manager").text
    roles = [node["role"] for node in client.get(f"/api/sessions/{number}/layers").json()["nodes"]]
    assert roles == ["understand", "think", "act", "reply"]


async def test_the_conversation_of_a_node_shows_the_layers_of_its_session(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "context.db")
    layers = Layers(store)
    node: Agent[None, str] = Agent(
        Talker().model, capabilities=[ContextCompiler(budget=4_000, layers=layers, role="think", store=store)]
    )
    async with layers.turn("dinner", "Find chicken recipes") as turn:
        turn.registry.register_read("recipes", 17, "Lemon Herb Chicken")
        await node.run("Plan.", conversation_id="dinner")
    await store.close()
    client = TestClient(create_app(tmp_path / "context.db", system=None), base_url="http://127.0.0.1")
    rows = client.get("/api/sessions").json()["sessions"]
    assert sorted(row["vault_name"] for row in rows) == ["", "think"]
    for row in rows:
        page = client.get(f"/sessions/{row['id']}/layers").text
        assert "Lemon Herb Chicken" in page and "No layers are stored" not in page


async def test_a_managed_session_shows_its_quality_and_checkpoints(tmp_path: Path) -> None:
    db = tmp_path / "context.db"
    memory = SQLiteMemory("managed", db)
    manager = ContextManager.with_versioning(memory, memory, "none")
    for number in range(3):
        await manager.process_turn(f"turn {number} about the garden")
        manager.add_response("noted")
    await manager.checkpoint("first <b>")
    await memory.store.close()
    client = TestClient(create_app(db, system=None), base_url="http://127.0.0.1")
    answer = client.get(f"/api/sessions/{number_of(client, 'managed')}/manager").json()
    assert len(answer["scores"]) == 3 and "first <b>" in [commit["message"] for commit in answer["commits"]]
    page = client.get(f"/sessions/{number_of(client, 'managed')}/manager").text
    assert "turn 1</span>" in page and ">0.5</span>" in page
    kinds = {session["session_id"]: session["kind"] for session in client.get("/api/sessions").json()["sessions"]}
    assert kinds["managed"] == "agent"
    assert "first &lt;b&gt;" in page and "quality" in page
