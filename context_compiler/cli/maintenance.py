"""`verify`, `prune`, `delete`, `copy` and `export`: maintenance of the record."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing
from dataclasses import asdict
from typing import Annotated

import typer

from context_compiler.chat.transcript import transcript_folders
from context_compiler.cli.options import (
    DB,
    SYSTEM,
    Address,
    Db,
    Json,
    Owner,
    Place,
    System,
    Vault,
    Yes,
    example,
    group,
    parse_age,
    parse_place,
)
from context_compiler.cli.records import open_record, with_record
from context_compiler.cli.screen import Screen, confirm, print_error, print_note, print_result, progress_bar, step
from context_compiler.cli.text import json_text, one_line, plural, suggestions
from context_compiler.errors import SettingsError, StoreError
from context_compiler.paths import OWNER, vault_of, write_ahead_log
from context_compiler.record.copying import CopyResult, copy_record
from context_compiler.record.maintenance import checked_to_the_end

app = group("Maintain the record.")

ADVICE = (
    "Restore a backup; or save what can be read with `context-compiler export`, and then delete the affected sessions"
    " with `context-compiler sessions delete` or start a new file."
)
"""Advice on a record with defects, if all checks ran to the end."""

INCOMPLETE = (
    "Not everything could be checked, so there may be more defects. Restore a backup; or save what can be read with"
    " `context-compiler export`, or `sqlite3 FILE .recover` for a file, and start a new one."
)
"""Advice on a record that is too damaged to be checked to the end."""


@app.command(epilog=example("verify --since 7d"))
def verify(
    since: Annotated[str | None, typer.Option(help="Only what was recorded in this time: 7d, 12h.")] = None,
    db: Db = DB,
    json: Json = False,
) -> None:
    """Verify that the record is intact, as it was written; exit code 1 if it is not."""
    days = None if since is None else parse_age(since, "--since")
    with progress_bar(f"verifying {db}"):
        defects = with_record(lambda store: store.verify(newer_than_days=days), db)
    complete = checked_to_the_end(defects)
    notes = [] if complete else [INCOMPLETE.split(". ")[0]]
    screen = Screen()
    if json:
        screen.raw(json_text({"db": str(db), "sound": not defects, "defects": defects, "notes": notes}))
    elif not defects:
        screen.line(f"{db}: ", ("sound", "bold green"), "" if since is None else f", of the last {since}")
    else:
        screen.line(f"{db}: ", (plural(len(defects), "defect"), "bold red"))
        for defect in defects:
            screen.line(f"  {defect}")
        screen.line((f"All checks ran to the end. {ADVICE}" if complete else INCOMPLETE, "dim"))
    if defects:
        raise typer.Exit(1)


@app.command(epilog=example("prune --older-than 30d --keep-last 10"))
def prune(
    older_than: Annotated[
        str | None, typer.Option("--older-than", help="Only requests older than this: 30d, 12h, 2w.")
    ] = None,
    keep_last: Annotated[
        int | None, typer.Option("--keep-last", min=0, help="Keep the newest N requests of each session.")
    ] = None,
    db: Db = DB,
    owner: Owner = None,
    json: Json = False,
) -> None:
    """Remove old requests, and messages that no other request needs.

    If both limits are given, only requests beyond both of them are removed.
    """
    if older_than is None and keep_last is None:
        raise SettingsError("prune: give --older-than 30d, --keep-last 10, or both")
    days = None if older_than is None else parse_age(older_than)
    before = _size(db)
    with_record(lambda store: store.sessions(), db)  # a missing record is an error; writing would create it
    with progress_bar(f"pruning {db}"):
        removed = with_record(
            lambda store: store.prune(older_than_days=days, keep_last=keep_last), db, owner, writing=True
        )
    after = _size(db)
    sizes = "" if before is None or after is None else f", {before // 1024:,} → {after // 1024:,} kB"
    report = f"{db}: {plural(removed, 'request')} removed{sizes}"
    print_result({"db": str(db), "removed": removed, "bytes_before": before, "bytes": after}, report, json=json)


def _size(db: Place) -> int | None:
    """Size of a record file in bytes, including its write-ahead log; None for a database server."""
    if isinstance(db, Address):
        return None
    files = (db, write_ahead_log(db))
    return sum(file.stat().st_size for file in files if file.exists())


@app.command(epilog=example("delete --owner ann --yes"))
def delete(
    owner: Annotated[str, typer.Option("--owner", help="Owner whose data is deleted.")],
    yes: Yes = False,
    db: Db = DB,
    vault: Vault = None,
    system: System = SYSTEM,
    json: Json = False,
) -> None:
    """Delete all data of an owner: conversations, compiles, layers and memory. No trace of it is left in the file.

    Transcripts of the owner's chats and the owner's vault are not deleted; their folders are printed.
    """
    owners = with_record(lambda store: store.owners(), db)
    info = next((info for info in owners if info.owner == owner), None)
    if info is None:
        suggestion = suggestions(owner, [info.owner for info in owners if info.owner])
        other = "; no data in it has an owner, but `sessions delete` removes a conversation"
        raise StoreError(f"{db}: no owner {one_line(owner, 60)!r}{suggestion or other}")
    content = f"{plural(info.sessions, 'session')} with {plural(info.requests, 'request')}"
    if not yes:
        confirm(f"Delete {content} of owner {owner!r} from {db}?", "nothing was deleted")
    removed = with_record(lambda store: store.erase(), db, owner, writing=True)
    left = sorted(str(folder) for folder in transcript_folders(db, vault, system, owner) if folder.is_dir())
    private = vault_of(vault, owner) if vault is not None and OWNER in str(vault) and owner else None
    vaults = [str(private)] if private is not None and private.is_dir() else []
    facts = {"db": str(db), "owner": owner, "sessions": info.sessions, "removed": removed}
    facts = {**facts, "transcripts": left, "vaults": vaults}
    print_result(facts, f"{db}: {content} of owner {one_line(owner, 60)} deleted", json=json)
    for folder in left:
        print_note(f"{folder}: the transcripts of this owner's chats remain; delete them too, or they are loaded again")
    for folder in vaults:
        print_note(f"{folder}: the vault of this owner with its templates remains; delete it too")


@app.command(epilog=example("export --db system/context.db > record.jsonl"))
def export(db: Db = DB, owner: Owner = None, json: Json = False) -> None:
    """Write the record to standard output as JSON lines, one per row, with or without --json.

    Rows that cannot be read are left out and named on standard error; the exit code is then 1.
    """
    damaged = asyncio.run(_export(db, owner))
    for defect in damaged:
        print_note(f"left out: {defect}")
    if damaged:
        print_error(f"{db}: {plural(len(damaged), 'defect')}; everything else was exported")
        raise typer.Exit(1)


async def _export(db: Place, owner: str | None) -> list[str]:
    """Print all rows that can be read; return the places of the others."""
    damaged = list[str]()
    with progress_bar(f"exporting {db}", quiet=sys.stdout.isatty()) as progress:
        async with open_record(db, owner) as store, aclosing(store.export(damaged.append)) as rows:
            async for row in rows:
                sys.stdout.write(json_text(row, indent=None) + "\n")
                step(progress)
    sys.stdout.flush()
    return damaged


@app.command(name="copy", epilog=example("copy system/context.db postgresql://app@db.example.org/agents"))
def copy_(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Record to copy: a file or address.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Record that receives the copy: a file or address.")],
    json: Json = False,
) -> None:
    """Copy a record to another file or database, and verify the copy. Run it again to resume or update the copy."""
    old, new = parse_place(source), parse_place(target)
    if old == new:
        raise SettingsError(f"{old}: source and target are the same; give two places")
    result = asyncio.run(_copy(old, new))
    added, present = sum(result.copied.values()), sum(result.present.values())
    report = f"{new}: {plural(added, 'row')} copied, {present:,} there already, " + (
        plural(len(result.defects), "defect") if result.defects else "sound"
    )
    facts = {"source": str(old), "target": str(new), **asdict(result)}
    print_result(facts, "\n".join([report, *(f"  {defect}" for defect in result.defects)]), json=json)
    if result.defects:
        raise typer.Exit(1)


async def _copy(source: Place, target: Place) -> CopyResult:
    with progress_bar(f"copying {source}") as progress:
        async with open_record(source) as old, open_record(target, "", writing=True) as new:
            return await copy_record(old, new, lambda table: step(progress))
