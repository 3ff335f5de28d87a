"""The store in PostgreSQL: the same functions as for SQLite, run on a connection that translates their statements.

Saving takes a shared advisory lock and removing an exclusive one, so no message is removed while another transaction
starts to use it. On a unique-key conflict, the later transaction is retried.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import TypeVar, cast

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from context_compiler.errors import StoreError
from context_compiler.record import maintenance
from context_compiler.record.database import PAGE, Database
from context_compiler.record.maintenance import Damaged
from context_compiler.record.pool import ATTEMPTS, CONFLICTS, LOST, SCHEMA, Connection, Pool, Postgres
from context_compiler.record.postgres_database import SAVES_PER_STEP, PostgresDatabase
from context_compiler.record.postgres_save import Memory, archive, archive_fast, save, save_fast
from context_compiler.record.postgres_tables import RECORD
from context_compiler.record.rows import prefix
from context_compiler.record.store import SQLStore
from context_compiler.record.values import Chain, Entry, Record

T = TypeVar("T")

Page = list[Mapping[str, object]]
"""Exported rows."""

SETTINGS = "SELECT set_config('context_compiler.owner', $1, false), set_config('context_compiler.prefix', $2, false)"
"""Sets the owner of a connection, for the policy in `row_security.sql`."""


class PostgresStore(SQLStore):
    """A store in PostgreSQL, safe to use from many tasks, event loops, processes and machines at once.

    Its tables are created on first use. It gives the same guarantees as `SQLiteStore`: a saved request is
    committed, the same span is never compiled twice, and `verify` checks every row.

    Args:
        source: A pool with asyncpg's interface, which the caller must close, an address (`postgresql://…`), or a
            `Postgres` with either.
        schema: The schema of the tables.
        read_only: Never write; a missing record is an error.
        row_security: Set the owner for all statements of a connection, as the policy in `row_security.sql` requires.

    Raises:
        StoreError: Any method raises it, with the place and a remedy, if the database cannot be used.
    """

    def __init__(
        self,
        source: Postgres | Pool | str,
        *,
        schema: str = SCHEMA,
        read_only: bool = False,
        row_security: bool = False,
    ) -> None:
        self.database = source if isinstance(source, Postgres) else Postgres(source, schema=schema)
        self.read_only = read_only
        self.row_security = row_security
        self._memory: Memory = {}
        self._saves = count()
        self._indexing = set[asyncio.Task[None]]()

    def __repr__(self) -> str:
        owner = "" if self.owner == "" else f", owner={self.owner!r}"
        return f"PostgresStore({self.database.place!r}{', read_only=True' if self.read_only else ''}{owner})"

    @property
    def place(self) -> str:
        """The address without its password."""
        return self.database.place

    def writer(self) -> PostgresStore:
        """Return a writable store of the same database, which uses the same pool."""
        return PostgresStore(self.database, row_security=self.row_security)

    async def perform(
        self,
        work: Callable[[Database], T],
        *,
        patient: bool = False,
        first: Callable[[PostgresDatabase], Awaitable[T | None]] | None = None,
    ) -> T:
        """Run a function on a connection; retry it after a conflict with another transaction or a lost server.

        Args:
            work: The function; it may be called several times.
            patient: Wait for each answer as long as it takes.
            first: A coroutine to try before `work`, without a greenlet; it returns None if it did nothing.
        """
        timeout = None if patient else self.database.patience_s
        for is_last in (False, True):
            used: list[PostgresDatabase] = []
            try:
                return await self.database.run(
                    partial(self._attempt, work, first, timeout, used), needs=RECORD, read_only=self.read_only
                )
            except StoreError as error:
                is_lost = isinstance(error.__cause__, (*LOST, asyncpg.UndefinedTableError))
                if is_last or not is_lost or any(db.committing for db in used):
                    raise
        raise AssertionError

    async def _attempt(
        self,
        work: Callable[[Database], T],
        first: Callable[[PostgresDatabase], Awaitable[T | None]] | None,
        timeout: float | None,
        used: list[PostgresDatabase],
        connection: Connection,
    ) -> T:
        db = PostgresDatabase(connection, self.database.schema, timeout)
        db.owner, db.tried = self.owner, self.tried
        used.append(db)
        if self.row_security:
            settings = ("", "") if self.owner is None else (f"o:{self.owner}", f"p:{prefix(self.owner)}")
            await connection.execute(SETTINGS, *settings, timeout=timeout)
        try:
            if first is not None and (result := await first(db)) is not None:
                return result
            for _ in range(ATTEMPTS - 1):
                with suppress(*CONFLICTS):
                    return await db.perform(work)
            return await db.perform(work)
        finally:
            if self.row_security and not connection.is_closed():
                await connection.execute("RESET ALL", timeout=timeout)

    async def save(self, entry: Entry) -> Record:
        """Save an entry in one transaction and return its record with `id` and `summary_id`."""
        if self.tried is not None:  # the fast path does not check for removals
            return await super().save(entry)
        arguments = {"entry": entry, "memory": self._memory}
        saved = await self.perform(partial(save, **arguments), first=partial(save_fast, **arguments))
        if next(self._saves) % SAVES_PER_STEP == 0 and not self._indexing:
            task = asyncio.create_task(self._index())
            self._indexing.add(task)
            task.add_done_callback(self._indexing.discard)
        return saved

    async def archive(self, session_id: str, vault_name: str, raw: Chain) -> None:
        """Save a raw history without a request, as the newest history of its conversation."""
        if self.tried is not None:
            return await super().archive(session_id, vault_name, raw)
        arguments = {"session_id": session_id, "vault_name": vault_name, "raw": raw, "memory": self._memory}
        await self.perform(partial(archive, **arguments), first=partial(archive_fast, **arguments))

    async def _index(self) -> None:
        """Index the texts that are not indexed yet; if that fails, they are left for the next time."""
        with suppress(StoreError):
            while await self.perform(lambda db: db.index_waiting()):
                pass

    async def enable_row_security(self, role: str | None = None) -> None:
        """Enable row-level security: roles other than the owner of the tables see the rows of one owner only.

        Call it as the owner of the tables.

        Args:
            role: A role that is granted the rights it needs on the record, and loses its rights on other tables of the
                schema.

        Raises:
            StoreError: The connection's user may not change the tables.
        """
        policy = Path(__file__).with_name("row_security.sql").read_text(encoding="utf-8")

        async def enable(connection: Connection) -> None:
            async with connection.transaction():
                await connection.execute("SELECT set_config('context_compiler.role', $1, true)", role or "")
                await connection.execute(policy.replace("{schema}", self.database.schema))

        await self.database.run(enable, needs=RECORD)

    async def maintain(self, work: Callable[[Database], T]) -> T:
        """Run a function that may take long, and wait for each answer as long as it takes."""
        return await self.perform(work, patient=True)

    async def export(self, damaged: Damaged | None = None) -> AsyncGenerator[Mapping[str, object]]:
        """Yield every row of one snapshot as a JSON-ready mapping, read page by page in one transaction."""
        loop, pages = asyncio.get_running_loop(), asyncio.Queue[Page](1)
        reading = _Reading(
            damaged, lambda page: asyncio.wrap_future(asyncio.run_coroutine_threadsafe(pages.put(page), loop))
        )

        async def fill() -> None:
            try:
                await self.perform(reading.read, patient=True)
            finally:
                if not reading.stopped:
                    await pages.put([])

        filling = asyncio.create_task(fill())
        try:
            while page := await pages.get():
                for row in page:
                    yield row
        finally:
            reading.stopped = True
            while not filling.done():
                while not pages.empty():
                    pages.get_nowait()
                await asyncio.wait({filling}, timeout=0.01)
        await filling

    async def close(self) -> None:
        """Close the connections of its own pool; the next use opens them again."""
        here = asyncio.get_running_loop()
        if indexing := [task for task in self._indexing if task.get_loop() is here]:
            await asyncio.wait(indexing)
        await self.database.close()


class _Reading:
    """The work of an export, which is not repeated once rows of it were handed on, or they would be exported twice."""

    def __init__(self, damaged: Damaged | None, hand_on: Callable[[Page], Awaitable[object]]) -> None:
        self.stopped = False
        self._begun = False
        self._damaged, self._hand_on = damaged, hand_on

    def read(self, db: Database) -> None:
        """Read all rows of one snapshot, and hand them on page by page.

        Raises:
            StoreError: It was begun before.
        """
        if self._begun:
            raise StoreError("the server interrupted the export after some of its rows: begin it again")
        exported = maintenance.export(db, None if self._damaged is None else self._note)
        while not self.stopped and (page := list(islice(exported, PAGE))):
            self._begun = True
            cast(PostgresDatabase, db).wait(self._hand_on(page))
        exported.close()

    def _note(self, defect: str) -> None:
        self._begun = True
        assert self._damaged is not None
        self._damaged(defect)
