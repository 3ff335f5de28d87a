"""Directives at the top of a stage's prompt become what the stage says of itself, before the graph is checked and run.

`@model NAME` is its `llm_model`, `@context-helper TEMPLATE` its `context_helper`. What the prompt says is nearer to
the stage than its attributes, so it counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType

from context_compiler.pipeline.diagnostics import Diagnostic, Severity
from context_compiler.pipeline.directives import Directives, read_directives
from context_compiler.pipeline.graph import Graph
from context_compiler.pipeline.nodes import AGENTS, Node

DIRECTIVES = MappingProxyType({"model": "llm_model", "context-helper": "context_helper"})
"""What may stand at the top of a prompt, and the attribute that it becomes."""


def apply_directives(graph: Graph) -> Graph:
    """A graph whose stages say as attributes what their prompts direct; the same graph when that is nothing."""
    lowered = {name: _lowered(node, said) for name, node, said in _directed(graph) if said.text != node.prompt}
    return replace(graph, nodes={**graph.nodes, **lowered}) if lowered else graph


def directives_known(graph: Graph) -> Iterator[Diagnostic]:
    """A directive is one that is known, has a value, and is given once."""
    for name, node, said in _directed(graph):
        for one in said.findings:
            foreign = one.kind == "unknown" and one.near is None  # of another application, as like as not
            placed = node.prompt_line is not None
            yield Diagnostic(
                rule="directive_known",
                severity=Severity.INFO if foreign else Severity.WARNING,
                message=one.message,
                fix=one.fix,
                node_id=name,
                line=one.line if placed else node.line,
                column=1 if placed else node.column,
            )


def _directed(graph: Graph) -> Iterator[tuple[str, Node, Directives]]:
    """The stages that agents run, with what stands at the top of their prompts."""
    for name, node in graph.nodes.items():
        if node.handler in AGENTS and "@" in node.prompt:
            yield name, node, read_directives(node.prompt, DIRECTIVES, path=graph.path, line=node.prompt_line or 1)


def _lowered(node: Node, said: Directives) -> Node:
    rest = {key: value for key, value in node.attrs.items() if key not in ("prompt", *node.spellings("prompt"))}
    prompt = {"prompt": said.text} if said.text.strip() else {}
    return replace(node, attrs={**rest, **prompt, **{DIRECTIVES[name]: value for name, value in said.values.items()}})
