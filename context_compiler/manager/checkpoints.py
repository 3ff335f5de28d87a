"""Storage of a session: checkpoints in a repository, and the current state on a `SessionShelf`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar
from weakref import WeakKeyDictionary

from context_compiler.errors import ContextMemoryError, SettingsError
from context_compiler.manager.memory import AUTHOR, MemoryRepository, MemorySystem, SessionShelf, Snapshot
from context_compiler.manager.results import Score
from context_compiler.manager.session import Session, restore_session, session_facts, turn_messages
from context_compiler.messages.history import History, Reader
from context_compiler.record.values import Compile
from context_compiler.resilience import await_within

T = TypeVar("T")

_SAVES: WeakKeyDictionary[object, int] = WeakKeyDictionary()
"""Number of saves by all managers of this process, by shelf."""


async def within(seconds: float, what: str, work: Awaitable[T]) -> T:
    """Await a call of the memory or repository, which may hang.

    Raises:
        ContextMemoryError: The call took longer than `seconds`.
    """
    return await await_within(seconds, work, ContextMemoryError(f"{what} took longer than {seconds:g} seconds"))


class Checkpoints:
    """Repository and shelf of one manager, each optional.

    A repository that is also a `SessionShelf` stores the sessions of its commits. For any other, the sessions are kept
    in memory here, which is cheap because sessions are immutable.
    """

    def __init__(self, memory: MemorySystem, repo: MemoryRepository | None, reader: Reader, timeout: float) -> None:
        if repo is not None and not isinstance(repo, MemoryRepository):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SettingsError(f"repo={repo!r}: give a MemoryRepository, with `commit`, `checkout`, `log` and `diff`")
        self._repo, self._reader, self._timeout = repo, reader, timeout
        self._session_repo = repo if isinstance(repo, SessionShelf) else None
        self._shelf = memory if isinstance(memory, SessionShelf) else self._session_repo
        self._committed: dict[str, Session] = {}
        self._last: History | None = None
        """The messages of the session that was last saved or committed."""
        self._seen: int | None = None
        """Number of saves on the shelf when the session was last read or saved here."""

    @property
    def enabled(self) -> bool:
        """True if there is a repository."""
        return self._repo is not None

    async def commit(self, session: Session, message: str) -> str | None:
        """Commit a session and the memory; return the id of the commit, or None without a repository."""
        if self._repo is None:
            return None
        kept = replace(session, since_checkpoint=0)
        commit = await within(self._timeout, "commit", self._repo.commit(message, AUTHOR, self._snapshot(kept)))
        if self._session_repo is None:
            self._committed[commit] = kept
        return commit

    async def restore(self, commit: str | None, prepare: Callable[[], Awaitable[object]] | None = None) -> Session:
        """Restore the memory of a checkpoint, and return its session.

        Args:
            commit: Id of the checkpoint.
            prepare: Called once the session was found; if it raises, nothing is restored.

        Raises:
            SettingsError: There is no repository.
            ContextMemoryError: There is no such checkpoint.
        """
        if self._repo is None:
            raise SettingsError(
                "Versioning not enabled: make the manager with ContextManager.with_versioning(memory, repo, llm)"
            )
        if commit is None:
            raise ContextMemoryError("No checkpoint to roll back to: `checkpoint` makes one, and each can be used once")
        session = self._committed.get(commit)
        if session is None and self._session_repo is not None:
            saved = await within(self._timeout, "session_at", self._session_repo.session_at(commit))
            session = None if saved is None else restore_session(saved, self._reader)
        if session is None:
            raise ContextMemoryError(f"commit {commit} contains no session; `log` lists the other commits")
        if prepare is not None:
            await prepare()
        await within(self._timeout, "checkout", self._repo.checkout(commit))
        return session

    async def keep(self, session: Session, score: Score | None = None, row: Compile | None = None) -> None:
        """Save a session and the record of its summary, whose `covered_tip` is filled in, if there is a shelf.

        Raises:
            ContextMemoryError: Another manager of the same memory has saved its session since.
        """
        if self._shelf is None:
            return
        saves = _SAVES.get(self._shelf, 0)
        if self._seen not in (None, saves):
            raise ContextMemoryError(
                "another manager of the same memory has saved its session, which is not overwritten: give each manager"
                " its own memory, or call resume() to continue from the saved session"
            )
        snapshot = self._snapshot(session)
        if row is not None:
            end = len(turn_messages(session.turns[: row.turn_index]))
            row = replace(row, covered_tip=snapshot.turns.ids[end - 1] if end else "")
        await within(self._timeout, "keep", self._shelf.keep(snapshot, score, row))
        self._seen = _SAVES[self._shelf] = _SAVES.get(self._shelf, 0) + 1

    async def latest(self) -> Session | None:
        """Return the session as last saved; None if there is none."""
        if self._shelf is None:
            return None
        self._seen = _SAVES.get(self._shelf, 0)
        saved = await within(self._timeout, "latest", self._shelf.latest())
        return None if saved is None else restore_session(saved, self._reader)

    def _snapshot(self, session: Session) -> Snapshot:
        self._last = self._reader.read(turn_messages(session.turns), last=self._last)
        return Snapshot(turns=self._last.chain, count=len(session.turns), facts=session_facts(session))
