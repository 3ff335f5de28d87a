"""`pipeline check` and `pipeline draw`: what they print, how they end."""

from __future__ import annotations

from pathlib import Path
from xml.dom import minidom

import pytest

from tests.cli.conftest import Command
from tests.pipeline.test_check import SOUND

WRONG = 'digraph plan {\n  start [shape=Mdiamond]\n  a [promt="x"]\n  start -> a -> gone\n  done [shape=Msquare]\n}\n'


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    path = tmp_path / "sound.dot"
    path.write_text(SOUND)
    return path


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    path = tmp_path / "wrong.dot"
    path.write_text(WRONG)
    return path


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    path = tmp_path / "broken.dot"
    path.write_text('digraph g {\n  a [label="x]\n}')
    return path


def test_a_sound_graph_passes_the_check(cc: Command, sound: Path) -> None:
    said = cc("pipeline", "check", str(sound))
    assert (said.code, said.out) == (0, "1 file, 0 errors, 0 warnings, 0 notes\n")


def test_each_finding_is_one_line_with_place_and_remedy(cc: Command, wrong: Path) -> None:
    said = cc("pipeline", "check", str(wrong))
    assert said.code == 1 and said.err == ""
    lines = said.out.splitlines()
    assert f"{wrong}:3:3: warning unknown_attribute: a: unknown attribute 'promt'; did you mean prompt?" in lines
    assert any(line.startswith(f"{wrong}:4:14: warning edge_target_exists: a -> gone: ") for line in lines)
    assert lines[-1].startswith("1 file, 1 error,")


def test_a_syntax_error_is_shown_with_a_caret(cc: Command, broken: Path, sound: Path) -> None:
    said = cc("pipeline", "check", str(sound), str(broken))
    assert said.code == 1
    assert said.out.splitlines() == [
        f"{broken}:2:12: error syntax: this string is not closed",
        '      a [label="x]',
        "               ^",
        "2 files, 1 error, 0 warnings, 0 notes",
    ]


def test_a_finding_is_shown_in_full_on_a_narrow_terminal(cc: Command, wrong: Path) -> None:
    shown = cc("pipeline", "check", wrong, terminal=60).plain.split()
    assert all(word in shown for word in "unknown attribute 'promt'; did you mean prompt?".split()), shown


def test_findings_as_json(cc: Command, wrong: Path, sound: Path) -> None:
    said = cc("pipeline", "check", str(sound), str(wrong), "--json")
    assert said.code == 1 and said.json["ok"] is False
    first, second = said.json["files"]
    assert (first["name"], first["stages"], first["edges"], first["findings"]) == ("sound", 5, 5, [])
    rules = {finding["rule"]: finding for finding in second["findings"]}
    assert rules["edge_target_exists"]["edge"] == ["a", "gone"] and rules["edge_target_exists"]["line"] == 4
    assert cc("pipeline", "check", str(sound), "--json").json["ok"] is True


def test_a_missing_file_or_one_that_is_not_text_is_reported_in_one_line(cc: Command, tmp_path: Path) -> None:
    (tmp_path / "bytes.dot").write_bytes(b"digraph \xff {}")
    for name, why in (("none.dot", "No such file"), ("bytes.dot", "UTF-8")):
        for command in ("check", "draw"):
            said = cc("pipeline", command, str(tmp_path / name))
            assert said.code == 2 and said.out == ""
            assert name in said.err and why in " ".join(said.err.split())


def test_text_of_a_graph_cannot_move_the_cursor(cc: Command, tmp_path: Path) -> None:
    path = tmp_path / "evil.dot"
    path.write_text('digraph g { "\x1b[2Jred" [fidelity="\x1b]0;title\x07"]; a [x=\x1b] }')
    assert "\x1b" not in cc("pipeline", "check", str(path)).out
    path.write_text('digraph g { "\x1b[2Jred" [fidelity="\x1b]0;title\x07"] }')
    for more in ([], ["--json"]):
        assert "\x1b" not in cc("pipeline", "check", str(path), *more).out


def test_a_graph_is_drawn_into_a_file_or_printed(cc: Command, sound: Path, tmp_path: Path) -> None:
    said = cc("pipeline", "draw", str(sound), "--out", str(tmp_path / "sound.svg"))
    assert said.code == 0 and "sound.svg" in said.out
    svg = (tmp_path / "sound.svg").read_text()
    assert minidom.parseString(svg).documentElement.tagName == "svg"
    assert cc("pipeline", "draw", str(sound)).out.strip() == svg.strip()


def test_a_drawing_that_fails_is_reported_in_one_line(cc: Command, sound: Path, broken: Path) -> None:
    said = cc("pipeline", "draw", str(broken))
    assert said.code == 2 and "broken.dot:2:12: this string is not closed" in " ".join(said.err.split())
    said = cc("pipeline", "draw", str(sound), "--out", str(sound.parent / "no" / "x.svg"))
    assert said.code == 2 and "cannot be written" in " ".join(said.err.split())
