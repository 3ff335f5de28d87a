"""Faults of a model's summary that rules can find, cheaply and in any language.

Small models repeat themselves, copy their instructions, speak of nothing in particular, or invent. Repetition is looked
for in pieces of `PIECE` characters, because long texts repeat more. Nothing is said about whether a summary is true.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set

from context_compiler.messages.fences import SUMMARY_PREFIX

PIECE = 1_500
"""Characters of a piece."""

REPEATED, GRAM = 0.10, 3
"""Maximum fraction of groups of `GRAM` words or numbers that occurred before in a piece. A list with a new number for
every `GRAM` words may repeat the words between them. If the material has more than `GRAM` names, one is needed."""

KNOWN, LONG = 0.45, 4
"""Minimum fraction of the numbers and of the words of at least `LONG` letters that are in the material; of such a word,
the first `LONG` letters. A text needs at least `FEW` of them. So many short ones show a common language."""

FEW = 24

COPIED = 8
"""Words in a row that count as copied from a line of the instructions."""

_NOTHING = re.compile(r"\W*(none|null|nothing|n/?a|no (content|summary|notes)( provided)?)?\W*", re.IGNORECASE)
_FENCE = re.compile(r"=== (?:BEGIN|END) ([\w -]+) ===")
_WORD = re.compile(r"[^\W\d_]+")
_FORM = re.compile(
    r"(?m)^ *(```|~~~)[\s\S]*?(?:^ *\1|\Z)"
    r"|^(?: *#.*|[^.!?:\n]*:| *(?:[-*+]|\d+[.)])(?: *\*\*.*?\*\*|[^.!?\n]*$))"
)
"""Parts of a prompt that a summary may repeat: a fenced form, a heading, a label, a list item that is no sentence."""
_UNSPACED = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_TOKEN = re.compile(rf"[{_UNSPACED}]|[^\W\d_{_UNSPACED}]{{1,30}}|\d+(?:[.,:/-]\d+)*")
"""A character of a script without spaces, any other word, or a number."""
_WITHIN = re.compile(r"(?<=[\w,] )[^\W\d_]{2,}")
"""A word within a sentence; it is a name if it begins with a capital."""


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
    said = [_stem(word) for word in _TOKEN.findall(text.casefold())]
    stems = {_stem(word) for word in _TOKEN.findall(material.casefold())}
    if not _is_one_language(said, stems):
        return None
    if _names_nothing(said, material):
        return "it names nothing that is in the conversation"
    return "most of its words are not in the conversation" if _invents(said, stems) else None


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
    grams = list(zip(*(words[start:] for start in range(GRAM)), strict=False))
    lists_numbers = (GRAM + 1) * sum(word[0].isdigit() for word in set(words)) >= len(words)
    return len(grams) > GRAM and not lists_numbers and 1 - len(set(grams)) / len(grams) > REPEATED


def _is_one_language(said: Sequence[str], stems: Set[str]) -> bool:
    """True if a text has as many short words of the material as texts in one language share."""
    shorter = [word for word in said if len(word) < LONG and not word[0].isdigit()]
    return sum(word in stems for word in shorter) >= KNOWN * len(shorter)


def _names_nothing(said: Sequence[str], material: str) -> bool:
    names = {_stem(word.casefold()) for word in _WITHIN.findall(material) if word[0].isupper()}
    return len(names) > GRAM and names.isdisjoint(said)


def _copies_frame(text: str, material: str, instructions: str) -> bool:
    """True if a text contains a fence or eight words in a row of ours that the material does not contain.

    What a summary has to repeat is not compared: headings, labels and fenced forms.
    """
    if SUMMARY_PREFIX in text and SUMMARY_PREFIX not in material:
        return True
    if set(_FENCE.findall(text)) - set(_FENCE.findall(material)):
        return True
    ours = {run for line in _FORM.sub("", instructions).split("\n") for run in _runs(line)}
    copied = {run for run in _runs(text) if run in ours}
    return bool(copied) and not copied <= set(_runs(material))


def _runs(text: str) -> Iterator[tuple[str, ...]]:
    words = _WORD.findall(text.casefold())
    return zip(*(words[start:] for start in range(COPIED)), strict=False)


def _invents(said: Sequence[str], stems: Set[str]) -> bool:
    """True if most of the numbers and longer words are not in the material."""
    longer = [word for word in said if len(word) >= LONG or word[0].isdigit()]
    return len(longer) >= FEW and sum(word in stems for word in longer) < KNOWN * len(longer)


def _stem(word: str) -> str:
    return word if word[0].isdigit() else word[:LONG]
