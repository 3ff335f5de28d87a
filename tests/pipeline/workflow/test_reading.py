"""A markdown file is read as a pipeline, a stage a step; what is wrong with it is said with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from context_compiler.errors import GraphError
from context_compiler.pipeline import Severity, parse_dot, to_dot, validate
from context_compiler.workflow import apply_directives, load_workflow, parse_workflow

EXAMPLE = Path(__file__).parents[3] / "examples" / "release_notes.md"

FILE = """\
---
name: Weekly report
description: for the team
goal: Say what happened
model: small
fidelity: summary:low
---
# For people

@model nobody

## Gather
@model big
@context-helper [[notes]]

Read the log.

```md
## not a step
```

### Nor this

## Write ##

Write it.
"""


def test_each_heading_is_a_stage_and_they_run_in_order() -> None:
    graph = parse_workflow(FILE, "weekly.md")
    assert [*graph.nodes] == ["start", "gather", "write", "done"]
    assert [(edge.source, edge.target) for edge in graph.edges] == [
        *(("start", "gather"), ("gather", "write"), ("write", "done")),
    ]
    assert (graph.name, graph.label, graph.goal) == ("weekly_report", "Weekly report", "Say what happened")
    assert graph.default_fidelity == "summary:low" and graph.strict_failure_edges
    assert validate(graph) == ()


def test_directives_set_the_model_and_the_template_of_a_step() -> None:
    nodes = apply_directives(parse_workflow(FILE)).nodes
    gather, write = nodes["gather"], nodes["write"]
    assert (gather.llm_model, gather.context_helper) == ("big", "notes")
    assert gather.prompt == "Read the log.\n\n```md\n## not a step\n```\n\n### Nor this"
    assert (write.llm_model, write.context_helper, write.prompt) == ("", "", "Write it.")
    assert "nobody" not in to_dot(parse_workflow(FILE))


def test_a_workflow_is_written_as_dot_and_read_back_unchanged() -> None:
    graph = parse_workflow(FILE)
    assert parse_dot(to_dot(graph)) == graph


def test_steps_have_unique_names_in_any_script() -> None:
    text = "## Start\na\n## Check\nb\n## Check!\nc\n## 日本\nd\n## done\ne\n## 2nd\nf\n## Check 2\ng"
    graph = parse_workflow(text)
    assert [*graph.nodes] == [
        "start",
        "start_2",
        "check",
        "check_2",
        "step_4",
        "done_2",
        "step_2nd",
        "check_2_2",
        "done",
    ]
    assert graph.nodes["step_4"].label == "日本" and validate(graph) == ()


def test_with_fidelity_full_all_steps_are_one_conversation() -> None:
    assert parse_workflow("---\nfidelity: full\n---\n## A\na").default_thread_id == "workflow"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", 1, "no step"),
        ("# Title\n\ntext\n", 1, "no step"),
        ("---\nname: x\n---\n\n###  No\n", 1, "no step"),
        ("## A\nx\n\n##\ny", 4, "no name"),
        ("## A\nx\n## ##\ny", 3, "no name"),
        ("---\nname: x\nfidelity: most\n---\n## A\nx", 3, "fidelity"),
        ("---\nname: [a, b]\n---\n## A\nx", 2, "give a text"),
        ("---\nname: {a: b}\n---\n## A\nx", 2, "give a text"),
        ("---\nname: x\n## A\nx", 1, "never closed"),
        ("---\n- a\n---\n## A\nx", 2, "key: value"),
        ("---\nname: &x [*x]\n---\n## A\nx", 2, "alias"),
        ("## A\nx\x00", 2, "NUL"),
        ("## A\n" + "x" * 1_000_001, 1, "longer"),
        ("## A\n" * 5_001, 5_001, "at most 5,000"),
    ],
)
def test_a_file_that_is_not_a_workflow_is_refused_with_the_line(text: str, line: int, said: str) -> None:
    with pytest.raises(GraphError) as caught:
        parse_workflow(text, "w.md")
    assert caught.value.line == line and said in str(caught.value) and str(caught.value).startswith(f"w.md:{line}: ")


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="cannot be read"):
        load_workflow(tmp_path / "none.md")
    (tmp_path / "latin.md").write_bytes(b"## A\nna\xefve")
    with pytest.raises(GraphError, match="UTF-8"):
        load_workflow(tmp_path / "latin.md")


def test_odd_input_is_reported_with_rule_step_and_line() -> None:
    text = "---\ngaol: x\ntags: [a]\n---\n## A\n@modle x\n@context-helper\nDo it.\n## B\n\n## C\n\n```\n## D\n"
    diagnostics = {
        (diagnostic.rule, diagnostic.node_id, diagnostic.line, diagnostic.severity)
        for diagnostic in validate(parse_workflow(text))
    }
    assert diagnostics == {
        ("front_matter_known", None, 2, Severity.WARNING),
        ("front_matter_known", None, 3, Severity.INFO),
        ("directive_known", "a", 6, Severity.WARNING),
        ("directive_known", "a", 7, Severity.WARNING),
        ("step_empty", "b", 9, Severity.WARNING),
        ("fence_closed", None, 13, Severity.WARNING),
    }


def test_blank_lines_above_a_step_do_not_move_the_lines_that_are_named() -> None:
    (one,) = validate(parse_workflow("# T\n\n## A\n\n\n@modle x\ny"))
    assert one.line == 6


def test_line_ends_and_byte_order_marks_of_any_system_are_read() -> None:
    assert (
        parse_workflow("\ufeff" + FILE.replace("\n", "\r\n"))
        == parse_workflow(FILE)
        == parse_workflow(FILE.replace("\n", "\r"))
    )


def test_two_of_the_five_steps_of_the_example_have_a_context_helper() -> None:
    graph = apply_directives(load_workflow(EXAMPLE))
    steps = [node for node in graph.nodes.values() if node.handler == "codergen"]
    assert len(steps) == 5
    assert [node.context_helper for node in steps if node.context_helper] == ["chat_compiler", "goal_oriented"]
    assert validate(load_workflow(EXAMPLE)) == ()


LINES = st.lists(
    st.sampled_from(
        [
            "## A",
            "##",
            "## ```",
            "```",
            "~~~",
            "---",
            "name: x",
            "@model x",
            "@x",
            "text",
            "",
            "# T",
            "\t## B",
            "## A ##",
        ]
    ),
    max_size=12,
)


@given(LINES)
def test_any_text_is_a_workflow_or_an_error_with_a_line(lines: list[str]) -> None:
    try:
        graph = parse_workflow("\n".join(lines))
    except GraphError as error:
        assert error.line is not None and 1 <= error.line <= max(1, len(lines))
        return
    assert parse_dot(to_dot(graph)) == graph
    assert not [diagnostic for diagnostic in validate(graph) if diagnostic.severity is Severity.ERROR]


@pytest.mark.parametrize("line", ["## A\nx", "## A", "```\n## A\n```\n## B", "---", "@model x\n## A", "## " + "é" * 50])
def test_a_large_file_is_read_or_refused(line: str) -> None:
    text = "\n".join([line] * min(1_200, 400_000 // len(line)))
    try:
        validate(parse_workflow(text))
    except GraphError:
        pass


@pytest.mark.parametrize("blank", [" ", "\t", " #"])
def test_a_heading_of_blanks_is_read(blank: str) -> None:
    graph = parse_workflow(f"## a{blank * 100_000}b {blank * 100_000}c\nGo.\n")
    assert len(graph.nodes) == 3


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no file without an end here")
def test_a_file_is_read_only_up_to_the_limit_of_a_workflow(tmp_path: Path) -> None:
    (tmp_path / "endless.md").symlink_to("/dev/zero")
    with pytest.raises(GraphError, match="longer than"):
        load_workflow(tmp_path / "endless.md")
