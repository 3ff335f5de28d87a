"""`pipeline`: check, draw, run, resume and show graphs of stages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from context_compiler import pipeline
from context_compiler.cli.options import (
    SYSTEM,
    Json,
    Owner,
    System,
    Vault,
    Yes,
    check_run_name,
    example,
    group,
    parse_age,
)
from context_compiler.cli.run_options import RUNS, NewId, Restore, RunId, RunOptions, Runs, Values, with_run_options
from context_compiler.cli.runs import open_runs, resume_run, run_graph, template_known, with_runs
from context_compiler.cli.screen import Column, Screen, confirm, print_list, print_result
from context_compiler.cli.text import json_text, one_line, plural, safe, suggestions
from context_compiler.cli.workers import add_queue_commands
from context_compiler.errors import GraphError, PipelineError, SettingsError
from context_compiler.paths import place_name
from context_compiler.pipeline.attributes import as_text
from context_compiler.pipeline.check import Rule, validate
from context_compiler.pipeline.dot import load_dot
from context_compiler.pipeline.draw import to_svg
from context_compiler.pipeline.graph import HANDLERS, Diagnostic, Graph, Severity
from context_compiler.pipeline.stores import has_runs
from context_compiler.pipeline.workflow import SUFFIXES, load_workflow
from context_compiler.template import TemplateLibrary

app = group(
    "Check, draw, run, submit, resume and show pipelines: DOT graphs whose stages are agents.",
    shown="pipeline check plan.dot",
)

StoredRun = Annotated[str, typer.Argument(metavar="RUN", callback=check_run_name, help="Id of a run.")]
Out = Annotated[Path | None, typer.Option("--out", help="SVG file; default: standard output.")]

FINDINGS = (
    Column("line", right=True, style="dim"),
    Column("severity"),
    Column("rule", style="cyan", spare=1),
    Column("place", style="bold"),
    Column("finding", wraps=True),
)


PARSED = (Column("stage", style="bold"), Column("handler"), Column("prompt", elastic=True))
EDGES = (Column("from", style="bold"), Column("to", style="bold"), Column("label, condition", elastic=True))
HANDLER_COLUMNS = (Column("type", style="bold"), Column("shape"), Column("about", elastic=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReport:
    """Result of checking one file."""

    path: str
    name: str = ""
    stages: int = 0
    edges: int = 0
    findings: tuple[Diagnostic, ...] = ()
    snippet: str = ""
    """Source line of a syntax error; empty if there is none."""

    def count(self, severity: Severity) -> int:
        """Number of findings of a severity."""
        return sum(finding.severity is severity for finding in self.findings)


@app.command("check", epilog=example("pipeline check plan.dot"))
def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="DOT files or workflows.")],
    vault: Vault = None,
    system: System = SYSTEM,
    json: Json = False,
) -> None:
    """Check graphs against every rule; exit code 1 if any has errors."""
    check_files(files, read_graph, vault, system, json=json)


def check_files(
    files: Sequence[Path], read: Callable[[Path], Graph], vault: Path | None, system: Path, *, json: bool
) -> None:
    """Check files against every rule, and print the findings.

    Raises:
        Exit: a file has errors.
    """
    rule = partial(template_known, TemplateLibrary(vault=vault, system=system))
    reports = [_check_file(file, read, rule) for file in files]
    failed = any(report.count(Severity.ERROR) for report in reports)
    screen = Screen()
    if json:
        screen.raw(json_text({"ok": not failed, "files": reports}))
    else:
        for report in reports:
            _print_report(screen, report)
        counts = [sum(report.count(severity) for report in reports) for severity in Severity]
        counted = [plural(count, noun) for count, noun in zip(counts, ("error", "warning", "note"), strict=True)]
        screen.line(f"{plural(len(reports), 'file')}, {', '.join(counted)}")
    if failed:
        raise typer.Exit(1)


@app.command("parse", epilog=example("pipeline parse plan.dot"))
def parse(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A DOT file, or a workflow.")], json: Json = False
) -> None:
    """Print the parsed graph: attributes, stages and edges; as JSON, except on a terminal."""
    graph = read_graph(file)
    screen = Screen()
    if json or not screen.rich:
        screen.raw(json_text(_graph_document(graph)))
        return
    screen.facts((("graph", graph.name), *((key, as_text(value)) for key, value in graph.attrs.items())))
    nodes = graph.nodes.values()
    screen.table(PARSED, [(node.name, node.handler, one_line(node.prompt or node.label, 200)) for node in nodes])
    rows = [(edge.source, edge.target, one_line(f"{edge.label} {edge.condition}", 200)) for edge in graph.edges]
    screen.table(EDGES, rows)


def _graph_document(graph: Graph) -> dict[str, object]:
    return {
        "name": graph.name,
        "goal": graph.goal,
        "attributes": dict(graph.attrs),
        "stages": [
            {"name": node.name, "handler": node.handler, "classes": node.classes, "attributes": dict(node.attrs)}
            for node in graph.nodes.values()
        ],
        "edges": [{"from": edge.source, "to": edge.target, "attributes": dict(edge.attrs)} for edge in graph.edges],
        "subgraphs": [
            {
                "name": subgraph.name,
                "stages": subgraph.nodes,
                "parent": subgraph.parent,
                "attributes": dict(subgraph.attrs),
            }
            for subgraph in graph.subgraphs
        ],
        "diagnostics": graph.diagnostics,
    }


@app.command("handlers", epilog=example("pipeline handlers"))
def handlers(json: Json = False) -> None:
    """Print the types of stages: their shapes, and how each is run; as JSON, except on a terminal."""
    shapes = {handler: shape for shape, handler in HANDLERS.items()}
    rows: list[dict[str, object]] = []
    for name, handler in pipeline.build_handlers(pipeline.RunConfig()).items():
        about = (type(handler).__doc__ or "").partition("\n")[0]
        facts = pipeline.traits(handler)
        kinds = {"retries": facts.retries, "retries_failures": facts.retries_failures, "preamble": facts.reads_past}
        rows.append({"type": name, "shape": shapes.get(name), "about": about, **kinds})
    table = [(row["type"], row["shape"] or "", row["about"]) for row in rows]
    print_list({"handlers": rows}, HANDLER_COLUMNS, table, json=json or not Screen().rich)


@app.command("draw", epilog=example("pipeline draw plan.dot --out plan.svg"))
def draw(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A DOT file or a workflow.")], out: Out = None
) -> None:
    """Draw a graph as SVG, with the fidelity and thread of each stage and edge."""
    write_drawing(read_graph(file), out)


def write_drawing(graph: Graph, out: Path | None) -> None:
    """Write a graph as SVG to a file, or to standard output.

    Raises:
        SettingsError: the file cannot be written.
    """
    svg = to_svg(graph)
    screen = Screen()
    if out is None:
        screen.raw(svg)
        return
    try:
        out.write_text(svg, encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{out}: cannot be written: {error.strerror}") from error
    screen.line(f"{out} ({len(svg.encode()):,} bytes)")


def read_graph(file: Path) -> Graph:
    """Read the graph in a file: a workflow if it is markdown, else DOT.

    Raises:
        SettingsError: the file cannot be read as text.
        GraphError: it contains no valid graph.
    """
    if file.suffix.lower() in SUFFIXES:
        return load_workflow(file)
    try:
        return load_dot(file)
    except UnicodeDecodeError as error:
        raise SettingsError(f"{file}: not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise SettingsError(f"{file}: cannot be read: {error.strerror}") from error


def _check_file(file: Path, read: Callable[[Path], Graph], rule: Rule) -> FileReport:
    """Check one file against every built-in rule and against `rule`."""
    try:
        graph = read(file)
    except GraphError as error:
        finding = Diagnostic(
            rule="syntax", severity=Severity.ERROR, message=error.message, line=error.line, column=error.column
        )
        return FileReport(path=str(file), findings=(finding,), snippet=error.snippet)
    findings = sorted(validate(graph, [rule]), key=lambda finding: (finding.line or 0, finding.column or 0))
    return FileReport(
        path=str(file), name=graph.name, stages=len(graph.nodes), edges=len(graph.edges), findings=tuple(findings)
    )


def _print_report(screen: Screen, report: FileReport) -> None:
    """Print a table on a terminal; elsewhere print one line per finding, beginning with its place."""
    if not screen.rich:
        for finding in report.findings:
            screen.raw(safe(f"{report.path}:{'' if finding.line else ' '}{finding}").replace("\n", " "))
    else:
        size = f"{report.name or 'no name'}, {plural(report.stages, 'stage')}, {plural(report.edges, 'edge')}"
        screen.line((report.path, "bold"), f"  {size}" if not report.snippet else "")
        if report.findings:
            screen.table(FINDINGS, [_row(finding) for finding in report.findings])
    for line in report.snippet.splitlines():
        screen.raw(f"    {safe(line)}")


def _row(finding: Diagnostic) -> Sequence[object]:
    where = finding.place if finding.node_id is not None or finding.edge is not None else ""
    remedy = f"; {finding.fix}" if finding.fix else ""
    return finding.line or "", finding.severity.lower(), finding.rule, where, f"{finding.message}{remedy}"


RUN_COLUMNS = (
    Column("run", style="bold"),
    Column("status"),
    Column("stages", right=True),
    Column("last stage"),
    Column("started", spare=1),
    Column("goal", elastic=True),
)
STAGES = (
    Column("stage", style="bold"),
    Column("status"),
    Column("visits", right=True),
    Column("retries", right=True),
    Column("notes", elastic=True),
)


@app.command("run", epilog=example("pipeline run plan.dot --simulate"))
@with_run_options()
def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A DOT file or a workflow.")],
    options: RunOptions,
    run_id: NewId = None,
    values: Values = None,
    runs: Runs = RUNS,
) -> None:
    """Run a graph; exit code 1 if the run fails."""
    run_graph(read_graph(file), options, run_id, values, runs=runs)


@app.command("resume", epilog=example("pipeline resume login-1a2b3c4d --simulate"))
@with_run_options()
def resume(
    run: RunId,
    options: RunOptions,
    restore: Restore = False,
    runs: Annotated[
        str | None,
        typer.Option("--runs", envvar="CONTEXT_COMPILER_RUNS", help="Run store: a .db file, a folder, or an address."),
    ] = None,
) -> None:
    """Resume a stopped run, or print the result of one that has ended."""
    folder = (Path(run) / "checkpoint.json").is_file() and runs is None
    if not folder and not has_runs(runs or RUNS):
        raise _no_runs(runs or RUNS)
    resume_run(run, options, runs=None if folder else runs or RUNS, restore=restore)


@app.command("runs", epilog=example("pipeline runs"))
def list_runs(runs: Runs = RUNS, owner: Owner = None, json: Json = False) -> None:
    """List runs, newest first."""
    every = with_runs(runs, lambda store: store.runs()) if has_runs(runs) else []
    infos = [info for info in every if owner in (None, info.owner)]
    rows = [
        (
            info.run_id,
            info.status,
            info.completed,
            info.current_node or "",
            info.started_at[:19],
            info.failure_reason if info.status == "damaged" else info.goal,
        )
        for info in infos
    ]
    print_list({"runs": infos}, RUN_COLUMNS, rows, json=json, empty=f"no runs in {place_name(runs)}")


@app.command("delete", epilog=example("pipeline delete login-1a2b3c4d --yes"))
def delete(run: StoredRun, yes: Yes = False, runs: Runs = RUNS, owner: Owner = None, json: Json = False) -> None:
    """Delete a run and its children: states, events, questions, answers and graph. No trace is left in the store.

    The requests of its agents are in the record; `sessions delete RUN/STAGE` deletes them.
    """
    if not has_runs(runs):
        raise _no_runs(runs)
    if run not in (names := with_runs(runs, lambda store: _names(store, owner))):
        raise _unknown_run(run, runs, names)
    if not yes:
        confirm(f"Delete run {run!r} from {place_name(runs)}?", "nothing was deleted")
    deleted = with_runs(runs, lambda store: store.delete(run))
    print_result({"run_id": run, "deleted": deleted}, f"{run} is deleted", json=json)


@app.command("prune", epilog=example("pipeline prune --older-than 30d"))
def prune(
    older_than: Annotated[str, typer.Option("--older-than", help="Only runs that ended longer ago: 30d, 12h, 2w.")],
    runs: Runs = RUNS,
    json: Json = False,
) -> None:
    """Delete ended runs and their children; keep runs that are waiting or can be resumed."""
    days = parse_age(older_than)
    if not has_runs(runs):
        raise _no_runs(runs)
    removed = with_runs(runs, lambda store: pipeline.prune_runs(store, older_than_days=days))
    report = f"{place_name(runs)}: {plural(len(removed), 'run')} deleted"
    print_result({"runs": place_name(runs), "removed": removed}, report, json=json)


@app.command("show", epilog=example("pipeline show login-1a2b3c4d"))
def show(run: RunId, runs: Runs = RUNS, owner: Owner = None, json: Json = False) -> None:
    """Show the state of a run: stages, outcomes and context values."""
    state, events, status = asyncio.run(_load_run(run, runs, owner))
    screen = Screen()
    if json:
        document = {"checkpoint": pipeline.checkpoint_document(state), "events": [event.document() for event in events]}
        screen.raw(json_text(document))
        return
    lineage = state.lineage
    facts = (
        ("run", state.run_id),
        ("status", status),
        ("reason", state.failure_reason),
        ("last stage", state.current_node),
        ("next stage", state.next_node),
        ("attempt", lineage.attempt if lineage.attempt > 1 else None),
        ("events", len(events)),
    )
    screen.facts(facts)
    screen.line()
    screen.table(STAGES, [_stage_row(state, name) for name in dict.fromkeys(state.completed)])
    kept = [
        (key, one_line(value if isinstance(value, str) else json_text(value, indent=None), 200))
        for key, value in state.context.items()
        if not key.startswith("internal.")
    ]
    screen.heading("context")
    screen.facts(kept)


def _stage_row(state: pipeline.RunState, name: str) -> tuple[object, ...]:
    outcome = state.outcomes[name]
    notes = outcome.failure_reason or outcome.notes
    return name, outcome.status, state.visits.get(name, 0), state.retries.get(name, ""), one_line(notes, 200)


def _no_runs(runs: str) -> PipelineError:
    return PipelineError(f"{place_name(runs)}: no runs here; give --runs, or the folder of a run")


async def _names(store: pipeline.RunStore, owner: str | None) -> list[str]:
    """Names of the runs of an owner, or of all for None."""
    return [info.run_id for info in await store.runs() if owner in (None, info.owner)]


def _unknown_run(run: str, runs: str, names: Sequence[str]) -> PipelineError:
    command = "context-compiler pipeline runs" + ("" if runs == RUNS else f" --runs {quote(place_name(runs))}")
    hint = suggestions(run, names, list_command=command) or "; it contains no runs"
    return PipelineError(f"{place_name(runs)}: no run {one_line(run, 60)!r}{hint}")


async def _load_run(run: str, runs: str, owner: str | None) -> tuple[pipeline.RunState, list[pipeline.Event], str]:
    """Load a run by its id or folder: its state, its events and its status in one word.

    Raises:
        PipelineError: there is no such run, or it belongs to another owner than the given one.
    """
    folder = Path(run)
    state = pipeline.read_checkpoint(folder) if (folder / "checkpoint.json").is_file() else None
    if state is not None:
        return await _of_owner(state, pipeline.in_folder(folder), owner, run, runs)
    if not has_runs(runs):
        raise _no_runs(runs)
    async with open_runs(runs) as store:
        state = await store.load(run)
        if state is None:
            raise _unknown_run(run, runs, await _names(store, owner))
        return await _of_owner(state, store, owner, run, runs)


async def _of_owner(
    state: pipeline.RunState, store: pipeline.RunStore, owner: str | None, run: str, runs: str
) -> tuple[pipeline.RunState, list[pipeline.Event], str]:
    """Events and status of a run, unless it belongs to another owner than the given one."""
    name = state.lineage.root_run_id
    if owner is not None and name not in (names := await _names(store, owner)):
        raise _unknown_run(run, runs, names)
    statuses = {info.run_id: info.status for info in await store.runs()}
    return state, await store.events(name), statuses.get(name, state.status or "stopped")


add_queue_commands(app)
