"""`import`: add conversations from other tools to the record, to list, show and replay them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from context_compiler.cli.folders import SECONDS, find_conversations, last_moment, measure, print_found
from context_compiler.cli.inputs import print_notes, read_conversations, select_conversation
from context_compiler.cli.options import DB, AsOwner, Db, Json, Place, example, group
from context_compiler.cli.records import open_record, print_look
from context_compiler.cli.screen import Column, Screen, progress_bar, step
from context_compiler.cli.show import read_history
from context_compiler.cli.text import json_text, number, plural
from context_compiler.cli.view_options import FormatName, Select, SessionName, TranscriptPath
from context_compiler.messages.history import History
from context_compiler.messages.importers import Transcript
from context_compiler.messages.turns import outline, pair
from context_compiler.record.totals import IMPORTED
from context_compiler.record.values import Entry, Record, now

app = group("Import a transcript.")

COLUMNS = (
    Column("session", style="bold", names=True),
    Column("messages", right=True),
    Column("tokens", right=True),
    Column("view", right=True),
    Column("state"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportResult:
    """One imported conversation."""

    session: str
    view: int | None
    messages: int
    tokens: int
    format: str
    state: str
    """`new`, `changed`, or `known`."""


@app.command("import", epilog=example("import chats.json --db system/context.db"))
def import_(
    transcript: TranscriptPath,
    db: Db = DB,
    owner: AsOwner = None,
    select: Select = None,
    session: SessionName = None,
    format_: FormatName = None,
    every: Annotated[bool, typer.Option("--all", help="Import all that a folder contains.")] = False,
    seconds: Annotated[int, typer.Option("--seconds", min=0, help="Seconds in which a folder is measured.")] = SECONDS,
    json: Json = False,
) -> None:
    """Import all conversations of a transcript into the record, or the one that --select names.

    Of a folder, such as ~/.claude/projects, show the conversations and what views would have saved; --all imports them.
    """
    folder, started, screen = Path(transcript), monotonic(), Screen()
    inside = find_conversations(folder, format_) if transcript != "-" and folder.is_dir() else None
    if inside is not None and not every:
        measured = measure(inside.conversations, folder, seconds, started=started)
        if json:
            screen.raw(json_text({"folder": str(folder), "conversations": measured, "skipped": inside.skipped}))
        else:
            print_found(screen, measured, folder, db, seconds)
        inside.print_skipped()
        return
    inner = _with_different_names(inside.conversations, folder) if inside is not None else []
    conversations = inner[::-1] or read_conversations(transcript, format_)
    if select is not None or session is not None:
        conversations = [select_conversation(conversations, select, file=transcript)]
    results = asyncio.run(_import_all(conversations, db, owner or "", session))
    if inside is not None:
        inside.print_skipped()
    if json:
        screen.raw(json_text({"db": str(db), "sessions": results}))
        return
    rows = [
        (result.session, number(result.messages), number(result.tokens), result.view, result.state)
        for result in results
    ]
    screen.table(COLUMNS, rows)
    screen.line(f"{plural(len(results), 'conversation')} in {db}")
    print_look(screen, db)


def _with_different_names(conversations: Sequence[tuple[Path, Transcript]], folder: Path) -> list[Transcript]:
    """Return the conversations of a folder; a name that several of them have is replaced by the path of the file."""
    names = [transcript.name for _, transcript in conversations]
    for with_suffix in (False, True):
        counts = Counter(names)
        names = [
            _path_name(file, folder, transcript.name, with_suffix) if counts[name] > 1 else name
            for (file, transcript), name in zip(conversations, names, strict=True)
        ]
    return [replace(transcript, name=name) for (_, transcript), name in zip(conversations, names, strict=True)]


def _path_name(file: Path, folder: Path, name: str, with_suffix: bool) -> str:
    """Name a conversation by the path of its file below a folder, and by its id or title in the file if it has one."""
    path = file.relative_to(folder)
    begins_with_stem = f"{name}#".startswith(f"{path.stem}#")
    in_file = name.removeprefix(path.stem) if begins_with_stem else f"#{name}"
    return (path if with_suffix else path.with_suffix("")).as_posix() + in_file


async def _import_all(
    transcripts: Sequence[Transcript], db: Place, owner: str, session: str | None
) -> list[ImportResult]:
    results: list[ImportResult] = []
    with progress_bar("importing", len(transcripts)) as progress:
        async with open_record(db, owner, writing=True) as store:
            tips = {info.session_id: info.raw_tip for info in await store.sessions()}
            for transcript in transcripts:
                history = read_history(transcript.messages)
                name = session or transcript.name
                record = import_record(history, name, last_moment(transcript) or now())
                entry = Entry(record=record, raw=history.chain, view=history.chain)
                record = await store.save(entry)
                same = tips.get(name) in (history.chain.tip, history.tip)
                state = "new" if name not in tips else "known" if same else "changed"
                tips[name] = history.chain.tip
                results.append(
                    ImportResult(
                        session=name,
                        view=record.id,
                        messages=len(history),
                        tokens=history.tokens,
                        format=transcript.format,
                        state=state,
                    )
                )
                step(progress)
    for transcript in transcripts:
        print_notes(transcript)
    return results


def import_record(history: History, session: str, when: datetime) -> Record:
    """Build the record of an import, which has the whole history and sent nothing, dated `when`."""
    turns = outline(history, pair(history)).turns
    return Record(
        session_id=session,
        vault_name="",
        turn_index=max(0, turns[-1].index) if turns else 0,
        run_id=None,
        request_index=0,
        raw_tip=history.chain.tip,
        view_tip=history.chain.tip,
        status=f"{IMPORTED}; nothing was sent; run_id, budget, request_hash: no run",
        error=None,
        budget=None,
        tokens_raw=history.tokens,
        tokens_sent=0,
        tokens_exact=0,
        ratio=1.0,
        ledger={"tokens": {"messages": history.tokens}},
        request_hash=None,
        latency_ms=0.0,
        created_at=when,
    )
