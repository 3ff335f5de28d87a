"""The connection behind every function of the record, to SQLite or to PostgreSQL.

Functions write their statements for SQLite, with `?` markers, and `PostgresDatabase` translates them. Operations that
cannot be translated are methods of both classes; `SQLiteDatabase` describes what they promise.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from context_compiler.record.postgres_database import PostgresDatabase
    from context_compiler.record.sqlite import SQLiteDatabase

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


Database: TypeAlias = "SQLiteDatabase | PostgresDatabase"
"""A connection to a record; it works for one owner at a time."""
