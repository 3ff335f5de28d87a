"""Directives stand at the top of a text, and nothing else of a text is ever taken for one."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from context_compiler.workflow import Directives, read_directives

KNOWN = ("model", "context-helper")


def read(text: str) -> Directives:
    return read_directives(text, KNOWN)


@pytest.mark.parametrize(
    "line",
    [
        *("@context-helper notes", "@context-helper: notes", "@context-helper:notes", "@context_helper notes"),
        *(
            "@CONTEXT-Helper\tnotes",
            "   @context-helper   notes  ",
            '@context-helper "notes"',
            "@context-helper 'notes'",
        ),
        *("@context-helper [[notes]]", '@context-helper: "[[notes]]"', "@context-helper [[ notes | the notes ]]"),
        *(
            "@context-helper `notes`",
            "@context-helper notes\r",
            "\n\n@context-helper notes",
            "  \n@context-helper notes",
        ),
    ],
)
def test_a_directive_may_be_written_in_many_ways(line: str) -> None:
    said = read(f"{line}\n\nWrite it.")
    assert (said.values, said.text, said.findings) == ({"context-helper": "notes"}, "Write it.", ())


@pytest.mark.parametrize(
    "text",
    [
        *("", "\n", "Write it.", "Write it.\n@model x", "a\n\n@model x", "\\@model x", "@", "@ model x", "@@model x"),
        *("@model(x)", "@model=x", "@model,x", "user@model x", "    @model x", "@1model x", "@modèle x", "-@model x"),
        *(
            "```\n@model x\n```",
            "> @model x",
            "<!-- @model x -->",
            "@" + "m" * 65 + " x",
            "\ufeff@model x",
            "\x00\n@model x",
        ),
        *("@model://host/x", "＠model x", "@model\u00a0x", "@model\u2028x"),
    ],
)
def test_what_is_no_directive_is_content_and_stays_as_it_is(text: str) -> None:
    said = read(text)
    assert (said.text, said.values, said.found) == (text, {}, ())


def test_the_first_line_of_content_ends_them() -> None:
    said = read("@model a\n\nDo it.\n@context-helper x\n@model b")
    assert said.values == {"model": "a"}
    assert said.text == "Do it.\n@context-helper x\n@model b"


def test_of_two_of_one_name_the_last_counts() -> None:
    said = read("@model a\n@context-helper x\n@MODEL: b\nDo it.")
    assert said.values == {"model": "b", "context-helper": "x"}
    assert [str(one) for one in said.findings] == [
        "line 3: @model is given more than once, and the last one counts; keep one"
    ]


@pytest.mark.parametrize(
    "line", ["@model", "@model:", "@model   ", '@model ""', "@model [[]]", "@model:\r", "@model [[|x]]"]
)
def test_one_without_a_value_is_passed_over_and_said(line: str) -> None:
    said = read(f"@model a\n{line}\nDo it.")
    assert (said.values, said.text) == ({"model": "a"}, "Do it.")
    assert [one.kind for one in said.findings] == ["empty"]


def test_unknown_ones_are_handed_back_untouched() -> None:
    text = "@output  file: x (scope=run)\n@model a\n@Run-On: daily\n\nDo it.  \n"
    said = read(text)
    assert said.text == "@output  file: x (scope=run)\n@Run-On: daily\n\nDo it.  \n"
    assert [(one.name, one.value, one.line) for one in said.found] == [
        *(("output", "file: x (scope=run)", 1), ("model", "a", 2), ("Run-On", "daily", 3)),
    ]


def test_a_finding_has_file_line_and_the_nearest_known_name() -> None:
    said = read_directives("\n@context-helpr x", KNOWN, path="steps.md", line=40)
    (one,) = said.findings
    assert (one.kind, one.path, one.line, one.near) == ("unknown", "steps.md", 41, "context-helper")
    assert str(one).startswith(
        "steps.md:41: @context-helpr is not known here"
    ) and "did you mean @context-helper?" in str(one)
    (far,) = read("@zzz").findings
    assert far.near is None and "known are @model, @context-helper" in far.fix


def test_a_value_is_data_whatever_it_holds() -> None:
    value = "../../etc/passwd {{ 7*7 }} $goal \x1b[31m @model \x00 " + "x" * 10_000
    assert read(f"@context-helper {value}\nx").values == {"context-helper": value}


@pytest.mark.parametrize(
    "line", ["@model x", "@nobody x", "@model", "x@model", "@" + "a" * 64, '@model "' + '"' * 50, " \t "]
)
def test_of_many_lines_few_findings_are_kept(line: str) -> None:
    text = f"{line}\n" * (300_000 // (len(line) + 1))
    said = read(text)
    assert len(said.findings) <= 100


WORDS = st.text(alphabet=string.ascii_letters + string.digits + "@:-_ \t\n\r\"'[]|`\\\x00é", max_size=120)


@given(WORDS)
def test_what_is_left_holds_no_known_directive_and_reads_as_itself(text: str) -> None:
    said = read(text)
    again = read(said.text)
    assert (again.text, again.values) == (said.text, {})
    assert {*said.values} <= {*KNOWN}


@given(WORDS, WORDS)
def test_content_is_never_changed(top: str, content: str) -> None:
    text = f"{top}\nHere it begins: {content}"
    assert read(text).text.endswith(f"Here it begins: {content}")
