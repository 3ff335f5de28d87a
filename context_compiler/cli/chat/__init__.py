"""`chat`: chat with a model; the conversation is stored in full, and `--endless` keeps requests within a budget."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from importlib import import_module
from typing import Annotated, Any

import typer

from context_compiler.cli.chat.prompt import Interrupted, Keyboard, Leave, quiet_terminal
from context_compiler.cli.options import DB, SYSTEM, AsOwner, Db, System, Vault, example, group
from context_compiler.cli.screen import Screen
from context_compiler.cli.text import one_line
from context_compiler.cli.view_options import parse_budget, with_origin
from context_compiler.settings import variable

MODEL = "anthropic:claude-sonnet-5-5"
DRAWN = 1.0
"""Seconds after which a prompt counts as drawn, because dumb terminals do not report it."""

Opening = asyncio.Task[tuple[Any, list[str]]]
"""Task that loads the conversation and its user's earlier prompts."""

app = group("Chat with a model.")
log = logging.getLogger("context_compiler")


@app.command("chat", epilog=example("chat --model scripted --endless --budget 2000"))
def chat(
    endless: Annotated[bool, typer.Option("--endless", help="Send a view instead of the whole history.")] = False,
    template: Annotated[
        str, typer.Option("--template", "-t", envvar="CONTEXT_COMPILER_TEMPLATE", help="Template of the views.")
    ] = "chat_compiler",
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            envvar="CONTEXT_COMPILER_CHAT_MODEL",
            help="Model that answers; `scripted` and `local` need no key.",
        ),
    ] = MODEL,
    session: Annotated[str, typer.Option("--session", "-s", help="Name of the conversation, new or stored.")] = "main",
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            "-b",
            envvar="CONTEXT_COMPILER_BUDGET",
            callback=with_origin,
            help="Tokens per request in Endless mode, a share of the model's window, or '$0.02'.",
        ),
    ] = None,
    compiler: Annotated[
        str | None,
        typer.Option(
            "--compiler",
            envvar="CONTEXT_COMPILER_MODEL",
            help="Model that writes summaries, or `none`; default: --model.",
        ),
    ] = None,
    every_turn: Annotated[
        bool, typer.Option("--every-turn", envvar="CONTEXT_COMPILER_EVERY_TURN", help="Compile in every turn.")
    ] = False,
    background: Annotated[
        bool,
        typer.Option(
            "--background",
            envvar="CONTEXT_COMPILER_BACKGROUND",
            help="Compile while the conversation continues, so that fewer turns have to wait.",
        ),
    ] = False,
    compile_spend_limit: Annotated[
        str | None,
        typer.Option(
            "--compile-spend-limit",
            envvar="CONTEXT_COMPILER_COMPILE_SPEND_LIMIT",
            help="Maximum cost of all summaries of this conversation, such as '$0.50'.",
        ),
    ] = None,
    vault: Vault = None,
    system: System = SYSTEM,
    db: Db = DB,
    owner: AsOwner = None,
    json: Annotated[bool, typer.Option("--json", help="Print each answer as a JSON object on one line.")] = False,
) -> None:
    """Chat with a model. The conversation is stored as markdown and in the record; repeat --session to continue it."""
    options: dict[str, Any] = {
        "session": session,
        "model": model,
        "compiler": compiler,
        "vault": vault,
        "system": system,
        "endless": endless,
        "template": template,
        "store": db,
        "owner": owner,
        "budget": None if budget is None else parse_budget(budget),
        "every_turn": every_turn,
        "background": background,
        "compile_spend_limit": compile_spend_limit,
        "record": os.environ.get(variable("record")) or "full",  # no option, but a settings file may have it
        "json": json,
    }
    level = log.level
    log.setLevel(logging.ERROR)  # the chat itself reports errors, once each
    try:
        interactive = sys.stdin.isatty() and sys.stdout.isatty() and not json
        failed = asyncio.run(_run_terminal(options) if interactive else _run_pipe(options))
    finally:
        log.setLevel(level)
    if failed:
        raise typer.Exit(1)


def _build(options: dict[str, Any]) -> Any:
    return import_module("context_compiler.cli.chat.conversation").Conversation(**options)


async def _run_pipe(options: dict[str, Any]) -> bool:
    conversation = _build(options)
    try:
        await conversation.run_pipe()
    finally:
        await conversation.chat.close()
    return conversation.failed


async def _run_terminal(options: dict[str, Any]) -> bool:
    """Show the prompt at once; load the host and the history while the user types."""
    drawn, pressed = asyncio.Event(), asyncio.Event()
    opening = asyncio.create_task(_open(options, drawn))
    if sys.platform != "win32":
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: _interrupt(opening, pressed))
    with quiet_terminal():
        return await _converse(options, opening, drawn, pressed)


async def _converse(options: dict[str, Any], opening: Opening, drawn: asyncio.Event, pressed: asyncio.Event) -> bool:
    """Read and handle lines until the user leaves.

    Args:
        options: Arguments of the conversation.
        opening: Loads the conversation.
        drawn: Set once the prompt has been drawn.
        pressed: Set by Ctrl-C outside the prompt while nothing is answered.
    """
    screen = Screen()
    _greet(screen, options)
    keyboard = Keyboard(lambda: _status_line(opening, options), drawn.set)
    opening.add_done_callback(lambda done: _on_opened(done, keyboard))
    try:
        while True:
            try:
                line = await _read_line(keyboard, opening, pressed)
                await _wait_for_first({opening}, pressed)
                with quiet_terminal():  # again, because a shell that suspends the chat sets its own modes
                    await opening.result()[0].handle_line(line)
            except Interrupted:
                screen.line(("Ctrl-D or /quit leaves", "dim"))
            except (EOFError, Leave):
                return False
    finally:
        await _close(opening)


async def _open(options: dict[str, Any], drawn: asyncio.Event) -> tuple[Any, list[str]]:
    await asyncio.wait({waiting := asyncio.create_task(drawn.wait())}, timeout=DRAWN)
    waiting.cancel()
    gc.disable()  # a long history creates a million objects, none of them garbage
    try:
        conversation = await asyncio.to_thread(_build, options)
        return conversation, await conversation.open()
    finally:
        gc.freeze()
        gc.enable()


async def _read_line(keyboard: Keyboard, opening: Opening, pressed: asyncio.Event) -> str:
    """Read a line; if the chat cannot be opened, raise at once."""
    typing = asyncio.create_task(keyboard.read_line())
    try:
        if not opening.done():
            await _wait_for_first({typing, opening}, pressed)
        if opening.done():
            opening.result()
        await _wait_for_first({typing}, pressed)
        return typing.result()
    finally:
        typing.cancel()
        await asyncio.gather(typing, return_exceptions=True)  # the prompt leaves the terminal as it found it


async def _wait_for_first(tasks: set[asyncio.Task[Any]], pressed: asyncio.Event) -> None:
    """Wait until one of several tasks is done.

    Raises:
        Interrupted: Ctrl-C was pressed, now or since the last wait.
    """
    pressing = asyncio.create_task(pressed.wait())
    try:
        await asyncio.wait({pressing, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        pressing.cancel()
    if pressed.is_set():
        pressed.clear()
        raise Interrupted


def _greet(screen: Screen, options: dict[str, Any]) -> None:
    budget = f" within {options['budget']} tokens" if isinstance(options["budget"], int) else ""
    mode = f"each request is a view{budget}" if options["endless"] else "each request is the whole history"
    screen.line((one_line(options["session"], 40), "bold"), f", a chat with {one_line(options['model'], 60)}: {mode}")
    screen.line(("/help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves", "dim"))


def _on_opened(opening: Opening, keyboard: Keyboard) -> None:
    """Print the last exchange of a resumed conversation, and add its prompts to the keyboard's history.

    If the chat could not be opened, the error is printed in place of the prompt.
    """
    if opening.cancelled() or opening.exception() is not None:
        keyboard.erase()
        return
    conversation, prompts = opening.result()
    conversation.print_resumed()
    keyboard.remember(prompts)


def _status_line(opening: Opening, options: dict[str, Any]) -> str:
    if opening.done() and not opening.cancelled() and opening.exception() is None:
        return opening.result()[0].status
    return f"{options['session']} · opening …"


def _interrupt(opening: Opening, pressed: asyncio.Event) -> None:
    """Stop the answer on Ctrl-C; if there is none, act as if it was pressed at the prompt."""
    opened = opening.done() and not opening.cancelled() and opening.exception() is None
    if not (opened and opening.result()[0].interrupt()):
        pressed.set()


async def _close(opening: Opening) -> None:
    opening.cancel()
    await asyncio.wait({opening})
    if not opening.cancelled() and opening.exception() is None:
        await opening.result()[0].chat.close()
