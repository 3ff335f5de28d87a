"""What a newcomer sees first is true, quick and reproducible."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from pydantic_ai.messages import ModelMessagesTypeAdapter, ToolCallPart, UserPromptPart

from context_compiler.cli.demo import NEEDED, VIEWS, check_views
from context_compiler.cli.show import read_history
from tests.cli.conftest import DEMO, Command

MESSAGES = ModelMessagesTypeAdapter.validate_json(DEMO.read_bytes())


def test_the_bundled_conversation_is_one_that_needs_compiling() -> None:
    parts = [part for message in MESSAGES for part in message.parts]
    assert sum(isinstance(part, UserPromptPart) for part in parts) == 25
    assert max(sum(isinstance(part, ToolCallPart) for part in message.parts) for message in MESSAGES) == 3
    history = read_history(MESSAGES)
    assert 12_000 < history.tokens < 20_000
    assert max(one.tokens for one in history.readings) > 4_000


def test_the_bundled_conversation_says_what_its_question_asks_for() -> None:
    said = DEMO.read_text(encoding="utf-8")
    assert all(words in said for _, words in NEEDED)


def test_the_demo_shows_three_views_within_their_budgets(cc: Command) -> None:
    said = cc("demo", "--json").json
    assert [view["budget"] for view in said["views"]] == [budget for _, budget in VIEWS]
    assert all(view["tokens"] <= view["budget"] for view in said["views"])
    assert said["views"][0]["tokens"] < said["views"][1]["tokens"] < said["views"][2]["tokens"] < said["raw_tokens"]


def test_the_demo_checks_what_it_claims(cc: Command) -> None:
    said = cc("demo", "--json").json
    assert [check["holds"] for check in said["checks"]] == [True] * 4


def test_a_broken_promise_would_be_seen() -> None:
    assert not check_views(read_history(MESSAGES), [], untouched=False)[-1].holds


@pytest.mark.parametrize("terminal", [0, 80, 120])
def test_the_demo_tells_its_story(cc: Command, terminal: int) -> None:
    said = cc("demo", terminal=terminal)
    assert (said.code, said.err) == (0, "")
    for told in ("25 turns, 105 messages", "budget 1,500", "Left out of it, and why", "Context summary (compiled):"):
        assert told in said.plain
    assert "NOT" not in said.plain
    if terminal:
        assert "━" in said.out and all(len(line) <= terminal for line in said.plain.splitlines())
    else:
        assert "\x1b" not in said.out


def test_the_commands_that_the_demo_suggests_work(cc: Command, tmp_path: Path) -> None:
    said = cc("demo", "--db", "else where/demo.db")
    commands = [shlex.split(line, comments=True) for line in said.out.splitlines() if "  context-compiler " in line]
    show, compile_ = commands
    assert cc(*show[1:]).code == 0 and "else where/demo.db" in show
    (tmp_path / "YOUR_CHAT.json").write_text(json.dumps([{"role": "user", "content": "Hello"}]))
    assert cc(*compile_[1:]).code == 0


def test_the_demo_can_be_run_again(cc: Command) -> None:
    first, second = cc("demo").out, cc("demo").out
    assert first == second
