"""A chat from its first line to its last: on a terminal, or line by line through a pipe."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic_ai import Agent

from context_compiler.chat.reconcile import visible_turns
from context_compiler.chat.session import ChatSession
from context_compiler.cli.chat.commands import Commands
from context_compiler.cli.chat.prompt import Leave
from context_compiler.cli.chat.stream import PlainVoice, Silence, Voice
from context_compiler.cli.inputs import chat_model
from context_compiler.cli.screen import Screen, complain, warn
from context_compiler.cli.text import json_text, number, one_line, share
from context_compiler.resilience import try_await


class Conversation:
    """One chat and everything around it.

    Args:
        session: Its name.
        model: The name of the model that answers.
        compiler: The name of the one that writes summaries; None is the same.
        vault: A folder whose templates come first.
        system: A folder whose templates come second.
        json: Every answer is one JSON object on a line of its own, and no line is a command.
        options: Further arguments of `ChatSession`.

    Raises:
        SettingsError: the model cannot be used, or a value is wrong.
    """

    def __init__(
        self,
        session: str,
        *,
        model: str,
        compiler: str | None,
        vault: Path | None,
        system: Path,
        json: bool = False,
        **options: Any,
    ) -> None:
        self.screen = Screen()
        self.json = json
        self.model = model
        os.environ.setdefault("PYDANTIC_AI_NO_BANNER", "1")
        agent = Agent(chat_model(model), name="chat")
        if vault is not None and not vault.exists():
            warn(f"{vault}: there was no such folder; it is made for this chat")
        writer = compiler if compiler in (None, "none") else chat_model(compiler)
        self.chat = ChatSession(agent, session, model=writer, vault=vault, system=system, notice=warn, **options)
        self.commands = Commands(self.chat, self.screen, vault=vault, system=system)
        self.failed = False
        self._saying: asyncio.Task[Any] | None = None

    @property
    def status(self) -> str:
        """Where the conversation stands, on one line."""
        chat, last = self.chat, self.chat.last
        mode = f"Endless · {chat.template}" if chat.endless else "normal"
        return " · ".join(
            [chat.session, mode, self.model, *([tokens(last.raw, last.sent, last.cached)] if last else [])]
        )

    async def hear(self, line: str) -> None:
        """A command, or something to be answered.

        Raises:
            Leave: it was `/quit`.
        """
        if line.startswith("/") and not line.startswith("//") and not self.json:
            await self.commands.run(line)
        elif line.strip():
            await self._answered(line[1:] if line.startswith("//") and not self.json else line)

    def _voice(self) -> Voice | PlainVoice | Silence:
        if self.json:
            return Silence()
        return Voice(self.screen.console) if self.screen.rich else PlainVoice()

    async def _answered(self, text: str) -> None:
        with self._voice() as voice:
            self._saying = saying = asyncio.create_task(try_await(self.chat.say(text, hear=voice.hear)))
            await _done(saying)
        if saying.cancelled():
            warn("stopped while it waited: nothing was said")
            return
        outcome = saying.result()
        if outcome.error is not None:
            self.failed = True
            complain(f"{one_line(str(outcome.error), 500) or type(outcome.error).__name__}; what was said is kept")
        elif outcome.value is not None:
            self._told(stopped=outcome.value.stopped)

    def interrupt(self) -> None:
        """Stop the answer that is coming, or the waiting for it."""
        if not self.chat.stop() and self._saying is not None:
            self._saying.cancel()

    def _told(self, *, stopped: bool) -> None:
        """The line below an answer."""
        last = self.chat.last
        if last is not None and self.json:
            facts = {"raw": last.raw, "sent": last.sent, "cached": last.cached, "seconds": round(last.seconds, 3)}
            self.screen.raw(json_text({"answer": last.text, "stopped": stopped, **facts}, indent=None))
        if last is None or self.json or not self.screen.rich:
            return
        word = "stopped · " if stopped else ""
        self.screen.line((f"{word}{tokens(last.raw, last.sent, last.cached)} · {last.seconds:.1f} s", "dim"))
        self.screen.line()

    async def open(self) -> list[str]:
        """Take the conversation up; everything that its user has said before."""
        await self.chat.open()
        return [turn.user for turn in visible_turns(self.chat.messages)]

    async def through_pipe(self) -> None:
        """Answer every line of standard input."""
        with suppress(Leave):
            while line := await asyncio.to_thread(sys.stdin.buffer.readline):
                await self.hear(line.decode("utf-8", "replace").rstrip("\r\n"))


async def _done(task: asyncio.Task[Any]) -> None:
    """Wait for a task; whoever stops waiting stops it too, and it may still put its things away."""
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task})
        raise


def tokens(raw: int, sent: int, cached: int) -> str:
    """Tokens of a request, as the status line has them."""
    saved = f" ({share(sent, raw)})" if sent != raw else ""
    return f"raw {number(raw)} · sent {number(sent)}{saved} · cached {number(cached)}"
