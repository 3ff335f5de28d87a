"""Cost of sessions in dollars: the input as sent, everything with the same cache, and the compiles.

    python -m benchmarks.money [--data locomo] [--budget 4000] [--most 3] [--jobs 2] [--model openai:gpt-5]

Conversations run turn by turn. Tokens are counted in o200k for all models, so only prices differ. `sent` and
`everything` are input as recorded (`record.costs`): the part that a request shares with the previous one costs the
provider's price for cached tokens. `compiles` are summaries by the same model, or by a small one of the same provider:
the real prompts, and scripted answers of 230 tokens.
"""

from __future__ import annotations

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

from benchmarks.command import arguments
from benchmarks.data import GENERATED, at_hand
from benchmarks.lived import conversations, life_of, live
from benchmarks.peers.baselines import price
from benchmarks.recall import Conversation
from benchmarks.tables import DASH, markdown
from context_compiler import ContextCompiler, View
from context_compiler.tokens import as_counter
from context_compiler.tokens.prices import Price, dollars, price_of

SETS = {"locomo": 4_000, "beam-100k": 16_000, "tau": 2_000, "pi": 16_000}
NOTES = "- **Goal**: go on with what was asked.\n" + "- **Done**: another part of the work, as agreed.\n" * 20
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
    """Token counts of a session, by request and by compile."""

    sent: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """For each request as sent: its tokens, and how many of them are cached."""
    everything: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    compiles: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """For each compile: input tokens and output tokens."""

    def input_cost(self, model: str) -> tuple[Decimal, Decimal]:
        """Return the cost in US dollars of the input as sent, and of everything."""
        of_model = price_known(model)
        sent, everything = (
            sum((of_model.cost(tokens, cached=cached) for tokens, cached in requests), Decimal(0))
            for requests in (self.sent, self.everything)
        )
        return sent, everything

    def compile_cost(self, model: str) -> Decimal:
        """Return the cost in US dollars of the compiles."""
        return sum((price_known(model).cost(tokens, output=output) for tokens, output in self.compiles), Decimal(0))


def price_known(model: str) -> Price:
    """Return the price of a model; exit if it is unknown."""
    price = price_of(model)
    if price is None:
        raise SystemExit(f"no price is known for {model}")
    return price


def measure(conversation: Conversation, budget: int, settings: dict[str, Any]) -> Tokens:
    """Run one conversation; `settings` are arguments of `ContextCompiler`."""
    tokens, count = Tokens(), as_counter(None).text

    async def write(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        size = price(messages) + count(info.instructions or "")
        tokens.compiles.append((size, count(NOTES)))
        return ModelResponse(parts=[TextPart(NOTES)], usage=RequestUsage(input_tokens=size, output_tokens=1))

    def note(view: View) -> None:
        if (record := view.record) is not None:
            facts: Any = record.ledger["price"]
            tokens.sent.append((record.tokens_sent, facts["cached"]))
            tokens.everything.append((record.tokens_raw, facts["cached_raw"]))

    wanted: dict[str, Any] = {"model": FunctionModel(write), "record": "off", "system": None} | settings
    life = life_of(conversation, ContextCompiler(budget=budget, on_view=note, **wanted))
    asyncio.run(live(conversation, life, budget, paired=False))
    return tokens


def row(name: str, way: str, sessions: Sequence[Tokens], model: str) -> list[str]:
    """Build the row of a model, in dollars per session."""
    inputs = [tokens.input_cost(model) for tokens in sessions]
    sent, everything = (sum(column, Decimal(0)) / len(sessions) for column in zip(*inputs, strict=True))
    writers = [model, *([MODELS[model]] if model in MODELS else [])]
    compiles = [sum(tokens.compile_cost(writer) for tokens in sessions) / len(sessions) for writer in writers]
    requests, asked = (sum(len(getattr(tokens, name)) for tokens in sessions) for name in ("sent", "compiles"))
    counts = " · ".join(f"{count:,}" for count in (len(sessions), requests, asked))
    shown = [*map(dollars, (sent, everything, *compiles)), *([DASH] if len(compiles) < 2 else [])]
    shares = " / ".join(f"{(sent + more) / everything:.2f}" for more in compiles)
    return [name, way, counts, model.partition(":")[2], *shown, shares]


def main() -> None:
    options = arguments(__doc__, data=("all", *SETS), budget=0, most=int, jobs=1, model=[str])
    data, models = at_hand(False, 1), options.model or list(MODELS)
    sets = {name: options.budget or budget for name, budget in SETS.items() if options.data in ("all", name)}
    if data.folder is None:
        sets = {GENERATED: options.budget or 600}
    rows: list[list[str]] = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for name, budget in sets.items():
            chosen = conversations(data, name, budget)[: options.most]
            for way, settings in WAYS.items():
                sessions = list(pool.map(partial(measure, budget=budget, settings=settings), chosen))
                rows += [row(f"{name}, {budget:,}", way, sessions, model) for model in models]
    print(markdown(HEAD, rows))


if __name__ == "__main__":
    main()
