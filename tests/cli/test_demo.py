"""What a newcomer sees first is true, quick and reproducible."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessagesTypeAdapter, ToolCallPart, UserPromptPart
from starlette.testclient import TestClient
from typer.testing import CliRunner

from context_compiler.cli.demo import ASKED, NEEDED, VIEWS, check_views
from context_compiler.cli.root import app
from context_compiler.cli.show import read_history
from context_compiler.web.app import create_app
from tests.cli.conftest import DEMO, Command, one_line
from tests.cli.terminal import terminal as on_terminal

MESSAGES = ModelMessagesTypeAdapter.validate_json(DEMO.read_bytes())


def test_the_bundled_conversation_is_one_that_needs_compiling() -> None:
    parts = [part for message in MESSAGES for part in message.parts]
    assert sum(isinstance(part, UserPromptPart) for part in parts) == 25
    assert max(sum(isinstance(part, ToolCallPart) for part in message.parts) for message in MESSAGES) == 3
    history = read_history(MESSAGES)
    assert 12_000 < history.tokens < 20_000
    assert max(reading.tokens for reading in history.readings) > 4_000


def test_the_bundled_conversation_contains_what_its_question_asks_for() -> None:
    said = DEMO.read_text(encoding="utf-8")
    assert all(words in said for _, words in NEEDED)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The record that the demo made, and what it printed as JSON."""
    db = tmp_path_factory.mktemp("demo") / "context.db"
    result = CliRunner().invoke(app, ["demo", "--json", "--db", str(db)])
    assert result.exit_code == 0, result.output
    return db, json.loads(result.stdout)


@pytest.fixture
def again(cc: Command, first: tuple[Path, dict[str, Any]], tmp_path: Path) -> Command:
    """A command line in a folder in which the demo has been run."""
    (tmp_path / "system").mkdir()
    shutil.copy(first[0], tmp_path / "system" / "context.db")
    return cc


def test_the_demo_shows_three_views_within_their_budgets(first: tuple[Path, dict[str, Any]]) -> None:
    said = first[1]
    assert [view["budget"] for view in said["views"]] == [budget for budget, _ in VIEWS]
    assert all(view["tokens"] <= view["budget"] for view in said["views"])
    assert said["views"][0]["tokens"] < said["views"][1]["tokens"] < said["views"][2]["tokens"] < said["raw_tokens"]
    assert [check["holds"] for check in said["checks"]] == [True] * 4


def test_the_demo_records_a_session_in_which_a_fact_leaves_and_comes_back(
    again: Command, first: tuple[Path, dict[str, Any]]
) -> None:
    assert first[1]["requests"] == 53
    (total,) = again("stats", "--json").json["sessions"]
    assert (
        total["session"] == "demo" and total["requests"] == 53 and not total["fallbacks"] and not total["over_budget"]
    )
    result = again("sessions", "find", "demo", ASKED, "--json").json
    had = [bool(stretch["forms"]) for stretch in result["stretches"] if stretch["known"]]
    assert had.count(False) >= 2 and had[-1]
    assert "it was sent only when recalled: " in result["answer"]
    second = again("demo", "--json").json
    for name in ("requests", "raw_tokens", "answers", "checks"):
        assert second[name] == first[1][name], "a second demo says the same and adds nothing"
    assert [view["tokens"] for view in second["views"]] == [view["tokens"] for view in first[1]["views"]]


def test_the_model_of_the_demo_has_one_name_on_all_pages(again: Command) -> None:
    with TestClient(create_app(Path("system/context.db"), system=None), base_url="http://127.0.0.1") as client:
        (listed,) = client.get("/api/sessions").json()["sessions"]
        money = client.get(f"/api/sessions/{listed['id']}/timeline").json()["money"]
        settings = client.get(f"/api/sessions/{listed['id']}/settings").json()
    assert [listed["model"]] == money["models"] == [settings["model"]] == ["demo-model"]


def test_the_demo_detects_a_broken_promise() -> None:
    assert not check_views(read_history(MESSAGES), [], untouched=False)[-1].holds


def test_every_view_holds_the_evidence_and_a_window_of_newest_messages_does_not(
    first: tuple[Path, dict[str, Any]],
) -> None:
    answers = first[1]["answers"]
    assert [answer["words"] for answer in answers] == [words for _, words in NEEDED]
    assert all(answer["views"] == [True] * len(VIEWS) for answer in answers)
    assert 0 < sum(answer["window"] for answer in answers) < len(NEEDED)


def test_the_demo_fits_one_screen(tmp_path: Path) -> None:
    with on_terminal(tmp_path, "demo", lines=24, columns=80) as screen:
        assert screen.ended() == 0
        said = screen.text
    lines = said.splitlines()
    assert len(lines) <= 23 and all(len(line.rstrip()) <= 80 for line in lines), "the shell's prompt needs the last"
    assert said.index("what must he never do") < said.index("have no answer") < said.index("never deploy anything")
    assert "what must he never do" in said and "Left out of it" not in said
    assert "Browse it: context-compiler serve --open --find '7 days'" in said
    assert "answered 4 of 6 6 of 6 6 of 6 6 of 6" in [" ".join(line.split()) for line in lines]


@pytest.mark.parametrize("terminal", [0, 80, 120])
def test_the_full_demo_shows_turns_budget_left_out_messages_and_summary(again: Command, terminal: int) -> None:
    said = again("demo", "--full", terminal=terminal)
    assert (said.code, said.err) == (0, "")
    for told in ("25 turns, 105 messages", "budget 1,000", "Left out of it, and why", "Context summary (compiled):"):
        assert told in said.plain
    assert "NOT" not in said.plain
    if terminal:
        assert "━" in said.out and all(len(line) <= terminal for line in said.plain.splitlines())
    else:
        assert "\x1b" not in said.out


def test_the_commands_that_the_demo_suggests_work(cc: Command, tmp_path: Path) -> None:
    said = cc("demo", "--full", "--db", "else where/demo.db")
    commands = [shlex.split(line, comments=True) for line in said.out.splitlines() if "  context-compiler " in line]
    show, why, serve, compile_ = commands
    assert show[1:4] == ["views", "show", "53"]
    assert cc(*show[1:]).code == 0 and "else where/demo.db" in show
    assert cc(*why[1:]).code == 0 and "else where/demo.db" in why
    assert serve[1:] == ["serve", "--db", "else where/demo.db", "--open", "--find", "7 days"]
    (tmp_path / "YOUR_CHAT.json").write_text(json.dumps([{"role": "user", "content": "Hello"}]))
    assert cc(*compile_[1:]).code == 0


@pytest.mark.parametrize(
    ("direct_url", "remedy"),
    [
        (
            {"url": Path("/src/con text").absolute().as_uri(), "dir_info": {}},
            f'pip install "{Path("/src/con text").absolute()}[web]"',
        ),
        ({"url": "the working directory", "dir_info": {}}, 'pip install ".[web]"'),
        ({"url": "file:///x.whl", "archive_info": {}}, 'pip install "pydantic-ai-context-compiler[web]"'),
        (None, 'pip install "pydantic-ai-context-compiler[web]"'),
    ],
)
def test_the_hint_for_a_missing_package_installs_from_where_this_package_came_from(
    again: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct_url: dict[str, object] | None, remedy: str
) -> None:
    info = tmp_path / "first" / "pydantic_ai_context_compiler-0.2.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pydantic-ai-context-compiler\nVersion: 0.2.0\n")
    if direct_url is not None:
        if direct_url["url"] == "the working directory":
            direct_url = {**direct_url, "url": tmp_path.as_uri()}
        (info / "direct_url.json").write_text(json.dumps(direct_url))
    monkeypatch.syspath_prepend(str(info.parent))
    monkeypatch.setattr("context_compiler.cli.serve.NEEDS", ("starlette", "no_such_package_of_anybody"))
    assert remedy in one_line(again("serve"))
    for option in ((), ("--full",)):
        assert f"{remedy} && context-compiler serve" in again("demo", *option).out
