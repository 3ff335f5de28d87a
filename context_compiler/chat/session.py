"""One conversation with an agent, stored in full; the mode decides how much of it the model is sent.

In normal mode the agent gets the whole history, and its requests are only recorded. In Endless mode a
`ContextCompiler` is attached to the same run. The stored history and the transcript are the same in both modes.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterable, Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, RunContext, capture_run_messages
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.messages import (
    AgentStreamEvent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    UserPromptPart,
)
from pydantic_ai.usage import RequestUsage

from context_compiler.chat.reconcile import TEXT_BREAK
from context_compiler.chat.storage import Clock, Notice, SessionStorage
from context_compiler.chat.transcript import transcript_folder
from context_compiler.compiler.steering import Pin
from context_compiler.compiler.view import View
from context_compiler.errors import BudgetError, SettingsError, StoreError
from context_compiler.messages.fences import one_line
from context_compiler.messages.history import History
from context_compiler.messages.rules import Rule
from context_compiler.middleware.capability import ContextCompiler
from context_compiler.middleware.manual import CompileResult
from context_compiler.middleware.recall_tools import Recall
from context_compiler.paths import vault_of
from context_compiler.recall.index import index_of
from context_compiler.recall.passages import Passage
from context_compiler.record.costs import compile_cost, request_cost
from context_compiler.record.store import Store, Tenants, open_store
from context_compiler.record.values import now
from context_compiler.tokens.prices import price_of

LONG = 2_000
"""Minimum messages in a history for indexing it in the background, before the first turn needs the index."""

_LONE_SURROGATES = re.compile("[\ud800-\udfff]")

OnText = Callable[[str], object]
"""Called with each piece of an answer, after it is on disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer, complete or stopped, and the last request that was sent for it."""

    text: str
    output: Any = None
    """The agent's output; None if the answer was stopped."""
    stopped: bool = False
    raw: int = 0
    """Tokens of the whole history at the last request."""
    sent: int = 0
    """Tokens sent instead; equal to `raw` in normal mode."""
    cached: int = 0
    """Tokens that the provider read from its prompt cache."""
    cost: Decimal | None = None
    """Cost of the last request's input in US dollars; None if no price is known."""
    everything: Decimal | None = None
    """That cost if the whole history had been sent."""
    view: View | None = None
    """View sent by the last request; in normal mode a raw view without a budget."""
    history: tuple[ModelMessage, ...] = ()
    """The whole history at the last request."""
    first: float | None = None
    """Seconds until the first piece of text."""
    seconds: float = 0.0


@dataclass(slots=True)
class Usage:
    """Totals over all answers of a chat since it was opened."""

    answers: int = 0
    compiles: int = 0
    """All compiles, with or without a model."""
    model_compiles: int = 0
    raw: int = 0
    sent: int = 0
    cached: int = 0
    recalled: int = 0
    """Tokens of recall blocks in all requests."""
    compile_cost: Decimal | None = Decimal(0)
    """Cost of the compiles in US dollars; None once the price of one is unknown."""

    def add_view(self, view: View) -> None:
        """Count a request's recall blocks, and its compile if it had one."""
        compiled = view.record.compile if view.record is not None else None
        self.recalled += view.ledger.get("tokens", {}).get("recall", 0)
        self.compiles += compiled is not None
        cost = compile_cost(compiled)
        self.compile_cost = None if cost is None or self.compile_cost is None else self.compile_cost + cost
        self.model_compiles += compiled is not None and compiled.compiled_prompt is not None

    def add(self, reply: Reply) -> None:
        """Count one answer."""
        self.answers += 1
        self.raw += reply.raw
        self.sent += reply.sent
        self.cached += reply.cached


@dataclass(slots=True)
class _PendingReply:
    """An answer that is still being received."""

    on_text: OnText | None
    began: float
    shown: str = ""
    first: float | None = None
    view: View | None = None
    messages: Sequence[ModelMessage] = ()
    output: Any = None

    def add_event(self, event: AgentStreamEvent) -> str:
        """Add an event and return its text; empty if it has none."""
        if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
            text = event.part.content
            piece = f"{TEXT_BREAK}{text}" if self.shown and text else text
        elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
            piece = event.delta.content_delta
        else:
            return ""
        if piece:
            self.first = self.first or time.perf_counter()
            self.shown += piece
        return piece

    def finish(self, *, stopped: bool) -> Reply:
        """Build the reply from what has been received so far."""
        messages = list(self.messages)
        answers = [index for index, message in enumerate(messages) if isinstance(message, ModelResponse)]
        response = messages[answers[-1]] if answers else None
        usage = response.usage if isinstance(response, ModelResponse) else RequestUsage()
        record = self.view.record if self.view is not None else None
        reply = Reply(
            text=self.shown,
            output=self.output,
            stopped=stopped,
            raw=usage.input_tokens,
            sent=usage.input_tokens,
            cached=usage.cache_read_tokens,
            cost=(cost := _input_cost(response)),
            everything=cost,
            view=self.view,
            history=tuple(messages[: answers[-1]] if answers else messages),
            first=None if self.first is None else self.first - self.began,
            seconds=time.perf_counter() - self.began,
        )
        if record is None or (record.budget is None and usage.input_tokens):
            return reply  # sent unchanged: the provider's own token counts are exact
        priced = request_cost(record)
        return replace(
            reply, raw=record.tokens_raw, sent=record.tokens_sent, cost=priced.sent, everything=priced.everything
        )


async def wait_for_end(task: asyncio.Task[Any]) -> None:
    """Wait for a task to end; if cancelled, cancel the task and wait for its cleanup."""
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task})
        raise


class ChatSession:
    """A conversation with any agent, of any length, that continues after a restart.

    Args:
        agent: The agent that answers.
        session: Name of the conversation.
        endless: Send a view instead of the whole history. May be changed between turns.
        template: Template of the views. May be changed between turns.
        folder: Folder of the transcript. The default is `AssistantMD/Chat_Sessions/` in the vault, or `Chat_Sessions/`
            in `system` if there is no vault; with an owner, its name ends in `-` and the owner.
        store: Store of the record: a path, the address of a PostgreSQL database, or a `Store`; None keeps it in memory.
        owner: Owner of the conversation; None uses the owner of the store.
        vault: Folder whose templates come first; `{owner}` in its path is replaced by the owner's folder.
        system: Folder whose templates come second.
        notice: Called with each message for the user, one line.
        clock: Source of the current time.
        arguments: Further arguments of `ContextCompiler`, such as `budget`, `model` and `background`; `vault_name` is
            that of `vault`. `redact`, and a `record` other than `"full"`, are refused.

    Raises:
        SettingsError: a value is invalid.
    """

    def __init__(
        self,
        agent: Agent[Any, Any],
        session: str = "main",
        *,
        endless: bool = False,
        template: str = "chat_compiler",
        folder: str | Path | None = None,
        store: str | Path | Store | None = "system/context.db",
        owner: str | None = None,
        vault: str | Path | None = None,
        system: str | Path | None = "system",
        notice: Notice | None = None,
        clock: Clock = now,
        **arguments: Any,
    ) -> None:
        if not isinstance(agent, AbstractAgent):  # pyright: ignore[reportUnnecessaryIsInstance] # callers may pass anything
            shown = one_line(repr(agent), 60)
            raise SettingsError(f"ChatSession({shown}): give the Agent first, and then the name of the session")
        self.agent, self.session = agent, session
        self.endless, self.template = endless, template
        self.last: Reply | None = None
        self.usage = Usage()
        self._notice: Callable[[str], None] = notice or (lambda _: None)
        check_recording(arguments.get("record", "full"), arguments.get("redact"))
        opened = open_store(store)
        if owner is not None:
            if not isinstance(opened, Tenants):
                raise SettingsError(f"owner={owner!r}: {opened!r} has no owners")
            opened = opened.scoped(owner)
        vault = vault_of(vault, owner := opened.owner if isinstance(opened, Tenants) else None)
        self.vault_name = "" if vault is None else vault.resolve().name
        self.storage = SessionStorage(
            session,
            folder=Path(folder) if folder is not None else transcript_folder(vault, system, owner),
            store=opened,
            private=folder is None and vault is None,
            vault_name=self.vault_name,
            notice=self._notice,
            clock=clock,
        )
        places = {"store": self.storage.store, "vault": vault, "vault_name": self.vault_name, "system": system}
        heard = {"on_view": self._on_view, "on_error": self._on_error}
        heard = {name: _both(call, arguments.pop(name, None)) for name, call in heard.items()}
        self._arguments: dict[str, Any] = dict(**arguments, **places, **heard)
        self._compilers: dict[str, ContextCompiler] = {}
        self._pending: _PendingReply | None = None
        self._task: asyncio.Task[None] | None = None
        self._opened, self._opening = False, asyncio.Lock()
        self._errors: set[str] = set()
        self._errors_before: set[str] = set()
        self.compiler()

    @property
    def messages(self) -> list[ModelMessage]:
        """The whole history."""
        return self.storage.messages

    def compiler(self) -> ContextCompiler:
        """Return the compiler of the current template; each template keeps its own, with its summaries."""
        if self.template not in self._compilers:
            compiler = ContextCompiler(**self._arguments)
            compiler.template = self.template  # if missing, it is reported at the first turn; the chat continues
            compiler.check()
            self._compilers[self.template] = compiler
        return self._compilers[self.template]

    async def open(self, *, writing: bool = True) -> None:
        """Load the stored conversation, unless it is loaded already; `say` and the other methods do so themselves.

        Args:
            writing: Repair what a killed process left unfinished; otherwise the first prompt does so.
        """
        async with self._opening:
            if not self._opened:
                await self.storage.open(_index_if_long if self.endless else None, writing=writing)
                self._opened = True

    async def say(self, text: str, *, on_text: OnText | None = None) -> Reply:
        """Send a prompt and wait for the answer.

        Args:
            text: The prompt. Lone surrogates, which cannot be sent, are replaced.
            on_text: Called with each piece of the answer, after it is on disk.

        Raises:
            SettingsError: the prompt is empty, or an answer is still being written.

        Errors of the agent are raised after the turn has been saved, even if it is incomplete.
        """
        text = _LONE_SURROGATES.sub("\ufffd", text)
        if not text.strip():
            raise SettingsError("text='': give a prompt")
        if self._pending is not None:
            raise SettingsError("an answer is still being written: wait for it, or stop it")
        self._pending = pending = _PendingReply(on_text=on_text, began=time.perf_counter())
        try:
            await self.open()
            async with self.storage.turn(text):
                await self._run_turn(text, pending)
        finally:
            self._pending = self._task = None
            self._errors_before, self._errors = self._errors, set()
        return self.last or Reply(text="")

    async def _run_turn(self, text: str, pending: _PendingReply) -> None:
        self._task = task = asyncio.create_task(self._run_agent(text, pending))
        try:
            await wait_for_end(task)
        finally:
            self.last = pending.finish(stopped=task.cancelled())
            self.usage.add(self.last)
            prompt = ModelRequest(parts=[UserPromptPart(text)])
            await self.storage.save_turn(pending.messages or [*self.messages, prompt], pending.shown)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    async def _run_agent(self, text: str, pending: _PendingReply) -> None:
        async def on_events(ctx: RunContext[Any], events: AsyncIterable[AgentStreamEvent]) -> None:
            async for event in events:
                piece = pending.add_event(event)
                if piece:
                    self.storage.transcript.write_answer(piece)
                    if pending.on_text is not None:
                        pending.on_text(piece)

        if self.endless:
            await self.storage.ready()
        with capture_run_messages() as captured:
            pending.messages = captured
            result = await self.agent.run(
                text,
                message_history=list(self.messages),
                conversation_id=self.session,
                event_stream_handler=on_events,
                capabilities=[self.compiler() if self.endless else self.compiler().recorder()],
            )
        pending.messages, pending.output = result.all_messages(), result.output

    def stop(self) -> bool:
        """Stop the answer in progress and keep its text so far; False if there is none."""
        return self._task is not None and self._task.cancel()

    async def compact(self, focus: str = "", *, start: int | str | None = None, preview: bool = False) -> CompileResult:
        """Compile the conversation now, for Endless mode; see `ContextCompiler.compile_now` and `preview`.

        Raises:
            SettingsError: an answer is still being written, the focus is too long, or there is no such turn.
            StoreError: the conversation is empty, or the record cannot be read.
        """
        compiler = await self._idle_compiler()
        work = compiler.preview if preview else compiler.compile_now
        model = self.agent.model if compiler.model is None else None
        return await work(self.session, focus, start=start, model=model)

    async def undo(self) -> CompileResult:
        """Restore the view from before the last compile; see `ContextCompiler.undo_compile`."""
        return await (await self._idle_compiler()).undo_compile(self.session)

    async def pin(self, message: int | str) -> Pin:
        """Keep a message in every view; see `ContextCompiler.pin`."""
        return await (await self._idle_compiler()).pin(self.session, message)

    async def unpin(self, message: int | str) -> Pin:
        """Let views leave out a pinned message again; see `ContextCompiler.unpin`."""
        return await (await self._idle_compiler()).unpin(self.session, message)

    async def pins(self) -> tuple[Pin, ...]:
        """The pinned messages."""
        await self.open()
        return await self.compiler().pins(self.session)

    async def rules(self) -> tuple[Rule, ...]:
        """The rules that every request contains."""
        await self.open()
        return await self.compiler().standing_rules(self.session)

    async def dismiss(self, rule: str) -> Rule:
        """Dismiss a rule; see `ContextCompiler.dismiss_rule`."""
        return await (await self._idle_compiler()).dismiss_rule(self.session, rule)

    async def _idle_compiler(self) -> ContextCompiler:
        """Load the conversation and return its compiler.

        Raises:
            SettingsError: an answer is still being written.
        """
        if self._pending is not None:
            raise SettingsError("an answer is still being written: wait for it, or stop it")
        await self.open()
        return self.compiler()

    async def recall(self, query: str) -> tuple[Passage, ...]:
        """Find passages of the whole conversation that match a query, quoted word for word."""
        await self.open()
        return await Recall().passages(self.messages, query)

    async def close(self) -> None:
        """Stop background compiles, and close the record and the transcript."""
        for compiler in self._compilers.values():
            await compiler.aclose()
        await self.storage.close()

    def _on_view(self, view: View) -> None:
        if self._pending is not None:
            self._pending.view = view
            self.usage.add_view(view)

    def _on_error(self, error: Exception) -> None:
        """Report an error once, and again only after a turn without it.

        In normal mode, errors of the store are skipped: the turn cannot be saved either, and the storage reports that.
        """
        if not self.endless and isinstance(error, StoreError):
            return
        key = f"{type(error).__name__}: {error}"
        if key not in self._errors_before | self._errors:
            self._notice(f"{error}" if isinstance(error, BudgetError) else f"{error}; the conversation continues")
        self._errors.add(key)


def check_recording(record: object = "full", redact: object = None) -> None:
    """Check that nothing is to be left out of what a chat stores, because it continues from that.

    Raises:
        SettingsError: `record` is not `"full"`, or there is a `redact`.
    """
    for name, value, allowed in (("record", record, "full"), ("redact", redact, None)):
        if value != allowed:
            raise SettingsError(
                f"{name}={value!r:.80}: a chat stores all of its text, from which it continues; leave {name} out,"
                " or use a ContextCompiler without a chat"
            )


def _both(own: Callable[[Any], None], other: Any) -> Any:
    """A callback that calls the chat's own function and then the application's, which may be async.

    What is no function is returned, for `ContextCompiler` to refuse.
    """

    def call(value: Any) -> Any:
        own(value)
        return other(value)

    return own if other is None else call if callable(other) else other


def _input_cost(response: ModelMessage | None) -> Decimal | None:
    """Cost of an answered request's input in US dollars, by its provider's counts; None if no price is known."""
    if not isinstance(response, ModelResponse) or not response.model_name:
        return None
    usage, price = response.usage, price_of(response.model_name, response.provider_name)
    if price is None:
        return None
    return price.cost(usage.input_tokens, cached=usage.cache_read_tokens, written=usage.cache_write_tokens)


def _index_if_long(history: History) -> None:
    """Build the search index of a long history in advance, because that takes seconds."""
    if len(history) >= LONG:
        index_of(history)
