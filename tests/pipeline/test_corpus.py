"""Pipelines that other projects wrote are read, or refused for a reason that can be named."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from context_compiler.errors import GraphError
from context_compiler.pipeline import Severity, parse_dot, to_dot, validate

REFUSED = {
    "docs_strongdm_dot specs_simple_example_integration_smoke_test.dot": "a pipeline begins with: digraph",
}
"""Files that hold no graph, and what is said of them: this one is a piece of Python with a graph in a string."""

ERRORS = {
    "terminal_node": {"demo_tmux-agent-test_failure-routing.dot", "demo_tmux-agent-test_multi-node.dot"},
    "condition_syntax": {"test_docs_tutorials_branch-loop_fixed-loop.fabro"},
    "start_node": {"test_invalid.fabro"},
    "exit_no_outgoing": {"test_invalid.fabro"},
}
"""Graphs that must not be run: two exits, a comparison that there is not, and a file that is wrong on purpose."""


def test_every_pipeline_of_the_corpus_is_read_or_refused_for_a_reason(
    data_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted(path for path in (data_folder / "dots").rglob("*") if path.suffix in (".dot", ".fabro"))
    assert files
    table: dict[str, Counter[str]] = {}
    errors: dict[str, set[str]] = {}
    for file in files:
        row = table.setdefault(file.relative_to(data_folder / "dots").parts[0], Counter())
        row["files"] += 1
        try:
            graph = parse_dot(file.read_text(encoding="utf-8"), file.name)
        except GraphError as error:
            assert REFUSED[file.name] in error.message
            row["refused"] += 1
            continue
        assert parse_dot(to_dot(graph)) == graph
        row.update(stages=len(graph.nodes), edges=len(graph.edges), forgiven=len(graph.diagnostics))
        for diagnostic in validate(graph):
            row[diagnostic.severity] += 1
            if diagnostic.severity is Severity.ERROR:
                errors.setdefault(diagnostic.rule, set()).add(file.name)
    with capsys.disabled():
        _print(table)
    assert errors == ERRORS


COLUMNS = ("files", "refused", "stages", "edges", "forgiven", *Severity)


def _print(table: dict[str, Counter[str]]) -> None:
    total: Counter[str] = Counter()
    for row in table.values():
        total.update(row)
    print(f"\n{'project':40}" + "".join(f"{column.lower():>10}" for column in COLUMNS))
    for name, row in [*table.items(), ("all", total)]:
        print(f"{name:40}" + "".join(f"{row[column]:>10,}" for column in COLUMNS))
