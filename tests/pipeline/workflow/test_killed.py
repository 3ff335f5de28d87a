"""The shipped workflow, killed after each of its steps and within each, and resumed, ends as if it never was."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.warm import python

ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_killed_at_any_moment_and_resumed_from_the_command_line_it_ends_the_same(tmp_path: Path) -> None:
    done = subprocess.run(
        [python(), "-m", "tests.pipeline.workflow.killing", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYDANTIC_AI_NO_BANNER": "1"},
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["answers"] == [5, 2]
    assert said["deaths"] > 15
    assert said["wrong"] == {}
