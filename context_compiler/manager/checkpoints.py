"""Storage of a session: checkpoints in a repository, and the current state on a shelf."""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from itertools import compress, count
from typing import TypeVar
from weakref import WeakKeyDictionary

from pydantic_ai.messages import ModelMessage

from context_compiler.errors import ContextMemoryError, SettingsError
from context_compiler.ids import exact_id
from context_compiler.manager.memory import AUTHOR, MemoryRepository, MemorySystem, SessionShelf, Snapshot
from context_compiler.manager.results import Score
from context_compiler.manager.session import Session, SessionTurn, restore_session, session_facts
from context_compiler.manager.summary import SummaryRow
from context_compiler.messages.history import Reader, message_body, searchable
from context_compiler.resilience import await_within

T = TypeVar("T")

_SAVES: WeakKeyDictionary[object, int] = WeakKeyDictionary()
"""Number of times that managers of this process have saved a session, by its shelf."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnChain:
    """Messages of some turns as ids and bodies; implements `Chain`."""

    turns: tuple[SessionTurn, ...]
    starts: tuple[int, ...]
    """Position of the first message of each turn, then the number of messages."""
    ids: tuple[str, ...]
    reader: Reader

    def message(self, index: int) -> ModelMessage:
        """Message at a position."""
        turn = bisect_right(self.starts, index) - 1
        return self.turns[turn].messages[index - self.starts[turn]]

    def body(self, index: int) -> bytes:
        """Canonical JSON of message `index`."""
        return message_body(self.message(index))

    def text(self, index: int) -> str:
        """Searchable text of message `index`."""
        return searchable(self.reader.one(self.message(index)))


def chain_turns(turns: tuple[SessionTurn, ...], last: TurnChain | None, reader: Reader) -> TurnChain:
    """Chain of turns; the prefix shared with `last` is not read again."""
    known = last.turns if last else ()
    differ = compress(count(), map(operator.is_not, turns, known))
    kept = next(differ, min(len(turns), len(known)))
    starts = list(last.starts[: kept + 1]) if last else [0]
    ids = list(last.ids[: starts[-1]]) if last else []
    for turn in turns[kept:]:
        for message in turn.messages:
            ids.append(exact_id(ids[-1] if ids else None, reader.one(message).exact))
        starts.append(len(ids))
    return TurnChain(turns=turns, starts=tuple(starts), ids=tuple(ids), reader=reader)


async def within(seconds: float, what: str, work: Awaitable[T]) -> T:
    """Result of a call of memory or repository, which may hang.

    Raises:
        ContextMemoryError: It took longer than `seconds`.
    """
    return await await_within(seconds, work, ContextMemoryError(f"{what} took longer than {seconds:g} seconds"))


class Checkpoints:
    """Repository and shelf of one manager, as far as it has them.

    A repository that keeps sessions returns them itself; for any other they are kept here, which costs nothing, because
    sessions are values.
    """

    def __init__(self, memory: MemorySystem, repo: MemoryRepository | None, reader: Reader, timeout: float) -> None:
        if repo is not None and not isinstance(repo, MemoryRepository):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SettingsError(f"repo={repo!r}: give a MemoryRepository: commit, checkout, log and diff")
        self._repo, self._reader, self._timeout = repo, reader, timeout
        self._past = repo if isinstance(repo, SessionShelf) else None
        self._shelf = memory if isinstance(memory, SessionShelf) else self._past
        self._own: dict[str, Session] = {}
        self._last: TurnChain | None = None
        self._seen: int | None = None
        """Number of saves when the session was read or saved here."""

    @property
    def enabled(self) -> bool:
        """True if there is a repository."""
        return self._repo is not None

    async def commit(self, session: Session, message: str) -> str | None:
        """Commit a session and the memory; None without a repository."""
        if self._repo is None:
            return None
        kept = replace(session, since_checkpoint=0)
        commit = await within(self._timeout, "commit", self._repo.commit(message, AUTHOR, self._snapshot(kept)))
        if self._past is None:
            self._own[commit] = kept
        return commit

    async def back(self, commit: str | None) -> Session:
        """Session of a checkpoint, after restoring the memory.

        Raises:
            SettingsError: There is no repository.
            ContextMemoryError: There is no such checkpoint.
        """
        if self._repo is None:
            raise SettingsError(
                "Versioning not enabled: make the manager with ContextManager.with_versioning(memory, repo, llm)"
            )
        if commit is None:
            raise ContextMemoryError("No checkpoint to rollback to: `checkpoint` makes one, and each can be used once")
        session = await self._then(commit)
        await within(self._timeout, "checkout", self._repo.checkout(commit))
        return session

    async def _then(self, commit: str) -> Session:
        known, saved = self._own.get(commit), None
        if known is None and self._past is not None:
            saved = await within(self._timeout, "session_at", self._past.session_at(commit))
        if known is None and saved is None:
            raise ContextMemoryError(f"commit {commit} holds no session; `log` names the others")
        return known or restore_session(saved, self._reader)  # pyright: ignore[reportArgumentType] # one of the two is there

    async def keep(self, session: Session, score: Score | None = None, row: SummaryRow | None = None) -> None:
        """Save a session and the record of its summary, if there is a shelf.

        Raises:
            ContextMemoryError: Another manager of the same memory has saved its session meanwhile.
        """
        if self._shelf is None:
            return
        saves = _SAVES.get(self._shelf, 0)
        if self._seen not in (None, saves):
            raise ContextMemoryError(
                "another manager of the same memory has saved its session, which is not overwritten: give each a memory"
                " of its own, or call resume() to continue from what was saved"
            )
        chain = self._chained(session)
        compile = None
        if row is not None:
            end = chain.starts[min(row.covered, len(session.turns))]
            compile = replace(row.compile, covered_tip=chain.ids[end - 1] if end else "")
        await within(self._timeout, "keep", self._shelf.keep(self._snapshot(session), score, compile))
        self._seen = _SAVES[self._shelf] = _SAVES.get(self._shelf, 0) + 1

    async def latest(self) -> Session | None:
        """Session as saved last."""
        if self._shelf is None:
            return None
        self._seen = _SAVES.get(self._shelf, 0)
        saved = await within(self._timeout, "latest", self._shelf.latest())
        return None if saved is None else restore_session(saved, self._reader)

    def _chained(self, session: Session) -> TurnChain:
        self._last = chain_turns(session.turns, self._last, self._reader)
        return self._last

    def _snapshot(self, session: Session) -> Snapshot:
        return Snapshot(turns=self._chained(session), count=len(session.turns), facts=session_facts(session))
