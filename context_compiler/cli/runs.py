"""Functions that run and resume graphs, shared by `pipeline`, `workflow` and `worker`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar
from uuid import uuid4

import typer

from context_compiler import pipeline
from context_compiler.cli.inputs import chat_model, check_stage_model
from context_compiler.cli.progress import RunProgress
from context_compiler.cli.records import print_look
from context_compiler.cli.run_options import RUNS, RunOptions
from context_compiler.cli.screen import Screen, print_note
from context_compiler.cli.text import json_text, one_line
from context_compiler.errors import SettingsError, TemplateError
from context_compiler.pipeline.attributes import as_seconds
from context_compiler.pipeline.handlers.agent import stage_model
from context_compiler.pipeline.stores import OnEvent
from context_compiler.pipeline.workflow import DIRECTIVES, apply_directives, read_directives
from context_compiler.resilience import attempt
from context_compiler.template import TemplateLibrary
from context_compiler.tokens.prices import Money

T = TypeVar("T")


def run_graph(
    graph: pipeline.Graph, options: RunOptions, run_id: str | None, values: list[str] | None, *, runs: str
) -> None:
    """Run a graph to its end and print the result, after a note on each directive without effect.

    Raises:
        SettingsError: a stage has no usable model, or a value is malformed.
        GraphError: the graph has errors, or a stage's template is missing or invalid.
        Exit: the run failed, or stopped at a gate.
    """
    for finding in pipeline.validate(graph):
        if finding.rule == "directive_known":
            print_note(f"{graph.path or graph.name}: {finding}")
    name = run_id or f"{graph.name or 'run'}-{uuid4().hex[:8]}"
    progress = RunProgress(Screen(), events=options.events, silent=options.json)
    config = run_config(options, runs, progress.on_event)
    arguments: dict[str, Any] = {"run_id": name, "context": parse_values(values or []), **_agents(graph, options)}
    with _interruptible(name, options, runs), progress.display():
        result = asyncio.run(pipeline.run_pipeline(graph, config, **arguments))
    _print_result(result, options, f"{name}{'' if runs == RUNS else f' --runs {quote(runs)}'}")


def resume_run(
    run: str, options: RunOptions, *, runs: str | None, restore: bool, graph: pipeline.Graph | None = None
) -> None:
    """Resume a run and print the result; `graph`, if given, must be the graph of the run.

    Raises:
        GraphError: a stage has no usable model, or its template is missing or invalid.
        Exit: the run failed, or stopped at a gate.
    """
    progress = RunProgress(Screen(), events=options.events, silent=options.json)
    arguments: dict[str, Any] = {"resume_threads": "restore" if restore else "degrade", "pipeline": graph}
    config = run_config(options, runs, progress.on_event)
    if not options.simulate:  # as a rule, because a run that has ended needs no models
        config = replace(config, rules=(*config.rules, partial(_models_usable, options.model)))
        arguments |= {"agents": own_model} if options.model is None else {}
    with _interruptible(run, options, runs), progress.display():
        result = asyncio.run(pipeline.resume_pipeline(run, config, **arguments))
    _print_result(result, options, f"{run}{'' if runs in (None, RUNS) else f' --runs {quote(runs)}'}")


@contextmanager
def _interruptible(run: str, options: RunOptions, runs: str | None) -> Generator[None]:
    """Print the document of a run that Ctrl-C stops, if one is wanted, before the command ends."""
    try:
        yield
    except KeyboardInterrupt:
        if options.json or options.events:
            state = attempt(lambda: _load_state(run, runs)).value
            facts: dict[str, Any] = {"run_id": run, "status": "stopped", "reason": "interrupted"}
            _print_document(facts, state, options)
        raise


def _load_state(run: str, runs: str | None) -> pipeline.RunState | None:
    return pipeline.read_checkpoint(Path(run)) if runs is None else with_runs(runs, lambda store: store.load(run))


@asynccontextmanager
async def open_runs(runs: str) -> AsyncGenerator[pipeline.RunStore]:
    """Open the store of runs; close it at the end."""
    store = pipeline.open_runs(pipeline.RunConfig(runs=runs))
    try:
        yield store
    finally:
        await store.close()


def with_runs(runs: str, work: Callable[[pipeline.RunStore], Awaitable[T]]) -> T:
    """Run `work` on a store of runs that is opened for it."""

    async def run() -> T:
        async with open_runs(runs) as store:
            return await work(store)

    return asyncio.run(run())


def run_config(options: RunOptions, runs: str | None, on_event: OnEvent | None = None) -> pipeline.RunConfig:
    """Build the configuration of a run."""
    return pipeline.RunConfig(
        model=None if options.model is None or options.simulate else chat_model(options.model),
        simulate=options.simulate,
        strict_failure_edges=False if options.lenient else None,
        interviewer=pipeline.AutoApprove() if options.auto_approve else pipeline.ConsoleInterviewer(),
        runs=runs,
        logs_root=options.logs,
        store=options.db,
        compiler={"vault": options.vault, "system": options.system, "owner": options.owner},
        rules=(partial(template_known, TemplateLibrary(vault=options.vault, system=options.system)),),
        on_event=on_event,
        max_duration=_parse_duration(options.max_duration),
        max_requests=options.max_requests,
        max_cost=_parse_cost(options.max_cost),
    )


def _parse_cost(text: str | None) -> Money | None:
    try:
        return None if text is None else Money(text)
    except SettingsError:
        raise SettingsError(f"--max-cost {text!r}: give US dollars above 0, such as 0.50") from None


def _parse_duration(text: str | None) -> float | None:
    seconds = None if text is None else as_seconds(text)
    if text is not None and not seconds:
        raise SettingsError(f"--max-duration {text!r}: give a duration such as 90s, 15m or 2h")
    return seconds


def _agents(graph: pipeline.Graph, options: RunOptions) -> dict[str, Any]:
    """Extra arguments of a run: `agents`, if all stages name their own models.

    Raises:
        SettingsError: a stage has no usable model.
    """
    if options.simulate:
        return {}
    stages = pipeline.apply_stylesheet(apply_directives(graph.with_ends())).nodes.values()
    for node in stages:
        check_stage_model(node.name, stage_model(node))
    if options.model is not None:
        return {}
    unset = [node.name for node in stages if node.handler == "codergen" and not node.llm_model]
    if unset:
        raise SettingsError(f"stage {unset[0]!r} names no model: give --model NAME, or --simulate to ask none")
    return {"agents": own_model}


def _models_usable(model: str | None, graph: pipeline.Graph) -> Iterator[pipeline.Diagnostic]:
    """Yield a finding for each stage without a usable model; `model` is that of the stages that name none."""
    for node in graph.nodes.values():
        problem, fix = "", ""
        if node.handler == "codergen" and model is None and stage_model(node) is None:
            problem, fix = "names no model", "give --model NAME, or --simulate to ask none"
        try:
            check_stage_model(node.name, stage_model(node))
        except SettingsError as error:
            problem = str(error)
        if problem:
            yield pipeline.Diagnostic(
                rule="model_usable", severity=pipeline.Severity.ERROR, message=problem, fix=fix, node_id=node.name
            )


def template_known(library: TemplateLibrary, graph: pipeline.Graph) -> Iterator[pipeline.Diagnostic]:
    """Yield a finding for each stage whose template is missing or invalid."""
    for name, node in apply_directives(graph).nodes.items():
        try:
            template = library.find(node.context_helper) if node.context_helper else None
            if template is not None:
                template.render({})
        except TemplateError as error:
            yield pipeline.Diagnostic(
                rule="template_known",
                severity=pipeline.Severity.ERROR,
                message=f"@context-helper: {error}",
                fix="without it, the step runs as written",
                node_id=node.name,
                line=_helper_line(graph.nodes[name]) or node.line,
                column=1,
            )


def _helper_line(node: pipeline.Node) -> int | None:
    """Line of the directive that names the template of a step; None if there is none, or not on a line of its own."""
    if node.prompt_line is None:
        return None
    directives = read_directives(node.prompt, DIRECTIVES, line=node.prompt_line).found
    return next(
        (
            directive.line
            for directive in reversed(directives)
            if directive.name == "context-helper" and directive.value
        ),
        None,
    )


def own_model(node: object) -> None:
    """Return no agent for a stage, so that it uses the model that it names."""


def parse_values(texts: list[str]) -> dict[str, str]:
    """Parse initial values of the context, each `KEY=VALUE`."""
    pairs = [text.partition("=") for text in texts]
    for key, equals, _ in pairs:
        if not equals or not key:
            raise SettingsError(f"--set {key!r}: give KEY=VALUE")
    return {key: value for key, _, value in pairs}


def _print_result(result: pipeline.RunState, options: RunOptions, resume: str) -> None:
    """Print the result of a run; `resume` are the arguments of the command that resumes it.

    Raises:
        Exit: the run failed, or stopped at a gate.
    """
    screen, status = Screen(), result.status if result.ended else "stopped"
    facts: dict[str, Any] = {"run_id": result.lineage.root_run_id, "status": status, "reason": result.failure_reason}
    if options.json or options.events:
        _print_document(facts, result, options)
    else:
        why = f": {result.failure_reason}" if result.failure_reason else ""
        if not result.ended:
            why += f"; `pipeline resume {resume}` asks again, and takes the first choice with --auto-approve"
        screen.line(
            (f"{result.lineage.root_run_id} {status}", "bold green" if result.ok else "bold red"), one_line(why)
        )
        print_look(screen, options.db)
    if not result.ok:
        raise typer.Exit(1)


def _print_document(facts: dict[str, Any], state: pipeline.RunState | None, options: RunOptions) -> None:
    """Print the result of a run as JSON: one line after its events, else with the state of the run."""
    if options.events:
        Screen().raw(json_text({"kind": "result", **facts}, indent=None))
        return
    if state is not None:
        facts |= {
            "attempt": state.lineage.attempt,
            "completed": list(state.completed),
            "outcomes": {name: outcome.document() for name, outcome in state.outcomes.items()},
            "context": {key: value for key, value in state.context.items() if not key.startswith("internal.")},
        }
    Screen().raw(json_text(facts))
