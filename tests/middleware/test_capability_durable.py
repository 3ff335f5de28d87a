"""A durable run that dies after its first compile is recovered with what was compiled then, and asks nobody again."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.support import warm

ROOT = Path(__file__).parents[2]

needs_dbos = pytest.mark.skipif(importlib.util.find_spec("dbos") is None, reason="dbos is not installed")


def program(python: str, name: str, *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-W", "ignore", "-m", f"tests.support.{name}", *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@needs_dbos
def test_a_replay_repeats_the_compile_and_the_inputs_of_the_run(tmp_path: Path) -> None:
    """What was learnt of the provider before the run is gone in the new process, and what was stored is there now."""
    died = program(warm.python(), "durable", tmp_path)
    assert died.returncode == 42, died.stderr
    recovered = program(warm.python(), "durable", tmp_path)
    assert recovered.returncode == 0, recovered.stderr
    assert "UnexpectedStep" not in died.stderr + recovered.stderr
    result = json.loads(recovered.stdout)
    assert result["output"] == "done" and result["requests"] == 3
    assert (tmp_path / "compiled").read_text().splitlines() == ["once"]
    sent = [json.loads(line) for line in (tmp_path / "sent").read_text().splitlines()]
    assert len(sent) == 3 and all(later[: len(first)] == first for first, later in zip(sent, sent[1:], strict=False))
    ours = [step.rpartition(".")[2] for step in result["steps"] if "context_compiler" in step]
    assert ours == ["begin", "compile"]
    assert result["views"] == ["raw", "compiled", "cycle", "cycle"] and result["ratio"] > 1.3


TEMPORAL = shutil.which("temporal", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")

needs_temporal = pytest.mark.skipif(
    TEMPORAL is None or importlib.util.find_spec("temporalio") is None, reason="temporalio or its server is missing"
)


@needs_temporal
def test_a_temporal_workflow_is_replayed_with_its_compile(tmp_path: Path) -> None:
    """Its loop hears nothing of other threads and may open no file, but its requests are compiled and recorded."""
    result = program(sys.executable, "temporal", tmp_path, TEMPORAL or "")
    assert result.returncode == 0, result.stderr
    outcome = json.loads(result.stdout.splitlines()[-1])
    assert outcome["output"] == "done" and outcome["compiled"] == ["once"]
    assert outcome["views"] == ["compiled", "cycle", "cycle"]
    assert [name.rpartition("__")[2] for name in outcome["activities"]] == ["begin", "compile"]
    first, second, third = outcome["sent"]
    assert len(first) < 20 and second[: len(first)] == first and third[: len(second)] == second


def prefect_starts() -> bool:
    """True where Prefect is installed with a FastAPI that its server can be made with."""
    if importlib.util.find_spec("prefect") is None:
        return False
    return tuple(int(one) for one in version("fastapi").split(".")[:2]) < (0, 120)


@pytest.mark.skipif(not prefect_starts(), reason="prefect is missing, or its server cannot start")
def test_a_prefect_flow_is_repeated_with_its_compile(tmp_path: Path) -> None:
    result = program(sys.executable, "prefect", tmp_path)
    assert result.returncode == 0, result.stderr
    outcome = json.loads(result.stdout.splitlines()[-1])
    assert outcome["tried"] == ["done", "done"] and outcome["compiled"] == ["once"]
    assert len(outcome["sent"]) == 3 and outcome["views"] == ["compiled", "cycle", "cycle"]
