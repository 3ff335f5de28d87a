"""A durable run that dies after its first compile is recovered with what was compiled then, and asks nobody again."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

needs_dbos = pytest.mark.skipif(importlib.util.find_spec("dbos") is None, reason="dbos is not installed")


def program(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.support.durable", str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@needs_dbos
def test_a_compile_is_replayed_and_what_the_run_began_with_too(tmp_path: Path) -> None:
    """What was learnt of the provider before the run is gone in the new process, and what was stored is there now."""
    died = program(tmp_path)
    assert died.returncode == 42, died.stderr
    recovered = program(tmp_path)
    assert recovered.returncode == 0, recovered.stderr
    assert "UnexpectedStep" not in died.stderr + recovered.stderr
    result = json.loads(recovered.stdout)
    assert result["output"] == "done" and result["requests"] == 3
    assert (tmp_path / "compiled").read_text().splitlines() == ["once"]
    sent = [json.loads(line) for line in (tmp_path / "sent").read_text().splitlines()]
    assert len(sent) == 3 and all(later[: len(one)] == one for one, later in zip(sent, sent[1:], strict=False))
    ours = [step.rpartition(".")[2] for step in result["steps"] if "context_compiler" in step]
    assert ours == ["begin", "compile"]
    assert result["views"] == ["raw", "compiled", "cycle", "cycle"] and result["ratio"] > 1.3
