"""`sessions test` and `views export`: tests that are written from the record."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from context_compiler.cli.deferred import load_written
from context_compiler.cli.options import DB, Db, Json, Owner, SessionId, ViewId, example, group
from context_compiler.cli.records import find_session, find_view, with_record
from context_compiler.cli.screen import Column, print_list, print_note
from context_compiler.cli.text import one_line

if TYPE_CHECKING:  # writing a test needs the host
    from context_compiler.testing.written import Claim

app = group("Write tests from recorded sessions and requests.")

Agent = Annotated[
    str, typer.Option("--agent", help="module:name of the agent to test; default: a compiler with the recorded budget.")
]

CLAIMS = (Column("check", style="bold"), Column("of", wraps=True), Column("turn", right=True), Column("holds"))


@app.command("test", epilog=example("sessions test demo --out tests/test_demo.py"))
def test(
    session: SessionId,
    out: Annotated[Path, typer.Option("--out", help="File of the test; its recording is written beside it.")],
    agent: Agent = "",
    db: Db = DB,
    owner: Owner = None,
    json: Json = False,
) -> None:
    """Write a test from a session: its recording without personal data, and what held in every request."""
    info = with_record(lambda store: find_session(store, session), db, owner)[0]
    writing = load_written().write_test(info.session_id, db, out, owner=info.owner, agent=agent)
    claims: list[Claim] = asyncio.run(writing)
    _print(f"session {one_line(info.session_id)}", out, claims, json=json, session=info.session_id)


@app.command("export", epilog=example("views export 3 'my explicit yes' --out tests/test_yes.py"))
def export(
    view: ViewId,
    out: Annotated[
        Path, typer.Option("--out", help="New file of a test, or a YAML file of a dataset, which may exist.")
    ],
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEXT]…", help="Texts that it should contain; default: rules and values that it lacks."
        ),
    ] = None,
    agent: Agent = "",
    db: Db = DB,
    owner: Owner = None,
    json: Json = False,
) -> None:
    """Write a test, or a case for pydantic_evals, from a request that lacks something, without personal data."""
    record = with_record(lambda store: find_view(store, view), db, owner)
    writing = load_written().write_case(view, texts or (), db, out, owner=record.owner, agent=agent)
    claims: list[Claim] = asyncio.run(writing)
    _print(f"view {view}", out, claims, json=json, view=view, session=record.session_id)


def _print(source: str, out: Path, claims: Sequence[Claim], *, json: bool, **facts: object) -> None:
    rows = [(claim.check, "; ".join(claim.arguments), claim.turn, "yes" if claim.holds else "no") for claim in claims]
    print_list({**facts, "test": str(out), "claims": claims}, CLAIMS, rows, json=json)
    if not json:
        print_note(f"{out}: written from {source}; names of people were not replaced, so read it")
