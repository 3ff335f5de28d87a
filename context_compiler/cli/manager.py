"""`manager`: list and create checkpoints of a managed session, and roll back to them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from context_compiler.cli.options import DB, Db, Json, Owner, Place, Yes, example, group
from context_compiler.cli.records import find_session, with_record
from context_compiler.cli.screen import Column, confirm, print_list, print_result
from context_compiler.cli.text import number, one_line, plural, timestamp
from context_compiler.errors import ContextMemoryError, StoreError
from context_compiler.manager import Commit, ContextManager, SQLiteMemory
from context_compiler.record.store import SQLStore

app = group("Log, checkpoint and rollback of a managed session.", shown="manager log assistant")

T = TypeVar("T")

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
    commits, manager = _manage(db, owner, session, lambda manager, memory: memory.log(limit), writing=False)
    next_id, turns = manager.next_checkpoint, manager.turn_count
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
    commit, manager = _manage(db, owner, session, lambda manager, memory: manager.checkpoint(message))
    turns = manager.turn_count
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
    limit = 1 if to is None else None
    commits, manager = _manage(db, owner, session, lambda manager, memory: memory.log(limit), writing=False)
    target = manager.next_checkpoint if to is None else _commit_named(to, commits)
    if not yes and target is not None:
        change = f"from {plural(manager.turn_count, 'turn')} to checkpoint {target[:ID_LENGTH]}"
        confirm(f"Roll session {session!r} back {change}?", "nothing was rolled back")
    commit = None if to is None else target
    result, manager = _manage(db, owner, session, lambda manager, memory: manager.rollback(commit))
    back = {"commit_restored": result.commit_restored, "turns_lost": result.turns_lost, "turns": manager.turn_count}
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


def _manage(
    db: Place,
    owner: str | None,
    session: str,
    work: Callable[[ContextManager, SQLiteMemory], Awaitable[T]],
    *,
    writing: bool = True,
) -> tuple[T, ContextManager]:
    """Run `work` on the manager and memory of a stored session; also return the manager.

    Raises:
        StoreError: there is no such session, or it was never managed.
    """
    info = with_record(lambda store: find_session(store, session), db, owner)[0]

    async def manage(store: SQLStore) -> tuple[T, ContextManager]:
        memory = SQLiteMemory(info.session_id, store)
        manager = ContextManager.with_versioning(memory, memory, "none", session_id=info.session_id)
        if not await manager.resume():
            raise StoreError(
                f"{db}: session {one_line(info.session_id, 60)!r} is not managed; a ContextManager over"
                " SQLiteMemory(session, path) stores one"
            )
        return await work(manager, memory), manager

    return with_record(manage, db, info.owner, writing=writing)


def _row(commit: Commit, next_id: str | None) -> tuple[object, ...]:
    mark = "→" if commit.id == next_id else ""
    counts = (number(commit.turns), number(commit.memories))
    return mark, commit.id[:ID_LENGTH], timestamp(commit.created_at), *counts, commit.author, commit.message
