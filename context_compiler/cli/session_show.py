"""`sessions show`: one recorded conversation, with its requests and its raw history."""

from __future__ import annotations

import asyncio
import json as json_
from typing import Annotated

import typer

from context_compiler.cli.deferred import load
from context_compiler.cli.options import DB, Db, Json, Owner, Place, SessionId, example, group
from context_compiler.cli.records import find_session, open_record
from context_compiler.cli.screen import Screen
from context_compiler.cli.text import json_text, number, sent_share, timestamp
from context_compiler.cli.views import view_table
from context_compiler.record.values import Compile, Record, SessionInfo

app = group("Show recorded conversations.")


@app.command("show", epilog=example("sessions show demo --raw"))
def show_(
    session: SessionId,
    raw: Annotated[bool, typer.Option("--raw", help="Print every message in full.")] = False,
    db: Db = DB,
    owner: Owner = None,
    json: Json = False,
) -> None:
    """Show one conversation: its requests and its raw history."""
    infos, records, compiles, bodies = asyncio.run(_load_session(db, owner, session))
    screen = Screen()
    if json:
        messages = [json_.loads(body) for body in bodies]
        document = {"sessions": infos, "views": records, "compiles": compiles, "messages": messages}
        screen.raw(json_text(document))
        return
    for info in infos:
        _print_facts(screen, info)
    screen.heading("Requests")
    screen.table(*view_table(records))
    load("show").print_history(screen, bodies, raw=raw)


async def _load_session(
    db: Place, owner: str | None, session: str
) -> tuple[list[SessionInfo], list[Record], list[Compile], list[bytes]]:
    async with open_record(db, owner) as every:
        infos = await find_session(every, session)
        name, store = infos[0].session_id, every.scoped(infos[0].owner)
        records = await store.views(name)
        return infos, records, await store.summaries(name), await store.transcript(name)


def _print_facts(screen: Screen, info: SessionInfo) -> None:
    screen.line((f"session {info.session_id}", "bold"))
    share = sent_share(info.tokens_sent, info.tokens_raw)
    sent = f"{number(info.tokens_sent)} sent ({share})" if info.tokens_sent else "– sent"
    screen.facts(
        [
            ("vault", info.vault_name),
            ("started", timestamp(info.created_at)),
            ("last used", timestamp(info.last_at)),
            ("requests", number(info.requests)),
            ("compiles", number(info.compiles)),
            ("tokens", f"{number(info.tokens_raw)} raw → {sent}"),
        ]
    )
