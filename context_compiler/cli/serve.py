"""`serve`: browse the record, and chat, in a web browser."""

from __future__ import annotations

import gc
import os
import secrets
import socket
import webbrowser
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from context_compiler.cli.chat import MODEL as CHAT_MODEL
from context_compiler.cli.options import DB, SYSTEM, Db, Json, Owner, System, Vault, example, group
from context_compiler.cli.records import with_record
from context_compiler.cli.run_options import RUNS, Runs
from context_compiler.cli.screen import Screen, print_note
from context_compiler.cli.text import json_text
from context_compiler.cli.view_options import parse_budget, with_origin
from context_compiler.errors import SettingsError
from context_compiler.paths import install_command, vault_of
from context_compiler.record.browse import newest_request
from context_compiler.record.files import other_records
from context_compiler.settings import variable

app = group("Browse the record in a web browser.")

HOST = "127.0.0.1"
GRACE = 3
"""Seconds that open pages have to finish when the server stops."""

INSTEAD = (
    ", and start the server again; or start it with `context-compiler serve --chat --model scripted`,"
    " which needs no key"
)
"""End of the message of a chat whose model cannot be used."""

NEEDS = ("starlette", "uvicorn")
"""Packages that the pages need, from the extra `web`."""


@app.command("serve", epilog=example("serve --db system/context.db --open"))
def serve(
    ctx: typer.Context,
    db: Db = DB,
    owner: Owner = None,
    vault: Vault = None,
    system: System = SYSTEM,
    host: Annotated[str, typer.Option("--host", help="Address to listen on; all but loopback require a token.")] = HOST,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 picks a free one.")] = 0,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            envvar="CONTEXT_COMPILER_CHAT_MODEL",
            help="Model of the chat; `scripted` and `local` need no key.",
        ),
    ] = CHAT_MODEL,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            "-b",
            envvar="CONTEXT_COMPILER_BUDGET",
            callback=with_origin,
            help="Budget of an Endless chat: tokens per request, a share of the model's window, or '$0.02'.",
        ),
    ] = None,
    chat: Annotated[
        bool,
        typer.Option("--chat", help="Serve a chat too, as with --model; it writes to the record. Not with --owner."),
    ] = False,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    find: Annotated[
        str, typer.Option("--find", metavar="WORDS", help="Begin at the requests that had these words, or lost them.")
    ] = "",
    runs: Runs = RUNS,
    json: Json = False,
) -> None:
    """Serve the inspector of a record, and with --chat a chat, on this machine until Ctrl-C."""
    if missing := missing_for_serve():
        raise SettingsError(f"{' and '.join(missing)} not installed: {install_command('web')}")
    if not chat and isinstance(db, Path):
        _check(db, owner)
    chat = chat or (not owner and getattr(ctx.get_parameter_source("model"), "name", "") == "COMMANDLINE")
    vault = vault_of(vault, owner)
    if chat:
        _prepare_chats(db)
    listener = _listen(host, port)
    local = host in ("127.0.0.1", "localhost", "::1")
    token = None if local else secrets.token_urlsafe(24)
    url = _url(host, listener.getsockname()[1], token, find)
    if json:
        Screen().raw(json_text({"url": url, "db": str(db)}, indent=None))
    else:
        Screen().line(url)
    if open_:
        webbrowser.open(url)
    amount = None if budget is None else parse_budget(budget)
    if chat and owner:
        raise SettingsError("--chat: a chat has no owner; leave out --owner")
    chats = _chats(model, db=db, system=system, vault=vault, budget=amount)
    names = () if local else (host, socket.gethostname(), *_own_addresses())
    create_app = import_module("context_compiler.web.app").create_app
    _run(
        create_app(
            db,
            system=system,
            vault=vault,
            hosts=names,
            token=token,
            runs=runs,
            chats=chats if chat else None,
            model=None if owner else chats.model,
            owner=owner,
        ),
        listener,
    )


def _url(host: str, port: int, token: str | None, find: str) -> str:
    """Address of the pages; a wildcard address becomes the name of this machine."""
    wildcard = host in ("0.0.0.0", "::")
    shown = socket.gethostname() if wildcard else f"[{host}]" if ":" in host else host
    query = urlencode({name: value for name, value in (("token", token), ("q", find)) if value})
    return f"http://{shown}:{port}/{'find' if find else ''}{f'?{query}' if query else ''}"


def missing_for_serve() -> list[str]:
    """Return the packages that `serve` needs but that are not installed."""
    return [name for name in NEEDS if find_spec(name) is None]


def _prepare_chats(db: Path | str) -> None:
    """Create the record, so that the pages beside a chat can be read at once.

    Raises:
        SettingsError: a setting says that less than everything is recorded.
    """
    import_module("context_compiler.chat.session").check_recording(os.environ.get(variable("record")) or "full")
    if isinstance(db, Path):
        with_record(lambda store: store.sessions(), db, "", writing=True)


def _chats(model: str, **settings: Any) -> Any:
    """Build the chats, with the models that the command line knows, including `scripted`."""
    web = import_module("context_compiler.web.chats")
    inputs = import_module("context_compiler.cli.inputs")
    os.environ.setdefault("PYDANTIC_AI_NO_BANNER", "1")

    def agent_of(name: str) -> Any:
        return import_module("pydantic_ai").Agent(inputs.chat_model(name, instead=INSTEAD), name="chat")

    return web.Chats(agent_of, web.ChatDefaults(model=model, models=inputs.installed_models(), **settings))


def _run(application: Any, listener: socket.socket) -> None:
    uvicorn: Any = import_module("uvicorn")
    config = uvicorn.Config(
        application, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=GRACE
    )
    server = uvicorn.Server(config)
    application.state.is_ending = lambda: server.should_exit
    gc.freeze()  # so that full collections, several per large page, do not traverse all imported code
    with suppress(KeyboardInterrupt):  # Ctrl-C is how it ends; uvicorn raises it again after an orderly stop
        server.run(sockets=[listener])


def _check(db: Path, owner: str | None) -> None:
    """Print a note if there is no record yet.

    Raises:
        StoreError: the file is no record.
    """
    if not db.exists():
        near = f" (there is {' and '.join(others)})" if (others := other_records(db)) else ""
        print_note(f"{db}: there is no record here{near}; its pages are empty until something is recorded")
        return
    with_record(lambda store: store.perform(newest_request), db, owner)


def _listen(host: str, port: int) -> socket.socket:
    """Open a listening socket.

    Raises:
        SettingsError: the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    # Without this, the system delays each streamed piece until the browser has acknowledged the previous one.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise SettingsError(f"{host}:{port}: {error.strerror or error}; give another --port or --host") from None
    return listener


def _own_addresses() -> list[str]:
    """Addresses by which other machines may reach this one."""
    try:
        return [str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None)]
    except OSError:
        return []
