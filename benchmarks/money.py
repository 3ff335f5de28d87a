"""Cost of sessions in dollars: the input as sent, everything with the same cache, and the compiles.

    python -m benchmarks.money [--data locomo] [--budget 4000] [--most 3] [--jobs 2] [--model openai:gpt-5]

Conversations run turn by turn. Tokens are counted in o200k for all models, so only prices differ. `sent` and
`everything` are input as recorded (`record.costs`): the part that a request shares with the previous one costs the
provider's price for cached tokens. `compiles` are summaries by the same model, or by a small one of the same provider:
the real prompts, and scripted answers of 230 tokens.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from benchmarks.data import GENERATED, at_hand
from benchmarks.lived import conversations, life_of, script_of, turns_of
from benchmarks.peers.baselines import READER
from benchmarks.recall import Conversation
from benchmarks.tables import markdown
from benchmarks.waiting import NOTES, SETS
from context_compiler import ContextCompiler, View
from context_compiler.tokens import as_counter
from context_compiler.tokens.prices import Price, dollars, price_of

MODELS = {
    "openai:gpt-5": "openai:gpt-5-nano",
    "anthropic:claude-sonnet-5-5": "anthropic:claude-haiku-5-5",
    "google-gla:gemini-2.5-pro": "google-gla:gemini-2.5-flash-lite",
}
"""Models, each with a small model of the same provider."""


WAYS: dict[str, dict[str, Any]] = {"default": {}, '`model="none"`': {"model": "none"}, "`recall=0`": {"recall": 0}}
HEAD = (
    *("", "", "sessions · requests · compiles", "model", "sent", "everything", "compiles", "by a small model"),
    "sent and compiles against everything",
)


@dataclass(slots=True, kw_only=True)
class Tokens:
    """Token counts of sessions, by request and by compile."""

    sessions: int = 0
    sent: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """For each request as sent: its tokens, and how many of them are cached."""
    everything: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    compiles: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """For each compile: input tokens and output tokens."""

    def add(self, other: Tokens) -> None:
        """Add other sessions."""
        self.sessions += other.sessions
        self.sent += other.sent
        self.everything += other.everything
        self.compiles += other.compiles

    def input_cost(self, model: str) -> tuple[Decimal, Decimal]:
        """Return the cost in US dollars of the input as sent, and of everything."""
        price = known(model)
        return (
            sum((price.cost(tokens, cached=cached) for tokens, cached in self.sent), Decimal(0)),
            sum((price.cost(tokens, cached=cached) for tokens, cached in self.everything), Decimal(0)),
        )

    def compile_cost(self, model: str) -> Decimal:
        """Return the cost in US dollars of the compiles."""
        return sum((known(model).cost(given, output=told) for given, told in self.compiles), Decimal(0))


def known(model: str) -> Price:
    """Return the price of a model; exit if it is unknown."""
    price = price_of(model)
    if price is None:
        raise SystemExit(f"no price is known for {model}")
    return price


async def live(conversation: Conversation, budget: int, **given: Any) -> Tokens:
    """Run one conversation; `given` are arguments of `ContextCompiler`."""
    done, count = Tokens(sessions=1), as_counter(None).text

    async def write(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        tokens = sum(READER.one(message).tokens for message in messages) + count(info.instructions or "")
        done.compiles.append((tokens, count(NOTES)))
        return ModelResponse(parts=[TextPart(NOTES)], usage=RequestUsage(input_tokens=tokens, output_tokens=1))

    def note(view: View) -> None:
        record = view.record
        facts: Any = record.ledger["price"] if record is not None else {}
        if record is not None:
            done.sent.append((record.tokens_sent, facts["cached"]))
            done.everything.append((record.tokens_raw, facts["cached_raw"]))

    wanted: dict[str, Any] = {"model": FunctionModel(write), "record": "off", "system": None} | given
    compiler = ContextCompiler(budget=budget, on_view=note, **wanted)
    life = life_of(conversation, compiler)
    for number, turn in enumerate(turns_of(conversation)[1], 1):
        await life.turn(turn.prompt, script_of(turn, "plain", number))
    return done


def measure(conversation: Conversation, budget: int, given: dict[str, Any]) -> Tokens:
    """Run one conversation; called in a worker process."""
    return asyncio.run(live(conversation, budget, **given))


def rows(name: str, way: str, tokens: Tokens, models: Sequence[str]) -> list[list[str]]:
    """Build a row for each model, in dollars per session."""
    found: list[list[str]] = []
    for model in models:
        sent, everything = (amount / tokens.sessions for amount in tokens.input_cost(model))
        large = tokens.compile_cost(model) / tokens.sessions
        small = tokens.compile_cost(MODELS[model]) / tokens.sessions if model in MODELS else None
        shown = [dollars(sent), dollars(everything), dollars(large), "–" if small is None else dollars(small)]
        shares = [f"{(sent + more) / everything:.2f}" for more in (large, small) if more is not None]
        size = f"{tokens.sessions} · {len(tokens.sent):,} · {len(tokens.compiles):,}"
        found.append([name, way, size, model.partition(":")[2], *shown, " / ".join(shares)])
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", choices=sorted(SETS), help="default: all")
    parser.add_argument("--budget", type=int)
    parser.add_argument("--most", type=int, help="maximum number of conversations of a set")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--model", action="append", help="such as openai:gpt-5; may be repeated; default: three models")
    given = parser.parse_args()
    data, models = at_hand(False, 1), given.model or list(MODELS)
    sets = {name: given.budget or budget for name, budget in SETS.items() if given.data in (None, name)}
    if data.folder is None:
        sets = {GENERATED: given.budget or 600}
    done: list[list[str]] = []
    with ProcessPoolExecutor(given.jobs) as pool:
        for name, budget in sets.items():
            found = conversations(data, name, budget)[: given.most]
            for way, chosen in WAYS.items():
                tokens = Tokens()
                for one in pool.map(partial(measure, budget=budget, given=chosen), found):
                    tokens.add(one)
                done += rows(f"{name}, {budget:,}", way, tokens, models)
    print(markdown(HEAD, done))


if __name__ == "__main__":
    main()
