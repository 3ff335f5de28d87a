"""One chat, on a terminal or line by line through a pipe."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from pydantic_ai import Agent

from context_compiler.chat.reconcile import visible_turns
from context_compiler.chat.session import ChatSession, Reply, wait_for_end
from context_compiler.cli.chat.commands import Commands
from context_compiler.cli.chat.prompt import Leave
from context_compiler.cli.chat.stream import MarkdownStream, PlainStream
from context_compiler.cli.inputs import chat_model
from context_compiler.cli.screen import Screen, print_error, print_note
from context_compiler.cli.text import json_text, number, one_line, plural, sent_share, timestamp
from context_compiler.paths import vault_of
from context_compiler.resilience import try_await
from context_compiler.template import TemplateLibrary
from context_compiler.tokens.prices import dollars

RESUMED_WIDTH, RESUMED_LINES = 200, 6
"""Maximum columns of the last prompt, and lines of the last answer, that are shown of a resumed conversation."""

EXCERPT = 60
"""Maximum columns of the last prompt and answer that are shown on standard error."""

START_ANOTHER = "`--session NAME` starts another"


class Conversation:
    """One chat with its commands and output.

    Args:
        session: Name of the conversation.
        model: Name of the model that answers.
        compiler: Name of the model that writes summaries; None uses the model that answers.
        vault: Folder whose templates come first; `{owner}` in its path is replaced by the owner's folder.
        system: Folder whose templates come second.
        json: Print each answer as a JSON object on one line, and treat no line as a command.
        options: Further arguments of `ChatSession`.

    Raises:
        SettingsError: the model cannot be used, or a value is invalid.
        TemplateError: there is no template of that name.
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
        vault = vault_of(vault, options.get("owner"))
        if vault is not None and not vault.exists():
            print_note(f"{vault}: no such folder; it is created for this chat")
        TemplateLibrary(vault=vault, system=system).check(options["template"])
        writer = compiler if compiler in (None, "none") else chat_model(compiler)
        self.chat = ChatSession(agent, session, model=writer, vault=vault, system=system, notice=print_note, **options)
        self.commands = Commands(self.chat, self.screen, vault=vault, system=system)
        self.failed = False
        self._announced = False
        self._answering: asyncio.Task[Any] | None = None

    @property
    def status(self) -> str:
        """Text of the status line."""
        chat, last = self.chat, self.chat.last
        mode = f"Endless · {chat.template}" if chat.endless else "normal"
        return " · ".join([chat.session, mode, self.model, *([token_summary(last)] if last else [])])

    async def handle_line(self, line: str) -> None:
        """Run a command, or answer a prompt.

        Raises:
            Leave: it was `/quit`.
        """
        if line.startswith("/") and not line.startswith("//") and not self.json:
            await self.commands.run(line)
        elif line.strip():
            await self._answer(line[1:] if line.startswith("//") and not self.json else line)

    def _stream(self) -> MarkdownStream | PlainStream | nullcontext[None]:
        if self.json:
            return nullcontext()  # the whole answer is printed later
        return MarkdownStream(self.screen.console) if self.screen.rich else PlainStream()

    async def _answer(self, text: str) -> None:
        with self._stream() as stream:
            on_text = None if stream is None else stream.write
            self._answering = task = asyncio.create_task(try_await(self.chat.say(text, on_text=on_text)))
            await wait_for_end(task)
        if task.cancelled():
            print_note("stopped while waiting: nothing was sent")
            return
        outcome = task.result()
        if outcome.error is not None:
            self.failed = True
            print_error(
                f"{one_line(str(outcome.error), 500) or type(outcome.error).__name__}; the turn so far is stored"
            )
        elif outcome.value is not None:
            self._print_status(stopped=outcome.value.stopped)

    def interrupt(self) -> bool:
        """Stop the answer in progress, or the wait for the session; False if there is neither."""
        return self.chat.stop() or (self._answering is not None and self._answering.cancel())

    def _print_status(self, *, stopped: bool) -> None:
        """Print the line below an answer."""
        last = self.chat.last
        if last is not None and self.json:
            facts = {"raw": last.raw, "sent": last.sent, "cached": last.cached, "seconds": round(last.seconds, 3)}
            facts |= {"cost": last.cost, "everything": last.everything}
            self.screen.raw(json_text({"answer": last.text, "stopped": stopped, **facts}, indent=None))
        elif last is not None and self.screen.rich:
            word = "stopped · " if stopped else ""
            self.screen.line((f"{word}{token_summary(last)} · {last.seconds:.1f} s", "dim"))
            self.screen.line()

    async def open(self) -> list[str]:
        """Load the conversation, and return its user's earlier prompts."""
        await self.chat.open()
        return [turn.user for turn in visible_turns(self.chat.messages)]

    def print_resumed(self) -> None:
        """Print the number of turns and the last exchange of a resumed conversation; nothing if it is new."""
        turns = visible_turns(self.chat.messages)
        if not turns:
            return
        last = turns[-1]
        when = f", the last of {timestamp(last.when)} UTC" if last.when else ""
        self.screen.line((f"resumed: {plural(len(turns), 'turn')}{when}; {START_ANOTHER}", "dim"))
        self.screen.line()
        self.screen.line(("› ", "green"), one_line(last.user, RESUMED_WIDTH))
        lines = (last.assistant or "(no answer)").strip().splitlines()
        self.screen.indented("\n".join(lines[:RESUMED_LINES]))
        if len(lines) > RESUMED_LINES:
            self.screen.line((f"  … {len(lines) - RESUMED_LINES:,} more lines", "dim"))
        self.screen.line()

    async def run_pipe(self) -> None:
        """Answer each line of standard input; announce a resumed conversation on standard error."""
        with suppress(Leave):
            while line := await asyncio.to_thread(sys.stdin.buffer.readline):
                if not self._announced:
                    await self._announce()
                await self.handle_line(line.decode("utf-8", "replace").rstrip("\r\n"))

    async def _announce(self) -> None:
        self._announced = True
        if (await try_await(self.chat.open())).error is not None:
            return  # the first answer reports the error
        turns = visible_turns(self.chat.messages)
        if turns:
            print_note(f"resumed {self.chat.session}: {plural(len(turns), 'turn')}; {START_ANOTHER}")
            print_note(
                f"the last prompt was {one_line(turns[-1].user, EXCERPT)!r}, the answer begins "
                f"{one_line(turns[-1].assistant or '(no answer)', EXCERPT)!r}"
            )


def token_summary(reply: Reply) -> str:
    """Summarize the tokens of a request and the cost of its input, for the status line."""
    saved = f" ({sent_share(reply.sent, reply.raw)})" if reply.sent != reply.raw else ""
    cost = "price unknown" if reply.cost is None else dollars(reply.cost)
    if reply.cost is not None and reply.sent != reply.raw:
        cost += f" (everything {dollars(reply.everything)})"
    return f"raw {number(reply.raw)} · sent {number(reply.sent)}{saved} · cached {number(reply.cached)} · {cost}"
