"""Memory of a manager: three protocols, and an implementation in the file of the record.

`SQLiteMemory` and `VolatileMemory` implement all three. A memory of your own needs only `MemorySystem`; one that can be
rolled back is a `MemoryRepository` too; one that also saves sessions (`SessionShelf`) lets them outlive the process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from pydantic_ai.messages import ModelRequest, UserPromptPart

from context_compiler.errors import SettingsError
from context_compiler.manager.results import SCORED, Commit, Diff, Match, Memory, Score
from context_compiler.messages.history import Reader
from context_compiler.recall import Index, Question, Relevance
from context_compiler.recall.terms import terms
from context_compiler.record import rows, sessions
from context_compiler.record.database import Database
from context_compiler.record.store import DEFAULT_PATH, MemoryStore, SQLStore, open_place
from context_compiler.record.values import Chain, Compile
from context_compiler.tokens import as_counter

AUTHOR = "context-manager"
SUMMARY_PREFIX = "[context-summary] "
"""Beginning of a summary as a manager remembers it; `SQLiteMemory` finds only the newest of a session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Session to save: its messages, of which only new ones are written, and the rest as JSON."""

    turns: Chain
    count: int
    """Number of turns."""
    facts: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Saved session."""

    facts: str
    bodies: tuple[bytes, ...]
    """Canonical JSON of each message."""


def check_memory_text(given: object, what: str) -> str:
    """Return a text for a memory, so that every memory refuses the same values.

    Raises:
        SettingsError: It is not a text.
    """
    if not isinstance(given, str):
        raise SettingsError(f"{what} is a {type(given).__name__}; give a memory texts")
    return given


def check_limit(limit: object) -> int:
    """Return a limit, so that every memory refuses the same values.

    Raises:
        SettingsError: It is not a whole number.
    """
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise SettingsError(f"limit={limit!r:.80}: give a whole number")
    return limit


@runtime_checkable
class MemorySystem(Protocol):
    """Remembers texts, and finds them by relevance to a query."""

    async def search(self, query: str, limit: int) -> Sequence[Match]:
        """At most `limit` memories relevant to a query, best first; empty if there are none."""
        ...

    async def remember(self, text: str) -> str:
        """Remember a text and return its id; a known text keeps its id."""
        ...


@runtime_checkable
class MemoryRepository(Protocol):
    """Commits states of a memory, and restores them."""

    async def commit(self, message: str, author: str = AUTHOR, session: Snapshot | None = None) -> str:
        """Commit the memory, and a session with it; return the id of the commit."""
        ...

    async def checkout(self, commit: str) -> None:
        """Restore the memory of a commit, completely, or if this raises, not at all."""
        ...

    async def log(self, limit: int | None = None) -> Sequence[Commit]:
        """Current commit of the memory and its ancestors, newest first."""
        ...

    async def diff(self, old: str, new: str) -> Diff:
        """Memories of `new` that `old` lacks, and the reverse."""
        ...


@runtime_checkable
class SessionShelf(Protocol):
    """Saves a session and its scores, so that another process can continue it."""

    async def keep(self, session: Snapshot, score: Score | None = None, compile: Compile | None = None) -> None:
        """Save a session in place of the one saved before, with a score and the record of a summary."""
        ...

    async def latest(self) -> Saved | None:
        """Session as saved last; None if there is none."""
        ...

    async def session_at(self, commit: str) -> Saved | None:
        """Session of a commit; None if only memory was committed."""
        ...

    async def scores(self) -> Sequence[Score]:
        """Every score, oldest first."""
        ...


MIN_RELEVANCE = 0.1
"""Share of the query below which a common word is a coincidence."""
MIN_TERM_WEIGHT = 2.0
"""Minimum weight of a term: in a small memory, rarity says little."""


class MemoryRanking:
    """Relevance ranking of the memories of one system; keeps its index between queries."""

    def __init__(self, reader: Reader) -> None:
        self._reader, self._index = reader, Index()

    def best(self, query: str, memories: Sequence[Memory], limit: int) -> list[Match]:
        """At most `limit` memories relevant to a query, best first; of equal ones the later."""
        question = Question.of(query)
        if limit < 1 or not question.terms or not memories:
            return []
        messages = [
            ModelRequest(parts=[UserPromptPart(content=one.text, timestamp=one.created_at)]) for one in memories
        ]
        history = self._reader.read(messages)
        if not self._index.extends_to(history):
            self._index = Index()
        self._index.extend(history)
        relevant = Relevance(self._index, question, least=MIN_TERM_WEIGHT, floor=MIN_RELEVANCE)
        scored = [(relevant.of(one.text), at) for at, one in enumerate(memories)]
        found = sorted((pair for pair in scored if pair[0] > 0), key=lambda pair: (-pair[0], -pair[1]))
        return [Match(memory=memories[at], score=min(1.0, score)) for score, at in found[:limit]]


T = TypeVar("T")

CANDIDATES = 32
"""Memories taken from full-text search, of which the best are returned."""
MAX_QUERY_TERMS = 512
"""Terms of a query that are searched, the last ones."""


class SQLiteMemory:
    """Memory of one session, with its commits, its saved session and its scores; opens the file on first use.

    Of two writers of one session, the second is refused until it has read the changes of the first.

    Args:
        session: Name of the session, as on the record.
        store: The file of the record, or a store that has it open.

    Raises:
        StoreError: From every method, if the file cannot be used.
        ContextMemoryError: There is no such commit.
    """

    def __init__(self, session: str, store: SQLStore | str | Path = DEFAULT_PATH) -> None:
        if not isinstance(session, str) or not session.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SettingsError(f"session={session!r}: give the name of a session")
        self.session = rows.plain(session)
        self.store = open_place(store) if isinstance(store, str | Path) else store
        self._ranking = MemoryRanking(Reader(as_counter(None)))
        self._state: sessions.SessionState | None = None
        """State of the saved session when this memory last wrote or read it; None if there was none."""

    async def search(self, query: str, limit: int) -> list[Match]:
        """At most `limit` memories relevant to a query, best first."""
        asked = list(dict.fromkeys(terms(check_memory_text(query, "query"))))[-MAX_QUERY_TERMS:]
        if check_limit(limit) < 1 or not asked:
            return []
        found = await self._run(partial(sessions.search_memories, name=self.session, terms=asked, limit=CANDIDATES))
        return self._ranking.best(query, [_memory(one) for one in found], limit)

    async def remember(self, text: str) -> str:
        """Remember a text and return its id; a known text keeps its id."""
        given = check_memory_text(text, "text")
        return await self._run(
            partial(sessions.remember, name=self.session, text=given, index_terms=_index_terms, newest=SUMMARY_PREFIX)
        )

    async def commit(self, message: str, author: str = AUTHOR, session: Snapshot | None = None) -> str:
        """Commit the memory, and a session with it; unchanged content is not written again."""
        held = (None, 0, None) if session is None else (session.turns, session.count, session.facts)
        turns, count, facts = held
        work = partial(
            sessions.commit,
            name=self.session,
            message=rows.plain(check_memory_text(message, "message")),
            author=rows.plain(check_memory_text(author, "author")),
            turns=turns,
            count=count,
            state=facts,
        )
        return await self._run(work)

    async def checkout(self, commit: str) -> None:
        """Restore the memory of a commit, in one transaction."""
        await self._run(
            partial(
                sessions.checkout, name=self.session, commit=commit, index_terms=_index_terms, newest=SUMMARY_PREFIX
            )
        )

    async def log(self, limit: int | None = None) -> list[Commit]:
        """Current commit of the memory and its ancestors, newest first."""
        most = None if limit is None else check_limit(limit)
        return [_commit(row) for row in await self._run(partial(sessions.commit_log, name=self.session, limit=most))]

    async def diff(self, old: str, new: str) -> Diff:
        """Memories of `new` that `old` lacks, and the reverse."""
        return await self._run(partial(_diff, name=self.session, old=old, new=new))

    async def keep(self, session: Snapshot, score: Score | None = None, compile: Compile | None = None) -> None:
        """Save a session, the score of its turn, and the record of its summary.

        Raises:
            StoreError: It cannot be saved, or another memory has saved the session since this one read it.
        """
        row = score and _row(score)

        def work(db: Database) -> None:
            self._state = sessions.save_session(
                db, self.session, session.turns, session.facts, row, compile, self._state
            )

        await self._run(work)

    async def latest(self) -> Saved | None:
        """Session as saved last."""

        def work(db: Database) -> tuple[str, list[bytes]] | None:
            self._state = sessions.session_state(db, self.session)
            return sessions.latest_session(db, self.session)

        return _saved(await self._run(work))

    async def session_at(self, commit: str) -> Saved | None:
        """Session of a commit."""
        return _saved(await self._run(partial(sessions.session_at, name=self.session, commit=commit)))

    async def scores(self) -> list[Score]:
        """Every score, oldest first."""
        return [_score(row) for row in await self._run(partial(sessions.scores, name=self.session))]

    async def close(self) -> None:
        """Close the file; it reopens on use."""
        await self.store.close()

    async def _run(self, work: Callable[[Database], T]) -> T:
        return await self.store.perform(work)


class VolatileMemory(SQLiteMemory):
    """Memory in this process alone: for tests, trials, and data that may not be left behind."""

    def __init__(self) -> None:
        super().__init__("volatile", MemoryStore())


def _index_terms(text: str) -> str:
    return " ".join(terms(text)).encode("utf-8", "replace").decode()


def _diff(db: Database, name: str, old: str, new: str) -> Diff:
    tips = [sessions.find_commit(db, name, commit)["memory_tip"] for commit in (old, new)]
    gone, added = sessions.memory_diff(db, *tips)
    return Diff(
        added=tuple(map(_memory, sessions.read_memories(db, added))),
        removed=tuple(map(_memory, sessions.read_memories(db, gone))),
    )


def _memory(found: tuple[str, str, object]) -> Memory:
    return Memory(id=found[0], text=found[1], created_at=rows.parse_stamp(found[2]))


def _commit(row: rows.Row) -> Commit:
    columns = {name: row[name] for name in ("id", "parent", "message", "author", "memories", "turns")}
    return Commit(created_at=rows.parse_stamp(row["created_at"]), **columns)


def _saved(found: tuple[str, list[bytes]] | None) -> Saved | None:
    return None if found is None else Saved(facts=found[0], bodies=tuple(found[1]))


def _row(score: Score) -> tuple[rows.Column, ...]:
    """Score as columns, in storage order."""
    columns = {name: getattr(score, name) for name in SCORED} | {"created_at": rows.stamp(score.created_at)}
    columns |= {"turn_index": score.turn, "trouble": None if score.trouble is None else rows.plain(score.trouble)}
    values = (columns[name] for name in rows.SCORE if name not in ("session", "turns_tip"))
    return tuple(int(value) if isinstance(value, bool) else value for value in values)


def _score(row: rows.Row) -> Score:
    columns = {name: row[name] for name in ("quality", "health", "tokens", "checkpoint", "trouble")}
    return Score(
        turn=row["turn_index"],
        summarized=bool(row["summarized"]),
        rolled_back=bool(row["rolled_back"]),
        created_at=rows.parse_stamp(row["created_at"]),
        **columns,
    )
