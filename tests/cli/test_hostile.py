"""A transcript is written by strangers: nothing in it reaches the terminal that could do more than be read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from context_compiler.cli.text import json_text, one_line, safe
from tests.cli.conftest import Command, chat, message, written

OSC = "\x1b]0;owned\x07\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\\x1b]52;c;cm0gLXJm\x07"
CSI = "\x1b[2J\x1b[31mred\x1b[0m\x1b[8mhidden\x1b[0m\x9b31m"
ODD = "\x00\x07\x08\r\x7f\x85\u202eright to left\u2066\u200f"
MARKUP = "[bold red]not bold[/bold red] [link=http://evil.example]x[/link] :skull: [/]"
HOSTILE = f"before {OSC} {CSI} {ODD} {MARKUP} after \ud83d"

UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200e\u200f\ud800-\udfff]")
OURS = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def hostile(cc: Command, tmp_path: Path) -> Command:
    """A command line beside a transcript in which everything is hostile, recorded as view 1 of session `talk`."""
    call = {
        "id": f"id{OSC}",
        "type": "function",
        "function": {"name": f"run{CSI}", "arguments": json.dumps({"a": OSC})},
    }
    said = [
        message("system", HOSTILE),
        *chat(3),
        message("user", HOSTILE),
        {"role": "assistant", "content": HOSTILE, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"id{OSC}", "content": HOSTILE},
        message("user", HOSTILE),
    ]
    text = json.dumps(said).replace("\\ud83d", "\\ufffd")
    (tmp_path / "talk.json").write_text(text)
    assert cc("compile", "talk.json", "--db", "system/context.db").code == 0
    assert cc("compile", "talk.json", "--db", "system/context.db", "--budget", 400).code == 0
    return cc


COMMANDS = [
    ("compile", "talk.json", "--budget", "5000"),
    ("compile", "talk.json", "--budget", "400", "--explain"),
    ("compile", "talk.json", "--format", "markdown"),
    ("compile", "talk.json", "--format", "markdown", "--explain"),
    ("views", "show", "1"),
    ("views", "show", "2", "--raw"),
    ("views", "diff", "1", "2"),
    ("views", "replay", "1", "--template", "extractive", "--budget", "300"),
    ("sessions", "show", "talk"),
    ("sessions", "show", "talk", "--raw"),
    ("views", "list"),
    ("sessions", "list"),
    ("stats",),
]
JSON = [
    ("compile", "talk.json", "--json"),
    ("views", "show", "1", "--json"),
    ("sessions", "show", "talk", "--json"),
    ("export",),
]


@pytest.mark.parametrize("args", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("terminal", [0, 100])
def test_printed_text_cannot_move_the_cursor(hostile: Command, args: tuple[str, ...], terminal: int) -> None:
    said = hostile(*args, terminal=terminal)
    assert said.code == 0
    left = OURS.sub("", said.out) if terminal else said.out
    assert not UNSAFE.search(left.replace("\n", "")), UNSAFE.findall(left.replace("\n", ""))


@pytest.mark.parametrize("args", JSON, ids=" ".join)
def test_hostile_text_can_be_printed_as_json(hostile: Command, args: tuple[str, ...]) -> None:
    said = hostile(*args)
    assert not UNSAFE.search(said.out.replace("\n", ""))
    for document in said.out.splitlines() if args == ("export",) else [said.out]:
        json.loads(document)


@pytest.mark.parametrize("terminal", [0, 200])
def test_markup_in_a_transcript_is_printed_as_text(hostile: Command, terminal: int) -> None:
    said = hostile("compile", "talk.json", "--budget", 5000, terminal=terminal)
    assert "[bold red]not bold[/bold red]" in said.plain and ":skull:" in said.plain


def test_hostile_names_are_harmless_in_errors(cc: Command, tmp_path: Path) -> None:
    written(tmp_path / "chats.json", [{"id": f"{OSC}[bold]{at}", "messages": chat(1)} for at in range(2)])
    said = cc("compile", "chats.json", "--select", f"nope{CSI}[red]\n\nerror: forged")
    assert said.code == 2 and said.err.count("\n") == 1
    assert not UNSAFE.search(said.err.strip())


def test_a_hostile_session_name_is_harmless(cc: Command, tmp_path: Path) -> None:
    written(tmp_path / "talk.json", chat(3))
    cc("compile", "talk.json", "--db", "system/context.db", "--session", "\x9b31m[bold]me")
    for command in (("sessions", "list"), ("views", "list"), ("views", "show", "1"), ("stats",)):
        for terminal in (0, 100):
            said = cc(*command, terminal=terminal)
            assert "[bold]me" in said.plain
            assert not UNSAFE.search(OURS.sub("", said.out).replace("\n", ""))


def test_a_hostile_template_is_harmless(cc: Command, tmp_path: Path) -> None:
    folder = tmp_path / "system" / "ContextTemplates"
    folder.mkdir(parents=True)
    (folder / "odd.md").write_text(f'---\ndescription: "[bold]hello"\n---\n{CSI}text[red]', encoding="utf-8")
    for command in (("list",), ("show", "odd"), ("check",)):
        said = cc("templates", *command, terminal=100)
        assert not UNSAFE.search(OURS.sub("", said.out + said.err).replace("\n", ""))


@given(st.text(st.characters(codec=None), max_size=200))
def test_safe_text_has_no_control_characters_whatever_its_source(text: str) -> None:
    assert not UNSAFE.search(safe(text).replace("\n", ""))
    assert safe(safe(text)) == safe(text)
    assert "\n" not in one_line(text)


TEXTS = st.text(st.characters(codec=None), max_size=50)


@given(st.recursive(TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=10))
def test_safe_json_decodes_to_the_same_value(value: object) -> None:
    text = json_text(value)
    assert not UNSAFE.search(text.replace("\n", ""))
    assert json.loads(text) == value


@pytest.mark.parametrize("text", ["plain", "naïve café ✓ 漢字 🎉", "a\n  b\tc", "1 < 2 [x] \\ `code`"])
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert safe(text) == text.expandtabs(4)


def test_a_whole_escape_sequence_is_removed() -> None:
    assert safe(f"a{OSC}b{CSI}c") == "alinkbredhiddenc"


def test_an_unfinished_sequence_takes_no_text_with_it() -> None:
    assert safe("a\x1b]0;title without an end") == "a0;title without an end"


def test_a_line_that_overwrites_itself_becomes_two() -> None:
    assert safe("50%\r100%\r\n") == "50%\n100%\n"


@pytest.mark.parametrize(
    ("text", "width", "cut"), [("hello world", 8, "hello w…"), ("漢字漢字漢字", 7, "漢字漢…"), ("ab", 2, "ab")]
)
def test_a_line_is_cut_by_the_columns_it_takes(text: str, width: int, cut: str) -> None:
    assert one_line(text, width) == cut
