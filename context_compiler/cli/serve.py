"""`serve`: look at the record in the browser."""

from __future__ import annotations

import secrets
import socket
import webbrowser
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from context_compiler.cli.options import DB, SYSTEM, Db, Json, System, Vault, example, group
from context_compiler.cli.screen import Screen
from context_compiler.cli.text import json_text
from context_compiler.errors import SettingsError

app = group("Look at the record in the browser.")

HOST = "127.0.0.1"
NEEDS = ("starlette", "uvicorn")


@app.command("serve", epilog=example("serve --db system/context.db --open"))
def serve(
    db: Db = DB,
    vault: Vault = None,
    system: System = SYSTEM,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; anything but loopback asks for a token.")
    ] = HOST,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 takes a free one.")] = 0,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    json: Json = False,
) -> None:
    """Serve the inspector of a record on this machine, until Ctrl-C. The record is only read."""
    if missing := [name for name in NEEDS if find_spec(name) is None]:
        raise SettingsError(f'{" and ".join(missing)} not installed: pip install "pydantic-ai-context-compiler[web]"')
    listener = _listen(host, port)
    token = None if _is_loopback(host) else secrets.token_urlsafe(24)
    number = listener.getsockname()[1]
    address = f"http://{_shown(host)}:{number}/"
    url = f"{address}?token={token}" if token else address
    if json:
        Screen().raw(json_text({"url": url, "db": str(db)}, indent=None))
    else:
        Screen().line(url)
    if open_:
        webbrowser.open(url)
    _run(_application(db, system=system, vault=vault, host=host, token=token), listener)


def _application(db: Path, *, system: Path, vault: Path | None, host: str, token: str | None) -> Any:
    names = () if _is_loopback(host) else (host, socket.gethostname(), *_own_addresses())
    create_app = import_module("context_compiler.web.app").create_app
    return create_app(db, system=system, vault=vault, hosts=names, token=token)


def _run(application: Any, listener: socket.socket) -> None:
    uvicorn: Any = import_module("uvicorn")
    config = uvicorn.Config(application, log_level="warning", access_log=False, server_header=False, lifespan="off")
    uvicorn.Server(config).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        SettingsError: the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise SettingsError(f"{host}:{port}: {error.strerror or error}; give another --port or --host") from None
    return listener


def _is_loopback(host: str) -> bool:
    return host in ("127.0.0.1", "localhost", "::1")


def _own_addresses() -> list[str]:
    """Addresses of this machine, by which others may call it."""
    try:
        return [str(found[4][0]) for found in socket.getaddrinfo(socket.gethostname(), None)]
    except OSError:
        return []


def _shown(host: str) -> str:
    """The host as it is written in an address: any address is shown as this machine's name."""
    if host in ("0.0.0.0", "::"):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host
