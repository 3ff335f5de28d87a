"""Memory of a manager: three protocols, and an implementation in the record's SQLite file.

`SQLiteMemory` and `VolatileMemory` implement all three protocols. A custom memory needs only `MemorySystem`. To support
rollback it must also be a `MemoryRepository`, and to let sessions outlive the process, a `SessionShelf`.
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
from context_compiler.recall.unknown import spelt
from context_compiler.record import rows, sessions
from context_compiler.record.database import Database
from context_compiler.record.store import DEFAULT_PATH, MemoryStore, SQLStore, open_place
from context_compiler.record.tables import SEALED
from context_compiler.record.values import Chain, Compile
from context_compiler.tokens import as_counter

AUTHOR = "context-manager"
SUMMARY_PREFIX = "[context-summary] "
"""Prefix of a summary that a manager remembers; searches of `SQLiteMemory` return only a session's newest summary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Session to save: its messages, and the rest as JSON. Only new messages are written."""

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


def check_memory_text(value: object, what: str) -> str:
    """Return a string for a memory unchanged. Shared, so that every memory refuses the same values.

    Raises:
        SettingsError: The value is not a string.
    """
    if not isinstance(value, str):
        raise SettingsError(f"{what} is a {type(value).__name__}; give text to a memory")
    return value


def check_limit(limit: object) -> int:
    """Return a limit unchanged. Shared, so that every memory refuses the same values.

    Raises:
        SettingsError: The value is not a whole number.
    """
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise SettingsError(f"limit={limit!r:.80}: give a whole number")
    return limit


@runtime_checkable
class MemorySystem(Protocol):
    """Remembers texts, and finds them by relevance to a query."""

    async def search(self, query: str, limit: int) -> Sequence[Match]:
        """Return at most `limit` memories relevant to a query, best first; empty if there are none."""
        ...

    async def remember(self, text: str) -> str:
        """Remember a text and return its id. A text that is already known keeps its id."""
        ...


@runtime_checkable
class MemoryRepository(Protocol):
    """Commits states of a memory, and restores them."""

    async def commit(self, message: str, author: str = AUTHOR, session: Snapshot | None = None) -> str:
        """Commit the memory, together with a session if given; return the id of the commit."""
        ...

    async def checkout(self, commit: str) -> None:
        """Restore the memory of a commit; if this raises, the memory is unchanged."""
        ...

    async def log(self, limit: int | None = None) -> Sequence[Commit]:
        """Return the current commit of the memory and its ancestors, newest first."""
        ...

    async def diff(self, old: str, new: str) -> Diff:
        """Return the memories that were added and removed between two commits."""
        ...


@runtime_checkable
class SessionShelf(Protocol):
    """Saves a session and its scores, so that another process can continue it."""

    async def keep(self, session: Snapshot, score: Score | None = None, compile: Compile | None = None) -> None:
        """Replace the saved session, and save a score and the record of a summary with it."""
        ...

    async def latest(self) -> Saved | None:
        """Return the session as last saved; None if there is none."""
        ...

    async def session_at(self, commit: str) -> Saved | None:
        """Return the session of a commit; None if only memory was committed."""
        ...

    async def scores(self) -> Sequence[Score]:
        """Return all scores, oldest first."""
        ...


MIN_RELEVANCE = 0.1
"""Minimum fraction of the query that a memory must cover; below it, common words are a coincidence."""
MIN_TERM_WEIGHT = 2.0
"""Minimum weight of a term, because in a small memory the rarity of a term means little."""


class MemoryRanking:
    """Ranks the memories of one system by relevance; keeps its index between queries."""

    def __init__(self, reader: Reader) -> None:
        self._reader, self._index = reader, Index()

    def best(self, query: str, memories: Sequence[Memory], limit: int) -> list[Match]:
        """Return at most `limit` memories relevant to a query, best first; of equal ones, the later first."""
        question = Question.of(query)
        if limit < 1 or not question.terms or not memories:
            return []
        prompts = (UserPromptPart(content=memory.text, timestamp=memory.created_at) for memory in memories)
        messages = [ModelRequest(parts=[prompt]) for prompt in prompts]
        history = self._reader.read(messages)
        if not self._index.extends_to(history):
            self._index = Index()
        self._index.extend(history)
        question = spelt(question, self._index, len(history))
        relevant = Relevance(self._index, question, least=MIN_TERM_WEIGHT, floor=MIN_RELEVANCE)
        scored = [(relevant.of(memory.text), index) for index, memory in enumerate(memories)]
        ranked = sorted((pair for pair in scored if pair[0] > 0), key=lambda pair: (-pair[0], -pair[1]))
        return [Match(memory=memories[index], score=min(1.0, score)) for score, index in ranked[:limit]]


T = TypeVar("T")

CANDIDATES = 32
"""Number of memories taken from full-text search, from which the best are returned."""
MAX_QUERY_TERMS = 512
"""Maximum terms of a query that are searched; the last ones are used."""


class SQLiteMemory:
    """Memory of one session in the record's SQLite file, with commits, the saved session and its scores.

    The file is opened on first use. If two processes write one session, the second write is refused until that
    process has read the changes of the first.

    Args:
        session: Name of the session on the record.
        store: Path of the record's file, or a store that has it open.

    Raises:
        StoreError: From every method, if the file cannot be used.
        ContextMemoryError: From methods that take a commit, if there is no such commit.
    """

    def __init__(self, session: str, store: SQLStore | str | Path = DEFAULT_PATH) -> None:
        if not isinstance(session, str) or not session.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SettingsError(f"session={session!r}: give the name of a session")
        self.session = rows.escape_surrogates(session)
        self.store = open_place(store) if isinstance(store, str | Path) else store
        self._ranking = MemoryRanking(Reader(as_counter(None)))
        self._state: sessions.SessionState | None = None
        """State of the saved session when this object last wrote or read it; None if there was none."""

    async def search(self, query: str, limit: int) -> list[Match]:
        """Return at most `limit` memories relevant to a query, best first."""
        asked = list(dict.fromkeys(terms(check_memory_text(query, "query"))))[-MAX_QUERY_TERMS:]
        if check_limit(limit) < 1 or not asked:
            return []
        stored = await self._run(sessions.search_memories, terms=asked, limit=CANDIDATES)
        return self._ranking.best(query, [_parse_memory(row) for row in stored], limit)

    async def remember(self, text: str) -> str:
        """Remember a text and return its id. A text that is already known keeps its id."""
        checked = check_memory_text(text, "text")
        return await self._run(sessions.remember, text=checked, index_terms=_index_terms, newest=SUMMARY_PREFIX)

    async def commit(self, message: str, author: str = AUTHOR, session: Snapshot | None = None) -> str:
        """Commit the memory, together with a session if given; unchanged content is not written again."""
        turns, count, facts = (None, 0, None) if session is None else (session.turns, session.count, session.facts)
        return await self._run(
            sessions.commit,
            message=rows.escape_surrogates(check_memory_text(message, "message")),
            author=rows.escape_surrogates(check_memory_text(author, "author")),
            turns=turns,
            count=count,
            state=facts,
        )

    async def checkout(self, commit: str) -> None:
        """Restore the memory of a commit, in one transaction."""
        await self._run(sessions.checkout, commit=commit, index_terms=_index_terms, newest=SUMMARY_PREFIX)

    async def log(self, limit: int | None = None) -> list[Commit]:
        """Return the current commit of the memory and its ancestors, newest first."""
        most = None if limit is None else check_limit(limit)
        return [_parse_commit(row) for row in await self._run(sessions.commit_log, limit=most)]

    async def diff(self, old: str, new: str) -> Diff:
        """Return the memories that were added and removed between two commits."""
        return await self._run(_diff, old=old, new=new)

    async def keep(self, session: Snapshot, score: Score | None = None, compile: Compile | None = None) -> None:
        """Save a session, the score of its turn, and the record of its summary.

        Raises:
            StoreError: The session cannot be saved, or another writer has saved it since it was read here.
        """
        row = score and _score_columns(score)

        def work(db: Database, name: str) -> None:
            self._state = sessions.save_session(db, name, session.turns, session.facts, row, compile, self._state)

        await self._run(work)

    async def latest(self) -> Saved | None:
        """Return the session as last saved; None if there is none."""

        def work(db: Database, name: str) -> tuple[str, list[bytes]] | None:
            self._state = sessions.session_state(db, name)
            return sessions.latest_session(db, name)

        return _parse_saved(await self._run(work))

    async def session_at(self, commit: str) -> Saved | None:
        """Return the session of a commit; None if only memory was committed."""
        return _parse_saved(await self._run(sessions.session_at, commit=commit))

    async def scores(self) -> list[Score]:
        """Return all scores, oldest first."""
        return [_parse_score(row) for row in await self._run(sessions.scores)]

    async def close(self) -> None:
        """Close the file; it reopens on use."""
        await self.store.close()

    async def _run(self, work: Callable[..., T], **arguments: object) -> T:
        """Call a function of the database with the name of the session."""
        return await self.store.perform(partial(work, name=self.session, **arguments))


class VolatileMemory(SQLiteMemory):
    """Memory that is lost when the process ends: for tests, trials, and data that must not be stored."""

    def __init__(self) -> None:
        super().__init__("volatile", MemoryStore())


def _index_terms(text: str) -> str:
    return " ".join(terms(text)).encode("utf-8", "replace").decode()


def _diff(db: Database, name: str, old: str, new: str) -> Diff:
    tips = [sessions.find_commit(db, name, commit)["memory_tip"] for commit in (old, new)]
    gone, added = sessions.memory_diff(db, *tips)
    return Diff(
        added=tuple(map(_parse_memory, sessions.read_memories(db, added))),
        removed=tuple(map(_parse_memory, sessions.read_memories(db, gone))),
    )


def _parse_memory(row: tuple[str, str, object]) -> Memory:
    return Memory(id=row[0], text=row[1], created_at=rows.parse_stamp(row[2]))


def _parse_commit(row: rows.Row) -> Commit:
    columns = {name: row[name] for name in ("id", "parent", "message", "author", "memories", "turns")}
    return Commit(created_at=rows.parse_stamp(row["created_at"]), **columns)


def _parse_saved(stored: tuple[str, list[bytes]] | None) -> Saved | None:
    return None if stored is None else Saved(facts=stored[0], bodies=tuple(stored[1]))


def _score_columns(score: Score) -> tuple[rows.Column, ...]:
    """Return the columns of a score, in storage order."""
    columns = {name: getattr(score, name) for name in SCORED} | {"created_at": rows.stamp(score.created_at)}
    columns |= {
        "turn_index": score.turn,
        "trouble": None if score.trouble is None else rows.escape_surrogates(score.trouble),
    }
    values = (columns[name] for name in SEALED["scores"] if name not in ("session", "turns_tip"))
    return tuple(int(value) if isinstance(value, bool) else value for value in values)


def _parse_score(row: rows.Row) -> Score:
    columns = {name: row[name] for name in ("quality", "health", "tokens", "checkpoint", "trouble")}
    return Score(
        turn=row["turn_index"],
        summarized=bool(row["summarized"]),
        rolled_back=bool(row["rolled_back"]),
        created_at=rows.parse_stamp(row["created_at"]),
        **columns,
    )
