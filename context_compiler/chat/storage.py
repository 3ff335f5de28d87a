"""Storage of one session: the history in memory, its markdown transcript, and the lossless record.

One terminal writes at a time, and each reads what another one added before it goes on. A failed write is reported
once and retried; it never stops the conversation.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

from pydantic_ai.messages import ModelMessage, ModelRequest

from context_compiler.chat.reconcile import Reconciled, last_turn, reconcile, visible_turns
from context_compiler.chat.transcript import Transcript
from context_compiler.messages.history import History, load_messages, reader_of
from context_compiler.record.store import Store, open_store
from context_compiler.resilience import Breaker, try_await
from context_compiler.tokens import as_counter

Notice = Callable[[str], None]
Clock = Callable[[], datetime]

WRITTEN_LATER = "new text stays in memory and is written later"


class SessionStorage:
    """The history of one session, and the places where it is kept.

    Args:
        session: Name of the session.
        folder: Folder of its transcript.
        private: Make the parent of `folder`, if it has to be made, readable by its owner alone.
        store: Store of the record.
        vault_name: Name of the vault, as on the record.
        notice: Called with each line that a person should read.
        clock: Source of the current time.
    """

    def __init__(
        self,
        session: str,
        *,
        folder: Path,
        private: bool,
        store: str | Path | Store | None,
        vault_name: str,
        notice: Notice,
        clock: Clock,
    ) -> None:
        self.session = session
        self.transcript = Transcript(folder, session, private=private)
        self.store = open_store(store)
        self.messages: list[ModelMessage] = []
        self._vault = vault_name
        self._notice, self._clock = notice, clock
        self._state: tuple[int, int] | None = None
        self._reader = reader_of(as_counter(None))
        self._history: History | None = None
        self._reading = asyncio.Lock()
        self._preparation: asyncio.Task[object] | None = None
        self._breaker = Breaker()
        self._failing: set[str] = set()

    async def open(self, prepare: Callable[[History], object] | None = None) -> None:
        """Load the conversation, and repair what a killed process has left unfinished.

        Args:
            prepare: Called with the history in the background, to compute what the next turn needs.
        """
        locked = self.transcript.acquire()
        try:
            await self._load(writing=locked)
        finally:
            if locked:
                self.transcript.release()
        if not locked:
            self._notice("another terminal is answering in this session: you take turns")
        self._preparation = asyncio.create_task(try_await(self._prepare(prepare)))

    async def _prepare(self, prepare: Callable[[History], object] | None) -> None:
        history = await self.read()
        if prepare is not None:
            await asyncio.to_thread(prepare, history)

    async def ready(self) -> None:
        """Wait until the history has been read and prepared."""
        if self._preparation is not None:
            await asyncio.wait({self._preparation})

    @asynccontextmanager
    async def turn(self, text: str) -> AsyncGenerator[None]:
        """One turn, with the lock held; the prompt is on disk before the body runs."""
        async with self.transcript.hold(self._notify_waiting):
            await self._catch_up()
            self.transcript.begin_turn(text, self._clock())
            yield

    def _notify_waiting(self) -> None:
        self._notice("another terminal is answering in this session: waiting for it")

    async def save_turn(self, messages: Sequence[ModelMessage], shown: str) -> None:
        """Save a turn, complete or not.

        Args:
            messages: The whole history, this turn included.
            shown: Answer text that is in the transcript already.
        """
        self.messages = list(messages)
        last = visible_turns(last_turn(self.messages))
        answer = last[-1].assistant or "" if last else ""
        if answer.startswith(shown) and len(answer) > len(shown):
            self.transcript.write_answer(answer[len(shown) :])
        self.transcript.end_turn()
        self._state = self.transcript.state()
        self._report("transcript", self.transcript.fault, WRITTEN_LATER)
        await self._archive()

    async def close(self) -> None:
        """Close the record and the transcript."""
        if self._preparation is not None:
            await self._preparation
        await try_await(self.store.close())
        self.transcript.close()

    async def refresh(self) -> None:
        """Load the turns that another terminal has completed, without waiting for it."""
        if self.transcript.state() != self._state:
            await self._load(writing=False)

    async def _catch_up(self) -> None:
        """Load the turns that another terminal has added."""
        if self.transcript.state() == self._state:
            return
        before = len(visible_turns(self.messages))
        await self._load(writing=True)
        more = len(visible_turns(self.messages)) - before
        if more > 0:
            turns = "a turn" if more == 1 else f"{more} turns"
            self._notice(f"another terminal added {turns}: the conversation continues from there")

    async def _load(self, *, writing: bool) -> None:
        outcome = await try_await(self._recorded_messages())
        self._report("record", outcome.error, "the transcript is used instead")
        found = await asyncio.to_thread(self._reconcile, outcome.value or [], self.messages, writing)
        self.messages = found.messages
        if found.conflict:
            self._notice(
                f"{self.transcript.path}: turn {found.conflict} differs from the record; the record is used,"
                " and the file is left as it is"
            )
        if writing and not found.conflict:
            self._complete_last_turn(found)
        if writing:
            self.transcript.repair()
            self.transcript.append(found.missing, self._clock())
        self._state = self.transcript.state()
        self._report("transcript", self.transcript.fault, WRITTEN_LATER)

    def _complete_last_turn(self, found: Reconciled) -> None:
        """Write the rest of a prompt and of an answer that could not be written at the time."""
        if found.prompt_rest:
            self.transcript.complete_prompt(found.prompt_rest)
        if found.answer_rest:
            self.transcript.complete_answer(found.answer_rest, begun=found.answer_begun)

    def _reconcile(self, recorded: list[ModelMessage], held: list[ModelMessage], complete: bool) -> Reconciled:
        """Reconcile both sides; unless `complete`, the last turn, which another terminal is in, is left out."""
        if not complete and recorded and isinstance(recorded[-1], ModelRequest):
            recorded = recorded[: len(recorded) - len(last_turn(recorded))]
        turns, held_turns = visible_turns(recorded), visible_turns(held)
        base, turns = (recorded, turns) if len(turns) >= len(held_turns) else (held, held_turns)
        written = self.transcript.read(turns)
        return reconcile(base, turns, written if complete else written[:-1])

    async def _recorded_messages(self) -> list[ModelMessage]:
        """The history on the record; if several vaults have a session of this name, this vault's."""
        known = [info for info in await self.store.sessions() if info.session_id == self.session]
        mine = next((info for info in known if info.vault_name == self._vault), None)
        if mine is None or mine.raw_tip is None:
            return []
        alone = len(known) == 1
        bodies = await (self.store.transcript(self.session) if alone else self.store.chain(mine.raw_tip))
        return await asyncio.to_thread(load_messages, bodies)

    async def read(self) -> History:
        """The history with tokens and ids; only new messages are read, in a thread."""
        async with self._reading:
            self._history = await asyncio.to_thread(self._reader.read, self.messages, last=self._history)
            return self._history

    async def _archive(self) -> None:
        if self._breaker.open:
            return
        outcome = await try_await(self._save())
        if outcome.error is None:
            self._breaker.succeeded()
        else:
            self._breaker.failed()
        self._report("record", outcome.error, "the next turn saves this one too")

    async def _save(self) -> None:
        await self.store.archive(self.session, self._vault, (await self.read()).chain)

    def _report(self, place: str, failure: Exception | str | None, consequence: str) -> None:
        """Report a failed write once, and again only after a success."""
        if failure is None:
            if place in self._failing:
                self._notice(f"the {place} works again")
            self._failing.discard(place)
        elif place not in self._failing:
            self._failing.add(place)
            self._notice(f"{failure}; {consequence}")
