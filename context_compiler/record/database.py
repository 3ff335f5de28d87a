"""The connection that all functions of the record work on: SQL that SQLite and PostgreSQL share, and where they differ.

Statements are written for SQLite with markers `?`. `PostgresDatabase` translates them; what has no translation is a
method here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Moment:
    """Now, by two clocks: one that nobody sets, which may stand still in sleep, and one that does not."""

    steady: float = field(default_factory=time.monotonic)
    wall: float = field(default_factory=time.time)

    @property
    def age(self) -> float:
        """Seconds since then."""
        return max(time.monotonic() - self.steady, time.time() - self.wall)


class Rows(Protocol):
    """The outcome of a statement; each row is read by name or by position."""

    @property
    def rowcount(self) -> int:
        """Rows that were changed."""
        ...

    def fetchone(self) -> Any:
        """The next row, or None."""
        ...

    def fetchall(self) -> list[Any]:
        """All further rows."""
        ...

    def __iter__(self) -> Iterator[Any]: ...


class Database(Protocol):
    """A connection to a record, which works for one owner at a time."""

    owner: str | None
    """Owner whose rows the queries see and write; None sees every owner's."""
    tried: Moment | None
    """When what it writes was first tried; such a write is refused if anything was removed since. None is now."""
    damage: tuple[type[Exception], ...]
    """Errors of reading a record that is damaged."""

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Rows:
        """Run one statement."""
        ...

    def executemany(self, sql: str, parameters: Sequence[Sequence[Any]], /) -> object:
        """Run one statement for each of these parameters."""
        ...

    def scan(self, sql: str, parameters: Sequence[Any] = ()) -> Iterator[Any]:
        """Rows of a query of any size, within `snapshot`."""
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """A write transaction, rolled back on an error."""
        ...

    def snapshot(self) -> AbstractContextManager[None]:
        """A read transaction: one state of the record, whatever others write meanwhile."""
        ...

    def sweep(self) -> AbstractContextManager[None]:
        """A transaction in which rows are removed, while nobody else writes."""
        ...

    def hold(self, name: str) -> None:
        """Let other transactions that hold the same name wait for the end of this one."""
        ...

    def clock(self) -> float:
        """The time in seconds, by a clock that all who write to the record share."""
        ...

    def next_number(self, table: str) -> int:
        """The number of a new row."""
        ...

    def index_messages(self, texts: Sequence[tuple[str, str]]) -> None:
        """Add texts of messages to the search index, each with the name of its message."""
        ...

    def index_waiting(self) -> bool:
        """Move some texts that wait into the search index; True if more may wait."""
        ...

    def find_messages(self, words: Sequence[str], limit: int, *, prefix: str | None) -> list[tuple[str, str]]:
        """Messages with these words one after the other, newest first: id and text.

        The last word may be the beginning of a longer one. Names begin with `prefix`; None is any.
        """
        ...

    def index_memory(self, number: int, terms: str) -> None:
        """Add a memory to the search index."""
        ...

    def unindex_memory(self, number: int) -> None:
        """Remove a memory from the search index."""
        ...

    def find_memories(self, session: int, terms: Sequence[str], limit: int) -> list[Any]:
        """The best matches of a session for any of these terms: `id`, `created_at`, `position` and `body`."""
        ...

    def memories_with(self, session: int, phrase: str) -> list[Any]:
        """Memories in the index with a phrase: `number`, `memory`, `id`, `created_at` and `body`."""
        ...

    def message_texts(self, after: int, limit: int) -> list[tuple[int, str, str]]:
        """Texts of the search index beyond a row of it: row, name of the message, text."""
        ...

    def live_memories(self) -> list[tuple[int, str, str | None]]:
        """Memories of every session in order: session, name, and terms if the index has them."""
        ...

    def clean_indexes(self) -> None:
        """Remove from the search indexes what is gone from the tables."""
        ...

    def check_structure(self) -> Iterator[str]:
        """Check what the database itself promises: pages, indexes and references."""
        ...

    def check_schema(self) -> Iterator[str]:
        """Check that the tables are those of a new record."""
        ...

    def check_search_index(self) -> Iterator[str]:
        """Check the search indexes against their texts, and each text for its message."""
        ...
