"""`workflow check`, `run`, `resume` and `show`: what they print, how they end, and which run they mean."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from context_compiler.pipeline import SQLiteRuns
from tests.cli.conftest import Command
from tests.pipeline.resuming import half
from tests.support.warm import kill, python

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "release_notes.md"
STEPS = "## Plan\nPlan it.\n\n## Report\n@context-helper extractive\nSay what was planned.\n"


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    path = tmp_path / "steps.md"
    path.write_text(STEPS)
    return path


def test_the_example_is_sound_and_runs_without_a_model(cc: Command) -> None:
    checked = cc("workflow", "check", EXAMPLE, EXAMPLE.with_name("nightly.md"))
    assert checked.out == "2 files, 0 errors, 0 warnings, 0 notes\n"
    done = cc("workflow", "run", EXAMPLE, "--simulate", "--id", "first", "--logs", "out")
    assert (done.code, done.out.splitlines()[-1]) == (0, "first success")
    assert "Context summary (compiled):" in Path("out/final_version/prompt.md").read_text()
    views = cc("views", "list", "--json").json["views"]
    assert {view["session_id"] for view in views} == {
        f"first/{step}/context-helper" for step in ("draft_the_note", "final_version")
    }


def test_a_run_that_was_stopped_is_found_by_its_file(cc: Command, steps: Path) -> None:
    first = cc("workflow", "resume", steps)
    assert first.code == 2 and "no run of it in system/runs.db; start one" in first.err
    cc("workflow", "run", steps, "--simulate", "--id", "whole")
    again = cc("workflow", "resume", steps, "--simulate")
    assert (again.code, again.out) == (0, "whole success\n")


def test_resume_prefers_a_stopped_run_to_a_later_one_that_ended(cc: Command, steps: Path) -> None:
    asyncio.run(half(str(steps), SQLiteRuns(Path("runs.db")), "report", simulate=True))
    cc("workflow", "run", steps, "--simulate", "--id", "later", "--runs", "runs.db")
    done = cc("workflow", "resume", steps, "--simulate", "--runs", "runs.db")
    lines = [line.split()[0] for line in done.out.splitlines()]
    assert lines == ["report", "done", "r"]


def test_the_steps_can_be_drawn(cc: Command, steps: Path) -> None:
    assert cc("workflow", "draw", steps, "--out", "steps.svg").out.startswith("steps.svg (")
    drawn = Path("steps.svg").read_text(encoding="utf-8")
    assert ">Plan</text>" in drawn and ">Report</text>" in drawn and cc("workflow", "draw", steps).out == drawn + "\n"


def test_show_lists_the_steps_and_the_last_run(cc: Command, steps: Path) -> None:
    shown = cc("workflow", "show", steps, "--json").json
    assert shown["run"] is None
    assert [(step["step"], step["line"], step["context_helper"]) for step in shown["workflow"]["steps"]] == [
        *(("Plan", 1, ""), ("Report", 4, "extractive")),
    ]
    cc("workflow", "run", steps, "--simulate", "--id", "whole")
    assert cc("workflow", "show", steps, "--json").json["run"]["id"] == "whole"
    assert "Say what was planned." in cc("workflow", "show", steps, terminal=120).plain


def test_resuming_an_ended_run_of_a_changed_file_is_refused(cc: Command, steps: Path) -> None:
    cc("workflow", "run", steps, "--simulate", "--id", "whole")
    steps.write_text(STEPS + "\n## More\nMore.\n")
    done = cc("workflow", "resume", steps, "--simulate")
    assert done.code == 2 and "the file was changed after run 'whole', which has ended; start a new run" in done.err


def test_a_stopped_run_of_an_earlier_text_is_named_with_the_command_that_resumes_it(cc: Command, steps: Path) -> None:
    steps.write_text(f"---\nname: My Steps\n---\n{STEPS}")
    asyncio.run(half(str(steps), SQLiteRuns(Path("runs.db")), "report", simulate=True))
    steps.write_text(f"---\nname: My Steps\n---\n{STEPS}More.\n")
    done = cc("workflow", "resume", steps, "--simulate", "--runs", "runs.db")
    assert "the file was changed after run 'r' began; `pipeline resume r` continues that run" in done.err


@pytest.mark.parametrize("named", [("workflow", "steps.md"), ("pipeline", "r")])
def test_a_run_is_not_resumed_without_a_model(cc: Command, steps: Path, named: tuple[str, str]) -> None:
    asyncio.run(half(str(steps), SQLiteRuns(Path("runs.db")), "report", simulate=True))
    command, what = named
    arguments = (command, "resume", str(steps) if command == "workflow" else what, "--runs", "runs.db")
    for _ in range(2):  # the run stays as it is
        refused = cc(*arguments)
        assert refused.code == 2 and "names no model; give --model NAME, or --simulate to ask none" in refused.err
    assert cc(*arguments, "--simulate").code == 0
    assert (cc(*arguments).code, cc(*arguments).out) == (0, "r success\n")  # it has ended, so it needs no model


def test_check_finds_missing_templates_and_gives_the_line(cc: Command, steps: Path) -> None:
    steps.write_text("## A\n@context-helper chat_compilr\n@modle x\ntext\n")
    done = cc("workflow", "check", steps)
    assert done.code == 1 and "1 file, 1 error, 1 warning, 0 notes" in done.out
    assert f"{steps}:2:1: error template_known: a:" in done.out and "did you mean chat_compiler?" in done.out
    assert f"{steps}:3:1: warning directive_known: a: @modle is not known here" in done.out


def test_the_line_of_a_missing_template_is_that_of_the_directive_that_counts(cc: Command, steps: Path) -> None:
    steps.write_text("# Title\n\n## A\n\n@context-helper extractive\n@model test\n\n@context-helper nothere\ntext\n")
    assert f"{steps}:8:1: error template_known: a:" in cc("workflow", "check", steps).out


def test_a_run_reports_directives_without_effect_and_failed_context_helpers(cc: Command, steps: Path) -> None:
    steps.write_text("## A\nDo.\n\n## B\n@modle x\n@model\n@context-helper odd\nDo more.\n")
    folder = Path("system/ContextTemplates")
    folder.mkdir(parents=True)
    (folder / "odd.md").write_text("---\ncompiler: none\n---\n{% if recent_turns %}{{ 1 // 0 }}{% endif %}")
    done = cc("workflow", "run", steps, "--simulate")
    assert done.code == 0
    (line,) = [line for line in done.out.splitlines() if line.startswith("b ")]
    assert "context helper failed, prompt sent as written: TemplateError: " in line
    assert "did you mean @model?" in done.err and "@model has no value and is passed over" in done.err


@pytest.mark.parametrize("command", ["workflow", "pipeline"])
def test_a_template_that_check_refuses_is_refused_before_a_run(cc: Command, steps: Path, command: str) -> None:
    steps.write_text("## A\nDo.\n\n## B\n@context-helper nothere\nDo more.\n")
    checked, done = cc(command, "check", steps), cc(command, "run", steps, "--simulate")
    assert checked.code == 1 and "template_known: b: @context-helper: nothere" in checked.out
    assert done.code == 2 and "template_known: b: @context-helper: nothere: there is no template" in done.err
    assert not done.out and not Path("system/runs.db").exists()


@pytest.mark.parametrize("step", ["## A\nDo.\n", "## A\nDo.\n\n## B\n@model openai:gpt-5\nDo more.\n"])
def test_a_model_without_its_key_is_refused_before_a_run(cc: Command, steps: Path, step: str) -> None:
    steps.write_text(step)
    named = ("--model", "scripted" if "@model" in step else "openai:gpt-5")
    done = cc("workflow", "run", steps, *named)
    assert not Path("system/runs.db").exists()
    missing = cc("workflow", "resume", steps, "--id", "x", "--simulate")
    assert "system/runs.db: no runs here" in missing.err and not Path("system/runs.db").exists()
    asyncio.run(half(str(steps), SQLiteRuns(Path("runs.db")), "a", simulate=True))
    for refused in (done, cc("workflow", "resume", steps, "--runs", "runs.db", *named)):
        assert refused.code == 2 and not refused.out
        assert "'openai:gpt-5': set the environment variable OPENAI_API_KEY" in refused.err
        assert ("stage 'b': model" if "@model" in step else "; --model scripted needs no key") in refused.err


def test_the_bundled_model_runs_steps_without_a_key(cc: Command, steps: Path) -> None:
    done = cc("workflow", "run", steps, "--model", "scripted", "--json").json
    assert done["status"] == "success" and set(done["outcomes"]) >= {"plan", "report"}
    assert "Simulated" not in done["context"]["last_response"]
    assert any("context-helper" in one["session_id"] for one in cc("views", "list", "--json").json["views"])


def test_a_file_that_is_not_a_workflow_is_refused(cc: Command, steps: Path) -> None:
    steps.write_text("# Only a title\n")
    for command in ("check", "run", "show", "resume"):
        done = cc("workflow", command, steps)
        assert done.code in (1, 2) and "there is no step in it" in done.out + done.err
    steps.write_text(STEPS)
    assert "stage 'plan' names no model: give --model NAME, or --simulate" in cc("workflow", "run", steps).err


def test_pipeline_commands_take_workflows_too(cc: Command, steps: Path) -> None:
    assert cc("pipeline", "check", steps).code == 0
    assert cc("pipeline", "run", steps, "--simulate", "--id", "x").out.endswith("x success\n")
    assert cc("pipeline", "show", "x").code == 0


@pytest.mark.skipif(os.name != "posix", reason="there is no SIGKILL on this system")
def test_a_killed_run_is_resumed_by_the_next_process(cc: Command, steps: Path) -> None:
    steps.write_text("".join(f"## Step {n}\n@context-helper extractive\nDo it.\n" for n in range(24)))
    command = [python(), "-m", "context_compiler", "workflow", "run", str(steps), "--simulate", "--events"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    ) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if json.loads(line).get("node") == "step_9":
                kill(run)
                break
    assert run.wait() == -signal.SIGKILL
    assert cc("workflow", "show", steps, "--json").json["run"]["status"] == "stopped"
    done = cc("workflow", "resume", steps, "--simulate")
    assert done.code == 0, done.err
    name = cc("workflow", "show", steps, "--json").json["run"]["id"]
    completed = cc("pipeline", "show", name, "--json").json["checkpoint"]["completed_nodes"]
    assert completed == ["start", *(f"step_{n}" for n in range(24)), "done"]
