"""Answers: does a model answer better from one view than from another? See `benchmarks.answering`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks import recall
from benchmarks.answering import answering, available, contains, f1
from benchmarks.approaches import Approach
from benchmarks.data import GENERATED, Data
from benchmarks.measures import Measure
from benchmarks.measures.evidence import request, viewing
from benchmarks.recall import interval
from benchmarks.results import Cell, Result
from benchmarks.tables import markdown, named, percent, reasons

NAME = "answers"
BUDGETS = (200, 400, 1_000, 2_000, 4_000)
VIEWS = ("ours", "harness-window", "langchain-trim")
EVIDENCE, NEWEST = "oracle", "tail"
ALONE = 0
"""Budget of the newest messages in which none fits: the question alone."""
SETS = ("locomo", "qmsum", GENERATED)
"""Sets that record answers."""
LEFT_OUT = ("2", "3")
"""Kinds of LoCoMo's questions that are not asked: about dates, and about what nobody said."""
SEVERAL = "1"
"""Kind of those whose answer is a list."""
FEW = 12
"""Maximum words of a recorded answer for which an answer of a few words is asked for."""
ABSENT = "no model: run `make answers`, which installs two small ones, or name one with --model"


def cells(data: Data, approaches: Sequence[str]) -> list[Cell]:
    budgets = {**dict.fromkeys(VIEWS, BUDGETS), NEWEST: (ALONE, *BUDGETS), EVIDENCE: (max(BUDGETS),)}
    return [
        Cell(NAME, name, f"{chosen}+{model}", budget)
        for chosen in {**data.asked, **data.labelled}
        if chosen in SETS
        for model in data.models or available() or ("none",)
        for name in approaches
        for budget in budgets.get(name, ())
    ]


def run(cell: Cell, approach: Approach, data: Data) -> Mapping[str, Any] | str:
    name, _, model = cell.data.partition("+")
    if model == "none":
        return ABSENT
    answer = answering(model)
    value: dict[str, Any] = {"f1": [], "contains": [], "held": []}
    for conversation in data.conversations(name):
        view = viewing(approach, conversation, cell.budget, data)
        if isinstance(view, str):
            return view
        scores: list[tuple[float, float, float]] = []
        for question in conversation.questions:
            if question.kind in LEFT_OUT or not question.answer:
                continue
            _, messages = asyncio.run(request(conversation, question, cell.budget, approach, view))
            said = answer(messages, conversation.speakers, question.text, len(question.answer.split()) > FEW)
            held = recall.score(question, recall.shown(messages), whole=conversation.whole)
            several = question.kind == SEVERAL
            scores.append((f1(said, question.answer, several=several), contains(said, question.answer), held))
        for field, column in zip(value, zip(*scores, strict=True) if scores else ((), (), ()), strict=True):
            value[field].append(list(column))
    return value


HEAD = "model|asked from|budget|F1|contains the answer|evidence held|F1 less the newest that fit".split("|")

Values = Mapping[Cell, Mapping[str, Any]]


def tables(results: Sequence[Result]) -> dict[str, str]:
    """Build a table for every set: scores in per cent with their intervals, paired differences, and what they tell."""
    tables: dict[str, str] = {}
    for name in dict.fromkeys(result.cell.data.partition("+")[0] for result in results):
        of_set = [result for result in results if result.cell.data.partition("+")[0] == name]
        values = {result.cell: result.value for result in of_set if result.value is not None}
        ordered = sorted(values, key=lambda cell: (cell.data, cell.approach, cell.budget))
        rows = [_row(cell, values) for cell in ordered]
        told = "".join(f"\n\n{_told(data, values)}" for data in dict.fromkeys(cell.data for cell in ordered))
        tables[f"{NAME}-{name}"] = markdown(HEAD, rows) + told + reasons(of_set)
    return tables


def _row(cell: Cell, values: Values) -> list[str]:
    value = values[cell]
    scores = [percent(value[field]) for field in ("f1", "contains", "held")]
    asked = "the question alone" if (cell.approach, cell.budget) == (NEWEST, ALONE) else named(cell.approach)
    less = percent(_less_newest(cell, values), "+")
    return [cell.data.partition("+")[2], asked, f"{cell.budget:,}", *scores, less]


def _less_newest(cell: Cell, values: Values) -> list[list[float]]:
    """Return the F1 of a view less that of the newest messages that fit, paired by question."""
    newest = values.get(replace(cell, approach=NEWEST)) if cell.approach in VIEWS else None
    pairs = zip(values[cell]["f1"], newest["f1"], strict=True) if newest is not None else ()
    return [[here - there for here, there in zip(*pair, strict=True)] for pair in pairs]


def _told(data: str, values: Values) -> str:
    """Say what a model can tell about views: the range of its answers, and how many differences are none of chance."""
    cells = [cell for cell in values if cell.data == data]
    count = sum(map(len, values[cells[0]]["f1"]))
    ends = [("the evidence alone", EVIDENCE, max(BUDGETS)), ("the question alone", NEWEST, ALONE)]
    scores = [
        f"{100 * interval(value['f1'])[0]:.0f} from {name}"
        for name, approach, budget in ends
        if (value := values.get(Cell(NAME, approach, data, budget)))
    ]
    ranges = [interval(less) for cell in cells if (less := _less_newest(cell, values))]
    sure = sum(low > 0 or high < 0 for _, low, high in ranges)
    model = data.partition("+")[2]
    scale = f" Its F1 is {' and '.join(scores)}, and a view moves it between the two." if len(scores) == 2 else ""
    return (
        f"{model}, {count} questions.{scale} Differences with an interval without 0: {sure} of {len(ranges)}; where it "
        "contains 0, this model cannot tell which is better."
    )


MEASURES = (Measure(name=NAME, title="Answers of small models", cells=cells, run=run, tables=tables),)
