"""Time to record a request in PostgreSQL, compared with a file.

    python -m benchmarks.postgres [--messages 400] [--requests 200] [--processes 8] [--sessions 200]
    python -m benchmarks.postgres --cut 30

A new cluster with `fsync` on is started for the benchmark and removed afterwards. `save` is the request of a growing
session; `turn` is two saves and so two commits, one of the previous answer and one of the request. All are measured in
rotating order. Then several processes save short sessions at once.

`--cut` measures something else: it cuts the network to the server for that many seconds under load, and reports what
happened to the runs and the record.
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
from typing import cast

from benchmarks.store import Chain, chain, entries, prose, recorded
from context_compiler.errors import StoreError
from context_compiler.record.postgres import PostgresStore
from context_compiler.record.store import Store, open_place
from context_compiler.record.values import Entry
from tests.support.line import Line
from tests.support.postgres import Cluster

SAFE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "autovacuum": "on"}
TURNS = 5
"""Requests of each session of a process."""


@contextmanager
def own_cluster() -> Generator[Cluster]:
    """Start a new durable cluster, and remove it afterwards."""
    cluster = Cluster(None, None, **SAFE)
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.remove()


async def save_turn(store: Store, entry: Entry) -> None:
    """Save what a turn adds: the answer of the previous run, and the request, which has one message more."""
    raw = cast(Chain, entry.raw)
    before = Chain(raw.ids[:-1], raw.bodies[:-1], raw.texts[:-1], raw.indexed)
    await store.archive(entry.record.session_id, entry.record.vault_name, before)
    await store.save(entry)


async def saves(url: str, folder: Path, messages: int, requests: int) -> tuple[dict[str, list[float]], int]:
    """Return the milliseconds of each kind of save of a growing session, and the bytes of a request."""
    stores = {"save": open_place(url), "save, file": open_place(folder / "one.db")}
    stores |= {"turn": PostgresStore(url, schema="turns"), "turn, file": open_place(folder / "turns.db")}
    times: dict[str, list[float]] = {name: [] for name in stores}
    names, new = list(stores), 0
    for number, (entry, added) in enumerate(entries(messages, requests, prose(random.Random(1)), True)):
        names = [*names[1:], names[0]]
        for name in names:
            start = time.perf_counter()
            await (save_turn(stores[name], entry) if name.startswith("turn") else stores[name].save(entry))
            times[name].append((time.perf_counter() - start) * 1_000)
        new += added if number else 0
    for store in stores.values():
        assert await store.verify() == ()
        await store.close()
    return {name: taken[1:] for name, taken in times.items()}, new // requests  # the first has the whole history


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
    """Save the requests of one process, ten sessions at a time; print start and end."""
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
    """Return requests per second of several processes on one store; all requests have to be on the record."""
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


async def measure(cluster: Cluster, folder: Path, given: argparse.Namespace) -> None:
    """Measure and print the figures."""
    times, size = await saves(cluster.url(), folder, given.messages, given.requests)
    for name, taken in times.items():
        slow = statistics.quantiles(taken, n=20)[18]
        print(f"{name:12} median {statistics.median(taken):6.2f} ms  p95 {slow:6.2f}")
    many = await together(cluster.url("template1"), given.processes, given.sessions)
    file = await together(str(folder / "many.db"), given.processes, given.sessions)
    print(
        f"{size:,} bytes a request; {given.processes} processes: {many:.0f} requests a second, {file:.0f} with a file"
    )


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
    with own_cluster() as cluster, tempfile.TemporaryDirectory() as folder:
        asyncio.run(cut(cluster, given.cut) if given.cut else measure(cluster, Path(folder), given))


if __name__ == "__main__":
    main()
