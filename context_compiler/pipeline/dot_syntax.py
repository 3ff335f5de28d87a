"""The grammar file becomes a parser once; a text becomes statements, or one error that says what is wrong where."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput
from lark.lark import PostLex

LARGEST = 16_000_000
"""Characters of a source."""
MOST_SYMBOLS = 400_000
"""Ids, hops and blocks of one source; some 80,000 stages with their edges."""
DEEPEST = 100
"""Subgraphs within subgraphs."""
NEAR = 10_000
"""Characters before a mistake that are looked at to explain it."""


LOOSE = "a block of attributes follows the stage or edge that it is about"


class DotSyntaxError(Exception):
    """What is wrong with a source, and at which character."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message)
        self.message, self.at = message, at


class _Bounds(PostLex):
    """Lets symbols pass while they are few enough and not nested too deeply."""

    always_accept: Iterable[str] = ()

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        """Every symbol of the stream."""
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
    """How one `key=value` looks, with the comma or semicolon after it; from the grammar."""
    named = {terminal.name: terminal.pattern for terminal in _parser().terminals}
    return re.compile(named["ATTRIBUTE"].to_regexp())


GAP = re.compile(r"(?:[ \t\r\n\f]|//[^\n]*+|/\*(?:[^*]++|\*(?!/))*+\*/)*+")
KEY = re.compile(r'[A-Za-z_][\w.]*+|"[^"\\]*+(?:\\[\s\S][^"\\]*+)*+"', re.ASCII)


def skip_gap(text: str, at: int) -> int:
    """The first character from `at` on that is neither blank nor comment."""
    gap = GAP.match(text, at)
    return gap.end() if gap else at


def parse_statements(text: str) -> Tree[Token]:
    """The statements of a source, as the grammar names them.

    Raises:
        Unreadable: it is no graph of this dialect.
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
    """What is wrong with a source that cannot be read past a place; the error names the very character."""
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
    """What is wrong with an attribute that begins here; None: none does."""
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
    ("<", "HTML labels are no part of this dialect; write a string in quotes"),
    ("--", "edges have a direction here: write -> instead of --"),
    ("-", "the id of a stage has letters, digits and _ only"),
    (":", "ports are no part of this dialect; leave out the colon and what follows"),
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
        return "strict graphs are no part of this dialect; begin with digraph"
    if beginning.startswith("graph"):
        return "undirected graphs are no part of this dialect; begin with digraph"
    return "a pipeline begins with: digraph name {"
