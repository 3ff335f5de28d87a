"""`sessions find`: the requests of recorded conversations that contained a fact."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Annotated

import typer

from context_compiler.cli.facts import load_fact, load_facts, plain_fact, print_fact, print_facts
from context_compiler.cli.options import DB, Db, Json, Owner, example, group
from context_compiler.cli.screen import Screen
from context_compiler.cli.text import json_text
from context_compiler.compiler.facts import FactPage
from context_compiler.errors import SettingsError

app = group("Search recorded conversations.")


@app.command("find", epilog=example("sessions find demo 'my explicit yes'"))
def find(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[ID] TEXT",
            help="Words, a number or a path, in the session ID or in all; case, order and a slip are forgiven.",
        ),
    ],
    db: Db = DB,
    owner: Owner = None,
    json: Json = False,
) -> None:
    """Find which requests contained a fact, in which form, and when and why it was dropped; exit code 1 if none did."""
    *sessions, text = words
    if len(sessions) > 1:
        raise SettingsError(
            f'give one session and one text: put quotes around the words, as in "{" ".join(words[1:])}"'
        )
    if not sessions:
        pages = asyncio.run(load_facts(db, owner, text))
        if json:
            Screen().raw(json_text({"db": str(db), "sessions": [plain_fact(name, page) for name, page in pages]}))
        else:
            print_facts(Screen(), pages, text, db)
        end(page for _, page in pages)
        return
    name, page = asyncio.run(load_fact(db, owner, sessions[0], text))
    if json:
        Screen().raw(json_text({"db": str(db), **plain_fact(name, page)}))
    else:
        print_fact(Screen(), name, page, db)
    end([page])


def end(pages: Iterable[FactPage]) -> None:
    """Exit with code 1 if nothing contains the words as they stand."""
    if not any(page.had or page.mentioned for page in pages):
        raise typer.Exit(1)
