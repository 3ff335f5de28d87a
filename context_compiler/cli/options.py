"""Options that several commands share, and what their values mean."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from context_compiler.cli.text import one_line
from context_compiler.errors import SettingsError
from context_compiler.paths import check_place, is_address, place_name
from context_compiler.record.store import DEFAULT_PATH

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


def check_run_name(text: str | None) -> str | None:
    """Callback of options that name a run.

    Raises:
        SettingsError: the name is not valid UTF-8, which the record cannot store.
    """
    if text is not None and any("\ud800" <= char <= "\udfff" for char in text):
        raise SettingsError(f"{one_line(text, 60)!r}: the name is not valid UTF-8")
    return text
