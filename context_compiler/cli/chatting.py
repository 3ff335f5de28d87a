"""`chat`: talk with a model; everything said is kept, and with `--endless` what is sent stays within a budget."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Annotated

import typer

from context_compiler.cli.conversing import Conversation, keyboard_for
from context_compiler.cli.options import DB, SYSTEM, Db, System, Vault, amount, example, group

MODEL = "anthropic:claude-sonnet-5-5"

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
) -> None:
    """Talk with a model. Everything said is kept in markdown and on the record; the same --session goes on."""
    conversation = Conversation(
        session,
        model=model,
        vault=vault,
        system=system,
        endless=endless,
        template=template,
        store=db,
        budget=None if budget is None else amount(budget),
        compiler=compiler,
        every_turn=every_turn,
    )
    level = log.level
    log.setLevel(logging.ERROR)  # what goes wrong is said once, by the chat itself
    try:
        asyncio.run(_talk(conversation))
    finally:
        log.setLevel(level)
    if conversation.failed and not sys.stdin.isatty():
        raise typer.Exit(1)


async def _talk(conversation: Conversation) -> None:
    try:
        if sys.stdin.isatty() and sys.stdout.isatty():
            await conversation.on_terminal(keyboard_for(conversation))
        else:
            await conversation.through_pipe()
    finally:
        await conversation.chat.close()
