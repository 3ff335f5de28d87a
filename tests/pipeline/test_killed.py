"""A run that is killed anywhere, with no chance to say goodbye, ends as one that was never stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROGRAM = '''
"""Runs the graph in a child that dies at one event, then in one that takes it up; once for every event."""
import asyncio, json, os, signal, sys
from pathlib import Path
from context_compiler.pipeline import RunConfig, resume_pipeline, run_pipeline
from tests.pipeline.test_state_and_resume import LONG, scripted, told

base, where = Path(sys.argv[1]), sys.argv[2]

async def no_wait(seconds):
    await asyncio.sleep(0)

def files(folder):
    """What stages left, but for times."""
    found = {str(path.relative_to(folder)): path.read_text() for path in (folder / "run").rglob("status.json")}
    for path in (folder / "run").rglob("artifacts/*.json"):
        found[str(path.relative_to(folder))] = json.loads(path.read_text())["data"]
    return found

async def one(folder, kill_at):
    left = kill_at

    def listen(event):
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    runs = folder / "runs.db" if where == "sqlite" else None
    config = RunConfig(handlers=scripted(), runs=runs, logs_root=folder / "run", on_event=listen, sleep=no_wait)
    if kill_at >= 0:
        result = await run_pipeline(LONG, config, run_id="r")
    else:
        result = await resume_pipeline("r" if runs else folder / "run", config)
    (folder / "result.json").write_text(json.dumps([told(result.state), files(folder), -left], sort_keys=True))

def forked(folder, kill_at):
    """The signal that ended a child."""
    folder.mkdir(exist_ok=True)
    child = os.fork()
    if child == 0:
        asyncio.run(one(folder, kill_at))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

(base / "whole").mkdir()
asyncio.run(one(base / "whole", 0))  # in this process, so that children begin with everything loaded
*wanted, events = json.loads((base / "whole" / "result.json").read_text())
wrong = []
for kill_at in range(2, events + 1):
    folder = base / str(kill_at)
    ends = forked(folder, kill_at), forked(folder, -1)
    same = ends == (-9, 0) and json.loads((folder / "result.json").read_text())[:2] == wanted
    wrong += [] if same else [(kill_at, ends)]
print(json.dumps({"events": events, "wrong": wrong}))
'''


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
@pytest.mark.parametrize("where", ["sqlite", "folder"])
def test_killed_at_every_event_and_taken_up_it_ends_the_same(tmp_path: Path, where: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), where],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["events"] > 100
    assert said["wrong"] == []
