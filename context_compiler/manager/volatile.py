"""A memory in this process alone: for tests, for trials, and where nothing may be left behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from context_compiler.errors import ContextMemoryError
from context_compiler.ids import blob_id, chained
from context_compiler.manager.memory import AUTHOR, Saved, Snapshot, at_most, remembered
from context_compiler.manager.ranking import MemoryRanking
from context_compiler.manager.results import Commit, Diff, Match, Memory, Score
from context_compiler.messages.history import Reader
from context_compiler.record.values import Compile
from context_compiler.tokens import as_counter


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """A commit with what it holds."""

    commit: Commit
    memories: tuple[Memory, ...]
    session: Snapshot | None


class VolatileMemory:
    """Memories, commits, a session and its scores, for as long as the process runs."""

    def __init__(self) -> None:
        self._memories: tuple[Memory, ...] = ()
        self._commits: dict[str, _Kept] = {}
        self._head: str | None = None
        self._session: Snapshot | None = None
        self._scores: list[Score] = []
        self.compiles: list[Compile] = []
        """How summaries were made, oldest first."""
        self._ranking = MemoryRanking(Reader(as_counter(None)))

    async def search(self, query: str, limit: int) -> list[Match]:
        """At most `limit` memories that bear on a query, the best first."""
        return self._ranking.best(remembered(query, "query"), self._memories, at_most(limit))

    async def remember(self, text: str) -> str:
        """Keep a text and give its id."""
        text = remembered(text, "text")
        known = next((one for one in self._memories if one.text == text), None)
        if known is not None:
            return known.id
        before = self._memories[-1].id if self._memories else None
        name = chained(before, blob_id(text.encode("utf-8", "surrogatepass")))
        self._memories = (*self._memories, Memory(id=name, text=text, created_at=datetime.now(UTC)))
        return name

    async def commit(self, message: str, author: str = AUTHOR, session: Snapshot | None = None) -> str:
        """Keep the memory as it stands, and a session with it."""
        made = Commit(
            id="",
            parent=self._head,
            message=remembered(message, "message"),
            author=remembered(author, "author"),
            created_at=datetime.now(UTC),
            memories=len(self._memories),
            turns=session.count if session else 0,
        )
        tip = self._memories[-1].id if self._memories else None
        name = blob_id(repr((made, tip, session and (session.facts, list(session.turns.ids)[-1:]))).encode())
        kept = _Kept(commit=replace(made, id=name), memories=self._memories, session=session)
        self._commits[name], self._head = kept, name
        return name

    async def checkout(self, commit: str) -> None:
        """Let the memory be as it was at a commit."""
        self._memories = self._known(commit).memories
        self._head = commit

    async def log(self, limit: int | None = None) -> list[Commit]:
        """The commit that the memory is at and those before it, newest first."""
        found: list[Commit] = []
        at, most = self._head, None if limit is None else at_most(limit)
        while at is not None and (most is None or len(found) < most):
            found.append(self._commits[at].commit)
            at = found[-1].parent
        return found

    async def diff(self, old: str, new: str) -> Diff:
        """What `new` remembers and `old` does not, and the other way round."""
        before, after = self._known(old).memories, self._known(new).memories
        return Diff(
            added=tuple(one for one in after if one not in before),
            removed=tuple(one for one in before if one not in after),
        )

    async def keep(self, session: Snapshot, score: Score | None = None, compile: Compile | None = None) -> None:
        """Keep a session as it stands, the score of its turn, and how its summary was made."""
        self._session = session
        self.compiles += [compile] if compile else []
        self._scores += [score] if score else []

    async def latest(self) -> Saved | None:
        """The session as it was kept last."""
        return _saved(self._session)

    async def session_at(self, commit: str) -> Saved | None:
        """The session that was committed."""
        return _saved(self._known(commit).session)

    async def scores(self) -> Sequence[Score]:
        """Every score, oldest first."""
        return tuple(self._scores)

    def _known(self, commit: str) -> _Kept:
        if not isinstance(commit, str) or commit not in self._commits:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ContextMemoryError(f"there is no commit {commit!r}; `log` names those that there are")
        return self._commits[commit]


def _saved(session: Snapshot | None) -> Saved | None:
    if session is None:
        return None
    bodies = tuple(session.turns.body(at) for at in range(len(session.turns.ids)))
    return Saved(facts=session.facts, bodies=bodies)
