"""What is too large for a preamble is a reference that leads to that very value, in branches too."""

from __future__ import annotations

import re

from context_compiler.pipeline import Outcome, Stage
from tests.pipeline.playing import graph, play

TEXT = graph(
    "before; p [shape=component]; one; two; seen_first; seen_one; seen_two; j [shape=tripleoctagon]; after;"
    "start->before->p; p->seen_first->one->seen_one->j; p->two->seen_two->j; j->after->done"
)


async def test_a_large_value_of_a_branch_is_found_by_its_reference_and_leaves_that_of_the_run_alone() -> None:
    led_to: dict[str, tuple[str, str]] = {}

    def make(stage: Stage) -> Outcome:
        return Outcome(context_updates={"report": f"{stage.node.name} " * 5_000, "internal.kept.note": 1})

    def look(stage: Stage) -> str:
        reference = re.findall(r'- report: "(artifact://[\w.]+)', stage.preamble)[0]
        led_to[stage.node.name] = (reference, stage.artifacts.retrieve(reference).split()[0])
        return "seen"

    made, looked = ("before", "one", "two"), ("seen_first", "seen_one", "seen_two", "after")
    result, _ = await play(TEXT, {**{name: [make] for name in made}, **{name: [look] for name in looked}})
    assert result.ok and led_to == {
        "seen_first": ("artifact://context.report", "before"),
        "seen_one": ("artifact://seen_first.context.report", "one"),
        "seen_two": ("artifact://two.context.report", "two"),
        "after": ("artifact://context.report", "before"),
    }


async def test_an_invalid_list_of_references_is_ignored() -> None:
    def make(stage: Stage) -> Outcome:
        return Outcome(context_updates={"internal.kept": 5, "report": "x " * 9_000})

    assert (await play(TEXT, {"before": [make], "one": [make]}))[0].ok
