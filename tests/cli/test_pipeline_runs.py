"""`pipeline run`, `resume`, `runs` and `show`: what they print, and what they leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "review_loop.dot"


@pytest.fixture
def run(tmp_path: Path):
    """Runs the command line in a folder of its own."""

    def call(*arguments: str, said: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "context_compiler", "pipeline", *arguments]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("CONTEXT_COMPILER_")}
        return subprocess.run(
            command,
            cwd=tmp_path,
            env={**environment, "PYTHONPATH": str(ROOT)},
            input=said,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    return call


def test_an_example_runs_without_a_model_and_can_be_looked_at(run) -> None:
    done = run("run", str(EXAMPLE), "--simulate", "--auto-approve", "--id", "first")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split()[:3] == ["start", "compact", "success"]
    assert any(line.split()[:3] == ["implement", "full", "coding"] for line in lines)
    assert lines[-1] == "first success"

    listed = json.loads(run("runs", "--json").stdout)["runs"]
    assert [(one["run_id"], one["status"]) for one in listed] == [("first", "success")]
    shown = run("show", "first").stdout
    assert "14 passed" in shown and "parallel.fan_in.best_id" in shown
    again = run("resume", "first", "--simulate")
    assert (again.returncode, again.stdout) == (0, "first success\n")


def test_events_are_json_lines_and_the_last_is_the_result(run) -> None:
    done = run("run", str(EXAMPLE), "--simulate", "--auto-approve", "--json")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events[0]["kind"] == "run_initialized"
    assert (events[-1]["kind"], events[-1]["status"]) == ("result", "success")


def test_a_person_is_asked_on_the_terminal(run) -> None:
    done = run("run", str(EXAMPLE), "--simulate", said="y\n")
    assert done.returncode == 0 and "Ship it?" in done.stderr and "  [N] No, again" in done.stderr
    nobody = run("run", str(EXAMPLE), "--simulate")
    assert nobody.returncode == 1 and "human skipped interaction" in nobody.stdout


def test_a_stage_without_a_model_is_an_error_that_says_what_to_do(run) -> None:
    done = run("run", str(EXAMPLE))
    assert done.returncode == 2 and "'plan' names no model: give --model NAME, or --simulate" in done.stderr


def test_a_run_in_a_folder_is_taken_up_from_it(run, tmp_path: Path) -> None:
    done = run(
        "run", str(EXAMPLE), "--simulate", "--auto-approve", "--runs", "runs", "--id", "one", "--set", "color=red"
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "one" / "plan" / "prompt.md").is_file()
    assert "color" in run("show", "runs/one").stdout
    assert run("resume", "runs/one", "--simulate").stdout == "one success\n"


def test_what_is_not_there_is_said(run) -> None:
    assert "there are no runs here" in run("show", "nothing").stderr
    assert run("runs").stdout == "no runs in system/runs.db\n"
    run("run", str(EXAMPLE), "--simulate", "--auto-approve", "--id", "first")
    assert "no run 'frist'; there is 'first'" in run("show", "frist").stderr
