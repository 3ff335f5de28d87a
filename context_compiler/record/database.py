"""The connection protocol behind every function of the record, implemented for SQLite and for PostgreSQL.

Functions write their statements for SQLite, with `?` markers, and `PostgresDatabase` translates them. Operations that
cannot be translated are methods of the protocol.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

PAGE = 500
"""Rows that an export fetches at a time."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment by two clocks: a monotonic one, which may stop during sleep, and the wall clock, which may be reset."""

    removals: int | None = None
    """Number of removals that the record had seen by then; None if it is unknown, and the clocks must decide."""
    steady: float = field(default_factory=time.monotonic)
    wall: float = field(default_factory=time.time)

    @property
    def age(self) -> float:
        """Seconds since this moment, by whichever clock shows more."""
        return max(time.monotonic() - self.steady, time.time() - self.wall)


class Rows(Protocol):
    """The result of a statement; columns of a row are read by name or by position."""

    @property
    def rowcount(self) -> int:
        """Number of rows that the statement changed."""
        ...

    def fetchone(self) -> Any:
        """Return the next row; None after the last."""
        ...

    def fetchall(self) -> list[Any]:
        """Return all remaining rows."""
        ...

    def __iter__(self) -> Iterator[Any]: ...


class Database(Protocol):
    """A connection to a record; it works for one owner at a time."""

    owner: str | None
    """Owner whose rows are read and written; None reads the rows of every owner."""
    tried: Moment | None
    """When its writes were first attempted; a write is refused if anything has been removed since. None means now."""
    damage: tuple[type[Exception], ...]
    """Errors that reading a damaged record may raise."""

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Rows:
        """Run one statement."""
        ...

    def executemany(self, sql: str, parameters: Sequence[Sequence[Any]], /) -> object:
        """Run one statement once for each sequence of parameters."""
        ...

    def scan(self, sql: str, parameters: Sequence[Any] = ()) -> Iterator[Any]:
        """Yield the rows of a query whose result may be large; call it within `snapshot`."""
        ...

    def lenient(self) -> AbstractContextManager[None]:
        """Read damaged texts too, with a lone surrogate for each damaged byte; else they are an error.

        Within `snapshot`, an error in `damage` that is raised through it leaves the snapshot readable.
        """
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """Run a write transaction; an error rolls it back."""
        ...

    def snapshot(self) -> AbstractContextManager[None]:
        """Run a read transaction, which sees one state of the record regardless of concurrent writes."""
        ...

    def sweep(self) -> AbstractContextManager[None]:
        """Run a transaction that removes rows; no other transaction writes meanwhile."""
        ...

    def lock_name(self, name: str) -> None:
        """Take a lock on a name until the transaction ends; other transactions that take it wait."""
        ...

    def clock(self) -> float:
        """Return the time in seconds, by a clock that all writers of the record share."""
        ...

    def next_number(self, table: str) -> int:
        """Return the number for a new row of a table."""
        ...

    def index_messages(self, texts: Sequence[tuple[str, str]]) -> None:
        """Add texts of messages to the search index, as `(message id, text)`."""
        ...

    def index_waiting(self) -> bool:
        """Index some of the texts that are not indexed yet; True if more may be left."""
        ...

    def find_messages(self, words: Sequence[str], limit: int | None, *, prefix: str | None) -> list[tuple[str, str]]:
        """Find messages that contain a phrase, newest first, as `(message id, text)`.

        Args:
            words: The words of the phrase; the last may be the beginning of a longer word.
            limit: Maximum number of messages; None finds all.
            prefix: The owner prefix of the messages; None finds those of every owner.
        """
        ...

    def index_memory(self, number: int, terms: str) -> None:
        """Add the terms of a memory to the search index."""
        ...

    def find_memories(self, session: int, terms: Sequence[str], limit: int) -> list[Any]:
        """Find the best matches in a session for any term; each row has `id`, `created_at`, `position` and `body`."""
        ...

    def memories_with(self, session: int, phrase: str) -> list[Any]:
        """Find indexed memories with a phrase; each row has `number`, `memory`, `id`, `created_at` and `body`."""
        ...

    def live_memories(self) -> list[tuple[int, str, str | None]]:
        """Live memories of all sessions in order, as `(session, memory, terms)`; terms are None if not indexed."""
        ...

    def clean_indexes(self, gone: Sequence[str] | None = None) -> None:
        """Remove search-index entries whose messages (all, or those with these names) or memories no longer exist."""
        ...

    def check_structure(self) -> Iterator[str]:
        """Check what the database itself guarantees, such as pages, indexes and references."""
        ...

    def check_schema(self) -> Iterator[str]:
        """Check that the tables are defined as in a new record."""
        ...

    def check_search_index(self) -> Iterator[str]:
        """Check that each entry of the search indexes matches its text and its message."""
        ...
