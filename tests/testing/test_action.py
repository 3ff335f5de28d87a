"""The GitHub action: its script lists the outcomes in the summary of the job and fails with the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.sources import ROOT
from tests.support.warm import write_command

ACTION = ROOT / ".github" / "actions" / "test-contexts" / "action.yml"

TEST = """
from pydantic_ai import Agent


def test_it(contexts):
    contexts.live(Agent(), ["Never push."]).assert_in_context("{text}")
"""


@pytest.mark.skipif(shutil.which("bash") is None or os.name == "nt", reason="bash is not installed")
@pytest.mark.parametrize(("text", "code"), [("Never push.", 0), ("Always ```push```.", 1)])
def test_the_script_of_the_action_fails_with_the_tests(text: str, code: int, tmp_path: Path) -> None:
    [step] = yaml.safe_load(ACTION.read_text(encoding="utf-8"))["runs"]["steps"]
    (tmp_path / "test_it.py").write_text(TEST.replace("{text}", text), encoding="utf-8")
    write_command(tmp_path / "context-compiler")
    summary = tmp_path / "summary.md"
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    env |= {"FILES": "test_it.py", "HTML": "pages", "GITHUB_STEP_SUMMARY": str(summary)}
    script = ["bash", "-e", "-o", "pipefail", "-c", step["run"]]
    done = subprocess.run(script, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    shown = summary.read_text(encoding="utf-8")
    assert ("failed" in shown) is bool(code) and shown.count("```") == 2
    assert (tmp_path / "pages").is_dir() is bool(code)
