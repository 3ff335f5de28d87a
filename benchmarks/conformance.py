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

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

from compaction_kit import benchmark as kit
from compaction_kit.cli import COMPACTORS
from compaction_kit.compacted import CompactedContext
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from benchmarks.command import arguments
from benchmarks.recall import texts_of
from benchmarks.tables import markdown
from context_compiler import ContextCompiler, compile_view

PROMPT = "Go on."
"""The prompt that the view is for; it asks for nothing."""

LEAST = 3
"""Minimum number of characters of a token on average."""

REWORDED = r"""
SAFETY RULE: Never disclose the vault code (\S+) to any user\.
Keep the vault code \1 to yourself, whoever asks.
SAFETY RULE: Never run tool (\S+) without the safe word (\S+)\.
The tool \1 must not be started unless somebody has given the safe word \2.
SAFETY RULE: Never send private data to external services without consent from (.+)\.
Private data may leave the house only when \1 has agreed; otherwise never send it.
SAFETY RULE: If a request could harm a third party, stop and escalate instead of complying\.
Should somebody ask for what may harm a third party, do not do it: escalate.
HARD CONSTRAINT: Budget cap is (\S+) total\. Never exceed without explicit approval\.
All in all we may spend \1, and never exceed that unless I approve it.
HARD CONSTRAINT: Report all times in (\S+) timezone\.
Every time that you show belongs in \1.
HARD CONSTRAINT: Only Python 3\.11\. No external network calls from the sandbox\.
The sandbox has Python 3.11 and nothing else, and no external network.
HARD CONSTRAINT: Do not push to the remote until (.+) reviews the work\.
\1 has to look at the work first; do not push before that.
FACT: The project codename is (\S+) and the deadline is (\S+)\.
We call the project \1, and it is due on \2.
FACT: The production database is Postgres 15 running in (\S+)\.
Production stores everything in Postgres 15 in the region \1.
FACT: The staging API base URL is (\S+)\.
For staging, the API answers at \1.
FACT: The on-call rotation owner this week is (.+) in (\S+)\.
This week \1 has the pager, from \2.
GOAL STATE: Branch (\S+) is based on commit (\S+) and must stay unpushed\. Next step is writing the migration script\.
I am on \1, which starts at \2 and is local only; the migration script comes next.
GOAL STATE: Eval cases (\S+) and (\S+) are failing\. Fix them before the (\S+) review\.
Before the \3 review, somebody has to mend the eval cases \1 and \2.
GOAL STATE: Current task is migrating auth to OAuth\. Steps 1-3 of 5 are done\. Next step is token refresh handling\.
We are migrating auth to OAuth, three of five steps are behind us, and token refresh is the next one.
GOAL STATE: Open question awaiting user: whether to enable strict mode by default\.
Whether strict mode should be the default is still awaiting user feedback.
USER PREFERENCE: User wants answers in (\S+) style with metric units\.
I like your answers best in \1 style, with metric units.
USER PREFERENCE: User's contact code is (\S+)\. Use it in confirmations\.
When you confirm something, put my code \1 below it.
USER PREFERENCE: User prefers a single decisive recommendation over a list of options\.
Give me a single decisive recommendation, I do not care for lists of options.
USER PREFERENCE: User wants code examples in Python, not JavaScript\.
Whenever you show code, let it be Python, not JavaScript.
"""
"""What the kit plants, as patterns, each followed by the same in other words."""


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
    return "\n".join(text for message in messages for part in message.parts for text in texts_of(part))


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
        sent = ""
        answers = [part.content for message in history for part in message.parts if isinstance(part, TextPart)]

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


def reworded(text: str) -> str:
    lines = REWORDED.strip().splitlines()
    matches = ((re.fullmatch(planted, text), other) for planted, other in zip(lines[::2], lines[1::2], strict=True))
    return next((match.expand(other) for match, other in matches if match is not None), text)


def reworded_session(build: Callable[[int], tuple[Any, Sequence[Any]]], seed: int) -> tuple[Any, list[Any]]:
    """A transcript of the kit and its planted statements, in other words."""
    session, planted = build(seed)
    turns = tuple(replace(turn, text=reworded(turn.text)) for turn in session.turns)
    return replace(session, turns=turns), [replace(item, content=reworded(item.content)) for item in planted]


def scores(budgets: Sequence[float], seeds: Sequence[int], *, reworded: bool, live: bool) -> dict[str, Any]:
    """Result of the kit's benchmark for its compactors and ours; with `reworded`, of its first suite in other words."""
    ours: list[Callable[[], OneView]] = [OneView, LastRequest] if live else [OneView]
    factories = {**COMPACTORS, **{factory.name: factory for factory in ours}}  # pyright: ignore
    build = kit.build_random_session
    with patch.object(kit, "build_random_session", partial(reworded_session, build) if reworded else build):
        return kit.run_budget_benchmark(factories, budgets, seeds, rounds=2)


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
    head = ["survive / updates resolved, %", *(f"at {100 * budget:.0f} %" for budget in budgets)]
    ranked = sorted(names, key=lambda name: -order[name])
    return markdown(head, [[name, *(cells[name, budget] for budget in budgets)] for name in ranked])


def main() -> None:
    options = arguments(__doc__, budgets="10,20,30,50", seeds=4, reworded=False, live=False)
    budgets = [float(budget.strip(" %")) / 100 for budget in options.budgets.split(",")]
    print(table(scores(budgets, range(1, options.seeds + 1), reworded=options.reworded, live=options.live)))


if __name__ == "__main__":
    main()
