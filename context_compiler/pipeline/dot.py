"""A pipeline is read from DOT: strict about what it means, lenient about how it is punctuated.

What has to be forgiven is a warning of the graph; what cannot be read is a `GraphError` with file, line and
column. Reading takes time in proportion to the text, and no more memory than a few times its size.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias, cast

from lark import Token, Tree

from context_compiler.errors import GraphError
from context_compiler.pipeline.attributes import Value
from context_compiler.pipeline.blocks import Leniencies, block, hop, identifier, setting
from context_compiler.pipeline.dot_syntax import LARGEST, Unreadable, statements
from context_compiler.pipeline.graph import Edge, Graph, Node, Subgraph

WIDTH = 100
"""Characters of a source line that an error shows."""


def parse_dot(text: str, path: str | None = None) -> Graph:
    """The graph that a DOT source describes; `path` is only named in errors.

    Raises:
        GraphError: it is none; the message says where and why, and `snippet` shows the place.
    """
    source = text.removeprefix("\ufeff").replace("\r\n", "\n")
    try:
        graph = _Reader(text=source).graph(statements(source))
    except Unreadable as error:
        line, column, snippet = pointed(source, error.at)
        raise GraphError(error.message, path=path, line=line, column=column, snippet=snippet) from None
    return replace(graph, path=path, source=text)


def load_dot(path: Path) -> Graph:
    """The graph in a file, of which no more is read than a source may have.

    Raises:
        OSError: it cannot be read.
        UnicodeDecodeError: it is no text in UTF-8.
        GraphError: it is no graph.
    """
    with path.open(encoding="utf-8") as file:
        return parse_dot(file.read(LARGEST + 1), path=str(path))


def pointed(text: str, at: int) -> tuple[int, int, str]:
    """Line and column of a character, from 1, and the line with a caret under it."""
    start = text.rfind("\n", 0, at) + 1
    stop = text.find("\n", at)
    line, column = text.count("\n", 0, at) + 1, at - start + 1
    first = max(0, column - 1 - WIDTH // 2)
    shown = text[start + first : stop if stop >= 0 else len(text)][:WIDTH]
    blanks = re.sub(r"[^\t]", " ", shown[: column - 1 - first])
    return line, column, f"{shown}\n{blanks}^"


@dataclass(slots=True)
class _Draft:
    """A stage while its declarations are gathered."""

    attrs: dict[str, Value]
    at: Token
    inside: list[int] = field(default_factory=list[int])


@dataclass(slots=True)
class _Scope:
    """Where statements stand: the graph or one of its subgraphs, with the defaults in force."""

    attrs: dict[str, Value]
    nodes: dict[str, Value]
    edges: dict[str, Value]
    place: int | None = None
    members: list[str] = field(default_factory=list[str])


class _Reader:
    """Goes through statements once, in their order; subgraphs wait on a stack, so nesting costs no recursion."""

    def __init__(self, *, text: str) -> None:
        self._lenient = Leniencies(text)
        self._drafts: dict[str, _Draft] = {}
        self._edges: list[Edge] = []
        self._scopes: list[tuple[str, int | None, _Scope]] = []

    def graph(self, tree: Tree[Token]) -> Graph:
        """The graph of a whole source."""
        title = tree.children[0]
        if isinstance(title, Token) and title.type != "OPEN":
            name = identifier(title, self._lenient)
        else:
            name = ""
            self._lenient.add("anonymous_graph", 0)
        outer = _Scope(attrs={}, nodes={}, edges={})
        self._walk(tree, outer)
        subgraphs = tuple(
            Subgraph(name=title, attrs=scope.attrs, nodes=tuple(dict.fromkeys(scope.members)), parent=parent)
            for title, parent, scope in self._scopes
        )
        nodes = {
            name: Node(
                name=name,
                attrs=draft.attrs,
                derived=derived(subgraphs, draft.inside),
                line=draft.at.line,
                column=draft.at.column,
            )
            for name, draft in self._drafts.items()
        }
        return Graph(
            name=name,
            attrs=outer.attrs,
            nodes=nodes,
            edges=tuple(self._edges),
            subgraphs=subgraphs,
            diagnostics=self._lenient.diagnostics(),
        )

    def _walk(self, tree: Tree[Token], outer: _Scope) -> None:
        waiting = [(iter(_inside(tree)), outer)]
        while waiting:
            children, scope = waiting[-1]
            child = next(children, None)
            if child is None:
                waiting.pop()
            elif isinstance(child, Token):
                key, value = setting(child, self._lenient)
                scope.attrs[key] = value
            elif child.data == "subgraph":
                waiting.append((iter(_inside(child)), self._inner(child, scope)))
            else:
                _STATEMENTS[child.data](self, child.children, scope)

    def _inner(self, tree: Tree[Token], around: _Scope) -> _Scope:
        """What a subgraph begins with: the defaults around it, which it may change for itself."""
        scope = _Scope(attrs={}, nodes=dict(around.nodes), edges=dict(around.edges), place=len(self._scopes))
        title = tree.children[1]
        name = identifier(title, self._lenient) if isinstance(title, Token) and title.type != "OPEN" else ""
        self._scopes.append((name, around.place, scope))
        return scope

    def _defaults(self, children: _Children, scope: _Scope) -> None:
        kinds = {"GRAPH": scope.attrs, "NODE": scope.nodes, "EDGE": scope.edges}
        kinds[_token(children[0]).type].update(self._attributes(children[1:]))

    def _node(self, children: _Children, scope: _Scope) -> None:
        token = _token(children[0])
        name, attrs = identifier(token, self._lenient), self._attributes(children[1:])
        draft = self._drafts.get(name)
        if draft is None:
            self._drafts[name] = draft = _Draft(attrs={**scope.nodes, **attrs}, at=token)
        else:
            draft.attrs.update(attrs)
        scope.members.append(name)
        if scope.place is not None and scope.place not in draft.inside:
            draft.inside.append(scope.place)

    def _edge(self, children: _Children, scope: _Scope) -> None:
        first = _token(children[0])
        hops = [_token(one) for one in children[1:] if _token(one).type == "HOP"]
        attrs = {**scope.edges, **self._attributes(children[1 + len(hops) :])}
        source = identifier(first, self._lenient)
        for one in hops:
            target, at = hop(one, self._lenient), first if one is hops[0] else one
            self._edges.append(Edge(source=source, target=target, attrs=attrs, line=at.line, column=at.column))
            source = target

    def _attributes(self, blocks: _Children) -> dict[str, Value]:
        attrs: dict[str, Value] = {}
        for at, one in enumerate(blocks):
            token = _token(one)
            if at and _token(blocks[at - 1]).endswith(";"):
                raise Unreadable(
                    "a block of attributes follows the stage or edge that it is about", token.start_pos or 0
                )
            attrs.update(block(token, self._lenient))
            if at == 1:
                self._lenient.add("several_blocks", token.start_pos or 0)
        return attrs


_Children: TypeAlias = Sequence[Token | Tree[Token]]
_STATEMENTS = {"defaults": _Reader._defaults, "node": _Reader._node, "edge": _Reader._edge}  # pyright: ignore[reportPrivateUsage]  # of this module


def _token(child: Token | Tree[Token]) -> Token:
    """A child of which the grammar says that it is a symbol."""
    return cast(Token, child)


def _inside(tree: Tree[Token]) -> _Children:
    """The statements between the braces of a graph or subgraph."""
    first = next(at for at, child in enumerate(tree.children) if isinstance(child, Token) and child.type == "OPEN")
    return tree.children[first + 1 : -1]


def derived(subgraphs: Sequence[Subgraph], inside: Sequence[int]) -> tuple[str, ...]:
    """The classes that the labels of the subgraphs around a stage give it, innermost first."""
    classes: list[str] = []
    for place in inside:
        around: int | None = place
        while around is not None:
            classes.append(_UNFIT.sub("", subgraphs[around].label.strip().lower().replace(" ", "-")))
            around = subgraphs[around].parent
    return tuple(dict.fromkeys(one for one in classes if one))


_UNFIT = re.compile(r"[^a-z0-9-]")
