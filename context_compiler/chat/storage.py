"""Storage of one session: the history in memory, its markdown transcript, and the lossless record.

Only one terminal writes at a time; before its turn, each loads the turns that others have added. A failed write is
reported once and retried. It never stops the conversation.
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
from context_compiler.messages.bodies import load_messages
from context_compiler.messages.history import History, reader_of
from context_compiler.paths import unify_lines
from context_compiler.record.files import locate
from context_compiler.record.store import SQLiteStore, Store
from context_compiler.resilience import Breaker, try_await
from context_compiler.tokens import as_counter

Notice = Callable[[str], None]
Clock = Callable[[], datetime]

WRITTEN_LATER = "new text stays in memory and is written later"


class SessionStorage:
    """The history of one session, in memory, in its transcript and in the record.

    Args:
        session: Name of the session.
        folder: Folder of its transcript.
        private: If the parent of `folder` has to be created, make it readable only by its owner.
        store: Store of the record.
        vault_name: Name of the vault, as recorded.
        notice: Called with each message for the user, one line.
        clock: Source of the current time.
    """

    def __init__(
        self,
        session: str,
        *,
        folder: Path,
        private: bool,
        store: Store,
        vault_name: str,
        notice: Notice,
        clock: Clock,
    ) -> None:
        self.session = session
        self.transcript = Transcript(folder, session, private=private)
        self.store = store
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
        self._is_repaired = False

    @property
    def has_record(self) -> bool:
        """False if the record is a file that does not exist yet, and that reading it would create."""
        return not isinstance(self.store, SQLiteStore) or locate(self.store.path).exists()

    async def open(self, prepare: Callable[[History], object] | None = None, *, writing: bool = True) -> None:
        """Load the conversation.

        Args:
            prepare: Called with the history in the background, to compute in advance what the next turn needs.
            writing: Repair what a killed process left unfinished; if False, the next turn does so.
        """
        locked = writing and self.transcript.acquire()
        try:
            await self._load(writing=locked, complete=locked or self.transcript.is_free)
        finally:
            if locked:
                self.transcript.release()
        if writing and not locked:
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
        """Hold the lock for one turn; the prompt is on disk before the body runs."""
        waiting = "another terminal is answering in this session: waiting for it"
        async with self.transcript.hold(lambda: self._notice(waiting)):
            await self._catch_up()
            self.transcript.begin_turn(text, self._clock())
            yield

    async def save_turn(self, messages: Sequence[ModelMessage], shown: str) -> None:
        """Save a turn, complete or not.

        Args:
            messages: The whole history, this turn included.
            shown: Answer text that is already in the transcript.
        """
        self.messages = list(messages)
        last = visible_turns(last_turn(self.messages))
        answer = last[-1].assistant or "" if last else ""
        shown = unify_lines(shown)
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
        """Load the turns that another terminal has completed, without waiting for its current one."""
        if self.transcript.state() != self._state:
            await self._load(writing=False, complete=False)

    async def _catch_up(self) -> None:
        """Load the turns that another terminal has added, and notify the user of them."""
        if self._is_repaired and self.transcript.state() == self._state:
            return
        before = len(visible_turns(self.messages))
        await self._load(writing=True, complete=True)
        more = len(visible_turns(self.messages)) - before
        if more > 0:
            turns = "a turn" if more == 1 else f"{more} turns"
            self._notice(f"another terminal added {turns}: the conversation continues from there")

    async def _load(self, *, writing: bool, complete: bool) -> None:
        outcome = await try_await(self._recorded_messages())
        self._report("record", outcome.error, "the transcript is used instead")
        merged = await asyncio.to_thread(self._reconcile, outcome.value or [], self.messages, complete)
        self._is_repaired = self._is_repaired or writing
        self.messages = merged.messages
        if self.transcript.foreign:
            self._notice(
                f"{self.transcript.path}: is no transcript: none of its lines is **User:**; turns are added at its end"
            )
        if merged.conflict:
            self._notice(
                f"{self.transcript.path}: turn {merged.conflict} differs from the record; the record is used,"
                " and the file is left as it is"
            )
        if writing:  # the rest of a write that was cut short; there is none if the last turns differ
            if merged.prompt_rest:
                self.transcript.complete_prompt(merged.prompt_rest)
            if merged.answer_rest:
                self.transcript.complete_answer(merged.answer_rest, begun=merged.answer_begun)
            self.transcript.repair()
            self.transcript.append(merged.missing, self._clock())
        self._state = self.transcript.state()
        self._report("transcript", self.transcript.fault, WRITTEN_LATER)

    def _reconcile(self, recorded: list[ModelMessage], loaded: list[ModelMessage], complete: bool) -> Reconciled:
        """Merge the record, the messages in memory and the transcript.

        Unless `complete`, the last turn is skipped, because another terminal is still writing it.
        """
        if not complete and recorded and isinstance(recorded[-1], ModelRequest):
            recorded = recorded[: len(recorded) - len(last_turn(recorded))]
        turns, loaded_turns = visible_turns(recorded), visible_turns(loaded)
        base, turns = (recorded, turns) if len(turns) >= len(loaded_turns) else (loaded, loaded_turns)
        written = self.transcript.read(turns)
        return reconcile(base, turns, written if complete else written[:-1])

    async def _recorded_messages(self) -> list[ModelMessage]:
        """Load the recorded history; if several vaults have a session of this name, take this vault's."""
        if not self.has_record:
            return []
        infos = [info for info in await self.store.sessions() if info.session_id == self.session]
        mine = next((info for info in infos if info.vault_name == self._vault), None)
        if mine is None or mine.raw_tip is None:
            return []
        bodies = await self.store.transcript(self.session, self._vault)
        return await asyncio.to_thread(load_messages, bodies)

    async def read(self) -> History:
        """Return the history with token counts and ids; only new messages are processed, in a thread."""
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

    def _report(self, target: str, failure: Exception | str | None, consequence: str) -> None:
        """Report a failed write once, and again only after a success."""
        if failure is None:
            if target in self._failing:
                self._notice(f"the {target} works again")
            self._failing.discard(target)
        elif target not in self._failing:
            self._failing.add(target)
            self._notice(f"{failure}; {consequence}")
