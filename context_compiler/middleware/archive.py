"""The archive of a compiler: saves requests, cycles and user actions, and finds them in memory or on the record.

`store_access` handles a store that fails; `earlier` finds what is on the record before the window of a conversation.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from pydantic_ai.messages import ModelMessage

from context_compiler.cache import Memo
from context_compiler.compiler.cycle import Blocks, Cycle
from context_compiler.compiler.steering import MARK, steering_of
from context_compiler.errors import StoreError
from context_compiler.messages.bodies import load_messages
from context_compiler.messages.history import History
from context_compiler.middleware.arguments import Arguments
from context_compiler.middleware.earlier import RawHistories, transcript_bodies
from context_compiler.middleware.others import other_mentions
from context_compiler.middleware.request import Conversation, may_be_known
from context_compiler.middleware.store_access import StoreAccess, limited
from context_compiler.recall.others import Mention
from context_compiler.record.database import Moment
from context_compiler.record.redaction import METADATA, REDACTED, Redactor, compile_without_content, without_content
from context_compiler.record.rows import BrokenReference
from context_compiler.record.store import Steered, Store
from context_compiler.record.values import COMPILE, UNDO, Action, Compile, Entry, Record, with_null_reasons
from context_compiler.record.values import Cycle as StoredCycle
from context_compiler.resilience import Report, try_await

CYCLES = 1_000
"""Maximum cycles in memory, over all conversations."""

LAST_REQUESTS = 64
"""Maximum conversations whose last request is in memory."""

NEWEST = 50
"""Maximum number of requests without a budget after the newest one with a budget."""

STEPS = 32
"""Maximum cycles in memory per conversation whose cycles are not on the record; they let a compile be undone."""

RECALLED = "+recalled"
"""Suffix of the configuration under which recall blocks are saved, next to the cycles of that configuration."""

OTHER_FIRST = "session {!r}: somebody compiled, undid or pinned in it meanwhile; look at it and try again"
"""Error of an action that another one came before; `{}` is the session."""

LATE_AGE_S = 1.0
"""Seconds after which a request that is recorded is marked as recorded late."""


class Archive:
    """The record of one compiler, for one owner."""

    def __init__(self, arguments: Arguments, report: Report) -> None:
        """Open nothing yet."""
        self._arguments = arguments
        self.access = StoreAccess(arguments, report)
        self._redactor = Redactor(arguments.redact) if arguments.redact else None
        self._cycles: Memo[tuple[str, str], Cycle] = Memo(CYCLES)
        self._blocks: Memo[tuple[str, str], Blocks] = Memo(CYCLES)
        self._session_cycles: Memo[Conversation, tuple[Cycle, ...]] = Memo(CYCLES)
        self._actions: Memo[Conversation, tuple[Action, ...]] = Memo(CYCLES)
        self._newest: Memo[Conversation, tuple[Record, ...]] = Memo(LAST_REQUESTS)
        """The newest request of each conversation, read with the start of its first run; empty if it has none."""
        self.earlier = RawHistories(self.access)

    def scoped(self, owner: str | None) -> Archive:
        """The archive of another owner with the same caches; for None, an archive that saves and finds nothing."""
        if owner == self.owner:
            return self
        other = copy(self)
        other.access = access = self.access.scoped(owner)
        other.earlier = self.earlier.scoped(access)
        return other

    @property
    def owner(self) -> str | None:
        """Owner of the record; None if the owner is unknown, in which case nothing is saved or found."""
        return self.access.owner

    @property
    def store(self) -> Store:
        """The store, opened on first use."""
        return self.access.store

    @property
    def keeps_content(self) -> bool:
        """True if the record keeps content unchanged, so that it can be reused."""
        return self.access.keeps_content

    @property
    def _records_cycles(self) -> bool:
        """True if all cycles of a conversation are on the record, so that memory need not hold them."""
        store = self._arguments.store
        return self.keeps_content and (store is None or isinstance(store, str | Path | Steered))

    def conversation(self, session_id: str) -> Hashable:
        """Key of a conversation, the same for all compilers of this process that share the record."""
        return self.access.shared_key(session_id), self.owner, self._arguments.place

    async def settle(self) -> None:
        """Wait for what goes on behind the answers, then execute the delayed writes, so that reads find them."""
        await self.access.finish()
        await self.access.catch_up()

    async def keep(self, entry: Entry, cycle: Cycle | None, blocks: Blocks | None) -> Record:
        """Save a request with its cycle and blocks; return the saved record, or the given one if that failed."""
        record = entry.record
        if self._arguments.record == "off":
            return with_null_reasons(record, {"summary_id": "record is off"})
        paused = self.access.is_paused
        kept = await self.access.write(record.session_id, partial(self._save, entry, cycle, blocks))
        if kept is not None:
            self._newest.keep((self.owner, record.session_id), (replace(kept, compile=None),))
        if paused:
            await self.access.report_pause()
        return with_null_reasons(record, {"summary_id": "not stored, or stored later"}) if kept is None else kept

    async def _save(self, entry: Entry, cycle: Cycle | None, blocks: Blocks | None, tried: Moment | None) -> Record:
        store, record, row = self.access.store_for(tried), entry.record, entry.compile
        if tried is not None and tried.age > LATE_AGE_S:
            entry = replace(entry, record=replace(record, status=f"{record.status}; recorded late"))
        if self._arguments.record == "metadata":
            entry = without_content(entry)
        elif self._redactor is not None:
            entry = self._redactor.entry(entry, self.conversation(record.session_id))
        else:
            if cycle is not None:
                entry = replace(entry, cycle=StoredCycle(tip=cycle.needs, config=cycle.config, state=cycle.to_json()))
            if blocks is not None:
                config = f"{blocks.config}{RECALLED}"
                entry = replace(entry, blocks=StoredCycle(tip=blocks.own.name, config=config, state=blocks.to_json()))
        try:
            return replace(await store.save(entry), compile=row)
        except BrokenReference:
            if record.summary_id is None:
                raise
        gone = with_null_reasons(replace(entry.record, summary_id=None), {"summary_id": "its row is gone"})
        return replace(await store.save(replace(entry, record=gone)), compile=row)

    async def save_raw(self, session_id: str, history: History) -> None:
        """Save a raw history without a request: the last answer of a run extends it."""

        async def save(tried: Moment | None) -> None:
            redactor, chain = self._redactor, history.chain
            chain = redactor.chain(chain, self.conversation(session_id)) if redactor else chain
            await self.access.store_for(tried).archive(session_id, self._arguments.place, chain)

        if self._arguments.record == "full":
            await self.access.write(session_id, save)

    async def last_request(self, session_id: str) -> Record | None:
        """The newest recorded request of a conversation; None if there is none in this vault that can be reused."""
        if not self.keeps_content:
            return None
        records = self._newest.get((self.owner, session_id))
        if records is None:
            records = await self.access.read(lambda store: store.views(session_id, limit=1))
        return records[0] if records and records[0].vault_name == self._arguments.place else None

    async def newest_request(self, session_id: str) -> Record | None:
        """The newest request of a conversation, with or without content; preferably one with a budget."""
        return await self.access.read(lambda store: _newest_request(store, session_id))

    async def compiles(self, session_id: str) -> list[Compile] | None:
        """The recorded compiles of a session; None if there is no record or it cannot be read."""
        if self._arguments.record == "off" or self.owner is None:
            return None
        return await self.access.read(lambda store: store.summaries(session_id))

    async def others(self, session_id: str, prompt: str) -> list[tuple[float, Mention]]:
        """Passages of the owner's other conversations that answer a prompt; empty if the store fails."""
        if self._arguments.record == "off":
            return []
        return await self.access.attempt_read(lambda: other_mentions(self.store, session_id, prompt)) or []

    async def history(self, session_id: str) -> list[ModelMessage]:
        """The raw history of a conversation: from the record, or from memory if the record does not keep it unchanged.

        Raises:
            StoreError: The record cannot be read.
        """
        return (
            await self.transcript(session_id) if self.keeps_content else list(await self.earlier.last_seen(session_id))
        )

    async def transcript(self, session_id: str) -> list[ModelMessage]:
        """The raw history of a conversation, as last seen."""
        return load_messages(await transcript_bodies(self.store, session_id, self._arguments.place))

    def remember_cycle(self, cycle: Cycle, session_id: str) -> None:
        """Keep a cycle in memory under the newest message that it needs; the least recently used is evicted first."""
        self._cycles.keep((cycle.needs, cycle.config), cycle)
        if self._records_cycles:
            return
        key = self.owner, session_id
        earlier = (made for made in self._session_cycles.get(key) or () if made.needs != cycle.needs)
        self._session_cycles.keep(key, (*earlier, cycle)[-STEPS:])

    def remember_blocks(self, blocks: Blocks) -> None:
        """Keep recall blocks in memory under the chain id of their prompt."""
        self._blocks.keep((blocks.own.name, blocks.config), blocks)

    async def start(self, session_id: str, ids: Sequence[str], config: str) -> dict[str, Any]:
        """Find the cycle, the recall blocks and the steering that a run starts from, in memory or on the record.

        The cycle is the newest cycle of the longest known prefix of a history. After a compile or undo by hand, it is
        the one that this produced, until another compile replaces it.

        Args:
            session_id: The conversation.
            ids: Chain ids of the history.
            config: Configuration of the cycle.

        Returns:
            Plain data: `cycle`, `blocks` and `steering`, each None if there is none, and `adopted`, True if the cycle
            was made by a compile or undo by hand, and no request has been recorded with it.
        """
        work = partial(self._start, session_id=session_id, ids=ids, config=config)
        if not self.keeps_content or not may_be_known(session_id, len(ids)):
            return await work(None)
        if self._actions.get((self.owner, session_id)) is not None:
            return await self.access.read(work) or await work(None)
        with limited(None):  # what a user pinned or undid is not known yet, and must not be dropped
            return await self.access.read(work) or await work(None)

    async def _start(self, store: Store | None, session_id: str, ids: Sequence[str], config: str) -> dict[str, Any]:
        """Find the starting point of a run in memory, and if there is a store, in the store."""
        if store is not None:
            await self.access.see_removals(store)
        actions, steering, chosen = await self._known_actions(store, session_id), None, None
        if actions or MARK in config:
            steering, chosen = steering_of(actions)
            config = steering.config(config)
        cycle = await self._cycle(store, ids, config)
        if cycle is not None and store is not None and _lacks_row(cycle):
            cycle = _with_row(cycle, await _newest_request(store, session_id))
        adopted = chosen is not None and chosen.needs in ids and (cycle is None or cycle.decided < chosen.decided)
        cycle = replace(chosen, config=config) if chosen is not None and adopted else cycle
        blocks = None if cycle is None else await self._known_blocks(store, ids, config)
        if blocks is not None and cycle is not None and blocks.decided != cycle.decided:
            blocks = None
        if store is not None and self._newest.get((self.owner, session_id)) is None:
            records = (await try_await(store.views(session_id, limit=1))).value  # if it fails, it is read when needed
            if records is not None:
                self._newest.keep((self.owner, session_id), tuple(records))
        return {
            "cycle": cycle.to_json() if cycle else None,
            "blocks": blocks.to_json() if blocks else None,
            "steering": steering.to_data() if steering else None,
            "adopted": adopted,
        }

    async def _cycle(self, store: Store | None, ids: Sequence[str], config: str) -> Cycle | None:
        tips = reversed(ids) if self._cycles else ()
        cycle = next((cycle for tip in tips if (cycle := self._cycles.get((tip, config)))), None)
        if cycle is not None or store is None:
            return cycle
        stored = await store.find_cycle(ids, config)
        cycle = Cycle.from_json(stored.state) if stored is not None else None
        return replace(cycle, config=config) if cycle is not None else None

    async def _known_blocks(self, store: Store | None, ids: Sequence[str], config: str) -> Blocks | None:
        """Recall blocks of the newest of these prompts that has any; None if there are none."""
        tips = reversed(ids) if self._blocks else ()
        blocks = next((blocks for tip in tips if (blocks := self._blocks.get((tip, config)))), None)
        if blocks is not None or store is None:
            return blocks
        stored = await store.find_cycle(ids, f"{config}{RECALLED}")
        return Blocks.from_json(stored.state, config) if stored is not None else None

    async def _known_actions(self, store: Store | None, session_id: str) -> list[Action]:
        if isinstance(store, Steered):
            actions = await store.actions(session_id, self._arguments.place)
            self._actions.keep((self.owner, session_id), tuple(actions))
            return actions
        return list(self._actions.get((self.owner, session_id)) or ())

    async def link_compile(self, cycle: Cycle, session_id: str) -> Cycle:
        """Link a cycle to the row of its compile in the newest request: a cycle is saved before that row has an id."""
        if not self.keeps_content or not _lacks_row(cycle):
            return cycle
        return _with_row(cycle, await self.newest_request(session_id))

    async def actions(self, session_id: str) -> list[Action]:
        """User actions on a conversation, oldest first: those on the record, else those of this process."""

        async def read(store: Store) -> list[Action]:
            await self.access.see_removals(store)
            return await self._known_actions(store, session_id)

        recorded = await self.access.read(read) if self.keeps_content else None
        return await self._known_actions(None, session_id) if recorded is None else recorded

    async def save_action(
        self, session_id: str, action: Action, began: Moment, *, after: int, row: Compile | None = None
    ) -> None:
        """Save a user action on a conversation, and the compile that it made; later pins do not prevent a compile.

        Raises:
            StoreError: The action could not be saved, content was deleted since the conversation was read, or another
                action came first; nothing was saved.
        """
        store, vault = self.access.store_for(began) if self.keeps_content else None, self._arguments.place
        key = self.owner, session_id
        if isinstance(store, Steered):
            try:
                action = await store.save_action(session_id, vault, action, after=after, compile=row)
            except StoreError:
                newer = [other for other in await store.actions(session_id, vault) if other.number > after]
                if not newer or _is_superseded(action, newer):
                    raise
                action = await store.save_action(session_id, vault, action, after=newer[-1].number, compile=row)
        else:
            await self.keep_unsent(row, began)
            newer = [other for other in self._actions.get(key) or () if other.number > after]
            if _is_superseded(action, newer):
                raise StoreError(OTHER_FIRST.format(session_id))
            action = replace(action, number=max([after, *(other.number for other in newer)]) + 1)
        self._actions.keep(key, (*(self._actions.get(key) or ()), action))

    async def keep_unsent(self, row: Compile | None, began: Moment) -> None:
        """Save a compile that no request used, if a model was paid for it: it counts as a cost of its session.

        It is not saved if anything was deleted since it began, because that may have been its conversation.
        """
        if row is None or not row.usage or self._arguments.record == "off" or self.owner is None:
            return
        why = METADATA if self._redactor is None else REDACTED
        kept = row if self.keeps_content else compile_without_content(row, why)

        async def save() -> None:
            store = self.access.store_for(began)
            if isinstance(store, Steered):
                await store.save_compile(kept)

        await self.access.attempt(save, writes=True)

    async def cycles(self, session_id: str) -> list[Cycle]:
        """All cycles of a conversation, oldest first; StoreError if the record cannot be read."""
        if not self._records_cycles:
            return list(self._session_cycles.get((self.owner, session_id)) or ())
        rows = await cast(Steered, self.store).session_cycles(session_id, self._arguments.place)
        cycles = ((row, Cycle.from_json(row.state)) for row in rows if not row.config.endswith(RECALLED))
        return [replace(cycle, config=row.config) for row, cycle in cycles if cycle is not None]


async def _newest_request(store: Store, session_id: str) -> Record | None:
    for limit in (1, NEWEST):
        records = await store.views(session_id, limit=limit)
        within = next((record for record in records if record.budget is not None), None)
        if within is not None or len(records) < limit:
            break
    return within or (records[0] if records else None)


def _is_superseded(action: Action, newer: Sequence[Action]) -> bool:
    """True if newer actions prevent an action; a compile tolerates pins."""
    return bool(newer) and (action.kind != COMPILE or not {COMPILE, UNDO}.isdisjoint(other.kind for other in newer))


def _lacks_row(cycle: Cycle) -> bool:
    """True if a cycle is not linked to the row of its compile, because it is saved before that row has an id."""
    return cycle.summary_id is None and bool(cycle.summary)


def _with_row(cycle: Cycle, newest: Record | None) -> Cycle:
    """Link a cycle to the row of its compile, if that is the compile of the newest request."""
    made = newest.compile if newest is not None else None
    if newest is None or made is None or (made.raw_output or "").strip() != cycle.summary:
        return cycle
    return replace(cycle, summary_id=newest.summary_id)
