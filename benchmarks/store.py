"""Cost of recording a request: time per save, and bytes on disk relative to new bytes.

    python -m benchmarks.store [--messages 2000] [--requests 500]

A history of `--messages` messages grows by two per request. Every view has a summary and the messages after its cut,
at least forty; it moves its cut every twenty requests, and has a ledger and a cycle. Messages have 200 to 2,000
characters from three thousand words, which compress like English.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import string
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelRequest, ModelResponse, TextPart, UserPromptPart

from benchmarks.command import arguments
from benchmarks.tables import markdown
from context_compiler import ids
from context_compiler.record.store import SQLiteStore
from context_compiler.record.values import Compile, Cycle, Entry
from tests.record.entries import compiled, request

MOVE_EVERY = 20
KEPT = 40
SENT = datetime(2025, 11, 3, 12, 30, tzinfo=UTC)
SESSION = "a-session-of-the-usual-length"
HEAD = ("", "median ms", "p95 ms", "first ms", "disk B/req", "new B/req", "disk/new")


@dataclass
class Chain:
    """A history by ids; if `indexed`, it passes its texts to the search index."""

    indexed: bool = False
    ids: list[str] = field(default_factory=list[str])
    bodies: list[bytes] = field(default_factory=list[bytes])
    texts: list[str] = field(default_factory=list[str])

    def body(self, index: int) -> bytes:
        """Return the JSON of message `index`."""
        return self.bodies[index]

    def text(self, index: int) -> str:
        """Return its text for the search index; empty if not indexed."""
        return self.texts[index] if self.indexed else ""

    def copy(self) -> Chain:
        """Return a chain of its own, to which messages can be added."""
        return Chain(self.indexed, [*self.ids], [*self.bodies], [*self.texts])

    def append(self, texts: Sequence[str], *, answers: int = 0) -> Chain:
        """Add messages, of which the user's are at even positions, or at odd ones if `answers` is 1."""
        for text in texts:
            if (len(self.ids) + answers) % 2:
                message = ModelResponse(parts=[TextPart(content=text)], timestamp=SENT)
            else:
                message = ModelRequest(parts=[UserPromptPart(content=text, timestamp=SENT)])
            self.bodies.append(ModelMessagesTypeAdapter.dump_json([message])[1:-1])
            self.texts.append(text)
            self.ids.append(ids.chain_id(self.ids[-1] if self.ids else None, ids.identity(self.bodies[-1])))
        return self


def prose(draw: random.Random) -> Callable[[], str]:
    letters = string.ascii_lowercase
    words = ["".join(draw.choices(letters, k=draw.randint(2, 10))) for _ in range(3_000)]
    weights = [1 / (rank + 2) for rank in range(len(words))]
    return lambda: " ".join(draw.choices(words, weights, k=draw.randint(35, 330)))


def entries(messages: int, requests: int, text: Callable[[], str], indexed: bool) -> Iterator[tuple[Entry, int]]:
    """Yield the entries of a session, each with the number of its new bytes."""
    raw = Chain(indexed).append([text() for _ in range(messages)])
    written: set[bytes] = set()
    cut, summary, state, compile = 0, "", "", None
    for number in range(requests + 1):
        if number:
            raw = raw.copy().append([text(), text()])
        if number % MOVE_EVERY == 0:
            cut, summary = len(raw.ids) - KEPT, text()
            state = json.dumps({"decided": cut, "summary": summary, "kept": list(range(cut))[-KEPT:]})
            compile = summarised(raw.ids[cut - 1], summary, text(), number)
        view = Chain().append([summary, *raw.texts[cut:]], answers=(cut - 1) % 2)
        cycle = Cycle(tip=raw.ids[cut - 1], config="benchmark", state=state)
        entry = recorded(number, raw, view, compile=compile, cycle=cycle)
        texts = [state, *((compile.compiled_prompt or "", compile.summary or "") if compile else ())]
        new = {*map(str.encode, texts), *raw.bodies, *view.bodies}
        yield entry, sum(map(len, new - written)) + len(repr(entry.record))
        written |= new
        compile = None


def recorded(number: int, raw: Chain, view: Chain, **fields: Any) -> Entry:
    usual = {
        "session_id": SESSION,
        "turn_index": number,
        "run_id": f"0195f3c2-7d11-7cc0-a1b2-{number:012x}",
        "status": "cycle",
        "budget": 16_000,
        "tokens_raw": 500_000 + number,
        "tokens_sent": 15_000,
        "tokens_exact": 15_000,
        "ratio": 1.0,
        "ledger": {"tokens": {"summary": 300, "turns": 14_000}, "kept": {"recent": KEPT}, "dropped": []},
        "tools": None,
    }
    return request(raw, view, **{**usual, **fields})


def summarised(tip: str, summary: str, prompt: str, number: int, session: str = SESSION) -> Compile:
    return compiled(
        tip,
        session_id=session,
        turn_index=number,
        cache_key=ids.text_hash(tip),
        compiled_prompt=prompt * 5,
        raw_output=summary,
        summary=summary,
        summary_json=None,
        input_payload={"raw_tip": tip},
        sections_dropped=(),
        usage={"input_tokens": 4_000, "output_tokens": 300},
    )


async def measure(messages: int, requests: int, text: Callable[[], str], indexed: bool) -> list[str]:
    """Measure one row of the table: times of all saves but the first, and bytes added to the file."""
    with tempfile.TemporaryDirectory() as folder:
        store = SQLiteStore(Path(folder) / "context.db")
        times: list[float] = []
        new = before = 0
        for entry, added in entries(messages, requests, text, indexed):
            start = time.perf_counter()
            await store.save(entry)
            times.append((time.perf_counter() - start) * 1_000)
            if len(times) == 1:
                await store.close()
                before = store.path.stat().st_size
                await store.sessions()
            else:
                new += added
        assert await store.verify() == ()
        await store.close()
        disk = store.path.stat().st_size - before
    figures = (statistics.median(times[1:]), statistics.quantiles(times[1:], n=20)[18], times[0])
    sizes = (f"{disk / requests:,.0f}", f"{new / requests:,.0f}", f"{disk / new:.2f}")
    return [f"{'with' if indexed else 'no'} index", *(f"{value:.2f}" for value in figures), *sizes]


def main() -> None:
    options = arguments(__doc__, messages=2_000, requests=500)
    text = prose(random.Random(1))
    rows = [asyncio.run(measure(options.messages, options.requests, text, indexed)) for indexed in (False, True)]
    print(markdown(HEAD, rows))


if __name__ == "__main__":
    main()
