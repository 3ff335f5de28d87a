"""Real transcripts of other tools, through the command line; skipped where they are not."""

from __future__ import annotations

import json
from pathlib import Path

from context_compiler.cli.show import read_history
from context_compiler.messages.bodies import load_messages
from context_compiler.messages.turns import pair
from tests.cli.conftest import Command, Said


def check(said: Said) -> None:
    """A view within its budget in which every call has its answer."""
    assert said.code == 0, said.err
    view = said.json
    assert view["tokens"] <= view["budget"]
    sent = read_history(load_messages([json.dumps(message).encode() for message in view["messages"]]))
    assert not pair(sent).broken


def test_a_coding_session_is_explained(cc: Command, data_folder: Path) -> None:
    session = data_folder / "pi_sessions" / "large-session.jsonl"
    said = cc("compile", session, "--budget", 16_000, "--explain")
    assert said.code == 0
    assert "of a budget of 16,000" in said.out and "current turn" in said.out and "an earlier turn" in said.out
    assert "note: large-session: response aborted" in said.err
    check(cc("compile", session, "--budget", 16_000, "--json"))


def test_one_of_a_hundred_trajectories_can_be_selected(cc: Command, data_folder: Path) -> None:
    many = data_folder / "tau_bench" / "airline.json"
    assert "contains 100 conversations" in cc("compile", many).err
    check(cc("compile", many, "--select", 7, "--budget", 4000, "--json"))


def test_a_trajectory_of_a_coding_agent_compiles(cc: Command, data_folder: Path) -> None:
    for path in sorted((data_folder / "swe_agent").glob("*.traj"))[:3]:
        check(cc("compile", path, "--budget", 4000, "--json"))


def test_a_hundred_conversations_are_imported_and_sound(cc: Command, data_folder: Path) -> None:
    said = cc("import", data_folder / "tau_bench" / "airline.json")
    assert said.code == 0 and said.out.endswith("100 conversations in system/context.db\n")
    assert cc("verify").code == 0
    assert cc("stats", "--json").json["total"]["imported"] == 100
