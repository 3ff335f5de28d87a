"""Answers: does a model answer better from one view than from another? See `benchmarks.answering`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage

from benchmarks import lived, recall
from benchmarks.answering import answering, available, contains, f1
from benchmarks.approaches import Approach
from benchmarks.data import GENERATED, Data
from benchmarks.measures import Measure
from benchmarks.measures.evidence import viewing
from benchmarks.peers.baselines import READER, oracle
from benchmarks.recall import Conversation, Question
from benchmarks.results import Cell, Result
from benchmarks.tables import markdown, named, percent, reasons

NAME = "answers"
BUDGETS = (200, 400, 1_000, 2_000, 4_000)
LIVED = (1_000, 4_000)
VIEWS = ("ours", "tail", "harness-window", "langchain-trim")
EVIDENCE, LIVE = "oracle", "ours-live"
SETS = ("locomo", "qmsum", "realmem", GENERATED)
LEFT_OUT = ("2", "3")
"""Kinds of LoCoMo's questions that are not asked: about dates, and about what nobody said."""
LONGEST_ANSWER = 12
"""Maximum words of a recorded answer; F1 says little about longer ones."""
ABSENT = "no model: run `make answers`, which installs two small ones, or name one with --model"


def cells(data: Data, approaches: Sequence[str]) -> list[Cell]:
    """Return a cell for every set, model, approach and budget."""
    budgets = {**dict.fromkeys(VIEWS, BUDGETS), EVIDENCE: (max(BUDGETS),), LIVE: LIVED}
    return [
        Cell(NAME, name, f"{chosen}+{model}", budget)
        for chosen in data.asked
        if chosen in SETS
        for model in data.models or available() or ("none",)
        for name in approaches
        for budget in budgets.get(name, ())
    ]


def run(cell: Cell, approach: Approach, data: Data) -> Mapping[str, Any] | str:
    """Answer every question from the messages of an approach."""
    name, _, model = cell.data.partition("+")
    if model == "none":
        return ABSENT
    answer = answering(model)
    value: dict[str, Any] = {"f1": [], "contains": [], "held": []}
    for conversation in data.conversations(name):
        made = requests(_answerable(conversation), cell, approach, data)
        if isinstance(made, str):
            return made
        scores: list[tuple[float, float, float]] = []
        for question, messages in made:
            said = answer(messages, question.text)
            held = recall.score(question, recall.shown(messages), whole=conversation.whole)
            scores.append((f1(said, question.answer), contains(said, question.answer), held))
        for field, column in zip(value, zip(*scores, strict=True) if scores else ((), (), ()), strict=True):
            value[field].append(list(column))
    return value


def _answerable(conversation: Conversation) -> Conversation:
    questions = tuple(
        question
        for question in conversation.questions
        if question.kind not in LEFT_OUT and 0 < len(question.answer.split()) <= LONGEST_ANSWER
    )
    return Conversation(
        name=conversation.name, messages=conversation.messages, questions=questions, whole=conversation.whole
    )


def requests(
    conversation: Conversation, cell: Cell, approach: Approach, data: Data
) -> Sequence[tuple[Question, Sequence[ModelMessage]]] | str:
    """Return every question with the request that asks it, or the reason why there is none."""
    if cell.approach == LIVE:
        running = lived.ours(conversation, cell.budget, data, scenario="plain", model="none", paired=False)
        return asyncio.run(running).asked_requests
    view = viewing(approach, conversation, cell.budget, data)
    return view if isinstance(view, str) else list(_viewed(conversation, cell.budget, approach, view))


def _viewed(
    conversation: Conversation, budget: int, approach: Approach, view: Any
) -> Iterator[tuple[Question, Sequence[ModelMessage]]]:
    async def made(question: Question) -> Sequence[ModelMessage]:
        make = oracle(question.evidence) if approach.knows else view
        return await make(recall.asked(conversation, question.text), budget + READER.counter.text(question.text) + 4)

    for question in conversation.questions:
        yield question, asyncio.run(made(question))


HEAD = ("model", "asked from", "budget", "F1", "contains the answer", "evidence held", "F1 less the newest that fit")


def tables(results: Sequence[Result]) -> dict[str, str]:
    """Build a table for every set: scores in per cent with their intervals, and the paired difference."""
    found: dict[str, str] = {}
    for name in dict.fromkeys(result.cell.data.partition("+")[0] for result in results):
        of_set = [result for result in results if result.cell.data.partition("+")[0] == name]
        found[f"{NAME}-{name}"] = markdown(HEAD, list(_rows(of_set))) + reasons(of_set)
    return found


def _rows(results: Sequence[Result]) -> Iterator[list[str]]:
    values = {result.cell: result.value for result in results if result.value is not None}
    for cell, value in sorted(values.items(), key=lambda item: (item[0].data, item[0].approach, item[0].budget)):
        newest = values.get(Cell(NAME, "tail", cell.data, cell.budget))
        paired = newest is not None and cell.approach in VIEWS[:1] + VIEWS[2:]
        less = percent(_differences(value["f1"], newest["f1"]), "+") if paired and newest else "–"
        scores = [percent(value[field]) for field in ("f1", "contains", "held")]
        yield [cell.data.partition("+")[2], named(cell.approach), f"{cell.budget:,}", *scores, less]


def _differences(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> list[list[float]]:
    return [[here - there for here, there in zip(*pair, strict=True)] for pair in zip(ours, theirs, strict=True)]


MEASURES = (
    Measure(
        name=NAME,
        title="Answers of small models",
        about=(
            "A model answers the questions from the request of each approach. F1: of the words of its answer and the "
            "recorded one, in per cent, with the 95 % interval (bootstrap over conversations). More is better. "
            "Questions about dates, about what nobody said, and answers over twelve words are left out."
        ),
        cells=cells,
        run=run,
        tables=tables,
    ),
)
