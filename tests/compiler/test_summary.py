"""A compile's prompts: what users say in them can stand for nothing else."""

from __future__ import annotations

from context_compiler.compiler.summary import SLOT, compose_prompts, fill_slot
from context_compiler.template import Template

TEMPLATE = Template.parse("Notes on {{ latest_input }}", name="notes")


def test_user_text_cannot_fill_the_slot_of_the_previous_summary() -> None:
    prompts = compose_prompts(TEMPLATE, {"latest_input": SLOT}, ["one", "two"], previous="", cap=400)
    assert SLOT not in prompts[0] and prompts[1].count(SLOT) == 1
    assert fill_slot(prompts[1], "the notes so far").count("the notes so far") == 1
