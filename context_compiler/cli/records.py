"""Records that commands open, and lookups in them by the names and numbers that users type."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from shlex import quote
from typing import TypeVar

from context_compiler.cli.options import DB, Place
from context_compiler.cli.screen import Screen
from context_compiler.cli.text import expand, one_line, suggestions
from context_compiler.errors import StoreError
from context_compiler.record.files import BUSY_TIMEOUT_MS
from context_compiler.record.store import SQLStore, open_place
from context_compiler.record.values import Record, SessionInfo

T = TypeVar("T")


@asynccontextmanager
async def open_record(db: Place, owner: str | None = None, *, writing: bool = False) -> AsyncGenerator[SQLStore]:
    """Open a record, for one owner or for all (None), read-only unless `writing`; close it at the end."""
    store = open_place(db, read_only=not writing, busy_timeout_ms=BUSY_TIMEOUT_MS if writing else 250)
    try:
        yield store.scoped(owner)
    finally:
        await store.close()


def with_record(
    work: Callable[[SQLStore], Awaitable[T]], db: Place, owner: str | None = None, *, writing: bool = False
) -> T:
    """Run `work` on a record that is opened for it, as by `open_record`."""

    async def run() -> T:
        async with open_record(db, owner, writing=writing) as store:
            return await work(store)

    return asyncio.run(run())


async def find_session(store: SQLStore, session: str) -> list[SessionInfo]:
    """Find a session by its name, which may be abbreviated as in a table; one result per vault that has it.

    Raises:
        StoreError: there is no such session, or several match, or several owners have it; the message suggests names.
    """
    every = await store.sessions()
    names = [info.session_id for info in every]
    printed = [name for name in names if one_line(name) == session]  # a damaged name cannot be typed otherwise
    meant = [session] if session in names else printed or expand(session, names)
    if len(meant) > 1:
        some = ", ".join(repr(one_line(name, 60)) for name in meant[:3])
        problem = f"session {one_line(session, 60)!r} matches {len(meant)} names, such as {some}"
        raise StoreError(f"{store.place}: {problem}; give more of the name")
    if not meant:
        hint = (
            suggestions(session, names, list_command=list_command("sessions list", store.place))
            or "; it contains no sessions"
        )
        raise StoreError(f"{store.place}: no session {one_line(session, 60)!r}{hint}")
    infos = [info for info in every if info.session_id == meant[0]]
    if len(owners := sorted({info.owner for info in infos})) > 1:
        some = ", ".join(repr(one_line(name, 60)) for name in owners[:3])
        raise StoreError(
            f"{store.place}: {len(owners)} owners have a session {meant[0]!r}, such as {some}; give --owner"
        )
    return infos


async def find_view(store: SQLStore, number: int) -> Record:
    """Find a recorded request and its compile by the number of its view.

    Raises:
        StoreError: there is no view of that number; the message suggests some.
    """
    record = await store.view(number)
    if record is None:
        numbers = sorted(view.id for view in await store.views() if view.id is not None)
        raise StoreError(f"{store.place}: no view {number}; {_nearest_views(number, numbers, store.place)}")
    return record


def _nearest_views(wrong: int, numbers: Sequence[int], db: str) -> str:
    """Format the end of an error message: the numbers of existing views."""
    if not numbers:
        return "it contains no views"
    if len(numbers) == 1:
        return f"there is only view {numbers[0]}"
    low, high = numbers[0], numbers[-1]
    hint = f"there are {len(numbers):,}, from {low} to {high}"
    if high - low >= len(numbers):
        close = sorted(sorted(numbers, key=lambda number: abs(number - wrong))[:3])
        hint += f" with gaps, the nearest are {', '.join(map(str, close))}"
    return f"{hint}; `{list_command('views list', db)}` lists them"


def list_command(command: str, db: Place | str) -> str:
    """Format a command for this record, ready to copy."""
    return f"context-compiler {command}" + (
        "" if str(db) in (str(DB), str(DB.absolute())) else f" --db {quote(str(db))}"
    )


def print_look(screen: Screen, db: Place) -> None:
    """Print the command that opens a record in the browser; only on a terminal, to keep piped output clean."""
    if screen.rich:
        screen.line(("look at it: ", "dim"), (list_command("serve", db), "cyan"))


async def recorded_messages(store: SQLStore, record: Record, *, raw: bool) -> list[bytes]:
    """Load the message bodies of a request: its raw history if `raw`, else the view that it sent.

    Raises:
        StoreError: the request was recorded without content.
    """
    tip = record.raw_tip if raw else record.view_tip
    if tip is None:
        raise StoreError(
            f"{store.place}: view {record.id} was recorded without its messages ({one_line(record.status, 120)}); "
            "only its metadata can be listed"
        )
    return await store.scoped(record.owner).chain(tip, record.session_id, record.vault_name)
