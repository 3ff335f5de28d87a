"""The root command, its table of commands and the exit codes: 0 success, 1 negative answer, 2 wrong usage or input.

A command is imported when it is called. `--help` needs only its name and summary, and is therefore quick.
"""

from __future__ import annotations

import gc
import logging
import os
import re
import sys
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import Annotated, Any, cast

import typer
from typer.main import get_command

from context_compiler import __version__
from context_compiler.cli.options import Group, group
from context_compiler.cli.screen import print_error, print_note
from context_compiler.errors import BudgetError, CompileError, ContextCompilerError
from context_compiler.paths import warn_of_namesake
from context_compiler.settings import Config

WHOLE = "give a whole number, such as 3"
OWN_WORDS = (
    (r"Value error, ", ""),
    (r"Input should be a valid integer, unable to parse string as an integer|is not a valid integer", WHOLE),
    (r"Input should be less than or equal to ", "give at most "),
    (r"Input should be greater than or equal to ", "give at least "),
    (r"\S+ is not in the range (\d+)<=x<=(\d+)", r"give a number from \1 to \2"),
    (r"\S+ is not in the range x>=(\d+)", r"give at least \1"),
)
"""Words of Typer's versions, and our own for them."""

NEGATIVE, INVALID, INTERRUPTED, PIPE_CLOSED = 1, 2, 130, 141
"""Exit codes: negative answer; wrong usage or input; Ctrl-C; closed pipe."""

LOOK, MAKE, RUN, KEEP = "Look", "Make", "Run", "Keep"
"""Headings of `--help`: look at sent requests, make views, run conversations and jobs, maintain the record."""

COMMANDS = {
    "demo": ("demo", LOOK, "Show what a model would see of a bundled conversation."),
    "views": ("views", LOOK, "List, show, diff and replay recorded requests."),
    "sessions": ("sessions", LOOK, "List, show, compact and delete recorded conversations."),
    "stats": ("stats", LOOK, "Show tokens saved, fallbacks and latencies."),
    "layers": ("layers", LOOK, "Show the layers of a session as a node would get them."),
    "serve": ("serve", LOOK, "Browse the record in a web browser, and chat there."),
    "compile": ("compile", MAKE, "Compile a transcript into a view that fits a token budget."),
    "import": ("importing", MAKE, "Import conversations from other tools into the record."),
    "test": ("testing", MAKE, "Run tests of contexts, also without pytest."),
    "bench": ("bench", MAKE, "Measure what views would save on a transcript."),
    "templates": ("templates", MAKE, "List, show and check templates."),
    "chat": ("chat", RUN, "Chat with a model; the conversation is stored in full."),
    "workflow": ("workflows", RUN, "Check, draw, run, resume and show workflows: markdown files."),
    "pipeline": ("pipelines", RUN, "Check, draw, run, submit, resume and show graphs of stages."),
    "worker": ("workers", RUN, "Run submitted pipelines until Ctrl-C; start as many as you like."),
    "config": ("config", KEEP, "Show every setting with the origin of its value."),
    "manager": ("manager", KEEP, "Log, checkpoint and rollback of a managed session."),
    "verify": ("maintenance", KEEP, "Verify that the record is intact."),
    "prune": ("maintenance", KEEP, "Remove old requests from the record."),
    "delete": ("maintenance", KEEP, "Delete all data of one owner from the record."),
    "copy": ("maintenance", KEEP, "Copy the record to another file or database."),
    "export": ("maintenance", KEEP, "Write the whole record as JSON lines."),
}
"""Module, heading and summary of each command. A summary has at most 66 characters, to fit on a line of 80."""

USAGE_ERROR = cast("type[Exception]", typer.BadParameter.__mro__[2])
"""Base class of usage errors: Typer's own in newer versions, click's in older ones."""


log = logging.getLogger("context_compiler")


class _LogNotes(logging.Handler):
    """Prints each warning of the library as one line on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        print_note(record.getMessage())


class Commands(Group):
    """The root command: imports each command when it is called, and converts every outcome to an exit code."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import and return the command that the arguments name."""
        if args and args[0] in COMMANDS:
            self.commands[args[0]] = load(args[0])
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run and exit; an error is one line on standard error."""
        if sys.stdout is None:
            print_error("standard output is closed; redirect it to a file, or to /dev/null")
            sys.exit(NEGATIVE)
        _prepare_output()
        log.addHandler(notes := _LogNotes(logging.WARNING))
        warn_of_namesake()
        try:
            code = super().main(*args, **{**kwargs, "standalone_mode": False})
            sys.stdout.flush()
        except USAGE_ERROR as error:
            code = _print_usage_error(error)
        except ContextCompilerError as error:
            print_error(str(error))
            code = NEGATIVE if isinstance(error, BudgetError | CompileError) else INVALID
        except typer.Abort:
            code = INTERRUPTED
        except BrokenPipeError:
            code = _discard_output()
        except OSError as error:
            if not _is_unwritable():
                raise
            code = _discard_output(NEGATIVE)
            print_error(f"standard output: {error.strerror or error}")
        finally:
            log.removeHandler(notes)
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        """Run the command with the configuration file; Ctrl-C ends it with one line, and a closed pipe with none."""
        try:
            with Config.load().in_environment() as ctx.obj:
                return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("\ninterrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            raise typer.Exit(_discard_output()) from None


@cache
def load(name: str) -> Any:
    """Import a command and return it."""
    module = import_module(f"context_compiler.cli.{COMMANDS[name][0]}")
    command: Any = get_command(module.app)
    inner: dict[str, Any] = getattr(command, "commands", {})
    return inner.get(name, command)


def _print_usage_error(error: Any) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        if error.format_message():
            typer.echo(error.format_message())
        return INVALID
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "context-compiler"
    meant = ""
    if possible := getattr(error, "possibilities", None):
        close = get_close_matches(error.option_name, possible, n=1, cutoff=0.7)
        meant = "".join(f". Did you mean {name!r}?" for name in close)
        error.possibilities = ()
    message = error.format_message().strip().rstrip(".") + meant
    for theirs, ours in OWN_WORDS:
        message = re.sub(theirs, ours, message)
    origin = re.search(r"from `[^`]+`", str(getattr(getattr(error, "param", None), "help", "")))
    message += f", {origin[0]}" if origin else ""
    see = " See" if message.endswith("?") else "; see"
    print_error(f"{message[:1].lower()}{message[1:]}{see} `{path} --help`")
    return INVALID


def _discard_output(code: int = PIPE_CLOSED) -> int:
    """Discard further output, so that the interpreter can exit cleanly, and return the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _is_unwritable() -> bool:
    """True if standard output cannot be written, such as on a full disk."""
    try:
        print(flush=True)  # the line break tells, if what failed is not in the buffer any more
    except OSError:
        return True
    return False


def _prepare_output() -> None:
    """Print each line at once, in a pipe too, and a question mark for each character that the output encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace", line_buffering=True)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"context-compiler {__version__}")
        raise typer.Exit


app = group(
    "Context middleware for Pydantic AI: budgeted, recorded views of long conversations.",
    shown="demo",
    cls=Commands,
    completes=True,
)
"""All commands."""


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def _add_placeholder(name: str, heading: str, summary: str) -> None:
    @app.command(name, help=summary, rich_help_panel=heading)
    def _() -> None:  # only listed by --help; `resolve_command` replaces it
        pass


for _name, (_, _heading, _summary) in COMMANDS.items():
    _add_placeholder(_name, _heading, _summary)


COLLECT_EVERY = 50_000
"""New objects between two collections of the garbage collector."""


def main() -> None:
    """Run the command line on the arguments of this process."""
    gc.set_threshold(COLLECT_EVERY)  # a command creates many objects, hardly any of them garbage
    app(prog_name="context-compiler")
