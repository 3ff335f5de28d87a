"""Write graphs as DOT."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal

from context_compiler.paths import unify_lines
from context_compiler.pipeline.attributes import Value, as_text
from context_compiler.pipeline.graph import Graph

_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")
_WORDS = frozenset({"digraph", "graph", "node", "edge", "subgraph", "strict"})
_QUOTING = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"})


def to_dot(graph: Graph) -> str:
    """Serialize a graph to DOT, so that `parse_dot(to_dot(graph)) == graph`, but for line ends in texts.

    Settings come first, then stages, subgraphs with their members, and edges. Defaults are part of the attributes of
    each stage and edge. Classes from subgraphs are not written, because parsing derives them again.
    """
    lines = [f"digraph {_format_name(graph.name)} {{" if graph.name else "digraph {"]
    lines += [f"  {_format_key(key)}={_format_value(value)}" for key, value in graph.attrs.items()]
    lines += [f"  {_format_name(node.name)}{_format_block(node.attrs)}" for node in graph.nodes.values()]
    lines += _subgraph_lines(graph)
    for edge in graph.edges:
        lines.append(f"  {_format_name(edge.source)} -> {_format_name(edge.target)}{_format_block(edge.attrs)}")
    return "\n".join([*lines, "}", ""])


def _subgraph_lines(graph: Graph) -> Iterable[str]:
    """Yield the lines of nested subgraphs, in order, with a stack instead of recursion."""
    inner: dict[int | None, list[int]] = {}
    for index, subgraph in enumerate(graph.subgraphs):
        inner.setdefault(subgraph.parent, []).append(index)
    waiting: list[tuple[int | None, int]] = [(index, 1) for index in reversed(inner.get(None, ()))]
    while waiting:
        index, depth = waiting.pop()
        indent = "  " * depth
        if index is None:
            yield f"{indent}}}"
            continue
        subgraph = graph.subgraphs[index]
        yield f"{indent}subgraph {_format_name(subgraph.name)} {{" if subgraph.name else f"{indent}subgraph {{"
        yield from (f"{indent}  {_format_key(key)}={_format_value(value)}" for key, value in subgraph.attrs.items())
        yield from (f"{indent}  {_format_name(name)}" for name in subgraph.nodes)
        waiting.append((None, depth))
        waiting += [(child, depth + 1) for child in reversed(inner.get(index, ()))]


def _format_block(attrs: Mapping[str, Value]) -> str:
    inner = ", ".join(f"{_format_key(key)}={_format_value(value)}" for key, value in attrs.items())
    return f" [{inner}]" if inner else ""


def _format_name(name: str) -> str:
    return name if _BARE.fullmatch(name) and name not in _WORDS else _quote(name)


def _format_key(key: str) -> str:
    return key if _KEY.fullmatch(key) and key not in _WORDS else _quote(key)


def _format_value(value: Value) -> str:
    if isinstance(value, int):
        return as_text(value)
    if isinstance(value, float):
        number = format(Decimal(repr(value)), "f")
        return number if "." in number else f"{number}.0"
    return _quote(value)


def _quote(text: str) -> str:
    return f'"{unify_lines(text).translate(_QUOTING)}"'
