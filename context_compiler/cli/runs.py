"""A graph is run from the command line the same way whatever it was written in: DOT, or a workflow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import typer

from context_compiler import pipeline
from context_compiler.cli.options import named
from context_compiler.cli.progress import Watch
from context_compiler.cli.screen import Screen, warn
from context_compiler.cli.text import json_text, one_line
from context_compiler.errors import SettingsError
from context_compiler.pipeline.workflow import apply_directives

Runs = Annotated[
    Path, typer.Option("--runs", envvar="CONTEXT_COMPILER_RUNS", help="Where runs are kept: a .db file or a folder.")
]
Logs = Annotated[Path | None, typer.Option("--logs", help="A folder for the files of this run.")]
Db = Annotated[
    Path,
    typer.Option("--db", envvar="CONTEXT_COMPILER_DB", help="The file in which what each stage is sent is recorded."),
]
ModelName = Annotated[str | None, typer.Option("--model", help="Runs the stages that name no model.")]
Simulate = Annotated[
    bool,
    typer.Option(
        "--simulate", help="Ask no model: each agent's stage answers that it was simulated. Tool commands run for real."
    ),
]
AutoApprove = Annotated[bool, typer.Option("--auto-approve", help="Take the first choice where a person would choose.")]
EventLines = Annotated[bool, typer.Option("--json", help="Print events as JSON lines.")]
Lenient = Annotated[bool, typer.Option("--lenient", help="After a failure, go along an edge without a condition too.")]
Restore = Annotated[bool, typer.Option("--restore-threads", help="Go on with the conversations of `full`.")]
NewId = Annotated[str | None, typer.Option("--id", callback=named, help="What to call the run.")]
Values = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A value to begin with.")]
RunId = Annotated[str, typer.Argument(metavar="RUN", callback=named, help="The id of a run, or its folder.")]

RUNS = Path("system/runs.db")
DIRECTIVES = "directive_known"
"""The rule that tells of directives that say nothing here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What somebody said about a run on the command line, beside which graph it is."""

    model: str | None
    simulate: bool
    auto_approve: bool = False
    lenient: bool = False
    runs: Path | None
    logs: Path | None
    db: Path
    vault: Path | None
    system: Path
    json: bool


def begun(graph: pipeline.Graph, wish: Wish, run_id: str | None, values: list[str]) -> None:
    """Run a graph to its end, and say how it ended; a directive that will have no effect is told of before.

    Raises:
        SettingsError: a stage has no model, or a value is none.
        Exit: the run failed.
    """
    for finding in pipeline.validate(graph):
        if finding.rule == DIRECTIVES:
            warn(f"{graph.path or graph.name}: {finding}")
    name = run_id or f"{graph.name or 'run'}-{uuid4().hex[:8]}"
    watch = Watch(Screen(), as_json=wish.json)
    config = _config(wish, watch)
    options: dict[str, Any] = {"run_id": name, "context": _values(values), **_needed(graph, wish)}
    with watch.shown():
        result = asyncio.run(pipeline.run_pipeline(graph, config, **options))
    _ended(result, as_json=wish.json)


def taken_up(run: str, wish: Wish, *, restore: bool, graph: pipeline.Graph | None = None) -> None:
    """Go on with a run, and say how it ended; `graph` is what it must be a run of, if that is known.

    Raises:
        SettingsError: a stage has no model.
        Exit: the run failed.
    """
    watch = Watch(Screen(), as_json=wish.json)
    options: dict[str, Any] = {"resume_threads": "restore" if restore else "degrade"}
    if graph is not None:
        options |= {"pipeline": graph, **_needed(graph, wish)}
    elif not wish.simulate and wish.model is None:
        options["agents"] = _own_model
    with watch.shown():
        result = asyncio.run(pipeline.resume_pipeline(run, _config(wish, watch), **options))
    _ended(result, as_json=wish.json)


@asynccontextmanager
async def opened_runs(runs: Path) -> AsyncGenerator[pipeline.RunStore]:
    """The store of runs at a place, let go of at the end."""
    store = pipeline.open_runs(pipeline.RunConfig(runs=runs))
    try:
        yield store
    finally:
        await store.close()


def _config(wish: Wish, watch: Watch) -> pipeline.RunConfig:
    return pipeline.RunConfig(
        model=wish.model,
        simulate=wish.simulate,
        strict_failure_edges=False if wish.lenient else None,
        interviewer=pipeline.AutoApprove() if wish.auto_approve else pipeline.ConsoleInterviewer(),
        runs=wish.runs,
        logs_root=wish.logs,
        store=wish.db,
        compiler={"vault": wish.vault, "system": wish.system},
        on_event=watch.hear,
    )


def _needed(graph: pipeline.Graph, wish: Wish) -> dict[str, Any]:
    """What is needed beside a config: nothing, or agents for stages that name their models themselves.

    Raises:
        SettingsError: a stage has no model.
    """
    if wish.simulate or wish.model is not None:
        return {}
    said = pipeline.apply_stylesheet(apply_directives(graph.with_ends()))
    bare = [node.name for node in said.nodes.values() if node.handler == "codergen" and not node.llm_model]
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


def _ended(result: pipeline.RunState, *, as_json: bool) -> None:
    screen = Screen()
    if as_json:
        facts = {
            "kind": "result",
            "run_id": result.lineage.root_run_id,
            "status": result.status,
            "reason": result.failure_reason,
        }
        screen.raw(json_text(facts, indent=None))
    else:
        why = f": {result.failure_reason}" if result.failure_reason else ""
        screen.line(
            (f"{result.lineage.root_run_id} {result.status}", "bold green" if result.ok else "bold red"), one_line(why)
        )
    if not result.ok:
        raise typer.Exit(1)
