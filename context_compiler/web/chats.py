"""Conversations of the chat page: they run in the server, so that all tabs see the same answer, and can be closed.

Each answer is written in its own task. Every open page of a chat gets its pieces as server-sent events, and a page that
is opened later gets the answer so far.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any

from markdown_it import MarkdownIt
from pydantic_ai import Agent
from pydantic_ai.models import Model

from context_compiler.chat.reconcile import visible_turns
from context_compiler.chat.session import ChatSession, Reply
from context_compiler.compiler.steering import Pin
from context_compiler.errors import ContextCompilerError, SettingsError
from context_compiler.messages.bodies import load_messages
from context_compiler.messages.history import reader_of
from context_compiler.messages.printable import safe
from context_compiler.messages.rules import Rule
from context_compiler.middleware.manual import CompileResult
from context_compiler.record.sessions import answers_by_turn
from context_compiler.record.store import SQLStore, open_store
from context_compiler.resilience import attempt, try_await
from context_compiler.tokens import as_counter
from context_compiler.tokens.prices import Budget
from context_compiler.web.data import BadRequest
from context_compiler.web.steering import STEERS, or_bad_request

MAX_NAME = 200
"""Maximum characters of a chat's name."""

SHOWN = 40
"""Turns on the page at first, and turns added at each request for earlier ones."""

BACKLOG = 1_000
"""Maximum events that a page can be behind; a page that is further behind reloads the chat."""

MAX_OPEN = 8
"""Maximum open chats; more are closed if no page listens to them and they do not answer, and open again when needed."""

LOOK = 1.0
"""Seconds between checks whether the server shuts down, or a terminal has added turns."""

HEARTBEAT = 15
"""Number of checks without an event after which a comment is sent to keep the connection open."""

RENDER_S = 0.2
"""Minimum seconds between two renderings of an answer that is being written."""

RENDERED = 60_000
"""Characters of an answer from which on it is rendered only when it is complete."""


class NotAChat(ContextCompilerError):
    """Error for a session that another program has recorded, which only a copy can continue."""


class Busy(ContextCompilerError):
    """Error for a prompt or action while an answer of the chat is still being written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTurn:
    """One turn on the page."""

    number: int
    """From 1."""
    user: str
    answer: str
    """HTML of the answer, safe to show; empty if there was none."""
    request: int | None
    """Number of the turn's last request on the record."""
    pinned: bool = False
    """True if the prompt is pinned, so that it stays in every view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatDefaults:
    """Initial settings of all chats of a server."""

    model: str
    template: str = "chat_compiler"
    endless: bool = True
    budget: Budget | None = None
    models: Sequence[str] = ()
    """Models that the page offers."""
    writer: Model | str | None = None
    """Model that writes summaries; None uses the model that answers."""
    db: Path | str
    system: Path
    vault: Path | None = None


class Chat:
    """One conversation and the pages that listen to it."""

    def __init__(self, name: str, agent_of: Callable[[str], Agent[Any, Any]], defaults: ChatDefaults) -> None:
        self.name, self.model = name, defaults.model
        self._agent_of = agent_of
        self._listeners: set[asyncio.Queue[tuple[str, Any]]] = set()
        self._answer: asyncio.Task[None] | None = None
        self._prompt = self._shown = ""
        self._rendered_at = 0.0
        self._requests: dict[int, int] = {}
        self._pinned: set[int] = set()
        self.session = ChatSession(
            agent_of(defaults.model),
            name,
            endless=defaults.endless,
            template=defaults.template,
            model=defaults.writer,
            store=defaults.db,
            vault=defaults.vault,
            system=defaults.system,
            budget=defaults.budget,
            notice=lambda text: self._broadcast("notice", {"text": safe(text)}),
        )

    async def open(self, *, writing: bool = False) -> None:
        """Load the stored conversation and the request number of each turn; a prompt repairs what is unfinished."""
        await self.session.open(writing=writing)
        await self._load_requests()

    async def is_of_another_program(self) -> bool:
        """True if the session is recorded, but has no transcript, which every chat has."""
        storage = self.session.storage
        if await asyncio.to_thread(storage.transcript.path.exists) or not storage.has_record:
            return False
        sessions = await try_await(storage.store.sessions())
        return any(info.session_id == self.name and info.raw_tip is not None for info in sessions.value or ())

    async def _load_requests(self) -> None:
        """Load the request number of each turn, including turns of other processes."""
        store, vault = self.session.storage.store, self.session.vault_name
        if isinstance(store, SQLStore) and self.session.storage.has_record:
            requests = await try_await(store.perform(partial(answers_by_turn, session_id=self.name, vault_name=vault)))
            self._requests = {**self._requests, **(requests.value or {})}

    @property
    def answering(self) -> bool:
        """True while an answer is being written."""
        return self._answer is not None

    @property
    def is_idle(self) -> bool:
        """True if no page listens, and no answer is being written."""
        return not self.answering and not self._listeners

    def say(self, text: str, *, endless: bool, template: str, model: str) -> None:
        """Begin to answer a prompt.

        Raises:
            Busy: An answer is still being written.
            SettingsError: The template or the model cannot be used.
        """
        if self._answer is not None:
            raise Busy("an answer is still being written: wait for it, or stop it")
        if model != self.model:
            self.session.agent, self.model = self._agent_of(model), model
        before, self.session.template = self.session.template, template
        chosen = attempt(self.session.compiler)
        if chosen.error is not None:
            self.session.template = before
            raise chosen.error
        self.session.endless = endless
        self._prompt, self._shown, self._rendered_at = text, "", 0.0
        self._broadcast("prompt", {"text": text})
        self._answer = asyncio.create_task(self._run(text))

    async def _run(self, text: str) -> None:
        last = self.session.last

        def unsent() -> dict[str, str]:
            return {"unsent": text} if self.session.last is last else {}

        try:
            outcome = await try_await(self.session.say(text, on_text=self._add))
            reply = outcome.value if outcome.value is not None else self.session.last
            figures = self._figures(reply)
            if figures.get("request") is not None:
                self._requests[len(visible_turns(self.session.messages)) - 1] = figures["request"]
            why = safe(str(outcome.error) or type(outcome.error).__name__) if outcome.error is not None else ""
            self._broadcast("done", {**figures, "error": why[:500], **unsent()})
        except asyncio.CancelledError:
            self._broadcast("done", {"error": "", **unsent()})
            if unsent():
                self._broadcast("notice", {"text": "stopped while waiting: nothing was sent"})
            raise
        finally:
            self._answer = None

    def _add(self, piece: str) -> None:
        """Show a piece as text at once, and the whole answer so far as Markdown a few times a second."""
        self._shown += piece
        self._broadcast("piece", {"text": piece})
        if len(self._shown) <= RENDERED and monotonic() - self._rendered_at >= RENDER_S:
            self._broadcast("rendered", {"html": markdown(self._shown)})
            self._rendered_at = monotonic()

    def _figures(self, reply: Reply | None) -> dict[str, Any]:
        if reply is None:
            return {}
        record = reply.view.record if reply.view is not None else None
        return {
            "stopped": reply.stopped,
            "raw": reply.raw,
            "sent": reply.sent,
            "cached": reply.cached,
            "seconds": round(reply.seconds, 2),
            "budget": record.budget if record is not None else None,
            "request": record.id if record is not None else None,
            "status": record.status.split(";")[0] if record is not None else "",
        }

    async def refresh_pins(self) -> None:
        """Load which turns are pinned, including pins of other processes."""
        if not self.session.storage.has_record:
            return
        pins = await try_await(self.session.pins())
        self._pinned = {pin.turn for pin in pins.value or ()}

    async def steer(self, way: str, body: Mapping[str, Any]) -> CompileResult | Pin | Rule:
        """Compile now, undo a compile, pin, unpin or dismiss a rule, and notify the listeners.

        Raises:
            Busy: An answer is still being written.
            BadRequest: A field is invalid, or the chat is empty.
        """
        if self._answer is not None:
            raise Busy("an answer is still being written: wait for it, or stop it")
        if not self.session.messages:
            raise BadRequest("this chat is still empty")
        result = await or_bad_request(STEERS[way](self.session, body))
        await self.refresh_pins()
        if not isinstance(result, CompileResult) or (result.done and result.kind != "preview"):
            self._broadcast("turns", {"turns": len(visible_turns(self.session.messages))})
        return result

    def stop(self) -> bool:
        """Stop the answer that is being written, and keep what was shown; False if there is none."""
        if self._answer is None:
            return False
        if not self.session.stop():
            self._answer.cancel()
        return True

    def turns(self, before: int | None = None) -> tuple[list[ShownTurn], int]:
        """Return the newest turns before a position, oldest first, and the number of turns before these."""
        turns = visible_turns(self.session.messages)
        end = len(turns) if before is None else min(before, len(turns))
        start = max(0, end - SHOWN)
        shown = [
            ShownTurn(
                number=index + 1,
                user=safe(turn.user),
                answer=markdown(turn.assistant or ""),
                request=self._requests.get(index),
                pinned=index + 1 in self._pinned,
            )
            for index, turn in enumerate(turns[start:end], start)
        ]
        return shown, start

    def state(self) -> dict[str, Any]:
        """Return the state of the chat for a page that begins to listen."""
        pending = None
        if self.answering:
            html = markdown(self._shown) if len(self._shown) <= RENDERED else ""
            pending = {"prompt": self._prompt, "text": self._shown, "html": html}
        turns = len(visible_turns(self.session.messages))
        return {"turns": turns, "pending": pending, **self._figures(self.session.last)}

    async def events(self, is_ending: Callable[[], bool]) -> AsyncIterator[str]:
        """Send the events of this chat from now on, as server-sent events, until the server ends."""
        queue: asyncio.Queue[tuple[str, Any]] = asyncio.Queue(BACKLOG)
        self._listeners.add(queue)
        quiet = 0
        try:
            yield _event("state", self.state())
            while not is_ending():
                try:
                    name, value = await asyncio.wait_for(queue.get(), LOOK)
                except TimeoutError:
                    quiet += 1
                    if not self.answering:
                        await self._refresh()
                    if quiet % HEARTBEAT == 0:
                        yield ": still here\n\n"
                    continue
                yield _event(name, value)
                if name == "state":
                    return
        finally:
            self._listeners.discard(queue)

    async def _refresh(self) -> None:
        """Load turns that another process has added, and notify the listeners."""
        before = len(self.session.messages)
        await try_await(self.session.storage.refresh())
        if len(self.session.messages) != before:
            await self._load_requests()
            self._broadcast("turns", {"turns": len(visible_turns(self.session.messages))})

    def _broadcast(self, name: str, value: Mapping[str, Any]) -> None:
        for queue in self._listeners:
            if queue.full():
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(("state", self.state()))
            else:
                queue.put_nowait((name, value))

    async def close(self) -> None:
        """Stop the answer that is being written, keep it, and close the chat."""
        if self._answer is not None:
            self.stop()
            with suppress(asyncio.CancelledError):
                await asyncio.wait({self._answer}, timeout=5)
        await self.session.close()


class Chats:
    """Open chats of this server, by name.

    Args:
        agent_of: Function from the name of a model to its agent; raises `SettingsError` if the model cannot be used.
        defaults: Initial settings of all chats.
    """

    def __init__(self, agent_of: Callable[[str], Agent[Any, Any]], defaults: ChatDefaults) -> None:
        self.defaults = defaults
        self._agent_of = agent_of
        self._open: dict[str, Chat] = {}
        self._opening = asyncio.Lock()

    def model(self, name: str) -> Model:
        """Return the model of a name.

        Raises:
            SettingsError: The model cannot be used.
        """
        model = self._agent_of(name).model
        if not isinstance(model, Model):
            raise SettingsError(f"model={name!r}: there is no such model")
        return model

    async def get(self, name: str) -> Chat:
        """Return the chat of a name; it is opened first if necessary.

        Raises:
            NotAChat: Another program has recorded a session of this name.
        """
        async with self._opening:
            await self._close_idle(name)
            if name not in self._open:
                chat = Chat(name, self._agent_of, self.defaults)
                if await chat.is_of_another_program():
                    await chat.session.close()
                    raise NotAChat(f"session {name!r} is of another program; continue it as a new chat")
                await chat.open()
                self._open[name] = chat
            self._open[name] = chat = self._open.pop(name)  # the most recently used is last
            return chat

    async def _close_idle(self, name: str) -> None:
        """Make room for a chat: close the least recently used ones that nobody listens to and that do not answer."""
        idle = [chat for chat in self._open.values() if chat.name != name and chat.is_idle]
        for chat in idle[: max(0, len(self._open) + (name not in self._open) - MAX_OPEN)]:
            del self._open[chat.name]
            await try_await(chat.close())

    async def copy(self, name: str) -> str:
        """Begin a new chat with the history of a recorded session, and return its name.

        Raises:
            BadRequest: There is no such session, or its history is not recorded.
        """
        store = open_store(self.defaults.db)
        try:
            sessions = {info.session_id: info for info in await store.sessions()}
            info = sessions.get(name)
            if info is None or info.raw_tip is None:
                raise BadRequest(f"session: no history of {name!r} is recorded")
            copies = (f"{name[: MAX_NAME - 12]} (copy{f' {number}' if number else ''})" for number in count())
            copy = next(candidate for candidate in copies if candidate not in sessions)
            messages = await asyncio.to_thread(load_messages, await store.transcript(name, info.vault_name))
            history = await asyncio.to_thread(reader_of(as_counter(None)).read, messages)
            vault = self.defaults.vault
            await store.archive(copy, "" if vault is None else vault.resolve().name, history.chain)
        finally:
            await store.close()
        chat = Chat(copy, self._agent_of, self.defaults)
        await chat.open(writing=True)  # writes the transcript
        self._open[copy] = chat
        return copy

    async def close(self) -> None:
        """Close all chats."""
        for chat in self._open.values():
            await try_await(chat.close())
        self._open.clear()


def _event(name: str, value: Mapping[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(value)}\n\n"


@cache
def _parser() -> MarkdownIt:
    """Create a Markdown parser without HTML, and without images, because they would be loaded from other servers."""
    return MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")


def markdown(text: str) -> str:
    """Render Markdown as safe HTML: without HTML tags from the text, images, or links that run code."""
    return str(_parser().render(safe(text)))
