"""Providers' own context management compared with this package, in a session against a loopback server.

    python -m benchmarks.native [--budget 6000] [--turns 150]

The server implements Anthropic's Messages with `clear_tool_uses_20250919` and `compact_20260112`, and OpenAI's
Responses with `compaction`. Above the budget, the first empties all tool results but the last three. The other two
replace everything before the current turn with a summary, and ignore anything before a summary in later requests. The
server notes what the model then sees.

In every second turn a tool returns a long text. Users and tools state facts in passing, and every sixth turn asks for a
fact that is at least eight turns old. All summaries are the same text without facts.

`held`: share of the facts that the model sees when they are asked for; `sent`: tokens of a request as uploaded; `seen`:
tokens as the model sees it; `over`: requests in which it sees more than the budget; `edits`: requests that the provider
changed; `cost`: tokens that the model sees, cached beginnings at a tenth, plus the passes that write summaries,
relative to sending everything.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from statistics import fmean
from typing import Any

from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient
from openai import AsyncOpenAI
from openai import DefaultAsyncHttpxClient as OpenAIClient
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicCompaction, AnthropicModel
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.openai import OpenAICompaction, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from benchmarks.tables import markdown
from context_compiler import ContextCompiler
from context_compiler.tokens import TokenCounter

SUMMARY = "The user and the assistant went through several parts of the work, one after the other. " * 12
CLEARED = "[Old tool result content cleared]"
WORDS = (
    "harbour lantern meadow copper violin saddle orchard granite feather candle marble thicket canyon ribbon".split()
)
KEEP = 3
"""Tool uses that context editing keeps by default."""
CACHED = 0.1
AGO = 8
"""Minimum age in turns of a fact that is asked for."""

_counter = TokenCounter()
Blocks = list[tuple[str, str]]
"""Kind and text of each block that a model sees."""


@dataclass(slots=True, kw_only=True)
class Seen:
    """Figures of a session."""

    sent: list[int] = field(default_factory=list[int])
    seen: list[int] = field(default_factory=list[int])
    cost: float = 0.0
    held: list[bool] = field(default_factory=list[bool])
    edits: int = 0
    """Requests in which the provider cleared or summarised something."""
    last: Blocks = field(default_factory=list[tuple[str, str]])

    def charge(self, sent: int, blocks: Blocks) -> None:
        """Count a request."""
        same = next(
            (at for at, (one, two) in enumerate(zip(self.last, blocks, strict=False)) if one != two),
            min(len(self.last), len(blocks)),
        )
        tokens = [_counter.text(text) for _, text in blocks]
        self.sent.append(sent)
        self.seen.append(sum(tokens))
        self.cost += CACHED * sum(tokens[:same]) + sum(tokens[same:])
        self.last = blocks


class Provider:
    """Simulated provider that answers in both formats."""

    def __init__(self, seen: Seen, script: Callable[[], str | None]) -> None:
        """Create a provider; `script` returns a path to look at, or None for a final answer."""
        self.seen, self._script, self._ids = seen, script, iter(range(1, 1_000_000))

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the response to a request."""
        return self._anthropic(body) if path.startswith("/v1/messages") else self._openai(body)

    def _anthropic(self, body: dict[str, Any]) -> dict[str, Any]:
        blocks = [(one, message["role"]) for message in body["messages"] for one in _listed(message["content"])]
        start = max((at for at, (one, _) in enumerate(blocks) if one["type"] == "compaction"), default=0)
        read = [_anthropic_block(one, role) for one, role in blocks[start:]]
        sent = _size([_anthropic_block(one, role) for one, role in blocks])
        content: list[dict[str, Any]] = []
        for edit in (body.get("context_management") or {}).get("edits", ()):
            if _size(read) <= edit["trigger"]["value"]:
                continue
            if edit["type"].startswith("clear_tool_uses"):
                read = self._clear(read, edit.get("keep", {}).get("value", KEEP))
            else:
                self.seen.cost += CACHED * _size(read) + _counter.text(SUMMARY)
                content.append({"type": "compaction", "content": SUMMARY})
                read = [("compaction", SUMMARY), *_current(read)]
                self.seen.edits += 1
        self.seen.charge(sent, read)
        wanted = self._script()
        content.append(
            {"type": "text", "text": "I see."}
            if wanted is None
            else {"type": "tool_use", "id": f"toolu_{next(self._ids)}", "name": "look", "input": {"path": wanted}}
        )
        return {
            "id": f"msg_{next(self._ids)}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": content,
            "stop_reason": "end_turn" if wanted is None else "tool_use",
            "stop_sequence": None,
            "usage": {"input_tokens": _size(read), "output_tokens": 5},
        }

    def _clear(self, read: Blocks, keep: int) -> Blocks:
        results = [at for at, (kind, text) in enumerate(read) if kind == "tool_result"]
        old = set(results[: len(results) - keep])
        self.seen.edits += any(read[at][1] != CLEARED for at in old)
        return [(kind, CLEARED if at in old else text) for at, (kind, text) in enumerate(read)]

    def _openai(self, body: dict[str, Any]) -> dict[str, Any]:
        items: list[dict[str, Any]] = body["input"]
        start = max((at for at, one in enumerate(items) if one.get("type") == "compaction"), default=0)
        read = [_openai_block(one) for one in items[start:]]
        sent, output = _size([_openai_block(one) for one in items]), list[dict[str, Any]]()
        for edit in body.get("context_management") or ():
            if _size(read) > edit["compact_threshold"]:
                self.seen.cost += CACHED * _size(read) + _counter.text(SUMMARY)
                output.append({"type": "compaction", "id": f"cmp_{next(self._ids)}", "encrypted_content": "opaque"})
                read = [("compaction", SUMMARY), *_current(read)]
                self.seen.edits += 1
        self.seen.charge(sent, read)
        wanted, number = self._script(), next(self._ids)
        text = {"type": "output_text", "text": "I see.", "annotations": []}
        said = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed", "content": [text]}
        call = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "name": "look"}
        call |= {"arguments": json.dumps({"path": wanted}), "status": "completed"}
        details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        return {
            "id": f"resp_{number}",
            "object": "response",
            "created_at": 0,
            "model": body["model"],
            "output": [*output, said if wanted is None else call],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "status": "completed",
            "usage": {"input_tokens": _size(read), "output_tokens": 5, "total_tokens": _size(read) + 5, **details},
        }


def _listed(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _anthropic_block(one: dict[str, Any], role: str) -> tuple[str, str]:
    kind = one["type"]
    if kind == "tool_result":
        return kind, "".join(part.get("text", "") for part in _listed(one.get("content") or ""))
    if kind == "tool_use":
        return kind, json.dumps(one["input"])
    if kind == "compaction":
        return kind, SUMMARY
    return f"{role} {kind}", str(one.get("text", ""))


def _openai_block(one: dict[str, Any]) -> tuple[str, str]:
    kind = one.get("type") or f"{one.get('role')} text"
    if kind == "compaction":
        return kind, SUMMARY
    if kind == "function_call":
        return "tool_use", str(one["arguments"])
    if kind == "function_call_output":
        return "tool_result", str(one["output"])
    content = one.get("content") or ""
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    return f"{one.get('role')} text", text


def _current(read: Blocks) -> Blocks:
    """Return the blocks of the current turn, which a summary leaves unchanged."""
    start = max((at for at, (kind, _) in enumerate(read) if kind == "user text"), default=len(read) - 1)
    return read[start:]


def _size(blocks: Sequence[tuple[str, str]]) -> int:
    return sum(_counter.text(text) for _, text in blocks)


@contextmanager
def serve(provider: Provider) -> Iterator[str]:
    """Yield the address of a loopback server that answers like a provider."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            """Answer one request."""
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            given = json.dumps(provider.answer(self.path, body)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(given)))
            self.end_headers()
            self.wfile.write(given)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def anthropic_model(address: str) -> tuple[Any, Model]:
    client = AsyncAnthropic(
        base_url=address, api_key="none", max_retries=0, http_client=DefaultAsyncHttpxClient(trust_env=False)
    )
    return client, AnthropicModel("claude-sonnet-4-6", provider=AnthropicProvider(anthropic_client=client))


def openai_model(address: str) -> tuple[Any, Model]:
    client = AsyncOpenAI(
        base_url=f"{address}/v1", api_key="none", max_retries=0, http_client=OpenAIClient(trust_env=False)
    )
    return client, OpenAIResponsesModel("gpt-5", provider=OpenAIProvider(openai_client=client))


def bland() -> Model:
    """Build a model that writes the same summary as the providers."""

    async def write(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart(SUMMARY)])

    return FunctionModel(write)


def clearing(budget: int) -> dict[str, Any]:
    """Return settings for Anthropic's context editing."""
    trigger = {"type": "input_tokens", "value": budget}
    return {"anthropic_context_management": {"edits": [{"type": "clear_tool_uses_20250919", "trigger": trigger}]}}


def compiling(budget: int) -> ContextCompiler:
    return ContextCompiler(budget=budget, model=bland(), record="off", system=None)


Build = Callable[[int], tuple[list[Any], dict[str, Any]]]
"""Capabilities and model settings for a budget."""

APPROACHES: dict[str, tuple[Callable[[str], tuple[Any, Model]], Build]] = {
    "everything": (anthropic_model, lambda budget: ([], {})),
    "Anthropic, context editing": (anthropic_model, lambda budget: ([], clearing(budget))),
    "Anthropic, compaction": (anthropic_model, lambda budget: ([AnthropicCompaction(token_threshold=budget)], {})),
    "OpenAI, compaction": (openai_model, lambda budget: ([OpenAICompaction(token_threshold=budget)], {})),
    "this package": (anthropic_model, lambda budget: ([compiling(budget)], {})),
    "this package, OpenAI": (openai_model, lambda budget: ([compiling(budget)], {})),
    "this package and context editing": (anthropic_model, lambda budget: ([compiling(budget)], clearing(budget))),
    "this package and compaction": (
        anthropic_model,
        lambda budget: ([compiling(budget), AnthropicCompaction(token_threshold=budget)], {}),
    ),
}


def _prose(dice: random.Random, words: int) -> str:
    return " ".join(dice.choice(WORDS) for _ in range(words))


async def live(name: str, budget: int, turns: int, *, seed: int = 7) -> Seen:
    """Run a session with one approach."""
    dice, seen, wanted = random.Random(seed), Seen(), list[str | None]()
    provider = Provider(seen, lambda: wanted.pop() if wanted else None)
    facts: list[tuple[int, str, str]] = []
    connected, build = APPROACHES[name]
    capabilities, settings = build(budget)
    texts: dict[str, str] = {}

    def look(path: str) -> str:
        """Look at a file."""
        return texts[path]

    with serve(provider) as address:
        client, model = connected(address)
        settings = {"max_tokens": 1_000, **settings}
        agent = Agent(model, tools=[look], capabilities=capabilities, model_settings=settings)
        history: list[ModelMessage] = []
        for turn in range(turns):
            value, place = f"{dice.choice(WORDS)}-{dice.randrange(1000, 9999)}", f"src/part_{turn}.toml"
            old = [fact for fact in facts if fact[0] <= turn - AGO]
            asks = turn % 6 == 5 and bool(old)
            if asks:
                _, thing, answer = dice.choice(old)
                prompt = f"What is the value of {thing}?"
            else:
                thing = f"setting_{turn}"
                prompt = f"{_prose(dice, 30)}. The value of {thing} is {value}." if turn % 2 else _prose(dice, 30)
                answer = ""
                if turn % 2 == 0:
                    middle = f"\nThe value of {thing} is {value}.\n"
                    texts[place] = _prose(dice, 150) + middle + _prose(dice, 150)
                    wanted.append(place)
                facts.append((turn, thing, value))
            history = (await agent.run(prompt, message_history=history)).all_messages()
            if asks:
                seen.held.append(any(answer in text for _, text in seen.last))
        await client.close()
    return seen


def table(budget: int, turns: int) -> str:
    """Build the table, one row per approach."""
    found = {name: asyncio.run(live(name, budget, turns)) for name in APPROACHES}
    whole = found["everything"].cost
    rows = [
        (
            name,
            f"{fmean(one.sent):,.0f}",
            f"{fmean(one.seen):,.0f}",
            f"{max(one.seen):,}",
            str(sum(tokens > budget for tokens in one.seen)),
            str(one.edits),
            f"{one.cost / whole:.2f}",
            f"{100 * fmean(one.held):.0f} %",
        )
        for name, one in found.items()
    ]
    return markdown(("", "sent", "seen", "at most", "over", "edits", "cost", "held"), rows)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--budget", type=int, default=6_000)
    parser.add_argument("--turns", type=int, default=150)
    given = parser.parse_args()
    os.environ["NO_PROXY"] = "127.0.0.1"
    print(table(given.budget, given.turns))


if __name__ == "__main__":
    main()
