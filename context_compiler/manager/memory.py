"""What a manager asks of a memory: three protocols of a few methods, whoever keeps it.

`SQLiteMemory` and `VolatileMemory` are all three at once. A memory of your own needs only `MemorySystem`; one that
can be rolled back is a `MemoryRepository` too; one that also keeps sessions lets them go on after a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from context_compiler.errors import SettingsError
from context_compiler.manager.results import Commit, Diff, Match, Score
from context_compiler.record.values import Chain, Compile

AUTHOR = "context-manager"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A session to keep: its messages, of which only those that are new are written, and the rest as JSON."""

    turns: Chain
    count: int
    """Of its turns."""
    facts: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A session that was kept."""

    facts: str
    bodies: tuple[bytes, ...]
    """The canonical JSON of each message."""


def remembered(given: object, what: str) -> str:
    """A text that a memory is given, for every memory to refuse the same.

    Raises:
        SettingsError: it is none.
    """
    if not isinstance(given, str):
        raise SettingsError(f"{what} is a {type(given).__name__}; give a memory texts")
    return given


def at_most(limit: object) -> int:
    """How many are asked for, for every memory to refuse the same.

    Raises:
        SettingsError: it is no number.
    """
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise SettingsError(f"limit={limit!r:.80}: give a whole number")
    return limit


@runtime_checkable
class MemorySystem(Protocol):
    """Remembers texts, and finds them again by what is asked."""

    async def search(self, query: str, limit: int) -> Sequence[Match]:
        """At most `limit` memories that bear on a query, the best first; none where nothing does."""
        ...

    async def remember(self, text: str) -> str:
        """Keep a text and give its id; one that is remembered already keeps the id it has."""
        ...


@runtime_checkable
class MemoryRepository(Protocol):
    """Keeps states of a memory by name, and goes back to them."""

    async def commit(self, message: str, author: str = AUTHOR, session: Snapshot | None = None) -> str:
        """Keep the memory as it stands, and a session with it; the id of the commit."""
        ...

    async def checkout(self, commit: str) -> None:
        """Let the memory be as it was at a commit: wholly, or, when this raises, not at all."""
        ...

    async def log(self, limit: int | None = None) -> Sequence[Commit]:
        """The commit that the memory is at and those before it, newest first."""
        ...

    async def diff(self, old: str, new: str) -> Diff:
        """What `new` remembers and `old` does not, and the other way round."""
        ...


@runtime_checkable
class SessionShelf(Protocol):
    """Keeps a session and its scores, so that another process can go on with it."""

    async def keep(self, session: Snapshot, score: Score | None = None, compile: Compile | None = None) -> None:
        """Keep a session as it stands, in place of what was kept before; beside it a score, and a summary's making."""
        ...

    async def latest(self) -> Saved | None:
        """The session as it was kept last; None for none."""
        ...

    async def session_at(self, commit: str) -> Saved | None:
        """The session that was committed; None where only memory was."""
        ...

    async def scores(self) -> Sequence[Score]:
        """Every score, oldest first."""
        ...
