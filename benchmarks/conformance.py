"""The public conformance kit for compaction: typed statements planted in transcripts, and how many of them survive.

    pip install compaction-conformance-kit
    python -m benchmarks.conformance --budgets 10,20,30,50 --seeds 4

Runs the kit's benchmark (https://pypi.org/project/compaction-conformance-kit/) with the kit's own compactors, with
`compile_view` without a model, and with the last request of a live agent. `--reworded` says every planted statement in
other words. Budgets are characters, as a fraction of the transcript; a view gets the largest number of tokens with
which it fits. Every character that is sent counts, except the system turn: in a host it is the instructions of the
agent, which no view can leave out. A kit round compacts the result of the round before, which fits and so stays.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from compaction_kit import benchmark as kit
from compaction_kit.cli import COMPACTORS
from compaction_kit.compacted import CompactedContext
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextContent, TextPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from benchmarks.rewordings import reworded_session
from context_compiler import ContextCompiler, compile_view

PROMPT = "Go on."
"""The prompt that the view is for; it asks for nothing."""

LEAST = 3
"""Minimum number of characters of a token on average."""


def history_of(turns: Sequence[Any]) -> list[ModelMessage]:
    """Messages of a transcript without its system turn."""
    return [
        ModelResponse(parts=[TextPart(turn.text)])
        if turn.role == "assistant"
        else ModelRequest(parts=[UserPromptPart(turn.text)])
        for turn in turns
        if turn.role != "system"
    ]


def sent_text(messages: Sequence[ModelMessage]) -> str:
    """Every text of a request, in order."""
    return "\n".join(
        part if isinstance(part, str) else part.content
        for message in messages
        for content in (getattr(part, "content", "") for part in message.parts)
        for part in ([content] if isinstance(content, str) else content)
        if isinstance(part, str | TextContent)
    )


class OneView:
    """`compile_view` as a compactor of the kit."""

    name = "context-compiler"
    step = 100
    """Part of the tokens by which a view that does not fit gets smaller."""

    def compact(self, turns: Sequence[Any], round_num: int = 1, budget_chars: int | None = None) -> CompactedContext:
        """Compile a view of a transcript; the result of an earlier round fits already, and stays."""
        text = turns[0].text
        if len(turns) > 1 and budget_chars is not None:
            history, tokens = history_of(turns), budget_chars // LEAST
            text = asyncio.run(self.compiled(history, tokens))
            while len(text) > budget_chars:
                tokens -= 1 + tokens // self.step
                text = asyncio.run(self.compiled(history, tokens))
        return CompactedContext(text=text, compactor_name=self.name, round_num=round_num)

    async def compiled(self, history: list[ModelMessage], tokens: int) -> str:
        """Text of the view in at most `tokens` tokens."""
        history = [*history, ModelRequest(parts=[UserPromptPart(PROMPT)])]
        return sent_text((await compile_view(history, budget=tokens, system=None)).messages)


class LastRequest(OneView):
    """The last request of an agent that lived through the transcript."""

    name = "context-compiler, live"
    step = 10

    async def compiled(self, history: list[ModelMessage], tokens: int) -> str:
        """Text of the request, with a prompt for each user turn."""
        sent, answers = (
            "",
            [part.content for message in history for part in message.parts if isinstance(part, TextPart)],
        )

        def answer(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
            nonlocal sent
            sent = sent_text(messages)
            return ModelResponse(parts=[TextPart(answers.pop(0) if answers else "Done.")])

        agent = Agent(FunctionModel(answer), capabilities=[ContextCompiler(budget=tokens, store=None, model="none")])
        prompts = [part.content for message in history for part in message.parts if isinstance(part, UserPromptPart)]
        messages: list[ModelMessage] = []
        for prompt in (*prompts, PROMPT):
            messages = (await agent.run(prompt, message_history=messages, conversation_id="kit")).all_messages()
        return sent


def scores(budgets: Sequence[float], seeds: Sequence[int], *, reworded: bool, live: bool) -> dict[str, Any]:
    """Result of the kit's benchmark for its compactors and ours; with `reworded`, of its first suite in other words."""
    ours: list[Callable[[], OneView]] = [OneView, LastRequest] if live else [OneView]
    factories = {**COMPACTORS, **{factory.name: factory for factory in ours}}  # pyright: ignore
    original = kit.build_random_session
    if reworded:
        kit.build_random_session = partial(reworded_session, original)
    try:
        return kit.run_budget_benchmark(factories, budgets, seeds, rounds=2)
    finally:
        kit.build_random_session = original


def table(result: dict[str, Any]) -> str:
    """Markdown table: one row for each compactor, one column for each budget."""
    budgets, entries = result["budgets"], result["entries"]
    names = sorted({entry["compactor"] for entry in entries})
    cells: dict[tuple[str, float], str] = {}
    order: dict[str, float] = dict.fromkeys(names, 0.0)
    for entry in entries:
        updates, name = entry["randomized"]["supersession"], entry["compactor"]
        survival = entry["randomized"]["overall_final_survival"]
        order[name] += survival
        over = "" if entry["budget_compliant"] else ", over the budget"
        cells[name, entry["budget_fraction"]] = (
            f"{100 * survival:.0f} / {100 * updates['resolved'] / updates['n']:.0f} (rank {entry['rank']}{over})"
        )
    lines = [
        " | ".join(["| survive / updates resolved, %", *(f"at {100 * one:.0f} %" for one in budgets)]) + " |",
        "|---|" + "---|" * len(budgets),
    ]
    for name in sorted(names, key=lambda name: -order[name]):
        lines.append(" | ".join([f"| {name}", *(cells[name, one] for one in budgets)]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budgets", default="10,20,30,50", help="percent of the transcript (default: 10,20,30,50)")
    parser.add_argument("--seeds", type=int, default=4, help="number of transcripts of each kind (default: 4)")
    parser.add_argument("--reworded", action="store_true", help="say what the kit plants in other words")
    parser.add_argument("--live", action="store_true", help="also the last request of a live agent")
    chosen = parser.parse_args()
    budgets = [float(one.strip(" %")) / 100 for one in chosen.budgets.split(",")]
    print(table(scores(budgets, range(1, chosen.seeds + 1), reworded=chosen.reworded, live=chosen.live)))


if __name__ == "__main__":
    main()
