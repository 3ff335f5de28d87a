"""Where the record lives: a protocol in four parts, and two stores that keep it.

`Recorder` is the path of a request, `Reader` looks, `Layered` holds layers, `Keeper` tidies up; a `Store` is all
four. Whatever passes the conformance suite in `tests/store` is a store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from context_compiler.record.sqlite import MemoryStore, SQLiteStore
from context_compiler.record.values import Chain, Compile, Cycle, Entry, Record, SessionInfo

__all__ = ["Keeper", "Layered", "MemoryStore", "Reader", "Recorder", "SQLiteStore", "Store", "open_store"]


class Recorder(Protocol):
    """The path of a request. Append-only: saving the same entry again is a no-op."""

    async def save(self, entry: Entry) -> Record:
        """Keep an entry in one transaction and give back its record with `id` and `summary_id`.

        Only the messages of the two chains that are not there yet are read and written. The same request
        (session, run, request index, raw tip and view tip) saved twice is one row. `summary_id` is the
        record's own or else the row of the entry's compile; where another process has stored a compile under
        the same cache key, that one's. Only a compile whose status is ok keeps its cache key.

        Raises:
            StoreError: it could not be kept; nothing of it was.
        """
        ...

    async def archive(self, session_id: str, vault_name: str, raw: Chain) -> None:
        """Keep a raw history without a request, as the newest of its conversation.

        Raises:
            StoreError: it could not be kept; nothing of it was.
        """
        ...

    async def find_compile(self, cache_key: str) -> tuple[int, Compile] | None:
        """The reusable compile with that cache key and its row number."""
        ...

    async def find_cycle(self, tips: Sequence[str], config: str) -> Cycle | None:
        """The newest cycle of the last of `tips` that has one of this `config`: of the longest known ancestor."""
        ...

    async def close(self) -> None:
        """Let go of connections; the store opens them again when it is used again."""
        ...


class Reader(Protocol):
    """Looking at what is on the record."""

    async def chain(self, tip: str) -> list[bytes]:
        """The message bodies of the chain that ends in `tip`, oldest first; StoreError if it is unknown."""
        ...

    async def view(self, view_id: int) -> Record | None:
        """One request with its compile."""
        ...

    async def views(self, session_id: str | None = None, *, limit: int | None = None) -> list[Record]:
        """Requests, newest first; each with its compile."""
        ...

    async def summaries(self, session_id: str, *, limit: int | None = None) -> list[Compile]:
        """Compiles of a session, newest first."""
        ...

    async def sessions(self) -> list[SessionInfo]:
        """Every conversation, the one used last first."""
        ...

    async def transcript(self, session_id: str) -> list[bytes]:
        """The bodies of a session's raw history as last seen; empty when it is unknown.

        Where several vaults have a session of that name, it is the one used last.
        """
        ...


class Layered(Protocol):
    """The layers of a session: what it knows of entities, conversation and reasoning."""

    async def layers(self, session_id: str, vault_name: str = "") -> tuple[str, int] | None:
        """The newest state of a session's layers, as JSON text, and its version; None where it has none."""
        ...

    async def save_layers(self, session_id: str, vault_name: str, state: str, *, after: int) -> int:
        """Keep a state in place of version `after` (0: there is none) and give its version; the former is gone.

        Raises:
            StoreError: another state has been kept meanwhile, or it could not be kept; nothing has changed.
        """
        ...


class Keeper(Protocol):
    """Keeping the record small and sound."""

    async def delete(self, session_id: str) -> int:
        """Remove a conversation and everything only it used; the number of requests removed.

        Messages and compiles that another conversation uses stay, as that one's.
        """
        ...

    async def prune(self, *, older_than_days: float | None = None, keep_last: int | None = None) -> int:
        """Remove old requests, with everything that no remaining one needs; no kept chain is ever broken.

        A request goes when it is older than `older_than_days` *and* not among the newest `keep_last` of its
        session; a limit that is not given spares nothing, and with neither only what nothing points to goes.
        A session keeps its raw history, its newest cycle and the compiles of its remaining requests and
        turns; one whose last request goes, goes altogether.
        """
        ...

    async def verify(self) -> tuple[str, ...]:
        """Every defect found by deriving each name again from what reading returns; empty when sound."""
        ...

    def export(self) -> AsyncIterator[Mapping[str, object]]:
        """Everything, one JSON-ready mapping a row: its `table`, its columns, contents as text.

        Rows come after those that they point to. The search index is left out: it repeats the messages.
        """
        ...


@runtime_checkable
class Store(Recorder, Reader, Layered, Keeper, Protocol):
    """A place for the record."""


def open_store(store: str | Path | Store | None) -> Store:
    """A store as given, the SQLite file at a path, or for None one in memory; no file is touched yet."""
    if store is None:
        return MemoryStore()
    return SQLiteStore(store) if isinstance(store, str | Path) else store
