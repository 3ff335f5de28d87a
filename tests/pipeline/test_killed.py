"""A run that is killed anywhere, with no chance to say goodbye, ends as one that was never stopped."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.warm import python

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")]


def killed(folder: Path, where: str) -> dict[str, Any]:
    """What came of killing a run at an event of each kind."""
    done = subprocess.run(
        [python(), "-m", "tests.pipeline.killing", str(folder), where],
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("where", ["sqlite", "folder"])
def test_a_run_killed_at_any_kind_of_event_and_resumed_ends_the_same(tmp_path: Path, where: str) -> None:
    said = killed(tmp_path, where)
    assert said["events"] > 90
    assert said["kills"] > 15
    assert said["wrong"] == []


def kill_workers(location: str) -> dict[str, Any]:
    """What came of killing workers in the middle of submitted runs."""
    options = ["--runs", "2", "--kills", "4", "--workers", "2", "--seed", "7"]
    done = subprocess.run(
        [python(), "-m", "tests.pipeline.killing_workers", location, *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def test_runs_with_killed_workers_end_as_if_undisturbed(tmp_path: Path) -> None:
    said = kill_workers(str(tmp_path / "runs.db"))
    assert said["kills"] == 4 and said["wrong"] == [] and said["ok"]
