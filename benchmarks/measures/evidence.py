"""Evidence recall: is what a question needs in the view that is sent with it? Defined in `benchmarks.recall`.

Query-aware, the question is the pending prompt; query-blind, no question is asked. The two are never ranked together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from benchmarks import recall
from benchmarks.approaches import Approach, attached
from benchmarks.data import Data
from benchmarks.measures import Measure, grid
from benchmarks.peers.baselines import READER, oracle, price
from benchmarks.recall import Conversation, Question
from benchmarks.results import Cell, Result
from benchmarks.tables import by_set, lines_of, percent, ranked
from context_compiler.cli.drawing import Panel
from context_compiler.middleware.replay import View

AWARE, BLIND = "evidence", "evidence-blind"


def run(cell: Cell, approach: Approach, data: Data) -> Mapping[str, Any] | str:
    """Measure the recall of every question, by conversation, and the share of views over the budget."""
    groups: list[list[float]] = []
    over: list[float] = []
    for conversation in data.conversations(cell.data):
        view = viewing(approach, conversation, cell.budget, data)
        if isinstance(view, str):
            return view
        groups.append(asyncio.run(_scores(conversation, cell, approach, view, over)))
    return {"groups": groups, "over": sum(share > 1 for share in over) / len(over), "worst": max(over)}


def viewing(approach: Approach, conversation: Conversation, budget: int, data: Data) -> View | str:
    """Return the view function of an approach for a conversation, or the reason why it has none."""
    if approach.view is not None:
        return approach.view
    if approach.knows:
        return oracle(())
    if approach.summarising is not None and (recorded := data.summaries(conversation.name)):
        return attached(partial(approach.summarising, summariser(recorded)))
    return approach.dashes.get("view", "cannot make one view")


def summariser(recorded: Sequence[tuple[str, str]]) -> FunctionModel:
    """Build a model that answers with the recorded summaries of the sessions in its prompt."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        texts = [str(getattr(part, "content", "")) for message in messages for part in message.parts]
        texts += [message.instructions or "" for message in messages if isinstance(message, ModelRequest)]
        asked = "\n".join(texts)
        summaries = [summary for first, summary in recorded if first in asked]
        return ModelResponse(parts=[TextPart("\n\n".join(summaries) or "ok")])

    return FunctionModel(answer)


async def _scores(
    conversation: Conversation, cell: Cell, approach: Approach, view: View, over: list[float]
) -> list[float]:
    """Return the recall of every question, and note the size of every view in budgets; blind, one view is for all."""
    scores: list[float] = []
    blind, sent = cell.measure == BLIND, list[ModelMessage]()
    for question in conversation.questions:
        if not (blind and sent) or approach.knows:
            prompt = replace(question, text=recall.NEUTRAL, stop=None) if blind else question
            budget, sent = await request(conversation, prompt, cell.budget, approach, view)
            over.append(price(sent) / budget)
        scores.append(recall.score(question, recall.shown(sent), whole=conversation.whole))
    return scores


async def request(
    conversation: Conversation, question: Question, room: int, approach: Approach, view: View
) -> tuple[int, Sequence[ModelMessage]]:
    """Return the budget and the messages of the request that asks a question; `room` excludes the question's tokens."""
    budget = room + READER.counter.text(question.text) + 4
    view = oracle(question.evidence) if approach.knows else view
    return budget, await view(recall.asked(conversation, question.text, question.stop), budget)


def tables(results: Sequence[Result]) -> dict[str, str]:
    """A table for every set: recall in per cent with its interval, and how often the budget was not kept."""
    measure = results[0].cell.measure
    return {f"{measure}-{name}": ranked(of_set, _shown) for name, of_set in by_set(results).items()}


def _shown(value: Mapping[str, Any]) -> str:
    return percent(value["groups"]) + (f", {value['over']:.0%} over" if value["over"] else "")


def panels(results: Sequence[Result]) -> list[Panel]:
    return lines_of(
        results,
        lambda value: 100 * recall.interval(value["groups"])[0],
        y="evidence in the view, %",
        leave_out={"everything", "host", "harness-clear"},
    )


MEASURES = (
    Measure(
        name=AWARE,
        title="Evidence recall, query-aware",
        cells=lambda data, approaches: grid(AWARE, data.asked, approaches),
        run=run,
        tables=tables,
        panels=panels,
    ),
    Measure(
        name=BLIND,
        title="Evidence recall, query-blind",
        cells=lambda data, approaches: grid(BLIND, data.asked, approaches),
        run=run,
        tables=tables,
    ),
)
