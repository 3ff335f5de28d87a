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
def test_a_directive_can_be_written_in_several_forms(line: str) -> None:
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
def test_other_lines_are_content_and_unchanged(text: str) -> None:
    said = read(text)
    assert (said.text, said.values, said.found) == (text, {}, ())


def test_the_first_line_of_content_ends_them() -> None:
    said = read("@model a\n\nDo it.\n@context-helper x\n@model b")
    assert said.values == {"model": "a"}
    assert said.text == "Do it.\n@context-helper x\n@model b"


def test_the_last_of_two_directives_with_one_name_counts() -> None:
    said = read("@model a\n@context-helper x\n@MODEL: b\nDo it.")
    assert said.values == {"model": "b", "context-helper": "x"}
    assert [str(finding) for finding in said.findings] == [
        "line 3: @model is given more than once, and the last one counts; keep one"
    ]


@pytest.mark.parametrize(
    "line", ["@model", "@model:", "@model   ", '@model ""', "@model [[]]", "@model:\r", "@model [[|x]]"]
)
def test_a_directive_without_a_value_is_skipped_and_reported(line: str) -> None:
    said = read(f"@model a\n{line}\nDo it.")
    assert (said.values, said.text) == ({"model": "a"}, "Do it.")
    assert [one.kind for one in said.findings] == ["empty"]


def test_unknown_directives_are_returned_unchanged() -> None:
    text = "@output  file: x (scope=run)\n@model a\n@Run-On: daily\n\nDo it.  \n"
    said = read(text)
    assert said.text == "@output  file: x (scope=run)\n@Run-On: daily\n\nDo it.  \n"
    assert [(directive.name, directive.value, directive.line) for directive in said.found] == [
        *(("output", "file: x (scope=run)", 1), ("model", "a", 2), ("Run-On", "daily", 3)),
    ]


def test_a_finding_has_file_line_and_the_nearest_known_name() -> None:
    said = read_directives("\n@context-helpr x", KNOWN, path="steps.md", line=40)
    (finding,) = said.findings
    assert (finding.kind, finding.path, finding.line, finding.near) == ("unknown", "steps.md", 41, "context-helper")
    assert str(finding).startswith(
        "steps.md:41: @context-helpr is not known here"
    ) and "did you mean @context-helper?" in str(finding)
    (far,) = read("@zzz").findings
    assert far.near is None and "known are @model, @context-helper" in far.fix


def test_a_value_is_data_whatever_it_contains() -> None:
    value = "../../etc/passwd {{ 7*7 }} $goal \x1b[31m @model \x00 " + "x" * 10_000
    assert read(f"@context-helper {value}\nx").values == {"context-helper": value}


@pytest.mark.parametrize(
    "line", ["@model x", "@nobody x", "@model", "x@model", "@" + "a" * 64, '@model "' + '"' * 50, " \t "]
)
def test_the_number_of_findings_is_bounded(line: str) -> None:
    text = f"{line}\n" * (300_000 // (len(line) + 1))
    said = read(text)
    assert len(said.findings) <= 100


WORDS = st.text(alphabet=string.ascii_letters + string.digits + "@:-_ \t\n\r\"'[]|`\\\x00é", max_size=120)


@given(WORDS)
def test_the_remaining_text_has_no_known_directive_and_parses_to_itself(text: str) -> None:
    said = read(text)
    again = read(said.text)
    assert (again.text, again.values) == (said.text, {})
    assert {*said.values} <= {*KNOWN}


@given(WORDS, WORDS)
def test_content_is_never_changed(top: str, content: str) -> None:
    text = f"{top}\nHere it begins: {content}"
    assert read(text).text.endswith(f"Here it begins: {content}")
