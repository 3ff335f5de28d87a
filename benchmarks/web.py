"""Server time and size of the inspector's pages on a large record, and the memory of an idle server.

    python -m benchmarks.web [--messages 20000] [--requests 100000] [--db FILE]
    python -m benchmarks.web --chat

One session has `--messages` messages and is sent in cycles of 25 requests; the other requests are spread over sessions
of a hundred. Chains are written through the store, as by a running agent. Times are CPU time of the server's process,
from the request to the last byte of the answer, with the tokenizer loaded. Linux only.

`--chat` measures the first piece of an answer instead, from the browser's prompt to the piece that it receives: through
the chat page, and through a server that only streams the same agent of the host.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import uvicorn
from pydantic_ai import Agent
from pydantic_ai.messages import (
    AgentStreamEvent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextContent,
    TextPart,
    UserPromptPart,
)
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from context_compiler import ids
from context_compiler.chat import ScriptedModel
from context_compiler.messages.fences import SUMMARY_PREFIX, fence
from context_compiler.messages.history import message_body
from context_compiler.messages.items import MARK
from context_compiler.record.store import SQLiteStore
from context_compiler.record.values import Entry, Record
from context_compiler.web.app import create_app
from context_compiler.web.chats import ChatDefaults, Chats

CYCLE, KEPT, SMALL = 25, 12, 100
START = datetime(2026, 1, 1, tzinfo=UTC)
FACT = "ORCHID-7731"
WORDS = "the build of module is green and its tests pass while the queue holds jobs that wait for a worker".split()


@dataclass(frozen=True)
class Message:
    """A message in its stored form."""

    body: bytes
    text: str
    identity: str


class Part:
    """A chain of the first messages of a list."""

    def __init__(self, names: Sequence[str], messages: Sequence[Message], length: int) -> None:
        """Build the chain of the first `length` messages."""
        self.ids = Names(names, length)
        self._messages = messages

    def body(self, index: int) -> bytes:
        """Return the JSON of message `index`."""
        return self._messages[index].body

    def text(self, index: int) -> str:
        """Return the text of message `index`."""
        return self._messages[index].text


class Names(Sequence[str]):
    """The first names of a list, without a copy."""

    def __init__(self, names: Sequence[str], length: int) -> None:
        """Show the first `length` of `names`."""
        self._names, self._length = names, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int | slice) -> str | list[str]:  # pyright: ignore[reportIncompatibleMethodOverride]
        places = range(self._length)[index]
        return [self._names[at] for at in places] if isinstance(places, range) else self._names[places]


def said(number: int, session: int) -> str:
    """Return a text of about sixty words."""
    words = [WORDS[(number * 7 + at * (session + 3)) % len(WORDS)] for at in range(60)]
    return f"{number} in {session}: {' '.join(words)}"


def stored(message: ModelMessage, text: str) -> Message:
    """Convert a message for the store."""
    body = message_body(message)
    return Message(body, text, ids.identity(body))


def turn(number: int, session: int) -> list[Message]:
    """Return a prompt and its answer."""
    when = START + timedelta(seconds=number)
    prompt = f"{said(number, session)} {FACT if number == 3 else ''}"
    answer = said(number + 1, session)
    return [
        stored(ModelRequest(parts=[UserPromptPart(content=prompt, timestamp=when)], timestamp=when), prompt),
        stored(ModelResponse(parts=[TextPart(content=answer)], timestamp=when), answer),
    ]


def note(number: int, session: int) -> Message:
    """Return the note of a view, with quotes."""
    quoted = "\n".join(f"[turn {number - at} · user] {said(number - at, session)}" for at in range(3))
    fact = f"[turn 4 · user] {FACT}" if (number // CYCLE) % 2 else ""
    text = f"{SUMMARY_PREFIX}\nNotes.\n\nIt goes on.\n{fence('QUOTED', quoted + fact)}"
    piece = TextContent(content=text, metadata={MARK: {"v": 1}})
    part = UserPromptPart(content=[piece], timestamp=START + timedelta(seconds=number))
    return stored(ModelRequest(parts=[part]), "")


def chained(messages: Sequence[Message]) -> list[str]:
    """Return the ids of a chain."""
    names: list[str] = []
    for one in messages:
        names.append(ids.chain_id(names[-1] if names else None, one.identity))
    return names


async def write_session(store: SQLiteStore, session: int, turns: int) -> None:
    """Write a session with one request per turn."""
    raw: list[Message] = [message for number in range(turns) for message in turn(number, session)]
    names = chained(raw)
    view: list[Message] = []
    view_names: list[str] = []
    start = 0
    for number in range(turns):
        length = 2 * number + 1
        cut = number >= CYCLE
        if cut and number % CYCLE == 0:
            view = [note(number, session), *raw[max(0, length - KEPT) :]]
            view_names = chained(view)
            start = length
        sent = length if not cut else 1 + min(KEPT, start) + (length - start)
        ledger = {"tokens": {"summary": 40, "quotes": 400, "messages": 900}, "kept": {}, "dropped": []}
        record = Record(
            session_id=f"session-{session}",
            vault_name="",
            turn_index=number,
            run_id=f"run-{number}",
            request_index=0,
            raw_tip=None,
            view_tip=None,
            status="raw" if not cut else "compiled" if number % CYCLE == 0 else "cycle",
            error=None,
            budget=4_000,
            tokens_raw=80 * length,
            tokens_sent=80 * sent,
            tokens_exact=80 * sent,
            ratio=1.0,
            ledger=ledger,
            request_hash=None,
            latency_ms=3.0,
            created_at=START + timedelta(seconds=number),
        )
        if cut and number % CYCLE == 0:
            view += raw[length : length + 2 * CYCLE]
            view_names = chained(view)
        shown = Part(view_names, view, sent) if cut else Part(names, raw, length)
        await store.save(Entry(record=record, raw=Part(names, raw, length), view=shown))


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


def measure(process: int, client: httpx.Client, path: str, times: int) -> tuple[float, float, int]:
    """Return first and median CPU milliseconds, and bytes, of a page."""
    taken: list[float] = []
    size = 0
    for _ in range(times):
        started = cpu_ms(process)
        answer = client.get(path)
        taken.append(cpu_ms(process) - started)
        assert answer.status_code == 200, (path, answer.status_code, answer.text[:300])
        size = len(answer.content)
    return taken[0], statistics.median(taken), size


def megabytes(process: int) -> float:
    """Return the resident memory of a process in MiB."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024


def pages(newest: int) -> list[tuple[str, str, Callable[[], str]]]:
    """Return the pages to measure: name, goal, and a function that returns the address."""
    return [
        ("list of sessions", "", lambda: "/sessions"),
        ("first page of the long session", "300 ms, 200 kB", lambda: "/sessions/1"),
        ("a request of it", "150 ms", lambda: f"/requests/{newest}"),
        ("an earlier request of it", "150 ms", lambda: f"/requests/{newest // 2}"),
        ("why not?", "150 ms", lambda: f"/requests/{newest - 1}/why"),
        ("why not?, its last page", "", lambda: f"/requests/{newest - 1}/why?page={(2 * newest) // 50}"),
        ("difference with the request before", "150 ms", lambda: f"/requests/{newest - 2}/diff"),
        ("difference with the raw history", "", lambda: f"/requests/{newest - 2}/diff?with=raw"),
        ("fact in the long session", "1,000 ms", lambda: f"/sessions/1/fact?q={FACT}"),
        ("fact in all sessions", "1,000 ms", lambda: f"/sessions?text={FACT}"),
    ]


WORD_S = 0.002
"""Seconds that the scripted model takes per word."""

WARM, ROUNDS = 5, 40
"""Number of answers that are not counted, and of those that are."""


def host_app() -> Starlette:
    """Build a server that streams an agent of the host, with the history so far."""
    agent, messages = Agent(ScriptedModel(delay=WORD_S)), list[ModelMessage]()

    async def pieces(text: str) -> AsyncIterator[str]:
        came: asyncio.Queue[str | None] = asyncio.Queue()

        async def hear(ctx: object, events: AsyncIterable[AgentStreamEvent]) -> None:
            async for event in events:
                if isinstance(event, PartStartEvent | PartDeltaEvent):
                    came.put_nowait(str(event))

        async def answer() -> None:
            result = await agent.run(text, message_history=messages, event_stream_handler=hear)
            messages[:] = result.all_messages()
            came.put_nowait(None)

        answering = asyncio.create_task(answer())
        while (piece := await came.get()) is not None:
            yield f"event: piece\ndata: {json.dumps({'text': piece})}\n\n"
        await answering

    async def say(request: Request) -> Response:
        return StreamingResponse(pieces((await request.json())["text"]), media_type="text/event-stream")

    return Starlette(routes=[Route("/say", say, methods=["POST"])])


def chat_app(folder: Path) -> Starlette:
    """Build the application with a chat of the same agent."""
    defaults = ChatDefaults(model="scripted", db=folder / "context.db", system=folder, budget=1_000_000)
    chats = Chats(lambda name: Agent(ScriptedModel(delay=WORD_S)), defaults)
    return create_app(folder / "context.db", system=folder, chats=chats)


@contextmanager
def serving(app: Starlette) -> Iterator[str]:
    """Run a server in a thread and yield its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    app.state.is_ending = lambda: server.should_exit
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


class Asker:
    """A client that asks, and waits for the first piece and then for the end."""

    def __init__(self, address: str, path: str, **query: str) -> None:
        """Connect at the first question."""
        self.client = httpx.AsyncClient(base_url=address, timeout=60, params=query)
        self.path = path
        self.found: list[float] = []

    async def ask(self, number: int) -> None:
        """Ask the host's server, which answers with the stream."""
        began, first = time.perf_counter(), 0.0
        async with self.client.stream("POST", self.path, json={"text": f"And question {number}?"}) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("event: piece") and not first:
                    first = time.perf_counter()
        self.found.append((first - began) * 1000)


class Tab(Asker):
    """A client of the chat page, which listens to events."""

    came: asyncio.Queue[tuple[str, float]]

    async def listen(self) -> None:
        """Listen to the events of the chat."""
        self.came = asyncio.Queue()
        async with self.client.stream("GET", f"{self.path}/events") as answer:
            async for line in answer.aiter_lines():
                if line.startswith("event: "):
                    self.came.put_nowait((line[7:], time.perf_counter()))

    async def ask(self, number: int) -> None:
        """Ask in the chat."""
        if not number:
            self.listening = asyncio.create_task(self.listen())
            await asyncio.sleep(0)
            await self.came.get()
        began = time.perf_counter()
        endless = self.client.params["session"] == "Endless"
        await self.client.post(self.path, json={"text": f"And question {number}?", "endless": endless})
        heard = [await self.came.get()]
        while heard[-1][0] != "done":
            heard.append(await self.came.get())
        self.found.append((next(when for name, when in heard if name == "piece") - began) * 1000)


async def first_pieces(host: str, chat: str) -> dict[str, float]:
    """Return median milliseconds to the first piece; the clients ask in turn."""
    modes = {name: Tab(chat, "/api/chat", session=name) for name in ("normal mode", "Endless")}
    askers = {"": Asker(host, "/say"), **modes}
    for number in range(WARM + ROUNDS):
        for one in askers.values():
            await one.ask(number)
    for tab in modes.values():
        tab.listening.cancel()
        await asyncio.wait({tab.listening})
    for one in askers.values():
        await one.client.aclose()
    return {name: statistics.median(one.found[WARM:]) for name, one in askers.items()}


def print_chat() -> None:
    """Print the table of first pieces."""
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(host_app()) as host,
        serving(chat_app(Path(folder))) as chat,
    ):
        found = asyncio.run(first_pieces(host, chat))
    base = found.pop("")
    print("| first piece of an answer | median, ms | over the host | goal |\n|---|---:|---:|---|")
    print(f"| the host's own stream | {base:.1f} | | |")
    for name, median in found.items():
        print(f"| chat page, {name} | {median:.1f} | {median - base:+.1f} | 10 ms |")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--db", type=Path, help="Record to use; created if it does not exist, and kept.")
    parser.add_argument("--chat", action="store_true", help="Measure the chat page instead.")
    given = parser.parse_args()
    if given.chat:
        print_chat()
        return
    with tempfile.TemporaryDirectory() as folder:
        db = given.db or Path(folder) / "context.db"
        if not db.exists():
            asyncio.run(write_record(db, given.messages, given.requests))
        newest = given.messages // 2
        with served(db) as (process, client):
            idle = megabytes(process)
            print(f"record of {db.stat().st_size / 1e6:,.0f} MB; idle server: {idle:.0f} MB (goal 120 MB)\n")
            print("| page | first, ms | median, ms | kB | goal |\n|---|---:|---:|---:|---|")
            client.get(f"/requests/{newest + 1}")  # a page of another session, to load the tokenizer
            settle(process)
            for name, goal, address in pages(newest):
                first, median, size = measure(process, client, address(), given.times)
                print(f"| {name} | {first:.0f} | {median:.0f} | {size / 1000:.0f} | {goal} |")


if __name__ == "__main__":
    main()
