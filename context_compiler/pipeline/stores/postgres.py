"""Run storage in PostgreSQL, for many machines: the owner of a run has a lease, and its writes are fenced.

Each lease of a run has a unique token, which is at least the time in microseconds since 1970. Every write checks the
token in its own transaction, so an owner that was presumed dead cannot write. All times come from the database; the
clocks of the workers do not matter.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from typing import Any
from uuid import uuid4

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from context_compiler.errors import PipelineError, RunOwnedError, StoreError
from context_compiler.pipeline.stores import Event, Lost
from context_compiler.pipeline.stores.sql import STATEMENTS, SQLRuns, Statement
from context_compiler.record.pool import LOST, Component, Connection, Pool, Postgres
from context_compiler.resilience import cancel_and_wait

log = logging.getLogger("context_compiler.pipeline")

LEASE_S, PATIENCE_S = 30.0, 30.0
"""Seconds until the lease of a dead owner expires, and seconds to wait for a database that cannot be reached."""
PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
"""First and longest pause between two attempts to reach the database, in seconds."""
EVENTS_S = 0.1
"""Maximum seconds that an event waits to be written with other events, or with a state."""
IMMEDIATE = ("child_started", "model_requested", "run_finalized")
"""Events that are written at once, so that a resumed run knows all costs, and an ended run has its last event."""
STARTING = "57P03"
"""SQLSTATE of a server that is starting or stopping."""

NOW = "(extract(epoch FROM clock_timestamp())::double precision)"
_TABLES = re.compile(r"\b(runs|cells|events|contents|queue|questions|leases)\b")
_LEASES = """
CREATE TABLE leases (
    run TEXT PRIMARY KEY, token BIGINT NOT NULL, holder TEXT NOT NULL, until DOUBLE PRECISION NOT NULL
)
"""
_ACQUIRE = """
INSERT INTO leases AS lease VALUES (?, (NOW * 1000000)::bigint, ?, NOW + ?)
ON CONFLICT (run) DO UPDATE
SET token = greatest(lease.token + 1, excluded.token), holder = excluded.holder, until = excluded.until
WHERE lease.until <= NOW OR lease.holder = excluded.holder RETURNING token
"""
_RENEW = "UPDATE leases SET until = NOW + ? WHERE run = ? AND token = ? RETURNING token"
_RELEASE = "DELETE FROM leases WHERE run = ? AND token = ?"
_LEFT = "SELECT until - NOW FROM leases WHERE run = ?"
_HELD = "SELECT 1 FROM leases WHERE run = ? AND token = ? FOR SHARE"
_FREE = "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM leases WHERE run = ? AND until > NOW)"
_OWNED = "SELECT run FROM leases WHERE until > NOW"
_ADD = """
WITH new AS (SELECT * FROM unnest(?::text[], ?::bigint[], ?::bigint[], ?::text[]) AS one (run, token, sequence, body)),
    held AS (
        SELECT run, token FROM leases WHERE (run, token) IN (SELECT new.run, new.token FROM new) ORDER BY run FOR SHARE
    ),
    quick AS (SELECT set_config('synchronous_commit', 'off', true) AS mode),
    added AS (
        INSERT INTO events SELECT new.run, new.sequence, new.body FROM quick, new JOIN held USING (run, token)
        ON CONFLICT (run, sequence) DO UPDATE SET body = excluded.body
    )
SELECT run FROM held
"""
"""Writes events of several runs in one round trip, without waiting for the disk; the next saved state waits."""
_WRITE = """
WITH held AS (SELECT run FROM leases WHERE run = ? AND token = ? FOR SHARE),
    new AS (SELECT * FROM unnest(?::text[], ?::text[], ?::text[]) AS cell (section, name, body)),
    removed AS (
        DELETE FROM cells USING held WHERE cells.run = held.run AND CASE WHEN ?
        THEN (cells.section, cells.name) NOT IN (SELECT section, name FROM new)
        ELSE (cells.section, cells.name) IN (SELECT * FROM unnest(?::text[], ?::text[])) END
    ),
    saved AS (
        INSERT INTO cells SELECT held.run, new.* FROM held, new
        ON CONFLICT (run, section, name) DO UPDATE SET body = excluded.body
    ),
    renewed AS (UPDATE runs SET info = ? FROM held WHERE runs.run = held.run),
    added AS (
        INSERT INTO events SELECT held.run, one.* FROM held, unnest(?::bigint[], ?::text[]) AS one
        ON CONFLICT (run, sequence) DO UPDATE SET body = excluded.body
    )
SELECT run FROM held
"""
"""Writes a state and the events before it in one round trip."""
_FENCED = "WITH fence AS ({fence}), done AS ({text}) {answer}"
_FENCED_RESULTS = ("SELECT 1 / count(*) FROM fence", "SELECT 1 / (SELECT count(*) FROM fence), done.* FROM done")
"""Results of a fenced write that returns nothing, and of one that returns rows.

Fence and write take one round trip. Without the lease, the division by zero rolls the write back.
"""


@lru_cache(maxsize=256)
def translate(text: str, schema: str) -> str:
    """Translate a statement to PostgreSQL: numbered arguments, the server's clock, table names with schema."""
    text = _TABLES.sub(rf"{schema}.pipeline_\1", text.replace("WITHOUT ROWID", ""))
    pieces = re.sub(r"\bNOW\b", NOW, text).split("?")
    return pieces[0] + "".join(f"${number}{piece}" for number, piece in enumerate(pieces[1:], 1))


TABLES = Component(
    name="runs",
    version=1,
    statements=[*(translate(statement, "{schema}") for statement in STATEMENTS), translate(_LEASES, "{schema}")],
)


class PostgresDatabase:
    """Transactions on PostgreSQL; a transaction that fails because the server restarts is repeated."""

    def __init__(self, postgres: Postgres, *, patience: float) -> None:
        self.postgres, self._patience = postgres, patience

    @property
    def name(self) -> str:
        """Address of the database, without the password."""
        return self.postgres.place

    async def transact(self, *statements: Statement) -> list[Sequence[Sequence[Any]]]:
        """Execute statements in one transaction."""
        end, pause = time.monotonic() + self._patience, PAUSE_S
        while True:
            try:
                return await self.postgres.run(partial(self._transact, statements), needs=TABLES)
            except StoreError as error:
                if not _is_away(error.__cause__) or time.monotonic() > end:
                    raise PipelineError(f"{error}; what was saved before is intact") from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _transact(self, statements: Sequence[Statement], connection: Connection) -> list[Sequence[Sequence[Any]]]:
        """Execute statements, in as few round trips as possible."""
        if len(statements) == 1 and statements[0].rows is None:
            return [await self._execute(connection, statements[0])]
        if all(statement.rows is None and statement.text.lstrip().startswith("SELECT") for statement in statements):
            return [await self._execute(connection, statement) for statement in statements]
        if len(statements) == 2 and statements[0].missing is not None and _is_write(statements[1]):
            return await self._execute_fenced(connection, *statements)
        async with connection.transaction():
            return [await self._execute(connection, statement) for statement in statements]

    async def _execute_fenced(
        self, connection: Connection, fence: Statement, statement: Statement
    ) -> list[Sequence[Sequence[Any]]]:
        """Execute a fence and one write in one round trip."""
        returns = "RETURNING" in statement.text
        text = statement.text if returns else f"{statement.text} RETURNING 1"
        both = _FENCED.format(fence=fence.text, text=text, answer=_FENCED_RESULTS[returns])
        try:
            rows = await connection.fetch(translate(both, self.postgres.schema), *fence.args, *statement.args)
        except asyncpg.DivisionByZeroError:
            assert fence.missing is not None
            raise fence.missing from None
        return [(), [tuple(row)[1:] for row in rows] if returns else ()]

    async def _execute(self, connection: Connection, statement: Statement) -> Sequence[Sequence[Any]]:
        text = translate(statement.text, self.postgres.schema)
        if statement.rows is not None:
            if statement.rows:
                await connection.executemany(text, statement.rows)
            return ()
        rows = await connection.fetch(text, *statement.args)
        if statement.missing is not None and not rows:
            raise statement.missing
        return [tuple(row) for row in rows]

    async def close(self) -> None:
        """Close the connections, unless the caller provided the pool."""
        await self.postgres.close()


class PostgresRuns(SQLRuns):
    """Stores runs in PostgreSQL.

    Args:
        source: An address (`postgresql://…`), a pool with asyncpg's interface, or a `Postgres`, which the record may
            share.
        lease: Seconds until a lease expires if its owner does not renew it; owners renew after a third of that time.
        patience: Seconds to wait for a database that cannot be reached.
    """

    def __init__(self, source: str | Pool | Postgres, *, lease: float = LEASE_S, patience: float = PATIENCE_S) -> None:
        shared = isinstance(source, Postgres)
        super().__init__(PostgresDatabase(source if shared else Postgres(source), patience=patience))
        self._lease, self._shared = lease, shared
        self._tokens: dict[str, int] = {}
        self._events: dict[str, list[Event]] = {}
        self._writing: asyncio.Task[None] | None = None
        self._writes: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def own(self, run_id: str) -> AsyncGenerator[Lost]:
        """Own a run, with a lease that is renewed until the context exits."""
        (leases,) = await self.database.transact(Statement(_ACQUIRE, (run_id, uuid4().hex, self._lease)))
        if not leases:
            raise await self._owned_elsewhere(run_id)
        token: int = leases[0][0]
        lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._tokens[run_id] = token
        self.forget(run_id)
        renewing = asyncio.create_task(self._renew(run_id, token, lost))
        try:
            yield lost
        finally:
            await cancel_and_wait(renewing)
            try:
                await self._flush_events(run_id)
            finally:
                self._tokens.pop(run_id, None)
                self.forget(run_id)
                await self._release(run_id, token)

    async def _owned_elsewhere(self, run_id: str) -> RunOwnedError:
        (rows,) = await self.database.transact(Statement(_LEFT, (run_id,)))
        left = float(rows[0][0]) if rows else 0.0
        why = f"run {run_id!r} is under way elsewhere: wait for it, or end it"
        return RunOwnedError(why, patience=max(left, 0.0) + self._lease)  # its owner may renew the lease once more

    async def _release(self, run_id: str, token: int) -> None:
        try:
            await self.database.transact(Statement(_RELEASE, (run_id, token)))
        except PipelineError as error:
            log.warning("run %s stays owned until its lease expires: %s", run_id, error)

    async def _renew(self, run_id: str, token: int, lost: asyncio.Future[str]) -> None:
        """Renew a lease until another owner takes it, or it expires because the database cannot be reached."""
        renewed = time.monotonic()
        while not lost.done():
            await asyncio.sleep(self._lease / 3)
            asked = time.monotonic()
            left = renewed + self._lease - asked
            try:
                async with asyncio.timeout(max(self._lease / 3, left)):  # a late renewal may still succeed
                    (leases,) = await self.database.transact(Statement(_RENEW, (self._lease, run_id, token)))
            except (PipelineError, TimeoutError):
                leases = None
            if leases:
                renewed = asked
            elif leases is not None:
                lost.set_result(f"run {run_id!r} was taken over by another worker")
            elif time.monotonic() - renewed >= self._lease:
                lost.set_result(f"run {run_id!r}: its lease could not be renewed within {self._lease:g} s")

    async def owned(self, run_ids: Sequence[str]) -> frozenset[str]:
        """Return which of these runs have a lease that has not expired."""
        if not run_ids:
            return frozenset()
        (rows,) = await self.database.transact(Statement(_OWNED))
        return frozenset(str(row[0]) for row in rows).intersection(run_ids)

    def fence(self, run_id: str) -> Sequence[Statement]:
        """Statements that check the lease and lock it until the transaction ends.

        A store without the lease may write only while nobody has one.
        """
        token = self._tokens.get(run_id)
        if token is None:
            return (Statement(_FREE, (run_id,), missing=_lost_error(run_id)),)
        return (Statement(_HELD, (run_id, token), missing=_lost_error(run_id)),)

    def lock_contents(self, hashes: Sequence[str], lock: str) -> Sequence[Statement]:
        """Lock texts until the transaction ends."""
        return (Statement(f"SELECT 1 FROM contents WHERE hash = ANY(?::text[]) ORDER BY hash FOR {lock}", (hashes,)),)

    def may_repeat(self, run_id: str) -> bool:
        """True if this store owns the run, so that nobody else can have created an equal one."""
        return run_id in self._tokens

    async def add(self, run_id: str, event: Event) -> None:
        """Append an event, which is written after a short delay with other events or with the next state."""
        if run_id not in self._tokens:
            await super().add(run_id, event)
            return
        self._events.setdefault(run_id, []).append(event)
        if event.kind in IMMEDIATE:
            if run_id not in await self._add(self._take_events([run_id])):
                raise _lost_error(run_id)
        elif self._writing is None:
            self._writing = asyncio.create_task(self._write_soon())
            self._writes.add(self._writing)
            self._writing.add_done_callback(self._end_writing)

    async def _write_soon(self) -> None:
        await asyncio.sleep(EVENTS_S)
        self._writing = None
        await self._write_events([*self._events])

    def _end_writing(self, task: asyncio.Task[None]) -> None:
        self._writes.discard(task)
        if self._writing is task:
            self._writing = None

    async def _write_events(self, run_ids: Sequence[str]) -> None:
        """Write the waiting events of these runs; events of a run that is no longer owned are dropped."""
        try:
            await self._add(self._take_events(run_ids))
        except PipelineError as error:
            log.warning("events could not be written: %s", error)

    def _take_events(self, run_ids: Sequence[str]) -> list[tuple[str, int, Event]]:
        """Remove the waiting events of these runs from the buffer, and return them as `(run, token, event)`."""
        waiting = [(name, self._tokens.get(name), self._events.pop(name, [])) for name in run_ids]
        return [(name, token, event) for name, token, events in waiting if token is not None for event in events]

    async def _add(self, events: Sequence[tuple[str, int, Event]]) -> set[str]:
        """Write events, and return the runs whose events were written because their leases are still valid."""
        if not events:
            return set()
        rows = [(name, token, event.sequence, json.dumps(event.document())) for name, token, event in events]
        columns = [[row[column] for row in rows] for column in range(4)]
        (written,) = await self.database.transact(Statement(_ADD, columns))
        return {str(row[0]) for row in written}

    async def _flush_events(self, run_id: str) -> None:
        """Write the waiting events of a run, and wait for writes in progress."""
        here = asyncio.get_running_loop()
        writes = {task for task in self._writes - {self._writing} if task.get_loop() is here}
        if writes:
            await asyncio.wait(writes)
        await self._write_events([run_id])

    async def events(self, run_id: str, after: int = 0) -> list[Event]:
        """Events in order."""
        await self._flush_events(run_id)
        return await super().events(run_id, after)

    async def write(
        self, root: str, gone: Sequence[tuple[str, str]] | None, cells: Sequence[tuple[str, str, str]], info: str
    ) -> None:
        """Write the changed cells of a state, and the waiting events of its run, in one round trip."""
        token = self._tokens.get(root)
        if token is None:
            await super().write(root, gone, cells, info)
            return
        columns = [[cell[column] for cell in cells] for column in range(3)]
        names = [[name[column] for name in gone or ()] for column in range(2)]
        events = [event for _, _, event in self._take_events([root])]
        added = [event.sequence for event in events], [json.dumps(event.document()) for event in events]
        args = (root, token, *columns, gone is None, *names, info, *added)
        await self.database.transact(Statement(_WRITE, args, missing=_lost_error(root)))

    async def close(self) -> None:
        """Close the connections, unless they are shared."""
        if not self._shared:
            await super().close()


def _is_away(error: BaseException | None) -> bool:
    """True if the server is down, starting or out of reach, or if it stopped during a transaction."""
    away = (OSError, TimeoutError, asyncpg.InterfaceError, *LOST)
    return isinstance(error, away) or getattr(error, "sqlstate", None) == STARTING


def _is_write(statement: Statement) -> bool:
    """True if a statement is a single write, and need not change any row."""
    return statement.rows is None and statement.missing is None and not statement.text.lstrip().startswith("SELECT")


def _lost_error(run_id: str) -> RunOwnedError:
    return RunOwnedError(f"run {run_id!r} was taken over by another worker; this process saves nothing more of it")
