"""Server time and size of the inspector's pages on a large record, and the memory of an idle server.

    python -m benchmarks.web [--messages 20000] [--requests 100000] [--db FILE]

One session has `--messages` messages and is sent in cycles of 25 requests; the other requests are spread over sessions
of a hundred. Times are CPU time of the server's process, from the request to the last byte of the answer, with the
tokenizer loaded. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import httpx
from pydantic_ai.messages import ModelRequest, TextContent, UserPromptPart

from benchmarks.store import SENT, Chain, chain, linked, recorded
from benchmarks.tables import markdown
from context_compiler.messages.bodies import message_body
from context_compiler.messages.fences import SUMMARY_PREFIX, fence
from context_compiler.messages.items import MARK
from context_compiler.record.store import SQLiteStore
from context_compiler.record.values import Entry

CYCLE, KEPT, SMALL = 25, 12, 100
FACT = "ORCHID-7731"
WORDS = "the build of module is green and its tests pass while the queue holds jobs that wait for a worker".split()


def said(number: int, session: int) -> str:
    """Return a text of about sixty words."""
    words = [WORDS[(number * 7 + position * (session + 3)) % len(WORDS)] for position in range(60)]
    return f"{number} in {session}: {' '.join(words)}"


def note(number: int, texts: Sequence[str]) -> bytes:
    """Return the JSON of the note of a view, with the prompts of the last three turns as quotes."""
    quotes = "\n".join(f"[turn {turn} · user] {texts[2 * turn]}" for turn in range(number, number - 3, -1))
    fact = f"[turn 4 · user] {FACT}" if (number // CYCLE) % 2 else ""
    text = f"{SUMMARY_PREFIX}\nNotes.\n\nIt goes on.\n{fence('QUOTED', quotes + fact)}"
    piece = TextContent(content=text, metadata={MARK: {"v": 1}})
    when = SENT + timedelta(seconds=number)
    return message_body(ModelRequest(parts=[UserPromptPart(content=[piece], timestamp=when)]))


def first_of(messages: Chain, length: int) -> Chain:
    """Return the chain of the first `length` messages."""
    return Chain(messages.ids[:length], messages.bodies[:length], messages.texts[:length], True)


async def write_session(store: SQLiteStore, session: int, turns: int) -> None:
    """Write a session with one request per turn."""
    texts = [f"{said(number, session)} {FACT if number == 6 else ''}" for number in range(2 * turns)]
    raw = view = chain(texts, 0, True)
    start, status = -1, "raw"
    for number in range(turns):
        length = 2 * number + 1
        if number and number % CYCLE == 0:
            start, end, status = length - KEPT, length + 2 * CYCLE, "compiled"
            view = linked([note(number, texts), *raw.bodies[start:end]], ["", *raw.texts[start:end]], True)
        sent = first_of(view, 1 + length - start if start >= 0 else length)
        whole = first_of(raw, length)
        record = replace(
            recorded(number, whole, sent),
            session_id=f"session-{session}",
            run_id=f"run-{number}",
            status=status,
            budget=4_000,
            tokens_raw=80 * length,
            tokens_sent=80 * len(sent.ids),
            tokens_exact=80 * len(sent.ids),
            ledger={"tokens": {"summary": 40, "quotes": 400, "messages": 900}, "kept": {}, "dropped": []},
            created_at=SENT + timedelta(seconds=number),
        )
        await store.save(Entry(record=record, raw=whole, view=sent))
        status = "cycle" if start >= 0 else "raw"


async def write_record(db: Path, messages: int, requests: int) -> None:
    """Write the whole record."""
    store = SQLiteStore(db)
    await write_session(store, 0, messages // 2)
    for session in range(1, max(1, (requests - messages // 2) // SMALL) + 1):
        await write_session(store, session, SMALL)
        if session % 50 == 0:
            print(f"  {messages // 2 + session * SMALL:,} requests", file=sys.stderr)
    await store.close()


@contextmanager
def served(db: Path) -> Generator[tuple[int, httpx.Client]]:
    """Start a server as `serve` does, and yield its process and a client."""
    command = [sys.executable, "-m", "context_compiler", "serve", "--db", str(db)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        assert address.startswith("http://")
        settle(server.pid)
        with httpx.Client(base_url=address, timeout=60) as client:
            yield server.pid, client
    finally:
        server.terminate()
        server.wait()


def cpu_ms(process: int) -> float:
    """Return the CPU milliseconds of a process so far, from Linux's clock of the process."""
    return time.clock_gettime(~process << 3 | 2) * 1000


def settle(process: int) -> None:
    """Wait until a process is idle."""
    before = 0.0
    while (now := cpu_ms(process)) - before > 30:
        before = now
        time.sleep(1)


def measure(process: int, client: httpx.Client, path: str, times: int) -> tuple[float, float, float]:
    """Return first and median CPU milliseconds, and kilobytes, of a page."""
    taken: list[float] = []
    size = 0
    for _ in range(times):
        started = cpu_ms(process)
        answer = client.get(path)
        taken.append(cpu_ms(process) - started)
        assert answer.status_code == 200, (path, answer.status_code, answer.text[:300])
        size = len(answer.content)
    return taken[0], statistics.median(taken), size / 1000


def megabytes(process: int) -> float:
    """Return the resident memory of a process in MiB."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024


def pages(newest: int) -> dict[str, str]:
    """Return the address of each page to measure."""
    return {
        "list of sessions": "/sessions",
        "first page of the long session": "/sessions/1",
        "a request of it": f"/requests/{newest}",
        "*Why not?* of a request": f"/requests/{newest - 1}/why",
        "difference with the request before": f"/requests/{newest - 2}/diff",
        "difference with the raw history": f"/requests/{newest - 2}/diff?with=raw",
        "a fact in that session": f"/sessions/1/fact?q={FACT}",
        "a fact in all sessions": f"/sessions?text={FACT}",
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--db", type=Path, help="Record to use; created if it does not exist, and kept.")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        db = given.db or Path(folder) / "context.db"
        if not db.exists():
            asyncio.run(write_record(db, given.messages, given.requests))
        newest = given.messages // 2
        with served(db) as (process, client):
            print(f"record of {db.stat().st_size / 1e6:,.0f} MB; idle server: {megabytes(process):.0f} MB\n")
            client.get(f"/requests/{newest + 1}")  # a page of another session, to load the tokenizer
            settle(process)
            taken = {name: measure(process, client, page, given.times) for name, page in pages(newest).items()}
    rows = [(name, *(f"{value:.0f}" for value in values)) for name, values in taken.items()]
    print(markdown(("page", "first, ms", "median, ms", "kB"), rows))


if __name__ == "__main__":
    main()
