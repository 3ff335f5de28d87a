"""The archive of a compiler: saves views, compiles, cycles and raw history to one store, and loads them from it.

A failing store never stops a request: the error is reported, and after three failures the store is not used for a
while. A write that failed because of a locked file or a full disk is repeated before the next write (`late`).
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Generator, Hashable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic_ai.messages import ModelMessage

from context_compiler.cache import Memo
from context_compiler.compiler.cycle import Blocks, Cycle
from context_compiler.compiler.summary import SummaryResponse
from context_compiler.errors import StoreError
from context_compiler.messages.history import PROMPT, History, Reader, load_messages
from context_compiler.middleware.arguments import Arguments
from context_compiler.middleware.late import LateWrites, Write, is_passing
from context_compiler.middleware.others import other_mentions
from context_compiler.middleware.state import Result
from context_compiler.recall.others import Mention
from context_compiler.record import rows
from context_compiler.record.database import Moment
from context_compiler.record.files import BUSY_TIMEOUT_MS
from context_compiler.record.maintenance import RETRY_AGE_DAYS
from context_compiler.record.redaction import (
    METADATA,
    REDACTED,
    Redactor,
    compile_without_content,
    without_content,
)
from context_compiler.record.rows import BrokenReference, Removed
from context_compiler.record.sessions import claim_compile, renew_claim
from context_compiler.record.sql_store import SQLStore
from context_compiler.record.store import Steered, Store, Tenants, open_store
from context_compiler.record.values import COMPILE, UNDO, Action, Compile, Entry, Record, with_null_reasons
from context_compiler.record.values import Cycle as StoredCycle
from context_compiler.resilience import Breaker, Report, await_within, try_await

ANSWERS = 200
"""Maximum answers in memory, for records that may not store them."""

CYCLES = 1_000
"""Maximum cycles in memory, over all conversations."""

SESSIONS = 16
"""Maximum conversations whose raw history is in memory, so that a window of it is recognized without a read."""

FRESH_S = 86_400.0 * RETRY_AGE_DAYS
"""Seconds for which a raw history in memory is used: a prune of older conversations leaves no note on the record."""

T = TypeVar("T")

NEWEST = 50
"""Maximum number of requests without a budget after the newest one with a budget."""

STEPS = 32
"""Maximum cycles in memory per conversation; they let a compile be undone."""

PACKAGE = f"{__name__.partition('.')[0]}."

RECALLED = "+recalled"
"""Suffix of the configuration under which recall blocks are saved."""

OVERLAP = 2
"""Minimum number of messages that a window must share with the record."""

_REPORTED: ContextVar[set[str] | None] = ContextVar("reported", default=None)
"""Errors of the store that were reported in the current request; None outside a request."""


@contextmanager
def one_request() -> Generator[None]:
    """Report the same error of the store only once, although several steps of a request meet it."""
    token = _REPORTED.set(reported := set[str]())
    try:
        yield
    finally:
        _REPORTED.reset(token)
        reported.clear()


class Archive:
    """The record of one compiler."""

    def __init__(self, arguments: Arguments, report: Report) -> None:
        """Open nothing yet."""
        self._arguments = arguments
        self._cycles: Memo[tuple[str, str], Cycle] = Memo(CYCLES)
        self._blocks: Memo[tuple[str, str], Blocks] = Memo(CYCLES)
        self._histories: Memo[tuple[str | None, str], tuple[History, Moment]] = Memo(SESSIONS)
        self._report = report
        self._opened: list[Store] = []
        """The store once it is open, else empty; shared with the archives of other owners."""
        self._breaker = Breaker()
        self._redactor = Redactor(arguments.redact) if arguments.redact else None
        self._answers: Memo[str, SummaryResponse] = Memo(ANSWERS)
        self._session_cycles: Memo[tuple[str | None, str], tuple[Cycle, ...]] = Memo(CYCLES)
        self._actions: Memo[tuple[str | None, str], tuple[Action, ...]] = Memo(CYCLES)
        self._late = LateWrites(report) if arguments.store is not None else None
        """None for a record in memory, whose writes cannot be delayed by a lock or a full disk."""
        self.owner: str | None = arguments.static_owner
        """Owner of the record; None if the owner is unknown, in which case nothing is saved or found."""

    def scoped(self, owner: str | None) -> Archive:
        """The archive of another owner with the same caches; for None, an archive that saves and finds nothing."""
        if owner == self.owner:
            return self
        other = copy(self)
        other.owner = owner
        return other

    def conversation(self, session_id: str) -> Hashable:
        """Key of a conversation, the same for all compilers of this process that share the record."""
        return self.compile_key(session_id), self.owner, self._arguments.place

    @property
    def store(self) -> Store:
        """The store, opened on first use."""
        if not self._opened:
            patience = min(BUSY_TIMEOUT_MS, int(1000 * self._arguments.timeout))
            self._opened.append(open_store(self._arguments.store, busy_timeout_ms=patience))
        return _scoped(self._opened[0], self.owner)

    @property
    def keeps_content(self) -> bool:
        """True if the record keeps content unchanged, so that it can be reused."""
        return self._arguments.record == "full" and self._redactor is None and self.owner is not None

    async def keep(
        self, record: Record, result: Result, cycle: Cycle | None, blocks: Blocks | None, tools: str | None
    ) -> Record:
        """Save a request that was sent with `tools`; return the saved record, or the given one if that failed."""
        if self._arguments.record == "off":
            return with_null_reasons(record, {"summary_id": "record is off"})
        write = partial(self._save, record, result, cycle, blocks, tools)
        kept = await self._write(record.session_id, write)
        return with_null_reasons(record, {"summary_id": "not stored, or stored later"}) if kept is None else kept

    def _store_for(self, tried: Moment | None) -> Store:
        """The store for a write; `tried` is the time of its first attempt, if that has passed."""
        store = self.store
        return store.late(tried) if tried is not None and isinstance(store, SQLStore) else store

    async def _save(
        self,
        record: Record,
        result: Result,
        cycle: Cycle | None,
        blocks: Blocks | None,
        tools: str | None,
        tried: Moment | None,
    ) -> Record:
        store = self._store_for(tried)
        view = result.sent.view_chain
        entry = Entry(record=record, raw=result.raw.chain, view=view, compile=result.row, tools=tools)
        if self._arguments.record == "metadata":
            entry = without_content(entry)
        elif self._redactor is not None:
            entry = self._redactor.entry(entry)
        else:
            entry = replace(entry, cycle=_stored_cycle(cycle), blocks=_stored_blocks(blocks))
        try:
            return replace(await store.save(entry), compile=result.row)
        except BrokenReference:
            if record.summary_id is None:
                raise
        gone = with_null_reasons(replace(entry.record, summary_id=None), {"summary_id": "its row is gone"})
        return replace(await store.save(replace(entry, record=gone)), compile=result.row)

    async def announce_compile(self, session_id: str, model: str, seconds: float) -> tuple[int, datetime] | None:
        """Show on the record, for at most `seconds`, that a model is writing a summary; None if it is not shown.

        The announcement is optional: it is skipped if the store has failed, and its own failure does not count.
        """
        shown = self._arguments.record != "off" and (self._arguments.store is not None or self._opened)
        if shown and self.owner is not None and not self._breaker.failures:
            given = session_id, self._arguments.place, model, seconds
            return (await try_await(self._on_sql(lambda store: store.announce_compile(*given)))).value
        return None

    async def _on_sql(self, work: Callable[[SQLStore], Awaitable[T]]) -> T | None:
        """Run `work` on an SQL store; None for any other store."""

        async def done() -> T | None:
            store = self.store
            return await work(store) if isinstance(store, SQLStore) else None

        return cast("T | None", await self._within_limit(done))

    async def withdraw_compile(self, announced: tuple[int, datetime]) -> None:
        """Remove the announcement of a call that has ended."""
        await try_await(self._on_sql(lambda store: store.withdraw_compile(*announced)))

    async def last_request(self, session_id: str) -> Record | None:
        """The newest recorded request of a conversation; None if there is none in this vault that can be reused."""
        if not self.keeps_content:
            return None
        found = await self._try(lambda: self.store.views(session_id, limit=1))
        return found[0] if found and found[0].vault_name == self._arguments.place else None

    async def compiles(self, session_id: str) -> list[Compile] | None:
        """The recorded compiles of a session; None if there is no record or it cannot be read."""
        if self._arguments.record == "off" or self.owner is None:
            return None
        return await self._try(lambda: self.store.summaries(session_id))

    async def bodies(self, tip: str) -> list[bytes]:
        """Message bodies of a recorded chain; empty if they cannot be read."""
        return await self._try(lambda: self.store.chain(tip)) or []

    async def save_raw(self, session_id: str, history: History) -> None:
        """Save a raw history without a request: the last answer of a run extends it."""
        if self._arguments.record == "full":
            await self._write(session_id, partial(self._save_raw, session_id, history))

    async def _save_raw(self, session_id: str, history: History, tried: Moment | None) -> bool:
        chain = self._redactor.chain(history.chain) if self._redactor else history.chain
        await self._store_for(tried).archive(session_id, self._arguments.place, chain)
        return True

    async def _write(self, session_id: str, work: Write) -> Any:
        """Execute a write after the delayed ones, and return its result; None if it failed or was delayed."""
        late = self._late
        if not self._breaker.open:
            write = partial(work, None) if late is None else partial(self._write_in_order, late, session_id, work)
            return await self._try(write, writes=True)
        if late is not None and late.is_unavailable:
            await try_await(self._delay(late, session_id, Moment(), work))
        return None

    async def _write_in_order(self, late: LateWrites, session_id: str, work: Write) -> Any:
        tried = Moment()
        try:
            if not late.waiting or await late.catch_up((self.owner, session_id)):
                return await work(None)
        except StoreError as error:
            if is_passing(error):
                await self._delay(late, session_id, tried, work)
            raise
        await self._delay(late, session_id, tried, work)
        return None

    async def _delay(self, late: LateWrites, session_id: str, tried: Moment, work: Write) -> None:
        """Delay a write, if its store can later tell whether content was deleted in the meantime."""
        if self.owner is not None and self._opened and isinstance(self._opened[0], SQLStore):
            await late.delay((self.owner, session_id), tried, work)

    async def catch_up(self) -> None:
        """Execute the delayed writes, or report why they must wait."""
        late = self._late
        if late is None or not late.waiting:
            return
        error = (await try_await(self._within_limit(late.catch_up))).error
        if error is not None:
            waiting = f"{len(late)} {'write waits' if len(late) == 1 else 'writes wait'} for the record"
            await self._report(StoreError(f"{waiting} and may yet be lost: {error}"))

    async def _try(self, work: Callable[[], Awaitable[Any]], *, writes: bool = False) -> Any:
        """Result of a store operation; None if it failed, if the breaker is open, or if the owner is unknown.

        A record in memory is not read before the first write, because it is empty until then.
        """
        blank = self._arguments.store is None and not self._opened and not writes
        if blank or self._breaker.open or self.owner is None:
            return None
        outcome = await try_await(self._within_limit(work))
        if outcome.error is None:
            if writes:  # a full disk or a locked file can still be read, so only writes count
                self._breaker.succeeded()
            return outcome.value
        if not isinstance(outcome.error, Removed):
            if self._late is not None:
                self._late.is_unavailable = is_passing(outcome.error)
            self._breaker.failed()
        await self._report_failure(outcome.error)
        return None

    async def _report_failure(self, error: Exception) -> None:
        reported, cause = _REPORTED.get(), f"{type(error).__name__}: {error}"
        if reported is not None:
            if cause in reported:
                return
            reported.add(cause)
        await self._report(error)

    async def _within_limit(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Await a store operation within the time limit; the stores of this package have their own limits.

        Raises:
            StoreError: The operation took too long.
        """
        given, limit = self._arguments.store, self._arguments.timeout
        if given is None or isinstance(given, str | Path) or type(given).__module__.startswith(PACKAGE):
            return await work()
        late = StoreError(f"{type(given).__name__} did not answer within {limit:g} s (timeout)")
        return await await_within(limit, work(), late)

    def compile_key(self, key: str) -> Hashable:
        """Key of a compile, the same for all compilers of this process that share the record."""
        given = self._arguments.store
        if not self.keeps_content or given is None:
            return id(self), key
        path = given if isinstance(given, str | Path) else getattr(given, "path", None)
        return os.path.abspath(path) if isinstance(path, str | Path) else id(given), key

    async def find_answer(self, key: str) -> SummaryResponse | None:
        """An earlier answer to the same summary request, from memory or the record; None if there is none."""
        made = self._answers.get(key)
        if made is not None or not self.keeps_content:
            return made
        found = await self._try(lambda: self.store.find_compile(key))
        return SummaryResponse(text=found[1].raw_output, row=found[0]) if found and found[1].raw_output else None

    async def claim_compile(self, key: str, holder: str, seconds: float) -> bool | None:
        """Claim a model call; False while another process holds the claim, None if the record cannot tell.

        Like an announcement, a claim is skipped if the store has failed, and its own failure does not count.
        """
        if not self.keeps_content or self._arguments.store is None or self._breaker.failures:
            return None
        work = partial(claim_compile, cache_key=key, holder=holder, seconds=seconds)
        return (await try_await(self._on_sql(lambda store: store.perform(work)))).value

    async def renew_claim(self, key: str, holder: str, seconds: float) -> None:
        """Renew a claim for `seconds`; after that, other processes may make the same call."""
        work = partial(renew_claim, cache_key=key, holder=holder, seconds=seconds)
        await try_await(self._on_sql(lambda store: store.perform(work)))

    def remember(self, key: str, answer: SummaryResponse) -> None:
        """Keep an answer in memory until it is recorded, or for good if the record may not store it."""
        self._answers.keep(key, replace(answer, usage={}, cost=None))

    def forget_answer(self, text: str) -> None:
        """Remove a summary from memory, so that it is not shared after a user has undone its compile."""
        self._answers.discard(lambda answer: answer.text == text)

    def remember_cycle(self, cycle: Cycle, session_id: str) -> None:
        """Keep a cycle in memory under the last message it decides on; the least recently used is evicted first."""
        self._cycles.keep((cycle.tip, cycle.config), cycle)
        made = self._session_cycles.get((self.owner, session_id)) or ()
        self._session_cycles.keep(
            (self.owner, session_id), (*(one for one in made if one.tip != cycle.tip), cycle)[-STEPS:]
        )

    async def cycle(self, ids: Sequence[str], config: str, former: str | None = None) -> Cycle | None:
        """The newest cycle of the longest known prefix of a history, in memory or on the record.

        Args:
            ids: Chain ids of the history.
            config: Configuration of the cycle.
            former: An earlier name of `config`, under which older files store cycles.
        """
        tips = reversed(ids) if self._cycles else ()
        found = next((found for tip in tips if (found := self._cycles.get((tip, config)))), None)
        if found is None and self.keeps_content:
            stored = await self._try(lambda: self.store.find_cycle(ids, config))
            if stored is None and former is not None and self._arguments.store is not None:
                stored = await self._try(lambda: self.store.find_cycle(ids, former))
            found = Cycle.from_json(stored.state) if stored else None
            found = replace(found, config=config) if found is not None else None
        return found

    async def link_compile(self, cycle: Cycle, session_id: str) -> Cycle:
        """Link a cycle to the row of its compile in the newest request: a cycle is saved before that row has an id."""
        if cycle.summary_id is not None or not cycle.summary or not self.keeps_content:
            return cycle
        newest_request = await self.newest_request(session_id)
        made = newest_request.compile if newest_request is not None else None
        if newest_request is None or made is None or (made.raw_output or "").strip() != cycle.summary:
            return cycle
        return replace(cycle, summary_id=newest_request.summary_id)

    async def actions(self, session_id: str) -> list[Action]:
        """User actions on a conversation, oldest first: those on the record, else those of this process."""
        found = await self._try(lambda: self._stored_actions(session_id)) if self.keeps_content else None
        return list(self._actions.get((self.owner, session_id)) or ()) if found is None else found

    async def _stored_actions(self, session_id: str) -> list[Action] | None:
        store = self.store
        return await store.actions(session_id, self._arguments.place) if isinstance(store, Steered) else None

    async def save_action(
        self, session_id: str, action: Action, began: Moment, *, after: int, row: Compile | None = None
    ) -> Action:
        """Save a user action on a conversation, and the compile that it made; later pins do not prevent a compile.

        Raises:
            StoreError: The action could not be saved, content was deleted since the conversation was read, or another
                action came first; nothing was saved.
        """
        store, place = self._store_for(began) if self.keeps_content else None, self._arguments.place
        if isinstance(store, Steered):
            try:
                action = await store.save_action(session_id, place, action, after=after, compile=row)
            except StoreError:
                newer = [one for one in await store.actions(session_id, place) if one.number > after]
                kinds = {one.kind for one in newer}
                if action.kind != COMPILE or not newer or kinds & {COMPILE, UNDO}:
                    raise
                action = await store.save_action(session_id, place, action, after=newer[-1].number, compile=row)
        else:
            await self.keep_unsent(row, began)
            action = replace(action, number=after + 1)
        self._actions.keep((self.owner, session_id), (*(self._actions.get((self.owner, session_id)) or ()), action))
        return action

    async def keep_unsent(self, row: Compile | None, began: Moment) -> None:
        """Save a compile that no request used, if a model was paid for it: it counts as a cost of its session.

        It is not saved if anything was deleted since it began, because that may have been its conversation.
        """
        if row is None or not row.usage or self._arguments.record == "off" or self.owner is None:
            return
        why = METADATA if self._redactor is None else REDACTED
        kept = row if self.keeps_content else compile_without_content(row, why)
        await self._try(partial(self._save_unsent, kept, began), writes=True)

    async def _save_unsent(self, row: Compile, began: Moment) -> None:
        store = self._store_for(began)
        if isinstance(store, Steered):
            await store.save_compile(row)

    async def cycles(self, session_id: str) -> list[Cycle]:
        """All cycles of a conversation, oldest first; StoreError if the record cannot be read."""
        if not (self.keeps_content and isinstance(self.store, Steered)):
            return list(self._session_cycles.get((self.owner, session_id)) or ())
        found = await self.store.session_cycles(session_id, self._arguments.place)
        cycles = ((one, Cycle.from_json(one.state)) for one in found if not one.config.endswith(RECALLED))
        return [replace(cycle, config=one.config) for one, cycle in cycles if cycle is not None]

    def remember_raw(self, session_id: str, history: History, since: Moment) -> None:
        """Keep the raw history of a named conversation in memory; `since` is a time before it was saved."""
        self._histories.keep((self.owner, session_id), (history, since))

    async def before_window(
        self, session_id: str, window: History, reader: Reader, *, named: bool
    ) -> Sequence[ModelMessage]:
        """Recorded messages of a conversation before the first message of a window that continues it.

        If the conversation is not `named`, only the messages of the host's conversation store are searched.
        """
        if not self.keeps_content or not window.ids:
            return ()
        known, since = (self._histories.get((self.owner, session_id)) if named else None) or (None, None)
        start = None if known is None else _window_start(known, window)
        if since is not None and start and await self._is_stale(since):
            self._histories.take((self.owner, session_id))
            known = start = None
        if start is None:
            seen = named and known is None
            known = await self._try(lambda: self._read_conversation(session_id, reader, seen=seen))
            start = None if known is None else _window_start(known, window)
        return known.messages[: start or 0] if known is not None else ()

    async def _is_stale(self, since: Moment) -> bool:
        """True if content has been deleted since then, or may have been."""
        return since.age > FRESH_S or bool(await self._try(partial(self._has_removals, since)))

    async def _has_removals(self, since: Moment) -> bool:
        store = self._store_for(since)
        return await store.perform(rows.removed_since) if isinstance(store, SQLStore) else True

    async def others(self, session_id: str, prompt: str) -> list[tuple[float, Mention]]:
        """Passages of the owner's other conversations that answer a prompt; empty if the store fails."""
        if self._arguments.record == "off":
            return []
        return await self._try(lambda: other_mentions(self.store, session_id, prompt)) or []

    async def _read_conversation(self, session_id: str, reader: Reader, *, seen: bool) -> History | None:
        """A conversation as the host's store has it; without one there and with `seen`, as the compiler last saw it."""
        bodies = await self.store.conversation(session_id) if isinstance(self.store, SQLStore) else None
        if bodies is None and seen:
            bodies = await self._bodies(session_id)
        return reader.read(load_messages(bodies)) if bodies else None

    def remember_blocks(self, blocks: Blocks) -> None:
        """Keep recall blocks in memory under the chain id of their prompt."""
        self._blocks.keep((blocks.own.name, blocks.config), blocks)

    async def blocks(self, ids: Sequence[str], config: str) -> Blocks | None:
        """Recall blocks of the newest of these prompts that has any; None if there are none."""
        ids = [name.removeprefix(PROMPT) for name in ids]
        tips = reversed(ids) if self._blocks else ()
        found = next((found for tip in tips if (found := self._blocks.get((tip, config)))), None)
        if found is None and self.keeps_content:
            stored = await self._try(lambda: self.store.find_cycle(ids, _blocks_config(config)))
            found = Blocks.from_json(stored.state, config) if stored else None
        return found

    async def history(self, session_id: str) -> list[ModelMessage]:
        """The raw history of a conversation: from the record, or from memory if the record does not keep it unchanged.

        Raises:
            StoreError: The record cannot be read.
        """
        if self.keeps_content:
            return await self.transcript(session_id)
        known = self._histories.get((self.owner, session_id))
        return list(known[0].messages) if known is not None else []

    async def newest_request(self, session_id: str) -> Record | None:
        """The newest request of a conversation, with or without content; preferably one with a budget."""
        for limit in (1, NEWEST):
            found: list[Record] = await self._try(partial(self._newest_views, session_id, limit)) or []
            within = next((one for one in found if one.budget is not None), None)
            if within is not None or len(found) < limit:
                break
        return within or (found[0] if found else None)

    async def _newest_views(self, session_id: str, limit: int) -> list[Record]:
        return await self.store.views(session_id, limit=limit)

    async def transcript(self, session_id: str) -> list[ModelMessage]:
        """The raw history of a conversation, as last seen."""
        return load_messages(await self._bodies(session_id))

    async def _bodies(self, session_id: str) -> list[bytes]:
        place = self._arguments.place
        return await (self.store.transcript(session_id, place) if place else self.store.transcript(session_id))

    async def close(self) -> None:
        """Close the store if this archive opened it; the next use opens it again."""
        for store in self._opened:
            if store is not self._arguments.store:
                await try_await(self._within_limit(store.close))


def _scoped(store: Store, owner: str | None) -> Store:
    """The store of an owner.

    Raises:
        StoreError: The store does not support owners.
    """
    tenants = cast(Tenants, store)  # checked by name, because this runs often and protocol checks are slow
    if hasattr(store, "scoped") and isinstance(getattr(store, "owner", 0), str | None):
        return store if owner == tenants.owner else tenants.scoped(owner)
    if owner:
        raise StoreError(f"{store!r} knows no owners: give a path, or a store that has `scoped`")
    return store


def _window_start(known: History, window: History) -> int | None:
    """Position in a known history at which a window of it begins; None if it is not a window of this history.

    A current window overlaps the end of the history and continues it. If no position does that, the first position with
    a long enough overlap is taken: the window is then of an earlier state.
    """
    names, first = [reading.name for reading in known.readings], [reading.name for reading in window.readings]
    if not names or names[0] == first[0]:
        return 0 if names else None
    found = None
    for start in range(1, len(names)):
        if names[start] != first[0]:
            continue
        shared = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(names[start:], first, strict=False))))
        if shared == len(names) - start and shared >= min(OVERLAP, len(first) - 1):
            return start
        if found is None and shared >= min(OVERLAP, len(first)):
            found = start
    return found


def _stored_cycle(cycle: Cycle | None) -> StoredCycle | None:
    return None if cycle is None else StoredCycle(tip=cycle.tip, config=cycle.config, state=cycle.to_json())


def _stored_blocks(blocks: Blocks | None) -> StoredCycle | None:
    if blocks is None:
        return None
    return StoredCycle(tip=blocks.own.name, config=_blocks_config(blocks.config), state=blocks.to_json())


def _blocks_config(config: str) -> str:
    """Configuration under which recall blocks are saved, next to the cycles of `config`."""
    return f"{config}{RECALLED}"
