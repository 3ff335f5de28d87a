"""Stylesheets, which assign models to stages by id, class or shape, or to all stages.

For example: `* { llm_model: small; } .review { llm_model: large; } #plan { reasoning_effort: high; }`. The most
specific rule wins, and an attribute of the stage itself wins over every rule.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from context_compiler.pipeline.attributes import Value
from context_compiler.pipeline.graph import Graph, Node

PROPERTIES = ("llm_model", "llm_provider", "reasoning_effort")
SPECIFICITY = {"*": 0, "shape": 1, "class": 2, "id": 3}
"""Precedence of a rule by the kind of its selector; the highest wins."""
SPELLINGS = {"model": "llm_model", "provider": "llm_provider"}
"""Properties by their names in other engines."""
EFFORTS = ("low", "medium", "high")
MAX_STYLESHEET = 1_000_000
"""Maximum length of a stylesheet, in characters."""

_GAP = re.compile(r"(?:\s++|/\*[\s\S]*?\*/)*")
_SELECTOR = re.compile(r"(?P<all>\*)|#(?P<id>[A-Za-z_]\w*)|\.(?P<class>[\w-]+)|(?P<shape>[A-Za-z]\w*)", re.ASCII)
_DECLARATION = re.compile(r'(?P<name>[A-Za-z_][\w-]*)\s*:\s*(?P<value>"[^"\\]*+(?:\\.[^"\\]*+)*"|[^\s;{}"]+)', re.ASCII)
_ESCAPE = re.compile(r"\\(.)")


class StylesheetError(ValueError):
    """Error in a stylesheet; `at` is its offset, from 0."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message)
        self.message, self.at = message, at


@dataclass(frozen=True, slots=True, kw_only=True)
class StyleRule:
    """A rule of a stylesheet: properties for the stages that its selector matches."""

    kind: str
    """One of `SPECIFICITY`."""
    name: str
    properties: Mapping[str, str]
    """Only those of `PROPERTIES` have an effect."""

    def matches(self, node: Node) -> bool:
        """True if the selector matches a stage."""
        if self.kind == "class":
            return self.name in node.classes
        return self.kind == "*" or self.name == (node.name if self.kind == "id" else node.shape)


def parse_stylesheet(text: str) -> tuple[StyleRule, ...]:
    """Parse the rules of a stylesheet, in order.

    Raises:
        StylesheetError: the stylesheet is invalid.
    """
    if len(text) > MAX_STYLESHEET:
        raise StylesheetError(f"a stylesheet has at most {MAX_STYLESHEET:,} characters", MAX_STYLESHEET)
    rules: list[StyleRule] = []
    offset = _skip_gap(text, 0)
    while offset < len(text):
        match = _SELECTOR.match(text, offset)
        if match is None:
            shown = text[offset : offset + 20]
            raise StylesheetError(f"{shown!r} is not a selector; write *, shape, .class or #id", offset)
        start = _skip_gap(text, match.end())
        if text[start : start + 1] != "{":
            raise StylesheetError("a { is missing after the selector", start)
        properties, offset = _parse_declarations(text, _skip_gap(text, start + 1))
        group = match.lastgroup or ""
        rules.append(StyleRule(kind="*" if match["all"] else group, name=match[group], properties=properties))
        offset = _skip_gap(text, offset)
    return tuple(rules)


def apply_stylesheet(graph: Graph) -> Graph:
    """Set missing model attributes of stages from the stylesheet, else from the attributes of the graph.

    Raises:
        StylesheetError: the stylesheet is invalid.
    """
    rules = sorted(parse_stylesheet(graph.model_stylesheet), key=lambda rule: SPECIFICITY[rule.kind])
    whole = {name: graph.text(name) for name in PROPERTIES if graph.text(name)}
    if whole:
        rules.insert(0, StyleRule(kind="*", name="*", properties=whole))
    if not rules:
        return graph
    return replace(graph, nodes={name: _apply_rules(node, rules) for name, node in graph.nodes.items()})


def _apply_rules(node: Node, rules: list[StyleRule]) -> Node:
    wanted: dict[str, Value] = {}
    for rule in rules:
        if rule.matches(node):
            wanted.update(rule.properties)
    missing = {name: wanted[name] for name in PROPERTIES if name in wanted and node.raw(name) is None}
    return replace(node, attrs={**node.attrs, **missing}) if missing else node


def _parse_declarations(text: str, offset: int) -> tuple[dict[str, str], int]:
    """Parse properties up to the closing brace; return them and the offset after the brace."""
    properties: dict[str, str] = {}
    while text[offset : offset + 1] != "}":
        match = _DECLARATION.match(text, offset)
        if match is None:
            message = "a declaration must be name: value;" if offset < len(text) else "a } is missing"
            raise StylesheetError(message, offset)
        value = match["value"]
        value = _ESCAPE.sub(r"\1", value[1:-1]) if value.startswith('"') else value
        properties[SPELLINGS.get(match["name"], match["name"])] = value
        offset = _skip_gap(text, match.end())
        if text[offset : offset + 1] == ";":
            offset = _skip_gap(text, offset + 1)
        elif text[offset : offset + 1] != "}":
            raise StylesheetError("a ; is missing between two declarations", offset)
    return properties, offset + 1


def _skip_gap(text: str, offset: int) -> int:
    gap = _GAP.match(text, offset)
    return gap.end() if gap else offset
