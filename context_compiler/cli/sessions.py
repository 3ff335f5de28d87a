"""`sessions`: recorded conversations, listed, shown and deleted."""

from __future__ import annotations

import asyncio
import json as json_
from pathlib import Path
from typing import Annotated

import typer

from context_compiler.chat.transcript import Transcript, transcript_folder
from context_compiler.cli.options import (
    DB,
    SYSTEM,
    Db,
    Json,
    System,
    Vault,
    Yes,
    agreed,
    example,
    group,
    known_session,
    opened,
)
from context_compiler.cli.screen import Column, Screen, complain, listed, told, warn
from context_compiler.cli.show import begins, reading, role, show
from context_compiler.cli.text import json_text, moment, number, plural, share
from context_compiler.cli.views import VIEWS, view_row
from context_compiler.messages.history import load_messages
from context_compiler.record.values import Compile, Record, SessionInfo

app = group("List, show and delete recorded conversations.", shown="sessions list")

SessionId = Annotated[str, typer.Argument(metavar="ID", help="A session, as `sessions list` shows it.")]
"""Which conversation."""

SESSIONS = (
    Column("session", style="bold", names=True),
    Column("vault", spare=2),
    Column("requests", right=True),
    Column("compiles", right=True, spare=3),
    Column("raw tokens", right=True, spare=1),
    Column("sent", right=True),
    Column("last used", spare=2),
)
MESSAGES = (Column("#", right=True), Column("role"), Column("tokens", right=True), Column("begins", elastic=True))


@app.command("list", epilog=example("sessions list"))
def list_(db: Db = DB, json: Json = False) -> None:
    """List every conversation, the one used last first."""
    found = asyncio.run(_all(db))
    none = f"{db} holds no sessions yet; `context-compiler import` and `compile --db` make some"
    listed({"db": str(db), "sessions": found}, SESSIONS, map(_row, found), json=json, empty=none)


@app.command("show", epilog=example("sessions show demo --raw"))
def show_(
    session: SessionId,
    raw: Annotated[bool, typer.Option("--raw", help="Print every message in full.")] = False,
    db: Db = DB,
    json: Json = False,
) -> None:
    """Show one conversation: its requests and its raw history."""
    infos, records, compiles, bodies = asyncio.run(_one(db, session))
    screen = Screen()
    if json:
        messages = [json_.loads(body) for body in bodies]
        document = {"sessions": infos, "views": records, "compiles": compiles, "messages": messages}
        screen.raw(json_text(document))
        return
    for info in infos:
        _facts(screen, info)
    screen.heading("Requests")
    screen.table(VIEWS, map(view_row, records))
    history = reading(load_messages(bodies))
    screen.heading(f"Raw history: {plural(len(history), 'message')}, {number(history.tokens)} tokens")
    if raw:
        show(screen, history)
        return
    rows = [(index, role(one), number(one.tokens), begins(one, 90)) for index, one in enumerate(history.readings)]
    screen.table(MESSAGES, rows)


@app.command("delete", epilog=example("sessions delete demo --yes"))
def delete(
    session: SessionId,
    yes: Yes = False,
    db: Db = DB,
    vault: Vault = None,
    system: System = SYSTEM,
    json: Json = False,
) -> None:
    """Remove a conversation and all that only it used, for good; the transcript of a chat is named, and stays."""
    infos, records, _, bodies = asyncio.run(_one(db, session))
    if not yes:
        what = f"{plural(len(records), 'request')} and {plural(len(bodies), 'message')}"
        if not agreed(f"Delete session {infos[0].session_id!r} with {what} from {db}?"):
            complain("nothing was deleted")
            raise typer.Exit(1)
    session = infos[0].session_id
    removed = asyncio.run(_deleted(db, session))
    done = f"{db}: session {session} deleted, {plural(removed, 'request')} removed"
    left = [str(path) for path in _transcripts(session, db, vault, system)]
    told({"db": str(db), "session": session, "removed": removed, "transcripts": left}, done, json=json)
    for path in left:
        warn(f"{path}: this transcript of the chat is still there; delete it too, or the next chat takes it up again")


def _transcripts(session: str, db: Path, vault: Path | None, system: Path) -> list[Path]:
    """What a chat has written of a session, in the folders where it may be."""
    if not session.strip():
        return []
    folders = (transcript_folder(None, db.parent), transcript_folder(None, system), transcript_folder(vault, system))
    found = (Transcript(folder, session).path for folder in folders)
    return list({path.resolve(): path for path in found if path.is_file()}.values())


async def _all(db: Path) -> list[SessionInfo]:
    async with opened(db) as store:
        return await store.sessions()


async def _one(db: Path, session: str) -> tuple[list[SessionInfo], list[Record], list[Compile], list[bytes]]:
    async with opened(db) as store:
        infos = await known_session(store, session)
        name = infos[0].session_id
        records = await store.views(name)
        return infos, records, await store.summaries(name), await store.transcript(name)


async def _deleted(db: Path, session: str) -> int:
    async with opened(db, writing=True) as store:
        return await store.delete(session)


def _row(info: SessionInfo) -> tuple[object, ...]:
    return (
        info.session_id,
        info.vault_name,
        number(info.requests),
        number(info.compiles),
        number(info.tokens_raw),
        number(info.tokens_sent),
        moment(info.last_at),
    )


def _facts(screen: Screen, info: SessionInfo) -> None:
    screen.line((f"session {info.session_id}", "bold"))
    sent = f"{number(info.tokens_sent)} sent ({share(info.tokens_sent, info.tokens_raw)})"
    screen.facts(
        [
            ("vault", info.vault_name),
            ("begun", moment(info.created_at)),
            ("last used", moment(info.last_at)),
            ("requests", number(info.requests)),
            ("compiles", number(info.compiles)),
            ("tokens", f"{number(info.tokens_raw)} raw → {sent}"),
        ]
    )
