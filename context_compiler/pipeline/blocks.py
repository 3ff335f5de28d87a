"""Attributes, ids and values of a source become values; what had to be forgiven on the way is remembered."""

from __future__ import annotations

import re

from lark import Token

from context_compiler.pipeline.attributes import Value
from context_compiler.pipeline.diagnostics import Diagnostic, Severity
from context_compiler.pipeline.dot_syntax import KEY, Unreadable, attribute, past, unreadable

LONGEST_NUMBER = 15
"""Characters of a number; a longer one stays text, so that nothing of it is lost."""

FORGIVEN = {
    "missing_separator": ("there is no comma between two attributes", "put one"),
    "semicolon_separator": ("attributes are separated with a semicolon", "use a comma"),
    "trailing_separator": ("there is a comma after the last attribute", "leave it out"),
    "line_continuation": ("a backslash at the end of a line joins it with the next", "leave the backslash out"),
    "quoted_id": ("a name is in quotes", "use letters, digits and _ without quotes"),
    "dotted_id": ("the id of a stage has a dot in it", "use letters, digits and _ only"),
    "anonymous_graph": ("the graph has no name", "write digraph name {"),
    "several_blocks": ("a statement has more than one block of attributes", "put them into one"),
}
"""What is no part of the dialect and read all the same, by rule: what to say, and what to do."""

_ESCAPE = re.compile(r"\\([\s\S])")
_ESCAPES = {'"': '"', "\\": "\\", "n": "\n", "t": "\t", "\n": ""}


class Leniencies:
    """What a source had to be forgiven: each kind once, with the first place and how often."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._found: dict[str, tuple[int, int]] = {}

    def add(self, rule: str, at: int) -> None:
        """Remember that a rule was bent at a character."""
        first, times = self._found.get(rule, (at, 0))
        self._found[rule] = (first, times + 1)

    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """One warning for each kind, in the order of the source."""
        return tuple(self._warning(rule, *found) for rule, found in sorted(self._found.items(), key=lambda one: one[1]))

    def _warning(self, rule: str, first: int, times: int) -> Diagnostic:
        message, fix = FORGIVEN[rule]
        return Diagnostic(
            rule=rule,
            severity=Severity.WARNING,
            message=message + (f" ({times:,} times)" if times > 1 else ""),
            fix=fix,
            line=self.text.count("\n", 0, first) + 1,
            column=first - self.text.rfind("\n", 0, first),
        )


def identifier(token: Token, lenient: Leniencies, *, offset: int = 0) -> str:
    """The name of a stage, a graph or a subgraph, from a token or from a hop that ends in it."""
    start = (token.start_pos or 0) + offset
    word = token[offset:]
    if word.startswith('"'):
        lenient.add("quoted_id", start)
        return _unescaped(word, start, lenient)
    if "." in word:
        lenient.add("dotted_id", start)
    return word


def hop(token: Token, lenient: Leniencies) -> str:
    """Where a hop leads."""
    return identifier(token, lenient, offset=past(token, 2))


def setting(token: Token, lenient: Leniencies) -> tuple[str, Value]:
    """The key and value of a `key=value` that is a statement."""
    key, value, separator = _split(token, token.start_pos or 0, lenient)
    if separator == ",":
        lenient.add("trailing_separator", (token.end_pos or 1) - 1)
    return key, value


def block(token: Token, lenient: Leniencies) -> dict[str, Value]:
    """The attributes in a pair of brackets; of a key that is there twice, the last counts.

    Raises:
        Unreadable: there is something else in it.
    """
    text, start = lenient.text, token.start_pos or 0
    at, end = past(text, start + 1), start + token.rindex("]")
    attributes: dict[str, Value] = {}
    pattern, separator = attribute(), ","
    while at < end:
        found = pattern.match(text, at, end)
        if found is None:
            raise unreadable(text, start)
        if not separator:
            lenient.add("missing_separator", at)
        key, value, separator = _split(found[0], at, lenient)
        attributes[key] = value
        at = past(text, found.end())
        if separator == ";":
            lenient.add("semicolon_separator", found.end() - 1)
    if attributes and separator == ",":
        lenient.add("trailing_separator", end)
    return attributes


def _split(text: str, start: int, lenient: Leniencies) -> tuple[str, Value, str]:
    """Key, value and separator of a text that the grammar has accepted as an attribute at `start`."""
    found = KEY.match(text)
    if found is None:
        raise Unreadable("an attribute begins with a name", start)
    key = found[0]
    if key.startswith('"'):
        lenient.add("quoted_id", start)
        key = _unescaped(key, start, lenient)
    at = past(text, past(text, found.end()) + 1)
    separator = text[-1] if text[-1] in ",;" else ""
    if text[at] == '"':
        string = KEY.match(text, at)
        last = string.end() if string else len(text)
        return key, _unescaped(text[at:last], start + at, lenient), separator if last < len(text) else ""
    word = _WORD.match(text, at)
    return key, _plain(word[0] if word else ""), separator


_WORD = re.compile(r"[\w.:-]*", re.ASCII)


def _unescaped(quoted: str, start: int, lenient: Leniencies) -> str:
    inner = quoted[1:-1]
    if "\\" not in inner:
        return inner
    if "\\\n" in inner:
        lenient.add("line_continuation", start)
    return _ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[0]), inner)


def _plain(word: str) -> Value:
    """A value without quotes: true, false, a number, or the word itself (a duration is one)."""
    if word in ("true", "false"):
        return word == "true"
    if word[:1].isalpha() or word[:1] == "_" or word[-1:].isalpha() or len(word) > LONGEST_NUMBER:
        return word
    return float(word) if "." in word else int(word)
