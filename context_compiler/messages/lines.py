"""A text on one line, cut in its middle to so many characters, and never through a name.

A line never holds a line break or a control character and is never longer than asked for; of a very long text only
the beginning and the end are looked at, so that a line costs the same whatever its source.
"""

from __future__ import annotations

import re

WIDTH = 160
"""Characters of a line, if not told otherwise."""

NAME = 24
"""Characters of a word that is left out whole rather than cut."""

SCANNED = 20_000
"""Characters looked at from each end of a result."""

TERMINAL = re.compile(r"\x1b(?:\[[0-9;?]{0,32}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\))")
_UNSEEN = re.compile(
    r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ud800-\udfff]+"
)
_SPACE = re.compile(r"[\s\x1c-\x1f\x85\u2028\u2029]+")


def clip(text: str, width: int) -> str:
    """The text itself where it has at most `width` characters, else its beginning and end around a `…`."""
    if len(text) <= width:
        return text
    if width < 2:
        return "…"[: max(width, 0)]
    tail = len(text) - (width - 1) * 2 // 5
    head = width - 1 - (len(text) - tail)
    return f"{text[: _before_word(text, head)]}…{text[_after_word(text, tail) :]}"


def _before_word(text: str, at: int) -> int:
    """Where to end so that no word is cut: half a name names nothing. A word of more than `NAME` characters is cut."""
    start = at
    while start > max(0, at - NAME) and _joins(text, start):
        start -= 1
    return start if start and not _joins(text, start) else at


def _after_word(text: str, at: int) -> int:
    end = at
    while end < min(len(text), at + NAME) and _joins(text, end):
        end += 1
    return end if end < len(text) and not _joins(text, end) else at


def _joins(text: str, at: int) -> bool:
    """Whether the characters on both sides of a place belong to one word."""
    sides = text[max(0, at - 1) : at + 1]
    return len(sides) == 2 and all(side.isalnum() or side in "_-" for side in sides)


def one_line(text: str, width: int = WIDTH) -> str:
    """The text on one line, without control characters, terminal colours and marks that turn its direction."""
    if len(text) > SCANNED * 2:
        text = f"{text[:SCANNED]}…{text[-SCANNED:]}"
    plain = _UNSEEN.sub("", TERMINAL.sub("", text))
    return clip(_SPACE.sub(" ", plain).strip(), width)
