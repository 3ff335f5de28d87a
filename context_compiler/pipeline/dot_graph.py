"""Parser of graphs in DOT, strict about meaning and lenient about punctuation; needs the extra `pipeline`.

The grammar in `dot.lark` turns a string into a syntax tree, which becomes a graph. Tolerated deviations become warnings
of the graph; any other is a `GraphError` with the reason, file, line and column. Parsing takes time proportional to
the text, and a few times its size in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import cast

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput
from lark.lark import PostLex

from context_compiler.errors import GraphError
from context_compiler.paths import unify_lines
from context_compiler.pipeline.attributes import NODE_SPELLINGS, Value
from context_compiler.pipeline.dot import LARGEST
from context_compiler.pipeline.graph import DEFAULT_HANDLER, HANDLERS, Diagnostic, Edge, Graph, Node, Severity, Subgraph

MAX_SYMBOLS = 400_000
"""Maximum number of ids, hops and blocks in a source, enough for about 80,000 stages with their edges."""
DEEPEST = 100
"""Maximum nesting of subgraphs."""
NEAR = 10_000
"""Characters before an error that are examined to explain it."""

MISPLACED_BLOCK = "a block of attributes must directly follow its stage or edge"
"""Message about a block of attributes without a stage or edge."""


class DotSyntaxError(Exception):
    """Error in a source; `at` is its offset, from 0."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message)
        self.message, self.at = message, at


class _SymbolLimits(PostLex):
    """Filter that limits the number of symbols and their nesting."""

    always_accept: Iterable[str] = ()

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        """Yield every symbol; raise `DotSyntaxError` beyond a limit."""
        depth = 0
        for count, token in enumerate(stream):
            depth += (token.type == "OPEN") - (token.type == "CLOSE")
            if depth > DEEPEST:
                raise DotSyntaxError(f"subgraphs are nested more than {DEEPEST} deep", token.start_pos or 0)
            if count > MAX_SYMBOLS:
                raise DotSyntaxError(f"there are more than {MAX_SYMBOLS:,} ids, hops and blocks", token.start_pos or 0)
            yield token


@cache
def _parser() -> Lark:
    grammar = Path(__file__).with_name("dot.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", lexer="contextual", maybe_placeholders=True, postlex=_SymbolLimits())


@cache
def attribute_pattern() -> re.Pattern[str]:
    """Pattern of one `key=value` and the separator after it, from the grammar."""
    named = {terminal.name: terminal.pattern for terminal in _parser().terminals}
    return re.compile(named["ATTRIBUTE"].to_regexp())


GAP = re.compile(r"(?:[ \t\r\n\f]++|//[^\n]*+|/\*[\s\S]*?\*/)*")
KEY = re.compile(r'[A-Za-z_][\w.]*+|"[^"\\]*+(?:\\[\s\S][^"\\]*+)*"', re.ASCII)


def skip_gap(text: str, offset: int) -> int:
    """Offset of the next character, at or after `offset`, that is neither blank nor part of a comment."""
    gap = GAP.match(text, offset)
    return gap.end() if gap else offset


def parse_statements(text: str) -> Tree[Token]:
    """Parse a source into a syntax tree of its statements.

    Raises:
        DotSyntaxError: the source is not a graph in this dialect.
    """
    if len(text) > LARGEST:
        raise DotSyntaxError(f"the source has more than {LARGEST:,} characters", 0)
    if "\0" in text:
        raise DotSyntaxError("there is a NUL character; is this a text file?", text.index("\0"))
    try:
        return _parser().parse(text)  # pyright: ignore[reportUnknownMemberType]  # Lark is only partly typed
    except UnexpectedInput as error:
        ended = getattr(getattr(error, "token", None), "type", "") == "$END"
        raise explain(text, len(text) if ended or error.pos_in_stream is None else error.pos_in_stream) from None


def explain(text: str, offset: int) -> DotSyntaxError:
    """Build the error for a source that cannot be parsed beyond an offset."""
    if text[offset : offset + 1] == "[":
        start, offset = offset, skip_gap(text, offset + 1)
        while match := attribute_pattern().match(text, offset):
            offset = skip_gap(text, match.end())
        if text[offset : offset + 1] == "]":
            return DotSyntaxError(MISPLACED_BLOCK, start)
    if text.startswith("->", offset):
        offset = skip_gap(text, offset + 2)
    return _attribute_error(text, offset) or DotSyntaxError(_explanation(text, offset), offset)


def _attribute_error(text: str, offset: int) -> DotSyntaxError | None:
    """Build the error for an attribute that starts at an offset; None if there is no attribute."""
    key = KEY.match(text, offset)
    if key is None:
        return None
    end = skip_gap(text, key.end())
    if text[end : end + 1] != "=":
        has_no_value = text[end : end + 1] in ("]", ",", ";")
        return DotSyntaxError("this attribute has no value", offset) if has_no_value else None
    end = skip_gap(text, end + 1)
    return DotSyntaxError(_explanation(text, end, "value"), end)


_REASONS = (
    ("\\", "a backslash outside a string; check the quotes before and after it"),
    ('"', "this string is not closed"),
    ("/*", "this comment is not closed"),
    ("<", "HTML labels are not part of this dialect; write a string in quotes"),
    ("--", "edges have a direction here: write -> instead of --"),
    ("-", "the id of a stage contains only letters, digits and _"),
    (":", "ports are not part of this dialect; leave out the colon and what follows"),
    ("{", "an edge cannot connect a group in braces; write one edge for each stage"),
    ("#", "comments begin with //"),
)


_SECOND_GRAPH = re.compile(r"(?:strict\b|(?:di)?graph\b|\})")


def _explanation(text: str, offset: int, wanted: str = "") -> str:
    before = text[max(0, offset - NEAR) : offset]
    if offset < NEAR and not GAP.sub("", before) and not text.startswith(("/*", "#"), offset):
        return _header_error(text[offset : offset + 20])
    for sign, reason in _REASONS:
        if text.startswith(sign, offset):
            return reason
    if offset >= len(text.rstrip()):
        return "the source ends too early; is a } missing?"
    if before.rstrip().endswith("}") and _SECOND_GRAPH.match(text, offset):
        return "there is text after the end of the graph; write one graph per file"
    if before.rstrip().endswith("->"):
        return "an edge needs a target; the id of a stage is missing after ->"
    shown = re.match(r"[\w.]{1,40}|.", text[offset : offset + 40])
    there = shown[0] if shown else text[offset : offset + 1]
    if wanted:
        return f"{there!r} is not a {wanted}; put it in quotes"
    return f"{there!r} is not allowed here; a statement is a stage, an edge, a setting or a subgraph"


def _header_error(beginning: str) -> str:
    if beginning.startswith("strict"):
        return "strict graphs are not part of this dialect; begin with digraph"
    if beginning.startswith("graph"):
        return "undirected graphs are not part of this dialect; begin with digraph"
    return "a pipeline begins with: digraph name {"


MAX_NUMBER_LENGTH = 15
"""Maximum characters of a number; a longer one stays text if a float would lose digits."""

TOLERATED = {
    "missing_separator": ("there is no comma between two attributes", "add one"),
    "semicolon_separator": ("attributes are separated by a semicolon", "use a comma"),
    "trailing_separator": ("there is a comma after the last attribute", "leave it out"),
    "line_continuation": ("a backslash at the end of a line joins it with the next", "leave the backslash out"),
    "quoted_id": ("a name is in quotes", "use letters, digits and _ without quotes"),
    "dotted_id": ("the id of a stage contains a dot", "use only letters, digits and _"),
    "anonymous_graph": ("the graph has no name", "write digraph name {"),
    "several_blocks": ("a statement has more than one block of attributes", "merge them"),
}
"""Messages about tolerated deviations, with their remedies, by rule."""

_ESCAPE = re.compile(r"\\([\s\S])")
_ESCAPES = {'"': '"', "\\": "\\", "n": "\n", "t": "\t", "\n": ""}


class Leniencies:
    """Collector of tolerated deviations in a source: the first place and the number of each kind."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._deviations: dict[str, tuple[int, int]] = {}

    def add(self, rule: str, offset: int) -> None:
        """Note a deviation at an offset."""
        first, times = self._deviations.get(rule, (offset, 0))
        self._deviations[rule] = (first, times + 1)

    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Return one warning per kind, in the order of the source."""
        deviations = sorted(self._deviations.items(), key=lambda entry: entry[1])
        return tuple(self._warning(rule, *noted) for rule, noted in deviations)

    def _warning(self, rule: str, first: int, times: int) -> Diagnostic:
        message, fix = TOLERATED[rule]
        return Diagnostic(
            rule=rule,
            severity=Severity.WARNING,
            message=message + (f" ({times:,} times)" if times > 1 else ""),
            fix=fix,
            line=self.text.count("\n", 0, first) + 1,
            column=first - self.text.rfind("\n", 0, first),
        )


def identifier(token: Token, lenient: Leniencies, *, offset: int = 0) -> str:
    """Parse the name of a stage, graph or subgraph, from the part of a token after an offset."""
    start = (token.start_pos or 0) + offset
    word = token[offset:]
    if word.startswith('"'):
        lenient.add("quoted_id", start)
        return _unescape(word, start, lenient)
    if "." in word:
        lenient.add("dotted_id", start)
    return word


def read_setting(token: Token, lenient: Leniencies) -> tuple[str, Value]:
    """Parse the key and the value of a `key=value` statement."""
    key, value, separator = _split_attribute(token, token.start_pos or 0, lenient)
    if separator == ",":
        lenient.add("trailing_separator", (token.end_pos or 1) - 1)
    return key, value


def read_block(token: Token, lenient: Leniencies) -> dict[str, Value]:
    """Parse the attributes of a block in brackets; the last value of a repeated key counts.

    Raises:
        DotSyntaxError: the block contains anything else.
    """
    text, start = lenient.text, token.start_pos or 0
    offset, end = skip_gap(text, start + 1), start + token.rindex("]")
    attributes: dict[str, Value] = {}
    pattern, separator = attribute_pattern(), ","
    while offset < end:
        match = pattern.match(text, offset, end)
        if match is None:
            raise explain(text, start)
        if not separator:
            lenient.add("missing_separator", offset)
        key, value, separator = _split_attribute(match[0], offset, lenient)
        attributes[key] = value
        offset = skip_gap(text, match.end())
        if separator == ";":
            lenient.add("semicolon_separator", match.end() - 1)
    if attributes and separator == ",":
        lenient.add("trailing_separator", end)
    return attributes


def _split_attribute(text: str, start: int, lenient: Leniencies) -> tuple[str, Value, str]:
    """Split an attribute, which the grammar has accepted at `start`, into key, value and separator."""
    match = KEY.match(text)
    if match is None:
        raise DotSyntaxError("an attribute begins with a name", start)
    key = match[0]
    if key.startswith('"'):
        lenient.add("quoted_id", start)
        key = _unescape(key, start, lenient)
    value_start = skip_gap(text, skip_gap(text, match.end()) + 1)
    separator = text[-1] if text[-1] in ",;" else ""
    if text[value_start] == '"':
        string = KEY.match(text, value_start)
        last = string.end() if string else len(text)
        value = _unescape(text[value_start:last], start + value_start, lenient)
        return key, value, separator if last < len(text) else ""
    word = _WORD.match(text, value_start)
    return key, _bare_value(word[0] if word else ""), separator


_WORD = re.compile(r"[\w.:-]*", re.ASCII)


def _unescape(quoted: str, start: int, lenient: Leniencies) -> str:
    inner = quoted[1:-1]
    if "\\" not in inner:
        return inner
    if "\\\n" in inner:
        lenient.add("line_continuation", start)
    return _ESCAPE.sub(lambda match: _ESCAPES.get(match[1], match[0]), inner)


def _bare_value(word: str) -> Value:
    """Parse a value without quotes: true, false, a number, or else the word itself, such as a duration."""
    if word in ("true", "false"):
        return word == "true"
    if word[:1].isalpha() or word[:1] == "_" or word[-1:].isalpha():
        return word
    number = float(word) if "." in word else None
    if len(word) > MAX_NUMBER_LENGTH and (number is None or Decimal(repr(number)) != Decimal(word)):
        return word
    return int(word) if number is None else number


WIDTH = 100
"""Maximum characters of a source line shown in an error."""


def read_graph(text: str, path: str | None) -> Graph:
    """Parse a graph, as `parse_dot` does."""
    source = unify_lines(text.removeprefix("\ufeff"))
    try:
        graph = _Reader(text=source).graph(parse_statements(source))
    except DotSyntaxError as error:
        line, column, snippet = source_position(source, error.at)
        raise GraphError(error.message, path=path, line=line, column=column, snippet=snippet) from None
    return replace(graph, path=path, source=text)


def source_position(text: str, offset: int) -> tuple[int, int, str]:
    """Return the line and column of an offset, from 1, and the text of the line with a caret below the place."""
    start = text.rfind("\n", 0, offset) + 1
    stop = text.find("\n", offset)
    line, column = text.count("\n", 0, offset) + 1, offset - start + 1
    first = max(0, column - 1 - WIDTH // 2)
    shown = text[start + first : stop if stop >= 0 else len(text)][:WIDTH]
    blanks = re.sub(r"[^\t]", " ", shown[: column - 1 - first])
    return line, column, f"{shown}\n{blanks}^"


@dataclass(slots=True)
class _Draft:
    """A stage while its declarations are collected."""

    attrs: dict[str, Value]
    token: Token
    """Its first declaration."""
    inside: list[int] = field(default_factory=list[int])
    """Indices of the subgraphs that declare it."""
    implied: bool = False
    """True if only an edge names it."""


@dataclass(slots=True)
class _Scope:
    """Scope of the statements of the graph or a subgraph, with its defaults."""

    attrs: dict[str, Value]
    nodes: dict[str, Value]
    edges: dict[str, Value]
    subgraph: int | None = None
    """Index of the subgraph; None for the graph."""
    members: list[str] = field(default_factory=list[str])


class _Reader:
    """Builder of a graph in one pass; it keeps open subgraphs on a stack, so that nesting needs no recursion."""

    def __init__(self, *, text: str) -> None:
        self._lenient = Leniencies(text)
        self._drafts: dict[str, _Draft] = {}
        self._mentions: dict[str, tuple[_Draft, _Scope]] = {}
        self._edges: list[Edge] = []
        self._scopes: list[tuple[str, int | None, _Scope]] = []

    def graph(self, tree: Tree[Token]) -> Graph:
        """Build the graph of a whole source."""
        title = tree.children[0]
        if isinstance(title, Token) and title.type != "OPEN":
            name = identifier(title, self._lenient)
        else:
            name = ""
            self._lenient.add("anonymous_graph", 0)
        outer = _Scope(attrs={}, nodes={}, edges={})
        self._walk(tree, outer)
        self._add_implied()
        subgraphs = tuple(
            Subgraph(name=title, attrs=scope.attrs, nodes=tuple(dict.fromkeys(scope.members)), parent=parent)
            for title, parent, scope in self._scopes
        )
        nodes = {
            name: Node(
                name=name,
                attrs=draft.attrs,
                derived=subgraph_classes(subgraphs, draft.inside),
                implied=draft.implied,
                line=draft.token.line,
                column=draft.token.column,
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
                key, value = read_setting(child, self._lenient)
                scope.attrs[key] = value
            elif child.data == "subgraph":
                waiting.append((iter(_inside(child)), self._open_scope(child, scope)))
            else:
                _STATEMENTS[child.data](self, cast("list[Token]", child.children), scope)

    def _open_scope(self, tree: Tree[Token], around: _Scope) -> _Scope:
        """Open the scope of a subgraph, with a copy of the defaults of the scope around it."""
        scope = _Scope(attrs={}, nodes=dict(around.nodes), edges=dict(around.edges), subgraph=len(self._scopes))
        title = tree.children[1]
        name = identifier(title, self._lenient) if isinstance(title, Token) and title.type != "OPEN" else ""
        self._scopes.append((name, around.subgraph, scope))
        return scope

    def _add_defaults(self, children: Sequence[Token], scope: _Scope) -> None:
        kinds = {"GRAPH": scope.attrs, "NODE": scope.nodes, "EDGE": scope.edges}
        kinds[children[0].type].update(self._read_attributes(children[1:]))

    def _add_node(self, children: Sequence[Token], scope: _Scope) -> None:
        token = children[0]
        name, attrs = identifier(token, self._lenient), self._read_attributes(children[1:])
        draft = self._drafts.get(name)
        if draft is None:
            self._drafts[name] = draft = _Draft(attrs=_override(scope.nodes, attrs), token=token)
        else:
            draft.attrs = {**_without_spellings(draft.attrs, attrs), **attrs}
        _include(draft, name, scope)

    def _add_implied(self) -> None:
        """Add the stages that only edges name, each with the defaults of the place that names it first."""
        for name, (draft, scope) in self._mentions.items():
            if name not in self._drafts:
                self._drafts[name] = draft
                _include(draft, name, scope)

    def _add_edges(self, children: Sequence[Token], scope: _Scope) -> None:
        first = children[0]
        hops = [child for child in children if child.type == "HOP"]
        attrs = {**scope.edges, **self._read_attributes(children[1 + len(hops) :])}
        source = identifier(first, self._lenient)
        self._mention(source, first, scope)
        for hop in hops:
            target = identifier(hop, self._lenient, offset=skip_gap(hop, len("->")))
            anchor = first if hop is hops[0] else hop
            self._mention(target, hop, scope)
            self._edges.append(Edge(source=source, target=target, attrs=attrs, line=anchor.line, column=anchor.column))
            source = target

    def _mention(self, name: str, token: Token, scope: _Scope) -> None:
        if name not in self._drafts and name not in self._mentions:
            self._mentions[name] = _Draft(attrs=dict(scope.nodes), token=token, implied=True), scope

    def _read_attributes(self, blocks: Sequence[Token]) -> dict[str, Value]:
        attrs: dict[str, Value] = {}
        for index, token in enumerate(blocks):
            if index and blocks[index - 1].endswith(";"):
                raise DotSyntaxError(MISPLACED_BLOCK, token.start_pos or 0)
            attrs.update(read_block(token, self._lenient))
            if index == 1:
                self._lenient.add("several_blocks", token.start_pos or 0)
        return attrs


def _include(draft: _Draft, name: str, scope: _Scope) -> None:
    """Make a stage a member of the graph or subgraph that a scope belongs to."""
    scope.members.append(name)
    if scope.subgraph is not None and scope.subgraph not in draft.inside:
        draft.inside.append(scope.subgraph)


def _override(defaults: Mapping[str, Value], attrs: Mapping[str, Value]) -> dict[str, Value]:
    """Attributes of a stage; a shape of its own that selects a handler wins over an inherited `codergen`."""
    node = Node(name="", attrs=_without_spellings(defaults, attrs))
    shape = attrs.get("shape")
    if node.type == DEFAULT_HANDLER and isinstance(shape, str) and shape in HANDLERS:
        node = Node(name="", attrs=_without_spellings(node.attrs, ("type",)))
    return {**node.attrs, **attrs}


def _without_spellings(attrs: Mapping[str, Value], names: Iterable[str]) -> dict[str, Value]:
    """Attributes without those that are set anew under any of their spellings."""
    groups = [(standard, *others) for standard, others in NODE_SPELLINGS.items()]
    replaced = {name for group in groups if not set(group).isdisjoint(names) for name in group}
    return {name: value for name, value in attrs.items() if name not in replaced}


_STATEMENTS = {"defaults": _Reader._add_defaults, "node": _Reader._add_node, "edge": _Reader._add_edges}  # pyright: ignore[reportPrivateUsage]  # of this module


def _inside(tree: Tree[Token]) -> Sequence[Token | Tree[Token]]:
    """Statements between the braces of a graph or subgraph."""
    first = next(index for index, part in enumerate(tree.children) if isinstance(part, Token) and part.type == "OPEN")
    return tree.children[first + 1 : -1]


def subgraph_classes(subgraphs: Sequence[Subgraph], inside: Sequence[int]) -> tuple[str, ...]:
    """Classes that a stage gets from the labels of the subgraphs around it, innermost first."""
    classes: list[str] = []
    for innermost in inside:
        around: int | None = innermost
        while around is not None:
            classes.append(_NOT_IN_CLASS.sub("", subgraphs[around].label.strip().lower().replace(" ", "-")))
            around = subgraphs[around].parent
    return tuple(dict.fromkeys(name for name in classes if name))


_NOT_IN_CLASS = re.compile(r"[^a-z0-9-]")
