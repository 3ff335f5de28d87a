"""`worker`, and `pipeline` submit, status, answer, cancel, delete and prune: what they print, and what they leave."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command, one_line

GRAPH = """digraph login {
    goal="Fix it"; start [shape=Mdiamond]; done [shape=Msquare]; a; b; h [shape=hexagon label="Ship it?"];
    start->a->h; h->b [label="[Y] go"]; h->a [label="[N] back"]; b->done
}"""
WORKER = ("worker", "--until-empty", "--poll", "0.02")


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    file = tmp_path / "plan.dot"
    file.write_text(GRAPH)
    return file


def test_a_run_is_submitted_worked_on_answered_and_ended(cc: Command, plan: Path) -> None:
    assert cc("pipeline", "submit", plan, "--simulate", "--id", "first").out == "first\n"
    listed = cc("pipeline", "status").out.splitlines()
    assert listed[0].split()[:3] == ["run", "state", "stages"] and listed[1].split()[:3] == ["first", "queued", "0"]
    assert cc(*WORKER).out == "taken first\nwaiting first\n"
    shown = cc("pipeline", "status", "first")
    assert (
        shown.code == 0
        and "waiting" in shown.out
        and shown.out.splitlines()[-3:]
        == [
            "h asks: Ship it?",
            "  [Y] go",
            "  [N] back",
        ]
    )
    assert cc("pipeline", "status", "first", "--json").json["questions"][0]["stage"] == "h"
    wrong = cc("pipeline", "answer", "first", "perhaps")
    assert wrong.code == 2 and "none of the choices: [Y] go, [N] back" in wrong.err
    assert cc("pipeline", "answer", "first", "y").out == "first: h is answered: y\n"
    changes = [json.loads(line) for line in cc(*WORKER, "--json").out.splitlines()]
    assert [change["change"] for change in changes] == ["taken", "success"]
    assert cc("pipeline", "status", "first", "--json").json["state"] == "success"
    assert cc("pipeline", "status").out == "no open runs in system/runs.db\n"


def test_a_cancelled_run_has_failed(cc: Command, plan: Path) -> None:
    assert cc("pipeline", "submit", plan, "--simulate", "--id", "first", "--json").json["state"] == "queued"
    assert cc("pipeline", "cancel", "first", "--reason", "not needed").out == "first is cancelled\n"
    status = cc("pipeline", "status", "first")
    assert status.code == 1 and "not needed" in status.out
    again = cc("pipeline", "cancel", "first")
    assert again.code == 2 and "has ended" in again.err


def test_a_run_that_no_worker_can_execute_shows_why(cc: Command, plan: Path) -> None:
    cc("pipeline", "submit", plan, "--id", "first")
    cc("pipeline", "submit", plan, "--id", "second", "--simulate")
    said = cc("worker", "--poll", "0.02", "--json", "--until-empty", input="")
    lines = [json.loads(line) for line in said.out.splitlines() if "first" in line]
    assert lines[1]["change"] == "put back" and "names no model" in lines[1]["reason"]


def test_a_location_without_a_queue_is_named(cc: Command, plan: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    folder = cc("pipeline", "submit", plan, "--runs", "runs")
    assert folder.code == 2 and "a folder has no queue" in folder.err
    missing = cc("pipeline", "answer", "first", "y", "--runs", "none.db")
    assert missing.code == 2 and "no runs here" in missing.err
    cc("pipeline", "submit", plan, "--id", "login-1", "--simulate")
    unknown = cc("pipeline", "status", "login-2")
    assert unknown.code == 2 and "login-1" in unknown.err


@pytest.mark.parametrize("command", [("worker", "--until-empty"), ("pipeline", "runs"), ("pipeline", "show", "first")])
def test_without_the_postgresql_packages_the_install_command_is_shown(
    cc: Command, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("context_compiler.lazy.find_spec", lambda name: None)
    said = cc(*command, "--runs", "postgresql://app@db.example.org/agents")
    assert said.code == 2 and "asyncpg and greenlet not installed: pip install" in one_line(said)


def test_a_worker_reports_what_it_waits_for(cc: Command) -> None:
    said = cc(*WORKER, "--name", "w1")
    assert (said.out, said.err) == ("", "note: w1 takes runs from system/runs.db; Ctrl-C stops it\n")


def test_the_commands_take_an_address_and_never_print_its_password(cc: Command, plan: Path, postgres_url: str) -> None:
    runs = ("--runs", postgres_url.replace("postgres@", "postgres:secret@"))
    assert cc("pipeline", "submit", plan, "--simulate", "--auto-approve", "--id", "first", *runs).out == "first\n"
    assert cc(*WORKER, "--db", runs[1]).out == "taken first\nsuccess first\n"
    assert cc("pipeline", "status", "first", "--json", *runs).json["state"] == "success"
    assert cc("pipeline", "runs", "--json", *runs).json["runs"][0]["run_id"] == "first"
    assert "success" in cc("pipeline", "show", "first", *runs).out
    empty, wrong = cc("pipeline", "status", *runs), cc("pipeline", "status", "second", *runs)
    assert empty.out.startswith("no open runs in postgresql://postgres@") and "secret" not in empty.out + wrong.err
    assert wrong.code == 2 and "no submitted run 'second'" in wrong.err


def test_runs_are_deleted_and_pruned(cc: Command, plan: Path) -> None:
    for name in ("waits", "ended", "other"):
        cc("pipeline", "submit", plan, "--simulate", "--id", name)
    cc(*WORKER)
    for name in ("ended", "other"):
        cc("pipeline", "answer", name, "y")
    cc(*WORKER)
    unknown = cc("pipeline", "delete", "endet", "--yes")
    assert unknown.code == 2 and "no run 'endet'; there are 3, such as 'ended'" in unknown.err
    refused = cc("pipeline", "delete", "other", input="n\n")
    assert refused.code == 1 and "nothing was deleted" in refused.err
    assert cc("pipeline", "delete", "other", "--yes").out == "other is deleted\n"
    assert cc("pipeline", "prune", "--older-than", "1d").out == "system/runs.db: 0 runs deleted\n"
    assert cc("pipeline", "prune", "--older-than", "0m", "--json").json["removed"] == ["ended"]
    assert [run["run_id"] for run in cc("pipeline", "runs", "--json").json["runs"]] == ["waits"]
    wrong = cc("pipeline", "prune", "--older-than", "long")
    assert wrong.code == 2 and "--older-than 'long'" in wrong.err
    assert cc("pipeline", "delete", "waits", "--yes", "--json").json == {"run_id": "waits", "deleted": True}
    assert cc("pipeline", "status").out == "no open runs in system/runs.db\n"
