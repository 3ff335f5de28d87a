"""`pipeline run`, `resume`, `runs` and `show`: graphs that run, stop, and go on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from context_compiler import pipeline
from context_compiler.cli.options import DB, SYSTEM, Json, System, Vault, example
from context_compiler.cli.pipelines import app, read_graph
from context_compiler.cli.running import (
    RUNS,
    AutoApprove,
    Db,
    EventLines,
    Logs,
    ModelName,
    NewId,
    Restore,
    RunId,
    Runs,
    Simulate,
    Values,
    Wish,
    begun,
    opened_runs,
    taken_up,
)
from context_compiler.cli.screen import Screen, listed
from context_compiler.cli.tables import Column
from context_compiler.cli.text import json_text, near, one_line
from context_compiler.errors import PipelineError

COLUMNS = (
    Column("run", style="bold"),
    Column("status"),
    Column("stages", right=True),
    Column("last stage"),
    Column("begun", spare=1),
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
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A DOT file, or a workflow.")],
    model: ModelName = None,
    simulate: Simulate = False,
    auto_approve: AutoApprove = False,
    run_id: NewId = None,
    values: Values = None,
    runs: Runs = RUNS,
    logs: Logs = None,
    db: Db = DB,
    vault: Vault = None,
    system: System = SYSTEM,
    json: EventLines = False,
) -> None:
    """Run a graph to its end; exit code 1 if the run fails."""
    wish = Wish(
        model=model,
        simulate=simulate,
        auto_approve=auto_approve,
        runs=runs,
        logs=logs,
        db=db,
        vault=vault,
        system=system,
        json=json,
    )
    begun(read_graph(file), wish, run_id, values or [])


@app.command("resume", epilog=example("pipeline resume login-1a2b3c4d --simulate"))
def resume(
    run: RunId,
    model: ModelName = None,
    simulate: Simulate = False,
    auto_approve: AutoApprove = False,
    restore: Restore = False,
    runs: Annotated[
        Path | None, typer.Option("--runs", envvar="CONTEXT_COMPILER_RUNS", help="Where it is kept.")
    ] = None,
    logs: Logs = None,
    db: Db = DB,
    vault: Vault = None,
    system: System = SYSTEM,
    json: EventLines = False,
) -> None:
    """Go on with a run that was stopped; one that has ended is only shown."""
    folder = (Path(run) / "checkpoint.json").is_file() and runs is None
    wish = Wish(
        model=model,
        simulate=simulate,
        auto_approve=auto_approve,
        runs=None if folder else runs or RUNS,
        logs=logs,
        db=db,
        vault=vault,
        system=system,
        json=json,
    )
    taken_up(run, wish, restore=restore)


@app.command("runs", epilog=example("pipeline runs"))
def list_runs(runs: Runs = RUNS, json: Json = False) -> None:
    """List runs, the one begun last first."""
    found = asyncio.run(_listed(runs))
    rows = [
        (one.run_id, one.status, one.completed, one.current_node or "", one.started_at[:19], one.goal) for one in found
    ]
    listed({"runs": found}, COLUMNS, rows, json=json, empty=f"no runs in {runs}")


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


async def _listed(runs: Path) -> list[pipeline.RunInfo]:
    if not runs.exists():
        return []
    async with opened_runs(runs) as store:
        return await store.runs()


async def _shown(run: str, runs: Path) -> tuple[pipeline.RunState, list[pipeline.Event]]:
    folder = Path(run)
    if (folder / "checkpoint.json").is_file():
        state = pipeline.read_checkpoint(folder)
        if state is not None:
            return state, await pipeline.in_folder(folder).events(state.lineage.root_run_id)
    if not runs.exists():
        raise PipelineError(f"{runs}: there are no runs here; give --runs, or the folder of a run")
    async with opened_runs(runs) as store:
        state = await store.load(run)
        if state is None:
            names = [info.run_id for info in await store.runs()]
            lists = "context-compiler pipeline runs" + ("" if runs == RUNS else f" --runs {quote(str(runs))}")
            known = near(run, names, listing=lists) or "; it holds no runs"
            raise PipelineError(f"{runs}: no run {one_line(run, 60)!r}{known}")
        return state, await store.events(run)
