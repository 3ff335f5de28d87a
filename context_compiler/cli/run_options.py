"""Options of the commands that run graphs, shared by `pipeline`, `workflow` and `worker`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from context_compiler.cli.options import DB, PLACE, SYSTEM, AsOwner, Json, System, Vault, check_run_name

Runs = Annotated[
    str,
    typer.Option(
        "--runs", envvar="CONTEXT_COMPILER_RUNS", help="Run store: a .db file, a folder, or postgresql://USER@HOST/DB."
    ),
]
Db = Annotated[
    Any, typer.Option("--db", help="Record of the stages' requests: a file, or postgresql://USER@HOST/DB.", **PLACE)
]
Restore = Annotated[bool, typer.Option("--restore-threads", help="Continue the conversations of `full` stages.")]
NewId = Annotated[str | None, typer.Option("--id", callback=check_run_name, help="Id of the run.")]
Values = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Initial value of the context.")]
RunId = Annotated[str, typer.Argument(metavar="RUN", callback=check_run_name, help="Id of a run, or its folder.")]

RUNS = "system/runs.db"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of all commands that run a graph; see `with_run_options`."""

    model: Annotated[
        str | None, typer.Option("--model", help="Model of stages that name none; `scripted` needs no key.")
    ] = None
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Simulate agents instead of asking models. Tool commands run for real.")
    ] = False
    auto_approve: Annotated[bool, typer.Option("--auto-approve", help="Take the first choice at human gates.")] = False
    lenient: Annotated[
        bool, typer.Option("--lenient", help="After a failure, follow edges without a condition too.")
    ] = False
    logs: Annotated[Path | None, typer.Option("--logs", help="Folder for the files of this run.")] = None
    db: Db = DB
    vault: Vault = None
    system: System = SYSTEM
    owner: AsOwner = None
    max_duration: Annotated[
        str | None,
        typer.Option("--max-duration", metavar="DURATION", help="Time limit of the run, such as 90s, 15m or 2h."),
    ] = None
    max_requests: Annotated[
        int | None, typer.Option("--max-requests", min=1, help="Limit on the agents' model requests.")
    ] = None
    max_cost: Annotated[
        str | None, typer.Option("--max-cost", metavar="USD", help="Limit on the cost of the agents, such as 0.50.")
    ] = None
    events: Annotated[bool, typer.Option("--events", help="Print events as JSON lines, then the result.")] = False
    json: Json = False


def with_run_options(*, without: Collection[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command to take each field of `RunOptions` as an option, and to receive them as `options`.

    Args:
        without: Fields that this command does not take.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(RunOptions, include_extras=True) | get_type_hints(command, include_extras=True)
        shared = [field for field in fields(RunOptions) if field.name not in without]
        defaults = {name: own.default for name, own in signature(command).parameters.items() if name != "options"}
        defaults |= {field.name: field.default for field in shared}

        @wraps(command)
        def run(**arguments: Any) -> None:
            command(options=RunOptions(**{field.name: arguments.pop(field.name) for field in shared}), **arguments)

        typed = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[name])
            for name, default in defaults.items()
        ]
        run.__signature__ = Signature(typed)  # pyright: ignore[reportAttributeAccessIssue] # read by inspect
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in typed}
        return run

    return decorate
