"""What one rendering may cost: every step, character and element is paid for out of one purse.

An empty purse or a passed deadline ends the rendering. No thread, no signal: it works in any event loop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from time import monotonic
from typing import cast

from jinja2.exceptions import SecurityError

ROOM = 1_000_000
"""Characters a rendering may have beyond those of the values it was given."""
EFFORT = 8
"""How much may be made on the way, as a multiple of what may come out; a character is a coin."""
STEP = 64
"""What a turn of a loop costs, or a piece of text or a sum beside its size; a call costs four."""
ELEMENT = 32
"""What a number or a container costs beside what is in it."""
SECONDS = 2.0
"""How long a rendering may take."""
LARGEST = 256
"""Bits of a number."""


class Purse:
    """What one rendering may still spend, and until when."""

    def __init__(self, coins: int = 0) -> None:
        self.coins, self.deadline = coins, monotonic() + SECONDS

    def spend(self, coins: int) -> None:
        """Pay, or stop here."""
        self.coins -= max(0, coins)
        if self.coins < 0:
            raise SecurityError("it makes far more text, or takes far more steps, than a template should")
        if monotonic() > self.deadline:
            raise SecurityError(f"it takes longer than {SECONDS:g} s")

    def weigh(self, value: object) -> object:
        """Pay for everything in `value`, at any depth, and give it back; an iterator becomes a list."""
        if isinstance(value, Iterator):
            value = list(self._paid(cast(Iterator[object], value)))
        waiting = [value]
        while waiting:
            one = waiting.pop()
            self.spend(len(one) if isinstance(one, str) else ELEMENT)
            if isinstance(one, int):
                if one.bit_length() > LARGEST:
                    raise SecurityError("a number is too large")
            elif isinstance(one, dict):
                waiting += cast(dict[object, object], one)
                waiting += cast(dict[object, object], one).values()
            elif not isinstance(one, str | bytes | range) and isinstance(one, Collection):
                waiting += cast(Collection[object], one)
                waiting += cast(Mapping[object, object], one).values() if isinstance(one, Mapping) else ()
        return value

    def _paid(self, values: Iterator[object]) -> Iterator[object]:
        for value in values:
            self.spend(ELEMENT)
            yield value
