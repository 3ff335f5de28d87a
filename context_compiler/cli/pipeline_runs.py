"""`pipeline run`, `resume`, `runs` and `show`: graphs that run, stop, and go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import typer

from context_compiler import pipeline
from context_compiler.cli.options import Json, example
from context_compiler.cli.pipelines import app, read_graph
from context_compiler.cli.screen import Column, Screen
from context_compiler.cli.text import json_text, near, one_line
from context_compiler.cli.watching import Watch
from context_compiler.errors import PipelineError, SettingsError

Runs = Annotated[
    Path, typer.Option("--runs", envvar="CONTEXT_COMPILER_RUNS", help="Where runs are kept: a .db file or a folder.")
]
Logs = Annotated[Path | None, typer.Option("--logs", help="A folder for the files of this run.")]
Db = Annotated[Path | None, typer.Option("--db", help="Record what each stage is sent in this file.")]
ModelName = Annotated[str | None, typer.Option("--model", help="Runs the stages that name no model.")]
Simulate = Annotated[bool, typer.Option("--simulate", help="Ask no model: each stage answers that it was simulated.")]
AutoApprove = Annotated[bool, typer.Option("--auto-approve", help="Take the first choice where a person would choose.")]
EventLines = Annotated[bool, typer.Option("--json", help="Print events as JSON lines.")]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="The id of a run, or its folder.")]

RUNS = Path("system/runs.db")
COLUMNS = (
    Column("run", style="bold"),
    Column("status"),
    Column("stages", right=True),
    Column("last stage"),
    Column("begun", spare=True),
    Column("goal", elastic=True),
)
STAGES = (
    Column("stage", style="bold"),
    Column("status"),
    Column("visits", right=True),
    Column("retries", right=True),
    Column("said", elastic=True),
)


@app.command("run", epilog=example("pipeline run plan.dot --simulate"))
def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A DOT file.")],
    model: ModelName = None,
    simulate: Simulate = False,
    auto_approve: AutoApprove = False,
    run_id: Annotated[str | None, typer.Option("--id", help="What to call the run.")] = None,
    values: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A value to begin with.")
    ] = None,
    runs: Runs = RUNS,
    logs: Logs = None,
    db: Db = None,
    json: EventLines = False,
) -> None:
    """Run a graph to its end; exit code 1 if the run fails."""
    graph = read_graph(file)
    name = run_id or f"{graph.name or 'run'}-{uuid4().hex[:8]}"
    watch = Watch(Screen(), as_json=json)
    config = _config(model, simulate=simulate, auto_approve=auto_approve, runs=runs, logs=logs, db=db, watch=watch)
    given = _needed(graph, config, simulate=simulate)
    options: dict[str, Any] = {"run_id": name, "context": _values(values or []), **given}
    with watch.shown():
        result = asyncio.run(pipeline.run_pipeline(graph, config, **options))
    _ended(result, as_json=json)


@app.command("resume", epilog=example("pipeline resume login-1a2b3c4d --simulate"))
def resume(
    run: RunId,
    model: ModelName = None,
    simulate: Simulate = False,
    auto_approve: AutoApprove = False,
    restore: Annotated[bool, typer.Option("--restore-threads", help="Go on with the conversations of `full`.")] = False,
    runs: Annotated[
        Path | None, typer.Option("--runs", envvar="CONTEXT_COMPILER_RUNS", help="Where it is kept.")
    ] = None,
    logs: Logs = None,
    db: Db = None,
    json: EventLines = False,
) -> None:
    """Go on with a run that was stopped; one that has ended is only shown."""
    watch = Watch(Screen(), as_json=json)
    folder = (Path(run) / "checkpoint.json").is_file() and runs is None
    where = None if folder else runs or RUNS
    config = _config(model, simulate=simulate, auto_approve=auto_approve, runs=where, logs=logs, db=db, watch=watch)
    options: dict[str, Any] = {"resume_threads": "restore" if restore else "degrade"}
    if not simulate and model is None:
        options["agents"] = _own_model
    with watch.shown():
        result = asyncio.run(pipeline.resume_pipeline(run, config, **options))
    _ended(result, as_json=json)


@app.command("runs", epilog=example("pipeline runs"))
def list_runs(runs: Runs = RUNS, json: Json = False) -> None:
    """List runs, the one begun last first."""
    found = asyncio.run(_listed(runs))
    screen = Screen()
    if json:
        screen.raw(json_text({"runs": found}))
    elif not found:
        screen.line(f"no runs in {runs}")
    else:
        rows = [
            (one.run_id, one.status, one.completed, one.current_node or "", one.started_at[:19], one.goal)
            for one in found
        ]
        screen.table(COLUMNS, rows)


@app.command("show", epilog=example("pipeline show login-1a2b3c4d"))
def show(run: RunId, runs: Runs = RUNS, json: Json = False) -> None:
    """Show where a run stands: its stages, their outcomes, and the values it holds."""
    state, events = asyncio.run(_shown(run, runs))
    screen = Screen()
    if json:
        screen.raw(
            json_text({"checkpoint": pipeline.checkpoint_document(state), "events": [one.document() for one in events]})
        )
        return
    lineage = state.lineage
    facts = (
        ("run", state.run_id),
        ("status", state.status or "running, or stopped"),
        ("reason", state.failure_reason),
        ("last stage", state.current_node),
        ("next stage", state.next_node),
        ("attempt", lineage.attempt if lineage.attempt > 1 else None),
        ("events", len(events)),
    )
    screen.facts(facts)
    screen.line()
    screen.table(STAGES, [_stage_row(state, name) for name in dict.fromkeys(state.completed)])
    kept = [(key, one_line(str(value), 200)) for key, value in state.context.items() if not key.startswith("internal.")]
    screen.heading("context")
    screen.facts(kept)


def _stage_row(state: pipeline.RunState, name: str) -> tuple[object, ...]:
    outcome = state.outcomes[name]
    said = outcome.failure_reason or outcome.notes
    return name, outcome.status, state.visits.get(name, 0), state.retries.get(name, ""), one_line(said, 200)


def _config(
    model: str | None,
    *,
    simulate: bool,
    auto_approve: bool,
    runs: Path | None,
    logs: Path | None,
    db: Path | None,
    watch: Watch,
) -> pipeline.RunConfig:
    return pipeline.RunConfig(
        model=model,
        simulate=simulate,
        interviewer=pipeline.AutoApprove() if auto_approve else pipeline.ConsoleInterviewer(),
        runs=runs,
        logs_root=logs,
        store=db,
        on_event=watch.hear,
    )


def _needed(graph: pipeline.Graph, config: pipeline.RunConfig, *, simulate: bool) -> dict[str, Any]:
    """What is needed beside a config: nothing, or agents for stages that name their models themselves.

    Raises:
        SettingsError: a stage has no model.
    """
    if simulate or config.model is not None:
        return {}
    styled = pipeline.apply_stylesheet(graph)
    bare = [node.name for node in styled.nodes.values() if node.handler == "codergen" and not node.llm_model]
    if bare:
        raise SettingsError(f"stage {bare[0]!r} names no model: give --model NAME, or --simulate to ask none")
    return {"agents": _own_model}


def _own_model(node: object) -> None:
    """No agent is given: each stage has the model that it names."""


def _values(said: list[str]) -> dict[str, str]:
    pairs = [one.partition("=") for one in said]
    for key, equals, _ in pairs:
        if not equals or not key:
            raise SettingsError(f"--set {key!r}: give KEY=VALUE")
    return {key: value for key, _, value in pairs}


def _ended(result: pipeline.RunResult, *, as_json: bool) -> None:
    screen = Screen()
    if as_json:
        facts = {"kind": "result", "run_id": result.run_id, "status": result.status, "reason": result.failure_reason}
        screen.raw(json_text(facts, indent=None))
    else:
        why = f": {result.failure_reason}" if result.failure_reason else ""
        screen.line((f"{result.run_id} {result.status}", "bold green" if result.ok else "bold red"), one_line(why))
    if not result.ok:
        raise typer.Exit(1)


@asynccontextmanager
async def _opened(runs: Path) -> AsyncGenerator[pipeline.RunStore]:
    store = pipeline.open_runs(pipeline.RunConfig(runs=runs))
    try:
        yield store
    finally:
        await store.close()


async def _listed(runs: Path) -> list[pipeline.RunInfo]:
    if not runs.exists():
        return []
    async with _opened(runs) as store:
        return await store.runs()


async def _shown(run: str, runs: Path) -> tuple[pipeline.RunState, list[pipeline.Event]]:
    folder = Path(run)
    if (folder / "checkpoint.json").is_file():
        state = pipeline.read_checkpoint(folder)
        if state is not None:
            return state, await pipeline.in_folder(folder).events(state.lineage.root_run_id)
    if not runs.exists():
        raise PipelineError(f"{runs}: there are no runs here; give --runs, or the folder of a run")
    async with _opened(runs) as store:
        state = await store.load(run)
        if state is None:
            known = near(run, (info.run_id for info in await store.runs())) or "; it holds no runs"
            raise PipelineError(f"{runs}: no run {one_line(run, 60)!r}{known}")
        return state, await store.events(run)
