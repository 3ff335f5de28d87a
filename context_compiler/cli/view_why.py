"""`views why`: what became of each message in a recorded request."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from context_compiler.cli.facts import load_why, print_why
from context_compiler.cli.options import DB, SYSTEM, Db, Json, Owner, System, Vault, ViewId, example, group
from context_compiler.cli.screen import Screen
from context_compiler.cli.text import json_text, one_line

app = group("Explain recorded requests.")


@app.command("why", epilog=example("views why 3 'my explicit yes'"))
def why(
    view: ViewId,
    message: Annotated[
        str | None,
        typer.Argument(metavar="MESSAGE", help="`turn 3`, `m12`, or words from messages; default: all messages."),
    ] = None,
    vault: Vault = None,
    system: System = SYSTEM,
    db: Db = DB,
    owner: Owner = None,
    json: Json = False,
) -> None:
    """Show in which form a message or words are in a request, or why not, and what would have kept them."""
    answer = asyncio.run(load_why(db, owner, view, message, vault=vault, system=system))
    screen = Screen()
    if json:
        session = answer.record.session_id
        said = {"words": answer.words, "messages": answer.messages, "cuts": answer.cuts, "remedy": answer.remedy}
        screen.raw(json_text({"view": view, "session": session, **said}))
    elif answer.messages:
        print_why(screen, answer)
    else:
        screen.line(f"no message before request {view} contains {one_line(message or '', 60)!r}")
    if message is not None and not answer.messages:
        raise typer.Exit(1)
