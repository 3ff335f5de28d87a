from __future__ import annotations

import pytest

from context_compiler.fidelity import Fidelity
from context_compiler.template import TemplateLibrary


@pytest.mark.parametrize(
    ("name", "compiler", "fidelity"),
    [
        ("chat_compiler", "agent", Fidelity.SUMMARY_MEDIUM),
        ("goal_oriented", "agent", Fidelity.SUMMARY_HIGH),
        ("extractive", "extractive", Fidelity.SUMMARY_MEDIUM),
    ],
)
def test_the_shipped_templates_have_descriptions(name: str, compiler: str, fidelity: Fidelity):
    template = TemplateLibrary(system=None).find(name)
    assert (template.source, template.compiler, template.fidelity) == ("builtin", compiler, fidelity)
    assert template.description
    assert not template.warnings


PLACEHOLDERS = {"constraints", "plan", "topic", "recent_turns", "tool_results", "reflections", "latest_input"} | {
    *("previous_summary", "template", "cap", "turns_left_out")
}


@pytest.mark.parametrize("name", ["chat_compiler", "goal_oriented", "extractive"])
def test_the_shipped_templates_use_only_known_placeholders(name: str):
    template = TemplateLibrary(system=None).find(name)
    assert template.wants() <= PLACEHOLDERS
    assert set(template.sections) <= template.wants()


@pytest.mark.parametrize("name", ["chat_compiler", "goal_oriented"])
def test_a_shipped_prompt_contains_its_values_and_no_gaps(name: str):
    template = TemplateLibrary(system=None).find(name)
    text = template.render({"recent_turns": "User: {{ hello }}", "latest_input": "What now?"})
    assert text.endswith("User: {{ hello }}\n\nWhat now?")
    assert "\n\n\n" not in text


@pytest.mark.parametrize(
    ("left_out", "said", "whose"),
    [(1, "One earlier turn", "it"), (12, "12 earlier turns", "them"), (None, "Some of the earlier", "it")],
)
def test_the_extractive_note_has_the_number_of_messages_left_out(left_out: int | None, said: str, whose: str):
    text = TemplateLibrary(system=None).find("extractive").render({"turns_left_out": left_out})
    assert text.startswith(said)
    assert text.splitlines()[1:] == [f"What is quoted of {whose} below is word for word."]
