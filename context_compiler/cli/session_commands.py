"""`sessions delete`, and what steers a conversation: compiles, pins and rules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from context_compiler.chat.transcript import Transcript, transcript_folders
from context_compiler.cli.inputs import chat_model
from context_compiler.cli.options import (
    DB,
    SYSTEM,
    Db,
    Json,
    Owner,
    Place,
    SessionId,
    System,
    Vault,
    Yes,
    example,
    group,
)
from context_compiler.cli.records import find_session, with_record
from context_compiler.cli.screen import Screen, confirm, print_note, print_result
from context_compiler.cli.steering import print_outcome, print_pins, print_rules
from context_compiler.cli.text import json_text, number, one_line, plural
from context_compiler.cli.view_options import ModelName, parse_amount
from context_compiler.errors import StoreError
from context_compiler.middleware.capability import ContextCompiler
from context_compiler.middleware.manual import CompileResult
from context_compiler.record.store import SQLStore
from context_compiler.record.values import SessionInfo

app = group("Steer and delete recorded conversations.")

Message = Annotated[
    str, typer.Argument(metavar="MESSAGE", help="`turn 3`, `m12` as in `sessions show`, or words from the message.")
]

T = TypeVar("T")


@app.command("delete", epilog=example("sessions delete demo --yes"))
def delete(
    session: SessionId,
    yes: Yes = False,
    db: Db = DB,
    owner: Owner = None,
    vault: Vault = None,
    system: System = SYSTEM,
    json: Json = False,
) -> None:
    """Delete a conversation from the record; the transcript of a chat stays, and its path is printed."""
    infos, messages = with_record(lambda store: _load_size(store, session), db, owner)
    if not yes:
        requests = plural(sum(info.requests for info in infos), "request")
        content = f"{requests} and {'damaged messages' if messages is None else plural(messages, 'message')}"
        confirm(f"Delete session {infos[0].session_id!r} with {content} from {db}?", "nothing was deleted")
    session = infos[0].session_id
    removed = with_record(lambda store: store.delete(session), db, infos[0].owner, writing=True)
    report = f"{db}: session {one_line(session)} deleted, {plural(removed, 'request')} removed"
    left = [str(path) for path in _find_transcripts(session, infos[0].owner, db, vault, system)]
    print_result({"db": str(db), "session": session, "removed": removed, "transcripts": left}, report, json=json)
    for path in left:
        print_note(f"{path}: the transcript of this chat remains; delete it too, or the next chat loads it again")


@app.command("compact", epilog=example("sessions compact demo --focus 'the open tickets' --preview"))
def compact(
    session: SessionId,
    focus: Annotated[str, typer.Option("--focus", help="Subject that the summary and the quotes must preserve.")] = "",
    start: Annotated[
        str | None, typer.Option("--from", help="First turn to summarize, such as 4; earlier turns are kept.")
    ] = None,
    preview: Annotated[
        bool, typer.Option("--preview", help="Only show what would be kept, dropped and spent; ask no model.")
    ] = False,
    model: ModelName = "none",
    budget: Annotated[
        str | None, typer.Option("--budget", "-b", help="Tokens, or a share; default: that of the newest request.")
    ] = None,
    template: Annotated[
        str, typer.Option("--template", "-t", envvar="CONTEXT_COMPILER_TEMPLATE", help="Template of the summary.")
    ] = "chat_compiler",
    vault: Vault = None,
    system: System = SYSTEM,
    db: Db = DB,
    owner: Owner = None,
    json: Json = False,
) -> None:
    """Compile a conversation now, regardless of the thresholds; its next run starts with the result."""
    arguments: dict[str, Any] = {
        "template": template,
        "model": model if model == "none" else chat_model(model),
        "budget": None if budget is None else parse_amount(budget),
        "vault": vault,
        "system": system,
    }

    async def work(compiler: ContextCompiler, name: str) -> CompileResult:
        return await (compiler.preview if preview else compiler.compile_now)(name, focus, start=start)

    _print_outcome(_steer(db, owner, session, work, arguments), json=json)


@app.command("undo", epilog=example("sessions undo demo"))
def undo(session: SessionId, db: Db = DB, owner: Owner = None, json: Json = False) -> None:
    """Undo the last compile of a conversation: restore the view before it, and never use its summary again."""
    _print_outcome(_steer(db, owner, session, lambda compiler, name: compiler.undo_compile(name)), json=json)


@app.command("pin", epilog=example("sessions pin demo 'turn 3'"))
def pin(session: SessionId, message: Message, db: Db = DB, owner: Owner = None, json: Json = False) -> None:
    """Keep a message in every view of a conversation, word for word."""
    pinned = _steer(db, owner, session, lambda compiler, name: compiler.pin(name, message))
    report = f"turn {pinned.turn} stays in every view, {number(pinned.tokens)} tokens: {one_line(pinned.text)}"
    print_result(pinned.to_data(), report, json=json)


@app.command("unpin", epilog=example("sessions unpin demo 'turn 3'"))
def unpin(session: SessionId, message: Message, db: Db = DB, owner: Owner = None, json: Json = False) -> None:
    """Unpin a message: from the next compile on, views may leave it out again."""
    unpinned = _steer(db, owner, session, lambda compiler, name: compiler.unpin(name, message))
    print_result(unpinned.to_data(), f"turn {unpinned.turn} is no longer pinned: {one_line(unpinned.text)}", json=json)


@app.command("pins", epilog=example("sessions pins demo"))
def pins(session: SessionId, db: Db = DB, owner: Owner = None, json: Json = False) -> None:
    """List the pinned messages of a conversation."""
    pinned = _steer(db, owner, session, lambda compiler, name: compiler.pins(name), writing=False)
    print_pins(pinned, json=json, db=str(db), session=session)


@app.command("rules", epilog=example("sessions rules demo"))
def rules(session: SessionId, db: Db = DB, owner: Owner = None, json: Json = False) -> None:
    """List the rules of the user that every request of a conversation contains."""
    standing = _steer(db, owner, session, lambda compiler, name: compiler.standing_rules(name), writing=False)
    print_rules(standing, json=json, db=str(db), session=session)


@app.command("dismiss", epilog=example("sessions dismiss demo 'never deploy'"))
def dismiss(
    session: SessionId,
    rule: Annotated[str, typer.Argument(help="Words of the rule.")],
    db: Db = DB,
    owner: Owner = None,
    json: Json = False,
) -> None:
    """Dismiss a rule of the user: requests no longer list it, unless the user gives it again."""
    dismissed = _steer(db, owner, session, lambda compiler, name: compiler.dismiss_rule(name, rule))
    print_result(asdict(dismissed), f"no longer a rule: {one_line(dismissed.text)}", json=json)


def _steer(
    db: Place,
    owner: str | None,
    session: str,
    work: Callable[[ContextCompiler, str], Awaitable[T]],
    arguments: Mapping[str, Any] | None = None,
    *,
    writing: bool = True,
) -> T:
    """Run `work` with a compiler for a recorded conversation; if several vaults have it, the most recently used one."""

    async def steer(every: SQLStore) -> T:
        info = (await find_session(every, session))[0]
        settings: dict[str, Any] = {"model": "none", "system": None, **(arguments or {})}
        store = every.scoped(info.owner)
        compiler = ContextCompiler(store=store, owner=info.owner, vault_name=info.vault_name, **settings)
        return await work(compiler, info.session_id)

    return with_record(steer, db, owner, writing=writing)


def _print_outcome(result: CompileResult, *, json: bool) -> None:
    screen = Screen()
    if json:
        screen.raw(json_text({**asdict(result), "saved": result.saved}))
    else:
        print_outcome(screen, result, rest="--json has all of it")
    if not result.done:
        raise typer.Exit(1)


def _find_transcripts(session: str, owner: str, db: Place, vault: Path | None, system: Path) -> list[Path]:
    """Find the transcripts of a session in all folders where a chat may have written them."""
    if not session.strip():
        return []
    paths = (Transcript(folder, session).path for folder in transcript_folders(db, vault, system, owner))
    return list({path.resolve(): path for path in paths if path.is_file()}.values())


async def _load_size(every: SQLStore, session: str) -> tuple[list[SessionInfo], int | None]:
    """Find a session, and count its messages; None if they are too damaged to be read."""
    infos = await find_session(every, session)
    try:
        return infos, len(await every.scoped(infos[0].owner).transcript(infos[0].session_id))
    except StoreError:
        return infos, None
