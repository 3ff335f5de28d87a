"""Faults of a model's summary that rules can find, cheaply and in any language.

Small models repeat themselves, copy their instructions, or invent. A fault is looked for in pieces of `PIECE`
characters, because long texts repeat more. Nothing is said about whether a summary is true.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator

from context_compiler.messages.fences import SUMMARY_PREFIX

PIECE = 1_500
"""Characters of a piece."""

REPEATED, GRAM = 0.15, 4
"""Maximum fraction of groups of `GRAM` words or numbers that occurred before in a piece."""

COMPRESSED = 0.40
"""Minimum size of a compressed piece, as a fraction of the piece. `SHORT` pieces say nothing about it, nor do lists
with a new number for every `GRAM` words, because equal words between different numbers compress well."""

SHORT = 300

KNOWN, LONG = 0.45, 4
"""Minimum fraction of the words of at least `LONG` letters whose first `LONG` letters begin a word of the material. A
text needs at least `FEW` such words."""

FEW = 24

SAME_LANGUAGE = 0.5
"""Fraction of the short words that the material contains, from which on both are in one language."""

COPIED = 8
"""Words in a row that count as copied from the instructions."""

_NOTHING = re.compile(r"\W*(none|null|nothing|n/?a|no (content|summary|notes)( provided)?|\.+)\W*", re.IGNORECASE)
_FENCE = re.compile(r"=== (?:BEGIN|END) ([\w -]+) ===")
_WORD = re.compile(r"[^\W\d_]+")
_UNSPACED = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_TOKEN = re.compile(rf"[{_UNSPACED}]|[^\W\d_{_UNSPACED}]+|\d+(?:[.,:/-]\d+)*")
"""A character of a script without spaces, any other word, or a number."""


def summary_fault(text: str, *, material: str, instructions: str, previous: str) -> str | None:
    """Fault of a summary; None if none is found.

    Args:
        text: The summary.
        material: What it is about: the turns, the previous summary, and what else the prompt gave.
        instructions: Our part of the prompt.
        previous: The summary that it replaces; empty for none.
    """
    if _NOTHING.fullmatch(text):
        return "it says nothing"
    if previous.strip() and _flat(text) == _flat(previous):
        return "it is a copy of the summary before"
    if _copies_frame(text, material, instructions):
        return "it repeats its instructions"
    if any(_repeats(piece) for piece in _pieces(text)):
        return "it repeats itself"
    return "most of its words are not in the conversation" if _invents(text, material) else None


def _flat(text: str) -> str:
    return " ".join(text.casefold().split())


def _pieces(text: str) -> Iterator[str]:
    """Pieces of about equal length, none longer than `PIECE` characters."""
    count = -(-len(text) // PIECE) or 1
    size = -(-len(text) // count)
    for start in range(0, len(text), size or 1):
        yield text[start : start + size]


def _repeats(piece: str) -> bool:
    words = _TOKEN.findall(piece.casefold())
    grams = list(zip(*(words[at:] for at in range(GRAM)), strict=False))
    if len(grams) > GRAM and 1 - len(set(grams)) / len(grams) > REPEATED:
        return True
    if GRAM * sum(word[0].isdigit() for word in set(words)) >= len(words) > 0:
        return False
    raw = piece.encode(errors="replace")
    return len(raw) >= SHORT and len(zlib.compress(raw, 9)) < COMPRESSED * len(raw)


def _copies_frame(text: str, material: str, instructions: str) -> bool:
    """True if a text contains a fence or eight words in a row of ours that the material does not contain."""
    if SUMMARY_PREFIX in text and SUMMARY_PREFIX not in material:
        return True
    if set(_FENCE.findall(text)) - set(_FENCE.findall(material)):
        return True
    ours = set(_runs(instructions))
    copied = {run for run in _runs(text) if run in ours}
    return bool(copied) and not copied <= set(_runs(material))


def _runs(text: str) -> Iterator[tuple[str, ...]]:
    words = _WORD.findall(text.casefold())
    return zip(*(words[at:] for at in range(COPIED)), strict=False)


def _invents(text: str, material: str) -> bool:
    """True if most of the longer words of a text are not in the material, although both are in one language."""
    said = [word[:LONG] for word in _TOKEN.findall(text.casefold()) if not word[0].isdigit()]
    known = {word[:LONG] for word in _TOKEN.findall(material.casefold())}
    longer, shorter = ([word for word in said if (len(word) < LONG) is short] for short in (False, True))
    if len(longer) < FEW or sum(word in known for word in shorter) < SAME_LANGUAGE * len(shorter):
        return False
    return sum(word in known for word in longer) < KNOWN * len(longer)
