from __future__ import annotations

import copy
import hashlib
import logging
import pickle

import pytest

from context_compiler.errors import TemplateError
from context_compiler.fidelity import Fidelity
from context_compiler.template import SectionRule, Template

FULL = """---
description: Working context for a chat turn
compiler: none
fidelity: summary:medium
recent-turns: all
recent_tool_results: 0
token_threshold: 8000
sections:
  constraints: {priority: 2}
  recent_turns:
    priority: 1
    budget: 1500
---

You compile.
"""


def parsed(text: str) -> Template:
    return Template.parse(text, name="mine", path="/vault/mine.md")


def refused(text: str) -> TemplateError:
    with pytest.raises(TemplateError) as caught:
        parsed(text)
    return caught.value


def test_plain_markdown_is_a_template():
    template = parsed("# Notes\n\nWrite three sentences.\n")
    assert template.body == "# Notes\n\nWrite three sentences."
    assert (template.compiler, template.fidelity, template.recent_turns, template.token_threshold) == (
        "agent",
        None,
        None,
        None,
    )
    assert (template.name, template.source, template.path) == ("mine", "inline", "/vault/mine.md")


def test_front_matter_sets_options():
    template = parsed(FULL)
    assert template.description == "Working context for a chat turn"
    assert template.compiler == "none"
    assert template.fidelity is Fidelity.SUMMARY_MEDIUM
    assert template.recent_turns == "all"
    assert template.recent_tool_results == 0
    assert template.token_threshold == 8000
    assert template.sections == {
        "constraints": SectionRule(priority=2),
        "recent_turns": SectionRule(priority=1, budget=1500),
    }
    assert template.body == "You compile."
    assert template.warnings == ()


def test_keys_are_spelt_with_hyphens_or_underscores():
    hyphens, underscores = (parsed(f"---\nrecent{sign}turns: 5\n---\nx") for sign in "-_")
    assert hyphens.recent_turns == underscores.recent_turns == 5
    assert hyphens.warnings == underscores.warnings == ()


def test_a_key_given_in_both_spellings_is_an_error():
    assert refused("---\nrecent-turns: 5\nrecent_turns: 4\n---\nx").line == 3


def test_a_key_without_a_value_is_ignored():
    assert parsed("---\nfidelity:\nrecent_turns: null\nsections: ~\n---\nx").fidelity is None


def test_the_hash_is_that_of_the_whole_file():
    assert parsed(FULL).sha256 == hashlib.sha256(FULL.encode()).hexdigest()


def test_a_change_anywhere_changes_the_hash():
    assert parsed(FULL).sha256 != parsed(FULL.replace("chat", "long")).sha256 != parsed(FULL + " ").sha256


def test_windows_line_ends_and_a_byte_order_mark_make_no_difference_but_to_the_hash():
    windows = parsed("\ufeff" + FULL.replace("\n", "\r\n"))
    assert (windows.body, windows.sections, windows.fidelity) == (
        parsed(FULL).body,
        parsed(FULL).sections,
        "summary:medium",
    )
    assert windows.sha256 != parsed(FULL).sha256


def test_unknown_keys_are_warned_of_and_logged_once(caplog: pytest.LogCaptureFixture):
    text = "---\ntags: [a, b]\nrecent_turn: 4\ndate: 2025-01-31\n---\nx"
    with caplog.at_level(logging.WARNING):
        first, second = parsed(text), parsed(text)
    assert first.warnings == second.warnings
    assert first.warnings == (
        "line 2: unknown key 'tags'; it has no effect",
        "line 3: unknown key 'recent_turn'; did you mean recent_turns?",
        "line 4: unknown key 'date'; it has no effect",
    )
    assert [record.getMessage() for record in caplog.records] == [
        f"/vault/mine.md: {warning}" for warning in first.warnings
    ]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("compiler: robot", "compiler: 'robot' is not allowed; give one of agent, none, extractive"),
        ("compiler: [agent]", "give one of agent, none, extractive"),
        ("fidelity: summary:huge", "unknown fidelity 'summary:huge'; use one of full, truncate, compact"),
        ("recent_turns: -1", "recent_turns: -1 is not allowed; give a whole number from 0, or all"),
        ("recent_turns: true", "recent_turns: True is not allowed"),
        ("recent_tool_results: some", "recent_tool_results: 'some' is not allowed"),
        ("token_threshold: -5", "must be above 0"),
        ("token_threshold: 1.5", "a float is a share"),
        ("token_threshold: yes", "give tokens as an int"),
        ("token_threshold: .nan", "a float is a share"),
        ("description: [a]", "description: ['a'] is not allowed; give a text"),
        ("sections: [constraints]", "a mapping of section names"),
        ("sections: {constraints: 5}", "give a mapping such as"),
        ("sections: {constraints: {priority: high}}", "priority: 'high' is not allowed; give a whole number from 0"),
        ("sections: {constraints: {budget: 0}}", "budget: 0 is not allowed; give a whole number from 1"),
        ("sections: {constraints: {priorty: 3}}", "priority, budget, or both, and nothing else"),
    ],
)
def test_an_invalid_value_of_a_known_key_is_an_error_with_file_and_line(entry: str, said: str):
    error = refused(f"---\ndescription: x\n# a comment\n{entry}\n---\nbody".replace("description: x\n", "tags: x\n"))
    assert said in str(error)
    assert str(error).startswith("/vault/mine.md:4: ")
    assert (error.name, error.path, error.line) == ("mine", "/vault/mine.md", 4)


def test_an_invalid_value_in_a_section_is_reported_on_its_line():
    assert refused("---\nsections:\n  plan:\n    priority: 1\n    budget: lots\n---\nx").line == 5


def test_front_matter_that_is_not_a_mapping_is_an_error():
    assert refused("---\n- one\n- two\n---\nbody").line == 2
    assert refused("---\njust words\n---\nbody").line == 2


@pytest.mark.parametrize(
    "matter",
    [
        *("a: [1, 2", "a: 'x", "a: b: c", "\ta: 1", "a: !!python/object:os.system x", "x: 2020-99-99"),
        *(f"description: 0x{'f' * 4_000}", f"tags: [0x{'f' * 4_000}]"),
    ],
)
def test_front_matter_that_is_not_plain_yaml_is_an_error(matter: str):
    assert "not YAML" in str(refused(f"---\n{matter}\n---\nbody"))


@pytest.mark.parametrize("value", ["!!bool foo", "!!int ''", "!!timestamp foo", "[!!bool foo]"])
def test_a_tag_that_does_not_fit_its_value_is_refused(value: str):
    assert "not YAML" in str(refused(f"---\nname: {value}\n---\nbody"))


def test_aliases_are_refused_because_they_can_explode():
    bomb = "a0: &a0 [x, x]\n" + "\n".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40))
    error = refused(f"---\n{bomb}\n---\nbody")
    assert "aliases" in str(error)
    assert error.line == 3


@pytest.mark.parametrize("deep", ["[" * 8000, "{a: " * 4000, "- " * 8000, "? " * 8000, "[" * 5000 + "]" * 5000])
def test_front_matter_nested_too_deeply_is_an_error(deep: str):
    refused(f"---\na:\n  {deep}\n---\nbody")


def test_front_matter_without_an_end_is_an_error():
    assert refused("---\ndescription: x\n\nYou compile.").line == 1


def test_a_rule_at_the_top_of_plain_markdown_is_not_front_matter():
    assert parsed("---\n\nYou compile.").body == "---\n\nYou compile."


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        (" \n\n", "empty"),
        ("a\nb\0c", "NUL"),
        ("x" * 300_000, "larger than 256 kB"),
        (f"---\na: {'x' * 20_000}\n---\nb", "front matter is longer"),
    ],
)
def test_absurd_front_matter_is_an_error(text: str, said: str):
    assert said in str(refused(text))


def test_front_matter_alone_is_a_template_without_a_body():
    assert parsed("---\nfidelity: compact\n---\n").body == ""


def test_fenced_yaml_and_json_are_an_advisory_contract_and_stay_in_the_body():
    body = 'Write.\n\n```json\n{"goal": "..."}\n```\n\n~~~yaml\nplan: []\n~~~\n\n```\nbare\n```\n```python\nx = 1\n```'
    template = parsed(body)
    assert template.contract == '{"goal": "..."}\n\nplan: []'
    assert template.body == template.render({}) == body


def test_a_fence_inside_a_longer_fence_is_not_a_contract():
    assert parsed("````markdown\n```yaml\nx: 1\n```\n````").contract is None


def test_a_template_lists_the_names_it_uses():
    body = "{{ plan }} {% for t in turns %}{{ t.user }}{{ loop.index }}{% endfor %}{% set x = 1 %}{{ x }}{{ a.b }}"
    assert parsed(body + "{{ range(2) }}").wants() == {"plan", "turns", "a"}


def test_a_template_can_be_copied_pickled_and_hashed():
    template = parsed(FULL)
    assert copy.deepcopy(template) == pickle.loads(pickle.dumps(template)) == template
    assert hash(template) == hash(copy.deepcopy(template))
