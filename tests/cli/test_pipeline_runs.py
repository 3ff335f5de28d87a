"""`pipeline run`, `resume`, `runs` and `show`: what they print, and what they leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.support.warm import python

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "review_loop.dot"


def test_an_example_runs_without_a_model_and_can_be_looked_at(cc: Command) -> None:
    done = cc("pipeline", "run", EXAMPLE, "--simulate", "--auto-approve", "--id", "first")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].split()[:3] == ["start", "compact", "success"]
    assert any(line.split()[:3] == ["implement", "full", "coding"] for line in lines)
    assert lines[-1] == "first success"

    listed = json.loads(cc("pipeline", "runs", "--json").out)["runs"]
    assert [(run["run_id"], run["status"]) for run in listed] == [("first", "success")]
    shown = cc("pipeline", "show", "first").out
    assert "14 passed" in shown and "parallel.fan_in.best_id" in shown
    again = cc("pipeline", "resume", "first", "--simulate")
    assert (again.code, again.out) == (0, "first success\n")


def test_a_file_that_is_too_large_is_not_read_to_its_end(cc: Command, tmp_path: Path) -> None:
    with open(tmp_path / "large.dot", "wb") as file:
        file.truncate(400_000_000)  # takes no room
    tracemalloc.start()
    try:
        checked = cc("pipeline", "check", "large.dot")
        assert tracemalloc.get_traced_memory()[1] < 300_000_000
    finally:
        tracemalloc.stop()
    assert checked.code == 1 and "more than 16,000,000 characters" in checked.out


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are of POSIX")
def test_a_place_of_runs_that_is_neither_folder_nor_database_is_refused(cc: Command, tmp_path: Path) -> None:
    (tmp_path / "plain.txt").write_text("no runs")
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "pipe.db")
    for name, kind in (("plain.txt", "folder"), ("pipe", "folder"), ("pipe.db", "database")):
        listed = cc("pipeline", "runs", "--runs", name)
        assert listed.code == 2 and f"{name}: this is no {kind}" in listed.err and not listed.out


def test_a_damaged_run_is_listed_with_the_reason_beside_the_others(cc: Command) -> None:
    for name in ("first", "second"):
        assert cc("pipeline", "run", EXAMPLE, "--simulate", "--auto-approve", "--id", name, "--runs", "kept").code == 0
    Path("kept/second/manifest.json").write_text('{"run_id":')
    listed = cc("pipeline", "runs", "--runs", "kept")
    assert listed.code == 0 and "manifest.json: it cannot be read" in listed.out
    assert [line.split()[:2] for line in listed.out.splitlines()[-2:]] == [["first", "success"], ["second", "damaged"]]
    assert cc("pipeline", "show", "first", "--runs", "kept").code == 0
    assert "no run 'third'" in cc("pipeline", "show", "third", "--runs", "kept").err


def test_events_are_json_lines_and_the_last_is_the_result(cc: Command) -> None:
    done = cc("pipeline", "run", EXAMPLE, "--simulate", "--auto-approve", "--events")
    events = [json.loads(line) for line in done.out.splitlines()]
    assert events[0]["kind"] == "run_initialized"
    assert (events[-1]["kind"], events[-1]["status"]) == ("result", "success")


def test_a_gate_asks_on_the_terminal(tmp_path: Path) -> None:
    command = [python(), "-m", "context_compiler", "pipeline", "run", str(EXAMPLE), "--simulate"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    options = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True, "check": False, "timeout": 60}
    done = subprocess.run(command, input="y\n", **options)
    assert done.returncode == 0 and "Ship it?" in done.stderr and "  [N] No, again" in done.stderr


LATE = """digraph late {
  start [shape=Mdiamond]; done [shape=Msquare]
  one [shape=hexagon, label="Send?", human.timeout=100ms, human.default_choice="work"]
  send [shape=parallelogram, tool_command="echo sent"]
  work [shape=parallelogram, tool_command="until test -e go; do sleep 0.05; done; sleep 0.2"]
  two [shape=hexagon, label="Drop?"]
  drop [shape=parallelogram, tool_command="echo dropped"]
  keep [shape=parallelogram, tool_command="echo kept"]
  start -> one; one -> send [label="Yes"]; one -> work [label="No"]; send -> work; work -> two
  two -> drop [label="Yes"]; two -> keep [label="No"]; drop -> done; keep -> done
}"""


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal")
def test_input_typed_before_a_question_is_shown_does_not_answer_it(tmp_path: Path) -> None:
    (tmp_path / "late.dot").write_text(LATE)
    person, terminal = os.openpty()
    command = [python(), "-m", "context_compiler", "pipeline", "run", "late.dot", "--simulate", "--id", "r"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as running:
        assert running.stdout is not None
        said = ""
        for line in running.stdout:
            said += line.decode()
            if b"was chosen" in line:
                os.write(person, b"Y\nY\nY")
                (tmp_path / "go").touch()
            if b"[N] No" in line and "Drop?" in said:
                os.write(person, b"N\n")
    os.close(person)
    os.close(terminal)
    assert "keep " in said and "drop " not in said and running.returncode == 0, said


def test_a_run_stops_where_nobody_can_be_asked_and_says_how_it_goes_on(cc: Command) -> None:
    done = cc("pipeline", "run", EXAMPLE, "--simulate", "--id", "first", "--runs", "my runs")
    assert done.code == 1 and "first stopped: approve: nobody is there to answer; " in done.out
    assert "`pipeline resume first --runs 'my runs'` asks again" in done.out
    assert cc("pipeline", "runs", "--runs", "my runs", "--json").json["runs"][0]["status"] == "stopped"
    again = cc("pipeline", "resume", "first", "--simulate", "--runs", "my runs", "--json")
    assert (again.code, again.json["status"]) == (1, "stopped")
    assert cc("pipeline", "resume", "first", "--simulate", "--auto-approve", "--runs", "my runs").code == 0


def test_a_stage_without_a_model_fails_with_the_remedy(cc: Command) -> None:
    done = cc("pipeline", "run", EXAMPLE)
    assert done.code == 2 and "'plan' names no model: give --model NAME, or --simulate" in done.err


def test_a_run_kept_in_a_folder_can_be_resumed_from_it(cc: Command, tmp_path: Path) -> None:
    done = cc(
        "pipeline",
        "run",
        EXAMPLE,
        "--simulate",
        "--auto-approve",
        "--runs",
        "runs",
        "--id",
        "one",
        "--set",
        "color=red",
    )
    assert done.code == 0, done.err
    assert (tmp_path / "runs" / "one" / "plan" / "prompt.md").is_file()
    assert "color" in cc("pipeline", "show", "runs/one").out
    assert cc("pipeline", "resume", "runs/one", "--simulate").out == "one success\n"


def test_missing_runs_are_reported_with_similar_names(cc: Command) -> None:
    for command in ("show", "resume"):
        said = cc("pipeline", command, "nothing")
        assert said.code == 2 and said.err.startswith("error: system/runs.db: no runs here")
        assert not Path("system").exists()
    assert cc("pipeline", "runs").out == "no runs in system/runs.db\n"
    cc("pipeline", "run", EXAMPLE, "--simulate", "--auto-approve", "--id", "first")
    assert "no run 'frist'; there is 'first'" in cc("pipeline", "show", "frist").err


def test_a_run_id_that_is_not_valid_text_is_reported_in_one_line(cc: Command) -> None:
    cc("pipeline", "run", EXAMPLE, "--simulate", "--auto-approve", "--id", "first")
    for command in (
        ("run", EXAMPLE, "--simulate", "--id", "\udcff"),
        ("show", "\udcff"),
        ("resume", "\udcff", "--simulate"),
    ):
        said = cc("pipeline", *command)
        assert (said.code, said.out) == (2, "") and "not valid UTF-8" in said.err


def test_a_run_prints_one_document_as_its_result(cc: Command) -> None:
    done = cc("pipeline", "run", EXAMPLE, "--simulate", "--auto-approve", "--json", "--id", "one")
    assert (done.json["run_id"], done.json["status"], done.json["completed"][-1]) == ("one", "success", "done")
    assert done.json["outcomes"]["plan"]["outcome"] == "success" and done.json["context"]["last_response"]
    assert cc("pipeline", "resume", "one", "--json").json == done.json


def test_a_failure_follows_a_plain_edge_only_with_lenient(cc: Command, tmp_path: Path) -> None:
    path = tmp_path / "fails.dot"
    path.write_text(
        'digraph g { start [shape=Mdiamond]; t [shape=parallelogram, tool_command="exit 3"]; '
        "done [shape=Msquare]; start -> t -> done }"
    )
    failed = cc("pipeline", "run", path, "--json")
    assert (failed.code, failed.json["reason"]) == (1, "t: exit code 3")
    assert cc("pipeline", "run", path, "--lenient").code == 0


def test_an_invalid_limit_of_money_names_its_option(cc: Command) -> None:
    said = cc("pipeline", "run", EXAMPLE, "--simulate", "--max-cost", "much")
    assert (said.code, said.err) == (2, "error: --max-cost 'much': give US dollars above 0, such as 0.50\n")


def test_a_limit_of_time_ends_a_run(cc: Command, tmp_path: Path) -> None:
    path = tmp_path / "waits.dot"
    path.write_text(
        'digraph g { start [shape=Mdiamond]; t [shape=parallelogram, tool_command="sleep 600"]; '
        "done [shape=Msquare]; start -> t -> done }"
    )
    done = cc("pipeline", "run", path, "--max-duration", "500ms")
    assert done.code == 1 and "the run took longer than 0.5 s, which is the limit (max_duration)" in done.out
    assert "give a duration such as" in cc("pipeline", "run", path, "--max-duration", "soon").err


def test_graphs_and_handlers_are_printed_as_json(cc: Command) -> None:
    parsed = cc("pipeline", "parse", EXAMPLE).json
    assert parsed == cc("pipeline", "parse", EXAMPLE, "--json").json
    stages = {stage["name"]: stage for stage in parsed["stages"]}
    assert parsed["name"] == "review_loop" and stages["implement"]["attributes"]["fidelity"] == "full"
    assert {"from": "start", "to": "plan", "attributes": {}} in parsed["edges"]
    handlers = {handler["type"]: handler for handler in cc("pipeline", "handlers").json["handlers"]}
    assert handlers["tool"]["shape"] == "parallelogram" and handlers["tool"]["retries_failures"]


WAITING = """digraph g {
  start [shape=Mdiamond]; done [shape=Msquare]
  first [prompt="First"]; stop [shape=parallelogram, tool_command="kill -INT $PPID; sleep 60"]
  start -> first -> stop -> done
}"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are of POSIX")
@pytest.mark.parametrize("form", ["--json", "--events"])
def test_a_run_that_ctrl_c_stops_prints_its_document_and_is_stopped(form: str, cc: Command, tmp_path: Path) -> None:
    (tmp_path / "waiting.dot").write_text(WAITING)
    command = [python(), "-m", "context_compiler", "pipeline", "run", "waiting.dot", "--simulate", "--id", "w"]
    done = subprocess.run(
        [*command, form], cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 130 and "interrupted" in done.stderr
    document = json.loads(done.stdout if form == "--json" else done.stdout.splitlines()[-1])
    assert (document["run_id"], document["status"], document["reason"]) == ("w", "stopped", "interrupted")
    if form == "--json":
        assert document["completed"] == ["start", "first"]
    shown = cc("pipeline", "show", "w")
    assert any(line.split() == ["status", "stopped"] for line in shown.out.splitlines())


def test_context_values_are_shown_as_json_and_not_as_python(cc: Command, tmp_path: Path) -> None:
    (tmp_path / "tool.dot").write_text(
        "digraph g { start [shape=Mdiamond]; done [shape=Msquare]; fan [shape=component]; a; b;"
        " join [shape=tripleoctagon]; start -> fan; fan -> a -> join; fan -> b -> join; join -> done }"
    )
    assert cc("pipeline", "run", "tool.dot", "--simulate", "--id", "t", "--owner", "ann").code == 0
    shown = cc("pipeline", "show", "t").out
    assert '": "' in shown and "{'" not in shown
    runs = [cc("pipeline", "runs", "--owner", owner, "--json").json["runs"] for owner in ("ann", "bob")]
    assert [len(some) for some in runs] == [1, 0]


def test_a_run_of_another_owner_is_neither_shown_nor_deleted(cc: Command) -> None:
    for name in ("ann", "bob"):
        run = cc("pipeline", "run", EXAMPLE, "--simulate", "--auto-approve", "--id", f"of-{name}", "--owner", name)
        assert run.code == 0, run.err
    for command in (("show", "of-bob"), ("delete", "of-bob", "--yes")):
        said = cc("pipeline", *command, "--owner", "ann")
        assert said.code == 2 and "no run 'of-bob'" in said.err
    assert cc("pipeline", "show", "of-bob", "--owner", "bob").code == 0
    assert cc("pipeline", "delete", "of-ann", "--owner", "ann", "--yes").code == 0
    assert [run["run_id"] for run in cc("pipeline", "runs", "--json").json["runs"]] == ["of-bob"]
