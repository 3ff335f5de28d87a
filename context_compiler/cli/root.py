"""Every command ends in one of three ways: 0 it went well, 1 it ran and the answer is no, 2 it could not be asked.

A command is imported when it is called. Until then it is a name and a line of help, so that `--help` is quick.
"""

from __future__ import annotations

import logging
import os
import sys
from importlib import import_module
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command

from context_compiler import __version__
from context_compiler.cli.options import group
from context_compiler.cli.screen import complain, warn
from context_compiler.errors import BudgetError, CompileError, ContextCompilerError
from context_compiler.paths import warn_of_namesake

NO, WRONG, INTERRUPTED, PIPE_CLOSED = 1, 2, 130, 141
"""Exit codes: the answer is no; bad usage or input; Ctrl-C; whoever was reading has left."""

COMMANDS = {
    "demo": ("demo", "Show what a model would see of a bundled conversation."),
    "compile": ("compile", "Compile a transcript into a view that fits a token budget."),
    "import": ("importing", "Put conversations from elsewhere on the record."),
    "templates": ("templates", "List, show and check what views are written with."),
    "views": ("views", "List, show, compare and replay the recorded requests."),
    "sessions": ("sessions", "List, show and delete recorded conversations."),
    "layers": ("layers", "Show what each kind of node is told of a session."),
    "pipeline": ("pipelines", "Check, run, resume and draw graphs of stages."),
    "chat": ("chat", "Talk with a model; everything said is kept."),
    "workflow": ("workflows", "Check, run, resume and show markdown files of steps."),
    "manager": ("manager", "List, make and go back to the checkpoints of a managed session."),
    "bench": ("bench", "Replay a transcript with views and without."),
    "stats": ("stats", "What was saved, how often we fell back, and how long it took."),
    "verify": ("maintenance", "Prove that the record is as it was written."),
    "prune": ("maintenance", "Remove old requests from the record."),
    "export": ("maintenance", "Write the whole record as JSON lines."),
}
"""Names, the module each lives in, and what it does."""

USAGE_ERROR = cast("type[Exception]", typer.BadParameter.__mro__[2])
"""What every wrong use of the command line raises; newer Typers bring their own, older ones click's."""


log = logging.getLogger("context_compiler")


class _Notes(logging.Handler):
    """What the library warns of becomes one line each on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        warn(record.getMessage())


class Commands(TyperGroup):
    """The root: loads a command when it is called, and turns every way to end into an exit code."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the arguments begin with, loaded."""
        if args and args[0] in COMMANDS:
            self.commands[args[0]] = _loaded(args[0])
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run, and leave with an exit code; an error is one line on standard error."""
        _print_anything()
        log.addHandler(notes := _Notes(logging.WARNING))
        warn_of_namesake()
        try:
            code = super().main(*args, **{**kwargs, "standalone_mode": False})
            sys.stdout.flush()
        except USAGE_ERROR as error:
            code = _misused(error)
        except ContextCompilerError as error:
            complain(str(error))
            code = NO if isinstance(error, BudgetError | CompileError) else WRONG
        except typer.Abort:
            code = INTERRUPTED
        except BrokenPipeError:
            code = _unread()
        finally:
            log.removeHandler(notes)
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; Ctrl-C and a closed pipe end it quietly."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            raise typer.Exit(_unread()) from None


def _loaded(name: str) -> Any:
    module = import_module(f"context_compiler.cli.{COMMANDS[name][0]}")
    found: Any = get_command(module.app)
    inner: dict[str, Any] = getattr(found, "commands", {})
    return inner.get(name, found)


def _misused(error: Any) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        if error.format_message():
            typer.echo(error.format_message())
        return WRONG
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "context-compiler"
    message = error.format_message().strip().rstrip(".")
    complain(f"{message[:1].lower()}{message[1:]}; see `{path} --help`")
    return WRONG


def _unread() -> int:
    """Let go of a pipe that nobody reads, so that the interpreter does not complain when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return PIPE_CLOSED


def _print_anything() -> None:
    """Characters that the terminal's encoding lacks become question marks instead of errors."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"context-compiler {__version__}")
        raise typer.Exit


app = group(
    "What a language model sees of a long conversation: budgeted, recorded, never in the way.",
    shown="demo",
    cls=Commands,
)
"""All commands."""


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    pass


def _named(name: str, help: str) -> None:
    @app.command(name, help=help)
    def _() -> None:  # stands in the list of commands; `resolve_command` puts the real one in its place
        pass


for _name, (_, _help) in COMMANDS.items():
    _named(_name, _help)


def main() -> None:
    """Run the command line on the arguments of this process."""
    app(prog_name="context-compiler")
