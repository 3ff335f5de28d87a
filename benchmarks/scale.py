"""Seconds that commands take on a record of many requests.

    python -m benchmarks.scale [--requests 100000] [--turns 100] [--folder /dev/shm] [--keep]

Conversations of `--turns` requests are saved as the store saves them, many in one transaction. A history grows by two
messages per request; from the twentieth request on, a view has a summary and the messages after its cut, which moves
every twenty requests. Each command then runs once, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.machine import machine
from benchmarks.store import KEPT, MOVE_EVERY, Chain, append, compiled, recorded
from context_compiler.record import queries
from context_compiler.record.files import BUSY_TIMEOUT_MS, FileDatabase, open_file
from context_compiler.record.values import Cycle, Entry

BATCH = 100
"""Conversations in one transaction."""

PRICE = {"model": "gpt-5", "provider": "openai", "cached": 12_000, "cached_raw": 400_000}

COMMANDS: Sequence[Sequence[str]] = (
    ("stats",),
    ("sessions", "list"),
    ("views", "list"),
    ("views", "list", "--session", "chat-7"),
    ("prune", "--older-than", "3650d"),
    ("sessions", "delete", "chat-3", "--yes"),
    ("verify",),
)


class Bulk(FileDatabase):
    """A connection whose transactions are parts of a larger one."""

    @contextmanager
    def transaction(self) -> Generator[None]:
        """Do nothing, because the caller's transaction is open."""
        yield


def entries(name: str, turns: int) -> Iterator[Entry]:
    """Yield the requests of one conversation."""
    raw, view = Chain([], [], [], indexed=True), Chain([], [], [], indexed=False)
    for turn in range(turns):
        texts = [f"{name} asks about part {turn} of the plan, and why.", f"Part {turn} of {name}: " + "because " * 20]
        append(raw, texts)
        made = cycle = None
        if turn and turn % MOVE_EVERY == 0:
            summary, tip = f"A summary of {turn} turns of {name}.", raw.ids[-KEPT]
            view = Chain([], [], [], indexed=False)
            append(view, [summary, *raw.texts[1 - KEPT :]])
            made = replace(compiled(tip, summary, "A long prompt. " * 40, turn), session_id=name)
            cycle = Cycle(tip=tip, config="benchmark", state=json.dumps({"summary": summary}))
        elif view.ids:
            append(view, texts)
        sent = view if view.ids else raw
        record = recorded(turn, raw, sent)
        ledger = {**record.ledger, "price": PRICE}
        record = replace(record, session_id=name, run_id=f"{name}-{turn}", ledger=ledger)
        yield Entry(record=record, raw=raw, view=sent, compile=made, cycle=cycle)


def generate(path: Path, requests: int, turns: int) -> None:
    """Create a record of `requests` requests in conversations of `turns` requests."""
    db = open_file(path, read_only=False, busy_timeout_ms=BUSY_TIMEOUT_MS)
    db.__class__ = Bulk
    db.execute("PRAGMA synchronous = OFF")
    names = [f"chat-{number}" for number in range(requests // turns)]
    for start in range(0, len(names), BATCH):
        db.execute("BEGIN")
        for name in names[start : start + BATCH]:
            for entry in entries(name, turns):
                queries.save(db, entry)
        db.execute("COMMIT")
        print(f"\r{(start + BATCH) * turns:,} requests", end="", file=sys.stderr)
    print(file=sys.stderr)
    db.close()


def seconds(path: Path, command: Sequence[str]) -> tuple[float, float]:
    """Seconds, and seconds of CPU, of a command on a record, in a process of its own."""
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    run = [sys.executable, "-m", "context_compiler", *command, "--db", str(path)]
    subprocess.run(run, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - started, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Generate a record, run the commands, and print their times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--turns", type=int, default=100, help="requests of each conversation")
    parser.add_argument("--folder", type=Path, help="where the record is created")
    parser.add_argument("--keep", action="store_true", help="keep the record, or use one that was kept")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as temporary:
        folder = given.folder if given.keep and given.folder else Path(temporary)
        path = folder / f"scale-{given.requests}.db"
        if not path.exists():
            started = time.perf_counter()
            generate(path, given.requests, given.turns)
            taken = (time.perf_counter() - started) / given.requests * 1000
            print(f"{taken:.3f} ms to save a request", file=sys.stderr)
        print(f"{machine()}\n\n{given.requests:,} requests, {path.stat().st_size / 2**20:,.0f} MiB\n")
        print("| command | seconds | of CPU |\n|---|---|---|")
        for command in COMMANDS:
            wall, cpu = seconds(path, command)
            print(f"| `{' '.join(command)}` | {wall:.1f} | {cpu:.1f} |", flush=True)


if __name__ == "__main__":
    main()
