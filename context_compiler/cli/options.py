"""Options that several commands share, and what their values mean."""

from __future__ import annotations

import os
import re
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from context_compiler.cli.screen import print_error
from context_compiler.cli.text import one_line
from context_compiler.errors import SettingsError
from context_compiler.fidelity import Fidelity
from context_compiler.paths import check_place, is_address, place_name
from context_compiler.record.store import DEFAULT_PATH
from context_compiler.settings import MAX_TOKENS, Amount, Config, Count, check_amount, parse_count, variable
from context_compiler.tokens.prices import Budget, Money

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


class Address(str):
    """The address of a database; printed without its password."""

    def __str__(self) -> str:
        return place_name(self[:])

    def __format__(self, form: str) -> str:
        return format(place_name(self[:]), form)


Place = Path | Address
"""Place of a record: a file, or a PostgreSQL database."""


def parse_place(text: str) -> Place:
    """Parse the place of a record: the path of a file, or `postgresql://USER@HOST/DATABASE`."""
    try:
        check_place(text)
    except SettingsError:
        raise typer.BadParameter("give the path of a file, or postgresql://USER@HOST/DB") from None
    return Address(text) if is_address(text) else Path(text)


PLACE: Any = {"envvar": "CONTEXT_COMPILER_DB", "parser": parse_place, "metavar": "PATH"}
Db = Annotated[Any, typer.Option("--db", help="Record: a file, or postgresql://USER@HOST/DB.", **PLACE)]
System = Annotated[
    Path,
    typer.Option("--system", envvar="CONTEXT_COMPILER_SYSTEM", help="Folder of ContextTemplates/ and Chat_Sessions/."),
]
Vault = Annotated[
    Path | None,
    typer.Option(
        "--vault",
        envvar="CONTEXT_COMPILER_VAULT",
        help="Folder of notes; templates and chats in its AssistantMD/ come first. {owner} gives each owner a folder.",
    ),
]
Owner = Annotated[
    str | None,
    typer.Option("--owner", envvar="CONTEXT_COMPILER_OWNER", help="Only data of this owner; default: all owners."),
]
AsOwner = Annotated[
    str | None, typer.Option("--owner", envvar="CONTEXT_COMPILER_OWNER", help="Owner of the recorded data.")
]
VaultOwner = Annotated[str | None, typer.Option("--owner", envvar="CONTEXT_COMPILER_OWNER", help="Owner of the vault.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
SessionId = Annotated[str, typer.Argument(metavar="ID", help="Name of a session, from `sessions list`.")]
ViewId = Annotated[int, typer.Argument(metavar="ID", help="Number of a view, from `views list`.")]

DB = Path(DEFAULT_PATH)
SYSTEM = Path("system")
MARKUP: Any = "rich" if sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR") else None
"""Format of help: rich on a terminal, plain text elsewhere or with NO_COLOR."""


class Group(TyperGroup):
    """A group of commands whose help lists all summaries in full, under their headings."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands; the base class would cut summaries off at the width of the terminal."""
        headings: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            heading = str(getattr(command, "rich_help_panel", None) or "Commands")
            summary = one_line((command.short_help or command.help or "").split("\n\n")[0])
            headings.setdefault(heading, []).append((name, summary))
        width = max((len(name) for rows in headings.values() for name, _ in rows), default=0)
        for heading, rows in headings.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), summary) for name, summary in rows])


def group(help: str, *, shown: str = "", cls: Any = None, completes: bool = False) -> typer.Typer:
    """Create a command group with the common settings; `shown` is the example in its help.

    Without `cls`, a group with one command is that command.
    """
    made = typer.Typer(
        cls=cls or Group,
        help=help,
        epilog=example(shown) if shown else None,
        no_args_is_help=True,
        add_completion=completes,
        rich_markup_mode=MARKUP,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    if cls is not None:
        made.callback()(_nothing)
    return made


def _nothing() -> None:
    pass


def example(command: str) -> str:
    """Format the last line of a command's help: an example to copy."""
    return f"Example: context-compiler {command}"


DAYS = {"m": 1 / 1440, "h": 1 / 24, "d": 1.0, "w": 7.0}
"""Units of an age, in days."""


def parse_age(text: str, option: str = "--older-than") -> float:
    """Parse an age such as 30d, 12h or 2w; return it in days."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)\s*([mhdw])", text.strip().lower(), re.ASCII)
    if not match:
        raise SettingsError(f"{option} {text!r}: give a number with m, h, d or w, such as 30d")
    return float(match[1]) * DAYS[match[2]]


def confirm(question: str, otherwise: str) -> None:
    """Ask a question on standard error.

    Raises:
        Exit: the answer is not y or yes; the error message is `otherwise`.
        SettingsError: standard input is empty.
    """
    print(one_line(question), "[y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer:
        print(file=sys.stderr)
        raise SettingsError("no answer on standard input; give --yes in scripts")
    if answer.strip().lower() not in ("y", "yes"):
        print_error(otherwise)
        raise typer.Exit(1)


def check_run_name(text: str | None) -> str | None:
    """Callback of options that name a run.

    Raises:
        SettingsError: the name is not valid UTF-8, which the record cannot store.
    """
    if text is not None and any("\ud800" <= char <= "\udfff" for char in text):
        raise SettingsError(f"{one_line(text, 60)!r}: the name is not valid UTF-8")
    return text


class Given(str):
    """The value of an option, together with its origin."""

    origin: str
    """An option, an environment variable, or a file and its key."""


def with_origin(context: typer.Context, option: typer.CallbackParam, text: str | None) -> str | None:
    """Callback of options whose value may come from the configuration file: remember the origin."""
    if text is None:
        return text
    value, key = Given(text), option.name
    source: Any = context.get_parameter_source(key)
    value.origin = max(option.opts, key=len)
    if getattr(source, "name", "") == "ENVIRONMENT":
        from_file = key in (context.find_root().obj or ())
        value.origin = f"{Config.load().path}: {key} =" if from_file else f"{variable(key)} ="
    return value


def origin(text: str, option: str) -> str:
    """Origin of a value; the option itself if nothing else is known."""
    return text.origin if isinstance(text, Given) else option


def parse_amount(text: str, *, option: str = "--budget") -> Amount:
    """Parse a number of tokens: a whole number such as 4000, or a share such as 0.5."""
    number = text.strip().lower()
    try:
        value: Amount = float(number) if "." in number or "e" in number else int(number)
    except ValueError:
        value = 0
    try:
        return check_amount(value, name=option) or 1
    except SettingsError:
        setting = f"{origin(text, option)} {str(text)!r}"
        raise SettingsError(f"{setting}: give whole tokens such as 4000, or a share such as 0.5") from None


def parse_recall(text: str) -> Amount:
    """Parse the size of recall blocks: a share of the room from 0 to 1, or tokens."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if 0 <= value <= 1:
        return value
    if value != int(value) or not 1 < value <= MAX_TOKENS:
        raise SettingsError(
            f"{origin(text, '--recall')} {str(text)!r}: give a share from 0 (nothing) to 1, or whole tokens"
        )
    return int(value)


def agent_arguments(recall: str | None, trigger: str | None) -> dict[str, Any]:
    """Arguments of `ContextCompiler` for the options that were given."""
    given: dict[str, Any] = {} if recall is None else {"recall": parse_recall(recall)}
    return given if trigger is None else {**given, "trigger": parse_amount(trigger, option="--trigger")}


def parse_budget(text: str) -> Budget:
    """Parse a budget: tokens, a share, or money such as $0.02."""
    if not text.strip().startswith("$"):
        return parse_amount(text)
    try:
        return Money.parse(text, name="--budget")
    except SettingsError:
        raise SettingsError(f"{origin(text, '--budget')} {str(text)!r}: give money such as $0.02") from None


def parse_turns(text: str | None) -> Count | None:
    """Parse a number of turns: a whole number, or `all`."""
    try:
        return None if text is None else parse_count(text)
    except ValueError as allowed:
        raise SettingsError(f"--recent-turns {text!r}: give {allowed}") from None


class Format(StrEnum):
    """Output format of a view."""

    RICH = "rich"
    MARKDOWN = "markdown"
    JSON = "json"


TranscriptPath = Annotated[
    str,
    typer.Argument(metavar="TRANSCRIPT", help="File in a known format (JSON, JSONL or text), or - for standard input."),
]
FidelityName = Annotated[
    str | None,
    typer.Option(
        "--fidelity",
        "-f",
        envvar="CONTEXT_COMPILER_FIDELITY",
        help=f"How much of the past to keep: {', '.join(Fidelity)}.",
    ),
]
BUDGET: Any = {"envvar": "CONTEXT_COMPILER_BUDGET", "callback": with_origin}
RECALL, TRIGGER = (
    "Share of the room that recalled text may fill if the prompt asks for it, from 0 to 1, or tokens",
    "Size above which a view is cut back: tokens, or a share of the budget",
)
"""Help of options that agents have, and that can be tried out on a transcript or a recorded history."""
ModelName = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        envvar="CONTEXT_COMPILER_MODEL",
        help="Model that writes the summary, such as openai:gpt-5, or none.",
    ),
]
SessionName = Annotated[str | None, typer.Option("--session", help="Name of the conversation in the record.")]
Select = Annotated[
    str | None, typer.Option("--select", help="Which of several conversations to use: a name, or a position from 0.")
]
FormatName = Annotated[str | None, typer.Option("--from", help="Format of the transcript, if it cannot be detected.")]
