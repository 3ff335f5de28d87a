"""Views, compiles, cycles and raw history of a compiler, saved to and loaded from one store.

A store that fails is reported, left alone for a while after three failures, and never stops a request. What a locked
file or a full disk has stopped is saved before the next write (`late`).
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Hashable, Sequence
from copy import copy
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic_ai.messages import ModelMessage

from context_compiler.cache import Memo
from context_compiler.compiler.cycle import Cycle
from context_compiler.compiler.recall_block import Blocks
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
from context_compiler.record.maintenance import RECENT
from context_compiler.record.redaction import (
    METADATA,
    REDACTED,
    Redactor,
    compile_without_content,
    without_content,
)
from context_compiler.record.rows import BrokenReference, Removed
from context_compiler.record.sessions import claim_compile, hold_claim
from context_compiler.record.store import SQLStore, Steered, Store, Tenants, open_store
from context_compiler.record.values import COMPILE, UNDO, Action, Compile, Entry, Record, with_null_reasons
from context_compiler.record.values import Cycle as StoredCycle
from context_compiler.resilience import Breaker, Report, await_within, try_await

ANSWERS = 200
"""Answers remembered in memory, for records that may not keep them."""

CYCLES = 1_000
"""Cycles remembered in memory, of all conversations."""

SESSIONS = 16
"""Conversations whose raw history is remembered, so that a window of it is recognised without reading the record."""

FRESH_S = 86_400.0 * RECENT
"""Seconds for which it is remembered; a prune of older conversations is not noted on the record."""

T = TypeVar("T")

NEWEST = 50
"""Requests without a budget that may follow the newest one with a budget."""

STEPS = 32
"""Cycles of one conversation that are remembered in memory, so that a compile can be undone."""

PACKAGE = f"{__name__.partition('.')[0]}."

RECALLED = "+recalled"
"""Suffix of the configuration under which recall blocks are kept."""

OVERLAP = 2
"""Minimum number of messages that a window and the record must share."""


class Archive:
    """The record of one compiler."""

    def __init__(self, arguments: Arguments, report: Report) -> None:
        """Open nothing yet."""
        self._arguments = arguments
        self._cycles: Memo[tuple[str, str], Cycle] = Memo(CYCLES)
        self._blocks: Memo[tuple[str, str], Blocks] = Memo(CYCLES)
        self._raws: Memo[tuple[str | None, str], tuple[History, Moment]] = Memo(SESSIONS)
        self._report = report
        self._opened: list[Store] = []
        """The store, once it is open; shared with the archives of other owners."""
        self._breaker = Breaker()
        self._redactor = Redactor(arguments.redact) if arguments.redact else None
        self._answers: Memo[str, SummaryResponse] = Memo(ANSWERS)
        self._made: Memo[tuple[str | None, str], tuple[Cycle, ...]] = Memo(CYCLES)
        self._actions: Memo[tuple[str | None, str], tuple[Action, ...]] = Memo(CYCLES)
        self._late = LateWrites(report) if arguments.store is not None else None
        """None for a record in memory, where neither a lock nor a full disk can delay a write."""
        self.owner: str | None = arguments.static_owner
        """Owner of what is kept; None if the owner is not known: then nothing is kept or found."""

    def scoped(self, owner: str | None) -> Archive:
        """The record of an owner, with the same memory; for None one that keeps and finds nothing."""
        if owner == self.owner:
            return self
        other = copy(self)
        other.owner = owner
        return other

    def conversation(self, session_id: str) -> Hashable:
        """The name of a conversation among all compilers of this process that keep the same record."""
        return self.shared(session_id), self.owner, self._arguments.place

    @property
    def store(self) -> Store:
        """The store, opened when it is first asked for."""
        if not self._opened:
            patience = min(BUSY_TIMEOUT_MS, int(1000 * self._arguments.timeout))
            self._opened.append(open_store(self._arguments.store, busy_timeout_ms=patience))
        return _scoped(self._opened[0], self.owner)

    @property
    def whole(self) -> bool:
        """True if the record keeps content unchanged, so that it can be reused."""
        return self._arguments.record == "full" and self._redactor is None and self.owner is not None

    async def keep(
        self, record: Record, result: Result, cycle: Cycle | None, blocks: Blocks | None, tools: str | None
    ) -> Record:
        """Keep one request, sent with these tools; the record as it was kept, or as given when it could not be."""
        if self._arguments.record == "off":
            return with_null_reasons(record, {"summary_id": "record is off"})
        write = partial(self._save, record, result, cycle, blocks, tools)
        kept = await self._write(record.session_id, write)
        return with_null_reasons(record, {"summary_id": "not stored, or later"}) if kept is None else kept

    def _store_for(self, tried: Moment | None) -> Store:
        """The store for a write that was first tried then."""
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
            entry = replace(entry, cycle=_stored(cycle), blocks=_stored_blocks(blocks))
        try:
            return replace(await store.save(entry), compile=result.row)
        except BrokenReference:
            if record.summary_id is None:
                raise
        gone = with_null_reasons(replace(entry.record, summary_id=None), {"summary_id": "its row is gone"})
        return replace(await store.save(replace(entry, record=gone)), compile=result.row)

    async def announce_compile(self, session_id: str, model: str, seconds: float) -> tuple[int, datetime] | None:
        """Show on the record, for at most this long, that a model is writing a summary.

        This is optional, so it is not tried after a failure of the store, and its own failure does not count.
        """
        shown = self._arguments.record != "off" and (self._arguments.store is not None or self._opened)
        if shown and self.owner is not None and not self._breaker.failures:
            given = session_id, self._arguments.place, model, seconds
            return (await try_await(self._on_sql(lambda store: store.announce_compile(*given)))).value
        return None

    async def _on_sql(self, work: Callable[[SQLStore], Awaitable[T]]) -> T | None:
        """Do work on a store in SQL; None for any other store."""

        async def done() -> T | None:
            store = self.store
            return await work(store) if isinstance(store, SQLStore) else None

        return cast("T | None", await self._in_time(done))

    async def withdraw_compile(self, announced: tuple[int, datetime]) -> None:
        """Remove the announcement of a call that has ended."""
        await try_await(self._on_sql(lambda store: store.withdraw_compile(*announced)))

    async def last_request(self, session_id: str) -> Record | None:
        """The newest recorded request of a conversation."""
        if not self.whole:
            return None
        found = await self._tried(lambda: self.store.views(session_id, limit=1))
        return found[0] if found and found[0].vault_name == self._arguments.place else None

    async def compiles(self, session_id: str) -> list[Compile] | None:
        """The recorded compiles of a session; None where there is no record, or it cannot be read."""
        if self._arguments.record == "off" or self.owner is None:
            return None
        return await self._tried(lambda: self.store.summaries(session_id))

    async def bodies(self, tip: str) -> list[bytes]:
        """Message bodies of a recorded chain; none where they cannot be read."""
        return await self._tried(lambda: self.store.chain(tip)) or []

    async def raw(self, session_id: str, history: History) -> None:
        """Keep a raw history without a request: what the last answer of a run adds to it."""
        if self._arguments.record == "full":
            await self._write(session_id, partial(self._archived, session_id, history))

    async def _archived(self, session_id: str, history: History, tried: Moment | None) -> bool:
        chain = self._redactor.chain(history.chain) if self._redactor else history.chain
        await self._store_for(tried).archive(session_id, self._arguments.place, chain)
        return True

    async def _write(self, session_id: str, work: Write) -> Any:
        """Result of a write, after those that were put off; None if it failed, and is put off itself if it may be."""
        if not self._breaker.open:
            turn = partial(work, None) if self._late is None else partial(self._in_turn, self._late, session_id, work)
            return await self._tried(turn, writes=True)
        if self._late is not None and self._late.is_away:
            await try_await(self._put_off(self._late, session_id, Moment(), work))
        return None

    async def _in_turn(self, late: LateWrites, session_id: str, work: Write) -> Any:
        tried = Moment()
        try:
            if not late.waiting or await late.catch_up((self.owner, session_id)):
                return await work(None)
        except StoreError as error:
            if is_passing(error):
                await self._put_off(late, session_id, tried, work)
            raise
        await self._put_off(late, session_id, tried, work)
        return None

    async def _put_off(self, late: LateWrites, session_id: str, tried: Moment, work: Write) -> None:
        """Let a write wait, if its store can tell later whether something was deleted meanwhile."""
        if self.owner is not None and self._opened and isinstance(self._opened[0], SQLStore):
            await late.put_off((self.owner, session_id), tried, work)

    async def catch_up(self) -> None:
        """Do the writes that were put off, or report why that cannot be."""
        late = self._late
        error = (await try_await(self._in_time(late.catch_up))).error if late is not None and late.waiting else None
        if late is not None and error is not None:
            waiting = f"{len(late)} {'write waits' if len(late) == 1 else 'writes wait'} for the record"
            await self._report(StoreError(f"{waiting}, and can be made later or not at all: {error}"))

    async def _tried(self, work: Callable[[], Awaitable[Any]], *, writes: bool = False) -> Any:
        """Result of a store operation; None if it failed or the breaker is open.

        A record in memory holds nothing before it is first written to.
        """
        blank = self._arguments.store is None and not self._opened and not writes
        if blank or self._breaker.open or self.owner is None:
            return None
        outcome = await try_await(self._in_time(work))
        if outcome.error is None:
            if writes:  # a full disk and a file that another process holds can still be read
                self._breaker.succeeded()
            return outcome.value
        if not isinstance(outcome.error, Removed):
            if self._late is not None:
                self._late.is_away = is_passing(outcome.error)
            self._breaker.failed()
        await self._report(outcome.error)
        return None

    async def _in_time(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Await a store operation; the stores of this package have time limits of their own.

        Raises:
            StoreError: it took too long.
        """
        given, limit = self._arguments.store, self._arguments.timeout
        if given is None or isinstance(given, str | Path) or type(given).__module__.startswith(PACKAGE):
            return await work()
        late = StoreError(f"{type(given).__name__} did not answer within {limit:g} s (timeout)")
        return await await_within(limit, work(), late)

    def shared(self, key: str) -> Hashable:
        """The name of a compile among all compilers of this process that keep the same record."""
        given = self._arguments.store
        if not self.whole or given is None:
            return id(self), key
        path = given if isinstance(given, str | Path) else getattr(given, "path", None)
        return os.path.abspath(path) if isinstance(path, str | Path) else id(given), key

    async def answered(self, key: str) -> SummaryResponse | None:
        """An earlier answer to the same order."""
        made = self._answers.get(key)
        if made is not None or not self.whole:
            return made
        found = await self._tried(lambda: self.store.find_compile(key))
        return SummaryResponse(text=found[1].raw_output, row=found[0]) if found and found[1].raw_output else None

    async def claim_compile(self, key: str, holder: str, seconds: float) -> bool | None:
        """Claim the call of a model; False while another process holds it, None if the record cannot tell.

        Like an announcement, it is not tried after a failure of the store, and a failure of its own does not count.
        """
        if not self.whole or self._arguments.store is None or self._breaker.failures:
            return None
        work = partial(claim_compile, cache_key=key, holder=holder, seconds=seconds)
        return (await try_await(self._on_sql(lambda store: store.perform(work)))).value

    async def hold_claim(self, key: str, holder: str, seconds: float) -> None:
        """Renew a claim for this long; after that, other processes may make the same call."""
        work = partial(hold_claim, cache_key=key, holder=holder, seconds=seconds)
        await try_await(self._on_sql(lambda store: store.perform(work)))

    def remember(self, key: str, answer: SummaryResponse) -> None:
        """Keep an answer in memory until it is on the record, or for good where the record may not have it."""
        self._answers.keep(key, replace(answer, usage={}, cost=None))

    def forget_answer(self, text: str) -> None:
        """Do not share a summary again that a user has undone."""
        self._answers.discard(lambda answer: answer.text == text)

    def remember_cycle(self, cycle: Cycle, session_id: str) -> None:
        """Keep a cycle in memory, under the last message it decides on; the least used are forgotten first."""
        self._cycles.keep((cycle.tip, cycle.config), cycle)
        made = self._made.get((self.owner, session_id)) or ()
        self._made.keep((self.owner, session_id), (*(one for one in made if one.tip != cycle.tip), cycle)[-STEPS:])

    async def cycle(self, ids: Sequence[str], config: str, former: str | None = None) -> Cycle | None:
        """The newest cycle of the longest known ancestor, in memory or on the record; `former` is an earlier config."""
        tips = reversed(ids) if self._cycles else ()
        found = next((found for tip in tips if (found := self._cycles.get((tip, config)))), None)
        if found is None and self.whole:
            stored = await self._tried(lambda: self.store.find_cycle(ids, config))
            if stored is None and former is not None and self._arguments.store is not None:
                stored = await self._tried(lambda: self.store.find_cycle(ids, former))
            found = Cycle.from_json(stored.state) if stored else None
            found = replace(found, config=config) if found is not None else None
        return found

    async def linked(self, cycle: Cycle, session_id: str) -> Cycle:
        """A cycle with the row of its compile: that of its first request, with which it is saved, is the newest's."""
        if cycle.summary_id is not None or not cycle.summary or not self.whole:
            return cycle
        newest = await self.newest(session_id)
        made = newest.compile if newest is not None else None
        if newest is None or made is None or (made.raw_output or "").strip() != cycle.summary:
            return cycle
        return replace(cycle, summary_id=newest.summary_id)

    async def actions(self, session_id: str) -> list[Action]:
        """Actions of users on a conversation, oldest first; where the record has none, those of this process."""
        found = await self._tried(lambda: self._stored_actions(session_id)) if self.whole else None
        return list(self._actions.get((self.owner, session_id)) or ()) if found is None else found

    async def _stored_actions(self, session_id: str) -> list[Action] | None:
        store = self.store
        return await store.actions(session_id, self._arguments.place) if isinstance(store, Steered) else None

    async def save_action(
        self, session_id: str, action: Action, began: Moment, *, after: int, row: Compile | None = None
    ) -> Action:
        """Keep an action of a user on a conversation, with the compile that it made; pins since are no obstacle to it.

        Raises:
            StoreError: it could not be kept, or something was deleted since the conversation was read, or somebody else
                has acted meanwhile; nothing was kept.
        """
        store, place = self._store_for(began) if self.whole else None, self._arguments.place
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
        """Keep a compile that no request carries, if a model was paid for it: the costs of its session count it.

        Not if something was deleted since it began, which may be its conversation.
        """
        if row is None or not row.usage or self._arguments.record == "off" or self.owner is None:
            return
        why = METADATA if self._redactor is None else REDACTED
        kept = row if self.whole else compile_without_content(row, why)
        await self._tried(partial(self._kept_unsent, kept, began), writes=True)

    async def _kept_unsent(self, row: Compile, began: Moment) -> None:
        store = self._store_for(began)
        if isinstance(store, Steered):
            await store.save_compile(row)

    async def cycles(self, session_id: str) -> list[Cycle]:
        """Every cycle of a conversation, oldest first; StoreError if the record cannot be read."""
        if not (self.whole and isinstance(self.store, Steered)):
            return list(self._made.get((self.owner, session_id)) or ())
        found = await self.store.session_cycles(session_id, self._arguments.place)
        cycles = ((one, Cycle.from_json(one.state)) for one in found if not one.config.endswith(RECALLED))
        return [replace(cycle, config=one.config) for one, cycle in cycles if cycle is not None]

    def remember_raw(self, session_id: str, history: History, since: Moment) -> None:
        """Keep the raw history of a named conversation in memory; `since` is the moment before it was saved."""
        self._raws.keep((self.owner, session_id), (history, since))

    async def before_window(
        self, session_id: str, window: History, reader: Reader, *, named: bool
    ) -> Sequence[ModelMessage]:
        """Recorded messages of a conversation before the first message of a window that continues it.

        If the conversation is not `named`, only messages in the host's store are found.
        """
        if not self.whole or not window.ids:
            return ()
        known, since = (self._raws.get((self.owner, session_id)) if named else None) or (None, None)
        start = None if known is None else _window_start(known, window)
        if since is not None and start and await self._is_older(since):
            self._raws.take((self.owner, session_id))
            known = start = None
        if start is None:
            seen = named and known is None
            known = await self._tried(lambda: self._recorded(session_id, reader, seen=seen))
            start = None if known is None else _window_start(known, window)
        return known.messages[: start or 0] if known is not None else ()

    async def _is_older(self, since: Moment) -> bool:
        """True if something has been deleted since then, or may have been."""
        return since.age > FRESH_S or bool(await self._tried(partial(self._removed, since)))

    async def _removed(self, since: Moment) -> bool:
        store = self._store_for(since)
        return await store.perform(rows.removed_since) if isinstance(store, SQLStore) else True

    async def others(self, session_id: str, prompt: str) -> list[tuple[float, Mention]]:
        """Passages of other conversations of the owner that answer a prompt; none if the store fails."""
        if self._arguments.record == "off":
            return []
        return await self._tried(lambda: other_mentions(self.store, session_id, prompt)) or []

    async def _recorded(self, session_id: str, reader: Reader, *, seen: bool) -> History | None:
        """A conversation as the host's store holds it; if it has none and `seen` is set, as it was last seen."""
        bodies = await self._conversation(session_id)
        if bodies is None and seen:
            bodies = await self._bodies(session_id)
        return reader.read(load_messages(bodies)) if bodies else None

    async def _conversation(self, session_id: str) -> list[bytes] | None:
        """Messages of a conversation of the host's store; None if there is none of that name."""
        return await self.store.conversation(session_id) if isinstance(self.store, SQLStore) else None

    def remember_blocks(self, blocks: Blocks) -> None:
        """Keep what was recalled for a prompt in memory, under its chain id."""
        self._blocks.keep((blocks.own.name, blocks.config), blocks)

    async def blocks(self, ids: Sequence[str], config: str) -> Blocks | None:
        """Recall blocks of the newest of these prompts that has any."""
        ids = [name.removeprefix(PROMPT) for name in ids]
        tips = reversed(ids) if self._blocks else ()
        found = next((found for tip in tips if (found := self._blocks.get((tip, config)))), None)
        if found is None and self.whole:
            stored = await self._tried(lambda: self.store.find_cycle(ids, _beside(config)))
            found = Blocks.from_json(stored.state, config) if stored else None
        return found

    async def history(self, session_id: str) -> list[ModelMessage]:
        """The raw history of a conversation: on the record, or in memory where the record may not have it unchanged.

        Raises:
            StoreError: the record cannot be read.
        """
        if self.whole:
            return await self.transcript(session_id)
        known = self._raws.get((self.owner, session_id))
        return list(known[0].messages) if known is not None else []

    async def newest(self, session_id: str) -> Record | None:
        """The newest request of a conversation, with or without its content; one that had a budget, if there is one."""
        for limit in (1, NEWEST):
            found: list[Record] = await self._tried(partial(self._newest_views, session_id, limit)) or []
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

    async def rest(self) -> None:
        """Close the store, if it was opened here; it opens again when it is used again."""
        for store in self._opened:
            if store is not self._arguments.store:
                await try_await(self._in_time(store.close))


def _scoped(store: Store, owner: str | None) -> Store:
    """The store for an owner.

    Raises:
        StoreError: It knows no owners.
    """
    tenants = cast(Tenants, store)  # checked by name: this runs often, and checking a protocol is slow
    if hasattr(store, "scoped") and isinstance(getattr(store, "owner", 0), str | None):
        return store if owner == tenants.owner else tenants.scoped(owner)
    if owner:
        raise StoreError(f"{store!r} knows no owners: give a path, or a store that has `scoped`")
    return store


def _window_start(known: History, window: History) -> int | None:
    """The position in a known history at which a window of it begins; None where it is none.

    A window ends where the history does, and goes on with what is new; else it is one of an earlier state.
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


def _stored(cycle: Cycle | None) -> StoredCycle | None:
    return None if cycle is None else StoredCycle(tip=cycle.tip, config=cycle.config, state=cycle.to_json())


def _stored_blocks(blocks: Blocks | None) -> StoredCycle | None:
    if blocks is None:
        return None
    return StoredCycle(tip=blocks.own.name, config=_beside(blocks.config), state=blocks.to_json())


def _beside(config: str) -> str:
    """The configuration under which recall blocks are kept, beside the cycles of `config`."""
    return f"{config}{RECALLED}"
