"""What a user laid down for good is kept in the user's own words, whatever a summary makes of the rest."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from context_compiler.messages.history import History
from context_compiler.messages.instructions import instructions
from context_compiler.messages.items import Kind
from context_compiler.messages.lines import clip
from context_compiler.messages.turns import Outline

WIDTH = 400
"""Characters of a pin, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A sentence in which a user set a standing instruction or prohibition."""

    position: int
    """Of its message."""
    turn: int
    """0-based; -1 before the first prompt."""
    text: str


def pins(history: History, outline: Outline, positions: Iterable[int]) -> tuple[Pin, ...]:
    """Standing instructions and prohibitions that users gave in these messages, oldest first.

    Only what users said themselves counts: no tool result, no answer, nothing this package wrote, and within
    a prompt no code and no quotation. What was said twice stands where it was said last.
    """
    starts = [turn.start for turn in outline.turns]
    found: dict[str, Pin] = {}
    for position in sorted(set(positions)):
        for item in history.readings[position].items:
            if item.kind is not Kind.USER or item.mark is not None:
                continue
            turn = outline.turns[bisect_right(starts, position) - 1].index
            for sentence in instructions(item.text):
                said = "".join(filter(str.isalnum, sentence.casefold()))
                found.pop(said, None)
                found[said] = Pin(position=position, turn=turn, text=clip(sentence, WIDTH))
    return tuple(found.values())
