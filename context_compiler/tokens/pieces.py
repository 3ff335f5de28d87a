"""Where a text may be cut without changing how many tokens it has, and without splitting a character.

tiktoken panics on a million spaces and the like, so long texts are counted in pieces. o200k first splits
text by a pattern whose matches never reach across three places: before a space that follows a sign or word,
after a line's end, and between a word and a sign after it. A cut there leaves every token as it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from unicodedata import category

PIECE = 50_000
"""The most characters counted at once."""
REACH = 4_096
"""How far before the end of a piece a place to cut is looked for."""

MARKS = 32
"""How many combining marks a place is moved past; more than that is no writing."""

_SAFE = re.compile(r"[\s\S]*(?:(?<=\S)(?=[ \t])|(?<=\n)(?=[^\s/])|(?<=[^\W_])(?=[-.,:;()\[\]{}<>=\"。、，；：？！]))")


def pieces(text: str) -> Iterator[str]:
    """`text` in order, in pieces of at most 50,000 characters whose tokens add up to its own.

    Where 4,096 characters have no place to cut (base64 without line ends, a run of spaces), the piece ends
    in the middle, and the sum may be off by a token or two.
    """
    start = 0
    while len(text) - start > PIECE:
        end = start + PIECE
        safe = _SAFE.match(text, end - REACH, end + 1)
        cut = safe.end() if safe else whole(text, end, -1)
        yield text[start:cut]
        start = cut
    yield text[start:]


def whole(text: str, at: int, step: int) -> int:
    """The first place from `at` on, in steps of `step`, that lies between two characters as people see them.

    Surrogates stay together, and so do a letter with its combining marks and what a joiner joins.
    """
    for _ in range(MARKS):
        if not 0 < at < len(text) or not _joined(text[at - 1], text[at]):
            break
        at += step
    return at


def _joined(before: str, after: str) -> bool:
    if after < "\u0300":
        return False
    return "\ud800" <= before < "\udc00" <= after < "\ue000" or "\u200d" in (before, after) or category(after)[0] == "M"
