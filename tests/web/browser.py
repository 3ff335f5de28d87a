"""A real server on loopback and a real browser to look at it."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from pydantic_ai import Agent

from context_compiler.chat.demo_model import ScriptedModel
from context_compiler.errors import SettingsError
from context_compiler.web.app import create_app
from context_compiler.web.chats import ChatDefaults, Chats

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

ARGUMENTS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --renderer-process-limit=1"
).split()

PATIENCE = 240_000
"""Milliseconds that a page may take on a busy machine before a test gives up."""


@contextmanager
def browser() -> Iterator[Any]:
    """A headless Chromium; the test is skipped without one."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium on the path")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, timeout=PATIENCE)
        try:
            yield chromium
        finally:
            chromium.close()


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """A server for an application in a thread of its own; its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=10))
    app.state.is_ending = lambda: server.should_exit
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def chat_app(folder: Path, *, delay: float = 0.0, budget: int = 2_000, model: ScriptedModel | None = None) -> Any:
    """The application over a new record in a folder, with chats that answer from a script."""
    db = folder / "context.db"

    def agent_of(name: str) -> Agent[None, str]:
        if not name.startswith("scripted"):
            raise SettingsError(f"model {name!r}: there is no such model")
        return Agent(model or ScriptedModel(delay=delay), name="chat")

    models = ("scripted:0", "acme:one")
    defaults = ChatDefaults(model="scripted", models=models, db=db, system=folder, budget=budget)
    return create_app(db, system=folder, chats=Chats(agent_of, defaults))
