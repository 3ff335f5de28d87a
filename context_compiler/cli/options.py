"""What several commands have in common: options, the record they open, and how they ask for a thing by name."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from context_compiler.cli.text import alike, near, one_line
from context_compiler.errors import SettingsError, StoreError
from context_compiler.fidelity import Fidelity
from context_compiler.record.sqlite import DEFAULT_PATH
from context_compiler.record.store import SQLiteStore
from context_compiler.record.values import Record, SessionInfo
from context_compiler.settings import Amount, Count, check_amount, count

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Db = Annotated[Path, typer.Option("--db", envvar="CONTEXT_COMPILER_DB", help="The file of the record.")]
System = Annotated[
    Path, typer.Option("--system", envvar="CONTEXT_COMPILER_SYSTEM", help="A folder with ContextTemplates/ in it.")
]
Vault = Annotated[
    Path | None,
    typer.Option(
        "--vault", envvar="CONTEXT_COMPILER_VAULT", help="A folder with AssistantMD/ContextTemplates/ in it: these win."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
ViewId = Annotated[int, typer.Argument(metavar="ID", help="The number of a view, as `views list` shows it.")]

DB = Path(DEFAULT_PATH)
SYSTEM = Path("system")
MARKUP: Any = "rich" if sys.stdout is not None and sys.stdout.isatty() else None
"""How help is printed: with colour on a terminal, as plain text elsewhere."""


def group(help: str, *, shown: str = "", cls: Any = None) -> typer.Typer:
    """An application whose help is in keeping with all others; `shown` is its example."""
    more = {} if cls is None else {"cls": cls}
    return typer.Typer(
        help=help,
        epilog=example(shown) if shown else None,
        no_args_is_help=True,
        add_completion=cls is not None,
        rich_markup_mode=MARKUP,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        **more,
    )


def example(command: str) -> str:
    """The end of a command's help: one line that can be copied."""
    return f"Example: context-compiler {command}"


def agreed(question: str) -> bool:
    """Ask on standard error; yes is y or yes.

    Raises:
        SettingsError: nobody is there to answer.
    """
    print(one_line(question), "[y/N] ", end="", file=sys.stderr, flush=True)
    said = sys.stdin.readline()
    if not said:
        print(file=sys.stderr)
        raise SettingsError("nobody answered; give --yes where nobody can")
    return said.strip().lower() in ("y", "yes")


@asynccontextmanager
async def opened(db: Path, *, writing: bool = False) -> AsyncGenerator[SQLiteStore]:
    """The record in a file, to look at unless `writing`; let go of at the end."""
    store = SQLiteStore(db, read_only=not writing, busy_timeout_ms=5_000 if writing else 250)
    try:
        yield store
    finally:
        await store.close()


async def known_session(store: SQLiteStore, session: str) -> list[SessionInfo]:
    """A conversation, once for every vault it was held in; its name may be shortened as in a table.

    Raises:
        StoreError: nobody knows it, or it may be one of several; the message names some that are like it.
    """
    every = await store.sessions()
    names = [info.session_id for info in every]
    meant = [session] if session in names else alike(session, names)
    if len(meant) > 1:
        some = ", ".join(repr(one_line(name, 60)) for name in meant[:3])
        asked = f"session {one_line(session, 60)!r} may be one of {len(meant)}, such as {some}"
        raise StoreError(f"{store.path}: {asked}; give more of its name")
    if not meant:
        known = near(session, names, listing=listing("sessions list", store.path)) or "; it holds no sessions at all"
        raise StoreError(f"{store.path}: no session {one_line(session, 60)!r}{known}")
    return [info for info in every if info.session_id == meant[0]]


async def known_view(store: SQLiteStore, number: int) -> Record:
    """One request with its compile.

    Raises:
        StoreError: there is none of that number; the message names some that there are.
    """
    record = await store.view(number)
    if record is None:
        numbers = sorted(one.id for one in await store.views() if one.id is not None)
        raise StoreError(f"{store.path}: no view {number}; {_numbered(number, numbers, store.path)}")
    return record


def _numbered(wrong: int, numbers: Sequence[int], db: Path) -> str:
    """Which views there are, as the end of an error message."""
    if not numbers:
        return "it holds no views at all"
    if len(numbers) == 1:
        return f"there is only view {numbers[0]}"
    low, high = numbers[0], numbers[-1]
    said = f"there are {len(numbers):,}, from {low} to {high}"
    if high - low >= len(numbers):
        close = sorted(sorted(numbers, key=lambda one: abs(one - wrong))[:3])
        said += f" with gaps, the nearest are {', '.join(map(str, close))}"
    return f"{said}; `{listing('views list', db)}` lists them"


def listing(command: str, db: Path) -> str:
    """The command that lists what a record holds, ready to be copied."""
    return f"context-compiler {command}" + ("" if db in (DB, DB.absolute()) else f" --db {quote(str(db))}")


async def kept_chain(store: SQLiteStore, record: Record, *, raw: bool) -> list[bytes]:
    """The bodies of the messages that a request had at hand (`raw`) or sent.

    Raises:
        StoreError: only facts were kept of it, and no content.
    """
    tip = record.raw_tip if raw else record.view_tip
    if tip is None:
        raise StoreError(
            f"{store.path}: view {record.id} was recorded without its messages ({one_line(record.status, 120)}); "
            "only its facts can be listed"
        )
    return await store.chain(tip)


def named(text: str | None) -> str | None:
    """The name of a run as typed; for use as the callback of an option.

    Raises:
        SettingsError: it holds bytes that are no UTF-8, and no record can keep those.
    """
    if text is not None and any("\ud800" <= char <= "\udfff" for char in text):
        raise SettingsError(f"{one_line(text, 60)!r}: this name is not UTF-8 text; give another")
    return text


def amount(text: str) -> Amount:
    """A budget: whole tokens such as 4000, or a share such as 0.5."""
    said = text.strip().lower()
    try:
        value: Amount = float(said) if "." in said or "e" in said else int(said)
    except ValueError:
        value = 0
    try:
        return check_amount(value, name="--budget") or 1
    except SettingsError:
        raise SettingsError(f"--budget {text!r}: give whole tokens such as 4000, or a share such as 0.5") from None


def turns(text: str | None) -> Count | None:
    """How many turns: a whole number, or `all`."""
    try:
        return None if text is None else count(text)
    except ValueError as allowed:
        raise SettingsError(f"--recent-turns {text!r}: give {allowed}") from None


class Format(StrEnum):
    """How a view is printed."""

    RICH = "rich"
    MARKDOWN = "markdown"
    JSON = "json"


TranscriptPath = Annotated[
    str, typer.Argument(metavar="TRANSCRIPT", help="A JSON or JSONL file of any known format, or - for standard input.")
]
TemplateName = Annotated[
    str | None,
    typer.Option(
        "--template",
        "-t",
        envvar="CONTEXT_COMPILER_TEMPLATE",
        help="A template's name or path; without it extractive, or chat_compiler where a model is given.",
    ),
]
FidelityName = Annotated[
    str | None, typer.Option("--fidelity", "-f", help=f"How much of the past: {', '.join(Fidelity)}.")
]
BudgetText = Annotated[
    str, typer.Option("--budget", "-b", help="Tokens such as 4000, or a share of 32,000 such as 0.5.")
]
ModelName = Annotated[
    str, typer.Option("--model", "-m", help="Who writes the summary, such as openai:gpt-5; none asks nobody.")
]
RecordIn = Annotated[
    Path | None,
    typer.Option("--db", envvar="CONTEXT_COMPILER_DB", help="Record the view in this file; without, nothing is kept."),
]
SessionName = Annotated[str | None, typer.Option("--session", help="What the conversation is called on the record.")]
RecentTurns = Annotated[str | None, typer.Option("--recent-turns", help="Turns kept if they fit: a number, or all.")]
Select = Annotated[
    str | None, typer.Option("--select", help="Which of several conversations: its position from 0, or its name.")
]
FormatName = Annotated[
    str | None, typer.Option("--from", help="The transcript's format, where it cannot be told from the content.")
]
PrintAs = Annotated[Format, typer.Option("--format", help="How the view is printed.")]
Explain = Annotated[
    bool, typer.Option("--explain", help="Print why each message is kept or left out, instead of the messages.")
]
LayersOf = Annotated[
    str | None, typer.Option("--layers", help="Put the layers of this session, from --db, before the last prompt.")
]
Role = Annotated[str, typer.Option("--role", help="Which node is told of the layers: understand, think, act or reply.")]
Strict = Annotated[
    bool, typer.Option("--strict", help="Fail where the budget is not kept, or only by cutting the prompt.")
]
