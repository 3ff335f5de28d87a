"""The checkpoints of a managed session can be listed, made and gone back to from the command line."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from context_compiler.manager import SQLiteMemory
from tests.cli.conftest import DEMO, Command, one_line
from tests.manager.fakes import Scribe, managed, talk

COMMANDS = [("log",), ("checkpoint",), ("rollback", "--yes")]


@pytest.fixture
def session(tmp_path: Path) -> str:
    """A session with a checkpoint at its second and its fourth turn, and a fifth turn."""

    async def made() -> None:
        memory = SQLiteMemory("assistant", tmp_path / "system" / "context.db")
        await memory.remember("The harbour is called Sund.")
        await talk(managed(Scribe(), memory, checkpoint_interval=2), 5)
        await memory.close()

    asyncio.run(made())
    return "assistant"


def test_the_log_marks_the_commit_that_a_rollback_restores(cc: Command, session: str) -> None:
    said = cc("manager", "log", session)
    lines = said.out.splitlines()
    assert said.code == 0 and len(lines) == 3
    assert "Auto checkpoint at turn 4" in lines[1] and lines[1].startswith("→")
    assert "Auto checkpoint at turn 2" in lines[2] and not lines[2].startswith("→")


def test_the_log_can_be_printed_as_json(cc: Command, session: str) -> None:
    log = cc("manager", "log", session, "--json").json
    assert log["turns"] == 5 and log["next"] == log["commits"][0]["id"]
    assert [commit["turns"] for commit in log["commits"]] == [4, 2]
    assert log["commits"][0]["memories"] == 1
    assert len(cc("manager", "log", session, "-n", 1, "--json").json["commits"]) == 1


def test_a_checkpoint_is_made_by_hand(cc: Command, session: str) -> None:
    made = cc("manager", "checkpoint", session, "--message", "before the move", "--json").json
    log = cc("manager", "log", session, "--json").json
    assert made["commit"] == log["next"] == log["commits"][0]["id"] and made["turns"] == 5
    assert log["commits"][0]["message"] == "before the move"
    assert "saved at 5 turns" in cc("manager", "checkpoint", session).out


def test_a_rollback_restores_and_the_next_one_goes_back_further(cc: Command, session: str) -> None:
    first = cc("manager", "rollback", session, "--yes", "--json").json
    assert (first["turns_lost"], first["turns"]) == (1, 4)
    assert "2 turns lost" in cc("manager", "rollback", session, "--yes").out
    said = cc("manager", "rollback", session, "--yes")
    assert said.code == 2 and "No checkpoint to roll back to" in one_line(said)


def test_a_rollback_can_name_a_commit_of_the_log(cc: Command, session: str) -> None:
    newest, oldest = (commit["id"] for commit in cc("manager", "log", session, "--json").json["commits"])
    for wrong, why in (("nonsense", "has no commit"), ("", "several commits begin with")):
        said = cc("manager", "rollback", session, "--to", wrong, "--yes")
        assert said.code == 2 and why in one_line(said)
    back = cc("manager", "rollback", session, "--to", oldest[:16], "--yes", "--json").json
    assert (back["commit_restored"], back["turns"]) == (oldest, 2)
    assert cc("manager", "rollback", session, "--to", newest, "--yes", "--json").json["turns"] == 4


def test_a_rollback_asks_for_confirmation(cc: Command, session: str) -> None:
    said = cc("manager", "rollback", session, input="n\n")
    assert said.code == 1 and "nothing was rolled back" in said.err
    assert cc("manager", "log", session, "--json").json["turns"] == 5
    assert cc("manager", "rollback", session, input="y\n").code == 0
    assert cc("manager", "log", session, "--json").json["turns"] == 4


@pytest.mark.parametrize("args", COMMANDS, ids=" ".join)
def test_a_missing_record_is_reported_in_one_line_and_not_created(
    cc: Command, tmp_path: Path, args: tuple[str, ...]
) -> None:
    said = cc("manager", args[0], "assistant", *args[1:])
    assert said.code == 2 and "there is no record here" in one_line(said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("args", COMMANDS, ids=" ".join)
def test_an_unknown_session_is_reported_in_one_line_with_similar_names(
    cc: Command, session: str, args: tuple[str, ...]
) -> None:
    said = cc("manager", args[0], "asistant", *args[1:])
    assert said.code == 2 and "assistant" in one_line(said)


@pytest.mark.parametrize("args", COMMANDS, ids=" ".join)
def test_a_session_without_a_manager_is_reported(cc: Command, tmp_path: Path, args: tuple[str, ...]) -> None:
    assert cc("import", DEMO, "--session", "plain", "--db", tmp_path / "system" / "context.db").code == 0
    said = cc("manager", args[0], "plain", *args[1:])
    assert said.code == 2 and "is not managed" in one_line(said)


def test_stats_show_the_scores_of_a_session(cc: Command, session: str) -> None:
    [one] = cc("stats", "--json").json["sessions"]
    assert one["scored"] == 5 and one["quality"] == one["quality_least"] == pytest.approx(0.8)
    assert 0 < one["health_least"] <= one["health"] <= 1
    assert "0.80" in cc("stats").out
