"""Everything that was said in a session: in memory, in its markdown, and without loss on the record.

Only one terminal speaks at a time, and each hears what another one said before it goes on. Whatever cannot be
written is said once and tried again; nothing of it stops the conversation.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from pydantic_ai.messages import ModelMessage

from context_compiler.chat.reconcile import Healed, healed, last_turn, said
from context_compiler.chat.transcript import Transcript
from context_compiler.messages.history import History, load_messages, reader_of
from context_compiler.record.store import SQLiteStore, Store, open_store
from context_compiler.resilience import Breaker, try_await
from context_compiler.tokens import as_counter

Notice = Callable[[str], None]
Clock = Callable[[], datetime]


class LastingStore(SQLiteStore):
    """A record that stays open from turn to turn: who holds it lets go of it, not every run that has used it."""

    async def close(self) -> None:
        """Stay open."""

    async def end(self) -> None:
        """Let go of the file."""
        await super().close()


def now() -> datetime:
    """The time, in UTC."""
    return datetime.now(UTC)


class Account:
    """What is known of one session, and where it is kept.

    Args:
        session: Its name.
        folder: Where its transcript is.
        private: Whether what that folder lies in is its owner's alone, where it has to be made.
        store: Where its record is.
        vault_name: What its vault is called on the record.
        notice: Told what a person should know.
        clock: What time it is.
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
        self.store = LastingStore(store) if isinstance(store, str | Path) else open_store(store)
        self.messages: list[ModelMessage] = []
        self._vault = vault_name
        self._notice, self._clock = notice, clock
        self._state: tuple[int, int] | None = None
        self._reader = reader_of(as_counter(None))
        self._read: History | None = None
        self._reading = asyncio.Lock()
        self._early: asyncio.Task[object] | None = None
        self._breaker = Breaker()
        self._silent: set[str] = set()

    async def open(self, prepare: Callable[[History], object] | None = None) -> None:
        """Take up the whole conversation, and close what a killed process has left open.

        Args:
            prepare: What is to be made of the history before it is needed.
        """
        mine = self.transcript.taken()
        try:
            await self._taken_up(writing=mine)
        finally:
            if mine:
                self.transcript.let_go()
        if not mine:
            self._notice("another terminal is answering in this session: you speak in turn")
        self._early = asyncio.create_task(try_await(self._prepared(prepare)))

    async def _prepared(self, prepare: Callable[[History], object] | None) -> None:
        history = await self.read()
        if prepare is not None:
            await asyncio.to_thread(prepare, history)

    async def ready(self) -> None:
        """Wait until the history has been read and prepared."""
        if self._early is not None:
            await asyncio.wait({self._early})

    @asynccontextmanager
    async def turn(self, text: str) -> AsyncGenerator[None]:
        """One turn: nobody else speaks, and what the user says is on disk before anything is asked."""
        async with self.transcript.held(self._waiting):
            await self._caught_up()
            self.transcript.ask(text, self._clock())
            yield

    def _waiting(self) -> None:
        self._notice("another terminal is answering in this session: waiting for it")

    def answer(self, piece: str) -> None:
        """A piece of the answer: on disk before it is on a screen."""
        self.transcript.answer(piece)

    async def keep(self, messages: Sequence[ModelMessage], shown: str) -> None:
        """The turn is over, whole or not: `messages` is the history now, `shown` what was shown of the answer."""
        self.messages = list(messages)
        last = said(last_turn(self.messages))
        whole = last[-1].assistant or "" if last else ""
        if whole.startswith(shown) and len(whole) > len(shown):
            self.transcript.answer(whole[len(shown) :])
        self.transcript.end()
        self._state = self.transcript.state()
        self._complain("transcript", self.transcript.fault, "what is said stays in memory and is written later")
        await self._archived()

    async def close(self) -> None:
        """Let go of everything."""
        if self._early is not None:
            await self._early
        await try_await(self.store.end() if isinstance(self.store, LastingStore) else self.store.close())
        self.transcript.close()

    async def _caught_up(self) -> None:
        """What another terminal said meanwhile is part of the conversation."""
        if self.transcript.state() == self._state:
            return
        before = len(said(self.messages))
        await self._taken_up(writing=True)
        more = len(said(self.messages)) - before
        if more > 0:
            turns = "a turn" if more == 1 else f"{more} turns"
            self._notice(f"another terminal added {turns}: the conversation goes on from there")

    async def _taken_up(self, *, writing: bool) -> None:
        outcome = await try_await(self._stored())
        self._complain("record", outcome.error, "the transcript stands in for it")
        found = await asyncio.to_thread(self._healed, outcome.value or [], self.messages, writing)
        self.messages = found.messages
        if found.conflict:
            self._notice(
                f"{self.transcript.path}: turn {found.conflict} is not what the record has; the record is what counts"
            )
        if writing and not found.conflict:
            self._written(found)
        if writing:
            self.transcript.mend()
            self.transcript.tell(found.missing, self._clock())
        self._state = self.transcript.state()
        self._complain("transcript", self.transcript.fault, "what is said stays in memory and is written later")

    def _written(self, found: Healed) -> None:
        """The rest of a prompt and of an answer that could not be written at the time."""
        if found.torn:
            self.transcript.ask_on(found.torn)
        if found.rest:
            self.transcript.go_on(found.rest, begun=found.begun)

    def _healed(self, stored: list[ModelMessage], held: list[ModelMessage], whole: bool) -> Healed:
        """Both sides brought up to date; of a turn that another terminal is in, nothing is taken yet."""
        own, mine = said(stored), said(held)
        base, own = (stored, own) if len(own) >= len(mine) else (held, mine)
        told = self.transcript.read(own)
        return healed(base, own, told if whole else told[:-1])

    async def _stored(self) -> list[ModelMessage]:
        """The history as the record has it; of several vaults' sessions of that name, this one's."""
        known = [info for info in await self.store.sessions() if info.session_id == self.session]
        mine = next((info for info in known if info.vault_name == self._vault), None)
        if mine is None or mine.raw_tip is None:
            return []
        alone = len(known) == 1
        bodies = await (self.store.transcript(self.session) if alone else self.store.chain(mine.raw_tip))
        return await asyncio.to_thread(load_messages, bodies)

    async def read(self) -> History:
        """The history as the record names it; read once, off the loop, and begun before it is needed."""
        async with self._reading:
            self._read = await asyncio.to_thread(self._reader.read, self.messages, last=self._read)
            return self._read

    async def _archived(self) -> None:
        if self._breaker.open:
            return
        outcome = await try_await(self._saved())
        if outcome.error is None:
            self._breaker.succeeded()
        else:
            self._breaker.failed()
        self._complain("record", outcome.error, "the next turn is kept with all before it")

    async def _saved(self) -> None:
        await self.store.archive(self.session, self._vault, await self.read())

    def _complain(self, about: str, failure: Exception | str | None, so: str) -> None:
        """Say what keeps something from being kept, once until it has worked again."""
        if failure is None:
            if about in self._silent:
                self._notice(f"the {about} is kept again")
            self._silent.discard(about)
        elif about not in self._silent:
            self._silent.add(about)
            self._notice(f"{failure}; {so}")
