"""Time to load windows of a long conversation from the host's store, and to recall across one owner's conversations.

    python -m benchmarks.windows [--messages 20000] [--conversations 300] [--postgres]

`RecordConversationStore` saves every conversation in a new file, or in a new PostgreSQL cluster. A window is the last
eight messages, loaded repeatedly; then one turn is saved. Then a separate conversation asks questions, each about a
number from one of the others: the first questions read and index the conversations, the later ones only search.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart

from benchmarks.postgres import own_cluster
from context_compiler import RecordConversationStore
from context_compiler.middleware.others import other_mentions

WINDOW, ROUNDS, TALK = 8, 200, 40


def talk(start: int, count: int) -> list[ModelMessage]:
    """Build messages of a conversation about numbers."""
    texts = [
        f"message {at} about plan {start * 7 + at} of the quarter, and topic {at % 31} of the town"
        for at in range(count)
    ]
    return [
        ModelRequest(parts=[UserPromptPart(text)]) if at % 2 == 0 else ModelResponse(parts=[TextPart(text)])
        for at, text in enumerate(texts)
    ]


async def timed(work: Callable[[int], Awaitable[Any]], rounds: int) -> list[float]:
    """Return the milliseconds of each round."""
    found: list[float] = []
    for number in range(rounds):
        begun = time.perf_counter()
        await work(number)
        found.append(1_000 * (time.perf_counter() - begun))
    return found


def line(what: str, times: list[float]) -> str:
    """Format the median and the slowest tenth as a line."""
    slow = statistics.quantiles(times, n=10)[-1]
    return f"{what:<52} median {statistics.median(times):8.2f} ms   slowest tenth from {slow:8.2f} ms"


async def measure(messages: int, conversations: int, path: Path | str) -> None:
    """Measure and print the table."""
    store = RecordConversationStore(path)
    await store.save(Conversation(conversation_id="long", messages=talk(0, messages)))
    print(line(f"window of {WINDOW} of {messages:,} messages", await timed(lambda _: _window(store), ROUNDS)))
    print(line("one turn saved after it", await timed(lambda _: _turn(store), ROUNDS)))
    for number in range(conversations):
        await store.save(Conversation(conversation_id=f"talk {number}", messages=talk(number, TALK)))
    scoped = store.store.scoped("")

    async def ask(number: int) -> None:
        await other_mentions(scoped, "now", f"What was said about plan {number * 11}?")

    first = await timed(ask, 40)
    print(line(f"recall across {conversations:,} conversations, the first 20 prompts", first[:20]))
    print(line("the next 20 prompts", first[20:]))
    await store.close()


async def _window(store: RecordConversationStore) -> None:
    assert await store.load("long", limit=WINDOW)


async def _turn(store: RecordConversationStore) -> None:
    window = await store.load("long", limit=WINDOW)
    assert window is not None
    window.messages += talk(1, 2)
    await store.save(window)


def main() -> None:
    """Read the arguments and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--conversations", type=int, default=300)
    parser.add_argument("--postgres", action="store_true")
    given = parser.parse_args()
    if given.postgres:
        with own_cluster() as cluster:
            asyncio.run(measure(given.messages, given.conversations, cluster.url()))
        return
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(given.messages, given.conversations, Path(folder) / "context.db"))


if __name__ == "__main__":
    main()
