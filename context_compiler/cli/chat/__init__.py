"""`chat`: talk with a model; everything said is kept, and with `--endless` what is sent stays within a budget."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from importlib import import_module
from typing import Annotated, Any

import typer

from context_compiler.cli.chat.prompt import Interrupted, Keyboard, Leave
from context_compiler.cli.options import DB, SYSTEM, Db, System, Vault, amount, example, group
from context_compiler.cli.screen import Screen

MODEL = "anthropic:claude-sonnet-5-5"
DRAWN = 1.0
"""Seconds after which a prompt counts as drawn: a terminal that can do nothing does not tell."""

app = group("Talk with a model.")
log = logging.getLogger("context_compiler")


@app.command("chat", epilog=example("chat --model scripted --endless --budget 2000"))
def chat(
    endless: Annotated[bool, typer.Option("--endless", help="Send what fits instead of the whole history.")] = False,
    template: Annotated[
        str, typer.Option("--template", "-t", envvar="CONTEXT_COMPILER_TEMPLATE", help="What views are written with.")
    ] = "chat_compiler",
    model: Annotated[
        str,
        typer.Option(
            "--model", "-m", envvar="CONTEXT_COMPILER_CHAT_MODEL", help="Who answers; `scripted` needs no key."
        ),
    ] = MODEL,
    session: Annotated[
        str, typer.Option("--session", "-s", help="Which conversation: a new one, or one to go on with.")
    ] = "main",
    budget: Annotated[
        str | None, typer.Option("--budget", "-b", help="Endless: tokens of a request, or a share of the window.")
    ] = None,
    compiler: Annotated[
        str | None, typer.Option("--compiler", help="Who writes summaries: a model, or `none`; default: who answers.")
    ] = None,
    every_turn: Annotated[bool, typer.Option("--every-turn", help="Compile in every turn.")] = False,
    vault: Vault = None,
    system: System = SYSTEM,
    db: Db = DB,
    json: Annotated[bool, typer.Option("--json", help="Print every answer as a JSON object on one line.")] = False,
) -> None:
    """Talk with a model. Everything said is kept in markdown and on the record; the same --session goes on."""
    options: dict[str, Any] = {
        "session": session,
        "model": model,
        "compiler": compiler,
        "vault": vault,
        "system": system,
        "endless": endless,
        "template": template,
        "store": db,
        "budget": None if budget is None else amount(budget),
        "every_turn": every_turn,
        "json": json,
    }
    level = log.level
    log.setLevel(logging.ERROR)  # what goes wrong is said once, by the chat itself
    try:
        typed = sys.stdin.isatty() and sys.stdout.isatty() and not json
        failed = asyncio.run(_on_terminal(options) if typed else _through_pipe(options))
    finally:
        log.setLevel(level)
    if failed:
        raise typer.Exit(1)


def _made(options: dict[str, Any]) -> Any:
    return import_module("context_compiler.cli.chat.conversation").Conversation(**options)


async def _through_pipe(options: dict[str, Any]) -> bool:
    conversation = _made(options)
    try:
        await conversation.through_pipe()
    finally:
        await conversation.chat.close()
    return conversation.failed


async def _on_terminal(options: dict[str, Any]) -> bool:
    """The prompt is there at once; what it takes to answer is fetched while somebody types."""
    screen = Screen()
    drawn = asyncio.Event()
    opening = asyncio.create_task(_opened(options, drawn))
    keyboard = Keyboard(lambda: _status(opening, options), drawn.set)
    opening.add_done_callback(lambda done: keyboard.remember(_prompts(done)))
    if sys.platform != "win32":
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: _interrupted(opening))
    try:
        while True:
            try:
                line = await _typed(keyboard, opening)
                conversation, _ = await opening
                with keyboard.silent():
                    await conversation.hear(line)
            except Interrupted:
                screen.line(("Ctrl-D or /quit leaves", "dim"))
            except (EOFError, Leave):
                return False
    finally:
        await _closed(opening)


async def _opened(options: dict[str, Any], drawn: asyncio.Event) -> tuple[Any, list[str]]:
    await asyncio.wait({waiting := asyncio.create_task(drawn.wait())}, timeout=DRAWN)
    waiting.cancel()
    gc.disable()  # a long history is a million objects, none of which is garbage
    try:
        conversation = await asyncio.to_thread(_made, options)
        return conversation, await conversation.open()
    finally:
        gc.freeze()
        gc.enable()


async def _typed(keyboard: Keyboard, opening: asyncio.Task[tuple[Any, list[str]]]) -> str:
    """A line; what keeps the chat from being opened is raised as soon as it is known."""
    typing = asyncio.create_task(keyboard.line())
    try:
        if not opening.done():
            await asyncio.wait({typing, opening}, return_when=asyncio.FIRST_COMPLETED)
        if opening.done() and opening.exception() is not None:
            typing.cancel()
            await asyncio.wait({typing})
            opening.result()
        return await typing
    finally:
        typing.cancel()


def _prompts(opening: asyncio.Task[tuple[Any, list[str]]]) -> list[str]:
    """What was said before; nothing where the chat could not be opened."""
    return [] if opening.cancelled() or opening.exception() is not None else opening.result()[1]


def _status(opening: asyncio.Task[tuple[Any, list[str]]], options: dict[str, Any]) -> str:
    if opening.done() and not opening.cancelled() and opening.exception() is None:
        return opening.result()[0].status
    return f"{options['session']} · opening …"


def _interrupted(opening: asyncio.Task[tuple[Any, list[str]]]) -> None:
    """Ctrl-C while an answer comes; at the prompt it is a key like any other."""
    if opening.done() and not opening.cancelled() and opening.exception() is None:
        opening.result()[0].interrupt()


async def _closed(opening: asyncio.Task[tuple[Any, list[str]]]) -> None:
    opening.cancel()
    await asyncio.wait({opening})
    if not opening.cancelled() and opening.exception() is None:
        await opening.result()[0].chat.close()
