"""A graph is written back as DOT that reads as the same graph: `parse_dot(to_dot(graph)) == graph`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal

from context_compiler.pipeline.attributes import Value
from context_compiler.pipeline.graph import Graph

_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")
_WORDS = frozenset({"digraph", "graph", "node", "edge", "subgraph", "strict"})
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"})


def to_dot(graph: Graph) -> str:
    """The graph as DOT: settings, then stages, then subgraphs with their members, then edges; defaults are spelt out.

    Classes that do not come from a subgraph of the graph are part of `class` already.
    """
    lines = [f"digraph {_name(graph.name)} {{" if graph.name else "digraph {"]
    lines += [f"  {_key(key)}={_value(value)}" for key, value in graph.attrs.items()]
    lines += [f"  {_name(node.name)}{_block(node.attrs)}" for node in graph.nodes.values()]
    lines += _subgraphs(graph)
    for edge in graph.edges:
        lines.append(f"  {_name(edge.source)} -> {_name(edge.target)}{_block(edge.attrs)}")
    return "\n".join([*lines, "}", ""])


def _subgraphs(graph: Graph) -> Iterable[str]:
    """Subgraphs inside each other, in their order; a stack instead of recursion."""
    inner: dict[int | None, list[int]] = {}
    for place, one in enumerate(graph.subgraphs):
        inner.setdefault(one.parent, []).append(place)
    waiting: list[tuple[int | None, int]] = [(place, 1) for place in reversed(inner.get(None, ()))]
    while waiting:
        place, depth = waiting.pop()
        indent = "  " * depth
        if place is None:
            yield f"{indent}}}"
            continue
        one = graph.subgraphs[place]
        yield f"{indent}subgraph {_name(one.name)} {{" if one.name else f"{indent}subgraph {{"
        yield from (f"{indent}  {_key(key)}={_value(value)}" for key, value in one.attrs.items())
        yield from (f"{indent}  {_name(name)}" for name in one.nodes)
        waiting.append((None, depth))
        waiting += [(child, depth + 1) for child in reversed(inner.get(place, ()))]


def _block(attrs: Mapping[str, Value]) -> str:
    inner = ", ".join(f"{_key(key)}={_value(value)}" for key, value in attrs.items())
    return f" [{inner}]" if inner else ""


def _name(name: str) -> str:
    return name if _BARE.fullmatch(name) and name not in _WORDS else _quoted(name)


def _key(key: str) -> str:
    return key if _KEY.fullmatch(key) and key not in _WORDS else _quoted(key)


def _value(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        number = format(Decimal(repr(value)), "f")
        return number if "." in number else f"{number}.0"
    return _quoted(value)


def _quoted(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'
