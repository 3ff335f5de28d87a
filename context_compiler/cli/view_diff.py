"""`views diff`: the common beginning and the differences of two recorded requests."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from context_compiler.cli.diff import compare, comparison_document, print_comparison
from context_compiler.cli.options import DB, Db, Json, Owner, Place, ViewId, example, group
from context_compiler.cli.records import find_view, open_record, recorded_messages
from context_compiler.cli.screen import Screen
from context_compiler.cli.show import read_recorded
from context_compiler.cli.text import json_text
from context_compiler.messages.history import History

app = group("Compare recorded requests.")


@app.command("diff", epilog=example("views diff 2 3"))
def diff(
    view: ViewId,
    other: Annotated[int, typer.Argument(metavar="OTHER", help="Number of another view.")],
    db: Db = DB,
    owner: Owner = None,
    json: Json = False,
) -> None:
    """Compare two views: show their common beginning and a diff."""
    first, second = asyncio.run(_load_two(db, owner, view, other))
    compared = compare(first, second, names=(f"view {view}", f"view {other}"))
    screen = Screen()
    if json:
        screen.raw(json_text({"views": [view, other], **comparison_document(compared)}))
    else:
        print_comparison(screen, compared)


async def _load_two(db: Place, owner: str | None, view: int, other: int) -> tuple[History, History]:
    async with open_record(db, owner) as store:
        records = [await find_view(store, number) for number in (view, other)]
        first, second = [await recorded_messages(store, record, raw=False) for record in records]
    return read_recorded(first), read_recorded(second)
