"""One conversation with an agent, stored in full; the mode decides how much of it a model is sent.

In the normal mode the agent gets the whole history, and its requests are only recorded. In Endless mode a
`ContextCompiler` is attached to the same run. Nothing else changes: neither the stored history, nor the transcript, nor
this module's work.
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
from pydantic_ai.models import Model
from pydantic_ai.usage import RequestUsage

from context_compiler.chat.reconcile import TEXT_BREAK
from context_compiler.chat.storage import Clock, Notice, SessionStorage
from context_compiler.chat.transcript import transcript_folder, with_former
from context_compiler.compiler.steering import Pin
from context_compiler.compiler.view import View
from context_compiler.errors import SettingsError, StoreError
from context_compiler.messages.failures import ReflectionPolicy
from context_compiler.messages.fences import one_line
from context_compiler.messages.history import History
from context_compiler.middleware.capability import ContextCompiler
from context_compiler.middleware.manual import CompileResult
from context_compiler.middleware.recall_tools import Recall
from context_compiler.paths import vault_of
from context_compiler.recall.index import indexed
from context_compiler.recall.passages import Passage
from context_compiler.record.costs import compile_cost, request_cost
from context_compiler.record.store import Store, Tenants, open_store
from context_compiler.record.values import now
from context_compiler.tokens.prices import Budget, Money, price_of

LONG = 2_000
"""Messages from which on a history is indexed in the background, before the first turn needs it."""

_HALVES = re.compile("[\ud800-\udfff]")

OnText = Callable[[str], object]
"""Called with each piece of an answer, after it is on disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer, complete or stopped, and the request that it answers."""

    text: str
    output: Any = None
    """The agent's output; None if it was stopped."""
    stopped: bool = False
    raw: int = 0
    """Tokens of the whole history at the last request."""
    sent: int = 0
    """Tokens sent in its place; the same in the normal mode."""
    cached: int = 0
    """Tokens that the provider read from its prompt cache."""
    cost: Decimal | None = None
    """US dollars of the input of the last request; None where no price is known."""
    everything: Decimal | None = None
    """The same if everything had been sent."""
    view: View | None = None
    """The last request; in the normal mode a raw view without a budget."""
    history: tuple[ModelMessage, ...] = ()
    """The whole history at the last request."""
    first: float | None = None
    """Seconds until the first piece of text."""
    seconds: float = 0.0


Said = Reply
"""Earlier name of `Reply`."""


@dataclass(slots=True)
class Usage:
    """Totals over the answers of one chat, since it was opened."""

    answers: int = 0
    compiles: int = 0
    """With a model and without."""
    model_compiles: int = 0
    raw: int = 0
    sent: int = 0
    cached: int = 0
    recalled: int = 0
    """Tokens of recall blocks, in all requests."""
    compile_cost: Decimal | None = Decimal(0)
    """US dollars of the compiles; None once one had no known price."""

    def add_view(self, view: View) -> None:
        """Count the compile of a request, if it had one, and its recall blocks."""
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
    """An answer that is still coming."""

    on_text: OnText | None
    began: float
    shown: str = ""
    first: float | None = None
    view: View | None = None
    messages: Sequence[ModelMessage] = ()
    output: Any = None

    def add_event(self, event: AgentStreamEvent) -> str:
        """Add an event; the text that it brings, empty for anything else."""
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
        """The reply as it is now."""
        messages = list(self.messages)
        answers = [at for at, message in enumerate(messages) if isinstance(message, ModelResponse)]
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
            return reply  # of what goes out as it is, the provider knows the tokens
        priced = request_cost(record)
        return replace(
            reply, raw=record.tokens_raw, sent=record.tokens_sent, cost=priced.sent, everything=priced.everything
        )


def _store_of(store: str | Path | Store | None, owner: str | None) -> Store:
    """The store at a place, of an owner."""
    opened = open_store(store)
    if owner is None:
        return opened
    if not isinstance(opened, Tenants):
        raise SettingsError(f"owner={owner!r}: {opened!r} has no owners")
    return opened.scoped(owner)


async def wait_for_end(task: asyncio.Task[Any]) -> None:
    """Wait for a task; cancellation cancels the task too, and waits for its cleanup."""
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
        endless: Send a view instead of the whole history. May be changed between two turns.
        template: Template of the views. May be changed between two turns.
        model: Model that writes the summaries; None is the agent's own model, "none" asks no model.
        folder: Folder of the transcript; None is `AssistantMD/Chat_Sessions/` of the vault, else `Chat_Sessions/` of
            `system`, with `-` and the owner after it where there is one.
        store: Store of the record: a path, the address of a PostgreSQL database, or a `Store`; None keeps it in memory.
        owner: Owner of the conversation; None is the owner of the store.
        vault: Folder whose templates come first; `{owner}` in its path stands for the folder of the owner.
        system: Folder whose templates come second.
        budget: Input tokens of one request in Endless mode, a share of the model's window, or `Money`.
        every_turn: Compile in every turn, not only when the history passes the threshold.
        compile_spend_limit: The most that the summaries of the conversation may cost; then no model is asked for them.
        background: Compile while the conversation goes on, so that fewer turns wait for it.
        reflections: When templates are given past failures.
        notice: Called with each line that a person should read.
        clock: Source of the current time.

    Raises:
        SettingsError: a value is wrong.
    """

    def __init__(
        self,
        agent: Agent[Any, Any],
        session: str = "main",
        *,
        endless: bool = False,
        template: str = "chat_compiler",
        model: Model | str | None = None,
        folder: str | Path | None = None,
        store: str | Path | Store | None = "system/context.db",
        owner: str | None = None,
        vault: str | Path | None = None,
        system: str | Path | None = "system",
        budget: Budget | None = None,
        every_turn: bool = False,
        compile_spend_limit: Money | str | None = None,
        background: bool = False,
        reflections: ReflectionPolicy | None = None,
        notice: Notice | None = None,
        clock: Clock = now,
    ) -> None:
        if not isinstance(agent, AbstractAgent):  # pyright: ignore[reportUnnecessaryIsInstance] # whatever the caller has
            given = one_line(repr(agent), 60)
            raise SettingsError(f"ChatSession({given}): give the Agent first, and then the name of the session")
        self.agent, self.session = agent, session
        self.endless, self.template = endless, template
        self.last: Reply | None = None
        self.usage = Usage()
        self._notice = notice or _ignore
        kept = _store_of(store, owner)
        vault = vault_of(vault, owner := kept.owner if isinstance(kept, Tenants) else None)
        self.vault_name = "" if vault is None else vault.resolve().name
        self.storage = SessionStorage(
            session,
            folder=Path(folder) if folder is not None else with_former(transcript_folder(vault, system, owner), owner),
            store=kept,
            private=folder is None and vault is None,
            vault_name=self.vault_name,
            notice=self._notice,
            clock=clock,
        )
        self._arguments: dict[str, Any] = {
            "model": model,
            "store": self.storage.store,
            "vault": vault,
            "vault_name": self.vault_name,
            "system": system,
            "budget": budget,
            "every_turn": every_turn,
            "compile_spend_limit": compile_spend_limit,
            "background": background,
            "reflections": reflections,
        }
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
        """The capability of Endless mode: one per template, so that switching back finds its summary."""
        if self.template not in self._compilers:
            made = ContextCompiler(on_view=self._on_view, on_error=self._on_error, **self._arguments)
            made.template = self.template  # a missing one is reported at the first turn, and the chat goes on
            made.check()
            self._compilers[self.template] = made
        return self._compilers[self.template]

    async def open(self) -> None:
        """Load the stored conversation; `say` does so too."""
        async with self._opening:
            if not self._opened:
                await self.storage.open(_index_if_long if self.endless else None)
                self._opened = True

    async def say(self, text: str, *, on_text: OnText | None = None, hear: OnText | None = None) -> Reply:
        """Send a prompt and wait for the answer.

        Args:
            text: The prompt. Lone surrogates, which cannot be sent, are replaced.
            on_text: Called with each piece of the answer, after it is on disk.
            hear: Earlier name of `on_text`.

        Raises:
            SettingsError: the prompt is empty, or an answer is still coming.

        Errors of the agent are raised after the turn has been saved as far as it went.
        """
        text = _HALVES.sub("\ufffd", text)
        if not text.strip():
            raise SettingsError("text='': give a prompt")
        if self._pending is not None:
            raise SettingsError("an answer is still coming: wait for it, or stop it")
        self._pending = pending = _PendingReply(on_text=on_text or hear, began=time.perf_counter())
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
            prompt = ModelRequest(parts=[UserPromptPart(text)])
            await self.storage.save_turn(pending.messages or [*self.messages, prompt], pending.shown)
            self.last = pending.finish(stopped=task.cancelled())
            self.usage.add(self.last)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    def _capability(self) -> ContextCompiler:
        """The compiler of Endless mode, or one that records what the normal mode sends."""
        return self.compiler() if self.endless else self.compiler().recorder()

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
                capabilities=[self._capability()],
            )
        pending.messages, pending.output = result.all_messages(), result.output

    def stop(self) -> bool:
        """Stop the answer that is coming and keep what there is of it; False if none is coming."""
        return self._task is not None and self._task.cancel()

    async def compact(self, focus: str = "", *, start: int | str | None = None, preview: bool = False) -> CompileResult:
        """Compile the conversation now, for Endless mode; see `ContextCompiler.compile_now` and `preview`.

        Raises:
            SettingsError: an answer is still coming, the focus is too long, or there is no such turn.
            StoreError: nothing was said yet, or the record cannot be read.
        """
        compiler = await self._steered()
        work = compiler.preview if preview else compiler.compile_now
        model = self.agent.model if compiler.model is None else None
        return await work(self.session, focus, start=start, model=model)

    async def undo(self) -> CompileResult:
        """Go back to the view before the last compile; see `ContextCompiler.undo_compile`."""
        return await (await self._steered()).undo_compile(self.session)

    async def pin(self, message: int | str) -> Pin:
        """Keep a message in every view; see `ContextCompiler.pin`."""
        return await (await self._steered()).pin(self.session, message)

    async def unpin(self, message: int | str) -> Pin:
        """Treat a pinned message like any other again; see `ContextCompiler.unpin`."""
        return await (await self._steered()).unpin(self.session, message)

    async def pins(self) -> tuple[Pin, ...]:
        """The pinned messages."""
        await self.open()
        return await self.compiler().pins(self.session)

    async def _steered(self) -> ContextCompiler:
        """The compiler of the views, while no answer is coming."""
        if self._pending is not None:
            raise SettingsError("an answer is still coming: wait for it, or stop it")
        await self.open()
        return self.compiler()

    async def recall(self, query: str) -> tuple[Passage, ...]:
        """Passages of the whole conversation that match a query, word for word."""
        await self.open()
        return await Recall().passages(self.messages, query)

    async def close(self) -> None:
        """End compiles in the background, and close the record and the transcript."""
        for compiler in self._compilers.values():
            await compiler.aclose()
        await self.storage.close()

    def _on_view(self, view: View) -> None:
        if self._pending is not None:
            self._pending.view = view
            self.usage.add_view(view)

    def _on_error(self, error: Exception) -> None:
        """Report an error of Endless mode once, and again only after a turn without it.

        What keeps a request of the normal mode from the record keeps the turn from it too, which the storage reports.
        """
        if not self.endless and isinstance(error, StoreError):
            return
        key = f"{type(error).__name__}: {error}"
        if key not in self._errors_before | self._errors:
            self._notice(f"{error}; the conversation goes on without")
        self._errors.add(key)


def _input_cost(response: ModelMessage | None) -> Decimal | None:
    """Cost of the input of an answered request, as its provider counted it."""
    if not isinstance(response, ModelResponse) or not response.model_name:
        return None
    usage, price = response.usage, price_of(response.model_name, response.provider_name)
    if price is None:
        return None
    return price.cost(usage.input_tokens, cached=usage.cache_read_tokens, written=usage.cache_write_tokens)


def _index_if_long(history: History) -> None:
    """Build the search index of a long history, which takes seconds."""
    if len(history) >= LONG:
        indexed(history)


def _ignore(message: str) -> None:
    """Drop a notice."""
