"""`sessions show`: one recorded conversation, with its requests and its raw history."""

from __future__ import annotations

import json as json_
from typing import Annotated

import typer

from context_compiler.cli.deferred import load
from context_compiler.cli.options import DB, Db, Json, Owner, SessionId, example, group
from context_compiler.cli.records import find_session, with_record
from context_compiler.cli.screen import Screen
from context_compiler.cli.text import json_text, number, sent_share, timestamp
from context_compiler.cli.views import view_table
from context_compiler.record.store import SQLStore
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
    infos, records, compiles, bodies = with_record(lambda store: _load_session(store, session), db, owner)
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
    every: SQLStore, session: str
) -> tuple[list[SessionInfo], list[Record], list[Compile], list[bytes]]:
    infos = await find_session(every, session)
    name, store = infos[0].session_id, every.scoped(infos[0].owner)
    return infos, await store.views(name), await store.summaries(name), await store.transcript(name)


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
