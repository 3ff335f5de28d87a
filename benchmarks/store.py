"""Cost of recording a request: time per save, and bytes on disk relative to new bytes.

    python -m benchmarks.store [--messages 2000] [--requests 500]

A history of `--messages` messages grows by two per request. Every view has a summary and the messages after its cut,
at least forty; it moves its cut every twenty requests, and has a ledger and a cycle. Messages have 200 to 2,000
characters: either prose from three thousand words, which compresses like English, or random letters, which hardly
compress at all.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import string
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    UserPromptPart,
)

from benchmarks.tables import markdown
from context_compiler import ids
from context_compiler.record.store import SQLiteStore
from context_compiler.record.values import Compile, Cycle, Entry, Record

MOVE_EVERY = 20
KEPT = 40
SENT = datetime(2025, 11, 3, 12, 30, tzinfo=UTC)


@dataclass
class Chain:
    """A history by ids; if `indexed`, it passes its texts to the search index."""

    ids: list[str]
    bodies: list[bytes]
    texts: list[str]
    indexed: bool

    def body(self, index: int) -> bytes:
        """Return the JSON of message `index`."""
        return self.bodies[index]

    def text(self, index: int) -> str:
        """Return its text for the search index; empty if not indexed."""
        return self.texts[index] if self.indexed else ""


def chain(texts: Sequence[str], first: int, indexed: bool) -> Chain:
    """Build the chain of texts; the parity of `first`, the position of the first text, sets its role."""
    return linked([body(text, first + position) for position, text in enumerate(texts)], texts, indexed)


def linked(bodies: Sequence[bytes], texts: Sequence[str], indexed: bool) -> Chain:
    """Build the chain of messages from their JSON and their texts for the search index."""
    names: list[str] = []
    for one in bodies:
        names.append(ids.chain_id(names[-1] if names else None, ids.identity(one)))
    return Chain(names, list(bodies), list(texts), indexed)


def grown(base: Chain, texts: Sequence[str]) -> Chain:
    """Return a chain extended by the given texts."""
    made = Chain([*base.ids], [*base.bodies], [*base.texts], base.indexed)
    append(made, texts)
    return made


def append(chain: Chain, texts: Sequence[str]) -> None:
    """Extend a chain by the given texts."""
    for text in texts:
        chain.bodies.append(body(text, len(chain.bodies)))
        chain.texts.append(text)
        chain.ids.append(ids.chain_id(chain.ids[-1] if chain.ids else None, ids.identity(chain.bodies[-1])))


def body(text: str, at: int) -> bytes:
    prompt = UserPromptPart(content=text, timestamp=SENT)
    message: ModelMessage = (
        ModelResponse(parts=[TextPart(content=text)], timestamp=SENT) if at % 2 else ModelRequest(parts=[prompt])
    )
    return ModelMessagesTypeAdapter.dump_json([message])[1:-1]


def prose(draw: random.Random) -> Callable[[], str]:
    letters = string.ascii_lowercase
    words = ["".join(draw.choices(letters, k=draw.randint(2, 10))) for _ in range(3_000)]
    weights = [1 / (rank + 2) for rank in range(len(words))]
    return lambda: " ".join(draw.choices(words, weights, k=draw.randint(35, 330)))


def noise(draw: random.Random) -> Callable[[], str]:
    return lambda: "".join(draw.choices(string.ascii_letters + string.digits, k=draw.randint(200, 2_000)))


def entries(messages: int, requests: int, text: Callable[[], str], indexed: bool) -> Iterator[tuple[Entry, int]]:
    """Yield the entries of a session, each with the number of its new bytes."""
    raw = chain([text() for _ in range(messages)], 0, indexed)
    known: set[bytes] = set()
    cut, summary, state, made = 0, "", "", None
    for at in range(requests + 1):
        if at:
            raw = grown(raw, [text(), text()])
        if at % MOVE_EVERY == 0:
            cut, summary = len(raw.ids) - KEPT, text()
            state = json.dumps({"decided": cut, "summary": summary, "kept": list(range(cut))[-KEPT:]})
            made = compiled(raw.ids[cut - 1], summary, text(), at)
        view = chain([summary, *raw.texts[cut:]], cut - 1, False)
        record = recorded(at, raw, view)
        entry = Entry(
            record=record,
            raw=raw,
            view=view,
            compile=made,
            cycle=Cycle(tip=raw.ids[cut - 1], config="benchmark", state=state),
        )
        texts = [state.encode(), *(made.compiled_prompt or "", made.summary or "")] if made else [state.encode()]
        new = {one if isinstance(one, bytes) else one.encode() for one in texts} | {*raw.bodies, *view.bodies}
        yield entry, sum(map(len, new - known)) + len(repr(record))
        known |= new
        made = None


def recorded(at: int, raw: Chain, view: Chain) -> Record:
    return Record(
        session_id="a-session-of-the-usual-length",
        vault_name="",
        turn_index=at,
        run_id=f"0195f3c2-7d11-7cc0-a1b2-{at:012x}",
        request_index=0,
        raw_tip=raw.ids[-1],
        view_tip=view.ids[-1],
        status="cycle",
        error=None,
        budget=16_000,
        tokens_raw=500_000 + at,
        tokens_sent=15_000,
        tokens_exact=15_000,
        ratio=1.0,
        ledger={"tokens": {"summary": 300, "turns": 14_000}, "kept": {"recent": KEPT}, "dropped": []},
        request_hash=ids.text_hash("instructions"),
        latency_ms=1.25,
        created_at=datetime.now(UTC),
    )


def compiled(tip: str, summary: str, prompt: str, at: int) -> Compile:
    return Compile(
        session_id="a-session-of-the-usual-length",
        vault_name="",
        turn_index=at,
        run_id=None,
        covered_tip=tip,
        cache_key=ids.text_hash(tip),
        template_name="chat_compiler",
        template_source="builtin",
        template_path=None,
        template_hash=ids.text_hash("template"),
        fidelity="summary:medium",
        model_alias="test",
        compiled_prompt=prompt * 5,
        raw_output=summary,
        summary=summary,
        summary_json=None,
        input_payload={"raw_tip": tip},
        sections_included=("constraints", "recent_turns"),
        sections_dropped=(),
        budget_used=300,
        survival=None,
        latency_ms=900.0,
        usage={"input_tokens": 4_000, "output_tokens": 300},
        status="ok",
        error=None,
        created_at=datetime.now(UTC),
    )


async def measure(messages: int, requests: int, text: Callable[[], str], indexed: bool) -> list[str]:
    """Measure one line of the table: times of all saves but the first, and bytes added to the file."""
    with tempfile.TemporaryDirectory() as folder:
        store = SQLiteStore(Path(folder) / "context.db")
        times: list[float] = []
        names: list[str] = []
        new = before = 0
        first = 0.0
        for entry, added in entries(messages, requests, text, indexed):
            names = list(entry.raw.ids) if entry.raw else names
            start = time.perf_counter()
            await store.save(entry)
            times.append((time.perf_counter() - start) * 1_000)
            if len(times) == 1:
                await store.close()
                first, before = times[0], store.path.stat().st_size
                await store.sessions()
            else:
                new += added
        start = time.perf_counter()
        await store.find_cycle(names, "benchmark")
        found = (time.perf_counter() - start) * 1_000
        assert await store.verify() == ()
        await store.close()
        disk = store.path.stat().st_size - before
        spread = statistics.quantiles(times[1:], n=20)
        figures = (statistics.median(times[1:]), spread[18], max(times[1:]), first, found)
        return [
            *(f"{value:.2f}" for value in figures),
            f"{disk / requests:,.0f}",
            f"{new / requests:,.0f}",
            f"{disk / new:.2f}",
        ]


HEAD = ("median ms", "p95 ms", "max ms", "first ms", "find ms", "disk B/req", "new B/req", "disk/new")


async def rows(messages: int, requests: int) -> list[list[str]]:
    """Measure every kind of text, with the search index and without."""
    lines: list[list[str]] = []
    for name, text in (("prose", prose(random.Random(1))), ("noise", noise(random.Random(1)))):
        for indexed in (False, True):
            figures = await measure(messages, requests, text, indexed)
            lines.append([f"{name}, {'with' if indexed else 'no'} index", *figures])
    return lines


async def main() -> None:
    parser = argparse.ArgumentParser(description="Time and disk space to record a request.")
    parser.add_argument("--messages", type=int, default=2_000)
    parser.add_argument("--requests", type=int, default=500)
    given = parser.parse_args()
    print(markdown(["", *HEAD], await rows(given.messages, given.requests)))


if __name__ == "__main__":
    asyncio.run(main())
