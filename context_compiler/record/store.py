"""The `Store` protocol in four parts: `Recorder`, `Reader`, `Layered` and `Keeper`.

The conformance suite in `tests/record` defines what a store is; `SQLiteStore` and `MemoryStore` pass it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from context_compiler.record.sqlite import MemoryStore, SQLiteStore
from context_compiler.record.values import Chain, Compile, Cycle, Entry, Record, SessionInfo

__all__ = ["Keeper", "Layered", "MemoryStore", "Reader", "Recorder", "SQLiteStore", "Store", "open_store"]


class Recorder(Protocol):
    """Methods on the path of a request. Append-only: saving an entry again is a no-op."""

    async def save(self, entry: Entry) -> Record:
        """Save an entry in one transaction and return its record with `id` and `summary_id`.

        Only messages of the two chains that are not stored yet are read and written. The same request (session, run,
        request index, raw tip and view tip) saved twice is one row. `summary_id` is the record's own, else the row of
        the entry's compile, or of a compile that is stored under the same cache key already. Only a compile with
        status ok keeps its cache key.

        Raises:
            StoreError: It could not be saved; nothing of it was.
        """
        ...

    async def archive(self, session_id: str, vault_name: str, raw: Chain) -> None:
        """Save a raw history without a request, as the newest of its conversation.

        Raises:
            StoreError: It could not be saved; nothing of it was.
        """
        ...

    async def find_compile(self, cache_key: str) -> tuple[int, Compile] | None:
        """The reusable compile with that cache key and its row number."""
        ...

    async def find_cycle(self, tips: Sequence[str], config: str) -> Cycle | None:
        """The newest cycle of this `config` for the last of `tips` that has one: the longest known ancestor."""
        ...

    async def close(self) -> None:
        """Close connections; they open again on use."""
        ...


class Reader(Protocol):
    """Methods that read the record."""

    async def chain(self, tip: str) -> list[bytes]:
        """Message bodies of the chain that ends in `tip`, oldest first; StoreError if `tip` is unknown."""
        ...

    async def view(self, view_id: int) -> Record | None:
        """One request with its compile."""
        ...

    async def views(self, session_id: str | None = None, *, limit: int | None = None) -> list[Record]:
        """Requests with their compiles, newest first."""
        ...

    async def summaries(self, session_id: str, *, limit: int | None = None) -> list[Compile]:
        """Compiles of a session, newest first."""
        ...

    async def sessions(self) -> list[SessionInfo]:
        """Every conversation, most recently used first."""
        ...

    async def transcript(self, session_id: str) -> list[bytes]:
        """Message bodies of a session's raw history as last seen; empty if unknown.

        If several vaults have a session of that name, the most recently used one counts.
        """
        ...


class Layered(Protocol):
    """Methods for the layers of a session: entities, conversation and reasoning."""

    async def layers(self, session_id: str, vault_name: str = "") -> tuple[str, int] | None:
        """The newest layers of a session as JSON text, and their version; None if it has none."""
        ...

    async def save_layers(self, session_id: str, vault_name: str, state: str, *, after: int) -> int:
        """Replace version `after` (0 for none) of a session's layers and return the new version.

        Raises:
            StoreError: The newest version is another one, or saving failed; nothing has changed.
        """
        ...


class Keeper(Protocol):
    """Methods that keep the record small and sound."""

    async def delete(self, session_id: str) -> int:
        """Remove a conversation and everything only it used; the number of requests removed.

        Messages and compiles that another conversation uses pass to that one.
        """
        ...

    async def prune(self, *, older_than_days: float | None = None, keep_last: int | None = None) -> int:
        """Remove old requests and everything that no remaining one needs; the number of requests removed.

        A request is removed if it is older than `older_than_days` *and* not among the newest `keep_last` of its
        session. A limit of None protects nothing; with neither limit, only unreferenced rows are removed. A session
        keeps its raw history, its newest cycle and the compiles of its remaining requests and turns; a session without
        remaining requests is removed too. No remaining chain is ever broken.
        """
        ...

    async def verify(self) -> tuple[str, ...]:
        """Every defect found by deriving each name again from what reading returns; empty if sound."""
        ...

    def export(self) -> AsyncIterator[Mapping[str, object]]:
        """Every row as a JSON-ready mapping: its `table`, its columns, contents as text.

        A row comes after the rows it refers to. The search indexes are left out: they repeat the messages.
        """
        ...


@runtime_checkable
class Store(Recorder, Reader, Layered, Keeper, Protocol):
    """A store of the record."""


def open_store(store: str | Path | Store | None) -> Store:
    """The store itself, the SQLite file at a path, or a store in memory for None; no file is touched yet."""
    if store is None:
        return MemoryStore()
    return SQLiteStore(store) if isinstance(store, str | Path) else store
