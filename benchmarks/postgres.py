"""Time to record a request in PostgreSQL, compared with a file.

    python -m benchmarks.postgres [--messages 400] [--requests 200] [--processes 8] [--sessions 200]

A new cluster with `fsync` on is started for the benchmark and removed afterwards. The requests of a growing session are
saved in both, in turn. Then several processes, started with `--write` and `--process`, save short sessions at once.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.command import arguments
from benchmarks.store import Chain, entries, prose, recorded
from context_compiler.record.store import open_place
from context_compiler.record.values import Entry
from tests.support.postgres import Cluster

SAFE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "autovacuum": "on"}
TURNS = 5
"""Requests of each session of a process."""


async def saves(url: str, folder: Path, messages: int, requests: int) -> tuple[dict[str, list[float]], int]:
    """Return the milliseconds of the saves of a growing session, in PostgreSQL and in a file, and bytes a request."""
    stores = {"PostgreSQL": open_place(url), "file": open_place(folder / "one.db")}
    times: dict[str, list[float]] = {name: [] for name in stores}
    new = 0
    for number, (entry, added) in enumerate(entries(messages, requests, prose(random.Random(1)), True)):
        for name, store in stores.items() if number % 2 else reversed(stores.items()):
            start = time.perf_counter()
            await store.save(entry)
            times[name].append((time.perf_counter() - start) * 1_000)
        new += added if number else 0
    for store in stores.values():
        assert await store.verify() == ()
        await store.close()
    return {name: taken[1:] for name, taken in times.items()}, new // requests  # the first has the whole history


def short_sessions(process: int, sessions: int) -> Iterator[Entry]:
    draw = random.Random(process)
    text = prose(draw)
    for session in range(sessions):
        texts = [text() for _ in range(2 * TURNS - 1)]
        for turn in range(TURNS):
            raw = Chain(indexed=True).append(texts[: 2 * turn + 1])
            yield recorded(turn, raw, raw, session_id=f"{process}-{session}")


async def write(db: str, process: int, sessions: int) -> None:
    """Save the requests of one process, ten sessions at a time; print start and end."""
    store, waiting = open_place(db), list(short_sessions(process, sessions))
    start = time.time()
    lanes = [[entry for number, entry in enumerate(waiting) if number // TURNS % 10 == lane] for lane in range(10)]

    async def save(lane: Sequence[Entry]) -> None:
        for entry in lane:
            await store.save(entry)

    await asyncio.gather(*map(save, lanes))
    print(start, time.time())
    await store.close()


async def together(db: str, processes: int, sessions: int) -> float:
    """Return requests per second of several processes on one store; all requests have to be on the record."""
    command = [sys.executable, "-m", "benchmarks.postgres", "--write", db, "--sessions", str(sessions), "--process"]
    commands = ([*command, str(number)] for number in range(processes))
    running = [subprocess.Popen(each, stdout=subprocess.PIPE, text=True) for each in commands]
    spans = [[float(moment) for moment in process.communicate()[0].split()] for process in running]
    taken = max(end for _, end in spans) - min(start for start, _ in spans)
    store = open_place(db)
    requests = sum(info.requests for info in await store.sessions())
    assert requests == processes * sessions * TURNS, f"{requests} requests are there"
    await store.close()
    return requests / taken


async def measure(cluster: Cluster, folder: Path, messages: int, requests: int, processes: int, sessions: int) -> None:
    times, size = await saves(cluster.url(), folder, messages, requests)
    for name, taken in times.items():
        slow = statistics.quantiles(taken, n=20)[18]
        print(f"{name:12} median {statistics.median(taken):6.2f} ms  p95 {slow:6.2f}")
    many = await together(cluster.url("template1"), processes, sessions)
    file = await together(str(folder / "many.db"), processes, sessions)
    print(f"{size:,} bytes a request; {processes} processes: {many:.0f} requests a second, {file:.0f} with a file")


def main() -> None:
    """Measure and print, or write as one of several processes."""
    sizes: dict[str, Any] = {"messages": 400, "requests": 200, "processes": 8, "sessions": 200}
    options = vars(arguments(__doc__, **sizes, write="", process=0))
    db, process = options.pop("write"), options.pop("process")
    if db:
        asyncio.run(write(db, process, options["sessions"]))
        return
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        cluster = Cluster(None, None, **SAFE)
        cluster.start()
        stack.callback(cluster.remove)
        asyncio.run(measure(cluster, Path(folder), **options))


if __name__ == "__main__":
    main()
