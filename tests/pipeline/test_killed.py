"""A run that is killed anywhere, with no chance to say goodbye, ends as one that was never stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

PROGRAM = '''
import asyncio, json, os, signal, sys
from context_compiler.pipeline import RunConfig, resume_pipeline, run_pipeline
from tests.pipeline.test_state_and_resume import LONG, scripted, told

folder, where, kill_at = sys.argv[1], sys.argv[2], int(sys.argv[3])
left = kill_at

def listen(event):
    """Dies at the so manyth event: before a stage, after it, after its checkpoint, inside a branch."""
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

async def no_wait(seconds):
    await asyncio.sleep(0)

async def main():
    runs = f"{folder}/runs.db" if where == "sqlite" else None
    config = RunConfig(handlers=scripted(), runs=runs, logs_root=f"{folder}/run", on_event=listen, sleep=no_wait)
    if kill_at >= 0:
        result = await run_pipeline(LONG, config, run_id="r")
    else:
        result = await resume_pipeline("r" if runs else f"{folder}/run", config)
    print(json.dumps({"state": told(result.state), "steps": -left}))

asyncio.run(main())
'''


def python(folder: Path, where: str, kill_at: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, str(folder), where, str(kill_at)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=ROOT, env=environment)


def said(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def files(folder: Path) -> dict[str, str]:
    """What stages left: outcomes and artifacts, but for times."""
    found = {}
    for path in sorted((folder / "run").rglob("status.json")):
        found[str(path.relative_to(folder))] = path.read_text()
    for path in sorted((folder / "run").rglob("artifacts/*.json")):
        found[str(path.relative_to(folder))] = json.loads(path.read_text())["data"]
    return found


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("where", ["sqlite", "folder"])
def test_killed_at_every_event_and_taken_up_it_ends_the_same(tmp_path: Path, where: str) -> None:
    whole = python(tmp_path / "whole", where, 0)
    wanted, steps = said(whole)["state"], said(whole)["steps"]
    left = files(tmp_path / "whole")
    assert steps > 80
    step = max(1, int(os.environ.get("CONTEXT_COMPILER_KILL_STEP", "3")))
    for kill_at in range(2, steps, step):
        folder = tmp_path / str(kill_at)
        assert python(folder, where, kill_at).returncode == -9, kill_at
        taken_up = said(python(folder, where, -1))
        assert taken_up["state"] == wanted, f"killed at event {kill_at}"
        assert files(folder) == left, f"killed at event {kill_at}"
