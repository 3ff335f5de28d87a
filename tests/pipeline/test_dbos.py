"""Runs that DBOS schedules: a workflow whose process died goes on in the next one, and people answer from elsewhere."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from context_compiler.pipeline import RunQueue, SQLiteRuns

pytest.importorskip("dbos")

ROOT = Path(__file__).parents[2]


def start(folder: Path, how: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.pipeline.dbos_run", str(folder), how]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    )


@pytest.mark.parametrize("how", ["plain", "steps"])
async def test_a_run_whose_process_died_is_recovered_at_its_stage(how: str, tmp_path: Path) -> None:
    with start(tmp_path, how) as first:
        queue = RunQueue(SQLiteRuns(tmp_path / "runs.db"))
        while first.poll() is None and not await queue.questions("r"):
            await asyncio.sleep(0.1)
        await queue.answer("r", "y")
        _, said = await asyncio.to_thread(first.communicate)
        assert first.returncode == 42, said
    assert [one.status for one in await queue.runs.runs()] == ["stopped"]
    assert await queue.candidates(9) == []  # no worker of ours takes it from DBOS
    with start(tmp_path, how) as second:
        out, said = await asyncio.to_thread(second.communicate)
        assert second.returncode == 0, said
    result = json.loads(out.splitlines()[-1])
    assert (result["completed"], result["status"]) == (["start", "a", "h", "b", "c", "done"], "success")
    assert result["workflows"] == 1 and result["steps"] == (6 if how == "steps" else 0)
    assert (tmp_path / "seen").read_text().split() == ["r/a/1/1", "r/b/1/1", "r/b/1/1", "r/c/1/1"]
    await queue.runs.close()
