"""Time to record a request in PostgreSQL, compared with a minimal commit there and with a file.

    python -m benchmarks.postgres [--messages 400] [--requests 200] [--processes 8] [--sessions 200]
    python -m benchmarks.postgres --cut 30

A new cluster with `fsync` on is started for the benchmark and removed afterwards. These are measured in rotating order:

* floor: one INSERT of as many bytes as a request adds, committed by itself, over the same Unix socket.
* rows, bare: the rows of a save in one statement without checks, into tables without indexes other than their keys.
* call, bare: the call of a save by the driver alone, with prepared arguments, into a second set of the record's tables:
  the minimum for its rows, indexes and guarantees.
* save: a save with its own pool on the background loop, and one with the caller's pool on the caller's loop.
* turn: two saves and so two commits, one of the previous answer and one of the request.

`--cut` measures something else: it cuts the network to the server for that many seconds under load, and reports what
happened to the runs and the record.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import asyncpg

from benchmarks.store import Chain, chain, entries, prose, recorded
from context_compiler.errors import StoreError
from context_compiler.record.pool import Pool
from context_compiler.record.postgres import PostgresStore
from context_compiler.record.store import Store, open_place
from context_compiler.record.values import Entry
from tests.support.line import Line
from tests.support.postgres import Cluster

FLOOR, BARE, CALL = "floor: a commit", "its rows, bare", "its call, bare"
OWN, LENT, FILE = "save", "save, a pool lent", "save, file"
TURN, TURN_FILE = "turn, a pool lent", "turn, file"
SECOND = "second"
"""The schema of the tables for `CALL`."""
SAFE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "autovacuum": "on"}
TURNS = 5
"""Requests of each session of a process."""


@contextmanager
def own_cluster() -> Generator[str]:
    """Yield the address of a new durable cluster, and remove it afterwards."""
    cluster = Cluster(None, None, **SAFE)
    cluster.start()
    try:
        yield cluster.url()
    finally:
        cluster.remove()


ROWS = """
WITH texts AS (INSERT INTO bare.contents SELECT * FROM unnest($1::text[], $2::bytea[]) ON CONFLICT DO NOTHING),
messages AS (INSERT INTO bare.nodes SELECT * FROM unnest($3::text[], $4::text[], $5::text[], $6::bigint[])),
searched AS (INSERT INTO bare.waiting (node, text) SELECT * FROM unnest($7::text[], $8::text[])),
conversation AS (UPDATE bare.sessions SET row = $9),
cycle AS (UPDATE bare.cycles SET row = $10)
INSERT INTO bare.views (row) VALUES ($11) RETURNING id
"""
TABLES = """
CREATE TABLE least (n BIGSERIAL PRIMARY KEY, body TEXT);
CREATE SCHEMA bare;
CREATE TABLE bare.contents (hash TEXT COLLATE "C" PRIMARY KEY, body BYTEA);
CREATE TABLE bare.nodes (id TEXT COLLATE "C" PRIMARY KEY, parent TEXT, content TEXT, position BIGINT);
CREATE TABLE bare.waiting (id BIGSERIAL PRIMARY KEY, node TEXT, text TEXT);
CREATE TABLE bare.sessions (id BIGSERIAL PRIMARY KEY, row TEXT);
CREATE TABLE bare.cycles (id BIGSERIAL PRIMARY KEY, row TEXT);
CREATE TABLE bare.views (id BIGSERIAL PRIMARY KEY, row TEXT);
INSERT INTO bare.sessions (row) VALUES ('');
INSERT INTO bare.cycles (row) VALUES ('');
"""


class Seen:
    """A caller's pool that lends a connection without a round trip, and keeps the arguments of the last save."""

    def __init__(self, connections: Sequence[Any]) -> None:
        self.free, self.written, self.trips = list(connections), tuple[Any, ...]([""]), 0

    @asynccontextmanager
    async def acquire(self, *, timeout: float | None = None) -> AsyncIterator[Any]:
        """Lend a connection; a save needs one, and the search index, written concurrently, needs another."""
        connection = self.free.pop()
        try:
            yield SeenConnection(self, connection)
        finally:
            self.free.append(connection)


class SeenConnection:
    """A connection of a `Seen` pool."""

    def __init__(self, pool: Seen, connection: Any) -> None:
        self._pool, self._connection = pool, connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def fetch(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        """Run a query and return its rows."""
        writes = "save_request($1" in query
        self._pool.written = (query, *args) if writes else self._pool.written
        self._pool.trips += writes or " AS is_known" in query
        return await self._connection.fetch(query, *args, timeout=timeout)


def bare_rows(written: Sequence[Any]) -> list[Any]:
    """Return the arguments for `ROWS` from those of a save."""
    hashes, bodies, names, parents, contents, positions, _, nodes, texts = written[4:13]
    session, cycles, view = written[13], "".join(written[16]), written[18]
    return [hashes, bodies, names, parents, contents, positions, nodes, texts, session, cycles, view]


async def save_turn(store: Store, entry: Entry) -> None:
    """Save what a turn adds: the answer of the previous run, and the request, which has one message more."""
    raw = cast(Chain, entry.raw)
    before = Chain(raw.ids[:-1], raw.bodies[:-1], raw.texts[:-1], raw.indexed)
    await store.archive(entry.record.session_id, entry.record.vault_name, before)
    await store.save(entry)


def cpu_of(processes: Sequence[int]) -> float:
    """Return the CPU milliseconds of processes, as counted by Linux."""
    return sum(int(Path(f"/proc/{one}/schedstat").read_text().split()[0]) for one in processes) / 1_000_000


@dataclass
class Spent:
    """Milliseconds of saves of one kind: wall time, CPU time in this process and in the server's process."""

    times: list[float] = field(default_factory=list[float])
    here: list[float] = field(default_factory=list[float])
    there: list[float] = field(default_factory=list[float])


async def saves(url: str, folder: Path, messages: int, requests: int) -> tuple[dict[str, Spent], float, int]:
    """Measure the saves of a growing session, and bare statements with as many bytes and rows.

    Returns:
        Times by kind of save, round trips per save, and bytes per save.
    """
    seen, other = [Seen([await asyncpg.connect(url) for _ in range(2)]) for _ in range(2)]
    stores = {LENT: PostgresStore(cast(Pool, seen)).scoped("lent"), OWN: open_place(url)}
    stores |= {CALL: PostgresStore(url, schema=SECOND), FILE: open_place(folder / "one.db")}
    stores |= {TURN: PostgresStore(cast(Pool, other)).scoped("turn"), TURN_FILE: open_place(folder / "turns.db")}
    await stores[CALL].sessions()
    connection, caller = await asyncpg.connect(url), await asyncpg.connect(url)
    await connection.execute(TABLES)
    servers = {name: [one.get_server_pid() for one in pool.free] for name, pool in ((LENT, seen), (TURN, other))}
    servers[CALL] = [caller.get_server_pid()]
    servers |= dict.fromkeys((FLOOR, BARE), [connection.get_server_pid()])
    draw, new = random.Random(1), 0
    spent = {name: Spent() for name in (FLOOR, BARE, CALL, LENT, OWN, FILE, TURN, TURN_FILE)}
    for at, (entry, added) in enumerate(entries(messages, requests, prose(draw), True)):
        body, (query, *last) = draw.randbytes(added // 2).hex() if at else "", seen.written
        names = [name for name in spent if at or name not in (BARE, CALL)]  # both repeat the previous save
        again = query.replace("context_compiler.", f"{SECOND}.")
        for name in names[at % len(names) :] + names[: at % len(names)]:
            found, server = spent[name], servers.get(name, ())
            there = cpu_of(server)
            start, here = time.perf_counter(), time.process_time()
            if name == FLOOR:
                await connection.execute("INSERT INTO least (body) VALUES ($1)", body)
            elif name == BARE:
                await connection.fetch(ROWS, *bare_rows(last))
            elif name == CALL:
                assert (await caller.fetch(again, *last))[0][0] is not None
            elif name in (TURN, TURN_FILE):
                await save_turn(stores[name], entry)
            else:
                await stores[name].save(entry)
            found.here.append((time.process_time() - here) * 1_000)
            found.times.append((time.perf_counter() - start) * 1_000)
            found.there.append(cpu_of(server) - there)
        seen.trips *= at > 0
        new += added if at else 0
    for store in stores.values():
        assert await store.verify() == ()
        await store.close()
    for one in (connection, caller, *seen.free, *other.free):
        await one.close()
    last_ones = slice(-requests + 1, None)  # without the first save, which has the whole history
    measured = {name: Spent(*(one[last_ones] for one in (at.times, at.here, at.there))) for name, at in spent.items()}
    return measured, seen.trips / requests, new // requests


def short_sessions(process: int, sessions: int) -> Iterator[Entry]:
    """Yield the requests of one process, session by session."""
    draw = random.Random(process)
    text = prose(draw)
    for session in range(sessions):
        texts = [text() for _ in range(2 * TURNS - 1)]
        for turn in range(TURNS):
            raw = chain(texts[: 2 * turn + 1], 0, True)
            yield Entry(record=replace(recorded(turn, raw, raw), session_id=f"{process}-{session}"), raw=raw, view=raw)


async def write(place: str, process: int, sessions: int) -> None:
    """Save the requests of one process, ten sessions at a time; print start, end and CPU time."""
    store, waiting = open_place(place), list(short_sessions(process, sessions))
    start, here = time.time(), time.process_time()
    lanes = [[one for at, one in enumerate(waiting) if at // TURNS % 10 == lane] for lane in range(10)]

    async def save(lane: Sequence[Entry]) -> None:
        for entry in lane:
            await store.save(entry)

    await asyncio.gather(*map(save, lanes))
    print(start, time.time(), time.process_time() - here)
    await store.close()


async def together(place: str, processes: int, sessions: int) -> tuple[float, float]:
    """Return requests per second of several processes on one store, and their CPU milliseconds per request.

    It checks that all requests are on the record afterwards.
    """
    command = [sys.executable, "-m", "benchmarks.postgres", "--write", place, "--sessions", str(sessions), "--process"]
    running = [subprocess.Popen([*command, str(at)], stdout=subprocess.PIPE, text=True) for at in range(processes)]
    spans = [[float(one) for one in process.communicate()[0].split()] for process in running]
    taken = max(end for _, end, _ in spans) - min(start for start, _, _ in spans)
    store = open_place(place)
    found = sum(info.requests for info in await store.sessions())
    assert found == processes * sessions * TURNS, f"{found} requests are there"
    await store.close()
    return found / taken, 1_000 * sum(here for _, _, here in spans) / found


async def cut(cluster: Cluster, seconds: float) -> None:
    """Cut the network while conversations run, and compare acknowledged requests with recorded ones."""
    line, acknowledged, refused, ended = Line(), set[int](), list[float](), False
    async with line.to(cluster.port) as port:
        store = open_place(cluster.url(port=port))

        async def talk(lane: int) -> None:
            for entry in short_sessions(lane, 100_000):
                start = time.perf_counter()
                try:
                    acknowledged.add((await store.save(entry)).id or 0)
                except StoreError:
                    refused.append(time.perf_counter() - start)
                if ended:
                    return

        lanes = [asyncio.create_task(talk(lane)) for lane in range(4)]
        await asyncio.sleep(2)
        line.whole.clear()
        before = len(acknowledged)
        await asyncio.sleep(seconds)
        meanwhile = len(acknowledged) - before
        line.whole.set()
        start = time.perf_counter()
        while len(acknowledged) == before + meanwhile:
            await asyncio.sleep(0.01)
        back = time.perf_counter() - start
        await asyncio.sleep(2)
        ended = True
        await asyncio.gather(*lanes)
        there = {record.id for record in await store.views()}
        defects = await store.verify()
        await store.close()
    print(f"cut for {seconds:g} s: {len(refused)} saves refused, each within {max(refused, default=0):.1f} s;")
    print(f"the first save after it succeeded {back:.1f} s later; {len(acknowledged)} acknowledged requests,")
    print(f"{len(acknowledged - there)} of them missing; defects: {defects}")


def served(cluster: Cluster) -> float:
    """Return the CPU milliseconds of a server's ended connections."""
    time.sleep(0.5)  # until the last one has ended
    pid = (cluster.folder / "data" / "postmaster.pid").read_text().split()[0]
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return 1_000 * (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


async def measure(cluster: Cluster, folder: Path, given: argparse.Namespace) -> None:
    """Measure and print the figures."""
    url = cluster.url()
    spent, trips, size = await saves(url, folder, given.messages, given.requests)
    floors = {name: statistics.median(spent[name].times) for name in (FLOOR, BARE, CALL)}
    for name, found in spent.items():
        p95 = statistics.quantiles(found.times, n=20)[18]
        median, here, there = map(statistics.median, (found.times, found.here, found.there))
        against = "" if name in (FILE, TURN_FILE) else "".join(f"  {median / floor:5.2f}" for floor in floors.values())
        print(f"{name:20} median {median:6.2f} ms  p95 {p95:6.2f}  cpu {here:5.2f} here {there:5.2f} there{against}")
    print(
        f"last columns: relative to the floor, the bare rows and the bare call; "
        f"{size:,} bytes and {trips:.2f} round trips per save"
    )
    if given.processes:
        before = served(cluster)
        many, here = await together(cluster.url("template1"), given.processes, given.sessions)
        there = (served(cluster) - before) / (given.processes * given.sessions * TURNS)
        one, alone = await together(str(folder / "many.db"), given.processes, given.sessions)
        print(f"{given.processes} processes: {many:.0f} requests a second, {one:.0f} with a file: {many / one:.2f}")
        print(f"cpu of a request: {here:.2f} ms here and {there:.2f} in PostgreSQL, {alone:.2f} with the file")


def main() -> None:
    parser = argparse.ArgumentParser(description="Time to record a request in PostgreSQL.")
    for name, usual in (("messages", 400), ("requests", 200), ("processes", 8), ("sessions", 200), ("process", 0)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--cut", type=float, help="Only cut the network for N seconds, and report.")
    parser.add_argument("--write", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.write:
        asyncio.run(write(given.write, given.process, given.sessions))
        return
    cluster = Cluster(None, None, **SAFE)
    cluster.start()
    try:
        if given.cut:
            asyncio.run(cut(cluster, given.cut))
            return
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(measure(cluster, Path(folder), given))
    finally:
        cluster.remove()


if __name__ == "__main__":
    main()
