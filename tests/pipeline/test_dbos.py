"""Runs that DBOS schedules: a workflow whose process died goes on in the next one, and people answer from elsewhere."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from context_compiler.pipeline import RunQueue, SQLiteRuns
from tests.pipeline.conftest import opened
from tests.support.postgres import Cluster
from tests.support.warm import python

pytest.importorskip("dbos")

ROOT = Path(__file__).parents[2]
Start = Callable[[str], subprocess.Popen[str]]


@pytest.fixture(params=["sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Start, RunQueue]:
    """Starts a process of DBOS; and the queue of its runs. DBOS keeps its own tables beside them."""
    address: str | None = None
    if request.param == "postgres":
        cluster: Cluster = request.getfixturevalue("postgres")
        url: str = request.getfixturevalue("postgres_url")
        name = url.partition("?")[0].rpartition("/")[2]
        address = f"{cluster.url(name, port=cluster.port)}?sslmode=disable"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def start(how: str) -> subprocess.Popen[str]:
        command = [python(), "-m", "tests.pipeline.dbos_run", str(tmp_path), how]
        return subprocess.Popen(
            [*command, *([address] if address else [])],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )

    return start, RunQueue(opened(address) if address else SQLiteRuns(tmp_path / "runs.db"))


def result(process: subprocess.Popen[str]) -> Any:
    """What a process printed."""
    with process:
        out, said = process.communicate()
    assert process.returncode == 0, said
    return json.loads(out.splitlines()[-1])


@pytest.mark.parametrize(
    ("how", "place"), [("plain", "sqlite"), ("steps", "sqlite"), ("steps", "postgres")], indirect=["place"]
)
async def test_a_run_of_a_killed_process_is_recovered_at_its_stage(
    how: str, place: tuple[Start, RunQueue], tmp_path: Path
) -> None:
    start, queue = place
    with start(how) as first:
        while first.poll() is None and not await queue.questions("r"):
            await asyncio.sleep(0.1)
        await queue.answer("r", "y")
        _, said = await asyncio.to_thread(first.communicate)
        assert first.returncode == 42, said
    assert [submission.run_id for submission in await queue.open()] == ["r"]
    assert await queue.candidates(9) == []  # no worker of ours takes it from DBOS
    ended = await asyncio.to_thread(lambda: result(start(how)))
    assert (ended["completed"], ended["status"]) == (["start", "a", "h", "b", "c", "done"], "success")
    assert ended["workflows"] == 1 and ended["steps"] == (6 if how == "steps" else 0)
    assert (tmp_path / "seen").read_text().split() == ["r/a/1/1", "r/b/1/1", "r/b/1/1", "r/c/1/1"]
    await queue.runs.close()


def test_a_run_that_is_cancelled_or_that_no_process_can_begin_ends_in_failure(place: tuple[Start, RunQueue]) -> None:
    said = result(place[0]("ends"))
    status, why = said["ended"].pop("bad")
    assert status == "fail" and why.startswith(
        "taken 1 times without completing a stage: PipelineError: no such template"
    )
    assert said["ended"] == {"gate": ["fail", "not needed"], "early": ["fail", "never"], "lost": ["success", ""]}
    assert said["workflows"] == dict.fromkeys(("gate", "early", "bad", "lost"), "SUCCESS") and said["open"] == []


def test_a_run_of_a_workflow_cancelled_in_dbos_stops_until_it_is_resumed_there(
    place: tuple[Start, RunQueue],
) -> None:
    assert result(place[0]("paused"))["said"] == ["stopped", "stopped", "success"]


def test_a_schedule_of_dbos_submits_runs_and_its_queue_limits_their_rate(place: tuple[Start, RunQueue]) -> None:
    said = result(place[0]("limits"))
    assert said["ended"] == ["success", "success"] and said["at"] and said["queued"] == ["third"]
