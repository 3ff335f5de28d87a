"""`worker`, and the `pipeline` commands for submitted runs: submit, status, answer and cancel."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from context_compiler import pipeline
from context_compiler.cli.options import DB, SYSTEM, Json, System, Vault, check_run_name, example, group
from context_compiler.cli.run_options import RUNS, Db, NewId, Restore, RunOptions, Runs, Values, with_run_options
from context_compiler.cli.runs import open_runs, own_model, parse_values, run_config
from context_compiler.cli.screen import Column, Screen, print_list, print_note, print_result
from context_compiler.cli.text import json_text, one_line, suggestions
from context_compiler.errors import PipelineError, SettingsError
from context_compiler.paths import is_address, place_name, vault_of
from context_compiler.pipeline.graph import Graph
from context_compiler.pipeline.handlers.agent import stage_model
from context_compiler.pipeline.run import load_graph
from context_compiler.pipeline.stores import has_runs

app = group("Run submitted pipelines.")

OPEN = (
    Column("run", style="bold"),
    Column("state"),
    Column("stages", right=True),
    Column("submitted", spare=1),
    Column("worker", spare=2),
    Column("about", elastic=True),
)
STYLES = {"success": "bold green", "fail": "bold red", "put back": "yellow", "waiting": "yellow"}
SUBMITTED = ("model", "owner", "simulate", "auto_approve", "lenient", "max_duration", "max_requests", "max_cost")
"""Options that are stored with a submitted run."""

RunName = Annotated[str, typer.Argument(metavar="RUN", callback=check_run_name, help="Id of a submitted run.")]


@app.command("worker", epilog=example("worker --runs system/runs.db --simulate --until-empty"))
def worker(
    runs: Annotated[
        str | None,
        typer.Option(
            "--runs",
            envvar="CONTEXT_COMPILER_RUNS",
            help="Run store: a .db file or postgresql://USER@HOST/DB; default: --db, if that is an address.",
        ),
    ] = None,
    db: Db = DB,
    vault: Vault = None,
    system: System = SYSTEM,
    model: Annotated[str | None, typer.Option("--model", help="Model of runs that were submitted without one.")] = None,
    simulate: Annotated[bool, typer.Option("--simulate", help="Ask no models. Tool commands run for real.")] = False,
    concurrency: Annotated[int, typer.Option("--concurrency", "-n", min=1, help="Maximum runs at a time.")] = 4,
    poll: Annotated[float, typer.Option("--poll", min=0.01, help="Seconds between polls of the store.")] = 1.0,
    name: Annotated[str | None, typer.Option("--name", help="Name in `pipeline status`; default: HOST:PID.")] = None,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="Exit when all remaining runs wait for people or for a retry.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print each change as a JSON line.")] = False,
) -> None:
    """Run submitted pipelines, several at a time, until Ctrl-C or SIGTERM.

    Start as many workers as you like, on one machine (runs in a .db file) or on several (runs in PostgreSQL). Each run
    has one worker at a time. If a worker dies, another one takes over its runs from their last saved states: at once
    with a .db file, within 30 s with PostgreSQL. A run that waits for a person takes up no slot; `pipeline answer`
    wakes it. A stopped worker puts its runs back. Workers run the commands of any graph that is submitted to them.
    """
    defaults = RunOptions(model=model, simulate=simulate, db=db, vault=vault_of(vault, None), system=system)
    location = runs or (db if is_address(db) else RUNS)
    screen = Screen()

    def show(run_id: str, change: str, reason: str) -> None:
        if json:
            screen.raw(json_text({"run_id": run_id, "change": change, "reason": reason}, indent=None))
        else:
            screen.line((f"{change} {run_id}", STYLES.get(change, "")), f": {one_line(reason)}" if reason else "")

    async def work() -> None:
        async with _open_queue(location, make=True) as queue:
            worker = pipeline.Worker(
                runs=queue.runs,
                configure=partial(_configure, defaults),
                concurrency=concurrency,
                poll=poll,
                patience=poll,
                on_change=show,
            )
            worker.name = name or worker.name
            print_note(f"{worker.name} takes runs from {place_name(location)}; Ctrl-C stops it")
            _stop_on_signals(worker)
            await worker.run(until_empty=until_empty)

    asyncio.run(work())


def _stop_on_signals(worker: pipeline.Worker) -> None:
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):  # on Windows, where Ctrl-C ends the worker at once
            loop.add_signal_handler(sign, worker.stop)


def _configure(defaults: RunOptions, submission: pipeline.Submission) -> pipeline.RunConfig:
    """Build the configuration of a submitted run: its own options override the worker's."""
    own = {key: value for key, value in submission.options.items() if key in SUBMITTED}
    options = replace(defaults, **own)
    config = run_config(options, None)
    if not options.simulate and options.model is None:
        config = replace(config, agents=own_model, rules=(*config.rules, _model_named))
    return replace(config, resume_threads="restore" if submission.options.get("restore") else "degrade")


def _model_named(graph: Graph) -> Iterator[pipeline.Diagnostic]:
    """Rule for runs without a model of their own or the worker's: every agent stage must name one."""
    for node in graph.nodes.values():
        if node.handler == "codergen" and stage_model(node) is None:
            fix = "submit with --model NAME or --simulate, or start the worker with --model"
            message = f"stage {node.name!r} names no model, and neither do the run and the worker"
            yield pipeline.Diagnostic(
                rule="model_named", severity=pipeline.Severity.ERROR, message=message, fix=fix, node_id=node.name
            )


def add_queue_commands(group: typer.Typer) -> None:
    """Add the commands for submitted runs to a group."""
    group.command("submit", epilog=example("pipeline submit plan.dot --simulate --id first"))(_submit)
    group.command("status", epilog=example("pipeline status first"))(_status)
    group.command("answer", epilog=example("pipeline answer first approve"))(_answer)
    group.command("cancel", epilog=example("pipeline cancel first"))(_cancel)


@with_run_options(without=("logs", "db", "events"))
def _submit(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A DOT file or a workflow.")],
    options: RunOptions,
    run_id: NewId = None,
    values: Values = None,
    restore: Restore = False,
    runs: Runs = RUNS,
) -> None:
    """Submit a graph for any worker to run, and print the id of the run."""
    stored = {key: value for key, value in asdict(options).items() if key in SUBMITTED and value not in (None, False)}
    stored |= {"restore": True} if restore else {}
    config = run_config(replace(options, model=None, simulate=True), None)
    graph, context = load_graph(file), parse_values(values or [])

    async def submit() -> str:
        async with _open_queue(runs, make=True) as queue:
            return await queue.submit(graph, run_id=run_id, context=context, options=stored, config=config)

    name = asyncio.run(submit())
    print_result({"run_id": name, "state": "queued"}, (name, "bold"), json=options.json)


def _status(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", callback=check_run_name, help="Id of a submitted run.")
    ] = None,
    runs: Runs = RUNS,
    json: Json = False,
) -> None:
    """Show one submitted run (exit code 1 if it failed), or all that have not ended."""
    submissions = asyncio.run(_load_submissions(runs, run))
    if run is None:
        rows = [
            (
                submission["run_id"],
                submission["state"],
                submission["completed"],
                datetime.fromtimestamp(submission["submitted"], UTC).isoformat()[:19],
                submission["worker"] or "",
                _about(submission),
            )
            for submission in submissions
        ]
        print_list({"runs": submissions}, OPEN, rows, json=json, empty=f"no open runs in {place_name(runs)}")
        return
    submission, screen = submissions[0], Screen()
    if json:
        screen.raw(json_text(submission))
    else:
        facts = ("run_id", "state", "completed", "current_node", "worker", "takes", "trouble", "cancelled", "reason")
        screen.facts(
            [(name.replace("_", " "), submission[name]) for name in facts if submission[name] not in (None, "", 0)]
        )
        for question in submission["questions"]:
            screen.line()
            screen.line((f"{question['stage']} asks: ", "bold"), one_line(question["text"], 500))
            for choice in question["choices"]:
                screen.line(f"  [{choice['key']}] {choice['label']}")
    if submission["state"] == "fail":
        raise typer.Exit(1)


def _answer(
    run: RunName,
    answer: Annotated[str, typer.Argument(metavar="ANSWER", help="Key, label or target of a choice.")],
    stage: Annotated[str | None, typer.Option("--stage", help="Stage to answer, if several ask.")] = None,
    runs: Runs = RUNS,
    json: Json = False,
) -> None:
    """Answer the question that a run is waiting on, from any machine; a worker then continues the run."""

    async def reply() -> pipeline.PendingQuestion:
        async with _open_queue(runs) as queue:
            await _find_submission(queue, run, runs)
            return await queue.answer(run, answer, stage=stage)

    question = asyncio.run(reply())
    facts = {"run_id": run, "stage": question.stage, "answer": answer}
    print_result(facts, f"{run}: {question.stage} is answered: {one_line(answer, 200)}", json=json)


def _cancel(
    run: RunName,
    reason: Annotated[str, typer.Option("--reason", help="Reason, stored with the run.")] = "cancelled",
    runs: Runs = RUNS,
    json: Json = False,
) -> None:
    """Cancel a submitted run, which ends as failed: its worker ends it, or this command if it has no worker."""

    async def end() -> bool:
        async with _open_queue(runs) as queue:
            await _find_submission(queue, run, runs)
            await queue.cancel(run, reason)
            return await queue.end_cancelled(run)

    ended = asyncio.run(end())
    text = f"{run} is cancelled" if ended else f"{run} is being cancelled by its worker"
    print_result({"run_id": run, "ended": ended, "reason": reason}, text, json=json)


@asynccontextmanager
async def _open_queue(runs: str, *, make: bool = False) -> AsyncGenerator[pipeline.RunQueue]:
    """Open the queue in a run store.

    Raises:
        SettingsError: the store is a folder, which has no queue.
        PipelineError: there is no such store, and `make` is False.
    """
    if not make and not has_runs(runs):
        raise PipelineError(f"{place_name(runs)}: no runs here; give --runs")
    async with open_runs(runs) as store:
        if not isinstance(store, pipeline.SQLRuns):
            raise SettingsError(f"{runs}: a folder has no queue; give a .db file or postgresql://USER@HOST/DB")
        yield pipeline.RunQueue(store)


async def _find_submission(queue: pipeline.RunQueue, run: str, runs: str) -> pipeline.Submission:
    submission = await queue.find(run)
    if submission is None:
        names = [submission.run_id for submission in await queue.open()]
        hint = suggestions(run, names, list_command="context-compiler pipeline status") or "; no run is open"
        raise PipelineError(f"{place_name(runs)}: no submitted run {one_line(run, 60)!r}{hint}")
    return submission


async def _load_submissions(runs: str, run: str | None) -> list[dict[str, Any]]:
    """Load one submitted run, or all open ones, with their states and questions."""
    if run is None and not has_runs(runs):
        return []
    async with _open_queue(runs) as queue:
        chosen = await queue.open() if run is None else [await _find_submission(queue, run, runs)]
        infos = {info.run_id: info for info in await queue.runs.runs()}
        questions = [asdict(question) for question in await queue.questions()]
    return [
        {
            **asdict(submission),
            "state": infos[submission.run_id].status if submission.run_id in infos else submission.state,
            "completed": infos[submission.run_id].completed if submission.run_id in infos else 0,
            "current_node": infos[submission.run_id].current_node if submission.run_id in infos else None,
            "reason": infos[submission.run_id].failure_reason if submission.run_id in infos else "",
            "questions": [question for question in questions if question["run_id"] == submission.run_id],
        }
        for submission in chosen
    ]


def _about(submission: dict[str, Any]) -> str:
    asks = [f"{question['stage']} asks: {question['text']}" for question in submission["questions"]]
    return one_line("; ".join([*asks, submission["trouble"] or "", submission["cancelled"] or ""]).strip("; "), 200)
