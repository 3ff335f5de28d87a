"""A memory in the file of the record: found by full text, committed by content, and restored wholly or not at all."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from context_compiler.errors import SettingsError
from context_compiler.manager.memory import AUTHOR, Saved, Snapshot, at_most, remembered
from context_compiler.manager.ranking import MemoryRanking
from context_compiler.manager.results import Commit, Diff, Match, Memory, Score
from context_compiler.manager.session import SCORED
from context_compiler.messages.history import Reader
from context_compiler.recall.terms import terms
from context_compiler.record import memories, rows
from context_compiler.record import sessions as shelf
from context_compiler.record.sqlite import DEFAULT_PATH, MemoryStore, SQLiteStore, SQLStore
from context_compiler.record.values import Compile
from context_compiler.tokens import as_counter

T = TypeVar("T")

CANDIDATES = 32
"""Memories that full text finds, of which the best are taken."""
ASKED = 512
"""Terms of a query that are looked up, the last ones."""


class SQLiteMemory:
    """The memory of one session, with its commits, its state and its scores; opened at first use.

    Of two that keep one session, whoever comes second is refused until it has read what the other kept.

    Args:
        session: The name of the session, as on the record.
        store: The file of the record, or a store that has it open.

    Raises:
        StoreError: from every method, when the file cannot be used.
        ContextMemoryError: there is no such commit.
    """

    def __init__(self, session: str, store: SQLStore | str | Path = DEFAULT_PATH) -> None:
        if not isinstance(session, str) or not session.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SettingsError(f"session={session!r}: give the name of a session")
        self.session = session
        self.store = SQLiteStore(store) if isinstance(store, str | Path) else store
        self._ranking = MemoryRanking(Reader(as_counter(None)))
        self._stood: shelf.Standing | None = None
        """Where the session stood when it was kept or read last."""

    async def search(self, query: str, limit: int) -> list[Match]:
        """At most `limit` memories that bear on a query, the best first."""
        asked = list(dict.fromkeys(terms(remembered(query, "query"))))[-ASKED:]
        if at_most(limit) < 1 or not asked:
            return []
        match = " OR ".join('"' + term.replace('"', '""') + '"' for term in asked)
        found = await self._run(partial(memories.search, name=self.session, match=match, limit=CANDIDATES))
        return self._ranking.best(query, [_memory(one) for one in found], limit)

    async def remember(self, text: str) -> str:
        """Keep a text and give its id; one that is remembered already keeps the id it has."""
        given = remembered(text, "text")
        return await self._run(partial(memories.remember, name=self.session, text=given, indexed=_indexed))

    async def commit(self, message: str, author: str = AUTHOR, session: Snapshot | None = None) -> str:
        """Keep the memory as it stands, and a session with it; what is there already is not written again."""
        held = (None, 0, None) if session is None else (session.turns, session.count, session.facts)
        turns, count, facts = held
        work = partial(
            memories.commit,
            name=self.session,
            message=_plain(remembered(message, "message")),
            author=_plain(remembered(author, "author")),
            turns=turns,
            count=count,
            facts=facts,
        )
        return await self._run(work)

    async def checkout(self, commit: str) -> None:
        """Let the memory be as it was at a commit, in one transaction."""
        await self._run(partial(memories.checkout, name=self.session, commit=commit, indexed=_indexed))

    async def log(self, limit: int | None = None) -> list[Commit]:
        """The commit that the memory is at and those before it, newest first."""
        most = None if limit is None else at_most(limit)
        return [_commit(row) for row in await self._run(partial(memories.log, name=self.session, limit=most))]

    async def diff(self, old: str, new: str) -> Diff:
        """What `new` remembers and `old` does not, and the other way round."""
        return await self._run(partial(_diff, name=self.session, old=old, new=new))

    async def keep(self, session: Snapshot, score: Score | None = None, compile: Compile | None = None) -> None:
        """Keep a session as it stands, the score of its turn, and how its summary was made.

        Raises:
            StoreError: it cannot be kept, or another memory of the session has kept it since this one did.
        """
        row = score and _row(score)

        def work(db: sqlite3.Connection) -> None:
            self._stood = shelf.keep(db, self.session, session.turns, session.facts, row, compile, self._stood)

        await self._run(work)

    async def latest(self) -> Saved | None:
        """The session as it was kept last."""

        def work(db: sqlite3.Connection) -> tuple[str, list[bytes]] | None:
            self._stood = shelf.standing(db, self.session)
            return shelf.latest(db, self.session)

        return _saved(await self._run(work))

    async def session_at(self, commit: str) -> Saved | None:
        """The session that was committed."""
        return _saved(await self._run(partial(shelf.session_at, name=self.session, commit=commit)))

    async def scores(self) -> list[Score]:
        """Every score, oldest first."""
        return [_score(row) for row in await self._run(partial(shelf.scores, name=self.session))]

    async def close(self) -> None:
        """Let go of the file; it is opened again when it is used again."""
        await self.store.close()

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await self.store.perform(work)


class VolatileMemory(SQLiteMemory):
    """A memory in this process alone: for tests, for trials, and where nothing may be left behind."""

    def __init__(self) -> None:
        super().__init__("volatile", MemoryStore())


def _indexed(text: str) -> str:
    return " ".join(terms(text)).encode("utf-8", "replace").decode()


def _plain(text: str) -> str:
    """A text that SQLite can keep."""
    return text.encode("utf-8", "backslashreplace").decode()


def _diff(db: sqlite3.Connection, name: str, old: str, new: str) -> Diff:
    tips = [memories.known(db, name, commit)["memory_tip"] for commit in (old, new)]
    gone, added = memories.between(db, *tips)
    return Diff(
        added=tuple(map(_memory, memories.read(db, added))), removed=tuple(map(_memory, memories.read(db, gone)))
    )


def _memory(found: tuple[str, str, object]) -> Memory:
    return Memory(id=found[0], text=found[1], created_at=rows.moment(found[2]))


def _commit(row: rows.Row) -> Commit:
    plain = {name: row[name] for name in ("id", "parent", "message", "author", "memories", "turns")}
    return Commit(created_at=rows.moment(row["created_at"]), **plain)


def _saved(found: tuple[str, list[bytes]] | None) -> Saved | None:
    return None if found is None else Saved(facts=found[0], bodies=tuple(found[1]))


def _row(score: Score) -> tuple[rows.Column, ...]:
    """A score as its columns, in the order in which they are kept."""
    plain = {name: getattr(score, name) for name in SCORED} | {"created_at": rows.stamp(score.created_at)}
    plain |= {"turn_index": score.turn, "trouble": None if score.trouble is None else _plain(score.trouble)}
    values = (plain[name] for name in rows.SCORE if name not in ("session", "turns_tip"))
    return tuple(int(value) if isinstance(value, bool) else value for value in values)


def _score(row: rows.Row) -> Score:
    plain = {name: row[name] for name in ("quality", "health", "tokens", "checkpoint", "trouble")}
    return Score(
        turn=row["turn_index"],
        summarized=bool(row["summarized"]),
        rolled_back=bool(row["rolled_back"]),
        created_at=rows.moment(row["created_at"]),
        **plain,
    )
