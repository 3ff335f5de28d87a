"""Files that tools of Windows have saved: line ends and byte order marks change nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command

SAVED = {
    "CRLF": lambda text: text.replace("\n", "\r\n").encode(),
    "CR": lambda text: text.replace("\n", "\r").encode(),
    "UTF-8 with a mark": lambda text: text.encode("utf-8-sig"),
    "UTF-16": lambda text: text.replace("\n", "\r\n").encode("utf-16"),
    "UTF-16 big-endian": lambda text: b"\xfe\xff" + text.encode("utf-16-be"),
}

FILES = {
    "chat.md": "# Talk\n\n**User:**\n\nMy number is ZX-4.\n\n**Assistant:**\n\nNoted: ZX-4.\n",
    "chat.jsonl": '{"role": "user", "content": "Hi"}\n{"role": "assistant", "content": "Hello"}\n',
    "plan.dot": "digraph g {\n  start [shape=Mdiamond] // first\n  done [shape=Msquare]\n  start -> work -> done\n}\n",
    "flow.md": "---\ngoal: Ship it\n---\n## Plan\n\nPlan it.\n\n## Build\n\nBuild it.\n",
    "mine.md": "---\ntitle: Mine\n---\nSummarise.\n\n{{ RECENT_HISTORY }}\n",
}

COMMANDS = {
    "chat.md": ("import", "chat.md", "--db", "record.db", "--json"),
    "chat.jsonl": ("import", "chat.jsonl", "--db", "record.db", "--json"),
    "plan.dot": ("pipeline", "parse", "plan.dot"),
    "flow.md": ("workflow", "show", "flow.md"),
    "mine.md": ("templates", "check", "./mine.md", "--json"),
}


@pytest.mark.parametrize("saved", SAVED)
@pytest.mark.parametrize("name", FILES)
def test_a_file_reads_the_same_however_a_tool_saved_it(
    name: str, saved: str, cc: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[tuple[int, str]] = []
    for folder, data in (("plain", FILES[name].encode()), ("saved", SAVED[saved](FILES[name]))):
        directory = tmp_path / folder
        directory.mkdir()
        monkeypatch.chdir(directory)
        (directory / name).write_bytes(data)
        said = cc(*COMMANDS[name])
        results.append((said.code, said.out))
    assert results[0][0] == 0, results
    assert results[0] == results[1]


@pytest.mark.parametrize("saved", SAVED)
def test_a_configuration_file_may_have_any_line_ends_and_a_byte_order_mark(
    saved: str, cc: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "context_compiler.toml").write_bytes(SAVED[saved]("budget = 3000\nrecent_turns = 2\n"))
    said = cc("config", "show", "--json")
    assert said.code == 0, said.err
    assert "3000" in said.out


def test_a_text_file_of_speakers_who_say_nothing_is_refused(cc: Command, tmp_path: Path) -> None:
    (tmp_path / "empty.md").write_text("**User:**\n\n**Assistant:**\n\n")
    said = cc("import", str(tmp_path / "empty.md"), "--db", str(tmp_path / "record.db"))
    assert said.code != 0 and "contains no messages" in said.err


def test_errors_of_first_attempts_name_the_remedy(cc: Command, tmp_path: Path) -> None:
    (tmp_path / "chat.jsonl").write_text(FILES["chat.jsonl"])
    said = cc("import", str(tmp_path / "chat.jsonl"), "--from", "chatgpt")
    assert said.code == 2 and "it looks like openai: leave --from (format=...) out" in said.err
    said = cc("views", "show", "abc")
    assert said.code == 2 and "give a whole number, such as 3, from `views list`" in said.err
    assert cc("import", str(tmp_path / "chat.jsonl")).code == 0
    (tmp_path / "notes.db").write_text("not a record")
    said = cc("views", "list", "--db", "typo.db")
    assert (
        said.code == 2 and "name one with --db, such as system/context.db, or run `context-compiler demo`" in said.err
    )
    for command in (("views", "list"), ("serve",)):
        said = cc(*command, "--db", "notes.db")
        assert said.code == 2 and "it is not a record: move it away, or give another path" in said.err
    said = cc("compile", str(tmp_path / "chat.jsonl"), "--budget", "1.5")
    assert said.code == 2 and "give whole tokens such as 4000, or a share such as 0.5" in said.err
