"""`SQLStore`: the methods of a store as functions of `record` that run on a connection, wherever that is."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from copy import copy
from datetime import datetime
from functools import partial
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

from context_compiler.record import conversations, maintenance, queries, sessions
from context_compiler.record.database import Database, Moment
from context_compiler.record.values import (
    Action,
    Chain,
    Compile,
    Cycle,
    Entry,
    LayerPages,
    OwnerInfo,
    Record,
    SessionInfo,
    Tool,
    check_owner,
)

T = TypeVar("T")


def run_for_owner(owner: str | None, tried: Moment | None, work: Callable[[Database], T], db: Database) -> T:
    """Run a function on a connection that has been set to the owner and the first attempt of a store."""
    db.owner, db.tried = owner, tried
    return work(db)


@runtime_checkable
class SQLStore(Protocol):
    """A store whose methods are functions that `perform` runs on a connection."""

    owner: str | None = ""
    """Owner that this store works for; None is every owner."""
    tried: Moment | None = None  # when its writes were first attempted; None is now
    _origin: object = None  # the store that this one was scoped from, which owns the connection

    @property
    def origin(self) -> object:
        """The store that was opened; stores scoped from it to other owners share it."""
        return self._origin or self

    @property
    def place(self) -> str:
        """Place of the record, for messages to users: a path, or an address without its password."""
        ...

    def writer(self) -> SQLStore:
        """Return a writable store of the same record, for the owner ``""``."""
        ...

    async def perform(self, work: Callable[[Database], T]) -> T:
        """Run a function on the connection, uninterrupted, for the owner of this store."""
        ...

    async def perform_together(self, reads: Callable[[Self], Coroutine[Any, Any, T]]) -> T:
        """Run several methods that read as one job; `reads` calls them on the given store, and awaits nothing else."""

        def work(db: Database) -> T:
            async def perform_at_once(work: Callable[[Database], T]) -> T:
                return work(db)

            here = copy(self)
            here.perform = perform_at_once
            return _result(reads(here))

        return await self.perform(work)

    async def maintain(self, work: Callable[[Database], T]) -> T:
        """Run a function that may take long, because it reads or removes much of the record."""
        return await self.perform(work)

    def scoped(self, owner: str | None) -> Self:
        """Return the same store for another owner; None is every owner."""
        other = copy(self)
        other.owner, other._origin = check_owner(owner), self._origin or self
        return other

    def late(self, tried: Moment) -> Self:
        """Return the same store for a retried write; it is refused if anything was removed since the moment `tried`."""
        other = self.scoped(self.owner)
        other.tried = tried
        return other

    async def owners(self) -> list[OwnerInfo]:
        """All owners that this store sees, sorted by name."""
        return await self.perform(queries.owners)

    async def erase(self) -> int:
        """Remove all data of the owner; return the number of requests removed."""
        return await self.maintain(maintenance.erase)

    async def close(self) -> None:
        """Close the connection, if it is open; the next use opens it again."""
        ...

    async def save(self, entry: Entry) -> Record:
        """Save an entry in one transaction and return its record with `id` and `summary_id`."""
        return await self.perform(partial(queries.save, entry=entry))

    async def archive(self, session_id: str, vault_name: str, raw: Chain) -> None:
        """Save a raw history without a request, as the newest history of its conversation."""
        await self.perform(partial(queries.archive, session_id=session_id, vault_name=vault_name, raw=raw))

    async def find_compile(self, cache_key: str) -> tuple[int, Compile] | None:
        """Find a reusable compile by cache key; return its row number and the compile, or None."""
        return await self.perform(partial(queries.find_compile, cache_key=cache_key))

    async def find_cycle(self, tips: Sequence[str], config: str) -> Cycle | None:
        """Find the newest cycle of `config` for the last of `tips` that has one."""
        return await self.perform(partial(queries.find_cycle, tips=tips, config=config))

    async def chain(self, tip: str) -> list[bytes]:
        """Message bodies of the chain that ends at `tip`, oldest first."""
        return await self.perform(partial(queries.chain, tip=tip))

    async def view(self, view_id: int) -> Record | None:
        """A request with its compile, by row number; None if there is no such row."""
        return await self.perform(partial(queries.view, view_id=view_id))

    async def tools(self, view_id: int) -> tuple[Tool, ...] | None:
        """Tools and output schemas sent with a request; None if they are not on the record."""
        return await self.perform(partial(queries.tools, view_id=view_id))

    async def views(self, session_id: str | None = None, *, limit: int | None = None) -> list[Record]:
        """Requests with their compiles, newest first."""
        return await self.perform(partial(queries.views, session_id=session_id, limit=limit))

    async def summaries(self, session_id: str, *, limit: int | None = None) -> list[Compile]:
        """Compiles of a session, newest first."""
        return await self.perform(partial(queries.summaries, session_id=session_id, limit=limit))

    async def sessions(self) -> list[SessionInfo]:
        """Every conversation, most recently used first."""
        return await self.perform(queries.sessions)

    async def transcript(self, session_id: str, vault_name: str | None = None) -> list[bytes]:
        """Message bodies of a session's newest raw history; empty if the session is unknown."""
        return await self.perform(partial(queries.transcript, session_id=session_id, vault_name=vault_name))

    async def layers(self, session_id: str, vault_name: str = "") -> tuple[str, int] | None:
        """The newest layers of a session as JSON text, with their version; None if the session has no layers."""
        return await self.perform(partial(sessions.load_layers, session_id=session_id, vault_name=vault_name))

    async def save_layers(self, session_id: str, vault_name: str, state: str, *, after: int) -> int:
        """Replace version `after` of a session's layers and return the new version."""
        given = {"session_id": session_id, "vault_name": vault_name, "state": state, "after": after}
        return await self.perform(partial(sessions.save_layers, **given))

    async def layer_pages(
        self, session_id: str, vault_name: str = "", *, known: LayerPages | None = None
    ) -> LayerPages | None:
        """The newest layers of a session in pages; None if it has none. Pages already in `known` are not read again."""
        given = {"session_id": session_id, "vault_name": vault_name, "known": known}
        return await self.perform(partial(sessions.load_layer_pages, **given))

    async def save_layer_pages(
        self, session_id: str, vault_name: str, state: str, pages: Mapping[str, str], *, after: int
    ) -> int:
        """Replace version `after` of a session's layers and return the new version."""
        given = {"session_id": session_id, "vault_name": vault_name, "state": state, "pages": pages, "after": after}
        return await self.perform(partial(sessions.save_layers, **given))

    async def actions(self, session_id: str, vault_name: str = "") -> list[Action]:
        """Manual actions on a conversation, oldest first."""
        return await self.perform(partial(sessions.actions, session_id=session_id, vault_name=vault_name))

    async def announce_compile(
        self, session_id: str, vault_name: str, model: str, seconds: float
    ) -> tuple[int, datetime] | None:
        """Announce that a model is writing a summary, for at most `seconds`; return arguments for `withdraw_compile`.

        Returns None if the conversation is not on the record.
        """
        given = {"session_id": session_id, "vault_name": vault_name, "model": model, "seconds": seconds}
        return await self.perform(partial(sessions.announce_compile, **given))

    async def withdraw_compile(self, session: int, started_at: datetime) -> None:
        """Remove the announcement of a model call; one that replaced it stays."""
        await self.perform(partial(sessions.withdraw_compile, session=session, started_at=started_at))

    async def save_action(
        self, session_id: str, vault_name: str, action: Action, *, after: int, compile: Compile | None = None
    ) -> Action:
        """Save an action, with the compile that it made, and return it with `number` and `summary_id`."""
        given = {"session_id": session_id, "vault_name": vault_name, "action": action}
        return await self.perform(partial(sessions.save_action, **given, after=after, compile=compile))

    async def save_compile(self, compile: Compile) -> int:
        """Save a compile that belongs to no request and no action, and return its row number."""
        return await self.perform(partial(sessions.save_compile, compile=compile))

    async def session_cycles(self, session_id: str, vault_name: str = "") -> list[Cycle]:
        """All cycles of a conversation, oldest first."""
        return await self.perform(partial(sessions.session_cycles, session_id=session_id, vault_name=vault_name))

    async def conversation(self, session_id: str) -> list[bytes] | None:
        """Message bodies of a conversation in the host's conversation store; None if it is not there."""
        return await self.perform(partial(conversations.whole_history, conversation_id=session_id))

    def export(self) -> AsyncGenerator[Mapping[str, object]]:
        """Yield every row of one snapshot as a JSON-ready mapping."""
        ...

    async def delete(self, session_id: str) -> int:
        """Remove a conversation and all data that only it used; return the number of requests removed."""
        return await self.maintain(partial(maintenance.delete, session_id=session_id))

    async def prune(self, *, older_than_days: float | None = None, keep_last: int | None = None) -> int:
        """Remove old requests; return the number removed. No remaining chain is ever broken."""
        return await self.maintain(partial(maintenance.prune, older_than_days=older_than_days, keep_last=keep_last))

    async def verify(self) -> tuple[str, ...]:
        """Recompute every name and checksum from the stored data; return all defects, none if the record is sound."""
        return await self.maintain(maintenance.verify)


def _result(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, and return its result."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    work.close()
    raise RuntimeError("the reads of one job wait for something else than their store")
