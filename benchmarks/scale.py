"""Seconds that commands take on a record of many requests.

    python -m benchmarks.scale [--requests 100000] [--turns 100] [--folder /dev/shm] [--keep]

Conversations of `--turns` requests are saved as the store saves them, many in one transaction. A history grows by two
messages per request; from the twentieth request on, a view has a summary and the messages after its cut, which moves
every twenty requests. Each command then runs once, in a process of its own. With `--keep`, the record stays in
`--folder`, and one that is there is used.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.command import arguments, machine
from benchmarks.store import KEPT, MOVE_EVERY, Chain, recorded, summarised
from context_compiler.record import queries
from context_compiler.record.files import BUSY_TIMEOUT_MS, FileDatabase, open_file
from context_compiler.record.values import Cycle, Entry

BATCH = 100
"""Conversations in one transaction."""

PRICE = {"model": "gpt-5", "provider": "openai", "cached": 12_000, "cached_raw": 400_000}

COMMANDS = (
    "stats|sessions list|views list|views list --session chat-7|prune --older-than 3650d|sessions delete chat-3 --yes|"
    "verify"
).split("|")


class Bulk(FileDatabase):
    """A connection whose transactions are parts of a larger one."""

    @contextmanager
    def transaction(self) -> Generator[None]:
        """Do nothing, because the caller's transaction is open."""
        yield


def entries(name: str, turns: int) -> Iterator[Entry]:
    raw, view = Chain(indexed=True), Chain()
    for turn in range(turns):
        texts = [f"{name} asks about part {turn} of the plan, and why.", f"Part {turn} of {name}: " + "because " * 20]
        raw.append(texts)
        compile = cycle = None
        if turn and turn % MOVE_EVERY == 0:
            summary, tip = f"A summary of {turn} turns of {name}.", raw.ids[-KEPT]
            view = Chain().append([summary, *raw.texts[1 - KEPT :]])
            compile = summarised(tip, summary, "A long prompt. " * 40, turn, name)
            cycle = Cycle(tip=tip, config="benchmark", state=json.dumps({"summary": summary}))
        elif view.ids:
            view.append(texts)
        sent = view if view.ids else raw
        ledger = {"tokens": {"summary": 300, "turns": 14_000}, "kept": {"recent": KEPT}, "dropped": [], "price": PRICE}
        run = f"{name}-{turn}"
        yield recorded(turn, raw, sent, session_id=name, run_id=run, ledger=ledger, compile=compile, cycle=cycle)


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


def seconds(path: Path, command: str) -> tuple[float, float]:
    """Seconds, and seconds of CPU, of a command on a record, in a process of its own."""
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    run = [sys.executable, "-m", "context_compiler", *command.split(), "--db", str(path)]
    subprocess.run(run, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - started, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    options = arguments(__doc__, requests=100_000, turns=100, folder=Path, keep=False)
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        folder = options.folder if options.keep and options.folder else Path(temporary)
        path = folder / f"scale-{options.requests}.db"
        if not path.exists():
            started = time.perf_counter()
            generate(path, options.requests, options.turns)
            taken = (time.perf_counter() - started) / options.requests * 1000
            print(f"{taken:.3f} ms to save a request", file=sys.stderr)
        print(f"{machine()}\n\n{options.requests:,} requests, {path.stat().st_size / 2**20:,.0f} MiB\n")
        print("| command | seconds | of CPU |\n|---|---|---|")
        for command in COMMANDS:
            wall, cpu = seconds(path, command)
            print(f"| `{command}` | {wall:.1f} | {cpu:.1f} |", flush=True)


if __name__ == "__main__":
    main()
