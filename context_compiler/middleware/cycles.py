"""Cycles are found by the longest ancestor of a chain, never by an id that a caller may not give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from context_compiler.cache import Memo
from context_compiler.compiler.cycle import Frozen
from context_compiler.messages.history import History
from context_compiler.messages.shapes import WHOLE, Shape
from context_compiler.messages.turns import Pairing

REMEMBERED = 1_000
"""Cycles that are remembered."""


class Cycles:
    """Cycles of all conversations of one compiler, in memory, the least used forgotten first."""

    def __init__(self) -> None:
        """Start with none."""
        self._kept: Memo[tuple[str, str], Frozen] = Memo(REMEMBERED)

    def keep(self, frozen: Frozen) -> None:
        """Remember a cycle under the last message it decides on."""
        self._kept.keep((frozen.tip, frozen.config), frozen)

    def find(self, ids: Sequence[str], config: str) -> Frozen | None:
        """The cycle of the longest known ancestor."""
        if not self._kept:
            return None
        return next((found for tip in reversed(ids) if (found := self._kept.get((tip, config)))), None)


def fitting(frozen: Frozen | None, history: History, config: str) -> Frozen | None:
    """A cycle, if it was made for a prefix of this history and for this way of writing views."""
    if frozen is None or frozen.config != config or not 0 < frozen.decided <= len(history):
        return None
    return frozen if history.ids[frozen.decided - 1] == frozen.tip else None


def mended(frozen: Frozen, pairing: Pairing, base: Mapping[int, Shape]) -> Frozen:
    """The cycle with every call back in place whose answer arrived after it was left out.

    A deferred call may be answered turns later; the pair then stands together, which moves the prefix once.
    """
    late = {call for call, answer in pairing.pairs if call < frozen.decided <= answer}
    if not late:
        return frozen
    kept = dict(frozen.kept)
    for call in late:
        shape = kept.get(call)
        if shape is None or shape.bare or shape.skip or shape.tools != "paired":
            kept[call] = base.get(call, WHOLE)
    return (
        frozen
        if kept == dict(frozen.kept)
        else replace(frozen, kept=tuple(sorted(kept.items(), key=lambda one: one[0])))
    )
