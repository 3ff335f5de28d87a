"""A folder of conversations: those found in it, the savings of each, the files that are skipped, and their import."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from context_compiler.record.store import SQLiteStore
from tests.cli.conftest import DEMO, Command, chat, one_line, written


def claude_code(turns: int) -> str:
    """A session as Claude Code writes it."""
    lines: list[dict[str, Any]] = []
    for turn in range(turns):
        said = f"question {turn} about the ledger " + "and more " * 400
        lines.append(
            {"type": "user", "message": {"role": "user", "content": said}, "timestamp": f"2025-03-{turn % 28 + 1:02}"}
        )
        answer = {
            "role": "assistant",
            "model": "claude-sonnet-4-5",
            "content": [{"type": "text", "text": f"answer {turn}"}],
        }
        lines.append({"type": "assistant", "message": answer})
    for index, line in enumerate(lines):
        line |= {"sessionId": "s", "uuid": f"u{index}", "parentUuid": f"u{index - 1}" if index else None}
    return "\n".join(map(json.dumps, lines))


def test_a_folder_shows_its_conversations_and_the_savings_of_each(cc: Command, tmp_path: Path) -> None:
    projects = tmp_path / "projects" / "shop"
    projects.mkdir(parents=True)
    (projects / "long.jsonl").write_text(claude_code(60))
    written(projects / "short.json", chat(3))
    (projects / "settings.json").write_text('{"theme": "dark"}')
    os.utime(projects / "short.json", (1, 1))
    conversations = cc("import", "projects", "--json").json["conversations"]
    assert [Path(entry["file"]).name for entry in conversations] == ["long.jsonl", "short.json"], "the newest first"
    long, short = conversations
    assert long["priced"] and long["requests"] == 30 and 0 < long["views"] < long["everything"]
    assert not short["priced"] and short["requests"] == 3 and short["views"] == short["everything"] > 0
    said = cc("import", "projects").out
    assert "long.jsonl" in said and "settings.json" not in said and "1 conversation" not in said
    assert said.rstrip().endswith("context-compiler import projects --all")
    assert not (tmp_path / "system").exists(), "showing imports nothing"


def test_a_folder_shows_when_and_about_what_each_conversation_was(cc: Command, tmp_path: Path) -> None:
    (tmp_path / "projects").mkdir()
    (tmp_path / "projects" / "long.jsonl").write_text(claude_code(2))
    written(tmp_path / "projects" / "many.json", [{"id": id, "messages": chat(1, words=1)} for id in ("a", "b")])
    rows = [line.split() for line in cc("import", "projects").out.splitlines()[1:4]]
    dated = next(row for row in rows if row[0] == "long.jsonl")
    assert dated[1:7] == ["2025-03-02", "question", "0", "about", "the", "ledger"]
    assert {"many.json#a", "many.json#b"} < {row[0] for row in rows}, "the name is what --select takes"


def test_conversations_that_are_not_measured_in_time_are_listed_with_their_sizes(cc: Command, tmp_path: Path) -> None:
    (tmp_path / "projects").mkdir()
    (tmp_path / "projects" / "long.jsonl").write_text(claude_code(3))
    (listed,) = cc("import", "projects", "--seconds", "0", "--json").json["conversations"]
    assert listed["messages"] == 6 and listed["tokens"] > 1_000 and listed["requests"] == 0
    assert (
        "1 conversation was not measured within 0 seconds; for more time, add --seconds 10"
        in cc("import", "projects", "--seconds", "0").out
    )
    assert "not measured" not in cc("import", "projects").out


def test_no_conversation_is_measured_that_would_take_longer_than_the_time_left(
    cc: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "projects").mkdir()
    for name in ("one", "two", "three"):
        (tmp_path / "projects" / f"{name}.jsonl").write_text(claude_code(3))
    read = iter((4.0, 4.0, 4.0, *(4.0, 7.0), *(7.0, 7.0), *(7.0, 7.0)))  # the first takes three seconds
    monkeypatch.setattr("context_compiler.cli.importing.monotonic", lambda: 0.0)
    monkeypatch.setattr("context_compiler.cli.folders.monotonic", lambda: next(read))
    listed = cc("import", "projects", "--seconds", "9", "--json").json["conversations"]
    assert [each["requests"] > 0 for each in listed] == [True, False, False]


def test_a_folder_shows_the_costs_of_its_conversations_together(cc: Command, tmp_path: Path) -> None:
    (tmp_path / "projects").mkdir()
    for name in ("one", "two"):
        (tmp_path / "projects" / f"{name}.jsonl").write_text(claude_code(45))
    written(tmp_path / "projects" / "short.json", chat(3))
    listed = cc("import", "projects", "--json").json["conversations"]
    whole, views = (sum(each[cost] for each in listed if each["priced"]) for cost in ("everything", "views"))
    said = cc("import", "projects").out
    assert f"2 measured conversations together: ${whole:.4f} with everything, ${views:.4f} with views" in said
    assert "1 measured conversation together:" in said and "so many uncached input tokens" in said


@pytest.mark.parametrize("option", [(), ("--all",), ("--json",)], ids=" ".join)
def test_files_of_a_folder_that_cannot_be_read_are_named_with_the_reason(
    cc: Command, tmp_path: Path, option: tuple[str, ...]
) -> None:
    (tmp_path / "chats").mkdir()
    written(tmp_path / "chats" / "one.json", chat(2))
    (tmp_path / "chats" / "broken.jsonl").write_text('{"type": "us')
    (tmp_path / "chats" / "settings.json").write_text('{"theme": "dark"}')
    (tmp_path / "chats" / "table.csv").write_text("a,b")
    said = cc("import", "chats", *option)
    assert said.code == 0 and said.err.startswith("note: 2 files skipped: ") and said.err.count("\n") == 1
    assert "broken.jsonl (is not JSON: " in said.err and "settings.json (contains an object with the keys" in said.err


def test_an_imported_conversation_has_the_time_of_its_last_message(cc: Command, tmp_path: Path) -> None:
    (tmp_path / "chats").mkdir()
    (tmp_path / "chats" / "old.jsonl").write_text(claude_code(2))
    assert cc("import", "chats", "--all").code == 0
    for command in (("sessions", "list"), ("sessions", "show", "old"), ("views", "list")):
        assert "2025-03-02 00:00:00" in cc(*command).out, command
    assert "raw → – sent\n" in cc("sessions", "show", "old").out
    assert "1 request" in cc("prune", "--older-than", "30d").out


def test_all_conversations_of_a_folder_are_imported(cc: Command, tmp_path: Path) -> None:
    folder = tmp_path / "chats"
    folder.mkdir()
    written(folder / "one.json", chat(2))
    (folder / "demo.json").write_bytes(DEMO.read_bytes())
    said = cc("import", "chats", "--all", "--json").json["sessions"]
    assert {entry["session"] for entry in said} == {"one", "demo"} and {entry["state"] for entry in said} == {"new"}


def titled(*texts: str) -> dict[str, Any]:
    """A conversation of ChatGPT's export: a tree with a title."""
    nodes = {
        str(number): {
            "id": str(number),
            "parent": str(number - 1) if number else None,
            "children": [str(number + 1)] if number + 1 < len(texts) else [],
            "message": {
                "author": {"role": ("user", "assistant")[number % 2]},
                "content": {"content_type": "text", "parts": [text]},
            },
        }
        for number, text in enumerate(texts)
    }
    return {"title": "Trip", "mapping": nodes, "current_node": str(len(texts) - 1)}


SAME_NAMES: dict[str, dict[str, tuple[Any, dict[str, int]]]] = {
    "tasks": {
        "t1/api_conversation_history.json": (chat(1), {"t1/api_conversation_history": 3}),
        "t2/api_conversation_history.json": (chat(2), {"t2/api_conversation_history": 5}),
        "t2/other.json": (chat(3), {"other": 7}),
    },
    "suffixes": {
        "chat.json": (chat(1), {"chat.json": 3}),
        "chat.jsonl": (chat(2), {"chat.jsonl": 5}),
        "t1/chat.json": (chat(3), {"t1/chat": 7}),
    },
    "several in a file": {
        f"t{number}/many.json": (
            [{"id": id, "messages": chat(number)} for id in ("a", "b")],
            {f"t{number}/many#{id}": 2 * number + 1 for id in ("a", "b")},
        )
        for number in (1, 2)
    },
    "titles": {
        "old.json": ([titled("Where?")], {"old#Trip": 1}),
        "new.json": ([titled("Where?", "There.")], {"new#Trip": 2}),
    },
}
"""Files of folders, each with the conversations that it becomes and the number of their messages."""


@pytest.mark.parametrize("files", SAME_NAMES.values(), ids=SAME_NAMES)
def test_conversations_of_the_same_name_are_imported_under_the_paths_of_their_files(
    cc: Command, tmp_path: Path, files: dict[str, tuple[Any, dict[str, int]]]
) -> None:
    for path, (conversations, _) in files.items():
        (tmp_path / "inside" / path).parent.mkdir(parents=True, exist_ok=True)
        written(tmp_path / "inside" / path, conversations)
    expected = {name: messages for _, named in files.values() for name, messages in named.items()}
    for state in ("new", "known", "known"):
        said = cc("import", "inside", "--all", "--json").json["sessions"]
        assert {entry["session"]: entry["messages"] for entry in said} == expected
        assert len(said) == len(expected) and {entry["state"] for entry in said} == {state}
    for name, messages in expected.items():
        transcript = asyncio.run(SQLiteStore(tmp_path / "system" / "context.db").transcript(name))
        assert len(transcript) == messages


def test_a_folder_without_conversations_is_refused_with_the_reason(cc: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "contains no JSON or JSONL files" in one_line(cc("import", "empty"))
    (tmp_path / "empty" / "settings.json").write_text("{}")
    assert "1 JSON file in it, but no conversation in a known format" in one_line(cc("import", "empty"))
