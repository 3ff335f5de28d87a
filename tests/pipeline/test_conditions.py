"""A condition compares text with text; it is never executed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from context_compiler.pipeline import ConditionError, parse_condition


def holds(text: str, values: dict[str, Any] | None = None, **more: str) -> bool:
    return parse_condition(text).holds(values or {}, **more)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("   ", True),
        ("outcome=success", True),
        ("outcome = success", True),
        ("outcome!=success", False),
        ("outcome=fail", False),
        ("outcome!=fail && preferred_label=Yes", True),
        ("outcome=success && preferred_label=yes", False),
        ("context.tests=green", True),
        ("tests=green", True),
        ("context.whole=here", True),
        ("missing=", True),
        ('missing=""', True),
        ("context.missing!=x", True),
        ("flag=true", True),
        ("off=false", True),
        ("count=3", True),
        ("count!=3", False),
        ("flag", True),
        ("off", False),
        ("missing", False),
        ('said="a && b"', True),
        ('said!="a || b"', True),
        (r'quoted="say \"hi\""', True),
        ("none=", True),
        ("a.b-c.d=1", True),
    ],
)
def test_a_condition_holds_when_every_clause_does(text: str, expected: bool) -> None:
    values = {"tests": "green", "context.whole": "here", "whole": "no", "flag": True, "off": False, "count": 3}
    values |= {"said": "a && b", "quoted": 'say "hi"', "none": None, "a.b-c.d": 1}
    assert holds(text, values, outcome="success", preferred_label="Yes") is expected


@pytest.mark.parametrize(("word", "status"), [("succeeded", "success"), ("failed", "fail"), ("ok", "success")])
def test_other_words_for_a_status_mean_the_status(word: str, status: str) -> None:
    assert holds(f"outcome={word}", outcome=status)
    assert not holds(f"outcome!={word}", outcome=status)


def test_a_condition_can_test_a_custom_status_word_of_the_stage() -> None:
    assert holds("outcome=needs_port", outcome="success", raw="needs_port")
    assert holds("outcome=success", outcome="success", raw="needs_port")
    assert not holds("outcome=port", outcome="success", raw="needs_port")


def test_two_equals_signs_are_read_as_one_with_a_warning() -> None:
    condition = parse_condition("review_passed == false && x==1")
    assert condition.holds({"review_passed": False, "x": "1"})
    assert condition.warnings == ("== is read as =",)


@pytest.mark.parametrize(
    ("text", "at", "why"),
    [
        ("a=1 || b=2", 4, "'||'"),
        ("count >= 5", 6, "'>='"),
        ("a < 2", 2, "'<'"),
        ("notes contains x", 6, "'contains'"),
        ("!a", 0, "'!'"),
        ("a=1 &&", 6, "missing at the end"),
        ("&& a=1", 0, "cannot be read"),
        ("a=1 & b=2", 4, "'&'"),
        ('a="x', 2, "not closed"),
        ("a=b c", 4, "cannot be read"),
        ("a=(1)", 2, "cannot be read"),
        ("=1", 0, "cannot be read"),
        ("a=1=2", 3, "cannot be read"),
        ('"a"=1', 0, "string"),
    ],
)
def test_an_invalid_condition_is_refused_with_its_position(text: str, at: int, why: str) -> None:
    with pytest.raises(ConditionError, match="|".join([why.replace("|", r"\|")])) as caught:
        parse_condition(text)
    assert caught.value.at == at


def test_a_very_long_condition_is_refused() -> None:
    with pytest.raises(ConditionError, match="10,000"):
        parse_condition("a=1 && " * 5_000 + "b=2")


class Trap:
    """Would tell if it were called or looked into."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)

    def __str__(self) -> str:
        return "trap"


pieces = st.sampled_from(
    [
        "a",
        "outcome",
        "context.x",
        "=",
        "!=",
        "==",
        "&&",
        " ",
        '"',
        "\\",
        "x y",
        "__class__",
        "()",
        "||",
        "\n",
        "é",
        ".",
        "-",
    ]
)


@given(st.lists(pieces, max_size=14).map("".join) | st.text(max_size=30))
def test_any_text_is_a_condition_or_an_error_and_runs_nothing(text: str) -> None:
    try:
        condition = parse_condition(text)
    except ConditionError as error:
        assert 0 <= error.at <= len(text)
    else:
        assert condition.holds({"a": Trap(), "x": Trap()}, outcome="success") in (True, False)


@given(st.text(max_size=20), st.text(max_size=20))
def test_a_quoted_value_is_compared_exactly(value: str, other: str) -> None:
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    assert holds(f'k="{quoted}"', {"k": value})
    assert holds(f'k="{quoted}"', {"k": other}) == (value == other)
    assert holds(f'k!="{quoted}"', {"k": other}) != (value == other)
