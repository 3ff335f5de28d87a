"""The DOT grammar: a text becomes a syntax tree, or one error with the reason and the place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput
from lark.lark import PostLex

LARGEST = 16_000_000
"""Maximum length of a source, in characters."""
MOST_SYMBOLS = 400_000
"""Maximum number of ids, hops and blocks; some 80,000 stages with their edges."""
DEEPEST = 100
"""Maximum nesting of subgraphs."""
NEAR = 10_000
"""Characters before an error that are examined to explain it."""


LOOSE = "a block of attributes follows the stage or edge that it is about"


class DotSyntaxError(Exception):
    """An error in a source; `at` is its offset."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message)
        self.message, self.at = message, at


class _Bounds(PostLex):
    """Limits the number of symbols and their nesting."""

    always_accept: Iterable[str] = ()

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        """Pass every symbol on."""
        depth = 0
        for count, token in enumerate(stream):
            depth += (token.type == "OPEN") - (token.type == "CLOSE")
            if depth > DEEPEST:
                raise DotSyntaxError(f"subgraphs are nested more than {DEEPEST} deep", token.start_pos or 0)
            if count > MOST_SYMBOLS:
                raise DotSyntaxError(f"there are more than {MOST_SYMBOLS:,} ids, hops and blocks", token.start_pos or 0)
            yield token


@cache
def _parser() -> Lark:
    grammar = Path(__file__).with_name("dot.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", lexer="contextual", maybe_placeholders=True, postlex=_Bounds())


@cache
def attribute() -> re.Pattern[str]:
    """Pattern of one `key=value` with the separator after it, from the grammar."""
    named = {terminal.name: terminal.pattern for terminal in _parser().terminals}
    return re.compile(named["ATTRIBUTE"].to_regexp())


GAP = re.compile(r"(?:[ \t\r\n\f]|//[^\n]*+|/\*(?:[^*]++|\*(?!/))*+\*/)*+")
KEY = re.compile(r'[A-Za-z_][\w.]*+|"[^"\\]*+(?:\\[\s\S][^"\\]*+)*+"', re.ASCII)


def skip_gap(text: str, at: int) -> int:
    """Offset of the next character that is neither blank nor comment."""
    gap = GAP.match(text, at)
    return gap.end() if gap else at


def parse_statements(text: str) -> Tree[Token]:
    """Parse a source into its statements.

    Raises:
        DotSyntaxError: the text is not a graph in this dialect.
    """
    if len(text) > LARGEST:
        raise DotSyntaxError(f"the source has more than {LARGEST:,} characters", 0)
    if "\0" in text:
        raise DotSyntaxError("there is a NUL character; is this a text file?", text.index("\0"))
    try:
        return _parser().parse(text)  # pyright: ignore[reportUnknownMemberType]  # of Lark, half typed
    except UnexpectedInput as error:
        ended = getattr(getattr(error, "token", None), "type", "") == "$END"
        raise explain(text, len(text) if ended or error.pos_in_stream is None else error.pos_in_stream) from None


def explain(text: str, at: int) -> DotSyntaxError:
    """The error for a source that cannot be parsed beyond an offset."""
    if text[at : at + 1] == "[":
        start, at = at, skip_gap(text, at + 1)
        while found := attribute().match(text, at):
            at = skip_gap(text, found.end())
        if text[at : at + 1] == "]":
            return DotSyntaxError(LOOSE, start)
    if text.startswith("->", at):
        at = skip_gap(text, at + 2)
    return _in_attribute(text, at) or DotSyntaxError(_reason(text, at), at)


def _in_attribute(text: str, at: int) -> DotSyntaxError | None:
    """The error in an attribute that starts here; None if none does."""
    key = KEY.match(text, at)
    if key is None:
        return None
    end = skip_gap(text, key.end())
    if text[end : end + 1] != "=":
        return None if text[end : end + 1] not in ("]", ",", ";") else DotSyntaxError("this attribute has no value", at)
    end = skip_gap(text, end + 1)
    return DotSyntaxError(_reason(text, end, "a value"), end)


_REASONS = (
    ("\\", "a backslash outside of a string; was the quote before it meant to be plain?"),
    ('"', "this string is not closed"),
    ("/*", "this comment is not closed"),
    ("<", "HTML labels are not part of this dialect; write a string in quotes"),
    ("--", "edges have a direction here: write -> instead of --"),
    ("-", "the id of a stage has letters, digits and _ only"),
    (":", "ports are not part of this dialect; leave out the colon and what follows"),
    ("{", "groups in braces cannot be joined; write one edge for each"),
    ("#", "comments begin with //"),
)


_AGAIN = re.compile(r"(?:strict\b|(?:di)?graph\b|\})")


def _reason(text: str, at: int, wanted: str = "") -> str:
    before = text[max(0, at - NEAR) : at]
    if at < NEAR and not GAP.sub("", before) and not text.startswith(("/*", "#"), at):
        return _no_digraph(text[at : at + 20])
    for sign, reason in _REASONS:
        if text.startswith(sign, at):
            return reason
    if at >= len(text.rstrip()):
        return "the source ends too early; is a } missing?"
    if before.rstrip().endswith("}") and _AGAIN.match(text, at):
        return "there is more after the end of the graph; one graph a file"
    if before.rstrip().endswith("->"):
        return "an edge leads to one stage: a name is missing after ->"
    shown = re.match(r"[\w.]{1,40}|.", text[at : at + 40])
    there = shown[0] if shown else text[at : at + 1]
    if wanted:
        return f"{there!r} is no {wanted.removeprefix('a ')}; put it in quotes"
    return f"{there!r} cannot stand here; a statement is a stage, an edge, a setting or a subgraph"


def _no_digraph(beginning: str) -> str:
    if beginning.startswith("strict"):
        return "strict graphs are not part of this dialect; begin with digraph"
    if beginning.startswith("graph"):
        return "undirected graphs are not part of this dialect; begin with digraph"
    return "a pipeline begins with: digraph name {"
