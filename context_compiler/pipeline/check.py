"""Validation of graphs: each rule is a function from a graph to its findings.

An error prevents a run, a warning marks a probable mistake, an info something that may surprise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import TypeAlias

from context_compiler.errors import GraphError
from context_compiler.pipeline.graph import HANDLERS, Diagnostic, Graph, Severity
from context_compiler.pipeline.rules import ADVICE, CONTENT, STRUCTURE, node_diagnostic
from context_compiler.pipeline.workflow import directives_known

Rule: TypeAlias = Callable[[Graph], Iterable[Diagnostic]]

RULES: tuple[Rule, ...] = (*STRUCTURE, *CONTENT, *ADVICE, directives_known)


def type_known(graph: Graph, handlers: Collection[str] = ()) -> Iterator[Diagnostic]:
    """A `type` names a known handler."""
    for node in graph.nodes.values():
        if node.type and node.type not in HANDLERS.values() and node.type not in handlers:
            fix = f"use one of {', '.join(HANDLERS.values())}, or register a handler of that name"
            yield node_diagnostic(node, "type_known", Severity.WARNING, f"there is no handler {node.type!r}", fix)


def validate(
    graph: Graph, extra_rules: Iterable[Rule] = (), *, handlers: Collection[str] = ()
) -> tuple[Diagnostic, ...]:
    """All findings about a graph, errors first, then in the order of the rules.

    Args:
        graph: The graph; findings of the parser are included.
        extra_rules: Rules of your own.
        handlers: Registered handler types beyond the built-in ones.
    """
    found = list(graph.diagnostics)
    for rule in (*RULES, partial(type_known, handlers=handlers), *extra_rules):
        found += rule(graph)
    order = tuple(Severity)
    return tuple(sorted(found, key=lambda one: order.index(one.severity)))


def validate_or_raise(
    graph: Graph, extra_rules: Iterable[Rule] = (), *, handlers: Collection[str] = ()
) -> tuple[Diagnostic, ...]:
    """Validate a graph before it runs; all findings if none is an error.

    Raises:
        GraphError: it has errors; `diagnostics` holds all findings.
    """
    found = validate(graph, extra_rules, handlers=handlers)
    errors = [one for one in found if one.severity is Severity.ERROR]
    if errors:
        first = errors[0]
        about = f"{first.place}: " if first.node_id is not None or first.edge is not None else ""
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        message = f"{first.rule}: {about}{first.message}; {first.fix}{more}"
        raise GraphError(message, path=graph.path, line=first.line, column=first.column, diagnostics=found)
    return found
