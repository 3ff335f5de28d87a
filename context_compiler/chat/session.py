"""One conversation with an agent: everything said is kept, and the mode says how much of it a model is sent.

In the normal mode the agent gets the whole history as it is. In Endless mode a `ContextCompiler` is attached to
the same run, and nothing else changes: not what is kept, not the transcript, not what this module does.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, RunContext, capture_run_messages
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

from context_compiler.chat.reconcile import BETWEEN
from context_compiler.chat.storage import Account, Clock, Notice, now
from context_compiler.chat.transcript import transcripts
from context_compiler.compiler.view import View
from context_compiler.errors import SettingsError
from context_compiler.messages.failures import ReflectionPolicy
from context_compiler.messages.history import History
from context_compiler.middleware.capability import ContextCompiler
from context_compiler.middleware.recall_tools import Recall
from context_compiler.recall.index import indexed
from context_compiler.recall.passages import Passage
from context_compiler.record.store import Store
from context_compiler.settings import Amount

LONG = 2_000
"""Messages from which on a history is made searchable before it has to be."""

_HALVES = re.compile("[\ud800-\udfff]")


class ChatSession:
    """A conversation with any agent that can be gone on with tomorrow, and that may become as long as it likes.

    Args:
        agent: Who answers.
        session: The name of the conversation.
        endless: Whether a model is sent a view instead of the whole history. May be changed between two turns.
        template: What views are written with. May be changed between two turns.
        model: Writes the summaries; None is the agent's own model, "none" asks none.
        folder: Where transcripts are; None is `AssistantMD/Chat_Sessions/` of the vault, else `Chat_Sessions/` of
            `system`.
        store: Where the record is: a path or a `Store`; None keeps it in memory.
        vault: A folder whose templates come first.
        system: A folder whose templates come second.
        budget: Input tokens of one request in Endless mode, or a share of the model's window.
        every_turn: Compile in every turn, not only when there is need.
        reflections: When templates are told what went wrong.
        notice: Told, in a line, what a person should know.
        clock: What time it is.

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
        vault: str | Path | None = None,
        system: str | Path | None = "system",
        budget: Amount | None = None,
        every_turn: bool = False,
        reflections: ReflectionPolicy | None = None,
        notice: Notice | None = None,
        clock: Clock = now,
    ) -> None:
        self.agent, self.session = agent, session
        self.endless, self.template = endless, template
        self.last: Said | None = None
        self.spent = Spent()
        self._notice = notice or _nobody
        vault_name = "" if vault is None else Path(vault).resolve().name
        self.account = Account(
            session,
            folder=Path(folder) if folder is not None else transcripts(vault, system),
            store=store,
            private=folder is None and vault is None,
            vault_name=vault_name,
            notice=self._notice,
            clock=clock,
        )
        self._wanted: dict[str, Any] = {
            "model": model,
            "store": self.account.store,
            "vault": vault,
            "vault_name": vault_name,
            "system": system,
            "budget": budget,
            "every_turn": every_turn,
            "reflections": reflections,
        }
        self._compilers: dict[str, ContextCompiler] = {}
        self._turn: Turn | None = None
        self._task: asyncio.Task[None] | None = None
        self._opened = False
        self._opening = asyncio.Lock()
        self._heard: set[str] = set()
        self._again: set[str] = set()
        self.compiler()

    @property
    def messages(self) -> list[ModelMessage]:
        """The whole history."""
        return self.account.messages

    def compiler(self) -> ContextCompiler:
        """What Endless mode attaches to a run: one for each template, so that switching back finds its summary."""
        if self.template not in self._compilers:
            self._compilers[self.template] = ContextCompiler(
                self.template, on_view=self._seen, on_error=self._failed, **self._wanted
            )
        return self._compilers[self.template]

    async def open(self) -> None:
        """Take up the conversation where it ended; speaking does so too."""
        async with self._opening:
            if not self._opened:
                await self.account.open(_searchable if self.endless else None)
                self._opened = True

    async def say(self, text: str, *, hear: Hear | None = None) -> Said:
        """Say something and wait for the answer.

        Args:
            text: What the user says. Half of a surrogate pair, which nobody can be sent, is replaced.
            hear: Called with each piece of the answer, after it is on disk.

        Raises:
            SettingsError: nothing is said, or an answer is still coming.

        What the agent raises is raised here too, after what was said until then is kept.
        """
        text = _HALVES.sub("\ufffd", text)
        if not text.strip():
            raise SettingsError("text='': say something")
        if self._turn is not None:
            raise SettingsError("an answer is still coming: wait for it, or stop it")
        self._turn = turn = Turn(hear=hear, began=time.perf_counter())
        try:
            await self.open()
            async with self.account.turn(text):
                await self._spoken(text, turn)
        finally:
            self._turn = self._task = None
            self._heard, self._again = self._again, set()
        return self.last or Said(text="")

    async def _spoken(self, text: str, turn: Turn) -> None:
        self._task = task = asyncio.create_task(self._answered(text, turn))
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise
        finally:
            asked = ModelRequest(parts=[UserPromptPart(text)])
            await self.account.keep(turn.messages or [*self.messages, asked], turn.shown)
            self.last = said_of(turn, stopped=task.cancelled())
            self.spent.add(self.last)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    async def _answered(self, text: str, turn: Turn) -> None:
        async def heard(ctx: RunContext[Any], events: AsyncIterable[AgentStreamEvent]) -> None:
            async for event in events:
                piece = turn.piece(event)
                if piece:
                    self.account.answer(piece)
                    if turn.hear is not None:
                        turn.hear(piece)

        if self.endless:
            await self.account.ready()
        with capture_run_messages() as captured:
            turn.messages = captured
            result = await self.agent.run(
                text,
                message_history=list(self.messages),
                conversation_id=self.session,
                event_stream_handler=heard,
                capabilities=[self.compiler()] if self.endless else None,
            )
        turn.messages, turn.output = result.all_messages(), result.output

    def stop(self) -> bool:
        """Stop the answer that is coming; what was said so far is kept. False where none is."""
        return self._task is not None and self._task.cancel()

    async def recall(self, query: str) -> tuple[Passage, ...]:
        """What was said about something, word for word, from all of the conversation."""
        await self.open()
        return await Recall().passages(self.messages, query)

    async def close(self) -> None:
        """Let go of the record and the transcript."""
        await self.account.close()

    def _seen(self, view: View) -> None:
        if self._turn is not None:
            self._turn.view = view
            self.spent.saw(view)

    def _failed(self, error: Exception) -> None:
        """What failed in Endless mode is said once, and again only after a turn without it."""
        about = f"{type(error).__name__}: {error}"
        if about not in self._heard | self._again:
            self._notice(f"{error}; the conversation goes on without")
        self._again.add(about)


def _searchable(history: History) -> None:
    """What a long history is searched by takes seconds to make: better while somebody types."""
    if len(history) >= LONG:
        indexed(history)


def _nobody(message: str) -> None:
    """Nobody wants to know."""


Hear = Callable[[str], object]
"""Called with each piece of an answer, after it is on disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One answer, whole or stopped, and what was sent for it."""

    text: str
    output: Any = None
    """What the agent returned; None where it was stopped."""
    stopped: bool = False
    raw: int = 0
    """Tokens of the whole history at the last request."""
    sent: int = 0
    """Tokens of what was sent instead; in the normal mode the same."""
    cached: int = 0
    """Tokens that the provider had in its prompt cache."""
    view: View | None = None
    """What was sent last, in Endless mode."""
    history: tuple[ModelMessage, ...] = ()
    """The whole history at the last request."""
    first: float | None = None
    """Seconds until the first piece."""
    seconds: float = 0.0


@dataclass(slots=True)
class Spent:
    """What the answers of one chat took together, since it was opened."""

    answers: int = 0
    compiles: int = 0
    """With a model and without."""
    asked: int = 0
    """Compiles that a model was asked for."""
    raw: int = 0
    sent: int = 0
    cached: int = 0

    def saw(self, view: View) -> None:
        """Count the compile of a request in, where it had one."""
        made = view.record.compile if view.record is not None else None
        self.compiles += made is not None
        self.asked += made is not None and made.compiled_prompt is not None

    def add(self, said: Said) -> None:
        """Count one answer in."""
        self.answers += 1
        self.raw += said.raw
        self.sent += said.sent
        self.cached += said.cached


@dataclass(slots=True)
class Turn:
    """An answer while it comes."""

    hear: Hear | None
    began: float
    shown: str = ""
    first: float | None = None
    view: View | None = None
    messages: Sequence[ModelMessage] = ()
    output: Any = None

    def piece(self, event: AgentStreamEvent) -> str:
        """What an event adds to the text; empty for anything else."""
        if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
            text = event.part.content
            piece = f"{BETWEEN}{text}" if self.shown and text else text
        elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
            piece = event.delta.content_delta
        else:
            return ""
        if piece:
            self.first = self.first or time.perf_counter()
            self.shown += piece
        return piece


def said_of(turn: Turn, *, stopped: bool) -> Said:
    """What came of a turn."""
    messages = list(turn.messages)
    answers = [at for at, message in enumerate(messages) if isinstance(message, ModelResponse)]
    response = messages[answers[-1]] if answers else None
    usage = response.usage if isinstance(response, ModelResponse) else RequestUsage()
    record = turn.view.record if turn.view is not None else None
    end = time.perf_counter()
    said = Said(
        text=turn.shown,
        output=turn.output,
        stopped=stopped,
        raw=usage.input_tokens,
        sent=usage.input_tokens,
        cached=usage.cache_read_tokens,
        view=turn.view,
        history=tuple(messages[: answers[-1]] if answers else messages),
        first=None if turn.first is None else turn.first - turn.began,
        seconds=end - turn.began,
    )
    return said if record is None else replace(said, raw=record.tokens_raw, sent=record.tokens_sent)
