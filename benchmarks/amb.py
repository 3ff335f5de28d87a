"""This package as a memory of the Agent Memory Benchmark (github.com/vectorize-io/agent-memory-benchmark).

    python -m benchmarks.amb run --dataset locomo --split locomo10 --memory context-compiler     # needs that package
    python -m benchmarks.amb run --dataset locomo --split locomo10 --memory context-compiler --mode agent
    python -m benchmarks.amb try conversations.json            # needs neither the package nor a key

The first two commands are the command line of that benchmark with this memory added. The benchmark needs its own API
key for answers and verdicts; `--mode agent` also needs one for the model in CONTEXT_COMPILER_AMB_MODEL. An agent with
`ContextCompiler` runs every session of a conversation turn by turn and gives the recorded answers. The request that it
sends when a question is asked, within CONTEXT_COMPILER_AMB_BUDGET tokens, is the context from which a model answers
(`rag`), or the agent answers itself (`agent`). `try` reads a file in LoCoMo's format and uses a script instead of
models: an answer is right if every word of the expected answer is in the context.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models import Model

from benchmarks.lived import shown
from benchmarks.lives import AgentLife
from context_compiler import ContextCompiler

NAME = "context-compiler"
MODEL = "anthropic:claude-haiku-5-5"
BUDGET = 8_000
INSTRUCTIONS = "Answer the question from this conversation, concisely. Say so if it does not tell."
DATE = "%I:%M %p on %d %B, %Y"
"""LoCoMo's date format for sessions."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """One session of a conversation, with the same fields as the benchmark's document."""

    id: str
    content: str
    user_id: str | None = None
    messages: list[dict[str, Any]] | None = None
    timestamp: str | None = None
    context: str | None = None


class Memory:
    """Conversations that a live agent has run, by user.

    It has the methods of the benchmark's `MemoryProvider`, with the same parameters and return values.
    """

    name = NAME
    description = "Requests of a live agent whose history pydantic-ai-context-compiler keeps within a token budget."
    kind = "local"
    link = "https://pypi.org/project/pydantic-ai-context-compiler/"
    concurrency = 1
    document: Any = Document

    def __init__(self, *, budget: int | None = None, model: Model | str | None = None, writer: Any = "none") -> None:
        """Create a memory; `model` answers in the mode `agent`, `writer` writes summaries."""
        self._model = model or os.environ.get("CONTEXT_COMPILER_AMB_MODEL", MODEL)
        tokens = budget or int(os.environ.get("CONTEXT_COMPILER_AMB_BUDGET", BUDGET))
        self._compiler = ContextCompiler(budget=tokens, model=writer, store=None, system=None)
        self._lives: dict[str | None, AgentLife] = {}

    def ingest(self, documents: Sequence[Any]) -> None:
        """Run sessions through the agent, in the order of their timestamps."""
        asyncio.run(self.async_ingest(documents))

    async def async_ingest(self, documents: Sequence[Any]) -> None:
        """Async version of the method above."""
        for document in sorted(documents, key=lambda one: one.timestamp or ""):
            life = self._lives.setdefault(document.user_id, AgentLife([self._compiler]))
            for said, answered in turns(document):
                prompt = ModelRequest(parts=[UserPromptPart(said)])
                await life.turn(prompt, [ModelResponse(parts=[TextPart(answered)])])

    def retrieve(
        self, query: str, k: int = 10, user_id: str | None = None, query_timestamp: str | None = None
    ) -> tuple[list[Any], None]:
        """Return the request that the agent would send for this query; its size depends on the budget, not on `k`."""
        return asyncio.run(self.async_retrieve(query, k, user_id, query_timestamp))

    async def async_retrieve(
        self, query: str, k: int = 10, user_id: str | None = None, query_timestamp: str | None = None
    ) -> tuple[list[Any], None]:
        """Async version of the method above."""
        life = self._lives.get(user_id)
        if life is None:
            return [], None
        stored = life.stored
        [sent] = await life.turn(ModelRequest(parts=[UserPromptPart(query)]), [ModelResponse(parts=[TextPart("…")])])
        life.start(stored)
        return [self.document(id=f"{user_id} view", content=shown(sent, query), user_id=user_id)], None

    def direct_answer(
        self, query: str, user_id: str | None = None, query_timestamp: str | None = None
    ) -> tuple[str, str, None]:
        """Return the answer of an agent with its own model, and the context that it had."""
        return asyncio.run(self.async_direct_answer(query, user_id, query_timestamp))

    async def async_direct_answer(
        self, query: str, user_id: str | None = None, query_timestamp: str | None = None
    ) -> tuple[str, str, None]:
        """Async version of the method above."""
        agent = Agent(self._model, capabilities=[self._compiler], instructions=INSTRUCTIONS)
        stored = self._lives[user_id].stored if user_id in self._lives else []
        asked = f"{query}\n(It is {query_timestamp}.)" if query_timestamp else query
        answer = (await agent.run(asked, message_history=stored)).output
        view = self._compiler.last_view
        return answer, shown(view.messages, asked) if view is not None else "", None


def turns(document: Any) -> Iterator[tuple[str, str]]:
    """Yield a session as prompts and answers; the first prompt begins with the date."""
    day = f"[{document.timestamp[:16].replace('T', ' ')}]\n" if document.timestamp else ""
    groups = [
        (own, "\n".join(text for _, text in group)) for own, group in groupby(spoken(document), lambda line: line[0])
    ]
    if groups and not groups[0][0]:
        groups.insert(0, (True, "Hello."))
    for at in range(0, len(groups), 2):
        yield day + groups[at][1], groups[at + 1][1] if at + 1 < len(groups) else "I see."
        day = ""


def spoken(document: Any) -> Iterator[tuple[bool, str]]:
    """Yield the lines of a session: True if the user speaks, and the text.

    Reads structured messages, LoCoMo's turns, or plain text. In LoCoMo, the first speaker is the user.
    """
    if document.messages:
        yield from ((one.get("role") != "assistant", str(one.get("content", ""))) for one in document.messages)
        return
    try:
        given: Any = json.loads(document.content)
    except ValueError:
        given = None
    if not isinstance(given, list):
        yield True, document.content
        return
    for one in given:
        shows = f" [shows {one['blip_caption']}]" if one.get("blip_caption") else ""
        yield one["speaker"] == given[0]["speaker"], f"{one['speaker']}: {one['text']}{shows}"


def locomo(path: Path) -> Iterator[tuple[list[Document], list[tuple[str, str]]]]:
    """Yield the sessions of each conversation of a file, and its questions with answers, as the benchmark has them."""
    for sample in json.loads(path.read_text(encoding="utf-8")):
        said, name = sample["conversation"], sample["sample_id"]
        sessions = sorted((key for key in said if re.fullmatch(r"session_\d+", key)), key=lambda key: int(key[8:]))
        yield (
            [
                Document(
                    id=f"{name}_{key}",
                    content=json.dumps(said[key]),
                    user_id=name,
                    timestamp=_when(said.get(f"{key}_date_time")),
                )
                for key in sessions
            ],
            [(one["question"], str(one["answer"])) for one in sample.get("qa", ()) if one.get("category") != 5],
        )


def _when(text: str | None) -> str | None:
    return datetime.strptime(text, DATE).replace(tzinfo=UTC).isoformat() if text else None


def right(answer: str, text: str) -> bool:
    """True if every word of the expected answer is in the text."""
    there = set(re.findall(r"\w+", text.casefold()))
    return set(re.findall(r"\w+", answer.casefold())) <= there


async def score(path: Path, memory: Memory) -> tuple[int, int]:
    """Return how many questions of a file in LoCoMo's format are answered in the context, and how many there are."""
    verdicts: list[bool] = []
    for documents, asked in locomo(path):
        await memory.async_ingest(documents)
        for question, answer in asked:
            [found], _ = await memory.async_retrieve(question, user_id=documents[0].user_id)
            verdicts.append(right(answer, found.content))
    return sum(verdicts), len(verdicts)


def register() -> None:
    """Register this memory with the benchmark.

    Raises:
        ImportError: The benchmark is not installed.
    """
    base, known = import_module("memory_bench.memory.base"), import_module("memory_bench.memory")
    document = import_module("memory_bench.models").Document
    known.REGISTRY[NAME] = type("ContextCompilerMemory", (Memory, base.MemoryProvider), {"document": document})


def main() -> None:
    """Run the command line of the benchmark, or the script."""
    if sys.argv[1:2] == ["try"]:
        correct, asked = asyncio.run(score(Path(sys.argv[2]), Memory()))
        print(f"{correct} of {asked} answers are in the context")
    elif find_spec("memory_bench") is None:
        print("memory_bench is not installed: see docs/benchmarks/others.md", file=sys.stderr)
        sys.exit(2)
    else:
        register()
        import_module("memory_bench.cli").app()


if __name__ == "__main__":
    main()
