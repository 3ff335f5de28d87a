"""`manager`: list and create checkpoints of a managed session, and roll back to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated

import typer

from context_compiler.cli.options import DB, Db, Json, Owner, Place, Yes, confirm, example, group
from context_compiler.cli.records import find_session, open_record
from context_compiler.cli.screen import Column, print_error, print_list, print_result
from context_compiler.cli.text import number, one_line, plural, timestamp
from context_compiler.errors import ContextMemoryError, StoreError
from context_compiler.manager import Commit, ContextManager, RollbackResult, SQLiteMemory

app = group("Log, checkpoint and rollback of a managed session.", shown="manager log assistant")

SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="Name of a session, from `sessions list`.")]

ID_LENGTH = 12
"""Characters of a commit id in tables; --json has the full id."""

COLUMNS = (
    Column(""),
    Column("commit", style="cyan"),
    Column("made"),
    Column("turns", right=True),
    Column("memories", right=True),
    Column("author", spare=1),
    Column("message", elastic=True),
)


@app.command("log", epilog=example("manager log assistant"))
def log(
    session: SessionId,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of rows.")] = 50,
    db: Db = DB,
    owner: Owner = None,
    json: Json = False,
) -> None:
    """List the commits of a session, newest first; an arrow marks the target of the next rollback."""
    commits, next_id, turns = asyncio.run(_log(db, owner, session, limit))
    facts = {"db": str(db), "session": session, "turns": turns, "next": next_id, "commits": commits}
    empty = f"session {one_line(session)} has {plural(turns, 'turn')} and no checkpoint yet"
    print_list(facts, COLUMNS, [_row(commit, next_id) for commit in commits], json=json, empty=empty)


@app.command("checkpoint", epilog=example('manager checkpoint assistant --message "before the move"'))
def checkpoint(
    session: SessionId,
    message: Annotated[str, typer.Option("--message", help="Message of the checkpoint.")] = "Checkpoint",
    db: Db = DB,
    owner: Owner = None,
    json: Json = False,
) -> None:
    """Create a checkpoint of a session and its memory."""
    commit, turns = asyncio.run(_checkpoint(db, owner, session, message))
    report = f"{db}: session {one_line(session)} saved at {plural(turns, 'turn')} as {str(commit)[:ID_LENGTH]}"
    print_result({"db": str(db), "session": session, "commit": commit, "turns": turns}, report, json=json)


@app.command("rollback", epilog=example("manager rollback assistant --yes"))
def rollback(
    session: SessionId,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="COMMIT", help="Id of a commit in `manager log`, or its first characters."),
    ] = None,
    yes: Yes = False,
    db: Db = DB,
    owner: Owner = None,
    json: Json = False,
) -> None:
    """Roll back to the newest unused checkpoint, or to a commit; the session continues from there."""
    commits, next_id, turns = asyncio.run(_log(db, owner, session, 1 if to is None else None))
    target = next_id if to is None else _commit_named(to, commits)
    if not yes and target is not None:
        change = f"from {plural(turns, 'turn')} to checkpoint {target[:ID_LENGTH]}"
        if not confirm(f"Roll session {session!r} back {change}?"):
            print_error("nothing was rolled back")
            raise typer.Exit(1)
    result, turns = asyncio.run(_rollback(db, owner, session, None if to is None else target))
    back = {"commit_restored": result.commit_restored, "turns_lost": result.turns_lost, "turns": turns}
    line = f"is back at {result.commit_restored[:ID_LENGTH]}, {plural(result.turns_lost, 'turn')} lost"
    print_result({"db": str(db), "session": session, **back}, f"{db}: session {one_line(session)} {line}", json=json)


def _commit_named(name: str, commits: list[Commit]) -> str:
    """Find the id of the commit that begins with `name`; return `name` if there is none, as on another branch.

    Raises:
        ContextMemoryError: several commits begin with it.
    """
    ids = [commit.id for commit in commits if commit.id.startswith(name)]
    if len(ids) > 1:
        raise ContextMemoryError(f"several commits begin with {one_line(name, 60)!r}; `manager log` lists them")
    return ids[0] if ids else name


@asynccontextmanager
async def _open_manager(
    db: Place, owner: str | None, session: str, *, writing: bool
) -> AsyncGenerator[tuple[ContextManager, SQLiteMemory]]:
    """Open the manager of a stored session.

    Raises:
        StoreError: there is no such session, or it was never managed.
    """
    async with open_record(db, owner) as existing:
        info = (await find_session(existing, session))[0]
        session = info.session_id
    async with open_record(db, info.owner, writing=writing) as store:
        memory = SQLiteMemory(session, store)
        manager = ContextManager.with_versioning(memory, memory, "none", session_id=session)
        if not await manager.resume():
            raise StoreError(
                f"{db}: session {one_line(session, 60)!r} is not managed; a ContextManager over"
                " SQLiteMemory(session, path) stores one"
            )
        yield manager, memory


async def _log(db: Place, owner: str | None, session: str, limit: int | None) -> tuple[list[Commit], str | None, int]:
    """Commits of a session, the id of the checkpoint that the next rollback restores, and the number of turns."""
    async with _open_manager(db, owner, session, writing=False) as (manager, memory):
        return await memory.log(limit), manager.next_checkpoint, manager.turn_count


async def _checkpoint(db: Place, owner: str | None, session: str, message: str) -> tuple[str | None, int]:
    async with _open_manager(db, owner, session, writing=True) as (manager, _):
        return await manager.checkpoint(message), manager.turn_count


async def _rollback(db: Place, owner: str | None, session: str, commit: str | None) -> tuple[RollbackResult, int]:
    async with _open_manager(db, owner, session, writing=True) as (manager, _):
        return await manager.rollback(commit), manager.turn_count


def _row(one: Commit, next: str | None) -> tuple[object, ...]:
    mark = "→" if one.id == next else ""
    counts = (number(one.turns), number(one.memories))
    return mark, one.id[:ID_LENGTH], timestamp(one.created_at), *counts, one.author, one.message
