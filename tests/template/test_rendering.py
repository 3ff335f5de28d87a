from __future__ import annotations

import asyncio
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from context_compiler.errors import TemplateError
from context_compiler.template import Template


def rendered(body: str, **values: object) -> str:
    return Template.parse(body, name="mine").render(values)


def test_values_replace_their_placeholders():
    assert rendered(
        "Hello {{ who }}, {{ template.name }}: {{ items | join(', ') }}.",
        who="you",
        template={"name": "t"},
        items=[1, 2],
    ) == ("Hello you, t: 1, 2.")


@pytest.mark.parametrize(
    "body",
    [
        "{{ plan }}",
        "{{ plan.steps.first.name }}",
        "{{ plan['steps'][0] }}",
        "{{ plan[1:] }}",
        "{{ plan | upper }}{{ plan | join }}{{ plan | round }}{{ plan | abs }}{{ plan | tojson }}{{ plan | trim }}",
        "{% for step in plan %}x{% endfor %}{% if plan %}x{% endif %}",
        "{% if plan > 3 %}x{% endif %}{% if 3 > plan %}x{% endif %}",
        "{{ plan ~ plan }}{{ plan + '' }}{{ plan - 1 }}",
        "{% for k, v in plan | items %}x{% endfor %}{% for k, v in plan | dictsort %}x{% endfor %}",
    ],
)
def test_a_missing_name_is_empty_and_never_an_error(body: str):
    assert rendered(body) == ""
    assert rendered(body, plan=None) == ""


def test_an_empty_placeholder_on_its_own_line_leaves_no_gap():
    body = "Rules.\n\n{{ a }}\n\n{{ b }}\n\n{{ c }}\n\nEnd.\n{{ a }}\nLast."
    assert rendered(body) == "Rules.\n\nEnd.\nLast."
    assert rendered(body, b="B", c="C") == "Rules.\n\nB\n\nC\n\nEnd.\nLast."
    assert rendered(body, a="A", b="B\n\n\n\nB", c="C") == "Rules.\n\nA\n\nB\n\n\n\nB\n\nC\n\nEnd.\nA\nLast."


def test_an_empty_placeholder_within_a_line_keeps_the_line():
    assert rendered("Plan: {{ plan }}\nTopic: {{ topic }}.\n") == "Plan: \nTopic: ."


def test_tags_on_their_own_lines_leave_no_lines():
    assert rendered("a\n  {% if true %}\nb\n  {% endif %}\nc") == "a\nb\nc"


@given(st.text() | st.sampled_from(["{{ 7 * 7 }}", "{% raw %}", "{# x", "}}", "{% include 'x' %}", "&<>'\""]))
def test_values_are_data_and_are_never_rendered(text: str):
    assert rendered("[{{ x }}]", x=text) == f"[{text}]"
    assert rendered("{% for one in x %}[{{ one }}]{% endfor %}", x=[text]) == f"[{text}]"


def test_values_are_not_changed():
    values = {"x": [3, 1, 2], "y": {"a": 1}}
    rendered("{{ x | sort }}{{ y | items | list }}{{ x | reverse | list }}", **values)
    assert values == {"x": [3, 1, 2], "y": {"a": 1}}


@pytest.mark.parametrize(
    ("body", "line", "said"),
    [
        ("{{ a.b", 1, "unexpected end"),
        ("one\n\n{% if %}\n", 3, "Expected an expression"),
        ("one\n{% for x in y %}\ntwo", 3, "end of template"),
        ("one\n{{ x | nosuch }}", 2, "there is no filter 'nosuch'; there are abs,"),
        ("one\n{{ x is nosuch }}", 2, "No test named 'nosuch'"),
        ("one\n{% include 'other.md' %}", 2, "include cannot be used here"),
        ("one\n{% extends 'other.md' %}", 2, "extends cannot be used here"),
        ("one\n{% import 'other.md' as o %}", 2, "import cannot be used here"),
        ("one\n{% from 'other.md' import o %}", 2, "import cannot be used here"),
        ("one\n{% block b %}{% endblock %}", 2, "block cannot be used here"),
        ("one\n{% autoescape true %}{% endautoescape %}", 2, "autoescape cannot be used here"),
        ("one\n{{ 2 ** 3 }}", 2, "the power operator cannot be used here"),
        ("one\n{% set ns.x = 1 %}", 2, "a namespace cannot be used here"),
    ],
)
def test_an_error_in_a_body_is_found_when_it_is_parsed(body: str, line: int, said: str):
    for above in ("", "---\ndescription: x\n---\n", "---\ndescription: x\n---\n\n\n"):
        with pytest.raises(TemplateError, match="cannot|unexpected|expected|Expected|there is|No test") as caught:
            Template.parse(above + body, name="mine", path="/vault/mine.md")
        assert said in str(caught.value)
        assert caught.value.line == above.count("\n") + line
        assert str(caught.value).startswith(f"/vault/mine.md:{caught.value.line}: ")


def test_an_error_in_rendering_is_reported_with_its_line():
    template = Template.parse("---\ndescription: x\n---\none\n\n{{ a / b }}", name="mine", path="/vault/mine.md")
    assert template.render({"a": 6, "b": 2}) == "one\n\n3.0"
    with pytest.raises(TemplateError, match=r"^/vault/mine.md:6: division by zero$"):
        template.render({"a": 6, "b": 0})


@pytest.mark.parametrize("nested", ["{{" + "(" * 5000 + ")" * 5000 + "}}", "{% if a %}" * 200 + "{% endif %}" * 200])
def test_a_body_nested_too_deeply_is_an_error(nested: str):
    with pytest.raises(TemplateError):
        Template.parse(nested, name="mine")


def test_a_body_with_far_too_many_tags_is_an_error():
    with pytest.raises(TemplateError, match="more than 20,000 words and signs"):
        Template.parse("{{ a }}" * 10_000, name="mine")


async def test_a_template_renders_in_any_thread_and_event_loop():
    template = Template.parse("{% for x in xs %}{{ x }}{% endfor %}", name="mine")
    outputs: list[str] = []
    threads = [threading.Thread(target=lambda: outputs.append(template.render({"xs": range(50)}))) for _ in range(4)]
    for thread in threads:
        thread.start()
    there = await asyncio.gather(*(asyncio.to_thread(template.render, {"xs": range(50)}) for _ in range(4)))
    for thread in threads:
        thread.join()
    assert {*outputs, *there} == {"".join(map(str, range(50)))}
