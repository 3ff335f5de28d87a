"""`views`: list and show recorded requests; the other commands are in `view_changes`."""

from __future__ import annotations

import json as json_
from collections.abc import Sequence
from typing import Annotated

import typer

from context_compiler.cli.deferred import Views, load_view_text
from context_compiler.cli.options import DB, Db, Json, Owner, Place, ViewId, example, group
from context_compiler.cli.records import find_session, find_view, recorded_messages, with_record
from context_compiler.cli.screen import Column, Screen, print_list
from context_compiler.cli.text import first_word, json_text, number, sent_share, timestamp
from context_compiler.record.store import SQLStore
from context_compiler.record.totals import IMPORTED
from context_compiler.record.values import Record, Tool

app = group("List, show, diff and replay the recorded requests.", shown="views list", cls=Views)

VIEWS = (
    Column("view", right=True, style="bold"),
    Column("session", names=True),
    Column("turn", right=True, spare=1),
    Column("when (UTC)", spare=2),
    Column("status"),
    Column("raw", right=True),
    Column("sent", right=True),
    Column("", right=True, style="green"),
    Column("budget", right=True, spare=3),
    Column("template", elastic=True, spare=4),
    Column("fidelity", spare=5),
)


STATUSES = {
    "raw": "everything fit; nothing was left out",
    "mended": "everything fit, but calls or results without a partner were left out",
    "compiled": "turns were left out and summarized or quoted for this request",
    "cycle": "the view of the last compile, plus everything since",
    "fallback": "something failed; see error",
    "floor_over_budget": "even the smallest possible request exceeds the budget",
    "dry_run": "the view is only recorded; everything was sent",
    "imported": "from another tool; nothing was sent",
}
"""Explanations of statuses, by first word."""


def view_table(records: Sequence[Record]) -> tuple[Sequence[Column], list[Sequence[object]]]:
    """Columns and rows of a table of requests; it names the vaults, such as the nodes of layers, if there are any."""
    vaults = any(record.vault_name for record in records)
    columns = (*VIEWS[:2], Column("vault"), *VIEWS[2:]) if vaults else VIEWS
    return columns, [_record_row(record, vaults=vaults) for record in records]


def _record_row(record: Record, *, vaults: bool) -> tuple[object, ...]:
    compiled, sent = record.compile, not record.status.startswith(IMPORTED)
    return (
        record.id,
        record.session_id,
        *((record.vault_name,) if vaults else ()),
        record.turn_index + 1,
        timestamp(record.created_at),
        first_word(record.status),
        number(record.tokens_raw),
        number(record.tokens_sent) if sent else "",
        sent_share(record.tokens_sent, record.tokens_raw) if sent else "",
        number(record.budget) if record.budget is not None else "",
        compiled.template_name if compiled else "",
        compiled.fidelity if compiled else "",
    )


@app.command("list", epilog=example("views list --session demo"))
def list_(
    session: Annotated[str | None, typer.Option("--session", help="Only this session.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of rows.")] = 50,
    db: Db = DB,
    owner: Owner = None,
    json: Json = False,
) -> None:
    """List recorded requests, newest first."""
    records = with_record(lambda store: _load_views(store, session, limit), db, owner)
    empty = f"{db} contains no views yet; create one with `context-compiler compile --db`"
    print_list({"db": str(db), "views": records}, *view_table(records), json=json, empty=empty)
    screen = Screen()
    if records and screen.rich and not json:
        for status in dict.fromkeys(first_word(record.status) for record in records):
            screen.line((f"{status}: {STATUSES.get(status, '')}", "dim"))


async def _load_views(store: SQLStore, session: str | None, limit: int) -> list[Record]:
    if session is not None:
        session = (await find_session(store, session))[0].session_id
    return await store.views(session, limit=limit)


@app.command("show", epilog=example("views show 3"))
def show_(
    view: ViewId,
    raw: Annotated[bool, typer.Option("--raw", help="Show the raw history instead.")] = False,
    tools: Annotated[
        bool, typer.Option("--tools", help="Show the tools that were sent with the messages instead.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="On a terminal, name everything that was left out, not only the first few.")
    ] = False,
    db: Db = DB,
    owner: Owner = None,
    json: Json = False,
) -> None:
    """Show the exact messages of a view and its token breakdown."""
    if tools:
        _show_tools(db, owner, view, json=json)
        return
    record, bodies = with_record(lambda store: _load_view(store, view, raw=raw), db, owner)
    screen = Screen()
    if json:
        screen.raw(json_text({"view": record, "raw": raw, "messages": [json_.loads(body) for body in bodies]}))
        return
    load_view_text().print_view(screen, record, bodies, raw=raw, every=every)


def _show_tools(db: Place, owner: str | None, view: int, *, json: bool) -> None:
    record, tools = with_record(lambda store: _load_tools(store, view), db, owner)
    screen = Screen()
    if json:
        screen.raw(json_text({"view": record.id, "tools": tools}))
    elif tools is None:
        screen.line(f"the tools of view {record.id} are not recorded")
    else:
        load_view_text().print_tools(screen, tools)


async def _load_tools(store: SQLStore, number: int) -> tuple[Record, tuple[Tool, ...] | None]:
    record = await find_view(store, number)
    return record, await store.scoped(record.owner).tools(number)


async def _load_view(store: SQLStore, number: int, *, raw: bool) -> tuple[Record, list[bytes]]:
    record = await find_view(store, number)
    return record, await recorded_messages(store, record, raw=raw)
