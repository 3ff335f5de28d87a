"""`workflow`: check, draw, run, resume and show markdown files of steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from context_compiler import pipeline
from context_compiler.cli.options import SYSTEM, Json, System, Vault, check_run_name, example, group
from context_compiler.cli.pipelines import Out, check_files, write_drawing
from context_compiler.cli.run_options import RUNS, NewId, Restore, RunOptions, Runs, Values, with_run_options
from context_compiler.cli.runs import resume_run, run_graph, with_runs
from context_compiler.cli.screen import Column, Screen
from context_compiler.cli.text import json_text, one_line
from context_compiler.errors import PipelineError
from context_compiler.paths import place_name
from context_compiler.pipeline.state import graph_hashes
from context_compiler.pipeline.stores import has_runs
from context_compiler.workflow import apply_directives, load_workflow

app = group("Check, draw, run, resume and show workflows: markdown files of steps.", shown="workflow check notes.md")

File = Annotated[Path, typer.Argument(metavar="FILE", help="A markdown file with a `##` heading per step.")]
PIPELINES_ONLY = ("auto_approve", "lenient")
"""Options that have no effect on steps in order."""

STEPS = (
    Column("step", style="bold"),
    Column("line", right=True, style="dim"),
    Column("model", spare=1),
    Column("context-helper", style="cyan"),
    Column("status"),
    Column("text", elastic=True),
)


@app.command("check", epilog=example("workflow check notes.md"))
def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Markdown files.")],
    vault: Vault = None,
    system: System = SYSTEM,
    json: Json = False,
) -> None:
    """Check workflows and the templates that they name; exit code 1 if any has errors."""
    check_files(files, load_workflow, vault, system, json=json)


@app.command("draw", epilog=example("workflow draw notes.md --out notes.svg"))
def draw(file: File, out: Out = None) -> None:
    """Draw the steps as SVG, with the model and context of each."""
    write_drawing(pipeline.apply_stylesheet(apply_directives(load_workflow(file))), out)


@app.command("run", epilog=example("workflow run notes.md --simulate"))
@with_run_options(without=PIPELINES_ONLY)
def run(file: File, options: RunOptions, run_id: NewId = None, values: Values = None, runs: Runs = RUNS) -> None:
    """Run the steps in order, until one fails; exit code 1 if one does."""
    run_graph(load_workflow(file), options, run_id, values, runs=runs)


@app.command("resume", epilog=example("workflow resume notes.md --simulate"))
@with_run_options(without=PIPELINES_ONLY)
def resume(
    file: File,
    options: RunOptions,
    run_id: Annotated[
        str | None,
        typer.Option("--id", callback=check_run_name, help="Id of the run; default: the last run of this file."),
    ] = None,
    restore: Restore = False,
    runs: Runs = RUNS,
) -> None:
    """Resume the last stopped run of a file, or print the result of the last run if none is stopped."""
    graph = load_workflow(file)
    if run_id and not has_runs(runs):
        raise PipelineError(f"{place_name(runs)}: no runs here; give --runs")
    last = run_id or _latest_run(graph, runs, lambda info: info.status in ("running", "stopped")).run_id
    resume_run(last, options, runs=runs, restore=restore, graph=graph)


@app.command("show", epilog=example("workflow show notes.md"))
def show(file: File, runs: Runs = RUNS, json: Json = False) -> None:
    """Show the steps of a file as they will run, and its last run."""
    graph = load_workflow(file)
    state, status = _load_state(graph, runs)
    nodes = pipeline.apply_stylesheet(apply_directives(graph)).nodes.values()
    steps = [_step_document(node, state) for node in nodes if node.line is not None]
    screen = Screen()
    if json:
        run = {"id": state.lineage.root_run_id, "status": status, "next": state.next_node} if state else None
        facts = {"name": graph.label, "goal": graph.goal, "description": graph.text("comment")}
        screen.raw(json_text({"workflow": {**facts, "steps": steps}, "run": run}))
        return
    facts = (
        ("workflow", graph.label),
        ("description", graph.text("comment")),
        ("goal", graph.goal),
        ("fidelity", graph.default_fidelity or "compact"),
        ("last run", state.lineage.root_run_id if state else "none"),
        ("status", status),
        ("reason", state.failure_reason if state else None),
    )
    screen.facts(facts)
    screen.line()
    screen.table(STEPS, [tuple(one_line(str(value or ""), 200) for value in step.values()) for step in steps])


def _step_document(node: pipeline.Node, state: pipeline.RunState | None) -> dict[str, object]:
    outcome = state.outcomes.get(node.name) if state else None
    return {
        "step": node.label,
        "line": node.line,
        "model": node.llm_model,
        "context_helper": node.context_helper,
        "status": str(outcome.status) if outcome else "",
        "text": node.prompt,
    }


def _latest_run(graph: pipeline.Graph, runs: str, prefer: Callable[[pipeline.RunInfo], bool]) -> pipeline.RunInfo:
    """Find the newest run of a graph, preferably one that `prefer` accepts.

    Raises:
        PipelineError: there is no run of this graph.
    """
    infos = with_runs(runs, lambda store: store.runs()) if has_runs(runs) else []
    matching = [info for info in infos if info.snapshot == graph_hashes(graph).snapshot]
    if not matching:
        older = next((info for info in infos if info.name in (graph.name, graph.label)), None)
        raise PipelineError(f"{graph.path}: no run of it in {place_name(runs)}; {_remedy(older)}")
    return next(filter(prefer, matching), matching[0])


def _remedy(older: pipeline.RunInfo | None) -> str:
    """Remedy for a file without a run, given the newest run of a file of the same name."""
    if older is None:
        return "start one"
    if older.status in ("success", "fail"):
        return f"the file was changed after run {older.run_id!r}, which has ended; start a new run"
    run = older.run_id
    return f"the file was changed after run {run!r} began; `pipeline resume {run}` continues that run with the old text"


def _load_state(graph: pipeline.Graph, runs: str) -> tuple[pipeline.RunState | None, str | None]:
    """State and status of the newest run of a graph; None if it has none."""
    try:
        last = _latest_run(graph, runs, lambda info: True)
    except PipelineError:
        return None, None
    return with_runs(runs, lambda store: store.load(last.run_id)), last.status
