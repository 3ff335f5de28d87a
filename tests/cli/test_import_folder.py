"""A folder of conversations: those found in it, the savings of each, and their import."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.cli.conftest import DEMO, Command, chat, one_line, written


def claude_code(turns: int) -> str:
    """A session as Claude Code writes it."""
    lines: list[dict[str, Any]] = []
    for turn in range(turns):
        said = f"question {turn} about the ledger " + "and more " * 400
        lines.append({"type": "user", "message": {"role": "user", "content": said}})
        answer = {
            "role": "assistant",
            "model": "claude-sonnet-4-5",
            "content": [{"type": "text", "text": f"answer {turn}"}],
        }
        lines.append({"type": "assistant", "message": answer})
    for at, one in enumerate(lines):
        one |= {"sessionId": "s", "uuid": f"u{at}", "parentUuid": f"u{at - 1}" if at else None}
    return "\n".join(map(json.dumps, lines))


def test_a_folder_shows_its_conversations_and_the_savings_of_each(cc: Command, tmp_path: Path) -> None:
    projects = tmp_path / "projects" / "shop"
    projects.mkdir(parents=True)
    (projects / "long.jsonl").write_text(claude_code(60))
    written(projects / "short.json", chat(3))
    (projects / "settings.json").write_text('{"theme": "dark"}')
    os.utime(projects / "short.json", (1, 1))
    found = cc("import", "projects", "--json").json["conversations"]
    assert [Path(one["file"]).name for one in found] == ["long.jsonl", "short.json"], "the newest first"
    long, short = found
    assert long["priced"] and long["requests"] == 30 and 0 < long["views"] < long["everything"]
    assert not short["priced"] and short["requests"] == 3 and short["views"] == short["everything"] > 0
    said = cc("import", "projects").out
    assert "long.jsonl" in said and "settings.json" not in said
    assert said.rstrip().endswith("context-compiler import projects --all")
    assert not (tmp_path / "system").exists(), "showing imports nothing"


def test_all_conversations_of_a_folder_are_imported(cc: Command, tmp_path: Path) -> None:
    folder = tmp_path / "chats"
    folder.mkdir()
    written(folder / "one.json", chat(2))
    (folder / "demo.json").write_bytes(DEMO.read_bytes())
    said = cc("import", "chats", "--all", "--json").json["sessions"]
    assert {one["session"] for one in said} == {"one", "demo"} and {one["state"] for one in said} == {"new"}


def test_a_folder_without_conversations_is_refused_with_the_reason(cc: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "contains no JSON or JSONL files" in one_line(cc("import", "empty"))
    (tmp_path / "empty" / "settings.json").write_text("{}")
    assert "1 JSON file in it, but no conversation in a known format" in one_line(cc("import", "empty"))
