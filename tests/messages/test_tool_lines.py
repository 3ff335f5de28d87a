from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from context_compiler.messages.fences import clip
from context_compiler.messages.tool_lines import call_line, outcome_line

TEXT = st.text(max_size=400)
WIDTH = st.integers(min_value=0, max_value=200)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=60),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


def stands_on_one_line(line: str, width: int) -> bool:
    return len(line) <= width and not any(unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") for char in line)


@given(tool=TEXT, args=st.dictionaries(st.text(max_size=12), VALUE, max_size=6).map(json.dumps) | TEXT, width=WIDTH)
def test_any_call_becomes_one_line_within_its_width(tool: str, args: str, width: int) -> None:
    assert stands_on_one_line(call_line(tool, args, width=width), width)


@given(text=VALUE.map(json.dumps) | TEXT, failed=st.booleans(), width=WIDTH)
def test_any_result_becomes_one_line_within_its_width(text: str, failed: bool, width: int) -> None:
    assert stands_on_one_line(outcome_line(text, failed=failed, width=width), width)


@given(text=TEXT, width=WIDTH)
def test_a_clipped_text_keeps_both_its_ends(text: str, width: int) -> None:
    short = clip(text, width)
    assert len(short) <= width
    if len(text) <= width:
        assert short == text
    elif width >= 4:
        assert text.startswith(short.split("…")[0][:1]) and text.endswith(short[-1])


def test_the_most_telling_arguments_come_first() -> None:
    args = json.dumps({"edits": [{"old": "a"}], "timeout": 30, "content": "x" * 1_000, "path": "src/main.py"})
    line = call_line("edit", args)
    assert line.startswith("edit(path=src/main.py, timeout=30, content=xxx")
    assert "…" in line and "edits" in line


def test_a_lone_argument_may_fill_the_line() -> None:
    command = (
        "pytest tests/test_orders.py -k refund --maxfail 1 -x -q -p no:cacheprovider --tb short && git status --short"
    )
    assert call_line("bash", json.dumps({"command": command})) == f"bash(command={command})"


def test_arguments_that_do_not_fit_are_marked_as_missing() -> None:
    line = call_line("book", json.dumps({f"key{at}": "value" * 5 for at in range(20)}), width=100)
    assert line.endswith(", …)") and len(line) <= 100


@pytest.mark.parametrize(
    ("args", "line"), [("{}", "now()"), ("", "now()"), ("[1, 2]", "now([1, 2])"), ("{bad", "now({bad)")]
)
def test_arguments_that_are_not_an_object_are_shown_as_they_are(args: str, line: str) -> None:
    assert call_line("now", args) == line


@pytest.mark.parametrize("text", ["", "   ", "\n\t\n", "\x00\x01", "\x1b[0m"])
def test_a_result_without_text_is_empty(text: str) -> None:
    assert outcome_line(text, failed=False) == "(empty)"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("collected 3 items\n\nnpm error Lifecycle script `check` failed with error:\nmore", "npm error Lifecycle"),
        ("a.ts(1,2): ok\nError: not enough seats on flight HAT229", "Error: not enough seats on flight HAT229"),
        ("running\nCommand exited with code 2", "Command exited with code 2"),
        ("Traceback (most recent call last):\n  File \"a.py\", line 1\nKeyError: 'id'", "KeyError: 'id'"),
        ("cat: x.txt: No such file or directory", "cat: x.txt: No such file or directory"),
        ("\x1b[31merror\x1b[0m: bad\tthing", "error: bad thing"),
    ],
)
def test_an_error_is_shown_first(text: str, line: str) -> None:
    assert outcome_line(text, failed=False).startswith(line)


@pytest.mark.parametrize(
    "text", ["import os\nraise ValueError(name)\n", "export class Box {\n  throw new Error('x');", "exited with code 0"]
)
def test_source_code_that_mentions_errors_is_not_a_failure(text: str) -> None:
    assert outcome_line(text, failed=False).startswith(text.splitlines()[0])


def test_a_failed_call_shows_the_line_that_mentions_it() -> None:
    text = "step 1 of 2\nthe upload was refused by the server\nstep 2 skipped"
    assert outcome_line(text, failed=True).startswith("the upload was refused")
    assert outcome_line(text, failed=False).startswith("step 1 of 2")


def test_a_long_result_shows_its_first_telling_line_and_the_number_of_other_lines() -> None:
    assert outcome_line("----\n\nOrders of May\n1\n2\n", failed=False) == "Orders of May (+3 lines)"


def test_a_json_result_shows_its_key_scalars() -> None:
    profile = {"address": {"zip": 1}, "email": "a@example.org", "reservations": ["AB1", "CD2"], "user_id": "mia_1"}
    line = outcome_line(json.dumps(profile), failed=False)
    assert line == 'user_id=mia_1, email=a@example.org, reservations=["AB1","CD2"], address={1 keys}'
    assert outcome_line(json.dumps([profile, profile]), failed=False).startswith("[2 entries] user_id=mia_1")
    assert outcome_line('{"id": 7, "error": "not found"}', failed=True) == "error=not found, id=7"


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("paid with credit_card_9879898 as asked by the customer", "paid with … customer"),
        ("x" * 60, "x" * 15 + "…" + "x" * 10),
    ],
)
def test_a_name_is_left_out_rather_than_cut(text: str, short: str) -> None:
    assert clip(text, 26) == short
