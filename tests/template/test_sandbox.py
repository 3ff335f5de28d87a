from __future__ import annotations

import time
import tracemalloc

import pytest

from context_compiler.errors import TemplateError
from context_compiler.template import Template
from context_compiler.template.sandbox import ROOM

LOOP = "{% for a in range(1000) %}"


def doubled(start: str, step: str, end: str) -> str:
    return f"{{% set x = {start} %}}" + f"{{% set x = {step} %}}" * 60 + end


TOO_MUCH = {
    "a range beyond all bounds": "{% for i in range(1000000000) %}{% endfor %}",
    "a power": "{{ 10**10**10 }}",
    "a power in a range": "{% for i in range(10**9) %}{% endfor %}",
    "a repeated text": '{{ "a" * 1000000000 }}',
    "a repeated list": "{{ [1] * 1000000000 }}",
    "a repeat the other way round": '{{ 1000000000 * "a" }}',
    "loops that say nothing": LOOP * 3 + "{% endfor %}" * 3,
    "loops that only filter": LOOP + "{% for b in range(1000) if false %}{% endfor %}{% endfor %}",
    "loops in a macro": "{% macro m() %}" + LOOP * 3 + "{% endfor %}" * 3 + "{% endmacro %}{{ m() }}",
    "loops that say much": LOOP * 3 + "x" * 1000 + "{% endfor %}" * 3,
    "much said into a variable": "{% set x %}" + LOOP + "x" * 100_000 + "{% endfor %}{% endset %}",
    "much said by a macro": "{% macro m() %}" + LOOP + "x" * 99_999 + "{% endfor %}{% endmacro %}{{ m() }}",
    "a value said too often": LOOP * 2 + "{{ big }}" + "{% endfor %}" * 2,
    "a macro that calls itself": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "a macro that calls itself twice": "{% macro m(n) %}{{ m(n - 1) ~ m(n - 1) if n }}{% endmacro %}{{ m(28) }}",
    "a loop that calls itself": "{% for x in [1] recursive %}{{ loop(range(1000)) }}{% endfor %}",
    "padding by %": '{{ "%1000000000d" % 1 }}',
    "padding by the format filter": '{{ "%1000000000d" | format(1) }}',
    "padding by the format method": '{{ "{:1000000000}".format(1) }}',
    "padding by center": '{{ "a" | center(1000000000) }}',
    "padding by a method": '{{ "a".zfill(1000000000) }}',
    "padding by indent": '{{ "a\\nb" | indent(1000000000) }}',
    "padding by a long text": '{{ "a\\nb" | indent("x" * 1000000000) }}',
    "joining with a long text": "{{ range(100000) | join(big) }}",
    "replacing by a long text": '{{ big | replace("a", big) }}',
    "stripping by a filter": "{{ (big * 9) | trim(range(9000) | join ~ big) }}",
    "stripping by a method": "{{ (big * 9).strip(range(9000) | join ~ big) }}",
    "batches": '{{ [1] | batch(1000000000, "x") | list }}',
    "rounding by computing": "{{ 5 | round(-1000000000) }}",
    "rounding down by computing": '{{ 5 | round(1000000, "floor") }}',
    "a text that doubles": doubled('"aaaa"', "x ~ x", ""),
    "a sum that doubles": doubled('"aaaa"', "x + x", ""),
    "a list that doubles": doubled("[1]", "[x, x]", "{{ x }}"),
    "a list that doubles by addition": doubled("[1]", "x + x", ""),
    "a mapping that doubles": doubled("{}", "{1: x, 2: x}", "{{ x | tojson }}"),
    "a key that doubles": doubled("(1, 2)", "(x, x)", "{{ {x: 1} }}"),
    "a number that doubles": doubled("9", "x * x", ""),
    "a number too long": "{{ " + "9" * 4000 + " }}",
    "a number from a text": '{{ ("f" * 100000) | int(base=16) }}',
    "copies of a long text": "{% set x = big %}" + "{% set y = big[1:] %}" * 400,
    "a list of many long texts": "{{ [" + "big, " * 1000 + "] | length }}",
    "an attempt to fill the purse": '{{ [-1000000000000] | map(" tick") | list }}' + LOOP * 2 + "{% endfor %}" * 2,
}

VALUES = {"big": "a" * 100_000}


@pytest.mark.parametrize("body", TOO_MUCH.values(), ids=TOO_MUCH.keys())
def test_a_body_that_runs_forever_or_fills_memory_is_refused_cheaply(body: str):
    tracemalloc.start()
    try:
        with pytest.raises(TemplateError):
            Template.parse(body, name="mine").render(VALUES)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100_000_000


def test_nested_calls_end_long_before_a_stack_overflow():
    with pytest.raises(TemplateError, match="calls are more than 30 deep"):
        Template.parse("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", name="mine").render({})


def test_the_time_limit_stops_what_the_budget_does_not(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("context_compiler.template.sandbox.SECONDS", 0.05)
    monkeypatch.setattr("context_compiler.template.sandbox.EFFORT", 1_000_000)
    with pytest.raises(TemplateError, match="more than 0.05 s of CPU time"):
        Template.parse(LOOP * 3 + "{% endfor %}" * 3, name="mine").render({})


class Waiting(dict[str, str]):
    """Values that another process keeps the processor from."""

    def __getitem__(self, key: str) -> str:
        time.sleep(0.06)
        return super().__getitem__(key)


def test_a_busy_machine_does_not_stop_a_rendering(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("context_compiler.template.sandbox.SECONDS", 0.05)
    assert Template.parse("{{ x.a }}{{ x.a }}", name="mine").render({"x": Waiting(a="fact ")}) == "fact fact "


class Collecting(dict[str, str]):
    """Values at whose use the process works for itself, as in a garbage collection."""

    def __getitem__(self, key: str) -> str:
        end = time.thread_time() + 0.06
        while time.thread_time() < end:
            pass
        return super().__getitem__(key)


def test_one_long_step_does_not_stop_a_rendering_and_two_do(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("context_compiler.template.sandbox.SECONDS", 0.05)
    values = {"x": Collecting(a="fact ")}
    assert Template.parse("{{ x.a }}", name="mine").render(values) == "fact "
    with pytest.raises(TemplateError, match="more than 0.05 s of CPU time"):
        Template.parse("{{ x.a }}{{ x.a }}", name="mine").render(values)


def test_a_rendering_may_exceed_its_values_by_a_million_characters():
    template = Template.parse("{{ x }}{{ y }}", name="mine")
    assert len(template.render({"x": "x" * 3_000_000, "y": "y"})) == 3_000_001
    long = Template.parse("{{ 'a' * n }}{{ x }}", name="mine")
    assert len(long.render({"n": ROOM, "x": "x"})) == ROOM + 1
    with pytest.raises(TemplateError, match="too long"):
        long.render({"n": ROOM + 1, "x": "x"})


def test_ordinary_loops_are_well_within_bounds():
    turns = [{"user": f"question {n}", "assistant": "answer " * 20} for n in range(2_000)]
    body = "{% for t in turns %}{{ loop.index }}. {{ t.user | upper }}: {{ t.assistant | truncate(30) }}\n{% endfor %}"
    assert Template.parse(body, name="mine").render({"turns": turns}).count("\n") == 1_999


@pytest.mark.parametrize(
    "body",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ ''['__class__']['__mro__'] }}",
        "{{ ().__class__.__base__ }}",
        "{{ range.__globals__ }}",
        "{{ missing.__init__.__globals__ }}",
        "{{ loop.__init__.__globals__ }}",
        "{% for x in [1] %}{{ loop._iterator }}{{ loop.__class__ }}{% endfor %}",
        "{% macro m() %}{% endmacro %}{{ m.__globals__ }}{{ m._func }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ '{a.__class__}'.format_map({'a': 1}) }}",
        "{{ [''] | map(attribute='__class__') | list | first }}",
        "{{ ['a'] | sort(attribute='__class__') | map('attr', '__class__') | list }}",
        "{{ '' | attr('__class__') }}",
        "{{ self.__init__ }}{{ self._TemplateReference__context }}",
        "{{ cycler.__init__ }}{{ joiner }}{{ namespace }}{{ lipsum }}{{ dict }}",
        "{{ open }}{{ __import__ }}{{ __builtins__ }}",
    ],
)
def test_a_template_cannot_reach_python_internals(body: str):
    try:
        text = Template.parse(body, name="mine").render({})
    except TemplateError:
        return
    assert text == ""


@pytest.mark.parametrize(
    "body", ["{{ run('x') }}", "{{ tool.run('x') }}", "{{ xs | map('run') | list }}", "{{ xs.append(1) }}"]
)
def test_values_cannot_be_called_or_changed(body: str):
    calls: list[object] = []
    with pytest.raises(TemplateError):
        Template.parse(body, name="mine").render({"run": calls.append, "tool": {"run": calls.append}, "xs": [1]})
    assert calls == []


def test_an_entry_takes_precedence_over_a_method_of_the_same_name():
    assert (
        Template.parse("{{ d.items }} {{ d.get('keys', 1) }}", name="mine").render({"d": {"items": "three"}})
        == "three 1"
    )


def test_macros_loops_and_filters_work():
    body = (
        "{% macro line(x, n=2) %}{{ x | title }}{{ n }};{% endmacro %}"
        "{% for x in xs if x != 'b' %}{{ line(x, n=loop.index) }}{% else %}none{% endfor %}"
        "{{ xs[:2] | join('+') }} {{ (xs | map('upper') | list)[-1] }} {{ 'a, b'.split(', ') | length }} "
        "{{ 7 // 2 + 1.5 }}{% with y = 1 %}{{ y ~ none ~ 'z' }}{% endwith %} {{ [1, 2] | tojson }} "
        "{{ 'x' if none else 'y' }} {{ 'ab' * 2 }}"
    )
    assert Template.parse(body, name="mine").render({"xs": ["a", "b", "c"]}) == "A1;C2;a+b C 2 4.51z [1, 2] y abab"
