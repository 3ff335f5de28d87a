"""A person is told what the writer of a summary was not told, and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import DEMO, Command
from tests.support.templates import tight_template

HEADING = "Left out of the summary's prompt"
GONE = ["recent_turns", "topic"]


@pytest.fixture
def tight(tmp_path: Path) -> str:
    return tight_template(tmp_path / "system")


def named(out: str) -> list[str]:
    """The first words of the rows below the heading."""
    return [line.split()[0] for line in out.split(HEADING)[1].strip().splitlines()[1:3]]


def test_compile_lists_the_sections_left_out_of_the_prompt(cc: Command, tight: str) -> None:
    said = cc("compile", DEMO, "--template", tight, "--model", "test", "--explain")
    assert said.code == 0 and named(said.out) == GONE, said.out
    assert HEADING not in cc("compile", DEMO, "--explain").out


def test_a_chat_and_its_record_list_the_sections_left_out(cc: Command, tight: str) -> None:
    lines = ["Never deploy on Fridays. I want to move the queue to another host and keep all that is in it."]
    lines += [
        f"Question {number}: what is known of the queue, the lock, the log and the disk? " * 4 for number in range(1, 6)
    ]
    options = ("--model", "scripted:0", "--endless", "--template", tight, "--budget", 1500)
    said = cc("chat", *options, input="\n".join([*lines, "/view"]))
    assert said.code == 0 and named(said.out) == GONE, said.out
    last = cc("views", "list", "--json").json["views"][0]["id"]
    shown = cc("views", "show", last).out
    assert "left out of prompt" in shown and "recent_turns (over its section budget), topic (over" in shown
