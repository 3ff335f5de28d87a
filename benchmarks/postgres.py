"""What it costs to remember a request in PostgreSQL: against the least that a commit costs there, and against a file.

    python -m benchmarks.postgres [--messages 400] [--requests 200] [--processes 8] [--sessions 200]
    python -m benchmarks.postgres --cut 30

A cluster of its own, with `fsync` on, is started for it, and removed after it. The floor is one INSERT of as many bytes
as a request adds, committed by itself, over the same Unix socket. `--cut` is another thing: it cuts the network to the
server for that many seconds under load, and says what became of the runs and of the record.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import asyncpg

from benchmarks.store import chain, entries, prose, recorded
from context_compiler.errors import StoreError
from context_compiler.record.store import open_place
from context_compiler.record.values import Entry
from tests.support.line import Line
from tests.support.postgres import Cluster

FLOOR = "floor of a commit"
SAFE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "autovacuum": "on"}
TURNS = 5
"""Requests of each session of a process."""


@contextmanager
def own_cluster() -> Generator[str]:
    """The address of a new cluster that loses nothing, which is removed afterwards."""
    cluster = Cluster(None, None, **SAFE)
    cluster.start()
    try:
        yield cluster.url()
    finally:
        cluster.remove()


async def saves(url: str, folder: Path, messages: int, requests: int) -> tuple[dict[str, list[float]], float, int]:
    """Milliseconds of the saves of a growing session, and of bare commits of as many bytes, one after the other.

    With them come the milliseconds of processor time that a save in PostgreSQL takes here, and the bytes of one.
    """
    stores = {"save, PostgreSQL": open_place(url), "save, file": open_place(folder / "one.db")}
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE TABLE least (n BIGSERIAL PRIMARY KEY, body TEXT)")
    draw, new, used = random.Random(1), 0, 0.0
    times = {name: list[float]() for name in (FLOOR, *stores)}
    for at, (entry, added) in enumerate(entries(messages, requests, prose(draw), True)):
        body = draw.randbytes(added // 2).hex() if at else ""
        for name in times:
            start, before = time.perf_counter(), time.process_time()
            if name == FLOOR:
                await connection.execute("INSERT INTO least (body) VALUES ($1)", body)
            else:
                await stores[name].save(entry)
            times[name].append((time.perf_counter() - start) * 1_000)
            used += (time.process_time() - before) * 1_000 if at and name == "save, PostgreSQL" else 0
        new += added if at else 0
    await connection.close()
    for store in stores.values():
        assert await store.verify() == ()
        await store.close()
    return {name: found[1:] for name, found in times.items()}, used / requests, new // requests


def short_sessions(process: int, sessions: int) -> Iterator[Entry]:
    """The requests of one process, of one session after the other."""
    draw = random.Random(process)
    text = prose(draw)
    for session in range(sessions):
        texts = [text() for _ in range(2 * TURNS - 1)]
        for turn in range(TURNS):
            raw = chain(texts[: 2 * turn + 1], 0, True)
            yield Entry(record=replace(recorded(turn, raw, raw), session_id=f"{process}-{session}"), raw=raw, view=raw)


async def write(place: str, process: int, sessions: int) -> None:
    """Save what one process has to, ten sessions at a time; print when it began and ended."""
    store, waiting = open_place(place), list(short_sessions(process, sessions))
    start = time.time()
    lanes = [[one for at, one in enumerate(waiting) if at // TURNS % 10 == lane] for lane in range(10)]

    async def save(lane: Sequence[Entry]) -> None:
        for entry in lane:
            await store.save(entry)

    await asyncio.gather(*map(save, lanes))
    print(start, time.time())
    await store.close()


async def together(place: str, processes: int, sessions: int) -> float:
    """Requests a second of several processes on one store, all of which are there afterwards."""
    command = [sys.executable, "-m", "benchmarks.postgres", "--write", place, "--sessions", str(sessions), "--process"]
    running = [subprocess.Popen([*command, str(at)], stdout=subprocess.PIPE, text=True) for at in range(processes)]
    spans = [[float(one) for one in process.communicate()[0].split()] for process in running]
    taken = max(end for _, end in spans) - min(start for start, _ in spans)
    store = open_place(place)
    found = sum(info.requests for info in await store.sessions())
    assert found == processes * sessions * TURNS, f"{found} requests are there"
    await store.close()
    return found / taken


async def cut(cluster: Cluster, seconds: float) -> None:
    """Cut the network under a load of conversations, and compare what was acknowledged with what is there."""
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


async def measure(url: str, folder: Path, given: argparse.Namespace) -> None:
    """Print the figures."""
    found, used, size = await saves(url, folder, given.messages, given.requests)
    for name, times in found.items():
        p95 = statistics.quantiles(times, n=20)[18]
        print(f"{name:20} median {statistics.median(times):6.2f} ms  p95 {p95:6.2f} ms")
    ratio = statistics.median(found["save, PostgreSQL"]) / statistics.median(found[FLOOR])
    print(f"PostgreSQL is {ratio:.2f} of its floor; {size:,} bytes and {used:.2f} ms of CPU here a request")
    if given.processes:
        rates = [
            await together(place, given.processes, given.sessions)
            for place in (url.replace("/postgres?", "/template1?"), str(folder / "many.db"))
        ]
        print(f"{given.processes} processes: PostgreSQL {rates[0]:.0f} requests a second, one file {rates[1]:.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="What it costs to remember a request in PostgreSQL.")
    for name, usual in (("messages", 400), ("requests", 200), ("processes", 8), ("sessions", 200), ("process", 0)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--cut", type=float, help="Only this: cut the network for so many seconds.")
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
            asyncio.run(measure(cluster.url(), Path(folder), given))
    finally:
        cluster.remove()


if __name__ == "__main__":
    main()
